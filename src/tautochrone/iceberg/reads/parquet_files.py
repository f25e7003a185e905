"""Data files as pyarrow reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tautochrone.iceberg.java.durable import local_folder

__all__ = ["names_by_id", "opened"]

_FIELD_ID = b"PARQUET:field_id"


@contextlib.contextmanager
def opened(table: Any, path: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a Java table. One that is not on this machine is fetched as a whole.

    Raises:
        OSError, ArrowException, Py4JError: it cannot be read.
    """
    local = local_folder(path)
    if local is not None:
        with pq.ParquetFile(local, memory_map=True) as file:
            yield file
        return
    with contextlib.closing(table.io().newInputFile(path).newStream()) as stream:
        content = stream.readAllBytes()
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        yield file


def names_by_id(file: pq.ParquetFile) -> dict[int, str]:
    """The names of a file's columns by the ids of the table's columns. They may be older than the table's."""
    return {
        int(field.metadata[_FIELD_ID]): field.name
        for field in file.schema_arrow
        if field.metadata and _FIELD_ID in field.metadata
    }
