"""Joins of four inputs that all change at once, as stars, chains and circles of keys."""

from __future__ import annotations

import random

import pytest

from tautochrone.algebra.delta import Differentiator, zset_columns
from tautochrone.algebra.nodes import Materialized, Node, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.algebra.rules.join_graph import join_along_keys, join_graph_of
from tautochrone.algebra.rules.multiway_join import multiway_join_change
from tautochrone.testing.plan_evaluator import PlanEvaluator

from .small import bag, join, scan
from .world import Step, View

SHAPES = {
    "star": ("f1=d1", "f2=e1", "f3=g1"),
    "chain": ("f1=d1", "d2==e1", "e2=g1"),
    "snowflake": ("f1=d1 f2=d2", "f2=e1", "d3=g1"),
    "circle": ("f1=d1", "d2=e1", "e2=g1 f2=g2"),
}
Tables = dict[str, list[tuple[int | None, ...]]]


def query(shape: str) -> Node:
    node: Node = scan("f", "f1 f2 f3")
    for table, on in zip("deg", SHAPES[shape], strict=True):
        node = join(node, scan(table, f"{table}1 {table}2 {table}3"), on)
    return node


def some_row(pick: random.Random) -> tuple[int | None, ...]:
    return tuple(pick.choice((0, 1, 1, 2, None)) for _ in range(3))


def changed(pick: random.Random, tables: Tables, *, only_new: bool) -> Step:
    step: Step = {}
    for table, rows in tables.items():
        gone = [] if only_new else pick.sample(rows, min(len(rows), 2))
        step[table] = [(row, -1) for row in gone] + [(some_row(pick), 1) for _ in range(2)]
    return step


@pytest.mark.parametrize("only_new", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_inputs_change(shape: str, only_new: bool) -> None:
    for seed in range(60):
        pick = random.Random(seed)
        tables: Tables = {table: [some_row(pick) for _ in range(4)] for table in "fdeg"}
        view = View(query(shape), tables)
        for _ in range(2):
            at = view.refresh(changed(pick, dict(view.tables), only_new=only_new), seed=seed)
            change = at.materialized_change(view.query, consolidated=True)
            assert change.insert_only or not only_new, "what only grows can be appended"


def test_a_join_that_no_key_leads_to_has_its_terms() -> None:
    node = join(join(scan("f", "f1"), scan("d", "d1"), "f1=d1"), scan("e", "e1"))
    view = View(node, {"f": [(1,)], "d": [(1,)], "e": [(7,)]})
    at = view.refresh({"f": [((2,), 1)], "d": [((2,), 1)], "e": [((8,), 1)]})
    assert multiway_join_change(node, join_graph_of(node), at) is None
    assert view.rows == bag((1, 1, 7), (1, 1, 8), (2, 2, 7), (2, 2, 8))


def test_a_row_that_all_other_inputs_reach_is_joined_once() -> None:
    view = View(query("star"), {"f": [(1, 1, 1), (2, 2, 2)], "d": [(1, 0, 0)], "e": [], "g": []})
    view.refresh({"d": [((1, 5, 5), 1)], "e": [((1, 0, 0), 1)], "g": [((1, 0, 0), 1)]})
    assert view.rows == bag((1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0), (1, 1, 1, 1, 5, 5, 1, 0, 0, 1, 0, 0))


def test_a_key_that_goes_with_others_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a customer over the nation alone one would get to all its suppliers, for each order."""
    monkeypatch.setattr(PlanEvaluator, "is_large", lambda _engine, _node: False)
    monkeypatch.setattr(PlanEvaluator, "is_small", lambda _engine, _node: True)
    customers = join(scan("o", "o_key o_customer"), scan("c", "c_key c_nation"), "o_customer=c_key")
    suppliers = join(customers, scan("s", "s_key s_nation"), "c_nation=s_nation")
    lines = join(suppliers, scan("l", "l_order l_supplier"), "o_key=l_order s_key=l_supplier")
    node = join(lines, scan("n", "n_key"), "s_nation=n_key")
    graph = join_graph_of(node)
    at = Differentiator(PlanEvaluator(before={}, after={}, rules=RULES), RULES)
    start = Materialized(columns=zset_columns(graph.inputs[0].columns), handle=[], rows=1)
    found = join_along_keys(node, graph, 0, start, lambda other: graph.inputs[other], at)
    assert found is not None
    read = [leaf.table for leaf in walk(found) if isinstance(leaf, Scan)]
    assert read.index("l") < read.index("s")


@pytest.mark.parametrize("shape", SHAPES)
def test_joins_inside_a_join_are_not_followed_for_nothing(shape: str) -> None:
    node = query(shape)
    rows: Tables = {table: [(1, 1, 1)] for table in "fdeg"}
    at = Differentiator(PlanEvaluator(before={table: [] for table in rows}, after=rows, rules=RULES), RULES)
    assert at.materialized_change(node).insert_only
    assert [done.node for done in at.nodes] == ["join"]
