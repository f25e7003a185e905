"""Keys as SQL literals: exact for any characters and in every time zone."""

from __future__ import annotations

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.algebra.nodes import Materialized
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.jvm.catalyst import Catalyst, items
from tautochrone.spark.translate.literals import literals
from tautochrone.spark.translate.lowering_context import Columns, KeyConditions

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """In a time zone whose offset was 9:18:59 until 1887."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    set_active_session(session)
    return session


TEXTS = [
    "${spark.app.name}",
    "$${x}",
    "\\${x}",
    "$\\{x}",
    "it's",
    "back\\slash",
    "\\",
    "%_",
    "'",
    "line\nend",
    "",
]


@pytest.mark.parametrize(
    "setting",
    [
        "caseSensitive",
        "parser.escapedStringLiterals",
        "parser.quotedRegexColumnNames",
        "ansi.doubleQuotedIdentifiers",
    ],
)
def test_string_literals_keep_every_character(session: SparkSession, setting: str) -> None:
    session.conf.set(f"spark.sql.{setting}", "true")
    (row,) = session.sql(f"SELECT array({literals(TEXTS, 'string')}) AS texts").collect()
    assert row.texts == TEXTS


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", ["1880-01-01 00:00:00", "1887-12-31 23:59:59.000001", "2024-05-05 05:05:05"]),
        ("timestamp_ntz", ["0001-01-01 00:00:00", "1887-12-31 23:59:59.000001", "+12024-05-05 05:05:05"]),
        ("date", ["0001-01-01", "1880-01-01", "2024-02-29"]),
        ("string", ["${spark.app.name}", "${env:HOME}", "it's"]),
        ("decimal(38,18)", ["0.000000000000000001", "-12345678901234567890.5", "1"]),
        ("tinyint", ["-128", "0", "127"]),
    ],
)
def test_literal_matches_only_its_own_row(session: SparkSession, kind: str, values: list[str]) -> None:
    for key in values:
        matching = rows_with_keys(session, relation(session, kind, values), relation(session, kind, [key]))
        expected = relation(session, kind, [key])
        assert matching.selectExpr(text(kind)).collect() == expected.selectExpr(text(kind)).collect()


@pytest.mark.parametrize("rows", [2, 1_000_000], ids=["few", "by Arrow"])
def test_bytes_that_are_no_text_are_no_literals(session: SparkSession, rows: int) -> None:
    frame = session.sql("SELECT CAST(bytes AS STRING) AS value FROM VALUES (X'41'), (X'FF') AS t(bytes)")
    assert condition_of_keys(session, frame, frame, rows)[:2] == (None, False)


def text(kind: str) -> str:
    """Python's dates end with the year 9999."""
    return "CAST(value AS STRING)" if kind == "timestamp_ntz" else "value"


def relation(session: SparkSession, kind: str, values: list[str]) -> DataFrame:
    """One column `value`, as rows in the plan."""
    # In two parts: as one, Spark would look for a setting of that name.
    parts = (f"concat('{text[:1]}', '{text[1:]}')" for text in (v.replace("'", "\\'") for v in values))
    rows = ", ".join(f"({part})" for part in parts)
    return session.sql(f"SELECT CAST(text AS {kind}) AS value FROM VALUES {rows} AS t(text)")


def rows_with_keys(session: SparkSession, rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows whose value is one of the keys, by a condition of literals."""
    condition, exact, plan = condition_of_keys(session, rows, keys)
    assert exact
    assert condition is not None
    assert condition.resolved(), "Spark renews ids below an unresolved condition"
    return dataframe_of_plan(session, Catalyst(session).logical("Filter")(condition, plan))


def condition_of_keys(
    session: SparkSession, rows: DataFrame, keys: DataFrame, count: int = 1
) -> tuple[JavaObject | None, bool, JavaObject]:
    """The condition, whether it is exact, and the plan of the rows."""
    catalyst = Catalyst(session)
    plan, keys_plan = (frame._jdf.queryExecution().optimizedPlan() for frame in (rows, keys))
    (attribute,), (key,) = items(plan.output()), items(keys_plan.output())
    column, source = catalyst.column_id(attribute), catalyst.column_id(key)
    columns = Columns(catalyst, {column: attribute, source: key})
    materialized = Materialized(columns=(source,), handle=keys_plan, rows=count)
    conditions = KeyConditions(catalyst, columns)
    return *conditions.condition(column, materialized, source, null_safe=False), plan
