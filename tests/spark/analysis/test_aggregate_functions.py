"""Every aggregate function of Spark: whether the same rows in another order give another result."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.spark.translate.from_catalyst import plan_of

pytestmark = pytest.mark.spark

BY_ARRIVAL = {
    "approx_percentile": "(x, 0.5)",
    "percentile_approx": "(x, 0.5, 100)",
    "histogram_numeric": "(x, 5)",
    "approx_top_k": "(x)",
    "approx_top_k_accumulate": "(x)",
    "approx_top_k_combine": "(s)",
    "hll_sketch_agg": "(x)",
    "hll_union_agg": "(s)",
    "kll_sketch_agg_bigint": "(x)",
    "kll_sketch_agg_float": "(CAST(x AS FLOAT))",
    "kll_sketch_agg_double": "(CAST(x AS DOUBLE))",
    "kll_merge_agg_bigint": "(s)",
    "kll_merge_agg_float": "(s)",
    "kll_merge_agg_double": "(s)",
    "theta_sketch_agg": "(x)",
    "theta_union_agg": "(s)",
    "theta_intersection_agg": "(s)",
}
"""Approximations, with arguments over t or over a sketch `s`."""
ONE_OF_SEVERAL = frozenset(
    {
        *("any_value", "first", "first_value", "last", "last_value", "mode", "max_by", "min_by"),
        *("array_agg", "collect_list", "collect_set", "listagg", "string_agg"),
    }
)
FLOATS = frozenset(
    {
        *(
            "avg",
            "mean",
            "sum",
            "try_avg",
            "try_sum",
            "corr",
            "covar_pop",
            "covar_samp",
            "kurtosis",
            "skewness",
        ),
        *("std", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"),
        *(
            "regr_avgx",
            "regr_avgy",
            "regr_intercept",
            "regr_r2",
            "regr_slope",
            "regr_sxx",
            "regr_sxy",
            "regr_syy",
        ),
    }
)
"""They add up floats: see `unstable_floats`."""
ANY_ORDER = frozenset(
    {
        *("any", "some", "every", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor", "count", "count_if"),
        *("min", "max", "median", "percentile", "percentile_cont", "percentile_disc", "regr_count"),
        *(
            "approx_count_distinct",
            "count_min_sketch",
            "bitmap_and_agg",
            "bitmap_construct_agg",
            "bitmap_or_agg",
        ),
        *("grouping", "grouping_id"),
    }
)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.functions")
    spark.sql("CREATE TABLE IF NOT EXISTS lake.functions.t (k INT, x INT, s BINARY) USING iceberg")
    return spark


def test_each_function_is_decided(session: SparkSession) -> None:
    """Another release of Spark may have more."""
    assert session._jvm is not None
    functions = session._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    names = {info.getName() for info in functions if info.getGroup() == "agg_funcs"}
    assert names == ONE_OF_SEVERAL | FLOATS | ANY_ORDER | {*BY_ARRIVAL}


@pytest.mark.parametrize("name", BY_ARRIVAL)
def test_approximation_by_arrival(session: SparkSession, name: str) -> None:
    argument = BY_ARRIVAL[name]
    source = "lake.functions.t"
    if name == "approx_top_k_combine":
        source = f"(SELECT k, approx_top_k_accumulate(x) AS s FROM {source} GROUP BY k)"
    view = plan_of(session.sql(f"SELECT k, {name}{argument} AS a FROM {source} GROUP BY k"), "lake")
    assert f"{name}() approximates by the order in which rows arrive" in view.nondeterminism


def test_counts_of_distinct_values_are_followed(session: SparkSession) -> None:
    query = "SELECT k, approx_count_distinct(x) AS a, count_min_sketch(x, 0.5D, 0.5D, 1) AS c"
    assert plan_of(session.sql(f"{query} FROM lake.functions.t GROUP BY k"), "lake").obstacles == ()
