"""Statements in the log: what they do to captured tables, and which leave rows as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from tautochrone.errors import IngestError
from tautochrone.model.source_position import BulkProgress
from tautochrone.sources.mysql.binlog import Query
from tautochrone.sources.mysql.statements import Effect, Statement
from tautochrone.sources.mysql.tables import CapturedTable, TableColumn
from tautochrone.sources.mysql.tokens import Session

from .conftest import Schema
from .test_change_log import events

_SESSION = Session(charset=45, sql_mode=0, version="10.11.19-MariaDB")


def _effects_of(
    schema: str, text: str, tables: dict[str, CapturedTable], session: Session = _SESSION
) -> list[Effect]:
    statement = Statement(Query(schema, text.encode(), session), lambda _charset, _data: None)
    return statement.effects(tables, tables=tables)


def test_statements_that_leave_rows_as_they_are_copy_nothing(schema: Schema) -> None:
    schema.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), n INT, d DECIMAL(9, 2), at DATETIME(3)) "
        "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))",
        "INSERT INTO t VALUES (1, 'a', 1, 1.5, '2026-01-02 03:04:05')",
    )
    log = schema.change_log()
    position = replace(log.begin("reader"), bulk=BulkProgress())
    hidden = "IGNORED" if not schema.is_mysql else "INVISIBLE"
    statements = (
        "ALTER TABLE t COMMENT = 'it''s, DROP COLUMN a'",
        "ALTER TABLE `t` AUTO_INCREMENT=70, ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1",
        "ALTER TABLE t ENGINE=InnoDB",
        "ALTER TABLE t FORCE, ALGORITHM=INPLACE, LOCK=NONE",
        "ALTER TABLE t ADD INDEX i (a(3), n DESC) COMMENT 'x', ADD KEY (n), DISABLE KEYS",
        f"ALTER TABLE t ALTER INDEX i {hidden}",
        "ALTER TABLE t RENAME INDEX i TO j",
        "ALTER TABLE t DROP INDEX j, DROP KEY n",
        "ALTER TABLE t ALTER COLUMN a SET DEFAULT 'x', ALTER n SET DEFAULT -1",
        "ALTER TABLE t ALTER COLUMN a DROP DEFAULT",
        "ALTER TABLE t MODIFY n INT NULL DEFAULT 5 COMMENT 'a number, (of what)'",
        "ALTER TABLE t CHANGE COLUMN d d DECIMAL(9, 2) COMMENT 'money', MODIFY at DATETIME(3) COMMENT ''",
        "ALTER TABLE t MODIFY id INT NOT NULL COMMENT 'key'",
        "ALTER TABLE t ADD CONSTRAINT small CHECK (n < 100 AND (n > -100))",
        "ALTER TABLE t ADD PARTITION (PARTITION p1 VALUES LESS THAN (200), "
        "PARTITION p2 VALUES LESS THAN (300))",
        "ALTER TABLE t REORGANIZE PARTITION p1, p2 INTO (PARTITION p3 VALUES LESS THAN (400), "
        "PARTITION p4 VALUES LESS THAN MAXVALUE)",
        "ALTER TABLE t DEFAULT CHARACTER SET latin1",
        "CREATE INDEX k ON t (n)",
        "DROP INDEX k ON t",
    )
    for number, statement in enumerate(statements, start=2):
        # Before and behind it rows have the same images.
        row = "'b', 2, 2.5, '2026-01-02 03:04:05'"
        schema.run(
            f"INSERT INTO t VALUES ({number}, {row})", statement, f"UPDATE t SET n = 3 WHERE id = {number}"
        )
        batch = log.read(position, 100)
        assert not batch.position.bulk.waiting, statement
        assert [event[0] for event in events(batch.rows)] == ["insert", "update"], statement
        stored = dict(batch.rows.to_pylist()[1]["columns"])
        assert stored == {"id": str(number), "a": "b", "n": "3", "d": "2.50", "at": "2026-01-02 03:04:05.000"}
        position = batch.position
    log.close()
    log = schema.change_log()
    assert log.resume(position) == position, "the next run copies nothing either"
    log.close()


def test_alterations_that_are_logged_in_two_parts(schema: Schema) -> None:
    if schema.is_mysql:
        pytest.skip("MySQL logs them as one statement")
    schema.run("CREATE TABLE t (id INT PRIMARY KEY, a TEXT)", "INSERT INTO t VALUES (1, 'x'), (2, 'x')")
    log = schema.change_log()
    position = replace(log.begin("reader"), bulk=BulkProgress())
    schema.run("SET SESSION binlog_alter_two_phase = 1", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4")
    before = log.read(position, 100)
    assert not before.copied_again
    again = log.read(before.position, 100)
    assert set(again.copied_again) == {f"{schema.name}.t"}
    position = replace(again.position, bulk=BulkProgress())
    with pytest.raises(pymysql.Error):
        schema.run("ALTER TABLE t MODIFY a VARCHAR(20), ADD UNIQUE (a)")
    schema.run("INSERT INTO t VALUES (3, 'y')")
    batch = log.read(position, 100)
    assert not batch.copied_again
    assert events(batch.rows) == [("insert", "3", "y")]
    log.close()


def test_truncate_of_a_temporary_table_is_not_that_of_the_table(schema: Schema) -> None:
    """Sessions of the format MIXED log it, and under the name of a captured table."""
    schema.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    log = schema.change_log()
    position = replace(log.begin("reader"), bulk=BulkProgress())
    schema.run("SET SESSION binlog_format = 'MIXED'", "CREATE TEMPORARY TABLE t (id INT)", "TRUNCATE TABLE t")
    # What is before it in the log comes first.
    batches = [first := log.read(position, 100), log.read(first.position, 100)]
    assert [batch.rows.num_rows for batch in batches] == [0, 0]
    # MySQL does not log it at all.
    assert any(batch.copied_again for batch in batches) is not schema.is_mysql
    log.close()


def test_xa_transaction_that_is_committed_in_one_phase(schema: Schema) -> None:
    schema.run("CREATE TABLE t (id INT PRIMARY KEY, a TEXT)")
    log = schema.change_log()
    position = replace(log.begin("reader"), bulk=BulkProgress())
    schema.run("XA START 'x'", "INSERT INTO t VALUES (8, 'x')", "XA END 'x'", "XA COMMIT 'x' ONE PHASE")
    assert events(log.read(position, 100).rows) == [("insert", "8", "x")]
    log.close()


def test_files_that_a_statement_loads(schema: Schema, tmp_path: Path) -> None:
    """Rows are taken; a session that logs the statement and the file instead is refused."""
    (tmp_path / "rows").write_text("8\tx\n")
    load = f"LOAD DATA LOCAL INFILE '{tmp_path / 'rows'}' INTO TABLE t"
    schema.run("CREATE TABLE t (id INT PRIMARY KEY, a TEXT)", "SET GLOBAL local_infile = 1")
    log = schema.change_log()
    position = replace(log.begin("reader"), bulk=BulkProgress())
    with schema.server.open_connection(database=schema.name, local_infile=True) as connection:
        connection.cursor().execute(load)
        batch = log.read(position, 100)
        assert events(batch.rows) == [("insert", "8", "x")]
        connection.cursor().execute("SET SESSION binlog_format = 'STATEMENT'")
        connection.cursor().execute(load.replace("INTO", "REPLACE INTO"))
    with pytest.raises(IngestError, match="a statement instead of its rows") as raised:
        log.read(batch.position, 100)
    assert raised.value.error_class == "CAPTURE_SERVER_NOT_USABLE"
    log.close()


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("/* by hand */ TRUNCATE `shop`.`orders`", ["truncate"]),
        ("ALTER TABLE orders DROP PARTITION p1", ["change"]),
        ("ALTER TABLE orders ADD INDEX (a)", []),
        ("/*!40000 ALTER TABLE `orders` DISABLE KEYS */", []),
        ("/*!50100 ALTER TABLE `orders` DROP COLUMN a */", ["change"]),
        ("CREATE TABLE other (a TEXT COMMENT '/* of orders')", []),
        ("/* don't */ TRUNCATE orders -- it's", ["truncate"]),
        ("DROP TABLE `#old`, orders", ["change"]),
        ("ALTER TABLE other COMMENT 'a -- ', RENAME TO orders", ["change"]),
        ("ALTER TABLE orders ADD INDEX (a), DROP COLUMN a", ["change"]),
        ("ALTER TABLE orders COMMENT 'x', AUTO_INCREMENT = 7, ENGINE InnoDB", []),
        ("ALTER TABLE orders COMMENT 'x\\\\', DROP COLUMN a, COMMENT ''", ["change"]),
        ("ALTER TABLE orders ENGINE = MyISAM", ["change"]),
        ("ALTER TABLE orders ADD INDEX (a) PARTITION BY HASH (id)", ["change"]),
        ("ALTER IGNORE TABLE orders ADD UNIQUE (a)", ["change"]),
        ("ALTER TABLE orders DROP INDEX `PRIMARY`", ["change"]),
        ("DROP INDEX `PRIMARY` ON orders", ["change"]),
        ("ALTER TABLE orders DROP FOREIGN KEY f", ["change"]),
        ("ALTER TABLE orders CONVERT TO CHARACTER SET latin1", ["change"]),
        ("ALTER TABLE orders MODIFY n INT DEFAULT 7 COMMENT 'x'", []),
        (
            "ALTER TABLE orders MODIFY n INT DEFAULT -1, ALTER a SET DEFAULT b'1', "
            "ALTER n SET DEFAULT (now())",
            [],
        ),
        ("ALTER TABLE orders MODIFY n INT DEFAULT 1.5, ALTER a SET DEFAULT CURRENT_TIMESTAMP()", []),
        ("ALTER TABLE other MODIFY n INT, ADD INDEX (orders)", []),
        ("ALTER TABLE other EXCHANGE PARTITION p WITH TABLE orders", ["change"]),
        ("ALTER TABLE other CONVERT TABLE shop . orders TO PARTITION p VALUES LESS THAN (9)", ["change"]),
        ("ALTER TABLE orders DROP INDEX `primary`", ["change"]),
        ("ALTER TABLE orders MODIFY n INT NOT NULL", ["change"]),
        ("ALTER TABLE orders MODIFY n INT AUTO_INCREMENT", ["change"]),
        ("ALTER TABLE orders MODIFY n INT FIRST", ["change"]),
        ("ALTER TABLE orders MODIFY n BIGINT", ["change"]),
        ("ALTER TABLE orders MODIFY n INT UNSIGNED", ["change"]),
        ("ALTER TABLE orders CHANGE n m INT", ["change"]),
        ("ALTER TABLE orders MODIFY a VARCHAR(9) COMMENT 'x'", ["change"]),
        ("ALTER TABLE orders MODIFY a VARCHAR(9) CHARACTER SET utf8mb4 COMMENT 'x'", []),
        ("ALTER TABLE orders MODIFY a VARCHAR(10) CHARACTER SET utf8mb4", ["change"]),
        ("ALTER TABLE orders ADD COLUMN b INT, ADD (c INT, `d e` TEXT DEFAULT ('a, b'))", ["behind"]),
        ("ALTER TABLE orders ADD b INT AFTER n", ["change"]),
        ("ALTER TABLE orders ADD b INT REFERENCES other (id) ON DELETE CASCADE", ["change"]),
        ("ALTER TABLE orders DROP b, MODIFY c BIGINT, RENAME COLUMN e TO f", ["behind"]),
        ("ALTER TABLE orders DROP b, DROP PRIMARY KEY", ["change"]),
        ("ALTER TABLE orders DROP `a`", ["change"]),
        ("CREATE TABLE other (id INT, FOREIGN KEY (id) REFERENCES orders (id))", []),
        ("CREATE TABLE orders (id INT)", ["change"]),
        ("ALTER TABLE other ADD FOREIGN KEY (id) REFERENCES `shop`.`orders` (id)", []),
        ("ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES orders (id)", ["change"]),
        ("DROP TABLE other, orders", ["change"]),
        ("DROP TABLE elsewhere.orders2", []),
        ("DROP DATABASE shop", ["change"]),
        ("DROP DATABASE elsewhere", []),
        ("CREATE OR REPLACE DATABASE shop", ["change"]),
        ("CREATE DATABASE shop", []),
        ("COMMENT ON x IS 'orders'", ["change"]),
        ("", []),
        ("-- nothing", []),
        ("XA COMMIT 'another form'", ["change"]),
        ("XA ROLLBACK X'61',X'',1", []),
        ("TRUNCATE .orders", ["truncate"]),
        ("TRUNCATE TABLE other--\n, orders", ["change"]),
        ("BEGIN NOT ATOMIC TRUNCATE x; END", ["change"]),
        ("TRUNCATE other; TRUNCATE x", ["change"]),
        ("TRUNCATE `other", ["change"]),
        ("TRUNCATE TABLE `#mysql50#x`", ["change"]),
        ("/*M!100100 TRUNCATE */ orders", ["truncate"]),
        ("TRUNCATE other /*!80000 , orders */", []),
        ("TRUNCATE other /*!50600 , orders */", ["change"]),
        ("CREATE OR REPLACE SEQUENCE orders", ["change"]),
        ("DROP INDEX orders ON other", []),
        ("ALTER DATABASE shop CHARACTER SET latin1", []),
        ("ALTER DATABASE `#mysql50#shop` UPGRADE DATA DIRECTORY NAME", ["change"]),
        ("ALTER TABLE orders REBUILD PARTITION ALL", ["change"]),
        ("ALTER TABLE orders COALESCE PARTITION 1", ["change"]),
        ("ALTER TABLE orders REMOVE PARTITIONING", ["change"]),
        ("ALTER TABLE orders ADD PARTITION PARTITIONS 2", ["change"]),
        ("ALTER TABLE orders ADD PARTITION (PARTITION p VALUES IN (1, 2))", []),
        ("ALTER TABLE orders ADD PARTITION (PARTITION p DEFAULT)", ["change"]),
        ("ALTER TABLE orders REORGANIZE PARTITION p INTO (PARTITION q VALUES IN (1))", ["change"]),
        (
            "ALTER TABLE orders REORGANIZE PARTITION p INTO (PARTITION q VALUES LESS THAN (9), "
            "PARTITION p VALUES LESS THAN MAXVALUE)",
            [],
        ),
        ("CREATE DEFINER=`root`@`%` TRIGGER x BEFORE INSERT ON orders FOR EACH ROW SET @a = 1", []),
        ("INSERT INTO elsewhere.log SELECT 1", ["rows"]),
        ("TRUNCATE TABLE elsewhere.orders", []),
        ("TRUNCATE orders.elsewhere", []),
        ("TRUNCATE TABLE elsewhere . `orders`", []),
        ("TRUNCATE TABLE `shop` .orders", ["truncate"]),
        ("DROP TABLE elsewhere.orders, orders", ["change"]),
        ("SET STATEMENT max_statement_time = 1, sql_mode = 'A FOR B' FOR TRUNCATE orders", ["truncate"]),
        ("set statement lock_wait_timeout=1 for ALTER TABLE orders DROP COLUMN a", ["change"]),
        ("SET STATEMENT lock_wait_timeout = 1 FOR ALTER TABLE orders ADD INDEX (a)", []),
        ("SET STATEMENT lock_wait_timeout = 1 FOR INSERT INTO orders SELECT 1", ["rows"]),
        # A function that they call may write to any table.
        ("SELECT `elsewhere`.`next_number`(7)", ["rows"]),
        ("WITH n AS (SELECT 1) DELETE FROM elsewhere.log WHERE id IN (SELECT * FROM n)", ["rows"]),
        ("ANALYZE UPDATE elsewhere.log SET id = 1", ["rows"]),
        ("CREATE TEMPORARY TABLE elsewhere.x AS SELECT next_number(7)", ["rows"]),
        ("ANALYZE TABLE orders", []),
        ("ANALYZE LOCAL TABLE orders", []),
        ("CREATE TABLE other (`select` INT COMMENT 'SELECT')", []),
        ("CREATE VIEW other AS SELECT * FROM orders", []),
    ],
)
def test_effects_of_statements(text: str, kinds: list[str]) -> None:
    columns = (
        TableColumn("id", "int", "int(11)"),
        TableColumn("n", "int", "int"),
        TableColumn("a", "varchar", "varchar(9)", "utf8mb4"),
    )
    tables = {"shop.orders": CapturedTable("shop", "orders", columns, ("id",))}
    assert _effects_of("shop", text, tables) == [Effect(kind, "shop.orders") for kind in kinds]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("TRUNCATE orders", ["truncate"]),
        ("TRUNCATE `shop.v2`.orders", ["truncate"]),
        ("TRUNCATE shop.`v2.orders`", []),
        ("ALTER TABLE `shop.v2`.orders DROP COLUMN id", ["change"]),
        ("ALTER TABLE orders ADD INDEX (a)", []),
        ("CREATE OR REPLACE TABLE orders (id INT)", ["change"]),
        ("CREATE TABLE `shop.v2`.x LIKE orders", []),
        ("DROP DATABASE `shop.v2`", ["change"]),
        ("DROP DATABASE shop", []),
    ],
)
def test_names_with_dots(text: str, kinds: list[str]) -> None:
    tables = {
        "shop.v2.orders": CapturedTable("shop.v2", "orders", (TableColumn("id", "int", "int"),), ("id",))
    }
    assert _effects_of("shop.v2", text, tables) == [Effect(kind, "shop.v2.orders") for kind in kinds]
