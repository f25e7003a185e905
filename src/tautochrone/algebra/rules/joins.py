"""The rules of joins of every kind, and of filters that compare with a scalar subquery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tautochrone.algebra.delta import NO_CHANGE, Bag, Change, Differentiator, Row, zset_columns
from tautochrone.algebra.join_graph import JoinGraph, join_graph_of
from tautochrone.algebra.nodes import (
    ColumnId,
    Filter,
    Join,
    JoinKind,
    Materialized,
    Node,
    NullExtend,
    PredicateChange,
    ScalarFilter,
    Select,
    WithWeight,
)
from tautochrone.algebra.rules.inner_joins import join_along_keys, multiway_join_change
from tautochrone.algebra.rules.row_wise import sum_changes
from tautochrone.errors import RefreshError
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["JoinRule", "ScalarFilterRule"]


_REASONS = {
    JoinKind.INNER: "one term per changed input",
    JoinKind.LEFT: "inner join, and left rows that gained or lost their partners",
    JoinKind.FULL: "inner join, and rows of both sides that gained or lost their partners",
    JoinKind.SEMI: "left rows that gained or lost partners",
    JoinKind.ANTI: "left rows that gained or lost partners",
    JoinKind.EXISTENCE: "left rows that gained or lost partners",
    JoinKind.SCALAR: "all left rows when the scalar changes",
}


class JoinRule:
    """Joins of every kind. An outer join is an inner join and the null-extended rows without a partner.

        Δ(A ⟕ B) = Δ(A ⋈ B) + null-extended Δ(A ▷ B)
        Δ(A ⟗ B) = Δ(A ⋈ B) + null-extended Δ(A ▷ B) + null-extended Δ(B ▷ A)

    `A LEFT JOIN B` on k; A was `a`, B was empty:

        ΔA       ΔB         Δ(A ⋈ B)     Δ(A ▷ B)     Δ(A ⟕ B)
        b +1     a x +1     a x +1       a -1         a x +1
                                         b +1         a NULL -1
                                                      b NULL +1

    The formulas of the others are at `_inner_join_change` and `_semi_join_change`.
    """

    node_type: ClassVar = Join

    def evaluate(self, node: Join, left: Bag, right: Bag) -> list[dict[ColumnId, Any]]:
        if node.kind is JoinKind.SCALAR and len(right) > 1:
            raise ValueError("a scalar subquery gave more than one row")
        rows: list[dict[ColumnId, Any]] = []
        matched: set[int] = set()
        for row in left:
            partners = [number for number, right_row in enumerate(right) if _matches(node, row, right_row)]
            matched.update(partners)
            match node.kind:
                case JoinKind.SEMI:
                    rows.extend([dict(row)] if partners else [])
                case JoinKind.ANTI:
                    rows.extend([] if partners else [dict(row)])
                case JoinKind.EXISTENCE:
                    assert node.exists is not None
                    rows.append({**row, node.exists: bool(partners)})
                case _:
                    rows.extend({**row, **right[number]} for number in partners)
                    if not partners and node.kind is not JoinKind.INNER:
                        rows.append({**row, **dict.fromkeys(node.right.columns)})
        if node.kind is JoinKind.FULL:
            nulls = dict.fromkeys(node.left.columns)
            rows.extend({**nulls, **row} for number, row in enumerate(right) if number not in matched)
        return rows

    def change(self, node: Join, context: Differentiator) -> Change:
        match node.kind:
            case JoinKind.INNER:
                return _inner_join_change(node, context)
            case JoinKind.LEFT:
                changes = [_matched_change(node, context), _unmatched_change(node, context)]
                return sum_changes(node.columns, changes)
            case JoinKind.FULL:
                keys = tuple(key.swapped() for key in node.keys)
                swapped = replace(node, left=node.right, right=node.left, keys=keys)
                changes = [
                    _matched_change(node, context),
                    _unmatched_change(node, context),
                    _unmatched_change(swapped, context),
                ]
                return sum_changes(node.columns, changes)
            case _:
                return _semi_join_change(node, context)

    def mode(self, node: Join) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"{node.kind} join: {_REASONS[node.kind]}"


def _matches(node: Join, left: Row, right: Row) -> bool:
    for key in node.keys:
        a, b = left[key.left], right[key.right]
        if (a is None or b is None) and not (key.null_safe and a is b):
            return False
        if a != b:
            return False
    both = {**left, **right}
    return all(condition.handle(both) for condition in node.conditions)


def _matched_change(node: Join, context: Differentiator) -> Change:
    """The change of the rows of an outer join that have a partner."""
    columns = (*node.left.columns, *node.right.columns)
    return _inner_join_change(replace(node, columns=columns, kind=JoinKind.INNER), context)


def _unmatched_change(node: Join, context: Differentiator) -> Change:
    """The change of the left rows without a partner, with NULLs for the right side."""
    left, right = node.left, node.right
    change = _semi_join_change(replace(node, columns=left.columns, kind=JoinKind.ANTI), context)
    if change.plan is None:
        return change
    columns = zset_columns((*left.columns, *right.columns))
    plan = NullExtend(columns=columns, child=change.plan, nulls=right.columns, like=right)
    return Change(plan, change.insert_only)


# -- inner joins -----------------------------------------------------------------------------------------


def _inner_join_change(node: Join, context: Differentiator) -> Change:
    """The change of an inner or theta join and of the inner joins right below it: of any number of inputs.

        Δ(A ⋈ B) = ΔA ⋈ B_before + A_after ⋈ ΔB
        Δ(A ⋈ B ⋈ C) = ΔA ⋈ B_before ⋈ C_before + A_after ⋈ ΔB ⋈ C_before + A_after ⋈ B_after ⋈ ΔC

    One term per input that changed, and no term joins two changes. Each term starts at its change and follows
    the join's keys, so that a large input is only read for keys that are known by then. Where many inputs
    changed, `multiway_join_change` needs fewer joins.

    `A ⋈ B` on k; A was `a 1`, B was `a x`:

        ΔA         ΔB         ΔA ⋈ B_before     A_after ⋈ ΔB
        a 2 +1     a x -1     a 2 x +1          a 1 x -1, a 2 x -1
        b 3 +1     b y +1                       b 3 y +1
    """
    graph = join_graph_of(node)
    change = multiway_join_change(node, graph, context)
    if change is not None:
        return change
    terms = [_term_of_input(node, graph, position, context) for position in range(len(graph.inputs))]
    return sum_changes(node.columns, terms)


def _term_of_input(node: Join, graph: JoinGraph, position: int, context: Differentiator) -> Change:
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


# -- semi joins ------------------------------------------------------------------------------------------


def _semi_join_change(node: Join, context: Differentiator) -> Change:
    """The change of a join that has each left row at most once: semi, anti (also null-aware), existence,
    scalar.

    For a fixed right side it is linear in the left one. A change of the right side affects only left rows
    that a changed right row could join; these are joined with both versions of the right side:

        Δ(A ⋉ B) = ΔA ⋉ B_after + (A' ⋉ B_after) - (A' ⋉ B_before), A' = A_before ⋉ ΔB

    `A ▷ B` (anti) on k; A was `a`, `b` and B was `a`:

        ΔA       ΔB       A'      Δ(A ▷ B)
        c +1     a -1     a       c +1
                 b +1     b       a +1
                                  b -1

    The condition may be anything, so NOT IN needs no case of its own: a NULL on the right affects every left
    row that it leaves undecided.
    """
    # Every changed right row costs a lookup of left rows and two joins, so rows that cancel out are removed.
    left = context.materialized_change(node.left)
    right = context.materialized_change(node.right, consolidated=True)
    columns = zset_columns(node.columns)
    changes = []
    if left.plan is not None:
        rows = context.rows_after(node.right)
        if node.keys:
            on = [(key.right, key.left) for key in node.keys]
            rows = context.strategy.partners(rows, left.plan, on, node.keys)
        changes.append(Change(replace(node, columns=columns, left=left.plan, right=rows), left.insert_only))
    if right.plan is not None:
        # Without keys one changed right row may affect every left row.
        affected = context.engine.materialize(
            _affected_rows(node, context.rows_before(node.left), right.plan, context),
            may_be_large=not node.keys and context.strategy.may_be_large(node.left),
        )
        if affected.rows:
            for sign, rows in ((1, context.rows_after(node.right)), (-1, context.rows_before(node.right))):
                if node.keys:
                    on = [(key.right, key.right) for key in node.keys]
                    rows = context.strategy.partners(rows, right.plan, on, node.keys)
                joined = replace(node, left=affected, right=rows)
                plan = WithWeight(columns=columns, child=joined, sign=sign)
                changes.append(Change(plan, insert_only=False))
    return sum_changes(node.columns, changes)


def _affected_rows(node: Join, left: Node, right_change: Node, context: Differentiator) -> Node:
    """Left rows that some changed right row could join."""
    if node.keys:
        on = [(key.left, key.right) for key in node.keys]
        null_safe = any(key.null_safe for key in node.keys)
        return context.strategy.with_keys(left, right_change, on, null_safe=null_safe)
    if node.conditions:
        return Join(
            columns=left.columns,
            left=left,
            right=right_change,
            kind=JoinKind.SEMI,
            conditions=node.conditions,
        )
    return left


# -- comparisons with scalar subqueries ------------------------------------------------------------------


class ScalarFilterRule:
    """ScalarFilter compares with a scalar subquery (RisingWave's dynamic filter).

    When the value of the scalar q changes, only rows change for which the condition has another outcome:

        Δσ(A; q) = σ(ΔA; q_after) + (rows of A_before for which σ(q_after) ≠ σ(q_before))

    `WHERE v > (SELECT avg(w) FROM b)`, whose value falls from 4 to 2; A was `a 1`, `b 3`, `c 5`:

        ΔA         Δσ(A)
        d 9 +1     d 9 +1
                   b 3 +1
    """

    node_type: ClassVar = ScalarFilter

    def evaluate(self, node: ScalarFilter, rows: Bag, *scalars: Bag) -> list[dict[ColumnId, Any]]:
        values: dict[ColumnId, Any] = {}
        for scalar, bag in zip(node.scalars, scalars, strict=True):
            if len(bag) > 1:
                raise ValueError("a scalar subquery gave more than one row")
            values.update(bag[0] if bag else dict.fromkeys(scalar.columns))
        return [dict(row) for row in rows if node.condition.handle({**row, **values})]

    def change(self, node: ScalarFilter, context: Differentiator) -> Change:
        columns = zset_columns(node.columns)
        after = tuple(_scalar(context.rows_after(scalar), context) for scalar in node.scalars)
        changes = []
        child = context.change(node.child)
        if child.plan is not None:
            rows: Node = child.plan
            for scalar in after:
                both = (*rows.columns, *scalar.columns)
                rows = Join(columns=both, left=rows, right=scalar, kind=JoinKind.SCALAR)
            passing = Filter(columns=rows.columns, child=rows, condition=node.condition)
            changes.append(Change(Select(columns=columns, child=passing), child.insert_only))
        if any(_has_other_value(scalar, node, context) for scalar in node.scalars):
            before = tuple(_scalar(context.rows_before(scalar), context) for scalar in node.scalars)
            predicate_change = PredicateChange(
                columns=columns,
                child=context.rows_before(node.child),
                condition=node.condition,
                before=before,
                after=after,
            )
            changes.append(Change(predicate_change, insert_only=False))
        return sum_changes(node.columns, changes)

    def mode(self, node: ScalarFilter) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, "rows for which the comparison with the scalar changes"


def _has_other_value(scalar: Node, node: ScalarFilter, context: Differentiator) -> bool:
    """Whether the rows of the filter's child must be read because of a scalar.

    A scalar whose inputs changed may have the same value as before. To know that takes one more step, which
    is worth it unless the child has few rows.
    """
    if context.strategy.reads_few_rows(context.rows_before(node.child)):
        return bool(context.change(scalar))
    return bool(context.materialized_change(scalar, consolidated=True))


def _scalar(subquery: Node, context: Differentiator) -> Materialized:
    """The result of a scalar subquery, computed."""
    result = context.engine.materialize(subquery)
    if result.rows > 1:
        raise RefreshError(
            "SCALAR_SUBQUERY_TOO_MANY_ROWS",
            "More than one row returned by a subquery used as an expression",
            sqlstate="21000",
            hint="aggregate in the subquery, or make its condition unique",
        )
    return result
