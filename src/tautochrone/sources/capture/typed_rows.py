"""Texts of a database as values with the types of a lake table, by pyarrow, and the net of such changes.

What it reads as a value is the value that Spark's casts make of the text. What it does not read may still be
one for them, such as a date after the year 9999: then rows go through the log table as texts.

The changes of a captured table, netted by key, are what a light capture writes into a file of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tautochrone.model.log_table import NetRows
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["TextFormat", "net_rows", "typed_rows"]


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
            columns.append(_typed_array(text, field.type, text_format))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
    return pa.record_batch(columns, schema)


def _typed_array(text: pa.Array, data_type: pa.DataType, text_format: TextFormat) -> pa.Array:
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


_OPERATIONS, _TRUNCATE = pa.array(["insert", "update", "delete"]), "truncate"
_RANK = "__taut_rank"


def net_rows(
    events: pa.Table, schema: pa.Schema, keys: Sequence[str], text_format: TextFormat
) -> NetRows | Reason:
    """See `model.source.NetsChanges`.

    Args:
        events: of one relation, as rows of the log table in their order.
    """
    others = pc.filter(events["operation"], pc.invert(pc.is_in(events["operation"], _OPERATIONS)))
    if len(others):
        is_truncated = pc.any(pc.equal(others, _TRUNCATE)).as_py()
        return Reason.of(ReasonCode.TABLE_TRUNCATED if is_truncated else ReasonCode.ROWS_COPIED)
    if pc.max(pc.list_value_length(events["unchanged"])).as_py():
        return Reason.of(ReasonCode.VALUES_LEFT_UNCHANGED)
    key_schema = pa.schema([_field(schema, key) for key in keys])
    for field in key_schema:
        if pa.types.is_floating(field.type) or pa.types.is_nested(field.type):
            return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=field.name, type=str(field.type))
    columns = events["columns"].combine_chunks()
    names = pc.unique(columns.keys).to_pylist()
    if not {name.lower() for name in names} <= {name.lower() for name in schema.names}:
        return Reason.of(ReasonCode.COLUMNS_OF_ROWS_DIFFER)
    of_key = {field.name.lower() for field in key_schema}
    texts = {name: pc.map_lookup(columns, pa.scalar(name), "first") for name in names}
    key_texts = {name: column for name, column in texts.items() if name.lower() in of_key}
    typed_keys = typed_rows(key_texts, events.num_rows, key_schema, text_format)
    if typed_keys is None:
        return Reason.of(ReasonCode.TEXTS_READ_BY_SPARK)
    last = _last_of_keys(typed_keys)
    deletes = pc.equal(events["operation"].combine_chunks(), "delete").take(last)
    kept, gone = last.filter(pc.invert(deletes)), last.filter(deletes)
    rows = typed_rows(
        {name: column.take(kept) for name, column in texts.items()}, len(kept), schema, text_format
    )
    if rows is None:
        return Reason.of(ReasonCode.TEXTS_READ_BY_SPARK)
    keys_gone = typed_keys.take(gone)
    without_rows = pa.record_batch(
        [
            keys_gone[field.name] if field.name in key_schema.names else pa.nulls(len(gone), field.type)
            for field in schema
        ],
        schema,
    )
    return NetRows(pa.Table.from_batches([rows, without_rows]).combine_chunks(), len(kept))


def _last_of_keys(keys: pa.RecordBatch) -> pa.Array:
    """Where the last event of each key is, in the order of the events."""
    ranked = pa.Table.from_batches([keys]).append_column(_RANK, pa.array(range(keys.num_rows), pa.int64()))
    last = ranked.group_by(keys.schema.names).aggregate([(_RANK, "max")])[f"{_RANK}_max"]
    return last.combine_chunks().sort()


def _field(schema: pa.Schema, name: str) -> pa.Field:
    return next(field for field in schema if field.name.lower() == name.lower())
