"""Obstacles of queries: nondeterminism, inputs without versions, operators without a rule."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.algebra.nodes import Aggregate, Join, JoinKind, ScalarFilter, Scan, walk
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.translate.from_catalyst import View, plan_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.planned")
    spark.sql("CREATE TABLE IF NOT EXISTS lake.planned.t (k INT, x INT, g STRING) USING iceberg")
    return spark


def view_of(session: SparkSession, query: str) -> View:
    set_active_session(session)
    return plan_of(session.sql(query.replace(" t", " lake.planned.t")), "lake")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT k, any_value(x) FROM t GROUP BY k", "first() picks an arbitrary row"),
        ("SELECT k, mode(x) FROM t GROUP BY k", "mode() picks an arbitrary row"),
        (
            "SELECT k, collect_list(x) FROM t GROUP BY k",
            "collect_list() returns elements in any order",
        ),
        ("SELECT k, sort_array(collect_list(x)), size(collect_set(g)) FROM t GROUP BY k", None),
        ("SELECT k, array_sort(collect_list(x)), array_sort(collect_set(g)) FROM t GROUP BY k", None),
        ("SELECT k, array_sort(collect_list(struct(x, g))) FROM t GROUP BY k", None),
        (
            "SELECT k, array_sort(collect_list(g), (left, right) -> length(left) - length(right)) "
            "FROM t GROUP BY k",
            "collect_list() returns elements in any order",
        ),
        (
            "SELECT k, sort_array(array_distinct(transform(collect_list(x), y -> y + 1))) FROM t GROUP BY k",
            None,
        ),
        ("SELECT k, size(filter(collect_list(x), y -> y > 1)) FROM t GROUP BY k", None),
        (
            "SELECT k, size(filter(collect_list(x), (y, place) -> place > 1 AND y > 1)) FROM t GROUP BY k",
            "collect_list() returns elements in any order",
        ),
        ("SELECT k, array_contains(collect_set(x), 3) FROM t GROUP BY k", None),
        ("SELECT k, mode(x, TRUE), mode() WITHIN GROUP (ORDER BY x DESC) FROM t GROUP BY k", None),
        ("SELECT k, max_by(g, x) FROM t GROUP BY k", "max_by() picks an arbitrary row of a tie"),
        ("SELECT k, max_by(g, struct(x, g)), min_by(x, x) FROM t GROUP BY k", None),
        ("SELECT k, listagg(g) FROM t GROUP BY k", "listagg() joins in any order"),
        ("SELECT k, listagg(CAST(x AS STRING)) WITHIN GROUP (ORDER BY x) FROM t GROUP BY k", None),
        ("SELECT k, listagg(concat(g, x)) WITHIN GROUP (ORDER BY x, g) FROM t GROUP BY k", None),
        ("SELECT k, max_by(x + 1, x), min_by(concat(g, 'x'), struct(x, g)) FROM t GROUP BY k", None),
        (
            "SELECT k, max_by(CAST(d AS STRING), d) FROM (SELECT k, double(x) AS d FROM t) GROUP BY k",
            "max_by() picks an arbitrary row of a tie",
        ),
        ("SELECT k, listagg(g, ',') WITHIN GROUP (ORDER BY g) FROM t GROUP BY k", None),
        (
            "SELECT x, last_value(g) OVER (PARTITION BY k ORDER BY x) FROM t",
            "last() picks an arbitrary row",
        ),
        ("SELECT x, first_value(g) OVER (PARTITION BY k ORDER BY x) FROM t", None),
        ("SELECT x, last_value(g) OVER (PARTITION BY k ORDER BY x, g, k) FROM t", None),
        ("SELECT count(DISTINCT y), count(DISTINCT x) FROM (SELECT 1 AS y, x FROM t)", None),
        ("SELECT k, count(DISTINCT x, 3), listagg(DISTINCT 'a') FROM t GROUP BY k", None),
        ("SELECT x, last_value(x) OVER (PARTITION BY k ORDER BY x) FROM t", None),
        ("SELECT x, nth_value(g, 2) OVER (PARTITION BY g ORDER BY x) FROM t", None),
        (
            "SELECT last_value(string(d)) OVER (ORDER BY d) FROM (SELECT k, double(x) AS d FROM t)",
            "last() picks an arbitrary row",
        ),
        ("SELECT k, length(listagg(g, ',')), cardinality(collect_list(x)) FROM t GROUP BY k", None),
        ("SELECT k, size(first(array(x, k))) FROM t GROUP BY k", "first() picks an arbitrary row"),
        ("SELECT k, sort_array(max_by(array(x), g)) FROM t GROUP BY k", "max_by() picks an arbitrary row"),
        ("SELECT x FROM t WHERE EXISTS (SELECT 1 FROM t AS o WHERE x > 3)", None),
        ("SELECT x, NOT EXISTS (SELECT x, g FROM t AS o ORDER BY g LIMIT 3) FROM t", None),
        ("SELECT x FROM t WHERE EXISTS (SELECT 1 FROM t AS o WHERE o.k = t.k LIMIT 1)", None),
        ("SELECT x, (SELECT 1 FROM t AS o LIMIT 1) FROM t", None),
        ("SELECT x, (SELECT k FROM t AS o LIMIT 1) FROM t", "LIMIT without ORDER BY"),
        ("SELECT count(*) AS n FROM t LIMIT 1", None),
        ("SELECT x > 3, count(*) FROM t GROUP BY x > 3 LIMIT 3", None),
        ("SELECT x > 3, count(*) FROM t GROUP BY x > 3 LIMIT 2", "LIMIT without ORDER BY"),
        ("SELECT k, listagg(g) WITHIN GROUP (ORDER BY x) FROM t GROUP BY k", "listagg() joins in any order"),
        ("SELECT first_value(x) OVER (PARTITION BY k) FROM t", "first() picks an arbitrary row"),
        (
            "SELECT sum(x) OVER (PARTITION BY k ROWS 1 PRECEDING) FROM t",
            "a window function over ROWS without",
        ),
        ("SELECT sum(x) OVER (PARTITION BY k) FROM t", None),
        (
            "SELECT first_value(x) IGNORE NULLS OVER (PARTITION BY k ORDER BY g) FROM t",
            "first() picks an arbitrary row",
        ),
        ("SELECT g COLLATE UTF8_LCASE AS c, count(*) FROM t GROUP BY ALL", "column "),
        ("SELECT count(DISTINCT coalesce(x, 0)), sum(x) FROM t", None),
        ("SELECT k, count(*) AS n, now() AS at FROM t GROUP BY k", None),
        ("SELECT x FROM t ORDER BY x, k OFFSET 3", "Offset has no rule"),
        ("SELECT x, map('a', x) AS m FROM t", "column m of type map<string,int> cannot be followed"),
        ("SELECT x, _file AS f FROM t", "it reads lake.planned.t with metadata columns"),
        (
            "SELECT k, session_window(timestamp_seconds(x), '1 hour') AS w, count(*) FROM t GROUP BY 1, 2",
            "session_window() merges groups, which has no rule",
        ),
        ("SELECT x FROM t LIMIT 3", "LIMIT without ORDER BY picks arbitrary rows"),
        ("SELECT rand() AS r FROM t", "rand() returns other values each time"),
        ("SELECT x, now() AS at FROM t", None),
    ],
)
def test_obstacle_of_each_construct(session: SparkSession, query: str, reason: str | None) -> None:
    obstacles = view_of(session, query).obstacles
    assert [text for text in obstacles if not text.startswith(reason or "?")] == []
    assert bool(obstacles) is (reason is not None)


def test_nondeterminism_is_distinguished_from_other_obstacles(session: SparkSession) -> None:
    view = view_of(session, "SELECT k, any_value(x) AS x FROM t GROUP BY k")
    assert view.nondeterminism == view.obstacles == ("first() picks an arbitrary row",)
    assert view_of(session, "SELECT x FROM t ORDER BY x, k OFFSET 3").nondeterminism == ()


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT k, max_by(c, c) FROM t GROUP BY k", "max_by() picks an arbitrary row of a tie"),
        ("SELECT k, max_by(string(c), c) FROM t GROUP BY k", "max_by() picks an arbitrary row of a tie"),
        ("SELECT last_value(string(c)) OVER (ORDER BY c) FROM t", "last() picks an arbitrary row"),
    ],
)
def test_equal_strings_of_a_collation_are_a_tie(session: SparkSession, query: str, reason: str) -> None:
    view = view_of(session, query.replace("FROM t", "FROM (SELECT *, g COLLATE UTF8_LCASE AS c FROM t)"))
    assert [text for text in view.nondeterminism if text.startswith(reason)] == [*view.nondeterminism]
    assert view.nondeterminism


def test_time_travel_is_an_obstacle(session: SparkSession) -> None:
    session.sql("INSERT INTO lake.planned.t VALUES (1, 2, 'a')")
    (version,) = session.sql("SELECT max(snapshot_id) FROM lake.planned.t.snapshots").first()  # type: ignore[misc]
    view = view_of(session, f"SELECT x FROM t VERSION AS OF {version}")
    assert view.obstacles == ("it reads lake.planned.t at a fixed version",)


def test_optimizer_failure_is_an_obstacle(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = session.sql("SELECT k, x FROM lake.planned.t")

    def failing(*_: object) -> None:
        # An exception of the JVM, as one of Spark's optimizer rules would raise.
        session._jvm.java.lang.Integer.parseInt("no number")  # type: ignore[union-attr]

    monkeypatch.setattr("tautochrone.spark.translate.from_catalyst.optimized_plan", failing)
    (obstacle,) = plan_of(frame, "lake").obstacles
    assert obstacle.startswith("its plan cannot be followed: ")


def test_scalar_subquery_stays_in_filters_only(session: SparkSession) -> None:
    scalar = "(SELECT max(x) FROM t)"
    in_argument = view_of(session, f"SELECT k, sum(x - {scalar}) AS s FROM t GROUP BY k").plan
    in_result = view_of(session, f"SELECT k, count(*) / {scalar} AS s FROM t GROUP BY k").plan
    for plan in (in_argument, in_result):
        assert [node.kind for node in walk(plan) if isinstance(node, Join)] == [JoinKind.SCALAR]
    in_filter = view_of(session, f"SELECT k FROM t WHERE x < {scalar}").plan
    assert [type(node) for node in walk(in_filter) if isinstance(node, ScalarFilter)] == [ScalarFilter]
    assert not [node for node in walk(in_filter) if isinstance(node, Join)]


def test_exists_without_correlation_is_a_group(session: SparkSession) -> None:
    plan = view_of(session, "SELECT x FROM t WHERE EXISTS (SELECT g FROM t AS o WHERE g = 'a' LIMIT 5)").plan
    (scalar_filter,) = [node for node in walk(plan) if isinstance(node, ScalarFilter)]
    (subquery,) = scalar_filter.scalars
    (group,) = [node for node in walk(subquery) if isinstance(node, Aggregate)]
    assert len(group.keys) == 1
    assert group.calls == ()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x FROM t ORDER BY x, (SELECT max(x) FROM t AS o)",
        "WITH w AS (SELECT x, k FROM t) SELECT x FROM w ORDER BY k, (SELECT count(*) FROM t AS o)",
    ],
)
def test_order_of_the_result_costs_nothing(session: SparkSession, query: str) -> None:
    view = view_of(session, query)
    assert view.obstacles == ()
    assert {type(node).__name__ for node in walk(view.plan)} == {"Select", "Scan"}


def test_duplicate_output_column_is_removed(session: SparkSession) -> None:
    query = (
        "SELECT k FROM (SELECT k AS k, rank() OVER (PARTITION BY k ORDER BY sum(x)) AS r FROM t GROUP BY k) "
        "WHERE r < 3"
    )
    for node in walk(view_of(session, query).plan):
        assert len(set(node.columns)) == len(node.columns)


def test_distinct_call_has_its_own_aggregate(session: SparkSession) -> None:
    plan = view_of(session, "SELECT k, count(DISTINCT x) AS a, sum(x) AS b FROM t GROUP BY k").plan
    groups = [node for node in walk(plan) if isinstance(node, Aggregate)]
    assert len(groups) == 3
    assert len({node.number for node in groups}) == 3
    assert {type(leaf) for leaf in walk(plan) if not leaf.children} == {Scan}
