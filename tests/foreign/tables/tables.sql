-- What Delta 4.4.0 on Spark 4.1.3 made the tables of the archives with, in the time zone UTC.
CREATE TABLE delta.`vectors` (id BIGINT, name STRING, at TIMESTAMP, ntz TIMESTAMP_NTZ, d DECIMAL(12,2), day DATE, tags ARRAY<STRING>, m MAP<STRING,INT>, s STRUCT<a:INT,b:ARRAY<STRUCT<x:INT>>>, small SMALLINT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors'='true');
INSERT INTO delta.`vectors` SELECT id, concat('n', id%5), timestamp'2024-01-01 00:00:00' + make_interval(0,0,0,id%3), timestamp_ntz'2024-01-01 00:00:00', id/4, date'2024-01-01', array('a', null), map('k', 1), named_struct('a', 1, 'b', array(named_struct('x', 7))), 3 FROM range(1000);
DELETE FROM delta.`vectors` WHERE id % 10 = 3;
CREATE TABLE delta.`partitions` (id BIGINT, p STRING, q DATE, at TIMESTAMP, b BOOLEAN, dc DECIMAL(5,2)) USING delta PARTITIONED BY (p, q, at, b, dc);
INSERT INTO delta.`partitions` SELECT id, CASE WHEN id%4=0 THEN null WHEN id%4=1 THEN 'a b/ü%20=#?' ELSE 'x' END, date'2024-01-01' + CAST(id % 2 AS INT), timestamp'2024-01-01 10:00:00.123456', id%2=0, 1.25 FROM range(20);
CREATE TABLE delta.`renamed` (id BIGINT, s STRUCT<a:INT,b:INT>, name STRING) USING delta;
INSERT INTO delta.`renamed` SELECT id, named_struct('a', 1,'b',2), 'n' FROM range(5);
ALTER TABLE delta.`renamed` SET TBLPROPERTIES ('delta.columnMapping.mode'='name');
ALTER TABLE delta.`renamed` RENAME COLUMN name TO title;
INSERT INTO delta.`renamed` SELECT id, named_struct('a', 1,'b',2), 'n' FROM range(5);
