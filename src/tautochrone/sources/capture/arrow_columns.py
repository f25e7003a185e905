"""Arrow columns from pieces of a buffer, one numpy step per column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tautochrone.errors import IngestError

__all__ = ["MAX_TEXT_BYTES", "Bytes", "Flags", "Integers", "list_offsets", "require_offsets", "text_column"]

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


MAX_TEXT_BYTES = 2**31 - 1
"""Of all values of a column: Arrow's offsets of strings have 32 bits, and larger ones would wrap around."""


def require_offsets(text_bytes: int) -> None:
    """
    Raises:
        IngestError: `CAPTURED_VALUES_TOO_LONG`, the values of a column have more bytes than offsets count.
    """
    if text_bytes > MAX_TEXT_BYTES:
        raise IngestError(
            "CAPTURED_VALUES_TOO_LONG",
            f"Values that the database sent at once have {text_bytes} bytes as text; "
            f"{MAX_TEXT_BYTES} are the most",
            hint="write such values by statements of fewer rows, or leave their table out with exclude=[…]; "
            "then copy the database again: --full-refresh of the log table and of the captured tables",
            sqlstate="54000",
        )


def list_offsets(flags: Flags) -> pa.Array:
    """Offsets of lists that have an item for each flag that is set in their row."""
    return pa.array(np.concatenate(([0], np.cumsum(flags.sum(axis=1)))).astype(np.int32))


def text_column(buffer: Bytes, starts: Integers, lengths: Integers, is_null: Flags) -> pa.Array:
    """A string column of pieces of a buffer, which must be UTF-8.

    Raises:
        IngestError: `CAPTURED_VALUES_TOO_LONG`.
    """
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    require_offsets(int(offsets[-1]))
    source = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    validity = pa.array(~is_null).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(buffer[source])]
    return pa.Array.from_buffers(pa.string(), len(starts), buffers)
