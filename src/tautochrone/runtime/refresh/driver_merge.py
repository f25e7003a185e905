"""The last event of each key, found on the driver: no Spark job sorts the events by their keys.

Of few events, and of very many, only what orders them comes to Python: their rows stay in the JVM, or on the
executors. Events of which more must be known than their keys and their order (copied rows, truncates, values
that are left unchanged or that are invalid) are left to Spark, see `runtime.refresh.latest_events`: the
answer is the reason then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.execute.materialize import local_rows_at

__all__ = ["LastEvents", "LastRows", "is_deterministic", "last_events", "last_events_of_many", "last_rows"]

_RANK, _INDEX, _DELETES, _SPECIAL = "rank", "index", "deletes", "special"

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
    ranked = ranked.append_column(_RANK, pa.array(range(order.num_rows), pa.int64()))
    ranks = ranked.group_by(key_names).aggregate([(_RANK, "max")])[f"{_RANK}_max"]
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
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES.get(kind)


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
