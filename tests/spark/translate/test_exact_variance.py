"""Variances from exact sums: cancellation, groups of few values, types without exact squares."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from fractions import Fraction
from statistics import pvariance, variance

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tautochrone.spark.jvm.catalyst import Catalyst
from tautochrone.spark.translate.exact_variance import (
    call_text,
    exact_digits,
    sum_terms,
    sum_types,
    variance_argument,
    variance_sql,
)

pytestmark = pytest.mark.spark


def function(spark: SparkSession, name: str, type_name: str) -> JavaObject:
    """Spark's own function, as it is in an optimized plan."""
    query = spark.sql(f"SELECT {name}(x) FROM (SELECT CAST(id AS {type_name}) AS x FROM range(3))")
    (alias,) = [query._jdf.queryExecution().optimizedPlan().aggregateExpressions().head()]
    return alias.child().aggregateFunction()


def variance_of(spark: SparkSession, name: str, type_name: str, values: list[Decimal | int]) -> float | None:
    """The function's result over values, computed from S, Q and n."""
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
    count: int,
) -> float | None:
    kinds = (*sum_types(type_name), "bigint")
    sums = spark.range(1).select(
        *(
            sf.lit(None if value is None else str(value)).cast(kind).alias(column)
            for value, kind, column in zip((total, squares, count), kinds, "sqn", strict=True)
        )
    )
    text = variance_sql(function(spark, name, type_name), type_name, "s", "q", "n")
    row = sums.select(sf.expr(text).alias("v")).first()
    assert row is not None
    result: float | None = row["v"]
    return result


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
def test_cancellation_loses_no_digits(
    spark: SparkSession, type_name: str, mean: int, spread: int, unit: Decimal | int
) -> None:
    generator = random.Random(3)
    values = [mean + generator.randint(-spread, spread) * unit for _ in range(500)]
    for name, expected in (("var_pop", pvariance(values)), ("var_samp", variance(values))):
        assert variance_of(spark, name, type_name, values) == pytest.approx(float(expected), rel=1e-12)
    root = variance_of(spark, "stddev", type_name, values)
    assert root == pytest.approx(float(variance(values)) ** 0.5, rel=1e-12)


@pytest.mark.parametrize(("value", "outlier"), [(1, 0), (0, 1), (-1, 0), (-7, -8)])
def test_mean_close_to_an_integer(spark: SparkSession, value: int, outlier: int) -> None:
    count = 10**7
    total, squares = value * (count - 1) + outlier, value**2 * (count - 1) + outlier**2
    deviations = Fraction(squares) - Fraction(total**2, count)
    result = from_sums(spark, "var_pop", "int", total, squares, count)
    assert result == pytest.approx(float(deviations / count), rel=1e-14)


def test_null_sums_give_null(spark: SparkSession) -> None:
    assert from_sums(spark, "var_pop", "int", None, 5, 3) is None
    assert from_sums(spark, "stddev", "int", 5, None, 3) is None


def test_groups_of_few_values(spark: SparkSession) -> None:
    assert variance_of(spark, "var_pop", "int", []) is None
    assert variance_of(spark, "stddev_samp", "int", []) is None
    assert variance_of(spark, "var_pop", "int", [7]) == 0
    assert variance_of(spark, "var_samp", "int", [7]) is None
    assert variance_of(spark, "stddev_pop", "decimal(9,2)", [Decimal("0.10")] * 3) == 0


@pytest.mark.parametrize("name", ["var_pop", "var_samp", "stddev_pop", "stddev_samp"])
@pytest.mark.parametrize("type_name", ["smallint", "decimal(13,4)"])
def test_functions_with_exact_squares(spark: SparkSession, name: str, type_name: str) -> None:
    values = variance_argument(function(spark, name, type_name), Catalyst(spark))
    assert values is not None
    assert values.dataType().catalogString() == type_name


@pytest.mark.parametrize(
    ("name", "type_name"),
    [("var_pop", "double"), ("stddev", "bigint"), ("var_samp", "decimal(14,2)"), ("skewness", "int")],
)
def test_functions_without_exact_squares(spark: SparkSession, name: str, type_name: str) -> None:
    assert variance_argument(function(spark, name, type_name), Catalyst(spark)) is None


PAIRS = "FROM VALUES (1, 2.5BD), (4, 0.5BD), (NULL, 9BD), (7, NULL), (2, 2BD) AS t(x, y)"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("regr_sxx(y, x)", "regr_sxx(y, x)"),
        ("regr_syy(y, x)", "regr_syy(y, x)"),
        ("regr_sxx(y, 1)", "regr_sxx or regr_syy(1.0)"),
        ("covar_pop(y, x)", "covar_pop(cast(y as double), cast(x as double))"),
    ],
)
def test_text_of_a_call_names_the_function_of_the_query(spark: SparkSession, call: str, text: str) -> None:
    plan = spark.sql(f"SELECT {call} {PAIRS}")._jdf.queryExecution().optimizedPlan()
    shown = call_text(plan.aggregateExpressions().head().child())
    assert re.sub(r"#\d+", "", shown) == text


def test_sums_of_squared_deviations_need_both_arguments(spark: SparkSession) -> None:
    for name, type_name in (("regr_sxx", "int"), ("regr_syy", "decimal(2,1)")):
        plan = spark.sql(f"SELECT {name}(y, x) {PAIRS}")._jdf.queryExecution().optimizedPlan()
        deviations = plan.aggregateExpressions().head().child().aggregateFunction()
        values = variance_argument(deviations, Catalyst(spark))
        assert values is not None
        assert (values.dataType().catalogString(), values.nullable()) == (type_name, True)


def test_summands_are_exact(spark: SparkSession) -> None:
    smallest, decimal = sum_terms("CAST(-2147483648 AS INT)", "int"), sum_terms("-1.23BD", "decimal(3,2)")
    row = spark.sql(f"SELECT {', '.join((*smallest, *decimal))}").first()
    assert row == (-(2**31), 2**62, Decimal("-1.23"), Decimal(15129))
    assert exact_digits("decimal(3,-2)") is None


def test_sparks_own_function_is_inexact_for_close_values(spark: SparkSession) -> None:
    """The exception of `taut verify` that `docs/refreshing.md` describes."""
    generator = random.Random(3)
    values = [2_000_000_000 + generator.randint(-3, 3) for _ in range(500)]
    rows = spark.createDataFrame([(value,) for value in values], "x int")
    row = rows.selectExpr("var_pop(x) AS v").first()
    assert row is not None
    assert abs(row["v"] / float(pvariance(values)) - 1) > 1e-9
    assert variance_of(spark, "var_pop", "int", values) == pytest.approx(float(pvariance(values)), rel=1e-14)
    row = spark.range(0, 59, 1, 2).selectExpr("var_pop(CAST(id * 0 + 1 AS INT)) AS v").first()
    assert row is not None
    assert 0 <= row["v"] < 1e-30
