"""A plan that was made over some rows gives Spark's result over any others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.algebra.nodes import (
    ColumnId,
    Expression,
    Filter,
    Materialized,
    Node,
    Rename,
    Select,
    Union,
)
from tautochrone.model import limits
from tautochrone.model.reason import ReasonCode
from tautochrone.spark.analysis.session_context import dataframe_of_plan, tuned_session
from tautochrone.spark.execute.driver_scan import job_reasons
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.execute.repeated_plans import (
    RepeatedPlans,
    is_repeatable,
    leaf_of_rows,
    repeated_plan,
    run_again,
    shape_of,
)
from tautochrone.spark.jvm.catalyst import Catalyst

ROWS = {
    "none": [],
    "one": ["('a', 1, 1.0D)"],
    "nulls": ["(NULL, NULL, NULL)", "(NULL, 1, NULL)", "(NULL, NULL, 2.5D)"],
    "copies": ["('a', 1, 1.0D)"] * 3 + ["('b', 2, double('NaN'))"] * 2,
    "many": [f"('{'abcde'[n % 5]}', {n % 7}, {n % 3}.5D)" for n in range(60)],
    "zeros": ["('z', 0, 0.0D)", "('z', 0, -0.0D)", "('y', -1, double('-Infinity'))"],
}
ROWS["mixed"] = [*ROWS["zeros"], *ROWS["nulls"], *ROWS["copies"]]
QUERIES = [
    "SELECT k, count(*), sum(n), avg(n), min(v), max(v), sum(v), stddev(n) FROM l GROUP BY k",
    "SELECT count(*), sum(n), max(k) FROM l",
    "SELECT k, count(DISTINCT n), collect_set(n) FROM l GROUP BY k",
    "SELECT DISTINCT k FROM l ORDER BY k LIMIT 2",
    "SELECT k, n FROM l ORDER BY k, n, v LIMIT 1",
    "SELECT k, n, row_number() OVER (PARTITION BY k ORDER BY n, v), sum(n) OVER (ORDER BY k, n, v) FROM l",
    "SELECT /*+ SHUFFLE_HASH(r) */ l.k, r.n FROM l JOIN r ON l.k = r.k",
    "SELECT /*+ SHUFFLE_HASH(r) */ l.k, r.v FROM l LEFT JOIN r ON l.k <=> r.k AND l.n = r.n",
    "SELECT /*+ SHUFFLE_HASH(r) */ l.k, l.n FROM l LEFT SEMI JOIN r ON l.n = r.n",
    "SELECT /*+ SHUFFLE_HASH(r) */ l.k, l.n FROM l LEFT ANTI JOIN r ON l.n <=> r.n",
    "SELECT /*+ SHUFFLE_HASH(b) */ a.k, b.n FROM l a JOIN l b ON a.n = b.n + 1",
    "SELECT k, n FROM l WHERE k IS NULL OR n BETWEEN 0 AND 2",
    "SELECT coalesce(k, 'none'), n + 1, v / 2, k IS NULL FROM l",
    "SELECT k, n FROM l UNION ALL SELECT k, n FROM r",
    "SELECT k, x FROM l LATERAL VIEW explode(array(n, n + 1)) AS x",
    "SELECT k, count(*) FROM (SELECT k FROM l UNION ALL SELECT k FROM r) GROUP BY k HAVING count(*) > 1",
    "SELECT k, sum(n) FROM l GROUP BY ROLLUP (k)",
    "SELECT date_format(timestamp_seconds(n), 'yyyy-MM-dd HH'), upper(k) FROM l WHERE n >= 0",
]

NOT_ONE_TASK = [query for query in QUERIES if {"ROLLUP"} & {*query.split()}]
"""Their plans have operators that run in a job only."""


def relation(session: SparkSession, rows: Sequence[str]) -> JavaObject:
    values = ", ".join(rows) or "(NULL, NULL, NULL)"
    text = f"SELECT CAST(a AS STRING) AS k, CAST(b AS INT) AS n, CAST(c AS DOUBLE) AS v FROM VALUES {values}"
    return local_relation(session.sql(f"{text} AS t(a, b, c)" + ("" if rows else " WHERE false")))[0]


def bag(frame: DataFrame) -> Counter[str]:
    return Counter(
        repr(row.asDict(recursive=True)) for row in frame.toDF(*map(str, range(len(frame.columns)))).collect()
    )


def register(session: SparkSession, plans: Mapping[str, JavaObject]) -> None:
    for name, plan in plans.items():
        dataframe_of_plan(session, plan).coalesce(1).createOrReplaceTempView(name)


def computed_again(
    session: SparkSession, query: str, first: Sequence[str], others: Sequence[Sequence[str]]
) -> list[Counter[str] | None]:
    """The results over other rows by a plan that was made over the first ones; None for each without one."""
    with tuned_session(session, delta_rows=10):
        leaves = {name: leaf_of_rows(session, relation(session, first)) for name in ("l", "r")}
        register(session, leaves)
        frame = session.sql(query).coalesce(1)
        plan = repeated_plan(frame, list(leaves.values()), [True] * 2)
        if plan is None:
            return [None] * len(others)
        catalyst = Catalyst(session)
        columns = [str(catalyst.new_expr_id()[0])[1:] for _ in frame.columns]
        results = []
        for rows in others:
            given = [relation(session, rows), relation(session, rows[:4])]
            again = run_again(session, plan, given, columns)
            results.append(None if again is None else bag(dataframe_of_plan(session, again)))
        return results


def expected(session: SparkSession, query: str, rows: Sequence[str]) -> Counter[str]:
    register(session, {"l": relation(session, rows), "r": relation(session, rows[:4])})
    return bag(session.sql(query))


@pytest.mark.spark
@pytest.mark.parametrize(
    "names", [("none", "mixed"), pytest.param(tuple(ROWS), marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("query", QUERIES)
def test_results_over_other_rows_are_those_of_spark(
    spark: SparkSession, query: str, names: Sequence[str]
) -> None:
    results = computed_again(spark, query, ROWS["one"], [ROWS[name] for name in names])
    assert all((result is None) == (query in NOT_ONE_TASK) for result in results)
    for name, result in zip(names, results, strict=True):
        assert result is None or result == expected(spark, query, ROWS[name]), name


@pytest.mark.spark
def test_rows_of_other_columns_are_refused(spark: SparkSession) -> None:
    leaf = leaf_of_rows(spark, relation(spark, ROWS["one"]))
    plan = repeated_plan(dataframe_of_plan(spark, leaf).where("n > 0"), [leaf], [True])
    assert plan is not None
    columns = [str(Catalyst(spark).new_expr_id()[0])[1:] for _ in range(3)]
    others = [
        "SELECT 'a' AS k, 1L AS n, 1.0D AS v",
        "SELECT 'a' AS k, 1 AS n",
        "SELECT 1 AS n",
        "SELECT 'a' AS k, 1 AS m, 1.0D AS v",
    ]
    for text in others:
        other = local_relation(spark.sql(text))[0]
        assert run_again(spark, plan, [other], columns) is None
    assert run_again(spark, plan, [relation(spark, ROWS["many"])], columns) is not None


@pytest.mark.spark
def test_an_error_and_a_large_result_are_left_to_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = leaf_of_rows(spark, relation(spark, ROWS["one"]))
    plan = repeated_plan(
        dataframe_of_plan(spark, leaf).selectExpr("10 / n", "repeat(k, 1000)"), [leaf], [True]
    )
    columns = [str(Catalyst(spark).new_expr_id()[0])[1:] for _ in range(2)]
    with job_reasons() as reasons:
        assert run_again(spark, plan, [relation(spark, ROWS["zeros"])], columns) is None
    assert [reason.code for reason in reasons.take()] == [ReasonCode.COMPUTING_FAILED]
    monkeypatch.setattr(limits, "MAX_DRIVER_BYTES", 2000)
    with job_reasons() as reasons:
        assert run_again(spark, plan, [relation(spark, ["('a', 1, 1D)"] * 3)], columns) is None
    assert [reason.code for reason in reasons.take()] == [ReasonCode.RESULT_LARGE]


@pytest.mark.spark
@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, current_timestamp() FROM l",
        "SELECT k, rand() FROM l",
        "SELECT k FROM l WHERE n > (SELECT min(n) FROM r)",
        "SELECT k, uuid() FROM l",
    ],
)
def test_plans_with_other_rows_each_time_are_not_repeated(spark: SparkSession, query: str) -> None:
    register(spark, {name: leaf_of_rows(spark, relation(spark, ROWS["one"])) for name in ("l", "r")})
    assert not is_repeatable(spark.sql(query))
    assert is_repeatable(spark.sql("SELECT k, n + 1 FROM l"))


# -- shapes ----------------------------------------------------------------------------------------------

QUERY_COLUMNS = frozenset({ColumnId("c1"), ColumnId("c2")})
CONDITION = Expression(handle=object(), references=frozenset())


def rows_of(*columns: str) -> Materialized:
    return Materialized(columns=tuple(map(ColumnId, columns)), handle=object(), rows=1)


def key_of(plan: Node) -> Any:
    shape = shape_of(plan, frozenset(), QUERY_COLUMNS)
    assert shape is not None
    return shape.key


def renamed(child: Node, *columns: str) -> Rename:
    return Rename(columns=tuple(map(ColumnId, columns)), child=child, sources=child.columns)


def test_columns_of_a_refresh_do_not_count() -> None:
    assert key_of(renamed(rows_of("c1"), "c7")) == key_of(renamed(rows_of("c1"), "c9"))
    assert key_of(renamed(rows_of("c7", "c8"), "c9", "c8")) == key_of(
        renamed(rows_of("c3", "c4"), "c5", "c4")
    )


def test_what_may_change_the_result_counts() -> None:
    leaf = rows_of("c1", "c2")
    other = Expression(handle=object(), references=frozenset())
    plans = [
        leaf,
        rows_of("c2", "c1"),
        rows_of("c1"),
        renamed(leaf, "c7", "c8"),
        renamed(leaf, "c7", "c2"),
        Select(columns=(ColumnId("c2"), ColumnId("c1")), child=leaf),
        Filter(columns=leaf.columns, child=leaf, condition=CONDITION),
        Filter(columns=leaf.columns, child=leaf, condition=other),
        Union(columns=leaf.columns, inputs=(leaf,)),
        Union(columns=leaf.columns, inputs=(leaf, leaf)),
        Union(columns=leaf.columns, inputs=(leaf, rows_of("c1", "c2"))),
    ]
    for left, right in combinations(map(key_of, plans), 2):
        assert left != right
    assert key_of(plans[6]) == key_of(
        Filter(columns=leaf.columns, child=rows_of("c1", "c2"), condition=CONDITION)
    )


def test_a_text_that_is_no_column_has_no_shape() -> None:
    plan = Rename(columns=(ColumnId("name"),), child=rows_of("c1"), sources=(ColumnId("c1"),))
    assert shape_of(plan, frozenset(), QUERY_COLUMNS) is None


def test_plans_are_made_once_and_the_oldest_are_dropped() -> None:
    plans, made_keys = RepeatedPlans(), list[int]()

    def of(key: int) -> Any:
        def make() -> Any:
            made_keys.append(key)
            return f"plan {key}"

        return plans.of(key, make)

    assert [of(1), of(1), of(2)] == ["plan 1", "plan 1", "plan 2"]
    assert made_keys == [1, 2]
    plans.drop(1)
    of(1)
    assert made_keys == [1, 2, 1]
    for key in range(3, 80):
        of(key)
    of(1)
    assert made_keys.count(1) == 3


def test_a_view_without_repeated_shapes_stops_looking() -> None:
    plans = RepeatedPlans()
    for key in range(48):
        assert plans.are_met_again
        plans.of(key, lambda: None)
    assert not plans.are_met_again


def test_rows_that_are_too_many_again_and_again_are_not_gathered() -> None:
    plans = RepeatedPlans()
    for are_few in (False, False, True, False, False):
        plans.note_gathered("a", are_few=are_few)
        assert not plans.cannot_be_made("a")
    plans.note_gathered("a", are_few=False)
    assert plans.cannot_be_made("a")


def test_a_view_whose_rows_are_always_too_many_stops_looking() -> None:
    plans = RepeatedPlans()
    for key in range(48):
        assert plans.are_met_again
        plans.note_gathered(key, are_few=False)
    assert not plans.are_met_again


def test_a_shape_that_cannot_be_repeated_is_tried_once() -> None:
    plans = RepeatedPlans()
    assert not plans.cannot_be_made("a")
    plans.of("a", lambda: None)
    plans.of("b", lambda: cast(JavaObject, object()))
    assert plans.cannot_be_made("a")
    assert not plans.cannot_be_made("b")
