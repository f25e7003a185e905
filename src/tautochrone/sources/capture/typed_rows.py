"""Texts of a database as values with the types of a lake table, by pyarrow.

What it reads as a value is the value that Spark's casts make of the text. What it does not read may still be
one for them, such as a date after the year 9999: then rows go through the log table as texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TextFormat", "typed_rows"]


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a database prints values of which databases print different texts.

    Attributes:
        true: the text of TRUE.
        bytes_prefix: so many characters are before the hexadecimal digits of bytes.
    """

    true: str
    bytes_prefix: int = 0


def typed_rows(
    texts: Mapping[str, pa.Array], count: int, schema: pa.Schema, text_format: TextFormat
) -> pa.RecordBatch | None:
    """So many rows with a schema; None: a text is not read here. Columns without texts are NULL.

    >>> typed_rows({"ID": pa.array(["1"])}, 1, pa.schema([("id", pa.int64())]), TextFormat("t")).to_pylist()
    [{'id': 1}]
    """
    by_name = {name.lower(): column for name, column in texts.items()}
    columns = []
    for field in schema:
        text = by_name.get(field.name.lower())
        if text is None:
            columns.append(pa.nulls(count, field.type))
            continue
        try:
            columns.append(_typed(text, field.type, text_format))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
    return pa.record_batch(columns, schema)


def _typed(text: pa.Array, data_type: pa.DataType, text_format: TextFormat) -> pa.Array:
    """
    Raises:
        ArrowInvalid, ArrowNotImplementedError: a text, or the type, is not read here.
    """
    if pa.types.is_boolean(data_type):
        return pc.equal(text, text_format.true)
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return _bytes(text, text_format.bytes_prefix).cast(data_type)
    return text.cast(data_type)


def _bytes(text: pa.Array, prefix: int) -> pa.Array:
    """Of hexadecimal digits."""
    digits = pc.utf8_slice_codeunits(text, prefix)
    lengths = np.asarray(pc.fill_null(pc.binary_length(digits), 0), np.int64)
    joined = "".join(pc.drop_null(digits).to_pylist())
    try:
        values = bytes.fromhex(joined)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    offsets = np.concatenate(([0], np.cumsum(lengths // 2))).astype(np.int32)
    validity = None if not digits.null_count else pc.is_valid(digits).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(digits), [validity, pa.py_buffer(offsets), pa.py_buffer(values)], digits.null_count
    )
