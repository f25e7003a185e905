"""Arrow columns from pieces of a buffer, one numpy step per column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Bytes", "Flags", "Integers", "list_offsets", "text_column"]

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


def list_offsets(flags: Flags) -> pa.Array:
    """Offsets of lists that have an item for each flag that is set in their row."""
    return pa.array(np.concatenate(([0], np.cumsum(flags.sum(axis=1)))).astype(np.int32))


def text_column(buffer: Bytes, starts: Integers, lengths: Integers, is_null: Flags) -> pa.Array:
    """A string column of pieces of a buffer, which must be UTF-8."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    source = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    validity = pa.array(~is_null).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(buffer[source])]
    return pa.Array.from_buffers(pa.string(), len(starts), buffers)
