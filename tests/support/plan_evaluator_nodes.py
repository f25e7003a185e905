"""The nodes that only rules build, evaluated in plain Python. See `plan_evaluator`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from tests.support.wellformed import MalformedPlanError

from tautochrone.algebra.delta import Bag
from tautochrone.algebra.nodes import (
    MERGE_FUNCTIONS,
    WEIGHT,
    AggregateCall,
    AggregateFunction,
    ChangedGroups,
    ColumnId,
    Consolidate,
    FinalAggregate,
    KeySemiJoin,
    MergeGroups,
    MergeTopK,
    MultiKeySemiJoin,
    OrderedFrom,
    PartialAggregate,
    PredicateChange,
)

__all__ = [
    "changed_groups",
    "comparable",
    "consolidate",
    "final_aggregate",
    "key_semi_join",
    "merge_groups",
    "merge_top_k",
    "multi_key_semi_join",
    "net_weights",
    "ordered_from",
    "partial_aggregate",
    "predicate_change",
    "row_counts",
]

OutputRow = dict[ColumnId, Any]

FLOAT_DIGITS = 9
"""Significant digits in which equal floats agree: the last bits of a sum depend on the order of its rows. 17
are all digits."""


# -- comparing rows --------------------------------------------------------------------------------------


def comparable(value: Any) -> Any:
    """A value in a form that compares as the engine's equality does: NaN equals NaN, -0.0 equals 0.0, and
    floats are rounded."""
    if isinstance(value, float):
        return "NaN" if value != value else float(f"{value:.{FLOAT_DIGITS}g}") + 0.0
    return tuple(comparable(item) for item in value) if isinstance(value, (tuple, list)) else value


def row_counts(rows: Bag, columns: Sequence[ColumnId]) -> Counter[tuple[Any, ...]]:
    """How often each row is in a bag."""
    return Counter(_key(row, columns) for row in rows)


def net_weights(rows: Bag, columns: Sequence[ColumnId]) -> Counter[tuple[Any, ...]]:
    """The sum of weights of each row of a Z-set; rows that cancel out are not in it."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sums[_key(row, columns)] += row[WEIGHT]
    return Counter({row: weight for row, weight in sums.items() if weight})


def _key(row: Mapping[ColumnId, Any], columns: Iterable[ColumnId]) -> tuple[Any, ...]:
    return tuple(comparable(row[column]) for column in columns)


# -- Z-sets and keys -------------------------------------------------------------------------------------


def consolidate(plan: Consolidate, rows: Bag) -> list[OutputRow]:
    """The net weight of each row, as that many rows of weight +1 or -1."""
    columns = [column for column in plan.columns if column != WEIGHT]
    originals = {_key(row, columns): row for row in rows}
    return [
        {**originals[key], WEIGHT: 1 if weight > 0 else -1}
        for key, weight in net_weights(rows, columns).items()
        for _ in range(abs(weight))
    ]


def key_semi_join(plan: KeySemiJoin, rows: Bag, keys: Bag) -> list[OutputRow]:
    """Rows whose key is among the keys, or is not."""
    key_set = {_key(key, (right for _, right in plan.on)) for key in keys}
    if not plan.null_safe:
        key_set = {key for key in key_set if None not in key}
    return [dict(row) for row in rows if (_key(row, (left for left, _ in plan.on)) in key_set) != plan.anti]


def multi_key_semi_join(plan: MultiKeySemiJoin, rows: Bag, *keys: Bag) -> list[OutputRow]:
    """Rows whose key is in any of the sets of keys."""
    selected: set[int] = set()
    for on, null_safe, bag in zip(plan.on, plan.null_safe, keys, strict=True):
        key_set = {_key(key, (right for _, right in on)) for key in bag}
        for number, row in enumerate(rows):
            key = _key(row, (left for left, _ in on))
            if key in key_set and (null_safe or None not in key):
                selected.add(number)
    return [dict(row) for number, row in enumerate(rows) if number in selected]


def ordered_from(plan: OrderedFrom, rows: Bag, bound: Bag) -> list[OutputRow]:
    """Rows from the bound on, or those before it."""
    (bound_row,) = bound
    first = plan.order({plan.key: bound_row[plan.bound_key]})
    return [dict(row) for row in rows if (plan.order(row) < first) is plan.before]


def predicate_change(plan: PredicateChange, rows: Bag, *scalars: Bag) -> list[OutputRow]:
    """+1 for rows for which the condition becomes true, -1 for those for which it ceases to be."""
    split = len(plan.before)
    before = _scalar_values(plan.before, scalars[:split])
    after = _scalar_values(plan.after, scalars[split:])
    changes = []
    for row in rows:
        was_true = plan.condition.handle({**row, **before}) is True
        is_true = plan.condition.handle({**row, **after}) is True
        if was_true is not is_true:
            changes.append({**row, WEIGHT: 1 if is_true else -1})
    return changes


def _scalar_values(nodes: Sequence[Any], bags: Sequence[Bag]) -> OutputRow:
    values: OutputRow = {}
    for node, bag in zip(nodes, bags, strict=True):
        values.update(bag[0] if bag else dict.fromkeys(node.columns))
    return values


# -- aggregates ------------------------------------------------------------------------------------------


def partial_aggregate(plan: PartialAggregate, rows: Bag) -> list[OutputRow]:
    """What a Z-set adds to each of its groups. Without rows there is no group."""
    aggregate = plan.aggregate
    groups: dict[tuple[Any, ...], list[Mapping[ColumnId, Any]]] = defaultdict(list)
    for row in rows:
        groups[_key(row, aggregate.keys)].append(row)
    output = []
    for group in groups.values():
        inserted, deleted = ([row for row in group if row[WEIGHT] == sign] for sign in (1, -1))
        row = {key: group[0][key] for key in aggregate.keys}
        row |= {aggregate.count: len(inserted) - len(deleted)}
        for call, removed in zip(aggregate.calls, plan.removed, strict=True):
            row |= _partial(call, removed, _values(call, inserted), _values(call, deleted))
        output.append(row)
    return output


def _values(call: AggregateCall, rows: Iterable[Mapping[ColumnId, Any]]) -> list[Any]:
    """What a call aggregates: one value per row that its FILTER accepts, without NULLs."""
    accepted = [row for row in rows if call.condition is None or call.condition.handle(row) is True]
    if call.argument is None:
        return [1] * len(accepted)
    return [value for row in accepted if (value := call.argument.handle(row)) is not None]


def _partial(call: AggregateCall, removed: ColumnId, inserted: list[Any], deleted: list[Any]) -> OutputRow:
    """A call's accumulators of the change, and its column of `removed`."""
    if call.function is AggregateFunction.COUNT:
        return {call.accumulators[0]: len(inserted) - len(deleted), removed: None}
    if call.function in MERGE_FUNCTIONS:
        return {call.accumulators[0]: _merged_value(call, inserted), removed: _merged_value(call, deleted)}
    if call.function is AggregateFunction.VARIANCE:
        sums = [sum(v**power for v in inserted) - sum(v**power for v in deleted) for power in (1, 2, 0)]
        return {**dict(zip(call.accumulators, sums, strict=True)), removed: None}
    sum_column, count_column = call.accumulators
    # Nothing is subtracted from an inexact sum: a group that loses a value is recomputed.
    change = _sum([*inserted, *(-value for value in deleted)]) if call.exact else _sum(inserted)
    return {
        sum_column: change,
        count_column: len(inserted) - len(deleted),
        removed: None if call.exact else len(deleted),
    }


def merge_groups(plan: MergeGroups, stored: Bag, partial: Bag) -> list[OutputRow]:
    """Each changed group before and after. A group without rows has no values."""
    aggregate = plan.aggregate
    by_key = {_key(row, aggregate.keys): row for row in stored}
    if len(by_key) != len(stored):
        raise MalformedPlanError("the state has several rows for one group")
    output = []
    for change in partial:
        before = by_key.get(_key(change, aggregate.keys), dict.fromkeys(aggregate.accumulators))
        row = {key: change[key] for key in aggregate.keys}
        row |= {
            name: before[column] for name, column in zip(plan.before, aggregate.accumulators, strict=True)
        }
        row[aggregate.count] = (before[aggregate.count] or 0) + change[aggregate.count]
        if row[aggregate.count] < 0:
            raise MalformedPlanError("a group has a negative number of rows")
        recompute = False
        for call, removed in zip(aggregate.calls, plan.partial_aggregate.removed, strict=True):
            values, is_unknown = _merged(call, before, change, change[removed])
            if not row[aggregate.count] and call.function in MERGE_FUNCTIONS:
                values = dict.fromkeys(values)
            row |= values
            recompute |= is_unknown
        # A group without rows has nothing to be read again.
        output.append({**row, plan.recompute: recompute and row[aggregate.count] > 0})
    return output


def _merged(
    call: AggregateCall, before: Mapping[ColumnId, Any], change: Mapping[ColumnId, Any], removed: Any
) -> tuple[OutputRow, bool]:
    """A call's accumulators after the change, and whether they are unknown."""
    if call.function is AggregateFunction.COUNT:
        (column,) = call.accumulators
        return {column: (before[column] or 0) + change[column]}, False
    if call.function in MERGE_FUNCTIONS:
        (column,) = call.accumulators
        value = _merged_value(call, [before[column], change[column]])
        if removed is None or call.function not in (AggregateFunction.MIN, AggregateFunction.MAX):
            return {column: value}, removed is not None
        # The extremum is certain only when it is better than the best deleted value: an equal one may have
        # been the deleted row itself.
        is_unknown = comparable(_merged_value(call, [value, removed])) == comparable(removed)
        return {column: value}, is_unknown
    if call.function is AggregateFunction.VARIANCE:
        return {column: (before[column] or 0) + change[column] for column in call.accumulators}, False
    sum_column, count_column = call.accumulators
    count = (before[count_column] or 0) + change[count_column]
    sums = [value for value in (before[sum_column], change[sum_column]) if value is not None]
    is_unknown = not call.exact and bool(removed)
    return {sum_column: _sum(sums) if count else None, count_column: count}, is_unknown


def final_aggregate(plan: FinalAggregate, rows: Bag) -> list[OutputRow]:
    """Output rows of the aggregate from rows with accumulators."""
    aggregate = plan.aggregate
    if not aggregate.keys and not rows:
        rows = [dict.fromkeys(plan.child.columns)]
    output = []
    for row in rows:
        state = {c: row[source] for c, source in zip(aggregate.accumulators, plan.sources, strict=True)}
        if aggregate.keys and not state[aggregate.count]:
            continue
        results = {
            call.output: _result(call, [state[c] for c in call.accumulators]) for call in aggregate.calls
        }
        output.append({**{key: row[key] for key in aggregate.keys}, **results})
    return output


def _result(call: AggregateCall, accumulators: Sequence[Any]) -> Any:
    match call.function:
        case AggregateFunction.COUNT:
            return accumulators[0] or 0
        case AggregateFunction.SUM:
            total, count = accumulators
            return total if count else None
        case AggregateFunction.AVERAGE:
            total, count = accumulators
            return total / count if count else None
        case AggregateFunction.VARIANCE:
            total, squares, count = accumulators
            return (squares - total * total / count) / count if count else None
        case _:
            return accumulators[0]


def changed_groups(plan: ChangedGroups, rows: Bag) -> list[OutputRow]:
    """Groups whose output row before differs from the one after."""
    aggregate = plan.aggregate
    before, after = (
        FinalAggregate(columns=aggregate.columns, child=plan.child, aggregate=aggregate, sources=sources)
        for sources in (plan.before, aggregate.accumulators)
    )

    def output(final: FinalAggregate, row: Mapping[ColumnId, Any]) -> Counter[tuple[Any, ...]]:
        return row_counts(final_aggregate(final, [row]), aggregate.columns)

    return [dict(row) for row in rows if output(before, row) != output(after, row)]


def _merged_value(call: AggregateCall, values: Iterable[Any]) -> Any:
    not_null = [value for value in values if value is not None]
    return reduce(MERGE_FUNCTIONS[call.function], not_null) if not_null else None


def _sum(values: Sequence[Any]) -> Any:
    return sum(values[1:], start=values[0]) if values else None


# -- top k -----------------------------------------------------------------------------------------------


def merge_top_k(plan: MergeTopK, stored: Bag, change: Bag) -> list[OutputRow]:
    """The buffer with the change merged into it. Its rows are always the first of all rows, whether it is
    complete or not."""
    top_k = plan.top_k
    is_complete = all(row[top_k.complete] for row in stored)
    last = max((top_k.order(row) for row in stored), default=None)
    rows = {_key(row, top_k.columns): row for row in (*stored, *change)}
    counts = row_counts(stored, top_k.columns)
    for key, weight in net_weights(change, top_k.columns).items():
        order = top_k.order(rows[key])
        if not is_complete and order > last:
            continue
        counts[key] += weight
        if counts[key] < 0:
            # Only of the last buffered row there may be more copies behind the buffer.
            if is_complete or order != last:
                raise MalformedPlanError("a row was deleted that was not there")
            counts[key] = 0
    merged = sorted((rows[key] for key in counts.elements()), key=top_k.order)
    is_complete = is_complete and len(merged) <= top_k.buffer
    return [
        {**{column: row[column] for column in top_k.columns}, top_k.complete: is_complete}
        for row in merged[: top_k.buffer]
    ]
