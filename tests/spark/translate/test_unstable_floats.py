"""Which views use a float whose last digits depend on the order of rows: every kind of result × every use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tautochrone.spark.translate.from_catalyst import plan_of

pytestmark = pytest.mark.spark

GROUPS = {
    name: f"SELECT k, {call} AS s FROM t GROUP BY k"
    for name, call in {
        "deviation": "stddev(x)",
        "skewness": "skewness(n)",
        "correlation": "corr(x, y)",
        "regression": "regr_slope(x, y)",
        "sum_without_state": "try_sum(x)",
        "sum_beside_median": "sum(x) + 0 * median(y)",
    }.items()
}
RUNNING = {"running_sum": "SELECT k, sum(x) OVER (PARTITION BY k ORDER BY n) AS s FROM t"}
UNSTABLE = {**GROUPS, **RUNNING}
STABLE = {
    "sum": "SELECT k, sum(x) AS s FROM t GROUP BY k",
    "deviation_of_integers": "SELECT k, stddev(n) AS s FROM t GROUP BY k",
    "median": "SELECT k, median(x) AS s FROM t GROUP BY k",
    "least": "SELECT k, min(x) AS s FROM t GROUP BY k",
    "average_of_partition": "SELECT k, avg(x) OVER (PARTITION BY k) AS s FROM t",
    "deviation_of_partition": "SELECT k, stddev(x) OVER (PARTITION BY k) AS s FROM t",
    "sum_of_rows": "SELECT k, sum(x) OVER (PARTITION BY k ORDER BY n ROWS 2 PRECEDING) AS s FROM t",
    "share": "SELECT k, percent_rank() OVER (PARTITION BY k ORDER BY n) AS s FROM t",
    "average_of_integers": "SELECT k, avg(n) OVER (PARTITION BY k ORDER BY y) AS s FROM t",
    "stored": "SELECT k, x AS s FROM t",
}
USES = {
    "key": "SELECT s, count(*) AS c FROM ({q}) GROUP BY s",
    "distinct": "SELECT DISTINCT s FROM ({q})",
    "union": "SELECT s FROM ({q}) UNION SELECT x FROM t",
    "argument": "SELECT min(s) AS low, max(s) AS high FROM ({q})",
    "counted": "SELECT count(s) AS c FROM ({q})",
    "counted_distinct": "SELECT count(DISTINCT s) AS c FROM ({q})",
    "sum_of_flags": "SELECT sum(IF(s > 3, 1D, 0D)) AS c FROM ({q})",
    "sum_where": "SELECT sum(s) FILTER (WHERE s > 3) AS c FROM ({q})",
    "comparison": "SELECT k FROM ({q}) WHERE s > 3",
    "computed": "SELECT k, s > 3 AS above FROM ({q})",
    "join": "SELECT t.k FROM t JOIN ({q}) q ON t.x = q.s",
    "join_condition": "SELECT t.k, q.k AS o FROM t LEFT JOIN ({q}) q ON t.k = q.k AND t.x < q.s",
    "in": "SELECT k FROM t WHERE x IN (SELECT s FROM ({q}))",
    "text": "SELECT k, CAST(s AS STRING) AS s FROM ({q})",
    "rounded": "SELECT k, round(s, 2) AS s FROM ({q})",
    "narrowed": "SELECT k, CAST(s AS FLOAT) AS s FROM ({q})",
    "in_struct": "SELECT k, struct(s) AS s FROM ({q})",
    "exploded": "SELECT k, explode(array(s, 1D)) AS s FROM ({q})",
    "cubed": "SELECT s, k, count(*) AS c FROM ({q}) GROUP BY CUBE (s, k)",
    "first": "SELECT k, s FROM ({q}) ORDER BY k, s LIMIT 3",
    "ranked": "SELECT k, rank() OVER (ORDER BY s) AS r FROM ({q})",
    "partition": "SELECT k, count(*) OVER (PARTITION BY s) AS c FROM ({q})",
    "lag": "SELECT k, lag(s) OVER (PARTITION BY k ORDER BY k) AS s FROM ({q})",
    "scalar": "SELECT k FROM t WHERE x > (SELECT max(s) FROM ({q}))",
}
PASSES = {
    "passed": "SELECT k, s FROM ({q})",
    "renamed": "SELECT s AS a, k AS b FROM ({q}) WHERE k > 1",
    "arithmetic": "SELECT k, 100 * coalesce(s, 0D) / 7 - 1 AS s FROM ({q})",
    "joined": "SELECT t.n, q.s FROM t JOIN ({q}) q ON t.k = q.k",
    "outer": "SELECT t.n, q.s FROM t LEFT JOIN ({q}) q ON t.k = q.k",
    "both": "SELECT k, s FROM ({q}) UNION ALL SELECT k, x FROM t",
    "summed": "SELECT sum(s) AS s, avg(2 * s) AS a FROM ({q})",
    "not_read": "SELECT k, count(*) AS c FROM ({q}) GROUP BY k",
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.floats")
    spark.sql("CREATE TABLE lake.floats.t (k INT, n INT, x DOUBLE, y DOUBLE) USING iceberg")
    yield spark
    spark.sql("DROP TABLE lake.floats.t")


def float_uses(session: SparkSession, query: str) -> tuple[str, ...]:
    view = plan_of(session.sql(query.replace("FROM t", "FROM lake.floats.t")), "lake")
    assert view.obstacles == view.float_uses, query
    return view.float_uses


@pytest.mark.parametrize("result", UNSTABLE)
def test_unstable_result(session: SparkSession, result: str) -> None:
    some = {key: USES[key] for key in ("key", "argument", "text")}
    uses = USES if result in ("deviation", "running_sum") else some
    missed = [use for use, query in uses.items() if not float_uses(session, query.format(q=UNSTABLE[result]))]
    assert not missed
    refused = {
        use: reasons
        for use, query in PASSES.items()
        if (reasons := float_uses(session, query.format(q=UNSTABLE[result])))
    }
    assert not refused


@pytest.mark.parametrize("result", STABLE)
def test_stable_result(session: SparkSession, result: str) -> None:
    refused = {
        use: reasons
        for use in ("key", "argument", "comparison", "text")
        if (reasons := float_uses(session, USES[use].format(q=STABLE[result])))
    }
    assert not refused


def test_reason_names_operator_and_function(session: SparkSession) -> None:
    (reason,) = float_uses(session, USES["argument"].format(q=GROUPS["deviation"]))
    assert reason == "aggregate uses the result of stddev(x), whose last digits depend on the order of rows"
