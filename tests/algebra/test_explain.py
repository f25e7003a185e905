"""The tree that `taut dry-run --explain` prints, over hand-written plans."""

from __future__ import annotations

from tautochrone.algebra.explain import explained_nodes
from tautochrone.algebra.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ColumnId,
    Constant,
    Expression,
    Filter,
    Join,
    JoinKey,
    JoinKind,
    Node,
    Scan,
    TopK,
    Union,
    Unsupported,
)
from tautochrone.algebra.rules import RULES
from tautochrone.model.checkpoint import RefreshMode


def ids(*names: str) -> tuple[ColumnId, ...]:
    return tuple(ColumnId(name) for name in names)


A, B, C, X, N, S, E, Z = ids("a", "b", "c", "x", "n", "s", "e", "z")

ORDERS = Scan(columns=(A, X), table="lake.db.orders")
ITEMS = Scan(columns=(B, C), table="lake.db.items")
JOINED = Join(
    columns=(A, X, B, C), left=ORDERS, right=ITEMS, kind=JoinKind.INNER, keys=(JoinKey(left=A, right=B),)
)
COUNT = AggregateCall(
    output=N, function=AggregateFunction.COUNT, handle=None, accumulators=(S,), text="count(1)"
)
MEDIAN = AggregateCall(output=E, function=AggregateFunction.OTHER, handle=None, text="median(x#17L)")


def group(*calls: AggregateCall) -> Aggregate:
    columns = (C, *(call.output for call in calls))
    return Aggregate(columns=columns, child=JOINED, keys=(C,), calls=calls, count=Z, number=0)


def tree(plan: Node) -> list[str]:
    return [node.text for node in explained_nodes(plan, RULES)]


def test_explain_prints_a_tree() -> None:
    condition = Expression(None, frozenset({N}), "(n#12L >\n 3)")
    lines = tree(Filter(columns=(C, N), child=group(COUNT), condition=condition))
    assert lines == [
        "filter (n > 3) - append: filter of the change",
        "  aggregate count(1) by 1 key - incremental: merged into groups; state: 3 columns",
        f"    join inner (1 key) - incremental: {RULES[Join].mode(JOINED)[1]}",
        "      scan lake.db.orders",
        "      scan lake.db.items",
    ]


def test_only_stateful_nodes_have_state_columns() -> None:
    assert [node.state_columns for node in explained_nodes(group(COUNT, MEDIAN), RULES)] == [0, 0, 0, 0]
    top = TopK(columns=(A, X), child=ORDERS, order=None, limit=3, offset=2, number=0, complete=Z)
    assert tree(top)[0].startswith("top 3 after 2 - incremental: ")
    assert tree(top)[0].endswith("; state: 3 columns")


def test_unsupported_node_is_diff_and_its_children_are_explained() -> None:
    unsupported = Unsupported(columns=(A, X), inputs=(ORDERS,), reason="Sample has no rule")
    union = Union(columns=(A, X), inputs=(unsupported, Constant(columns=(A, X), handle=None)))
    nodes = explained_nodes(union, RULES)
    assert [(node.node, node.mode) for node in nodes] == [
        ("union", RULES[Union].mode(union)[0]),
        ("other", RefreshMode.DIFF),
        ("scan", None),
        ("constant", None),
    ]
    assert nodes[1].reason == "Sample has no rule"
    assert tree(unsupported) == ["other - diff: Sample has no rule", "  scan lake.db.orders"]


def test_long_conditions_are_shortened() -> None:
    long = Expression(None, frozenset(), "(a = 1) OR " * 40)
    (line, _) = tree(Filter(columns=(A, X), child=ORDERS, condition=long))
    assert "…" in line
    assert len(line) < 120
