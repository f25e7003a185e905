"""Rows of the first copy of a table, as rows of the log table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tautochrone.sources.capture.log_schema import ARROW_SCHEMA

__all__ = ["completed_rows", "copied_rows"]


def copied_rows(
    relation: str,
    names: Sequence[str],
    texts: Sequence[pa.Array],
    snapshots: pa.Array,
    point: int,
    planned: int,
) -> pa.Table:
    """
    Args:
        names, texts: of the columns.
        snapshots: what the reader of each row saw.
        point: where the log was.
        planned: a number that is higher for a later copy of the relation: of two copies of a row at one place
            of the log the later one counts.
    """
    count, width = len(snapshots), len(names)
    # Column by column they came; a map has the values of its row.
    order = np.arange(count)[:, None] + count * np.arange(width)
    columns = pa.MapArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32) * width),
        pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(width), count))),
        pa.concat_arrays(texts).take(pa.array(order.ravel())),
    )
    constant = {"point": point, "sequence": planned, "relation": relation, "operation": "copy"}
    return pa.table(
        [
            columns
            if field.name == "columns"
            else snapshots
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
