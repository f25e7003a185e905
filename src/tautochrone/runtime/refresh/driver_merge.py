"""The last event of each key, found on the driver: no Spark job sorts the events by their keys.

Only what orders the events comes to Python; their rows stay where they are: few ones in the JVM,
more on the executors. Events of which more must
be known than their keys and their order (copied rows, truncates, values that are left unchanged or that are
invalid) are left to Spark: see `runtime.refresh.latest_events`.
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


def last_events(events: DataFrame, apply: KeyedApply) -> LastEvents | None:
    """None: Spark must merge these events.

    Args:
        events: over a local relation.
    """
    kinds = dict(events.dtypes)
    types = _key_types(kinds, apply)
    if types is None:
        return None
    width = len(apply.keys)
    rows = events.selectExpr(*_order_of(kinds, apply)).collect()
    last: dict[tuple[Any, ...], tuple[tuple[int, ...], int, bool]] = {}
    for index, row in enumerate(rows):
        *values, deletes, is_special = row
        if is_special or None in values[width:]:
            return None
        key, sequence = tuple(values[:width]), tuple(values[width:])
        earlier = last.get(key)
        if earlier is None or earlier[0] <= sequence:
            last[key] = sequence, index, deletes
    remaining = sorted(index for _, index, deletes in last.values() if not deletes)
    columns = ([key[number] for key in last] for number in range(width))
    keys = _keys(columns, types, kinds, apply)
    return LastEvents(events if len(remaining) == len(rows) else local_rows_at(events, remaining), keys)


def last_events_of_many(events: DataFrame, apply: KeyedApply) -> LastEvents | None:
    """The same for events that are not on the driver. They are computed twice, which takes less than to hold
    them: first only keys and sequences, then the rows that come."""
    kinds = dict(events.dtypes)
    types = _key_types(kinds, apply)
    if types is None or not events._jdf.queryExecution().analyzed().deterministic():  # noqa: SLF001
        return None
    order = events.selectExpr(*_order_of(kinds, apply)).toArrow()
    key_names = [f"k{number}" for number in range(len(apply.keys))]
    names = [f"s{number}" for number in range(len(apply.sequence))]
    order = order.rename_columns([*key_names, *names, "deletes", "is_special"])
    has_ties = order.group_by(names).aggregate([]).num_rows < order.num_rows
    if pc.any(order["is_special"]).as_py() or has_ties or any(order[name].null_count for name in names):
        return None
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


def _key_types(kinds: Mapping[str, str], apply: KeyedApply) -> Sequence[Any] | None:
    """Of the keys in Arrow; None: keys or sequences are compared otherwise than here."""
    types = [_arrow_type(kinds.get(key, "")) for key in apply.keys]
    if None in types or any(kinds.get(name) not in _NUMBERS for name in apply.sequence):
        return None
    return types


def _order_of(kinds: Mapping[str, str], apply: KeyedApply) -> Sequence[str]:
    """SQL: what must be known of each event."""
    return [
        *(_comparable(key, kinds[key]) for key in apply.keys),
        *map(quoted, apply.sequence),
        f"coalesce(({apply.delete or 'false'}), false)",
        _is_special(apply),
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


def _is_special(apply: KeyedApply) -> str:
    """SQL that is true of an event of which more must be known."""
    conditions = [f"({apply.truncate})"] if apply.truncate else []
    conditions += [f"size({quoted(name)}) > 0" for name in (apply.unchanged, apply.invalid) if name]
    conditions += [f"{quoted(apply.snapshot)} IS NOT NULL"] if apply.snapshot else []
    return " OR ".join(f"coalesce({condition}, false)" for condition in conditions) or "false"
