"""Aggregates, DISTINCT included (an aggregate without calls).

With a state of accumulators per group the change alone is summed up and added to it. What a change takes
out of MIN and MAX, of bits, or of an inexact sum, may not be known from the accumulators: those groups, and
only those, are looked up. Every group gives its old row with -1 and its new row with +1, so that aggregates
above, and joins above those, stay incremental.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from statistics import pvariance
from typing import Any

from tautochrone.algebra.delta import NOTHING, Bag, Change, Differentiator, Row, zset_columns
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
    Union,
    WithWeight,
)
from tautochrone.algebra.pushdown import push_down_keys
from tautochrone.algebra.rules.changed_groups import recompute_changed_groups
from tautochrone.model.refresh import RefreshMode

__all__ = ["AggregateRule", "aggregate_state"]


class AggregateRule:
    """See the module."""

    def evaluate(self, node: Aggregate, rows: Bag) -> list[dict[ColumnId, Any]]:
        groups: dict[tuple[Any, ...], list[Row]] = {} if node.keys else {(): []}
        for row in rows:
            groups.setdefault(tuple(row[key] for key in node.keys), []).append(row)
        return [
            {
                **dict(zip(node.keys, key, strict=True)),
                **{call.output: _value(call, members) for call in node.calls},
            }
            for key, members in groups.items()
        ]

    def change(self, node: Aggregate, at: Differentiator) -> Change:
        if not node.merges or node.number not in at.states:
            if node.merges and not node.keys:
                at.record(node, "it has no state: computed over all rows and compared", RefreshMode.DIFF)
            return recompute_changed_groups(node, node.keys, at)
        child = at.change(node.child)
        assert child.plan is not None
        found = _merged(node, _accumulate(node, child.plan, at), at, insert_only=child.insert_only)
        if found is None:
            return NOTHING
        merged, before = found
        at.state_updates[node.number] = Select(columns=node.state_columns, child=merged)
        if node.keys:
            merged = ChangedGroups(columns=merged.columns, child=merged, of=node, before=before)
        sides = _finished(node, merged, before, -1), _finished(node, merged, node.accumulators, 1)
        plan = Union(columns=zset_columns(node.columns), inputs=sides)
        return Change(plan, insert_only=False, consolidated=bool(node.keys))

    def mode(self, node: Aggregate) -> tuple[RefreshMode, str]:
        if node.merges:
            again = any(_looks_again(call) for call in node.calls)
            words = "merged into groups" + (
                ", looked up again where a value that counts goes" if again else ""
            )
            return RefreshMode.INCREMENTAL, words
        if not node.keys:
            return RefreshMode.DIFF, f"{_first_other(node)} over all rows"
        return RefreshMode.INCREMENTAL, f"groups that changed, for {_first_other(node)}"

    def rows_from_state(self, node: Aggregate, at: Differentiator, side: CutSide) -> Node:
        """The node's rows at a cut, from its state instead of its inputs."""
        stored: Node = StateScan(columns=node.state_columns, of=node)
        if side is CutSide.BEFORE or not at.change(node):
            return FinalAggregate(columns=node.columns, child=stored, of=node, sources=node.accumulators)
        update = at.state_update(node.number)
        newer = FinalAggregate(columns=node.columns, child=update, of=node, sources=node.accumulators)
        if not node.keys:
            return newer
        on = tuple((key, key) for key in node.keys)
        rest = KeySemiJoin(columns=stored.columns, child=stored, keys=update, on=on, absent=True)
        older = FinalAggregate(columns=node.columns, child=rest, of=node, sources=node.accumulators)
        return Union(columns=node.columns, inputs=(older, newer))


def aggregate_state(node: Aggregate, rows: Node, at: Differentiator) -> Node:
    """The whole state of a node over the rows of its child: what a first build stores."""
    weighed = WithWeight(columns=zset_columns(rows.columns), child=rows)
    return Select(columns=node.state_columns, child=_accumulate(node, weighed, at))


def _value(call: AggregateCall, rows: Sequence[Row]) -> Any:
    rows = [row for row in rows if call.condition is None or call.condition.handle(row)]
    if call.kind is AggregateFunction.OTHER:
        return call.handle(rows)
    if call.argument is None:
        return len(rows)
    values = [value for value in map(call.argument.handle, rows) if value is not None]
    match call.kind:
        case AggregateFunction.COUNT:
            return len(values)
        case AggregateFunction.SUM:
            return sum(values) if values else None
        case AggregateFunction.AVERAGE:
            return sum(values) / len(values) if values else None
        case AggregateFunction.VARIANCE:
            return pvariance(values) if values else None
        case _:
            return reduce(MERGE_FUNCTIONS[call.kind], values) if values else None


def _looks_again(call: AggregateCall) -> bool:
    return call.kind in MERGE_FUNCTIONS or not call.exact


def _first_other(node: Aggregate) -> str:
    return next(call.text or "an aggregate" for call in node.calls if not call.merges)


def _accumulate(node: Aggregate, rows: Node, at: Differentiator) -> PartialAggregate:
    gone = tuple(at.engine.fresh() for _ in node.calls)
    return PartialAggregate(columns=(*node.state_columns, *gone), child=rows, of=node, gone=gone)


def _merged(
    node: Aggregate, accumulate: PartialAggregate, at: Differentiator, *, insert_only: bool
) -> tuple[Node, tuple[ColumnId, ...]] | None:
    """Keys, accumulators before (second answer: their ids) and after, of each group in the change; None when
    it touches no group."""
    on = tuple((key, key) for key in node.keys)
    stored: Node = StateScan(columns=node.state_columns, of=node)
    added: PartialAggregate | Materialized = accumulate
    if not (at.engine.is_small(stored) and at.engine.is_small(accumulate)):
        added = at.engine.materialize(accumulate)
        if added.rows == 0:
            return None
    if on and isinstance(added, Materialized):
        stored = KeySemiJoin(columns=stored.columns, child=stored, keys=added, on=on)
    before = tuple(at.engine.fresh() for _ in node.accumulators)
    again = at.engine.fresh()
    columns = (*node.keys, *before, *node.accumulators, again)
    merged: Node = MergeGroups(
        columns=columns,
        stored=stored,
        added=added,
        accumulate=accumulate,
        of=node,
        before=before,
        again=again,
    )
    kept = at.engine.materialize(merged)
    if kept.rows == 0:
        return None
    # Where nothing goes, no value that counted goes.
    if insert_only or not any(_looks_again(call) for call in node.calls):
        return kept, before
    unknown = at.engine.materialize(FlagFilter(columns=columns, child=kept, flag=again))
    if unknown.rows == 0:
        return kept, before
    known = Select(
        columns=columns[:-1], child=FlagFilter(columns=columns, child=kept, flag=again, value=False)
    )
    found = _looked_up(node, unknown, before, at)
    return at.engine.materialize(Union(columns=columns[:-1], inputs=(known, found))), before


def _looked_up(
    node: Aggregate, unknown: Materialized, before: tuple[ColumnId, ...], at: Differentiator
) -> Node:
    """The same columns for groups that have to be read again from the new rows of the child."""
    at.record(node, "groups looked up again: a value that counted went")
    rows = at.rows_after(node.child)
    on = tuple((key, key) for key in node.keys)
    if on:
        rows = push_down_keys(KeySemiJoin(columns=rows.columns, child=rows, keys=unknown, on=on), at.engine)
    computed = aggregate_state(node, rows, at)
    ids = tuple(at.engine.fresh() for _ in node.keys)
    renamed = Rename(
        columns=(*ids, *node.accumulators), child=computed, sources=(*node.keys, *node.accumulators)
    )
    groups = Select(columns=(*node.keys, *before), child=unknown)
    joined = Join(
        columns=(*groups.columns, *renamed.columns),
        left=groups,
        right=renamed,
        kind=JoinKind.LEFT,
        keys=tuple(
            JoinKey(left=key, right=new, null_safe=True) for key, new in zip(node.keys, ids, strict=True)
        ),
    )
    return Select(columns=(*node.keys, *before, *node.accumulators), child=joined)


def _finished(node: Aggregate, merged: Node, sources: tuple[ColumnId, ...], sign: int) -> WithWeight:
    finish = FinalAggregate(columns=node.columns, child=merged, of=node, sources=sources)
    return WithWeight(columns=zset_columns(node.columns), child=finish, sign=sign)
