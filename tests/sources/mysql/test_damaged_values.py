"""Values of the log that are damaged, have no label or are too long for Arrow: an error of a class."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tautochrone.errors import IngestError
from tautochrone.sources.capture import log_table
from tautochrone.sources.capture.log_table import text_column
from tautochrone.sources.mysql import result_rows
from tautochrone.sources.mysql.charsets import Charsets
from tautochrone.sources.mysql.json_values import json_text
from tautochrone.sources.mysql.tables import TableColumn
from tautochrone.sources.mysql.values import Cells, UndecodableValueError, column_texts


def string(text: bytes) -> tuple[int, bytes]:
    return 0x0C, bytes([len(text)]) + text


def container(kind: int, keys: list[bytes], values: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """A small one, whose values all stand behind the tables of offsets."""
    start = 4 + 4 * len(keys) + 3 * len(values)
    table, data = b"", b""
    for key in keys:
        table += struct.pack("<HH", start + len(data), len(key))
        data += key
    for of_type, value in values:
        table += struct.pack("<BH", of_type, start + len(data))
        data += value
    return kind, struct.pack("<HH", len(values), start + len(data)) + table + data


def documents() -> Iterator[bytes]:
    number = (0x0B, struct.pack("<d", 1.5))
    decimal = (0x0F, bytes([246, 4, 3, 1, 0x80, 0x57]))
    texts = container(2, [], [string("é".encode()), number, decimal])
    for kind, data in (string(b"hi"), texts, container(0, ["ä".encode(), b"b"], [string(b"x"), texts])):
        yield bytes([kind]) + data


def cells(value: bytes) -> Cells:
    buffer = np.frombuffer(value + bytes(80), np.uint8)
    return Cells(buffer, (4,), np.array([0]), np.array([len(value)]), np.array([False]))


def test_every_damage_of_binary_json_is_text_or_an_error_of_its_value() -> None:
    column, charsets = TableColumn("j", "json", "json"), Charsets(lambda: None)
    refused = 0
    for document in documents():
        assert json_text(document)
        damaged = [document[:length] for length in range(1, len(document))]
        damaged += [
            document[:at] + bytes([byte]) + document[at + 1 :]
            for at in range(len(document))
            for byte in (*range(0, 256, 7), 0xC3, 0xFF)
        ]
        for data in damaged:
            try:
                assert column_texts(column, cells(data), charsets)[0].as_py().encode()
            except UndecodableValueError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("value", [string(b"\xff"), container(0, [b"\xff"], [string(b"x")])])
def test_a_text_in_json_that_is_no_utf_8_is_refused(value: tuple[int, bytes]) -> None:
    data = bytes([value[0]]) + value[1]
    with pytest.raises(UndecodableValueError, match="utf-8") as raised:
        column_texts(TableColumn("j", "json", "json"), cells(data), Charsets(lambda: None))
    assert (raised.value.row, raised.value.data) == (0, data)


def test_columns_that_are_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is lowered: 2 GiB are too much for a test."""
    buffer = np.frombuffer(b"abcdef", np.uint8)
    starts, lengths = np.array([0, 3]), np.array([3, 3])
    flags = np.array([False, False])
    monkeypatch.setattr(log_table, "MAX_TEXT_BYTES", 6)
    assert text_column(buffer, starts, lengths, flags).equals(pa.array(["abc", "def"]))
    assert result_rows._ascending_texts(buffer, starts, lengths, flags).to_pylist() == ["abc", "def"]
    monkeypatch.setattr(log_table, "MAX_TEXT_BYTES", 5)
    for column in (text_column, result_rows._ascending_texts):
        with pytest.raises(IngestError) as raised:
            column(buffer, starts, lengths, flags)
        assert raised.value.error_class == "CAPTURED_VALUES_TOO_LONG"


def numbered(column_type: str, *numbers: int, is_null: bool = False) -> list[str | None]:
    column = TableColumn("c", column_type.partition("(")[0], column_type)
    buffer = np.array(numbers, np.uint8)
    starts = np.arange(len(numbers))
    cells = Cells(buffer, (1,), starts, np.ones(len(numbers), np.int64), np.full(len(numbers), is_null))
    texts: list[str | None] = column_texts(column, cells, Charsets(lambda: None)).to_pylist()
    return texts


def test_a_number_without_a_label_is_none_of_the_table() -> None:
    """It stood for an empty text, as the number 0 of a value that was none of the labels does."""
    assert numbered("enum('a','b')", 0, 1, 2) == ["", "a", "b"]
    assert numbered("set('a','b')", 0, 1, 2, 3) == ["", "a", "b", "a,b"]
    for column_type, number in (("enum('a','b')", 3), ("set('a','b')", 4), ("set('a','b')", 5)):
        with pytest.raises(IngestError) as raised:
            numbered(column_type, 1, number)
        assert raised.value.error_class == "CAPTURED_TABLE_CHANGED"
    # What is where a value is NULL is none.
    assert numbered("enum('a','b')", 9, is_null=True) == [None]
