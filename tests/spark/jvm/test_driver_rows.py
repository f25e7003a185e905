"""Rows that the driver selects itself are those that Spark selects."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.jvm.driver_rows import distinct_values, rows_at_other_version, rows_with_keys

pytestmark = pytest.mark.spark

EQUAL_BYTES = [
    "TINYINT",
    "INT",
    "BIGINT",
    "DATE",
    "STRING",
    "BOOLEAN",
    "BINARY",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "DECIMAL(9,2)",
    "DECIMAL(38,6)",
]
OTHERS = ["FLOAT", "DOUBLE", "STRING COLLATE UTF8_LCASE", "ARRAY<INT>", "STRUCT<a: DOUBLE>"]
VALUES = {
    "DATE": [None, "1969-12-31", "1970-01-01", "2026-02-28", "0001-01-01", "9999-12-31"],
    "TIMESTAMP": [None, "1969-12-31 23:59:59.999999", "2026-10-25 02:30:00", "2026-10-25 02:30:00.000001"],
    "BOOLEAN": [None, "true", "false"],
    "STRING": [None, "", "a", "A", "a ", "\u00e9", "e\u0301", "x" * 40],
    "BINARY": [None, "", "a", "b"],
}
VALUES["TIMESTAMP_NTZ"] = VALUES["TIMESTAMP"]
NUMBERS = [None, "0", "1", "-1", "7", "100"]
Rows = Sequence[Sequence[Any]]


def some_rows(draw: random.Random, kind: str, count: int) -> Rows:
    values = VALUES.get(kind, NUMBERS)
    return [(draw.choice(values), draw.choice(NUMBERS), draw.choice(["p", "q", None])) for _ in range(count)]


def relation(spark: SparkSession, kind: str, rows: Rows) -> JavaObject:
    frame = spark.createDataFrame(list(rows), "a STRING, b STRING, c STRING")
    typed = frame.select(
        sf.expr(f"CAST(a AS {kind})").alias("k"), sf.expr("CAST(b AS BIGINT)").alias("n"), "c"
    )
    return local_relation(typed)[0]


def bag(spark: SparkSession, plan: JavaObject) -> Counter[str]:
    return Counter(map(repr, dataframe_of_plan(spark, plan).collect()))


@pytest.mark.parametrize("kind", EQUAL_BYTES)
def test_rows_with_keys_are_those_of_a_semi_join(spark: SparkSession, kind: str) -> None:
    draw = random.Random(kind)
    for count in (0, 1, 30):
        rows, keys = (relation(spark, kind, some_rows(draw, kind, n)) for n in (40, count))
        for null_safe in (True, False):
            for columns in ([0], [0, 1]):
                plan = rows_with_keys(rows, columns, keys, columns, null_safe=null_safe, output=[2, 0])
                assert plan is not None
                dataframe_of_plan(spark, rows).createOrReplaceTempView("l")
                dataframe_of_plan(spark, keys).createOrReplaceTempView("r")
                equal = "<=>" if null_safe else "="
                condition = " AND ".join(f"l.{'kn'[i]} {equal} r.{'kn'[i]}" for i in columns)
                expected = spark.sql(f"SELECT l.c, l.k FROM l LEFT SEMI JOIN r ON {condition}")
                assert bag(spark, plan) == Counter(map(repr, expected.collect())), (count, null_safe, columns)


@pytest.mark.parametrize("kind", OTHERS)
def test_types_whose_equal_values_differ_in_bytes_are_refused(spark: SparkSession, kind: str) -> None:
    value = {"ARRAY<INT>": "array(1)", "STRUCT<a: DOUBLE>": "named_struct('a', 0D)"}.get(kind, "'0'")
    rows = local_relation(spark.sql(f"SELECT CAST({value} AS {kind}) AS k"))[0]
    assert rows_with_keys(rows, [0], rows, [0], null_safe=True, output=[0]) is None
    assert distinct_values(rows, 0, kind.lower()) is None
    assert rows_at_other_version(rows, None, None, 0, {1}) is None


def test_keys_of_another_type_are_refused(spark: SparkSession) -> None:
    longs, ints = (
        local_relation(spark.sql(f"SELECT CAST(1 AS {kind}) AS k"))[0] for kind in ("BIGINT", "INT")
    )
    assert rows_with_keys(longs, [0], ints, [0], null_safe=False, output=[0]) is None


@pytest.mark.parametrize("kind", ["TINYINT", "INT", "BIGINT", "DATE"])
def test_distinct_values_are_those_that_spark_collects(spark: SparkSession, kind: str) -> None:
    draw = random.Random(kind)
    for count in (0, 1, 50):
        rows = relation(spark, kind, some_rows(draw, kind, count))
        collected = frozenset(row[0] for row in dataframe_of_plan(spark, rows).select("k").collect())
        assert distinct_values(rows, 0, kind.lower()) == collected


@pytest.mark.parametrize("kind", ["BIGINT", "DATE"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_another_version_follow_from_the_change(spark: SparkSession, kind: str, seed: int) -> None:
    """Of one version all rows with some keys are known, and how the versions differ, also in rows with other
    keys, in rows that only move, and in copies of a row."""
    draw = random.Random(f"{kind}{seed}")
    kept, own, others, moved = (list(some_rows(draw, kind, n)) for n in (60, 12, 12, 3))
    values = [value for value in VALUES.get(kind, NUMBERS) if value is not None]
    chosen = set(draw.sample(values, 3))

    def with_keys(*parts: Rows) -> Rows:
        return [row for rows in parts for row in rows if row[0] in chosen]

    sides = (with_keys(kept, own, moved), [*own, *moved], [*others, *moved])
    rows_of_own, only_own, only_others = (relation(spark, kind, rows) for rows in sides)
    dates = spark.createDataFrame([(each,) for each in chosen], "k STRING")
    keys = {row[0] for row in dates.select(sf.expr(f"CAST(k AS {kind})")).collect()}
    plan = rows_at_other_version(rows_of_own, only_own, only_others, 0, keys)
    assert plan is not None
    assert bag(spark, plan) == bag(spark, relation(spark, kind, with_keys(kept, others, moved)))


def test_a_change_that_does_not_fit_the_rows_is_refused(spark: SparkSession) -> None:
    rows, own = (relation(spark, "BIGINT", [("1", n, "p")]) for n in ("1", "2"))
    assert rows_at_other_version(rows, own, None, 0, {1}) is None
    assert rows_at_other_version(rows, own, None, 0, {2}) is not None, "the row has no key that is looked up"
    narrower = local_relation(dataframe_of_plan(spark, own).select("k", "n"))[0]
    assert rows_at_other_version(rows, narrower, None, 0, {2}) is None
