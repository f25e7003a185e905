"""Keys as literals in a condition: exact, whatever characters they hold, in every time zone."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tautochrone.algebra.nodes import Materialized
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.jvm.catalyst import Catalyst, items
from tautochrone.spark.translate.key_conditions import KeyConditions
from tautochrone.spark.translate.literals import literals
from tautochrone.spark.translate.to_catalyst import Columns, LeafPlans, Lowering

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """In a time zone whose offset was 9:18:59 until 1887."""
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    set_active_session(made)
    return made


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


def test_texts_are_what_they_were(session: SparkSession) -> None:
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
def test_a_literal_finds_its_own_row_only(session: SparkSession, kind: str, values: list[str]) -> None:
    for wanted in values:
        found = looked_up(session, relation(session, kind, values), relation(session, kind, [wanted]))
        expected = relation(session, kind, [wanted])
        assert found.selectExpr(text(kind)).collect() == expected.selectExpr(text(kind)).collect()


def text(kind: str) -> str:
    """Python's dates end with the year 9999."""
    return "CAST(value AS STRING)" if kind == "timestamp_ntz" else "value"


def relation(session: SparkSession, kind: str, values: list[str]) -> DataFrame:
    """One column `value`, as rows in the plan."""
    # In two parts: as one, Spark would look for a setting of that name.
    parts = (f"concat('{text[:1]}', '{text[1:]}')" for text in (v.replace("'", "\\'") for v in values))
    rows = ", ".join(f"({part})" for part in parts)
    return session.sql(f"SELECT CAST(text AS {kind}) AS value FROM VALUES {rows} AS t(text)")


def looked_up(session: SparkSession, rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows whose value is among the keys, by literals."""
    catalyst = Catalyst(session)
    plan, held = (frame._jdf.queryExecution().optimizedPlan() for frame in (rows, keys))
    (attribute,), (key,) = items(plan.output()), items(held.output())
    column, source = catalyst.id_of(attribute), catalyst.id_of(key)
    columns = Columns(catalyst, {column: attribute, source: key})
    kept = Materialized(columns=(source,), handle=held, rows=1)
    conditions = KeyConditions(_lowering(catalyst, columns))
    condition, exact = conditions.condition(column, kept, source, null_safe=False)
    assert exact
    assert condition is not None
    assert condition.resolved(), "Spark renews ids below a condition that it has not looked up"
    return dataframe_of_plan(session, catalyst.logical("Filter")(condition, plan))


def _lowering(catalyst: Catalyst, columns: Columns) -> Lowering:
    def nothing(_: Any) -> Any:
        raise AssertionError("literals read no table")

    return Lowering(catalyst, columns, LeafPlans(nothing, nothing, nothing, nothing, nothing))
