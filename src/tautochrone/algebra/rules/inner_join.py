"""Inner and theta joins of any number of inputs.

    Δ(A ⋈ B) = ΔA ⋈ B_before + A_after ⋈ ΔB
    Δ(A ⋈ B ⋈ C) = ΔA ⋈ B_before ⋈ C_before + A_after ⋈ ΔB ⋈ C_before + A_after ⋈ B_after ⋈ ΔC

One term per input that changed, and no term joins two changes. Each term starts at its change and follows the
join's keys, so that a large input is only read for keys that are known by then. Where many inputs changed,
`multiway_join` needs fewer joins.

`A ⋈ B` on k; A was `a 1`, B was `a x`:

    ΔA         ΔB         ΔA ⋈ B_before     A_after ⋈ ΔB
    a 2 +1     a x -1     a 2 x +1          a 1 x -1, a 2 x -1
    b 3 +1     b y +1                       b 3 y +1
"""

from __future__ import annotations

from tautochrone.algebra.delta import NO_CHANGE, Change, Differentiator
from tautochrone.algebra.nodes import Join, Node
from tautochrone.algebra.rules.join_graph import JoinGraph, join_along_keys, join_graph_of
from tautochrone.algebra.rules.multiway_join import multiway_join_change
from tautochrone.algebra.rules.union import sum_changes

__all__ = ["inner_join_change"]


def inner_join_change(node: Join, context: Differentiator) -> Change:
    """The change of an inner join and of the inner joins right below it."""
    graph = join_graph_of(node)
    change = multiway_join_change(node, graph, context)
    if change is not None:
        return change
    terms = [_term(node, graph, position, context) for position in range(len(graph.inputs))]
    return sum_changes(node.columns, terms)


def _term(node: Join, graph: JoinGraph, position: int, context: Differentiator) -> Change:
    """The term of one input X: ΔX joined with the inputs left of X at the cut after and the inputs right of
    X at the cut before."""
    change = context.materialized_change(graph.inputs[position])
    if change.plan is None:
        return NO_CHANGE

    def rows_of(index: int) -> Node:
        relation = graph.inputs[index]
        if index < position or not context.inputs_changed(relation):
            return context.rows_after(relation)
        return context.rows_before(relation)

    plan = join_along_keys(node, graph, position, change.plan, rows_of, context)
    return NO_CHANGE if plan is None else Change(plan, change.insert_only)
