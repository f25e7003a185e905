"""Joins of four inputs that all change at once; their keys form stars, chains and circles."""

from __future__ import annotations

import random

import pytest
from tests.support.plan_evaluator import PlanEvaluator

from tautochrone.algebra.delta import Differentiator, zset_columns
from tautochrone.algebra.nodes import Materialized, Node, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.algebra.rules.join_graph import join_along_keys, join_graph_of
from tautochrone.algebra.rules.multiway_join import multiway_join_change

from .incremental_view import Step, View
from .query_builders import bag, join, scan

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


def random_row(generator: random.Random) -> tuple[int | None, ...]:
    return tuple(generator.choice((0, 1, 1, 2, None)) for _ in range(3))


def random_changes(generator: random.Random, tables: Tables, *, insert_only: bool) -> Step:
    step: Step = {}
    for table, rows in tables.items():
        deleted = [] if insert_only else generator.sample(rows, min(len(rows), 2))
        step[table] = [(row, -1) for row in deleted] + [(random_row(generator), 1) for _ in range(2)]
    return step


@pytest.mark.parametrize("insert_only", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_inputs_change_at_once(shape: str, insert_only: bool) -> None:
    for seed in range(60):
        generator = random.Random(seed)
        tables: Tables = {table: [random_row(generator) for _ in range(4)] for table in "fdeg"}
        view = View(query(shape), tables)
        for _ in range(2):
            context = view.refresh(
                random_changes(generator, dict(view.tables), insert_only=insert_only), seed=seed
            )
            change = context.materialized_change(view.query, consolidated=True)
            assert change.insert_only or not insert_only, "an insert-only change can be appended"


def test_join_without_key_uses_one_term_per_input() -> None:
    node = join(join(scan("f", "f1"), scan("d", "d1"), "f1=d1"), scan("e", "e1"))
    view = View(node, {"f": [(1,)], "d": [(1,)], "e": [(7,)]})
    context = view.refresh({"f": [((2,), 1)], "d": [((2,), 1)], "e": [((8,), 1)]})
    assert multiway_join_change(node, join_graph_of(node), context) is None
    assert view.rows == bag((1, 1, 7), (1, 1, 8), (2, 2, 7), (2, 2, 8))


def test_row_affected_by_all_inputs_is_joined_once() -> None:
    view = View(query("star"), {"f": [(1, 1, 1), (2, 2, 2)], "d": [(1, 0, 0)], "e": [], "g": []})
    view.refresh({"d": [((1, 5, 5), 1)], "e": [((1, 0, 0), 1)], "g": [((1, 0, 0), 1)]})
    assert view.rows == bag((1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0), (1, 1, 1, 1, 5, 5, 1, 0, 0, 1, 0, 0))


def test_inputs_with_more_keys_to_come_are_joined_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nation alone would lead from a customer to all suppliers of the nation, for each order."""
    monkeypatch.setattr(PlanEvaluator, "reads_many_rows", lambda _engine, _node: False)
    monkeypatch.setattr(PlanEvaluator, "reads_few_rows", lambda _engine, _node: True)
    customers = join(scan("o", "o_key o_customer"), scan("c", "c_key c_nation"), "o_customer=c_key")
    suppliers = join(customers, scan("s", "s_key s_nation"), "c_nation=s_nation")
    lines = join(suppliers, scan("l", "l_order l_supplier"), "o_key=l_order s_key=l_supplier")
    node = join(lines, scan("n", "n_key"), "s_nation=n_key")
    graph = join_graph_of(node)
    context = Differentiator(PlanEvaluator(before={}, after={}, rules=RULES), RULES)
    start = Materialized(columns=zset_columns(graph.inputs[0].columns), handle=[], rows=1)
    plan = join_along_keys(node, graph, 0, start, lambda position: graph.inputs[position], context)
    assert plan is not None
    tables = [leaf.table for leaf in walk(plan) if isinstance(leaf, Scan)]
    assert tables.index("l") < tables.index("s")


@pytest.mark.parametrize("shape", SHAPES)
def test_nested_inner_joins_are_differentiated_once(shape: str) -> None:
    node = query(shape)
    rows: Tables = {table: [(1, 1, 1)] for table in "fdeg"}
    context = Differentiator(
        PlanEvaluator(before={table: [] for table in rows}, after=rows, rules=RULES), RULES
    )
    assert context.materialized_change(node).insert_only
    assert [refresh.node for refresh in context.nodes] == ["join"]
