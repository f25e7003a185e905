"""Databases in other encodings than UTF-8: their characters arrive, or an error of its class says why not."""

from __future__ import annotations

import ast
import re
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.support.postgresql import fresh_database

import tautochrone.sinks.postgresql
import tautochrone.sources.postgresql
from tautochrone.errors import IngestError
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import connect, translated_errors

from .test_change_log import capture_of, error_class, rows, url_of
from .test_session_settings import copied_values

_ENCODINGS = {
    "LATIN1": "latin-1", "KOI8R": "koi8-r", "EUC_JP": "euc_jp", "WIN1252": "cp1252", "LATIN2": "iso8859-2",
    "LATIN9": "iso8859-15", "ISO_8859_5": "iso8859-5", "ISO_8859_6": "iso8859-6", "ISO_8859_7": "iso8859-7",
    "WIN866": "cp866", "WIN874": "cp874", "WIN1250": "cp1250", "WIN1251": "cp1251", "WIN1253": "cp1253",
    "WIN1256": "cp1256", "WIN1258": "cp1258", "KOI8U": "koi8-u", "EUC_KR": "euc_kr", "EUC_CN": "gb2312",
    "LATIN5": "iso8859-9",
}  # fmt: skip

_CODES = (
    *range(0xA0, 0x600),
    *range(0x2010, 0x2030),
    *range(0x3041, 0x3097),
    *range(0x4E00, 0x4F00),
    *range(0xAC00, 0xAC80),
)


@pytest.mark.parametrize(
    "encoding",
    [
        pytest.param(encoding, marks=() if number < 4 else pytest.mark.slow)
        for number, encoding in enumerate(_ENCODINGS)
    ],
)
def test_databases_of_other_encodings_are_captured(encoding: str) -> None:
    """Each character that the server converts, in a copy, an insert, an update, a key and a delete."""
    url = fresh_database(f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    with psycopg.connect(url, autocommit=True, client_encoding="UTF8") as database:
        characters = _characters(database, _ENCODINGS[encoding])
        table = f"t{characters[-1]}"
        database.execute(f'CREATE TABLE "{table}" ("k{characters[0]}" text PRIMARY KEY, v text)')
        with database.cursor().copy(f'COPY "{table}" FROM STDIN') as copy:
            for character in characters:
                copy.write_row((character, character * 2))
        with connect(url_of(database)) as connection:
            log = PostgreSQLChangeLog(capture_of(connection))
        position = log.begin("reader")
        key = f"k{characters[0]}"
        copied = [dict(columns) for _, columns in copied_values(log, position)]
        assert {columns[key]: columns["v"] for columns in copied} == {
            character: character * 2 for character in characters
        }
        assert len(copied) == len(characters)
        database.execute(f'UPDATE "{table}" SET v = v || v')
        database.execute(f'DELETE FROM "{table}"')
        events = rows(log.read(position, 1_000_000))
        assert [dict(columns or {}) for _, operation, columns in events if operation == "update"] == [
            {key: character, "v": character * 4} for character in characters
        ]
        assert {columns[key] for _, operation, columns in events if operation == "delete" and columns} == {
            *characters
        }
        log.close()
        database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def _characters(database: psycopg.Connection, codec: str) -> list[str]:
    """Those beyond ASCII of the set that the server takes."""
    taken: list[str] = []
    for code in [
        *range(0xA0, 0x600),
        *range(0x2010, 0x2030),
        *range(0x3041, 0x3097),
        *range(0x4E00, 0x4F00),
        *range(0xAC00, 0xAC80),
    ]:
        try:
            chr(code).encode(codec)
            row = database.execute("SELECT %s::text", (chr(code),)).fetchone()
        except (UnicodeEncodeError, psycopg.errors.UntranslatableCharacter):
            continue
        # The server takes some for others.
        taken += row or ()
    return list(dict.fromkeys(taken))


def test_bytes_that_an_encoding_does_not_have_are_an_error_of_their_class() -> None:
    url = fresh_database("ENCODING 'WIN1252' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
        log = PostgreSQLChangeLog(capture_of(database))
        position = log.begin("reader")
        database.execute("INSERT INTO t VALUES (1, convert_from('\\x81', 'WIN1252'))")
        (chunk,) = position.bulk.pending["public.t"]
        for read in (lambda: log.read(position, 100), lambda: log.read_chunk("public.t", chunk)):
            with pytest.raises(IngestError, match="0x81") as raised:
                read()
            assert error_class(raised) == "CAPTURED_TEXT_NOT_DECODABLE"
        # As the hint says: the row is found, and the database copied again.
        with pytest.raises(psycopg.errors.UntranslatableCharacter):
            database.execute("SELECT convert_to(x, 'UTF8') FROM t")
        database.execute("UPDATE t SET x = 'y'")
        position = log.begin("reader")
        assert log.read_chunk("public.t", chunk)[0].num_rows == 1
        assert log.read(position, 100).rows.num_rows == 0
        log.close()
        database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_texts_that_are_no_utf_8_are_an_error_of_their_class(database: psycopg.Connection) -> None:
    """A server does not look at them again once they are stored."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    database.execute("CREATE CAST (bytea AS text) WITHOUT FUNCTION")
    with closing(PostgreSQLChangeLog(capture_of(database))) as log:
        position = log.begin("reader")
        database.execute("INSERT INTO t VALUES (1, '\\xe4'::bytea::text)")
        (chunk,) = position.bulk.pending["public.t"]
        for read in (lambda: log.read(position, 100), lambda: log.read_chunk("public.t", chunk)):
            with pytest.raises(IngestError, match=r"public\.t") as raised:
                read()
            assert error_class(raised) == "CAPTURED_TEXT_NOT_DECODABLE"


def test_a_database_that_the_server_cannot_convert_is_not_usable() -> None:
    url = fresh_database("ENCODING 'MULE_INTERNAL' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    with pytest.raises(IngestError, match="MULE_INTERNAL") as raised, translated_errors("shop"):
        connect(url)
    assert error_class(raised) == "CAPTURE_SERVER_NOT_USABLE"


SQL_WORDS = re.compile(r"\s*\(?(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|WITH|SET|COPY|DROP|TRUNCATE|SHOW)\b")


def test_statements_are_ascii() -> None:
    """A database of another encoding refuses a statement with a character that it does not have, be it in a
    comment."""
    strange = []
    for package in (tautochrone.sources.postgresql, tautochrone.sinks.postgresql):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and SQL_WORDS.match(text) and not text.isascii():
                    strange.append(f"{path.name}: {text}")
    assert strange == []
