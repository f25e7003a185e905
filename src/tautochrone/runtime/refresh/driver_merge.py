"""The last event of each key, of a few events that are on the driver: no Spark job is planned for them.

Only what orders the events comes to Python; their rows stay in the JVM as they are. Events of which more must
be known than their keys and their order (copied rows, truncates, values that are left unchanged or that are
invalid) are left to Spark: see `runtime.refresh.latest_events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tautochrone.model.keyed_apply import KeyedApply
from tautochrone.model.names import quoted
from tautochrone.spark.execute.materialize import local_rows_at

__all__ = ["LastEvents", "last_events"]

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
    """What few events do to a table.

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
    types = [_arrow_type(kinds.get(key, "")) for key in apply.keys]
    if None in types or any(kinds.get(name) not in _NUMBERS for name in apply.sequence):
        return None
    width = len(apply.keys)
    rows = events.selectExpr(
        *(_comparable(key, kinds[key]) for key in apply.keys),
        *map(quoted, apply.sequence),
        f"coalesce(({apply.delete or 'false'}), false)",
        _is_special(apply),
    ).collect()
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
    keys = pa.table(
        {
            name: _column([key[number] for key in last], types[number], kinds[name])
            for number, name in enumerate(apply.keys)
        }
    )
    return LastEvents(events if len(remaining) == len(rows) else local_rows_at(events, remaining), keys)


def _arrow_type(kind: str) -> Any | None:
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES.get(kind)


def _comparable(name: str, kind: str) -> str:
    function = _AS_NUMBER.get(kind)
    return quoted(name) if function is None else f"{function}({quoted(name)})"


def _column(values: list[Any], arrow_type: Any, kind: str) -> Any:
    if kind not in _AS_NUMBER:
        return pa.array(values, arrow_type)
    return pa.array(values, pa.int32() if kind == "date" else pa.int64()).cast(arrow_type)


def _is_special(apply: KeyedApply) -> str:
    """SQL that is true of an event of which more must be known."""
    conditions = [f"({apply.truncate})"] if apply.truncate else []
    conditions += [f"size({quoted(name)}) > 0" for name in (apply.unchanged, apply.invalid) if name]
    conditions += [f"{quoted(apply.snapshot)} IS NOT NULL"] if apply.snapshot else []
    return " OR ".join(f"coalesce({condition}, false)" for condition in conditions) or "false"
