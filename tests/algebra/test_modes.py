"""Recorded modes: a computation over all rows is never called incremental."""

from __future__ import annotations

from tautochrone.algebra.nodes import AggregateFunction, Node, ScalarFilter
from tautochrone.model.checkpoint import RefreshMode

from .incremental_view import View
from .query_builders import call, expression, first, group, scan

T = scan("t", "k v")


def modes(query: Node, *, state: bool) -> set[RefreshMode]:
    """Modes of the nodes after an insert and a delete."""
    view = View(query, {"t": [(1, 2), (2, 3), (2, 4)]})
    context = view.refresh({"t": [((1, 9), 1), ((2, 4), -1)]}, without=() if state else list(view.states))
    return {node.mode for node in context.nodes}


def reasons(query: Node, *, state: bool) -> list[str]:
    """What is recorded after an insert and a delete."""
    view = View(query, {"t": [(1, 2), (2, 3), (2, 4)]})
    context = view.refresh({"t": [((1, 9), 1), ((2, 4), -1)]}, without=() if state else list(view.states))
    return [str(node.reason) for node in context.nodes]


def test_groups_without_state_stay_incremental() -> None:
    grouped = group(T, "k", call(AggregateFunction.SUM, "v"))
    assert RefreshMode.DIFF not in modes(grouped, state=True) | modes(grouped, state=False)
    assert reasons(grouped, state=True) == ["merged into groups"]
    assert reasons(grouped, state=False) == ["it has no state: groups that changed are computed again"]


def test_a_node_has_one_reason() -> None:
    for query in (group(T, "", call(AggregateFunction.SUM, "v")), first(T, "v", 2)):
        assert reasons(query, state=False) == ["it has no state: computed over all rows and compared"]


def test_total_without_state_is_diff() -> None:
    total = group(T, "", call(AggregateFunction.SUM, "v"))
    assert RefreshMode.DIFF not in modes(total, state=True)
    assert RefreshMode.DIFF in modes(total, state=False)


def test_top_k_without_state_is_diff() -> None:
    top = first(T, "v", 2)
    assert RefreshMode.DIFF not in modes(top, state=True)
    assert RefreshMode.DIFF in modes(top, state=False)


def test_scalar_that_keeps_its_value_changes_no_row() -> None:
    a, b = scan("a", "k v"), scan("b", "w")
    total = group(b, "", call(AggregateFunction.MAX, "w"))
    condition = expression(f"v {total.columns[0]}", lambda row: row["v"] > row[total.columns[0]])
    query = ScalarFilter(columns=a.columns, child=a, scalars=(total,), condition=condition)
    view = View(query, {"a": [(1, 2), (2, 6)], "b": [(4,)]})
    context = view.refresh({"b": [((3,), 1)]})
    assert {node.node for node in context.nodes} == {"aggregate"}
    context = view.refresh({"b": [((5,), 1)]})
    assert {node.node for node in context.nodes} == {"aggregate", "scalarfilter"}


def test_aggregate_over_few_rows_is_incremental() -> None:
    median = call(AggregateFunction.OTHER, "v")
    assert modes(group(first(T, "v", 2), "", median), state=True) == {RefreshMode.INCREMENTAL}
    assert RefreshMode.DIFF in modes(group(T, "", median), state=True)
