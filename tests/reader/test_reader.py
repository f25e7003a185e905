"""The SQL reader: names, pins that live as long as DataFrames, refused statements, errors."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.published_lake import Lake, name

from tautochrone.errors import CheckpointUnavailableError, MetaError, QueryError
from tautochrone.model.query import Query
from tautochrone.reader import Reader, qualified, tables_in

pytestmark = pytest.mark.spark


@pytest.fixture
def reader(lake: Lake) -> Iterator[Reader]:
    with Reader(lake.store, lake.settings, base=lake.spark, database="db") as opened:
        yield opened


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.02)


def test_names_in_queries(lake: Lake) -> None:
    def tables(query: str) -> set[str]:
        return {".".join(parts) for parts in tables_in(lake.spark, query)}

    assert tables("SELECT 1") == set()
    assert tables("TABLE a.b") == {"a.b"}
    assert tables("SELECT * FROM a JOIN `b-c`.d USING (id), VALUES (1)") == {"a", "b-c.d"}
    assert tables(
        "SELECT (SELECT max(x) FROM s) FROM t WHERE y IN (SELECT y FROM u) "
        "AND EXISTS (SELECT 1 FROM v WHERE v.k = t.k)"
    ) == {"s", "t", "u", "v"}
    assert tables("WITH t AS (SELECT * FROM t), u AS (SELECT * FROM t) SELECT * FROM u, X.u") == {
        "t",
        "X.u",
    }
    assert tables("WITH T AS (SELECT 1) SELECT * FROM t WHERE 1 IN (SELECT * FROM T)") == set()
    assert tables("SELECT * FROM (WITH i AS (SELECT * FROM a) SELECT * FROM i), i") == {"a", "i"}
    assert tables("WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM r") == set()
    assert tables("SELECT * FROM t VERSION AS OF 3 UNION SELECT * FROM u EXCEPT SELECT * FROM w") == {
        "t",
        "u",
        "w",
    }
    assert tables("FROM t |> WHERE x > 1 |> JOIN u ON true |> SELECT *") == {"t", "u"}
    assert tables("SELECT * FROM t, LATERAL (SELECT * FROM u WHERE u.a = t.a)") == {"t", "u"}
    assert tables("SELECT * FROM t TABLESAMPLE (10 ROWS) PIVOT (sum(a) FOR b IN (1, 2))") == {"t"}
    assert tables("SELECT a, count(*) FROM t GROUP BY a HAVING count(*) > (SELECT 1 FROM h)") == {
        "t",
        "h",
    }


def test_names_are_qualified() -> None:
    names = [("t",), ("x", "t"), ("lake", "x", "t"), ("spark_catalog", "x", "t"), ("t", "snapshots")]
    assert {str(table) for table in qualified(names, "lake", ("db",))} == {
        "lake.db.t",
        "lake.x.t",
        "lake.t.snapshots",
    }
    assert {str(n) for n in qualified([("lake", "x", "t", "files")], "lake", ("db",))} == {
        "lake.x.t.files",
        "lake.x.t",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO totals VALUES (1)",
        "WITH a AS (SELECT 1) INSERT INTO totals SELECT * FROM a",
        "FROM orders INSERT INTO totals SELECT id INSERT INTO totals SELECT price",
        "INSERT OVERWRITE totals SELECT 1",
        "UPDATE orders SET id = 1",
        "DELETE FROM orders",
        "MERGE INTO totals USING orders ON false WHEN NOT MATCHED THEN INSERT (n) VALUES (1)",
        "CREATE TABLE x (i INT)",
        "CREATE TABLE x AS SELECT 1 AS a",
        "CREATE VIEW x AS SELECT 1",
        "CREATE TEMPORARY VIEW x AS SELECT 1",
        "DROP TABLE orders",
        "ALTER TABLE orders ADD COLUMN x INT",
        "TRUNCATE TABLE orders",
        "CALL lake.system.expire_snapshots('db.orders')",
        "SET spark.sql.shuffle.partitions = 1",
        "USE lake",
        "EXECUTE IMMEDIATE 'DROP TABLE orders'",
        "INSERT OVERWRITE DIRECTORY '/tmp/never' USING parquet SELECT 1",
        "CACHE TABLE orders",
        "BEGIN DELETE FROM orders; END",
        "DECLARE VARIABLE x INT",
        "ADD JAR 'x.jar'",
        "EXPLAIN DELETE FROM orders",
        "SELECT TRANSFORM(id) USING 'cat' AS (x) FROM orders",
        "SELECT * FROM (SELECT TRANSFORM(id) USING 'cat' AS (x) FROM orders)",
        "SELECT 1 WHERE 1 IN (SELECT TRANSFORM(id) USING 'cat' AS (x) FROM orders)",
    ],
)
def test_statements_that_write_are_refused(spark: SparkSession, statement: str) -> None:
    with pytest.raises(QueryError) as caught:
        tables_in(spark, statement)
    assert caught.value.error_class == "QUERY_NOT_READ_ONLY"


def test_strong_weak_explicit_and_external_tables(lake: Lake, reader: Reader) -> None:
    query = "SELECT (SELECT count(*) FROM orders) AS a, (SELECT n FROM db.totals) AS b"
    assert rows(reader.sql(query)) == [(3, 3)]
    assert rows(reader.sql(query, checkpoint=lake.numbers[0])) == [(2, 2)]
    lake.store.roots.report("job", lake.fence, {name("orders"): lake.version("db.orders")})
    weak = reader.sql("SELECT id FROM lake.db.orders", consistency="weak")
    lake.spark.sql("INSERT INTO lake.db.orders VALUES (77, 7, 'unreported')")
    assert rows(weak) == [(2,), (3,), (4,)]
    joined = reader.sql("SELECT o.id, x.label FROM orders o JOIN a.b.outside x USING (id)")
    assert rows(joined) == [(1, "one"), (3, "three")]
    assert rows(reader.sql("SELECT count(*) FROM lake.a.b.outside")) == [(2,)]
    assert rows(reader.sql("SELECT 1")) == [(1,)]
    assert reader.versions([name("orders")]).checkpoint == lake.numbers[1]
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        reader.sql(query, checkpoint=99)


def test_strong_query_keeps_its_checkpoint_until_it_is_collected(lake: Lake, reader: Reader) -> None:
    frame = reader.sql("SELECT id FROM orders").filter("id > 1")
    lake.cut()
    assert rows(frame) == [(2,), (3,)]
    assert rows(reader.sql("SELECT id FROM orders")) == [(2,), (3,), (4,)]


def test_pin_lives_as_long_as_derived_dataframes(lake: Lake, reader: Reader) -> None:
    first = lake.numbers[0]
    frame = reader.sql("SELECT id FROM orders", checkpoint=first).filter("id > 1")
    reader._sessions.clear()
    gc.collect()
    assert rows(frame) == [(2,)]
    time.sleep(0.2)
    with pytest.raises(MetaError, match="CHECKPOINT_PINNED"):
        lake.store.checkpoints.expire(first)
    del frame
    wait_until(lambda: first not in lake.store.pins.pinned_checkpoints())
    lake.store.checkpoints.expire(first)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_EXPIRED"):
        reader.sql("SELECT id FROM orders", checkpoint=first)


def test_short_lease_is_renewed(lake: Lake) -> None:
    with Reader(lake.store, lake.settings, base=lake.spark, database="db", lease_ms=1500) as reader:
        frame = reader.sql("SELECT id FROM orders")
        time.sleep(3)
        assert lake.store.pins.pinned_checkpoints() == {lake.numbers[1]}
        assert frame.count() == 3
    assert lake.store.pins.pinned_checkpoints() == frozenset()


def test_lost_pin_is_replaced(lake: Lake, reader: Reader) -> None:
    reader.sql("SELECT id FROM orders")
    (pin,) = reader._leases.pins
    lake.store.pins.release(pin)  # as if this process had slept longer than its lease
    reader._leases._renew(pin)
    reader.sql("SELECT id FROM orders")
    assert lake.store.pins.pinned_checkpoints() == {lake.numbers[1]}


def test_pin_of_a_weak_read_ends_with_its_dataframe(lake: Lake, reader: Reader) -> None:
    for _ in range(3):
        assert reader.sql("SELECT n FROM totals", consistency="weak").count() == 1
    wait_until(lambda: not reader._leases.pins)
    assert reader._read_points._registered.keys() == {"external-tables"}


def test_reader_never_goes_backwards(lake: Lake, reader: Reader) -> None:
    reader.sql("SELECT id FROM orders")
    broken = lake.cut(fail=True)
    # A failed dataset holds back the tables that share a root with it, so that both queries agree.
    assert rows(reader.sql("SELECT count(*) FROM orders")) == [(3,)]
    assert rows(reader.sql("SELECT n FROM totals")) == [(3,)]
    # With `only_named` the reader sees a newer checkpoint, and cannot go back.
    assert rows(reader.sql("SELECT count(*) FROM orders", only_named=True)) == [(3,)]
    with pytest.raises(CheckpointUnavailableError, match=r"CHECKPOINT_BEHIND_SESSION.*division"):
        reader.sql("SELECT n FROM totals")
    assert rows(reader.sql("SELECT n FROM totals", checkpoint=lake.numbers[1])) == [(3,)]
    lake.store.checkpoints.record_version(
        "job",
        lake.fence,
        broken,
        name("totals"),
        lake.version("db.totals"),
        lake.store.history.refreshes(name("totals"))[-1].refresh,  # type: ignore[arg-type]
    )
    assert rows(reader.sql("SELECT n FROM totals")) == [(3,)]


def test_spark_errors_become_query_errors(lake: Lake, reader: Reader) -> None:
    with pytest.raises(QueryError) as caught:
        reader.sql("SELECT missing FROM orders")
    assert caught.value.error_class.startswith("UNRESOLVED_COLUMN")
    assert caught.value.sqlstate == "42703"
    with pytest.raises(QueryError, match="PARSE_SYNTAX_ERROR"):
        reader.sql("SELEKT 1")
    with pytest.raises(QueryError, match="TABLE_OR_VIEW_NOT_FOUND"):
        reader.sql("SELECT * FROM nowhere")


@pytest.mark.parametrize("removed", ["*.parquet", "*-m0.avro", "snap-*.avro"])
def test_a_file_that_is_not_there(lake: Lake, reader: Reader, removed: str) -> None:
    query = Query(sql="SELECT * FROM orders")
    assert reader.arrow(query).rows.num_rows == 3
    folder = Path(lake.settings.options["warehouse"].removeprefix("file:")) / "db" / "orders"
    for file in folder.rglob(removed):
        file.unlink()
    another = Reader(lake.store, lake.settings, base=lake.spark, database="db")
    with another, pytest.raises(QueryError, match="LAKE_FILE_MISSING") as missing:
        another.arrow(query)
    assert removed.rpartition("*")[2] in missing.value.message


def test_closed_reader_raises_reader_closed(lake: Lake) -> None:
    reader = Reader(lake.store, lake.settings, base=lake.spark)
    reader.close()
    reader.close()
    with pytest.raises(QueryError, match="READER_CLOSED"):
        reader.sql("SELECT 1")
    assert lake.spark.range(1).count() == 1


def test_the_meta_tables_of_the_flip(reader: Reader, lake: Lake) -> None:
    # The example of the FLIP: what is derived from a table?
    query = """
        SELECT t.table_name FROM __META_ETL_SOURCE s JOIN __meta_etl_sink t ON s.job_id = t.job_id
        WHERE s.table_name = 'lake.db.orders'"""
    assert rows(reader.sql(query)) == [("lake.db.orders",), ("lake.db.totals",)]
    first, second = lake.numbers
    versions = "SELECT * FROM __META_TABLE_VERSION"
    cut = lake.store.checkpoints.versions_at(second)
    newest = [
        ("lake.db.orders", cut[name("orders")], "Root"),
        ("lake.db.totals", cut[name("totals")], "Intermediate"),
    ]
    assert rows(reader.sql(versions)) == newest
    older = rows(reader.sql(versions, checkpoint=first))
    assert [table for table, _, _ in older] == ["lake.db.orders", "lake.db.totals"]
    assert older != newest
    assert rows(reader.sql(versions, checkpoint=second)) == newest
    # Together with tables of the lake.
    both = "SELECT count(*) FROM totals, __META_TABLE_VERSION v WHERE v.table_type = 'Root'"
    assert rows(reader.sql(both)) == [(1,)]
    assert reader.sql(versions, "weak").columns == ["table_name", "version", "table_type"]
