"""Columns of texts from the bytes that the server has, and an error that says where they are no text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tautochrone.errors import IngestError
from tautochrone.sources.capture.arrow_columns import Bytes, Integers, text_column
from tautochrone.sources.mysql.charsets import UTF8_CHARSETS, Charset, UndecodableError
from tautochrone.sources.mysql.tables import CapturedTable, Column

__all__ = ["UndecodableValueError", "charset_of", "decoded", "hexadecimal", "not_decodable", "shown_bytes"]

_SHOWN_BYTES = 32
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint8).reshape(256, 2)


class UndecodableValueError(ValueError):
    """A value of a column is no text.

    Attributes:
        row: its number in the column.
    """

    def __init__(self, row: int, data: bytes, reason: str) -> None:
        super().__init__(reason)
        self.row, self.data, self.reason = row, data, reason


def shown_bytes(data: bytes) -> str:
    return f"0x{data[:_SHOWN_BYTES].hex().upper()}" + ("..." if len(data) > _SHOWN_BYTES else "")


def charset_of(column: Column) -> str:
    return column.charset or "utf8mb4"


def decoded(texts: pa.Array, charset: Charset, *, as_key: bool = False) -> pa.Array:
    """
    Args:
        texts: strings of the bytes of a character set, which need not be UTF-8.
        as_key: see `Charset.decode`.

    Raises:
        UndecodableValueError
    """
    # Arrow checks bytes that become strings.
    data = texts.cast(pa.binary())
    if charset.name in UTF8_CHARSETS:
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    values: list[str | None] = []
    for row, value in enumerate(data.to_pylist()):
        try:
            values.append(None if value is None else charset.decode(value, as_key=as_key))
        except UndecodableError as error:
            raise UndecodableValueError(row, value, str(error)) from error
    return pa.array(values, pa.string())


def hexadecimal(data: pa.Array) -> pa.Array:
    """
    Args:
        data: strings of bytes, which need not be UTF-8.

    >>> hexadecimal(pa.array([b"\\x00\\xff", None]).view(pa.string())).to_pylist()
    ['00FF', None]
    """
    _validity, offsets, values = data.cast(pa.binary()).buffers()
    positions: Integers = np.frombuffer(offsets, np.int32)[data.offset :][: len(data) + 1].astype(np.int64)
    first, last = int(positions[0]), int(positions[-1])
    source: Bytes = np.frombuffer(values or b"", np.uint8)[first:last]
    starts = 2 * (positions[:-1] - first)
    lengths = 2 * np.diff(positions)
    is_null = data.is_null().to_numpy(zero_copy_only=False)
    return text_column(_HEX[source].reshape(-1), starts, lengths, is_null)


def not_decodable(
    table: CapturedTable, column: Column, key: Sequence[str | None], error: UndecodableValueError
) -> IngestError:
    """
    Args:
        key: of the row, as texts.
    """
    row = ", ".join(f"{name} = {value}" for name, value in zip(table.keys, key, strict=True))
    return IngestError(
        "CAPTURED_TEXT_NOT_DECODABLE",
        f"A value of {table.name} is no text: in {column.name} of the row with {row} the bytes "
        f"{shown_bytes(error.data)}: {error.reason}",
        hint=f"correct the row in the database, then run with --full-refresh {table.name}, which copies the "
        f"table again; or leave the table out with exclude=[…]",
        sqlstate="22021",
        parameters={"table": table.name, "column": column.name},
    )
