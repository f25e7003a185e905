"""Every character of every character set: the lake has what the server itself makes of it, or it is an error.

Copies and the log are read without Spark. The truth is the server's own `CONVERT(... USING utf8mb4)`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from tautochrone.errors import DefinitionError, IngestError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.bulk import chunks_of
from tautochrone.sources.mysql.change_log import MySQLChangeLog
from tautochrone.sources.mysql.tables import CapturedTable
from tautochrone.sources.mysql.types import require_known_types

from .conftest import Schema

_ROWS_PER_STATEMENT = 4_000
_UNICODE = ("utf8mb4", "utf8mb3", "ucs2", "utf16", "utf16le", "utf32")
_CODECS = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_OPERATIONS = ("update", "delete", "insert")
_SINGLE = [bytes([byte]) for byte in range(256)]


def charsets_of(schema: Schema) -> dict[str, int]:
    """Name → bytes of the longest character, of all sets that texts can have."""
    return {row[0]: row[3] for row in schema.rows("SHOW CHARACTER SET") if row[0] != "binary"}


def candidates(charset: str, longest: int, *, is_long: bool) -> list[bytes]:
    """Bytes that may be a character; of large sets some, if not `is_long`.

    Behind the first 65,536 code points characters are numbers in all sets, of which some do.
    """
    if charset in _UNICODE:
        limit = 0x10000 if charset in ("utf8mb3", "ucs2") else 0x110000
        points = [point for point in range(limit) if not 0xD800 <= point < 0xE000]
        points = points[:0x10000] + random.Random(charset).sample(
            points[0x10000:], min(4_000, len(points[0x10000:]))
        )
        sequences = [chr(point).encode(_CODECS.get(charset, "utf-8")) for point in points]
    else:
        sequences = list(_SINGLE)
        if longest > 1:
            sequences += [bytes(pair) for pair in product(range(0x80, 0x100), range(256))]
        if longest == 3:
            sequences += [b"\x8f" + bytes(pair) for pair in product(range(0xA0, 0x100), repeat=2)]
        if longest == 4:
            first, second = range(0x81, 0xFF), range(0x30, 0x3A)
            sequences += map(bytes, product(range(0x81, 0x85), second, first, second))
            numbers = list(product(range(0x85, 0xFF), second, first, second))
            sequences += map(bytes, random.Random(4).sample(numbers, 60_000))
    if is_long:
        return sequences
    few, many = sequences[:256], sequences[256:]
    return few + random.Random(charset).sample(many, min(len(many), 100))


@dataclass(frozen=True)
class Answer:
    """What the server makes of some bytes.

    Attributes:
        text: None: it has no character for them.
        is_key: it makes the same bytes of the text.
    """

    text: str | None
    is_key: bool


def answers_of(schema: Schema, charset: str, sequences: Sequence[bytes]) -> dict[bytes, Answer]:
    """Those of all bytes that it takes as one character."""
    answers: dict[bytes, Answer] = {}
    for part in batched(sequences):
        schema.run("DELETE FROM candidates")
        values = ", ".join(f"(X'{data.hex()}')" for data in part)
        schema.run(f"INSERT INTO candidates VALUES {values}")
        text = f"CONVERT(b USING {charset})"
        again = f"CONVERT(CONVERT({text} USING utf8mb4) USING {charset})"
        for data, answer, is_key in schema.rows(
            f"SELECT b, HEX(CONVERT({text} USING utf8mb4)), CAST({again} AS BINARY) = b FROM candidates "
            f"WHERE CAST({text} AS BINARY) = b AND CHAR_LENGTH({text}) = 1"
        ):
            is_none = not answer or (answer == "3F" and data.strip(b"\0") != b"?")
            answers[data] = Answer(None if is_none else bytes.fromhex(answer).decode(), bool(is_key))
    return answers


def batched(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _ROWS_PER_STATEMENT):
        yield items[start : start + _ROWS_PER_STATEMENT]


def fill(schema: Schema, charset: str, answers: Mapping[bytes, Answer]) -> dict[str, tuple[str, ...]]:
    """A table with a row for each character, which is the key too if it can be one.

    Returns:
        The rows that the lake must have, by their number.
    """
    schema.run(
        f"CREATE TABLE v_{charset} (k VARCHAR(6) CHARACTER SET {charset} COLLATE {charset}_bin, n INT, "
        f"c CHAR(2) CHARACTER SET {charset}, t TEXT CHARACTER SET {charset}, PRIMARY KEY (k))"
    )
    rows, expected = [], {}
    for n, (data, answer) in enumerate(answers.items()):
        # A space at the end of a CHAR is none, and letters may be equal to others.
        if answer.text is None or answer.text == " ":
            continue
        key = f"CONCAT({literal(charset, data)}, CONVERT('{n % 10}' USING {charset}))"
        if not answer.is_key:
            key = f"CONVERT('{n}' USING {charset})"
        rows.append(f"({key}, {n}, {literal(charset, data)}, {literal(charset, data + data)})")
        text = answer.text
        expected[str(n)] = (f"{text}{n % 10}" if answer.is_key else str(n), text, text + text)
    for part in batched(rows):
        schema.run(f"INSERT INTO v_{charset} VALUES {', '.join(part)}")
    return expected


def literal(charset: str, data: bytes) -> str:
    return f"_{charset} X'{data.hex()}'"


def by_number(columns: Sequence[Sequence[tuple[str, str]]]) -> dict[str, tuple[str, ...]]:
    rows = list(map(dict, columns))
    answers = {row["n"]: (row["k"], row["c"], row["t"]) for row in rows}
    assert len(answers) == len(rows)
    return answers


def logged(log: MySQLChangeLog, position: LogPosition) -> dict[tuple[str, str], list[Any]]:
    """The columns of rows by relation and operation."""
    rows: dict[tuple[str, str], list[Any]] = {}
    while True:
        batch = log.read(position, 100_000)
        for row in batch.rows.select(["relation", "operation", "columns"]).to_pylist():
            rows.setdefault((row["relation"], row["operation"]), []).append(row["columns"])
        position = batch.position
        if batch.caught_up:
            return rows


def test_characters_of_every_charset(schema: Schema) -> None:
    """All of small sets, some of large ones; half of the sets on each server."""
    half = {
        charset: longest
        for charset, longest in charsets_of(schema).items()
        if sum(charset.encode()) % 2 == schema.is_mysql
    }
    assert compare(schema, half, is_long=False) > 2_500


@pytest.mark.slow
def test_every_character_of_every_charset(schema: Schema) -> None:
    charsets = charsets_of(schema)
    counts = [compare(schema, {charset: longest}, is_long=True) for charset, longest in charsets.items()]
    assert sum(counts) > 400_000


def compare(schema: Schema, charsets: Mapping[str, int], *, is_long: bool) -> int:
    """Characters that are copied, inserted, updated and deleted, as values and as keys.

    Returns:
        How many there are.
    """
    schema.run("SET SESSION sql_mode = ''", "CREATE TABLE candidates (b VARBINARY(8))")
    expected = {}
    for charset, longest in charsets.items():
        sequences = candidates(charset, longest, is_long=is_long)
        expected[charset] = fill(schema, charset, answers_of(schema, charset, sequences))
    schema.run("DROP TABLE candidates")
    log = schema.change_log()
    position = log.begin("reader")
    for charset in expected:
        schema.run(
            f"UPDATE v_{charset} SET n = n + 10000000",
            f"CREATE TEMPORARY TABLE w AS SELECT * FROM v_{charset}",
            f"DELETE FROM v_{charset}",
            f"INSERT INTO v_{charset} SELECT k, n - 10000000, c, t FROM w",
            "DROP TEMPORARY TABLE w",
        )
    rows = logged(log, position)
    for charset, answers in expected.items():
        relation = f"{schema.name}.v_{charset}"
        copied = [
            columns
            for chunk in position.bulk.pending[relation]
            for columns in log.read_chunk(relation, chunk)[0]["columns"].to_pylist()
        ]
        assert_equal(charset, "copy", by_number(copied), answers)
        moved = {str(int(n) + 10_000_000): row for n, row in answers.items()}
        for operation in _OPERATIONS:
            columns = by_number(rows[relation, operation])
            assert_equal(charset, operation, columns, answers if operation == "insert" else moved)
    log.close()
    schema.run(*(f"DROP TABLE v_{charset}" for charset in charsets))
    return sum(map(len, expected.values()))


def assert_equal(
    charset: str, how: str, rows: Mapping[str, tuple[str, ...]], expected: Mapping[str, tuple[str, ...]]
) -> None:
    wrong = [(rows.get(n), expected.get(n)) for n in {*rows, *expected} if rows.get(n) != expected.get(n)]
    assert not wrong, (charset, how, len(wrong), wrong[:5])


def bad_values(schema: Schema, charsets: Mapping[str, int]) -> list[tuple[str, bytes]]:
    """Bytes that a column of a set takes and that the server has no text for."""
    values = []
    for charset, longest in charsets.items():
        answers = answers_of(schema, charset, candidates(charset, longest, is_long=False)[:330])
        values += [(charset, data) for data, answer in answers.items() if answer.text is None]
    return values


_WITHOUT_ALL_CHARACTERS = {"cp1251", "greek", "hebrew", "swe7", "dec8", "geostd8"}


@pytest.mark.parametrize("of_all", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bytes_without_a_character_are_an_error(schema: Schema, of_all: bool) -> None:
    """In the copy and in the log, which name the row; what the hint says ends it."""
    schema.run("SET SESSION sql_mode = ''", "CREATE TABLE candidates (b VARBINARY(8))")
    taken = charsets_of(schema)
    if not of_all:
        taken = {charset: taken[charset] for charset in taken.keys() & {*_WITHOUT_ALL_CHARACTERS, "ujis"}}
    values = bad_values(schema, taken)
    schema.run("DROP TABLE candidates")
    charsets = list(dict.fromkeys(charset for charset, _data in values))
    assert {*charsets} >= _WITHOUT_ALL_CHARACTERS
    for charset in charsets:
        data = next(data for name, data in values if name == charset)
        table, name = f"bad_{charset}", f"{schema.name}.bad_{charset}"
        schema.run(
            f"CREATE TABLE {table} (k CHAR(3) CHARACTER SET latin1, v VARCHAR(9) CHARACTER SET {charset}, "
            f"PRIMARY KEY (k))",
            f"INSERT INTO {table} VALUES ('a', 'ok'), ('\xe9', {literal(charset, data)})",
        )
        if (data,) not in schema.rows(f"SELECT CAST(v AS BINARY) FROM {table}"):
            # MySQL keeps such bytes of some sets out.
            assert schema.is_mysql
            assert charset in ("ascii", "eucjpms")
            continue
        with pytest.raises(IngestError) as raised:
            schema.change_log().read_chunk(name, "{}")
        assert_names_row(raised.value, name, data)
        schema.run(f"DELETE FROM {table}")
        log = schema.change_log()
        position = log.begin("reader")
        schema.run(f"INSERT INTO {table} VALUES ('a', 'ok'), ('\xe9', {literal(charset, data)})")
        with pytest.raises(IngestError) as raised:
            log.read(position, 10)
        assert_names_row(raised.value, name, data)
        schema.run(f"UPDATE {table} SET v = 'mended' WHERE k = '\xe9'")
        position = log.resume(position, anew=[name])
        log.read(position, 10)
        (chunk,) = position.bulk.pending[name]
        copied = [dict(columns)["v"] for columns in log.read_chunk(name, chunk)[0]["columns"].to_pylist()]
        assert sorted(copied) == ["mended", "ok"]
        log.close()
        schema.run(f"DROP TABLE {table}")


def assert_names_row(error: IngestError, table: str, data: bytes) -> None:
    assert error.error_class == "CAPTURED_TEXT_NOT_DECODABLE"
    message = str(error)
    assert f"0x{data.hex().upper()}" in message, message
    assert table in message
    assert "in v of the row with k = \xe9" in message, message
    assert f"--full-refresh {table}" in error.hint


def test_characters_that_are_one_in_utf8_are_refused_in_keys(schema: Schema) -> None:
    """Two rows would be one in the lake. As values they are the character that the server says."""
    schema.run(
        "CREATE TABLE v (k VARCHAR(9) CHARACTER SET cp932 COLLATE cp932_bin PRIMARY KEY, "
        "t TEXT CHARACTER SET cp932)"
    )
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO v VALUES (_cp932 X'FA40', _cp932 X'EEEF')")
    (row,) = map(dict, log.read(position, 10).rows["columns"].to_pylist())
    assert row == {"k": "\u2170", "t": "\u2170"}
    schema.run("INSERT INTO v VALUES (_cp932 X'EEEF', 'b')")
    with pytest.raises(IngestError, match="EEEF of cp932 is the same in UTF-8 as another") as raised:
        log.read(position, 10)
    assert raised.value.error_class == "CAPTURED_TEXT_NOT_DECODABLE"
    (chunk,) = position.bulk.pending[f"{schema.name}.v"]
    with pytest.raises(IngestError, match="EEEF of cp932"):
        log.read_chunk(f"{schema.name}.v", chunk)
    log.close()


def test_halves_of_surrogate_pairs_are_no_text(schema: Schema) -> None:
    """MariaDB takes them in all sets of Unicode but utf16; what Spark would read is no UTF-8."""
    if schema.is_mysql:
        schema.run("CREATE TABLE v (id INT PRIMARY KEY, t TEXT CHARACTER SET ucs2)")
        values = {"ucs2": "D83DDE00"}
    else:
        schema.run("CREATE TABLE v (id INT PRIMARY KEY, t TEXT CHARACTER SET utf8mb4)")
        values = {"utf8mb4": "EDA080", "utf8mb3": "EDA080", "ucs2": "D83DDE00", "utf32": "0000D800"}
    for charset, data in values.items():
        schema.run(f"ALTER TABLE v MODIFY t TEXT CHARACTER SET {charset}", "DELETE FROM v")
        log = schema.change_log()
        position = log.begin("reader")
        schema.run(f"INSERT INTO v VALUES (7, _{charset} X'{data}')")
        with pytest.raises(IngestError, match=f"id = 7 the bytes 0x{data}"):
            log.read(position, 10)
        with pytest.raises(IngestError, match=f"id = 7 the bytes 0x{data}"):
            log.read_chunk(f"{schema.name}.v", "{}")
        log.close()


def test_keys_of_a_copy_in_chunks(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are keys in the bytes of their set."""
    monkeypatch.setattr("tautochrone.sources.mysql.change_log.chunks_of", chunks_of_three_rows)
    for charset in ("sjis", "ucs2", "latin1", "cp1251", "utf16le"):
        table, name = f"k_{charset}", f"{schema.name}.k_{charset}"
        letters = "\u0416\u0427\u044f" if charset not in ("latin1",) else "\xe4\xf6\xfc"
        keys = [f"{letter}{number}'\\" for letter in (*letters, "a") for number in range(5)]
        schema.run(f"CREATE TABLE {table} (k VARCHAR(9) CHARACTER SET {charset} PRIMARY KEY)")
        with schema.connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (%s)", [(key,) for key in keys])
        log = schema.change_log()
        chunks = log.begin("reader").bulk.pending[name]
        assert len(chunks) > 4
        copied = [
            dict(columns)["k"]
            for chunk in chunks
            for columns in log.read_chunk(name, chunk)[0]["columns"].to_pylist()
        ]
        log.close()
        assert sorted(copied) == sorted(keys)


def chunks_of_three_rows(connection: Any, table: CapturedTable, tasks: int) -> tuple[str, ...]:
    return chunks_of(connection, replace(table, rows=3, bytes=100_000_000), tasks)


def test_labels_in_every_charset(schema: Schema) -> None:
    """The log has their numbers; labels that the catalog does not show are refused."""
    texts = {"latin1": "\xe4", "cp1251": "\u044f", "sjis": "\u8868", "ucs2": "\u20ac", "utf8mb4": "\u20ac"}
    for charset, text in texts.items():
        schema.run(
            f"CREATE TABLE e_{charset} (id INT PRIMARY KEY, e ENUM('a', '{text}') CHARACTER SET {charset}, "
            f"s SET('b', '{text}', 'c') CHARACTER SET {charset})"
        )
    log = schema.change_log()
    position = log.begin("reader")
    for charset in texts:
        schema.run(f"INSERT INTO e_{charset} VALUES (1, 2, 6)")
    for row in log.read(position, 10).rows.to_pylist():
        text = texts[row["relation"].rpartition("_")[2]]
        assert dict(row["columns"]) == {"id": "1", "e": text, "s": f"{text},c"}
        (copied,) = log.read_chunk(row["relation"], "{}")[0]["columns"].to_pylist()
        assert copied == row["columns"]
    log.close()
    schema.run("CREATE TABLE wide (id INT PRIMARY KEY, e ENUM('\U0001f600', 'b') CHARACTER SET utf8mb4)")
    wide = next(table for table in schema.capture().tables if table.table == "wide")
    with pytest.raises(DefinitionError, match="label with \\? in the type") as raised:
        require_known_types(wide, "test")
    assert raised.value.error_class == "CAPTURED_TYPE_NOT_SUPPORTED"
