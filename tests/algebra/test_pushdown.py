"""Selecting by key at the bottom of a plan gives the same rows as at its top."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, note, settings
from tests.support.plan_evaluator import PlanEvaluator
from tests.support.plan_evaluator_nodes import row_counts

from tautochrone.algebra.nodes import (
    Aggregate,
    ColumnId,
    Join,
    JoinKey,
    JoinKind,
    KeySemiJoin,
    Materialized,
    Node,
    Scan,
    walk,
)
from tautochrone.algebra.pushdown import push_down_keys
from tautochrone.algebra.rules import RULES

from .choices import ByteChoices
from .incremental_view import random_tables
from .test_random import CASES, DATA, MAX_VIEW_ROWS, PLANS, plan_tree, query_from


class NothingIsSmall(PlanEvaluator):
    """Every relation is worth selecting from by key."""

    def reads_few_rows(self, node: Node) -> bool:
        return False


def semi_join_of(
    choices: ByteChoices, query: Node, rows: list[dict[ColumnId, Any]], *, exact: bool
) -> KeySemiJoin:
    """A semi-join of a query with keys from some of its rows, and now and then a key of NULLs."""
    columns = [column for column in query.columns if choices.chance(50)] or [query.columns[0]]
    ids = {column: ColumnId(f"key_{column}") for column in columns}
    keys = [{ids[column]: row[column] for column in columns} for row in choices.sample(rows, 0, 3)]
    keys += [dict.fromkeys(ids.values())] if choices.chance(30) else []
    return KeySemiJoin(
        columns=query.columns,
        child=query,
        keys=Materialized(columns=tuple(ids.values()), handle=keys, rows=len(keys)),
        on=tuple(ids.items()),
        null_safe=choices.chance(50),
        exact=exact,
    )


@settings(CASES, max_examples=1_500)
@given(PLANS, DATA)
def test_pushdown_keeps_the_rows(plan: bytes, data: bytes) -> None:
    query, choices = query_from(plan), ByteChoices(data)
    note(plan_tree(query))
    tables = random_tables(choices)
    engine = NothingIsSmall(before=tables, after=tables, rules=RULES)
    rows = engine.rows(query)
    assume(len(rows) <= MAX_VIEW_ROWS)
    node = semi_join_of(choices, query, rows, exact=True)
    expected = row_counts(engine.rows(node), query.columns)
    assert row_counts(engine.rows(push_down_keys(node, engine)), query.columns) == expected
    # An inexact result is filtered once more above: then it must have the same rows, too.
    loose = push_down_keys(replace(node, exact=False), engine)
    assert row_counts(engine.rows(replace(node, child=loose)), query.columns) == expected


def test_random_queries_push_keys_below_every_node() -> None:
    """The test above covers a kind of node only if keys are pushed below it."""
    pushed_below: Counter[str] = Counter()
    tables = random_tables(ByteChoices(b"\x05" * 200))
    for case in range(600):
        query, choices = (
            query_from(bytes((case * 7 + index * index) % 251 for index in range(160))),
            ByteChoices(bytes([case % 251]) * 200),
        )
        engine = NothingIsSmall(before=tables, after=tables, rules=RULES)
        node = semi_join_of(choices, query, [], exact=True)
        plan = push_down_keys(node, engine)
        semi_joins = [
            child for child in walk(plan) if isinstance(child, KeySemiJoin) and child.keys is node.keys
        ]
        for above in walk(plan):
            pushed_below[type(above).__name__] += any(
                semi_join in walk(above) and semi_join is not above for semi_join in semi_joins
            )
    for kind in ("Filter", "Project", "Aggregate", "Window", "Join", "Union", "FlatMap", "Rename"):
        assert pushed_below[kind] >= 3, pushed_below


@pytest.fixture
def engine() -> PlanEvaluator:
    tables = {"a": [(1, 10), (2, 20)], "b": [(1, 7), (None, 8)]}
    return NothingIsSmall(before=tables, after=tables, rules=RULES)


def scan(table: str, *columns: str) -> Scan:
    return Scan(columns=tuple(map(ColumnId, columns)), table=table)


def with_keys(node: Node, column: str, *values: int) -> KeySemiJoin:
    name = ColumnId(column)
    key = ColumnId(f"key_{column}")
    keys = Materialized(columns=(key,), handle=[{key: value} for value in values], rows=len(values))
    return KeySemiJoin(columns=node.columns, child=node, keys=keys, on=((name, key),))


def selected_columns(plan: Node) -> dict[str, str]:
    """By table the column on which its rows are selected, if they are."""
    return {
        str(node.child.table): str(node.on[0][0])
        for node in walk(plan)
        if isinstance(node, KeySemiJoin) and isinstance(node.child, Scan)
    }


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI])
def test_join_key_selects_on_both_sides(engine: PlanEvaluator, kind: JoinKind) -> None:
    left, right = scan("a", "x", "y"), scan("b", "u", "v")
    columns = left.columns if kind in (JoinKind.SEMI, JoinKind.ANTI) else (*left.columns, *right.columns)
    keys = (JoinKey(left=ColumnId("x"), right=ColumnId("u")),)
    join = Join(columns=columns, left=left, right=right, kind=kind, keys=keys)
    assert selected_columns(push_down_keys(with_keys(join, "x", 1), engine)) == {"a": "x", "b": "u"}


def test_right_columns_do_not_filter_a_left_join(engine: PlanEvaluator) -> None:
    """Filtering the right side by its own key would fake missing partners."""
    left, right = scan("a", "x", "y"), scan("b", "u", "v")
    keys = (JoinKey(left=ColumnId("x"), right=ColumnId("u")),)
    columns = (*left.columns, *right.columns)
    join = Join(columns=columns, left=left, right=right, kind=JoinKind.LEFT, keys=keys)
    assert selected_columns(push_down_keys(with_keys(join, "u", 1), engine)) == {}


def test_group_keys_select_below_the_aggregate(engine: PlanEvaluator) -> None:
    rows = scan("a", "x", "y")
    groups = Aggregate(
        columns=rows.columns, child=rows, keys=rows.columns, calls=(), count=ColumnId("n"), number=1
    )
    plan = push_down_keys(with_keys(groups, "x", 1), engine)
    assert isinstance(plan, Aggregate), "no semi-join is needed above"
    assert selected_columns(plan) == {"a": "x"}
