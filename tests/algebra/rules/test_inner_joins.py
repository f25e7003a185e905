"""Joins whose inputs all change at once: the rule's example, and keys that form stars, chains and circles."""

from __future__ import annotations

import random

import pytest
from tests.algebra.golden import check_delta_plan
from tests.algebra.incremental_view import Step, View
from tests.algebra.query_builders import bag, join, scan
from tests.support.plan_evaluator import PlanEvaluator

from tautochrone.algebra.delta import Differentiator, zset_columns
from tautochrone.algebra.join_graph import join_graph_of
from tautochrone.algebra.nodes import Materialized, Node, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.algebra.rules.inner_joins import join_along_keys, multiway_join_change

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


def test_multiway_join() -> None:
    """Fact and dimensions as in `multiway_join_change`."""
    fact = scan("F", "id p q")
    query = join(join(fact, scan("P", "pk pv"), "p=pk"), scan("Q", "qk qv"), "q=qk")
    check_delta_plan(
        query,
        tables={"F": "1 a x\n 2 b x", "P": "a 7", "Q": "x 5"},
        changes={"F": "2 b x -1", "P": "a 7 -1\n a 8 +1", "Q": "y 6 +1"},
        plan="""
            step1 =
            MultiKeySemiJoin q = qk or p = pk
              ScanAtCut F after
              ΔQ
              ΔP
            step2 =
            Union
              Select id, p, q
                ΔF
              WithWeight -1
                step1
            step3 =
            Join inner (1 key)
              step2
              KeySemiJoin pk = p
                ScanAtCut P before
                step2
            step4 =
            WithWeight +1
              step1
            step5 =
            Join inner (1 key)
              step4
              KeySemiJoin pk = p
                ScanAtCut P after
                step4
            Consolidate
              Union
                Select id, p, q, pk, pv, qk, qv
                  Join inner (1 key)
                    step3
                    KeySemiJoin qk = q
                      ScanAtCut Q before
                      step3
                Select id, p, q, pk, pv, qk, qv
                  Join inner (1 key)
                    step5
                    KeySemiJoin qk = q
                      ScanAtCut Q after
                      step5
            """,
        result="1 a x a 7 x 5 -1\n 1 a x a 8 x 5 +1",
    )
