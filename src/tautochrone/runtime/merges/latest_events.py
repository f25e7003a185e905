"""The last event of each key: what the rows of a table become when events are merged into it.

A copied row shows what the transactions wrote that its snapshot saw. Transactions that write one row follow
each other, and a snapshot sees the first ones of them, so

    row = the last event, if the snapshot of the key's copied row did not see its transaction;
          else the copied row

Neither clocks nor positions of the log decide: a transaction may be in the log before others can see it.

Where it can, the driver finds the last events, so that no Spark job sorts them by their keys. Of few events,
and of very many, only what orders them comes to Python: their rows stay in the JVM, or on the executors.
Spark merges events of which more must be known than their keys and their order (copied rows, truncates,
values that are left unchanged or that are invalid). The driver's functions then return the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.execute.materialize import local_rows_at
from tautochrone.spark.jvm.catalyst import decimal_digits

__all__ = [
    "EventSummary",
    "InvalidValues",
    "LastEvents",
    "LastRows",
    "has_invalid",
    "invalid_rows",
    "invalid_values",
    "is_deterministic",
    "last_events",
    "last_events_of_many",
    "last_rows",
    "latest_rows",
    "same_values",
    "snapshot_sees",
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


def same_values(left: str, right: str, names: Sequence[str]) -> Column:
    """Whether rows of two aliased frames have the same values in these columns. NULL equals NULL."""
    equal = (sf.col(f"{left}.{name}").eqNullSafe(sf.col(f"{right}.{name}")) for name in names)
    return reduce(Column.__and__, equal, sf.lit(True))


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
        snapshot_sees(of_key.getField("snapshot"), sf.col(quoted(apply.transaction))),
        # Of a change in a file nobody knows the transaction. Files are only written while no rows are copied,
        # and a copy begins when all statements see what the log has.
        sf.col(quoted(apply.sequence[0])) <= of_key.getField(apply.sequence[0]),
        sf.lit(False),
    )
    return sf.when(snapshot.isNotNull(), _COPIED).when(seen, _SEEN).otherwise(_NEW)


def snapshot_sees(snapshot: Column, transaction: Column) -> Column:
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
        seen = snapshot_sees(snapshot, sf.lit(last[apply.transaction]))
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


_ARROW_RANK, _INDEX, _DELETES, _SPECIAL = "rank", "index", "deletes", "special"

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int32(),
    "smallint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_AS_NUMBER = {"date": "unix_date", "timestamp": "unix_micros"}
"""Python's dates end in the year 9999, and its times have offsets."""
_NUMBERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class LastEvents:
    """What events do to a table.

    Attributes:
        rows: the rows that come, with all columns of the events.
        keys: an Arrow table of the keys that have events.
    """

    rows: DataFrame
    keys: Any


@dataclass(frozen=True, slots=True)
class LastRows:
    """The same, as Arrow tables of the rows that come, with the columns that were asked for, and the keys."""

    rows: Any
    keys: Any


def last_events(events: DataFrame, apply: KeyedApply) -> LastEvents | Reason:
    """Of events over a local relation; or why Spark must merge them."""
    kinds = dict(events.dtypes)
    types = _key_types(kinds, apply)
    if isinstance(types, Reason):
        return types
    width = len(apply.keys)
    rows = events.selectExpr(*_order_of(kinds, apply)).collect()
    last: dict[tuple[Any, ...], tuple[tuple[int, ...], int, bool]] = {}
    for index, row in enumerate(rows):
        *values, deletes, special = row
        if special is not None:
            return Reason.of(ReasonCode(special))
        if None in values[width:]:
            return _without_sequence(apply.sequence[values[width:].index(None)])
        key, sequence = tuple(values[:width]), tuple(values[width:])
        earlier = last.get(key)
        if earlier is None or earlier[0] <= sequence:
            last[key] = sequence, index, deletes
    remaining = sorted(index for _, index, deletes in last.values() if not deletes)
    columns = ([key[number] for key in last] for number in range(width))
    keys = _keys(columns, types, kinds, apply)
    return LastEvents(events if len(remaining) == len(rows) else local_rows_at(events, remaining), keys)


def last_rows(events: DataFrame, columns: Sequence[Column], apply: KeyedApply) -> LastRows | Reason:
    """The same for events that are not on the driver, which gets all of them as Arrow.

    Args:
        columns: of the events, those that the table has.
    """
    kinds = dict(events.dtypes)
    types = _types_of_many(events, kinds, apply)
    if isinstance(types, Reason):
        return types
    order = [sf.expr(expression) for expression in _order_of(kinds, apply)]
    named = [column.alias(f"c{number}") for number, column in enumerate((*columns, *order))]
    computed = events.select(*named).toArrow()
    width = len(columns)
    last = _last_of_keys(computed.select(range(width, computed.num_columns)), apply)
    if isinstance(last, Reason):
        return last
    rows = computed.select(range(width)).take(_remaining(last)[_INDEX])
    return LastRows(rows, _keys((last[name] for name in _key_names(apply)), types, kinds, apply))


def last_events_of_many(events: DataFrame, apply: KeyedApply) -> LastEvents | Reason:
    """The same for more events. They are computed twice, which takes less than to hold
    them: first only keys and sequences, then the rows that come."""
    kinds = dict(events.dtypes)
    types = _types_of_many(events, kinds, apply)
    if isinstance(types, Reason):
        return types
    order = events.selectExpr(*_order_of(kinds, apply)).toArrow()
    last = _last_of_keys(order, apply)
    if isinstance(last, Reason):
        return last
    keys = _keys((last[name] for name in _key_names(apply)), types, kinds, apply)
    remaining = _remaining(last)
    if remaining.num_rows == order.num_rows:
        return LastEvents(events, keys)
    chosen = remaining.select(_sequence_names(apply)).rename_columns([*apply.sequence])
    frame = events.sparkSession.createDataFrame(chosen)
    return LastEvents(events.join(sf.broadcast(frame), [*apply.sequence], "left_semi"), keys)


def _last_of_keys(order: Any, apply: KeyedApply) -> Any | Reason:
    """The last event of each key, with its index; or why Spark must find it.

    Args:
        order: an Arrow table of `_order_of` events.
    """
    key_names, names = _key_names(apply), _sequence_names(apply)
    order = order.rename_columns([*key_names, *names, _DELETES, _SPECIAL])
    special = pc.min(order[_SPECIAL]).as_py()
    if special is not None:
        return Reason.of(ReasonCode(special))
    for name, column in zip(names, apply.sequence, strict=True):
        if order[name].null_count:
            return _without_sequence(column)
    if order.group_by(names).aggregate([]).num_rows < order.num_rows:
        return Reason.of(ReasonCode.EVENTS_OF_EQUAL_SEQUENCE)
    indices = pc.sort_indices(order, sort_keys=[(name, "ascending") for name in names])
    ranked = order.select(key_names).take(indices)
    ranked = ranked.append_column(_ARROW_RANK, pa.array(range(order.num_rows), pa.int64()))
    ranks = ranked.group_by(key_names).aggregate([(_ARROW_RANK, "max")])[f"{_ARROW_RANK}_max"]
    last = indices.take(ranks)
    return order.take(last).append_column(_INDEX, last)


def _remaining(last: Any) -> Any:
    """Of the last events of keys those that do not delete, in the order that they came."""
    remaining = last.filter(pc.invert(last[_DELETES]))
    return remaining.sort_by(_INDEX)


def _key_names(apply: KeyedApply) -> list[str]:
    return [f"k{number}" for number in range(len(apply.keys))]


def _sequence_names(apply: KeyedApply) -> list[str]:
    return [f"s{number}" for number in range(len(apply.sequence))]


def _key_types(kinds: Mapping[str, str], apply: KeyedApply) -> Sequence[Any] | Reason:
    """Of the keys in Arrow; or why keys or sequences are compared otherwise than here."""
    types = [_arrow_type(kinds.get(key, "")) for key in apply.keys]
    others = [key for key, as_arrow in zip(apply.keys, types, strict=True) if as_arrow is None]
    others += [name for name in apply.sequence if kinds.get(name) not in _NUMBERS]
    if others:
        kind = kinds.get(others[0], "unknown")
        return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=others[0], type=kind)
    return types


def _types_of_many(events: DataFrame, kinds: Mapping[str, str], apply: KeyedApply) -> Sequence[Any] | Reason:
    """The same for events that are computed again, where rows of keys or rows that come are looked for."""
    if not is_deterministic(events):
        return Reason.of(ReasonCode.EVENTS_NOT_DETERMINISTIC)
    return _key_types(kinds, apply)


def is_deterministic(events: DataFrame) -> bool:
    """Whether the events are the same when they are computed again."""
    return bool(events._jdf.queryExecution().analyzed().deterministic())  # noqa: SLF001


def _without_sequence(column: str) -> Reason:
    return Reason.of(ReasonCode.EVENT_WITHOUT_SEQUENCE, column=column)


def _order_of(kinds: Mapping[str, str], apply: KeyedApply) -> Sequence[str]:
    """SQL: what must be known of each event."""
    return [
        *(_comparable(key, kinds[key]) for key in apply.keys),
        *map(quoted, apply.sequence),
        f"coalesce(({apply.delete or 'false'}), false)",
        _special(apply),
    ]


def _keys(columns: Iterable[Any], types: Sequence[Any], kinds: Mapping[str, str], apply: KeyedApply) -> Any:
    return pa.table(
        {
            name: _column(values, arrow_type, kinds[name])
            for name, values, arrow_type in zip(apply.keys, columns, types, strict=True)
        }
    )


def _arrow_type(kind: str) -> Any | None:
    digits = decimal_digits(kind)
    return _TYPES.get(kind) if digits is None else pa.decimal128(*digits)


def _comparable(name: str, kind: str) -> str:
    function = _AS_NUMBER.get(kind)
    return quoted(name) if function is None else f"{function}({quoted(name)})"


def _column(values: Any, arrow_type: Any, kind: str) -> Any:
    number = {"date": pa.int32(), "timestamp": pa.int64()}.get(kind, arrow_type)
    column = values.cast(number) if isinstance(values, pa.ChunkedArray) else pa.array(values, number)
    return column.cast(arrow_type)


def _special(apply: KeyedApply) -> str:
    """SQL: why more must be known of an event; NULL of most of them."""
    conditions = {ReasonCode.TABLE_TRUNCATED: apply.truncate}
    if apply.unchanged:
        conditions[ReasonCode.VALUES_LEFT_UNCHANGED] = f"size({quoted(apply.unchanged)}) > 0"
    if apply.invalid:
        conditions[ReasonCode.VALUES_INVALID] = f"size({quoted(apply.invalid)}) > 0"
    if apply.snapshot:
        conditions[ReasonCode.ROWS_COPIED] = f"{quoted(apply.snapshot)} IS NOT NULL"
    cases = [f"WHEN {condition} THEN '{code}'" for code, condition in conditions.items() if condition]
    return f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS STRING)"
