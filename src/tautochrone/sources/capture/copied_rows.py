"""Rows of the first copy of a table, as rows of the log table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pyarrow as pa

from tautochrone.sources.capture.log_schema import ARROW_SCHEMA

__all__ = ["completed_rows", "copied_rows"]


def copied_rows(
    relation: str, columns: Sequence[str], rows: Sequence[tuple[str | None, ...]], point: int
) -> pa.Table:
    """Rows of the log table, from rows that begin with what their reader's snapshot saw."""
    count, width = len(rows), len(columns)
    names = list(columns) * count
    values = list(chain.from_iterable(row[1:] for row in rows))
    offsets = pa.array(range(0, count * width + 1, width), pa.int32())
    maps = pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.string()))
    constant = {"point": point, "sequence": 0, "relation": relation, "operation": "copy"}
    return pa.table(
        [
            maps
            if field.name == "columns"
            else pa.array([row[0] for row in rows], pa.string())
            if field.name == "snapshot"
            else pa.repeat(pa.scalar(constant.get(field.name), field.type), count)
            for field in ARROW_SCHEMA
        ],
        ARROW_SCHEMA,
    )


def completed_rows(relations: Sequence[str], point: int) -> pa.Table:
    """One row for each relation of which the bulk is complete: see `model.source.ChangeLog`."""
    rows = [
        {"point": point, "sequence": 0, "relation": relation, "operation": "completed"}
        for relation in relations
    ]
    return pa.Table.from_pylist(rows, ARROW_SCHEMA)
