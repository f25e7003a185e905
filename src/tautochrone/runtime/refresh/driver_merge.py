"""The last event of each key, found on the driver: no Spark job sorts the events by their keys.

Only what orders the events comes to Python; their rows stay where they are: few ones in the JVM, more on the
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
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tautochrone.model.keyed_apply import KeyedApply
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.execute.materialize import local_rows_at

__all__ = ["LastEvents", "last_events", "last_events_of_many"]

_RANK = "rank"

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


def last_events_of_many(events: DataFrame, apply: KeyedApply) -> LastEvents | Reason:
    """The same for events that are not on the driver. They are computed twice, which takes less than to hold
    them: first only keys and sequences, then the rows that come."""
    kinds = dict(events.dtypes)
    types = _key_types(kinds, apply)
    if isinstance(types, Reason):
        return types
    if not events._jdf.queryExecution().analyzed().deterministic():  # noqa: SLF001
        return Reason.of(ReasonCode.EVENTS_NOT_DETERMINISTIC)
    order = events.selectExpr(*_order_of(kinds, apply)).toArrow()
    key_names = [f"k{number}" for number in range(len(apply.keys))]
    names = [f"s{number}" for number in range(len(apply.sequence))]
    order = order.rename_columns([*key_names, *names, "deletes", "special"])
    special = pc.min(order["special"]).as_py()
    if special is not None:
        return Reason.of(ReasonCode(special))
    for name, column in zip(names, apply.sequence, strict=True):
        if order[name].null_count:
            return _without_sequence(column)
    if order.group_by(names).aggregate([]).num_rows < order.num_rows:
        return Reason.of(ReasonCode.EVENTS_OF_EQUAL_SEQUENCE)
    ordered = order.take(pc.sort_indices(order, sort_keys=[(name, "ascending") for name in names]))
    ordered = ordered.append_column(_RANK, pa.array(range(order.num_rows), pa.int64()))
    last = ordered.select([*key_names, _RANK]).group_by(key_names).aggregate([(_RANK, "max")])
    keys = _keys((last[name] for name in key_names), types, kinds, apply)
    last_of_keys = ordered.take(last[f"{_RANK}_max"])
    remaining = last_of_keys.filter(pc.invert(last_of_keys["deletes"]))
    if remaining.num_rows == order.num_rows:
        return LastEvents(events, keys)
    chosen = events.sparkSession.createDataFrame(remaining.select(names).rename_columns([*apply.sequence]))
    return LastEvents(events.join(sf.broadcast(chosen), [*apply.sequence], "left_semi"), keys)


def _key_types(kinds: Mapping[str, str], apply: KeyedApply) -> Sequence[Any] | Reason:
    """Of the keys in Arrow; or why keys or sequences are compared otherwise than here."""
    types = [_arrow_type(kinds.get(key, "")) for key in apply.keys]
    others = [key for key, as_arrow in zip(apply.keys, types, strict=True) if as_arrow is None]
    others += [name for name in apply.sequence if kinds.get(name) not in _NUMBERS]
    if others:
        kind = kinds.get(others[0], "unknown")
        return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=others[0], type=kind)
    return types


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
