"""What the nodes mean that only rules build, in plain Python. See `bags`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

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
    PartialAggregate,
    PredicateChange,
)
from tautochrone.testing.wellformed import MalformedPlanError

__all__ = [
    "accumulate",
    "altered",
    "consolidate",
    "counted",
    "finish",
    "flip",
    "matching",
    "merge_groups",
    "merge_top",
    "same",
    "total",
    "touched",
]

Dict = dict[ColumnId, Any]

DIGITS = 9
"""Significant digits in which floats are the same value: sums depend on the order of rows. 17 are all."""


def same(value: Any) -> Any:
    """A value as what it is compared by: NaN is one value, as is zero, and floats have a tolerance."""
    if isinstance(value, float):
        return "NaN" if value != value else float(f"{value:.{DIGITS}g}") + 0.0
    return tuple(same(each) for each in value) if isinstance(value, (tuple, list)) else value


def counted(rows: Bag, columns: Sequence[ColumnId]) -> Counter[tuple[Any, ...]]:
    """A bag as counts of tuples, which compare."""
    return Counter(tuple(same(row[column]) for column in columns) for row in rows)


def total(rows: Bag, columns: Sequence[ColumnId]) -> Counter[tuple[Any, ...]]:
    """A signed bag as sums of weights per row; rows that cancel out are not in it."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sums[tuple(same(row[column]) for column in columns)] += row[WEIGHT]
    return Counter({row: weight for row, weight in sums.items() if weight})


def consolidate(plan: Consolidate, rows: Bag) -> list[Dict]:
    """Sums of weights per row, as rows of weight +1 or -1."""
    one = {tuple(same(row[c]) for c in plan.columns if c != WEIGHT): row for row in rows}
    sums = total(rows, [column for column in plan.columns if column != WEIGHT])
    return [
        {**one[key], WEIGHT: 1 if weight > 0 else -1}
        for key, weight in sums.items()
        for _ in range(abs(weight))
    ]


def matching(plan: KeySemiJoin, rows: Bag, keys: Bag) -> list[Dict]:
    """Rows whose key is among the keys, or is not."""
    there = {tuple(same(key[right]) for _, right in plan.on) for key in keys}
    if not plan.null_safe:
        there = {key for key in there if None not in key}
    found = []
    for row in rows:
        key = tuple(same(row[left]) for left, _ in plan.on)
        if (key in there) != plan.absent:
            found.append(dict(row))
    return found


def touched(plan: MultiKeySemiJoin, rows: Bag, *keys: Bag) -> list[Dict]:
    """Rows whose key is among any of the keys."""
    there = [
        {tuple(same(key[right]) for _, right in on) for key in each}
        for on, each in zip(plan.on, keys, strict=True)
    ]
    return [
        dict(row)
        for row in rows
        if any(
            (key := tuple(same(row[left]) for left, _ in on)) in known and (null_safe or None not in key)
            for on, known, null_safe in zip(plan.on, there, plan.null_safe, strict=True)
        )
    ]


def _values(call: AggregateCall, rows: Iterable[Mapping[ColumnId, Any]]) -> list[Any]:
    """What a call aggregates: one value per row that its FILTER lets through, NULLs left out."""
    chosen = [row for row in rows if call.condition is None or call.condition.handle(row) is True]
    if call.argument is None:
        return [1] * len(chosen)
    return [value for row in chosen if (value := call.argument.handle(row)) is not None]


def _combined(call: AggregateCall, values: Iterable[Any]) -> Any:
    there = [value for value in values if value is not None]
    return reduce(MERGE_FUNCTIONS[call.kind], there) if there else None


def _sum(values: Sequence[Any]) -> Any:
    return sum(values[1:], start=values[0]) if values else None


def accumulate(plan: PartialAggregate, rows: Bag) -> list[Dict]:
    """What a signed bag adds to each group that it touches; nothing where there are no rows."""
    groups: dict[tuple[Any, ...], list[Mapping[ColumnId, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(same(row[key]) for key in plan.of.keys)].append(row)
    found = []
    for group in groups.values():
        plus, minus = ([row for row in group if row[WEIGHT] == sign] for sign in (1, -1))
        row = {key: group[0][key] for key in plan.of.keys}
        row |= {plan.of.count: len(plus) - len(minus)}
        for call, gone in zip(plan.of.calls, plan.gone, strict=True):
            row |= _added(call, gone, _values(call, plus), _values(call, minus))
        found.append(row)
    return found


def _added(call: AggregateCall, gone: ColumnId, plus: list[Any], minus: list[Any]) -> Dict:
    if call.kind is AggregateFunction.COUNT:
        return {call.accumulators[0]: len(plus) - len(minus), gone: None}
    if call.kind in MERGE_FUNCTIONS:
        return {call.accumulators[0]: _combined(call, plus), gone: _combined(call, minus)}
    if call.kind is AggregateFunction.VARIANCE:
        powers = [sum(v**p for v in plus) - sum(v**p for v in minus) for p in (1, 2, 0)]
        return {**dict(zip(call.accumulators, powers, strict=True)), gone: None}
    summed, count = call.accumulators
    # What leaves an inexact sum is never subtracted: such a group is looked up again.
    change = _sum([*plus, *(-value for value in minus)]) if call.exact else _sum(plus)
    return {summed: change, count: len(plus) - len(minus), gone: None if call.exact else len(minus)}


def merge_groups(plan: MergeGroups, stored: Bag, added: Bag) -> list[Dict]:
    """Each touched group before and after. One whose count comes to 0 forgets all: it may come back."""
    of, columns = plan.of, plan.accumulate
    before = {tuple(same(row[key]) for key in of.keys): row for row in stored}
    if len(before) != len(stored):
        raise MalformedPlanError("the state has several rows for one group")
    found = []
    for more in added:
        have = before.get(tuple(same(more[key]) for key in of.keys), dict.fromkeys(of.accumulators))
        row = {key: more[key] for key in of.keys}
        row |= {name: have[column] for name, column in zip(plan.before, of.accumulators, strict=True)}
        row[of.count] = (have[of.count] or 0) + more[of.count]
        if row[of.count] < 0:
            raise MalformedPlanError("a group has fewer rows than none")
        again = False
        for call, gone in zip(of.calls, columns.gone, strict=True):
            values, unknown = _merged(call, have, more, more[gone])
            if not row[of.count] and call.kind in MERGE_FUNCTIONS:
                values = dict.fromkeys(values)  # nothing is left to be looked up in a group without rows
            row |= values
            again |= unknown
        found.append({**row, plan.again: again and row[of.count] > 0})
    return found


def _merged(
    call: AggregateCall, have: Mapping[ColumnId, Any], more: Mapping[ColumnId, Any], gone: Any
) -> tuple[Dict, bool]:
    """A call's accumulators after the change, and whether they are unknown."""
    if call.kind is AggregateFunction.COUNT:
        (column,) = call.accumulators
        return {column: (have[column] or 0) + more[column]}, False
    if call.kind in MERGE_FUNCTIONS:
        (column,) = call.accumulators
        value = _combined(call, [have[column], more[column]])
        if gone is None or call.kind not in (AggregateFunction.MIN, AggregateFunction.MAX):
            return {column: value}, gone is not None
        # Other rows may have the value that went, or not: it is known only that a better one stayed.
        return {column: value}, same(_combined(call, [value, gone])) == same(gone)
    if call.kind is AggregateFunction.VARIANCE:
        return {column: (have[column] or 0) + more[column] for column in call.accumulators}, False
    summed, count = call.accumulators
    number = (have[count] or 0) + more[count]
    values = [value for value in (have[summed], more[summed]) if value is not None]
    return {summed: _sum(values) if number else None, count: number}, not call.exact and bool(gone)


def finish(plan: FinalAggregate, rows: Bag) -> list[Dict]:
    """Rows of the aggregate from rows of its state."""
    of = plan.of
    if not of.keys and not rows:
        rows = [dict.fromkeys(plan.child.columns)]  # without keys there is always one group
    found = []
    for row in rows:
        value = {column: row[source] for column, source in zip(of.accumulators, plan.sources, strict=True)}
        if of.keys and not value[of.count]:
            continue
        result = {key: row[key] for key in of.keys}
        for call in of.calls:
            first = value[call.accumulators[0]]
            if call.kind is AggregateFunction.COUNT:
                first = first or 0
            elif call.kind is AggregateFunction.VARIANCE:
                first, squares, count = (value[column] for column in call.accumulators)
                first = (squares - first * first / count) / count if count else None
            elif call.kind in (AggregateFunction.SUM, AggregateFunction.AVERAGE):
                count = value[call.accumulators[1]]
                first = None if not count else first if call.kind is AggregateFunction.SUM else first / count
            result[call.output] = first
        found.append(result)
    return found


def altered(plan: ChangedGroups, rows: Bag) -> list[Dict]:
    """Groups whose row before is not the one after."""
    of = plan.of
    before, after = (
        FinalAggregate(columns=of.columns, child=plan.child, of=of, sources=sources)
        for sources in (plan.before, of.accumulators)
    )
    return [
        dict(row)
        for row in rows
        if counted(finish(before, [row]), of.columns) != counted(finish(after, [row]), of.columns)
    ]


def flip(plan: PredicateChange, rows: Bag, *scalars: Bag) -> list[Dict]:
    """+1 for rows for which the condition turns true, -1 where it ceases to be."""
    sides = scalars[: len(plan.before)], scalars[len(plan.before) :]
    nodes = plan.before, plan.after
    values: list[Dict] = [{}, {}]
    for side, several, bags in zip(values, nodes, sides, strict=True):
        for scalar, bag in zip(several, bags, strict=True):
            side.update(bag[0] if bag else dict.fromkeys(scalar.columns))
    found = []
    for row in rows:
        before, after = (plan.condition.handle({**row, **side}) is True for side in values)
        if before is not after:
            found.append({**row, WEIGHT: 1 if after else -1})
    return found


def merge_top(plan: MergeTopK, stored: Bag, change: Bag) -> list[Dict]:
    """Kept rows are always the first of all, in the order, `complete` or not."""
    of = plan.of
    complete = all(row[of.complete] for row in stored)
    last = max((of.order(row) for row in stored), default=None)
    rows = {tuple(same(row[column]) for column in of.columns): row for row in (*stored, *change)}
    counts = counted(stored, of.columns)
    for key, weight in total(change, of.columns).items():
        place = of.order(rows[key])
        if not complete and place > last:
            continue
        counts[key] += weight
        if counts[key] < 0:
            # More copies of the last kept row may lie behind it.
            if complete or place != last:
                raise MalformedPlanError("a row was taken out that was not there")
            counts[key] = 0
    merged = sorted((rows[key] for key in counts.elements()), key=of.order)
    complete = complete and len(merged) <= of.buffer
    return [
        {**{column: row[column] for column in of.columns}, of.complete: complete}
        for row in merged[: of.buffer]
    ]
