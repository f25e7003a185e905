"""How a refresh asks for changes: each once, computed when asked, and recorded with its mode."""

from __future__ import annotations

from tests.support.plan_evaluator import PlanEvaluator

from tautochrone.algebra.delta import NO_CHANGE, Differentiator
from tautochrone.algebra.nodes import AggregateFunction, Materialized
from tautochrone.algebra.rules import RULES
from tautochrone.model.checkpoint import RefreshMode

from .query_builders import call, group, scan, where

A = scan("A", "k v")


def refresh_of(*inserted: tuple[int, int]) -> Differentiator:
    before = {"A": [(1, 5), (2, 6)]}
    engine = PlanEvaluator(before=before, after={"A": [*before["A"], *inserted]}, rules=RULES)
    return Differentiator(engine, RULES)


def test_a_change_is_computed_once() -> None:
    query = where(A, "v", lambda row: row["v"] > 1)
    refresh = refresh_of((3, 7))
    assert refresh.change(query) is refresh.change(query)
    computed = refresh.materialized_change(query)
    assert isinstance(computed.plan, Materialized)
    assert refresh.change(query) is computed


def test_nothing_changes_above_inputs_without_changes() -> None:
    refresh = refresh_of()
    assert refresh.change(group(A, "k", call(AggregateFunction.SUM, "v"))) is NO_CHANGE
    assert refresh.nodes == []
    assert not refresh.inputs_changed(A)


def test_a_change_that_the_filter_drops_is_none_once_computed() -> None:
    query = where(A, "v", lambda row: row["v"] > 10)
    refresh = refresh_of((3, 7))
    assert refresh.change(query)
    assert not refresh.materialized_change(query)
    assert not refresh.change(query)


def test_each_changed_node_is_recorded_with_its_mode() -> None:
    refresh = refresh_of((3, 7))
    refresh.change(where(A, "v", bool))
    assert [(node.node, node.mode) for node in refresh.nodes] == [("filter", RefreshMode.APPEND)]
