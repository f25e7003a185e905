"""The last event of each key: what the rows of a table become when a database's events are merged into it.

A copied row shows what the transactions wrote that its snapshot saw. Transactions that write one row follow
each other, and a snapshot sees the first ones of them, so

    row = the last event, if the snapshot of the key's copied row did not see its transaction;
          else the copied row

Neither clocks nor positions of the log decide: a transaction may be in the log before others can see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.names import quoted

__all__ = [
    "EventSummary",
    "InvalidValues",
    "has_invalid",
    "invalid_rows",
    "invalid_values",
    "latest_rows",
    "sees",
    "summarize",
    "without_ignored",
]

_ORDER = "__taut_order"
_RANK = "__taut_rank"
_STORED, _SEEN, _COPIED, _NEW = -1, 0, 1, 2
"""The order of a key's rows: the stored one, events that the copied row's snapshot saw, the copied row, all
others."""


@dataclass(frozen=True, slots=True)
class EventSummary:
    """What must be known of all events before they are merged.

    Attributes:
        last_truncate: the sequence of the last event that removes all rows, and its transaction; None
            without one.
        leaves_unchanged: some event does not have all values of its row.
        has_invalid: some event has a value that the type of its column does not have.
        has_copies: some event may be a copied row.
    """

    count: int
    last_truncate: Any | None
    leaves_unchanged: bool
    has_invalid: bool = False
    has_copies: bool = True


@dataclass(frozen=True, slots=True)
class InvalidValues:
    """Values that the types of their columns do not have: how many rows have one, and an example."""

    rows: int
    example: str


def summarize(events: DataFrame, apply: KeyedApply, local_count: int | None = None) -> EventSummary:
    """One pass over the events; none where nothing depends on it.

    Args:
        local_count: how many they are, if they are on the driver. There no Spark job is needed to see that
            no event is a special one.
    """
    if apply.truncate is None and apply.unchanged is None and apply.invalid is None:
        return EventSummary(1, None, False)
    columns = [*apply.sequence, *([apply.transaction] if apply.transaction else [])]
    order = sf.struct(*[sf.col(quoted(name)) for name in columns])
    truncates = sf.expr(apply.truncate or "false")
    unchanged = sf.size(sf.col(quoted(apply.unchanged))) > 0 if apply.unchanged else sf.lit(False)
    copied = sf.lit(False) if apply.snapshot is None else sf.col(quoted(apply.snapshot)).isNotNull()
    if local_count is not None:
        special = truncates | unchanged | has_invalid(apply) | copied
        if not events.where(special).take(1):
            return EventSummary(local_count, None, False, has_copies=False)
    summary = events.agg(
        sf.count(sf.lit(1)).alias("count"),
        sf.max(sf.when(truncates, order)).alias("last_truncate"),
        sf.coalesce(sf.bool_or(unchanged), sf.lit(False)).alias("leaves_unchanged"),
        sf.coalesce(sf.bool_or(has_invalid(apply)), sf.lit(False)).alias("has_invalid"),
        sf.coalesce(sf.bool_or(copied), sf.lit(False)).alias("has_copies"),
    ).first()
    assert summary is not None
    return EventSummary(**summary.asDict(recursive=False))


def latest_rows(
    events: DataFrame,
    apply: KeyedApply,
    summary: EventSummary,
    stored_rows: Callable[[DataFrame], DataFrame] | None,
) -> DataFrame:
    """The rows that the keys of the events have afterwards.

    Args:
        stored_rows: the table's rows for the keys of events, with the table's columns; None: it has none.
    """
    return _last_events(events, apply, summary, stored_rows).drop(*apply.dropped)


def without_ignored(events: DataFrame, apply: KeyedApply) -> DataFrame:
    """Without the columns that the table does not take, and what is invalid in them."""
    if not apply.ignored:
        return events
    taken = events.drop(*apply.ignored)
    if apply.invalid is None:
        return taken
    starts = [sf.lit(f"{name} = ") for name in apply.ignored]
    counts = sf.filter(
        sf.col(quoted(apply.invalid)),
        lambda text: ~reduce(or_, (text.startswith(start) for start in starts)),
    )
    return taken.withColumn(apply.invalid, counts)


def invalid_values(events: DataFrame, apply: KeyedApply, summary: EventSummary) -> InvalidValues | None:
    """The rows that the events make and that have values which the types of their columns do not have. An
    event that a later one replaced does not count, unless values of it may be left unchanged."""
    if not summary.has_invalid or apply.invalid is None:
        return None
    counted = _after_truncate(events, apply, summary)
    if not summary.leaves_unchanged:
        counted = _last_events(events, apply, summary, None)
    return invalid_rows(counted.where(has_invalid(apply)), apply, sf.count(sf.lit(1)))


def invalid_rows(rows: DataFrame, apply: KeyedApply, count: Column) -> InvalidValues | None:
    """Of rows that have invalid values; None: there is no such row."""
    example = sf.min(sf.get(sf.col(quoted(apply.invalid or "")), sf.lit(0)))
    invalid = rows.agg(count, example).first()
    return InvalidValues(*invalid) if invalid and invalid[0] else None


def has_invalid(apply: KeyedApply) -> Column:
    """Whether an event has a value that the type of its column does not have."""
    return sf.lit(False) if apply.invalid is None else sf.size(sf.col(quoted(apply.invalid))) > 0


def _last_events(
    events: DataFrame,
    apply: KeyedApply,
    summary: EventSummary,
    stored_rows: Callable[[DataFrame], DataFrame] | None,
) -> DataFrame:
    """The last event of each key, unless it deletes."""
    keys = [sf.col(quoted(name)) for name in apply.keys]
    events = _after_truncate(events, apply, summary)
    ordered = events.withColumn(_ORDER, _order(apply) if summary.has_copies else sf.lit(_NEW))
    if summary.leaves_unchanged:
        ordered = _with_unchanged_values(events, ordered, apply, stored_rows)
    newest = Window.partitionBy(*keys).orderBy(
        sf.col(_ORDER).desc(), *[sf.col(quoted(name)).desc_nulls_last() for name in apply.sequence]
    )
    last = ordered.withColumn(_RANK, sf.row_number().over(newest)).where(f"{_RANK} = 1")
    # A condition that is NULL does not delete.
    deletes = sf.coalesce(sf.expr(apply.delete or "false"), sf.lit(False))
    return last.where(~deletes).drop(_ORDER, _RANK)


def _order(apply: KeyedApply) -> Column:
    if apply.snapshot is None or apply.transaction is None:
        return sf.lit(_NEW)
    snapshot = sf.col(quoted(apply.snapshot))
    # A key may have been copied several times: the newest copy counts.
    copied = sf.struct(*(sf.col(quoted(name)) for name in apply.sequence), snapshot.alias("snapshot"))
    newest = sf.max(sf.when(snapshot.isNotNull(), copied))
    keys = [sf.col(quoted(name)) for name in apply.keys]
    of_key = newest.over(Window.partitionBy(*keys))
    seen = sf.coalesce(
        sees(of_key.getField("snapshot"), sf.col(quoted(apply.transaction))),
        # Of a change in a file nobody knows the transaction. Files are only written while no rows are copied,
        # and a copy begins when all statements see what the log has.
        sf.col(quoted(apply.sequence[0])) <= of_key.getField(apply.sequence[0]),
        sf.lit(False),
    )
    return sf.when(snapshot.isNotNull(), _COPIED).when(seen, _SEEN).otherwise(_NEW)


def sees(snapshot: Column, transaction: Column) -> Column:
    """Whether a snapshot sees a transaction that was committed. Its text is that of PostgreSQL's
    `pg_snapshot`: `xmin:xmax:` and the numbers between them that had not ended."""
    parts = sf.split(snapshot, ":")
    lowest, end, running = (sf.get(parts, sf.lit(number)) for number in range(3))
    is_running = sf.array_contains(sf.split(running, ","), transaction.cast("string"))
    return (transaction < lowest.cast("long")) | ((transaction < end.cast("long")) & ~is_running)


def _after_truncate(events: DataFrame, apply: KeyedApply, summary: EventSummary) -> DataFrame:
    """Without the events that the last truncate undid, and without the truncates. A copied row counts if its
    snapshot saw the truncate."""
    if apply.truncate is None:
        return events
    events = events.where(~sf.coalesce(sf.expr(apply.truncate), sf.lit(False)))
    last = summary.last_truncate
    if last is None:
        return events
    sequence = sf.struct(*[sf.col(quoted(name)) for name in apply.sequence])
    counts = sequence > sf.struct(*[sf.lit(last[name]).alias(name) for name in apply.sequence])
    if apply.snapshot is not None and apply.transaction is not None:
        snapshot = sf.col(quoted(apply.snapshot))
        seen = sees(snapshot, sf.lit(last[apply.transaction]))
        counts = sf.when(snapshot.isNull(), counts).otherwise(seen)
    return events.where(counts)


def _with_unchanged_values(
    events: DataFrame,
    ordered: DataFrame,
    apply: KeyedApply,
    stored_rows: Callable[[DataFrame], DataFrame] | None,
) -> DataFrame:
    """Values that an event does not have are those of its row before: of an earlier event, or stored."""
    assert apply.unchanged is not None
    if stored_rows is not None:
        stored = stored_rows(events).withColumn(_ORDER, sf.lit(_STORED))
        ordered = ordered.unionByName(stored, allowMissingColumns=True)
    keys = [sf.col(quoted(name)) for name in apply.keys]
    earlier = (
        Window.partitionBy(*keys)
        .orderBy(_ORDER, *[sf.col(quoted(name)) for name in apply.sequence])
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    unchanged = sf.coalesce(sf.col(quoted(apply.unchanged)), sf.array().cast("array<string>"))
    left_out = {*apply.keys, *apply.dropped, apply.unchanged, *apply.sequence, _ORDER}
    values = {}
    for name in ordered.columns:
        if name not in left_out:
            has_value = ~sf.array_contains(unchanged, name)
            last = sf.last(sf.when(has_value, sf.struct(sf.col(quoted(name)))), ignorenulls=True).over(
                earlier
            )
            values[name] = last.getField(name)
    return ordered.withColumns(values)
