"""The rule of aggregates: with accumulators changes are merged into a state, otherwise changed groups are
recomputed, as partitions of windows are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from statistics import pvariance
from typing import Any, ClassVar

from tautochrone.algebra.delta import NO_CHANGE, Bag, Change, Differentiator, Row, zset_columns
from tautochrone.algebra.nodes import (
    MERGE_FUNCTIONS,
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ChangedGroups,
    ColumnId,
    CutSide,
    FinalAggregate,
    FlagFilter,
    Join,
    JoinKey,
    JoinKind,
    KeySemiJoin,
    Materialized,
    MergeGroups,
    Node,
    PartialAggregate,
    Rename,
    Select,
    StateScan,
    Unary,
    Union,
    WithWeight,
)
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.counts import counted

__all__ = ["AggregateRule", "few_rows_at_most", "recompute_changed_groups"]


class AggregateRule:
    """Aggregate; DISTINCT is one without calls.

    The state has the accumulators of each group. The change alone is aggregated and merged into it. Each
    changed group gives its old output row with -1 and its new one with +1, so that aggregates above, and
    joins above those, stay incremental:

        Δγ(A) = final(S_after) - final(S_before) for the groups in ΔA
        S_after = merge(S_before, partial(ΔA))

    `sum(v) BY k`; A was `a 1`, `a 2`, `b 5`:

        ΔA         S_before         partial(ΔA)      S_after          Δγ(A)
        a 2 -1     a: sum 3, n 2    a: +1, n 0       a: sum 4, n 2    a 3 -1, a 4 +1
        a 3 +1     b: sum 5, n 1    b: -5, n -1      b: n 0           b 5 -1
        b 5 -1

    Deletes may make the accumulators of MIN, MAX, bit functions and inexact sums insufficient, as when the
    minimum itself is deleted. Those groups, and only those, are read again from A_after.
    """

    node_type: ClassVar = Aggregate

    def evaluate(self, node: Aggregate, rows: Bag) -> list[dict[ColumnId, Any]]:
        groups: dict[tuple[Any, ...], list[Row]] = {} if node.keys else {(): []}
        for row in rows:
            groups.setdefault(tuple(row[key] for key in node.keys), []).append(row)
        return [
            {
                **dict(zip(node.keys, key, strict=True)),
                **{call.output: _result(call, members) for call in node.calls},
            }
            for key, members in groups.items()
        ]

    def change(self, node: Aggregate, context: Differentiator) -> Change:
        if not node.is_mergeable or node.number not in context.states:
            if node.is_mergeable and node.keys:
                context.record(node, "it has no state: groups that changed are computed again")
            elif node.is_mergeable:
                context.record(node, "it has no state: computed over all rows and compared", RefreshMode.DIFF)
            return recompute_changed_groups(node, node.keys, context)
        child = context.change(node.child)
        assert child.plan is not None
        merge = _merged_groups(node, _partial(node, child.plan, context), context, child.insert_only)
        if merge is None:
            return NO_CHANGE
        merged, before = merge
        context.state_updates[node.number] = Select(columns=node.state_columns, child=merged)
        if node.keys:
            merged = ChangedGroups(columns=merged.columns, child=merged, aggregate=node, before=before)
        plan = Union(
            columns=zset_columns(node.columns),
            inputs=(_output_rows(node, merged, before, -1), _output_rows(node, merged, node.accumulators, 1)),
        )
        return Change(plan, insert_only=False, consolidated=bool(node.keys))

    def state_of(self, node: Aggregate, rows: Node, context: Differentiator) -> Node:
        return _state(node, rows, context)

    def rows_from_state(self, node: Aggregate, context: Differentiator, side: CutSide) -> Node:
        def output(child: Node) -> Node:
            return FinalAggregate(
                columns=node.columns, child=child, aggregate=node, sources=node.accumulators
            )

        stored: Node = StateScan(columns=node.state_columns, operator=node)
        if side is CutSide.BEFORE or not context.change(node):
            return output(stored)
        update = context.state_update(node.number)
        if not node.keys:
            return output(update)
        on = tuple((key, key) for key in node.keys)
        unchanged = KeySemiJoin(columns=stored.columns, child=stored, keys=update, on=on, anti=True)
        return Union(columns=node.columns, inputs=(output(unchanged), output(update)))

    def mode(self, node: Aggregate) -> tuple[RefreshMode, str]:
        if node.is_mergeable:
            reason = "merged into groups"
            if any(call.may_need_recompute for call in node.calls):
                reason += ", read again where a delete removes the value"
            return RefreshMode.INCREMENTAL, reason
        if not node.keys and (rows := few_rows_at_most(node.child)) is not None:
            few = counted(rows, "row")
            return RefreshMode.INCREMENTAL, f"{_first_not_mergeable(node)} over at most {few}"
        if not node.keys:
            return RefreshMode.DIFF, f"{_first_not_mergeable(node)} over all rows"
        return RefreshMode.INCREMENTAL, f"groups that changed, for {_first_not_mergeable(node)}"


def _state(node: Aggregate, rows: Node, context: Differentiator) -> Node:
    inserts = WithWeight(columns=zset_columns(rows.columns), child=rows)
    return Select(columns=node.state_columns, child=_partial(node, inserts, context))


# -- results of calls ------------------------------------------------------------------------------------


def _result(call: AggregateCall, rows: Sequence[Row]) -> Any:
    """The result of a call over the rows of a group."""
    rows = [row for row in rows if call.condition is None or call.condition.handle(row)]
    if call.function is AggregateFunction.OTHER:
        return call.handle(rows)
    if call.argument is None:
        return len(rows)
    values = [value for value in map(call.argument.handle, rows) if value is not None]
    match call.function:
        case AggregateFunction.COUNT:
            return len(values)
        case AggregateFunction.SUM:
            return sum(values) if values else None
        case AggregateFunction.AVERAGE:
            return sum(values) / len(values) if values else None
        case AggregateFunction.VARIANCE:
            return pvariance(values) if values else None
        case _:
            return reduce(MERGE_FUNCTIONS[call.function], values) if values else None


def _first_not_mergeable(node: Aggregate) -> str:
    return next(call.text or "an aggregate" for call in node.calls if not call.is_mergeable)


# -- plans -----------------------------------------------------------------------------------------------


def _partial(node: Aggregate, zset: Node, context: Differentiator) -> PartialAggregate:
    removed = tuple(context.engine.fresh() for _ in node.calls)
    return PartialAggregate(
        columns=(*node.state_columns, *removed), child=zset, aggregate=node, removed=removed
    )


def _merged_groups(
    node: Aggregate, partial_aggregate: PartialAggregate, context: Differentiator, insert_only: bool
) -> tuple[Node, tuple[ColumnId, ...]] | None:
    """The changed groups: a plan of their keys and accumulators before and after, and the columns of those
    before. None when no group changed."""
    engine = context.engine
    on = tuple((key, key) for key in node.keys)
    stored: Node = StateScan(columns=node.state_columns, operator=node)
    partial: PartialAggregate | Materialized = partial_aggregate
    if not context.strategy.reads_few_rows(stored, partial_aggregate):
        partial = engine.materialize(partial_aggregate)
        if partial.rows == 0:
            return None
    if on and isinstance(partial, Materialized):
        stored = KeySemiJoin(columns=stored.columns, child=stored, keys=partial, on=on)
    before = tuple(engine.fresh() for _ in node.accumulators)
    recompute = engine.fresh()
    columns = (*node.keys, *before, *node.accumulators)
    with_flag = (*columns, recompute)
    merged = engine.materialize(
        MergeGroups(
            columns=with_flag,
            stored=stored,
            partial=partial,
            partial_aggregate=partial_aggregate,
            aggregate=node,
            before=before,
            recompute=recompute,
        )
    )
    if merged.rows == 0:
        return None
    # Insert-only change: no extremum can be invalidated.
    if not any(call.may_overflow or (call.may_need_recompute and not insert_only) for call in node.calls):
        return merged, before
    insufficient = engine.materialize(FlagFilter(columns=with_flag, child=merged, flag=recompute))
    if insufficient.rows == 0:
        return merged, before
    sufficient = FlagFilter(columns=with_flag, child=merged, flag=recompute, value=False)
    kept = Select(columns=columns, child=sufficient)
    recomputed = _recomputed_groups(node, insufficient, before, context)
    return engine.materialize(Union(columns=columns, inputs=(kept, recomputed))), before


def _recomputed_groups(
    node: Aggregate, groups: Materialized, before: tuple[ColumnId, ...], context: Differentiator
) -> Node:
    """The given groups with their accumulators before, and those after read again from the child's rows."""
    overflows = any(call.may_overflow for call in node.calls)
    cause = "a delete removed their value" + (", or a sum overflowed" if overflows else "")
    context.record(node, f"groups read again: {cause}")
    rows = context.rows_after(node.child)
    on = tuple((key, key) for key in node.keys)
    if on:
        rows = context.strategy.with_keys(rows, groups, on)
    state = _state(node, rows, context)
    # Both sides of the join need disjoint columns.
    ids = tuple(context.engine.fresh() for _ in node.keys)
    after = Rename(columns=(*ids, *node.accumulators), child=state, sources=(*node.keys, *node.accumulators))
    left = Select(columns=(*node.keys, *before), child=groups)
    keys = tuple(
        JoinKey(left=key, right=new, null_safe=True) for key, new in zip(node.keys, ids, strict=True)
    )
    joined = Join(
        columns=(*left.columns, *after.columns), left=left, right=after, kind=JoinKind.LEFT, keys=keys
    )
    return Select(columns=(*node.keys, *before, *node.accumulators), child=joined)


def _output_rows(node: Aggregate, merged: Node, sources: tuple[ColumnId, ...], sign: int) -> WithWeight:
    output = FinalAggregate(columns=node.columns, child=merged, aggregate=node, sources=sources)
    return WithWeight(columns=zset_columns(node.columns), child=output, sign=sign)


# -- groups that are recomputed --------------------------------------------------------------------------


_FEW_ROWS = 10_000
"""So many rows are recomputed in about the time that one change takes anyway."""


def few_rows_at_most(node: Node) -> int | None:
    """The largest number of rows of a node, if its plan alone shows that they are few."""
    rows = node.max_rows(lambda _leaf: None)
    return rows if rows is not None and rows <= _FEW_ROWS else None


def recompute_changed_groups(node: Unary, keys: tuple[ColumnId, ...], context: Differentiator) -> Change:
    """The change of what depends on all rows of a group, such as medians, lists and ranks, by recomputing the
    groups with these key columns that changed.

        Δf(A) = f(A_after ⋉ K) - f(A_before ⋉ K), K the group keys in ΔA

    Without keys everything is recomputed, which is cheap where the child has few rows whatever its inputs
    hold, such as ORDER BY … LIMIT. `median(v) BY k`; A was `a 1`, `a 5`, `b 6`:

        ΔA         K     Δf(A)
        a 9 +1     a     a 3 -1
                         a 5 +1
    """
    # Without keys even a row that was deleted and inserted again would recompute everything.
    change = context.materialized_change(node.child, consolidated=not keys)
    if change.plan is None:
        return change
    columns = zset_columns(node.columns)
    sides: list[tuple[int, Callable[[Node], Node]]] = [
        (1, context.rows_after),
        (-1, context.rows_before),
    ]
    inputs: list[Node] = []
    for sign, rows_of in sides:
        rows = rows_of(node.child)
        if keys:
            rows = context.strategy.with_keys(rows, change.plan, [(key, key) for key in keys])
        inputs.append(WithWeight(columns=columns, child=node.over(rows), sign=sign))
    return Change(Union(columns=columns, inputs=tuple(inputs)), insert_only=False)
