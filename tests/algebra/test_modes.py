"""What the nodes say they did: a computation of everything is never called incremental."""

from __future__ import annotations

from tautochrone.algebra.nodes import AggregateFunction, Node
from tautochrone.model.refresh import RefreshMode

from .small import call, first, group, scan
from .world import View

T = scan("t", "k v")


def modes(query: Node, *, state: bool) -> set[RefreshMode]:
    """Modes of the nodes after one row came and one went."""
    view = View(query, {"t": [(1, 2), (2, 3), (2, 4)]})
    at = view.refresh({"t": [((1, 9), 1), ((2, 4), -1)]}, without=() if state else list(view.states))
    return {node.mode for node in at.nodes}


def test_groups_without_a_state_are_still_looked_up_by_key() -> None:
    grouped = group(T, "k", call(AggregateFunction.SUM, "v"))
    assert RefreshMode.DIFF not in modes(grouped, state=True) | modes(grouped, state=False)


def test_a_total_without_a_state_is_a_comparison() -> None:
    total = group(T, "", call(AggregateFunction.SUM, "v"))
    assert RefreshMode.DIFF not in modes(total, state=True)
    assert RefreshMode.DIFF in modes(total, state=False)


def test_first_rows_without_a_buffer_are_a_comparison() -> None:
    top = first(T, "v", 2)
    assert RefreshMode.DIFF not in modes(top, state=True)
    assert RefreshMode.DIFF in modes(top, state=False)
