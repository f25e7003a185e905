"""Variances from sums: what cancels, what is too few, what has no exact squares."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from statistics import pvariance, variance

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tautochrone.spark.translate.exact_variance import (
    exact_digits,
    sum_terms,
    sum_types,
    variance_argument,
    variance_sql,
)

pytestmark = pytest.mark.spark


def function(spark: SparkSession, name: str, type_name: str) -> JavaObject:
    """Spark's own function, as an optimised plan has it."""
    query = spark.sql(f"SELECT {name}(x) FROM (SELECT CAST(id AS {type_name}) AS x FROM range(3))")
    (alias,) = [query._jdf.queryExecution().optimizedPlan().aggregateExpressions().head()]
    return alias.child().aggregateFunction()


def by_sums(spark: SparkSession, name: str, type_name: str, values: list[Decimal | int]) -> float | None:
    """The function over values from S, Q and n alone."""
    _, scale = exact_digits(type_name) or (0, 0)
    units = [int(Decimal(value) * 10**scale) for value in values]
    total = sum(map(Decimal, values), start=Decimal(0))
    return from_sums(spark, name, type_name, total, sum(unit * unit for unit in units), len(units))


def from_sums(
    spark: SparkSession,
    name: str,
    type_name: str,
    total: Decimal | int | None,
    squares: int | None,
    number: int,
) -> float | None:
    kinds = (*sum_types(type_name), "bigint")
    sums = spark.range(1).select(
        *(
            sf.lit(None if value is None else str(value)).cast(of).alias(column)
            for value, of, column in zip((total, squares, number), kinds, "sqn", strict=True)
        )
    )
    text = variance_sql(function(spark, name, type_name), type_name, "s", "q", "n")
    row = sums.select(sf.expr(text).alias("v")).first()
    assert row is not None
    found: float | None = row["v"]
    return found


@pytest.mark.parametrize(
    ("type_name", "mean", "spread", "unit"),
    [
        ("int", 2_000_000_000, 3, 1),
        ("int", -5, 2_000_000_000, 1),
        ("tinyint", 0, 100, 1),
        ("decimal(13,2)", 99_999_999_990, 5, Decimal("0.01")),
        ("decimal(13,13)", 0, 9, Decimal("1E-13")),
        ("decimal(5,0)", -99_000, 900, 1),
    ],
)
def test_no_digit_cancels(
    spark: SparkSession, type_name: str, mean: int, spread: int, unit: Decimal | int
) -> None:
    dice = random.Random(3)
    values = [mean + dice.randint(-spread, spread) * unit for _ in range(500)]
    for name, right in (("var_pop", pvariance(values)), ("var_samp", variance(values))):
        assert by_sums(spark, name, type_name, values) == pytest.approx(float(right), rel=1e-12)
    root = by_sums(spark, "stddev", type_name, values)
    assert root == pytest.approx(float(variance(values)) ** 0.5, rel=1e-12)


@pytest.mark.parametrize(("value", "other"), [(1, 0), (0, 1), (-1, 0), (-7, -8)])
def test_a_mean_next_to_a_whole_number(spark: SparkSession, value: int, other: int) -> None:
    number = 10**7
    total, squares = value * (number - 1) + other, value**2 * (number - 1) + other**2
    right = Fraction(squares) - Fraction(total**2, number)
    found = from_sums(spark, "var_pop", "int", total, squares, number)
    assert found == pytest.approx(float(right / number), rel=1e-14)


def test_what_is_not_known_is_null(spark: SparkSession) -> None:
    assert from_sums(spark, "var_pop", "int", None, 5, 3) is None
    assert from_sums(spark, "stddev", "int", 5, None, 3) is None


def test_few_values(spark: SparkSession) -> None:
    assert by_sums(spark, "var_pop", "int", []) is None
    assert by_sums(spark, "stddev_samp", "int", []) is None
    assert by_sums(spark, "var_pop", "int", [7]) == 0
    assert by_sums(spark, "var_samp", "int", [7]) is None
    assert by_sums(spark, "stddev_pop", "decimal(9,2)", [Decimal("0.10")] * 3) == 0


@pytest.mark.parametrize("name", ["var_pop", "var_samp", "stddev_pop", "stddev_samp"])
@pytest.mark.parametrize("type_name", ["smallint", "decimal(13,4)"])
def test_what_is_exact(spark: SparkSession, name: str, type_name: str) -> None:
    values = variance_argument(function(spark, name, type_name))
    assert values is not None
    assert values.dataType().catalogString() == type_name


@pytest.mark.parametrize(
    ("name", "type_name"),
    [("var_pop", "double"), ("stddev", "bigint"), ("var_samp", "decimal(14,2)"), ("skewness", "int")],
)
def test_what_is_not(spark: SparkSession, name: str, type_name: str) -> None:
    assert variance_argument(function(spark, name, type_name)) is None


def test_powers_are_exact(spark: SparkSession) -> None:
    least, tenth = sum_terms("CAST(-2147483648 AS INT)", "int"), sum_terms("-1.23BD", "decimal(3,2)")
    row = spark.sql(f"SELECT {', '.join((*least, *tenth))}").first()
    assert row == (-(2**31), 2**62, Decimal("-1.23"), Decimal(15129))
    assert exact_digits("decimal(3,-2)") is None


def test_sparks_own_function_errs_where_values_hardly_differ(spark: SparkSession) -> None:
    """What `docs/refreshing.md` says of `taut verify`."""
    dice = random.Random(3)
    values = [2_000_000_000 + dice.randint(-3, 3) for _ in range(500)]
    rows = spark.createDataFrame([(value,) for value in values], "x int")
    row = rows.selectExpr("var_pop(x) AS v").first()
    assert row is not None
    assert abs(row["v"] / float(pvariance(values)) - 1) > 1e-9
    assert by_sums(spark, "var_pop", "int", values) == pytest.approx(float(pvariance(values)), rel=1e-14)
    row = spark.range(0, 59, 1, 2).selectExpr("var_pop(CAST(id * 0 + 1 AS INT)) AS v").first()
    assert row is not None
    assert 0 <= row["v"] < 1e-30
