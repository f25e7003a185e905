"""Statements in the character sets, SQL modes and spellings of many sessions: the server runs them, and what
a reader has afterwards is what the server has, or an error with a hint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from .conftest import Schema, on
from .followed import Followed

_NAMES = (
    *("größe", "订单", "許功蓋", "表ソ十", "заказ", "παραγγελία", "주문", "řeka", "הזמנה"),
    *("a`b c", 'x"y', "1e5", "a.b"),
)
_CHARSETS = ("utf8mb4", "latin1", "gbk", "sjis", "big5", "cp1251", "euckr", "ujis", "cp932", "greek", "cp852")
_MORE_CHARSETS = ("utf8mb3", "gb2312", "gb18030", "eucjpms", "koi8r", "cp866", "cp1250", "hebrew", "latin7")
_FORMS = (
    "TRUNCATE TABLE {t}",
    "/* {t} */ truncate {t} -- of {t}",
    "TRUNCATE\t\n{s} . {t}",
    "TRUNCATE/**/TABLE/*!50000 {s}.*/ /*!99999 x*/{t}#",
    "TRUNCATE TABLE .{t}",
    "/*M!100100 TRUNCATE TABLE {t} */",
    "SET STATEMENT lock_wait_timeout = 7 FOR TRUNCATE {t}",
    "ALTER TABLE {t} MODIFY a VARCHAR(20) FIRST",
    "ALTER TABLE {t} COMMENT = '\\\\', TRUNCATE PARTITION ALL",
    "ALTER TABLE {t} COMMENT 'it''s', DROP COLUMN a, ADD COLUMN a VARCHAR(20) DEFAULT 'new'",
    "ALTER TABLE {t} RENAME TO {t}, COMMENT = 'nothing'",
    "RENAME TABLE {t} TO spare, {u} TO {t}, spare TO {u}",
    "RENAME TABLE .{t} TO spare, {u} TO {t}, spare TO {u}",
    "DROP TABLE {t}; CREATE TABLE {t} (id INT PRIMARY KEY, a VARCHAR(20))",
    "CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, a VARCHAR(20))",
    "DROP TABLE {t}; CREATE TABLE {t} (PRIMARY KEY (id)) SELECT * FROM {u}",
    "CREATE TABLE fresh LIKE {u}; DROP TABLE {t}, {u}; RENAME TABLE fresh TO {t}; CREATE TABLE {u} LIKE {t}",
    "CREATE TABLE fresh (id INT, FOREIGN KEY (id) REFERENCES {t} (id)); DROP TABLE fresh",
    "ALTER TABLE {t} CONVERT TO CHARACTER SET ucs2",
    "OPTIMIZE TABLE {t}, {u}",
)


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, quote * 2) + quote


def _names_in(connection: Any, charset: str) -> list[str]:
    """Those that the character set has, as the server says."""
    names = []
    with connection.cursor() as cursor:
        for name in _NAMES:
            cursor.execute(
                f"SELECT CONVERT(CONVERT(%s USING {charset}) USING utf8mb4) = BINARY %s", (name, name)
            )
            if cursor.fetchall()[0][0]:
                names.append(name)
    return names


def _encoded(connection: Any, charset: str, statement: str) -> bytes:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT HEX(CONVERT(%s USING {charset}))", (statement,))
        return bytes.fromhex(cursor.fetchall()[0][0])


def _send(connection: Any, statement: bytes) -> None:
    connection._execute_command(pymysql.constants.COMMAND.COM_QUERY, statement)
    connection._read_query_result()


def _cases(forms: Sequence[str], seed: int, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    for number, form in enumerate(forms):
        yield form, names[(number + seed) % len(names)], "orders", "`" if number % 2 else '"'


def _check(schema: Schema, charset: str, forms: Sequence[str], seed: int) -> tuple[int, int]:
    """How many statements the server took, and how many of these were no truncate and copied a table."""
    taken = copied = 0
    names = _names_in(schema.connection, charset)
    session = schema.server.open_connection(database=schema.name, use_unicode=False)
    for form, name, other, quote in _cases(forms, seed, names):
        t, u = _quoted(name, "`"), _quoted(other, "`")
        columns = "(id INT PRIMARY KEY, a VARCHAR(20))"
        schema.run(f"DROP TABLE IF EXISTS {t}, {u}, fresh, spare", f"CREATE TABLE {t} {columns}")
        schema.run(f"CREATE TABLE {u} LIKE {t}", f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
        schema.run(f"INSERT INTO {u} VALUES (3, 'c')")
        followed = Followed.start(schema)
        mode = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES" if quote == '"' else ""
        _send(session, f"SET NAMES {charset}, sql_mode = '{mode}'".encode())
        written = _quoted(name, quote), _quoted(other, quote), _quoted(schema.name, quote)
        try:
            for part in form.format(t=written[0], u=written[1], s=written[2]).split(";"):
                _send(session, _encoded(schema.connection, charset, part))
        except pymysql.Error:
            followed.log.close()
            continue
        taken += 1
        schema.run(f"INSERT INTO {t} (id, a) VALUES (7, 'behind')")
        followed.catch_up()
        assert not followed.difference(), (charset, form, name)
        copied += bool(followed.copied)
        followed.log.close()
    session.close()
    return taken, copied


@pytest.mark.parametrize("number", [0, 2, 4])
def test_statements_in_client_character_sets(schema: Schema, number: int) -> None:
    forms = _FORMS[number % 3 :: 3]
    taken, copied = _check(schema, _CHARSETS[number], forms, number)
    assert taken >= len(forms) // 2
    assert copied < taken


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("charset", _CHARSETS + _MORE_CHARSETS)
def test_statements_in_all_client_character_sets(schema: Schema, charset: str) -> None:
    sets = schema.rows("SELECT character_set_name FROM information_schema.character_sets")
    if (charset,) not in sets and charset != "utf8mb3":
        pytest.skip("the server lacks this character set")
    for seed in range(len(_NAMES)):
        taken, _copied = _check(schema, charset, _FORMS, seed)
        assert taken >= len(_FORMS) // 2


_STATEMENTS = (
    "CREATE INDEX f ON t ((CONCAT(a, 'x')))",
    "CREATE UNIQUE INDEX u ON t (long_text)",
    "CREATE FULLTEXT INDEX f ON t (a); DROP INDEX f ON t",
    "CREATE OR REPLACE INDEX f ON t (a)",
    "CREATE SEQUENCE s; DROP SEQUENCE s",
    "CREATE OR REPLACE SEQUENCE t",
    "CREATE OR REPLACE VIEW t AS SELECT 1",
    "CREATE VIEW v AS SELECT * FROM t; UPDATE v SET a = 'by view'; DELETE FROM v WHERE id = 1; DROP VIEW v",
    "CREATE TRIGGER g AFTER INSERT ON other FOR EACH ROW DELETE FROM t; INSERT INTO other VALUES (1, 'x')",
    "CREATE FUNCTION w() RETURNS INT DETERMINISTIC DELETE FROM t; DROP FUNCTION w",
    "CREATE PROCEDURE p() TRUNCATE t; CALL p(); DROP PROCEDURE p",
    "PREPARE s FROM 'TRUNCATE t'; EXECUTE s",
    "EXECUTE IMMEDIATE 'TRUNCATE t'",
    "BEGIN NOT ATOMIC DELETE FROM t WHERE id = 1| TRUNCATE t| INSERT INTO t (id) VALUES (9)| END",
    "LOCK TABLES t WRITE; TRUNCATE t; INSERT INTO t (id) VALUES (4); UNLOCK TABLES",
    "INSERT INTO t (id) VALUES (5); REPLACE INTO t (id, a) VALUES (5, 'r'), (6, 's')",
    "INSERT DELAYED INTO t (id) VALUES (5)",
    "UPDATE t JOIN other o SET t.a = 'j'; DELETE t FROM t JOIN other o WHERE t.id = 1",
    "WITH c AS (SELECT 1 id) DELETE FROM t WHERE id IN (SELECT id FROM c)",
    "ANALYZE UPDATE t SET a = 'z'",
    "ANALYZE FORMAT=JSON DELETE FROM t",
    "HANDLER t OPEN; HANDLER t READ FIRST; HANDLER t CLOSE",
    "ALTER TABLE t ADD COLUMN z INT, ALGORITHM=INSTANT; ALTER TABLE t DROP COLUMN z",
    "ALTER TABLE t ORDER BY a",
    "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE t ADD SYSTEM VERSIONING; ALTER TABLE t DROP SYSTEM VERSIONING",
    "ALTER IGNORE TABLE t ADD UNIQUE (b)",
    "ALTER TABLE t MODIFY a VARCHAR(20) CHARACTER SET utf8mb4 COMMENT 'again', ADD INDEX (a)",
    "CREATE TEMPORARY TABLE t (id INT, a INT); TRUNCATE t; DROP TEMPORARY TABLE t",
    "RENAME TABLE t TO away; RENAME TABLE away TO t",
    "RENAME TABLE t TO x, other TO t, x TO other",
    "CREATE TABLE x LIKE t; INSERT INTO x (id) VALUES (8); DROP TABLE t; RENAME TABLE x TO t",
    "CREATE TABLE IF NOT EXISTS t (id INT); CREATE TABLE IF NOT EXISTS t SELECT 1 AS id",
    "TRUNCATE TABLE `#mysql50#t`",
    "GRANT SELECT ON t TO CURRENT_USER",
    "FLUSH TABLES t",
    "FLUSH LOGS; TRUNCATE t; FLUSH BINARY LOGS",
    "ALTER DATABASE CHARACTER SET latin1; ALTER DATABASE CHARACTER SET utf8mb4",
    "SET STATEMENT max_statement_time = 9 FOR DELETE FROM t",
    "SET SESSION binlog_format = 'STATEMENT'; DELETE FROM t WHERE id = 1",
    "SET SESSION binlog_format = 'MIXED'; DELETE FROM t; INSERT INTO t (id, a) VALUES (4, UUID())",
)


@on("mariadb")
def test_statements_of_all_kinds(schema: Schema) -> None:
    for form in _STATEMENTS:
        schema.run("DROP TABLE IF EXISTS t, other, x, away")
        schema.run(
            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b INT DEFAULT 1, long_text TEXT)",
            "CREATE TABLE other (id INT PRIMARY KEY, a VARCHAR(20))",
            "INSERT INTO t (id, a) VALUES (1, 'a'), (2, 'b')",
        )
        followed = Followed.start(schema)
        with schema.server.open_connection(database=schema.name) as connection, suppress(pymysql.Error):
            for statement in form.split(";"):
                connection.cursor().execute(statement.replace("|", ";"))
        with suppress(pymysql.Error):
            schema.run("INSERT INTO t (id, a) VALUES (7, 'behind')", "UPDATE t SET a = 'u' WHERE id = 2")
        followed.catch_up()
        followed.log.close()
        assert not followed.difference(), form
