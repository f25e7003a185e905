"""Keys asked for at the bottom of a plan find the rows that they find at its top."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, note, settings

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
from tautochrone.testing.plan_evaluator import PlanEvaluator
from tautochrone.testing.plan_evaluator_nodes import row_counts

from .tape import Tape
from .test_random import CASES, DATA, LARGEST, PLANS, build, shown
from .world import random_tables


class Everything(PlanEvaluator):
    """Every relation is worth to be asked for keys."""

    def is_small(self, node: Node) -> bool:
        return False


def asked(tape: Tape, query: Node, rows: list[dict[ColumnId, Any]], *, exact: bool) -> KeySemiJoin:
    """Some of a query's rows, and a row of NULLs now and then, as keys on some of its columns."""
    columns = [column for column in query.columns if tape.chance(50)] or [query.columns[0]]
    ids = {column: ColumnId(f"key_{column}") for column in columns}
    keys = [{ids[column]: row[column] for column in columns} for row in tape.some(rows, 0, 3)]
    keys += [dict.fromkeys(ids.values())] if tape.chance(30) else []
    return KeySemiJoin(
        columns=query.columns,
        child=query,
        keys=Materialized(columns=tuple(ids.values()), handle=keys, rows=len(keys)),
        on=tuple(ids.items()),
        null_safe=tape.chance(50),
        exact=exact,
    )


@settings(CASES, max_examples=1_500)
@given(PLANS, DATA)
def test_the_same_rows_as_above_the_plan(plan: bytes, data: bytes) -> None:
    query, tape = build(plan), Tape(data)
    note(shown(query))
    tables = random_tables(tape)
    engine = Everything(before=tables, after=tables, rules=RULES)
    rows = engine.rows(query)
    assume(len(rows) <= LARGEST)
    node = asked(tape, query, rows, exact=True)
    wanted = row_counts(engine.rows(node), query.columns)
    assert row_counts(engine.rows(push_down_keys(node, engine)), query.columns) == wanted
    # What is not exact is asked again: then it must be the same rows, too.
    loose = push_down_keys(replace(node, exact=False), engine)
    assert row_counts(engine.rows(replace(node, child=loose)), query.columns) == wanted


def test_random_queries_are_asked_below_every_kind() -> None:
    """The proof above is one of every kind only if keys went below it."""
    passed: Counter[str] = Counter()
    tables = random_tables(Tape(b"\x05" * 200))
    for case in range(600):
        query, tape = (
            build(bytes((case * 7 + place * place) % 251 for place in range(160))),
            Tape(bytes([case % 251]) * 200),
        )
        engine = Everything(before=tables, after=tables, rules=RULES)
        node = asked(tape, query, [], exact=True)
        found = push_down_keys(node, engine)
        asks = [below for below in walk(found) if isinstance(below, KeySemiJoin) and below.keys is node.keys]
        for above in walk(found):
            passed[type(above).__name__] += any(each in walk(above) and each is not above for each in asks)
    for kind in ("Filter", "Project", "Aggregate", "Window", "Join", "Union", "FlatMap", "Rename"):
        assert passed[kind] >= 3, passed


@pytest.fixture
def engine() -> PlanEvaluator:
    tables = {"a": [(1, 10), (2, 20)], "b": [(1, 7), (None, 8)]}
    return Everything(before=tables, after=tables, rules=RULES)


def scan(table: str, *columns: str) -> Scan:
    return Scan(columns=tuple(map(ColumnId, columns)), table=table)


def of(node: Node, column: str, *values: int) -> KeySemiJoin:
    name = ColumnId(column)
    key = ColumnId(f"key_{column}")
    kept = Materialized(columns=(key,), handle=[{key: value} for value in values], rows=len(values))
    return KeySemiJoin(columns=node.columns, child=node, keys=kept, on=((name, key),))


def leaves(plan: Node) -> dict[str, str]:
    """Per table the column on which its rows are asked for keys, if they are."""
    return {
        str(node.child.table): str(node.on[0][0])
        for node in walk(plan)
        if isinstance(node, KeySemiJoin) and isinstance(node.child, Scan)
    }


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI])
def test_what_must_be_equal_is_a_key_of_either_side(engine: PlanEvaluator, kind: JoinKind) -> None:
    left, right = scan("a", "x", "y"), scan("b", "u", "v")
    columns = left.columns if kind in (JoinKind.SEMI, JoinKind.ANTI) else (*left.columns, *right.columns)
    keys = (JoinKey(left=ColumnId("x"), right=ColumnId("u")),)
    join = Join(columns=columns, left=left, right=right, kind=kind, keys=keys)
    assert leaves(push_down_keys(of(join, "x", 1), engine)) == {"a": "x", "b": "u"}


def test_a_left_join_is_not_asked_by_its_right_side(engine: PlanEvaluator) -> None:
    """A left row would seem to have no partner."""
    left, right = scan("a", "x", "y"), scan("b", "u", "v")
    keys = (JoinKey(left=ColumnId("x"), right=ColumnId("u")),)
    columns = (*left.columns, *right.columns)
    join = Join(columns=columns, left=left, right=right, kind=JoinKind.LEFT, keys=keys)
    assert leaves(push_down_keys(of(join, "u", 1), engine)) == {}


def test_groups_are_asked_below_their_aggregate_by_their_keys_only(engine: PlanEvaluator) -> None:
    rows = scan("a", "x", "y")
    groups = Aggregate(
        columns=rows.columns, child=rows, keys=rows.columns, calls=(), count=ColumnId("n"), number=1
    )
    found = push_down_keys(of(groups, "x", 1), engine)
    assert isinstance(found, Aggregate), "no row is left to be asked above"
    assert leaves(found) == {"a": "x"}
