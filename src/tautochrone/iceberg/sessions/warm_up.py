"""`python -m tautochrone.iceberg.sessions.warm_up FILE`: runs statements and queries as pipelines do, then
Java writes the loaded classes into FILE. Called by `spark.session.java.make_archive` only."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.spark.session.factory import use_database
from tautochrone.spark.session.settings import SparkSettings

_STATEMENTS = """
CREATE TABLE orders (id BIGINT, customer STRING, at TIMESTAMP, price DECIMAL(10, 2), tags ARRAY<STRING>);
INSERT INTO orders
SELECT id, CAST(id % 3 AS STRING), timestamp_seconds(id), id / 7, array('a', 'b') FROM range(100);
CREATE TABLE totals (customer STRING, orders BIGINT, value DECIMAL(30, 2))
TBLPROPERTIES ('format-version' = '3', 'write.merge.mode' = 'merge-on-read');
INSERT INTO totals SELECT customer, count(*), sum(price) FROM orders GROUP BY customer;
MERGE INTO totals t USING (
  SELECT customer, count(DISTINCT at) n FROM orders WHERE id < 9 GROUP BY customer
) s ON t.customer = s.customer
WHEN MATCHED THEN UPDATE SET orders = s.n
WHEN NOT MATCHED THEN INSERT (customer, orders, value) VALUES (s.customer, s.n, 0);
DELETE FROM orders WHERE id = 7;
ALTER TABLE orders CREATE BRANCH b;
CREATE TABLE events (a INT, b STRING)
"""
_QUERIES = """
SELECT o.id, t.value, rank() OVER (PARTITION BY o.customer ORDER BY o.at)
FROM orders o LEFT JOIN totals t USING (customer)
WHERE o.id IN (SELECT id FROM orders WHERE price > 1) ORDER BY 1 LIMIT 5;
SELECT customer, tag, max(at) FROM orders LATERAL VIEW explode(tags) AS tag GROUP BY ROLLUP(customer, tag);
SELECT snapshot_id, operation FROM default.orders.snapshots
"""


def _run_workload(session: SparkSession, folder: Path) -> None:
    use_database(session, "lake", "default", create=True)
    for statement in _STATEMENTS.split(";"):
        session.sql(statement)
    for query in _QUERIES.split(";"):
        session.sql(query).toArrow()
    session.createDataFrame([(1, "a")], "a INT, b STRING").write.json(str(folder / "in"))
    stream = session.readStream.schema("a INT, b STRING").json(str(folder / "in"))
    writer = stream.writeStream.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True)
    writer.toTable("events").awaitTermination()


def main(file: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={file}"}
        settings = SparkSettings(master="local[2]", conf=conf, short_lived=True)
        session = start_session(settings, CatalogSettings.default(folder))
        gateway = SparkContext._gateway  # noqa: SLF001
        _run_workload(session, Path(folder))
        session.stop()
        if gateway is None:
            return 1
        # Java writes the archive when it exits, and it exits when its stdin is closed.
        gateway.shutdown()
        gateway.proc.stdin.close()
        return int(gateway.proc.wait())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
