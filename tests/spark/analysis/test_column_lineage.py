"""Column lineage: exact for each construct, and complete for the queries of TPC-H.

Completeness is tested by its definition: columns outside the lineage get other values, and the result must
stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.support import tpch

from tautochrone.model.definitions import ColumnLineage, ColumnRef
from tautochrone.spark.analysis.column_lineage import column_lineage
from tautochrone.spark.analysis.session_context import set_active_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.origin")
    spark.sql("CREATE TABLE IF NOT EXISTS lake.origin.t (k INT, x INT, g STRING, a ARRAY<INT>) USING iceberg")
    spark.sql("CREATE TABLE IF NOT EXISTS lake.origin.u (k INT, y INT) USING iceberg")
    return spark


def as_text(lineage: ColumnLineage) -> tuple[dict[str, str], str]:
    """`{column: "t.x u.y"}` and the same for the rows."""
    assert lineage.problem is None
    values = {column: _origin_text(origin) for column, origin in lineage.values.items()}
    return values, _origin_text(lineage.rows)


def _origin_text(origin: Iterable[ColumnRef]) -> str:
    return " ".join(sorted(f"{ref.table.table}.{ref.column}" for ref in origin))


def lineage_of(session: SparkSession, query: str) -> tuple[dict[str, str], str]:
    set_active_session(session)
    text = query.replace(" t", " lake.origin.t").replace(" u", " lake.origin.u")
    return as_text(column_lineage(session.sql(text), "lake"))


@pytest.mark.parametrize(
    ("query", "values", "rows"),
    [
        ("SELECT k AS a, x + k AS b, 1 AS c FROM t", {"a": "t.k", "b": "t.k t.x", "c": ""}, ""),
        ("SELECT x FROM t WHERE g = 'a'", {"x": "t.x"}, "t.g"),
        ("SELECT x * 0 AS z FROM t", {"z": "t.x"}, ""),
        ("SELECT k, sum(x) AS s, count(*) AS n FROM t GROUP BY k", {"k": "t.k", "s": "t.x", "n": ""}, "t.k"),
        ("SELECT count(*) FILTER (WHERE x > 1) AS n FROM t HAVING max(k) > 1", {"n": "t.x"}, "t.k"),
        ("SELECT x, y FROM t JOIN u USING (k)", {"x": "t.x", "y": "u.y"}, "t.k u.k"),
        ("SELECT k FROM t FULL JOIN u USING (k)", {"k": "t.k u.k"}, "t.k u.k"),
        ("SELECT p.x, q.g FROM t p JOIN t q ON p.k = q.x", {"x": "t.x", "g": "t.g"}, "t.k t.x"),
        ("SELECT x FROM t UNION ALL SELECT y FROM u", {"x": "t.x u.y"}, ""),
        ("SELECT x FROM t EXCEPT SELECT y FROM u", {"x": "t.x"}, "t.x u.y"),
        ("SELECT x FROM t INTERSECT ALL SELECT y FROM u", {"x": "t.x"}, "t.x u.y"),
        ("SELECT DISTINCT g FROM t", {"g": "t.g"}, "t.g"),
        ("SELECT sum(x) OVER (PARTITION BY g ORDER BY k) AS s FROM t", {"s": "t.g t.k t.x"}, ""),
        (
            "SELECT x FROM (SELECT x, row_number() OVER (PARTITION BY k ORDER BY g) AS n FROM t) WHERE n = 1",
            {"x": "t.x"},
            "t.g t.k",
        ),
        ("SELECT k, e FROM t LATERAL VIEW explode(a) AS e", {"k": "t.k", "e": "t.a"}, "t.a"),
        (
            "SELECT g, k, sum(x) AS s FROM t GROUP BY ROLLUP (g, k)",
            {"g": "t.g", "k": "t.k", "s": "t.x"},
            "t.g t.k",
        ),
        ("SELECT x FROM t WHERE k IN (SELECT k FROM u WHERE y > 0)", {"x": "t.x"}, "t.k u.k u.y"),
        ("SELECT x FROM t WHERE EXISTS (SELECT * FROM u WHERE u.k = t.k)", {"x": "t.x"}, "t.k u.k"),
        (
            "SELECT x, (SELECT max(y) FROM u WHERE u.k = t.k) AS m FROM t",
            {"x": "t.x", "m": "t.k u.k u.y"},
            "",
        ),
        (
            "WITH c AS (SELECT k, x + 1 AS z FROM t) SELECT p.z FROM c p JOIN c q USING (k)",
            {"z": "t.x"},
            "t.k",
        ),
        (
            "SELECT x, z FROM t, LATERAL (SELECT y + x AS z FROM u WHERE u.k = t.k)",
            {"x": "t.x", "z": "t.x u.y"},
            "t.k u.k",
        ),
        ("SELECT x FROM t ORDER BY g, k LIMIT 3", {"x": "t.x"}, "t.g t.k"),
        ("SELECT x FROM t ORDER BY g", {"x": "t.x"}, ""),
        (
            "SELECT * FROM (SELECT k, g, x FROM t) PIVOT (sum(x) FOR g IN ('a', 'b'))",
            {"k": "t.k", "a": "t.g t.x", "b": "t.g t.x"},
            "t.g t.k",
        ),
        (
            "SELECT * FROM (SELECT k, x FROM t) UNPIVOT (v FOR n IN (k, x))",
            {"n": "", "v": "t.k t.x"},
            "t.k t.x",
        ),
        (
            "WITH RECURSIVE r(n, m) AS (SELECT x, k FROM t UNION ALL SELECT m, 1 FROM r WHERE n < 3) "
            "SELECT n FROM r",
            {"n": "t.k t.x"},
            "t.k t.x",
        ),
    ],
)  # fmt: skip
def test_constructs(session: SparkSession, query: str, values: dict[str, str], rows: str) -> None:
    assert lineage_of(session, query) == (values, rows)


def test_views_python_functions_and_duplicate_names(session: SparkSession) -> None:
    set_active_session(session)
    session.sql("SELECT x AS renamed, k FROM lake.origin.t WHERE g = 'a'").createOrReplaceTempView("origin_v")
    shout = f.udf(lambda text: text, "string")
    view = session.table("origin_v")
    frame = view.select(shout("renamed").alias("s"), "k").withColumn("both", f.struct("s", "k"))
    assert as_text(column_lineage(frame, "lake")) == ({"s": "t.x", "k": "t.k", "both": "t.k t.x"}, "t.g")
    duplicate = view.select("renamed", f.col("k").alias("renamed"))
    assert as_text(column_lineage(duplicate, "lake")) == ({"renamed": "t.k t.x"}, "t.g")


def test_operator_without_rule_depends_on_all_columns(session: SparkSession) -> None:
    set_active_session(session)
    frame = session.table("lake.origin.u").mapInPandas(lambda parts: parts, "z INT")
    assert as_text(column_lineage(frame, "lake"))[0] == {"z": "u.k u.y"}


def test_columns_from_outside_the_lake_have_no_origin(session: SparkSession, tmp_path: Path) -> None:
    set_active_session(session)
    (tmp_path / "a.csv").write_text("1,2\n")
    frame = (
        session.read.schema("p INT, q INT")
        .csv(str(tmp_path))
        .join(session.table("lake.origin.u"), how="cross")
    )
    assert as_text(column_lineage(frame, "lake")) == ({"p": "", "q": "", "k": "u.k", "y": "u.y"}, "")
    stream = session.readStream.schema("p INT").csv(str(tmp_path)).selectExpr("p + 1 AS p")
    assert as_text(column_lineage(stream, "lake")) == ({"p": ""}, "")
    lake = session.readStream.table("lake.origin.t").selectExpr("upper(g) AS g")
    assert as_text(column_lineage(lake, "lake")) == ({"g": "t.g"}, "")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tpch.generate(tmp_path_factory.mktemp("tpch"), 0.01)


@pytest.fixture(scope="module")
def tables(session: SparkSession, files: Path) -> SparkSession:
    """The eight tables without rows: lineage depends on plans only."""
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.tpch")
    for table in tpch.KEYS:
        query = f"SELECT * FROM parquet.`{files / table}.parquet` LIMIT 0"
        session.sql(f"CREATE TABLE IF NOT EXISTS lake.tpch.{table} USING iceberg AS {query}")
    return session


def _garbage(kind: str) -> str:
    """A value of a type that no query compares with."""
    return {"VARCHAR": "'?'", "DATE": "DATE '1970-01-01'"}.get(kind, f"CAST(-7 AS {kind})")


def _result(files: Path, query: str, column: str, origin: Iterable[ColumnRef] | None) -> list[str]:
    """A column of the query's result in DuckDB, after all columns outside `origin` were overwritten."""
    names = None if origin is None else {(ref.table.table, ref.column) for ref in origin}
    with duckdb.connect(config={"threads": 1}) as engine:
        engine.sql("CREATE SCHEMA tpch")
        for table in tpch.KEYS:
            source = engine.read_parquet(f"{files / table}.parquet")
            values = [
                f"{name if names is None or (table, name) in names else _garbage(str(kind))} AS {name}"
                for name, kind in zip(source.columns, source.types, strict=True)
            ]
            path = f"{files / table}.parquet"
            engine.sql(f"CREATE VIEW tpch.{table} AS SELECT {', '.join(values)} FROM read_parquet('{path}')")
        result = engine.sql(query)
        index = result.columns.index(column)
        return sorted(str(row[index]) for row in result.fetchall())


SAMPLE = {"q1", "q5", "q9", "q13", "q15", "q16", "q18", "q20", "q21", "q22"}
"""Queries that read all tables, with every kind of join and of subquery."""


@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in tpch.queries(0.01)],
)
def test_tpch_results_depend_on_no_other_columns(tables: SparkSession, files: Path, name: str) -> None:
    set_active_session(tables)
    query = tpch.queries(0.01)[name]
    frame = tables.sql(query.replace("tpch.", "lake.tpch."))
    lineage = column_lineage(frame, "lake")
    assert lineage.problem is None
    assert list(lineage.values) == frame.columns
    for column, origin in lineage.values.items():
        expected = _result(files, query, column, None)
        assert _result(files, query, column, origin | lineage.rows) == expected, column


def test_tpch_origins(tables: SparkSession) -> None:
    set_active_session(tables)

    def origins(name: str) -> tuple[dict[str, str], str]:
        query = tpch.queries(0.01)[name].replace("tpch.", "lake.tpch.")
        return as_text(column_lineage(tables.sql(query), "lake"))

    values, rows = origins("q1")
    assert values["sum_charge"] == "lineitem.l_discount lineitem.l_extendedprice lineitem.l_tax"
    assert values["count_order"] == ""
    assert rows == "lineitem.l_linestatus lineitem.l_returnflag lineitem.l_shipdate"
    values, rows = origins("q13")
    assert values == {"c_count": "orders.o_orderkey", "custdist": ""}
    assert rows == "customer.c_custkey orders.o_comment orders.o_custkey orders.o_orderkey"
    values, rows = origins("q14")
    assert values == {"promo_revenue": "lineitem.l_discount lineitem.l_extendedprice part.p_type"}
    assert rows == "lineitem.l_partkey lineitem.l_shipdate part.p_partkey"
    values, _ = origins("q8")
    assert values["o_year"] == "orders.o_orderdate"
    assert values["mkt_share"] == "lineitem.l_discount lineitem.l_extendedprice nation.n_name"
