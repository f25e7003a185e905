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

from tautochrone.algebra.delta import NOTHING, Bag, Change, Differentiator, Row, signed
from tautochrone.algebra.plan import (
    COMBINED,
    Accumulate,
    Aggregate,
    Altered,
    Call,
    CallKind,
    ColumnId,
    Finish,
    Join,
    JoinKind,
    Kept,
    Key,
    Matching,
    MergeGroups,
    Moment,
    Node,
    Rename,
    Select,
    Stored,
    Union,
    Weigh,
    Where,
)
from tautochrone.algebra.pushdown import pushed
from tautochrone.algebra.rules.changed_groups import by_affected_groups
from tautochrone.model.refresh import RefreshMode

__all__ = ["AggregateRule", "state_of"]


class AggregateRule:
    """See the module."""

    def meaning(self, node: Aggregate, rows: Bag) -> list[dict[ColumnId, Any]]:
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
                at.note(node, "it has no state: computed over all rows and compared", RefreshMode.DIFF)
            return by_affected_groups(node, node.keys, at)
        child = at.change(node.child)
        assert child.plan is not None
        found = _merged(node, _accumulate(node, child.plan, at), at, grows=child.grows)
        if found is None:
            return NOTHING
        merged, before = found
        at.updates[node.number] = Select(columns=node.state_columns, child=merged)
        if node.keys:
            merged = Altered(columns=merged.columns, child=merged, of=node, before=before)
        sides = _finished(node, merged, before, -1), _finished(node, merged, node.accumulators, 1)
        plan = Union(columns=signed(node.columns), inputs=sides)
        return Change(plan, grows=False, net=bool(node.keys))

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

    def rows_from_state(self, node: Aggregate, at: Differentiator, moment: Moment) -> Node:
        """The node's rows at a cut, from its state instead of its inputs."""
        stored: Node = Stored(columns=node.state_columns, of=node)
        if moment is Moment.OLD or not at.change(node):
            return Finish(columns=node.columns, child=stored, of=node, sources=node.accumulators)
        update = at.update(node.number)
        newer = Finish(columns=node.columns, child=update, of=node, sources=node.accumulators)
        if not node.keys:
            return newer
        on = tuple((key, key) for key in node.keys)
        rest = Matching(columns=stored.columns, child=stored, keys=update, on=on, absent=True)
        older = Finish(columns=node.columns, child=rest, of=node, sources=node.accumulators)
        return Union(columns=node.columns, inputs=(older, newer))


def state_of(node: Aggregate, rows: Node, at: Differentiator) -> Node:
    """The whole state of a node over the rows of its child: what a first build stores."""
    weighed = Weigh(columns=signed(rows.columns), child=rows)
    return Select(columns=node.state_columns, child=_accumulate(node, weighed, at))


def _value(call: Call, rows: Sequence[Row]) -> Any:
    rows = [row for row in rows if call.condition is None or call.condition.handle(row)]
    if call.kind is CallKind.OTHER:
        return call.handle(rows)
    if call.argument is None:
        return len(rows)
    values = [value for value in map(call.argument.handle, rows) if value is not None]
    match call.kind:
        case CallKind.COUNT:
            return len(values)
        case CallKind.SUM:
            return sum(values) if values else None
        case CallKind.AVERAGE:
            return sum(values) / len(values) if values else None
        case CallKind.VARIANCE:
            return pvariance(values) if values else None
        case _:
            return reduce(COMBINED[call.kind], values) if values else None


def _looks_again(call: Call) -> bool:
    return call.kind in COMBINED or not call.exact


def _first_other(node: Aggregate) -> str:
    return next(call.text or "an aggregate" for call in node.calls if not call.merges)


def _accumulate(node: Aggregate, rows: Node, at: Differentiator) -> Accumulate:
    gone = tuple(at.engine.fresh() for _ in node.calls)
    return Accumulate(columns=(*node.state_columns, *gone), child=rows, of=node, gone=gone)


def _merged(
    node: Aggregate, accumulate: Accumulate, at: Differentiator, *, grows: bool
) -> tuple[Node, tuple[ColumnId, ...]] | None:
    """Keys, accumulators before (second answer: their ids) and after, of each group in the change; None when
    it touches no group."""
    on = tuple((key, key) for key in node.keys)
    stored: Node = Stored(columns=node.state_columns, of=node)
    added: Accumulate | Kept = accumulate
    if not (at.engine.few(stored) and at.engine.few(accumulate)):
        added = at.engine.keep(accumulate)
        if added.rows == 0:
            return None
    if on and isinstance(added, Kept):
        stored = Matching(columns=stored.columns, child=stored, keys=added, on=on)
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
    kept = at.engine.keep(merged)
    if kept.rows == 0:
        return None
    # Where nothing goes, no value that counted goes.
    if grows or not any(_looks_again(call) for call in node.calls):
        return kept, before
    unknown = at.engine.keep(Where(columns=columns, child=kept, flag=again))
    if unknown.rows == 0:
        return kept, before
    known = Select(columns=columns[:-1], child=Where(columns=columns, child=kept, flag=again, value=False))
    found = _looked_up(node, unknown, before, at)
    return at.engine.keep(Union(columns=columns[:-1], inputs=(known, found))), before


def _looked_up(node: Aggregate, unknown: Kept, before: tuple[ColumnId, ...], at: Differentiator) -> Node:
    """The same columns for groups that have to be read again from the new rows of the child."""
    at.note(node, "groups looked up again: a value that counted went")
    rows = at.new(node.child)
    on = tuple((key, key) for key in node.keys)
    if on:
        rows = pushed(Matching(columns=rows.columns, child=rows, keys=unknown, on=on), at.engine)
    computed = state_of(node, rows, at)
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
        keys=tuple(Key(left=key, right=new, null_safe=True) for key, new in zip(node.keys, ids, strict=True)),
    )
    return Select(columns=(*node.keys, *before, *node.accumulators), child=joined)


def _finished(node: Aggregate, merged: Node, sources: tuple[ColumnId, ...], sign: int) -> Weigh:
    finish = Finish(columns=node.columns, child=merged, of=node, sources=sources)
    return Weigh(columns=signed(node.columns), child=finish, sign=sign)
