"""Rows of the first copy of a table: as a source reads them, and as rows of the log table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tautochrone.model.capture_files import COPIED_FILE, FILE_NAME, CopiedFile
from tautochrone.sources.capture.log_schema import ARROW_SCHEMA
from tautochrone.sources.capture.typed_rows import TextFormat

__all__ = ["ChunkRows", "completed_rows", "file_row", "log_batches"]


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of one statement, or some of them.

    Attributes:
        texts: by the name of a column, its values as the log has them.
        snapshots: what the reader of each row saw: the same for all of them.
        point: where the log was.
        planned: a number that is higher for a later copy of the relation: of two copies of a row at one place
            of the log the later one counts.
    """

    relation: str
    texts: Mapping[str, pa.Array]
    snapshots: pa.Array
    point: int
    planned: int
    text_format: TextFormat

    def __len__(self) -> int:
        return len(self.snapshots)

    def log_rows(self) -> pa.Table:
        """As rows of the log table."""
        count, width = len(self), len(self.texts)
        # Column by column they came; a map has the values of its row.
        order = np.arange(count)[:, None] + count * np.arange(width)
        columns = pa.MapArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * width),
            pa.array(list(self.texts), pa.string()).take(pa.array(np.tile(np.arange(width), count))),
            pa.concat_arrays(list(self.texts.values())).take(pa.array(order.ravel())),
        )
        constant = {
            "point": self.point,
            "sequence": self.planned,
            "relation": self.relation,
            "operation": "copy",
        }
        return pa.table(
            [
                columns
                if field.name == "columns"
                else self.snapshots
                if field.name == "snapshot"
                else pa.repeat(pa.scalar(constant.get(field.name), field.type), count)
                for field in ARROW_SCHEMA
            ],
            ARROW_SCHEMA,
        )


def log_batches(parts: Iterable[ChunkRows | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a source read, as rows of the log table, which some are already."""
    for part in parts:
        if isinstance(part, ChunkRows):
            yield from part.log_rows().to_batches()
        else:
            yield part


def file_row(relation: str, file: CopiedFile) -> pa.RecordBatch:
    """The row of the log table that stands for all rows in a data file of a table."""
    row: dict[str, Any] = {
        "point": file.point,
        "sequence": file.sequence,
        "relation": relation,
        "operation": COPIED_FILE,
        "columns": [(FILE_NAME, file.name)],
        "snapshot": file.snapshot,
    }
    return pa.RecordBatch.from_pylist([row], ARROW_SCHEMA)


def completed_rows(relations: Sequence[str], point: int) -> pa.Table:
    """One row for each relation of which the bulk is complete: see `model.source.ChangeLog`."""
    rows = [
        {"point": point, "sequence": 0, "relation": relation, "operation": "completed"}
        for relation in relations
    ]
    return pa.Table.from_pylist(rows, ARROW_SCHEMA)
