"""Settings of a server, a database or a role change nothing that captures and sinks read or write."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS, deliver

from tautochrone.errors import IngestError, SinkError
from tautochrone.model.database_sessions import POSTGRESQL_SESSION_SETTINGS, REFUSED_SETTINGS
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.sinks.postgresql.options import postgresql_options
from tautochrone.sinks.postgresql.sink import PostgresqlSink
from tautochrone.sources.postgresql import bulk
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import connect
from tautochrone.testing.sink_conformance import transaction
from tautochrone.testing.sqlite_sink import ListRows

from .test_change_log import SLOT, capture_of, error_class, rows, url_of

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
_SET_BY_CONNECTIONS = ("client_encoding", "application_name", "client_min_messages", "synchronous_commit")
_WITHOUT_MEANING = {
    "how a query is planned, not which rows it has": (
        "enable_*", "geqo*", "jit*", "cpu_*", "parallel_*", "min_parallel_*", "*_page_cost",
        "plan_cache_mode",
        "constraint_exclusion", "cursor_tuple_fraction", "default_statistics_target", "*_collapse_limit",
        "recursive_worktable_factor", "effective_cache_size", "debug_parallel_query", "max_parallel_*",
        "synchronize_seqscans",
    ),
    "memory, disk and speed; where there is too little, a statement fails": (
        "work_mem", "hash_mem_multiplier", "logical_decoding_work_mem", "maintenance_work_mem",
        "temp_buffers",
        "temp_file_limit", "max_stack_depth", "*_io_concurrency", "io_combine_limit", "backend_flush_after",
        "gin_pending_list_limit", "wal_*", "commit_delay", "commit_siblings", "deadlock_timeout", "vacuum_*",
        "file_copy_method", "debug_discard_caches", "ignore_system_indexes", "post_auth_delay",
        "default_toast_compression", "default_tablespace", "temp_tablespaces", "allow_in_place_tablespaces",
    ),
    "what the server writes of itself": (
        "log_*", "track_*", "trace_*", "debug_p*", "compute_query_id", "update_process_title",
        "backtrace_functions", "stats_fetch_consistency", "md5_password_warnings", "event_source",
    ),
    "a connection that is cut is a server that does not answer": (
        "tcp_*", "client_connection_check_interval",
    ),
    "of statements that are not ours": (
        "check_function_bodies", "createrole_self_grant", "password_encryption", "scram_iterations",
        "icu_validation_level", "allow_system_table_mods", "lo_compat_privileges", "extension_control_path",
        "dynamic_library_path", "default_text_search_config", "lc_numeric", "lc_time",
    ),
    "values are printed and read with numbers for time zones": ("timezone_abbreviations",),
    "we ask for no streaming of open transactions": ("debug_logical_replication_streaming",),
    "triggers, which a sink's tables and our messages have none of": (
        "session_replication_role", "event_triggers",
    ),
    "each transaction takes it from its default_transaction_...": ("transaction_*",),
    "code that the server's owner loads": ("session_preload_libraries", "local_preload_libraries"),
    # A login that is refused in another language counts as a server that does not answer, and says why.
    "errors are told by SQLSTATE": ("lc_messages",),
}  # fmt: skip


def _is_classified(name: str) -> bool:
    known = {*map(str.lower, POSTGRESQL_SESSION_SETTINGS), *REFUSED_SETTINGS, *_SET_BY_CONNECTIONS}
    patterns = [pattern for group in _WITHOUT_MEANING.values() for pattern in group]
    return name.lower() in known or any(_matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    begin, star, end = pattern.partition("*")
    return name.startswith(begin) and name.endswith(end) if star else name == pattern


_OF_SESSIONS = (
    "SELECT name, vartype, min_val, max_val, enumvals, setting FROM pg_settings "
    "WHERE context IN ('user', 'superuser', 'backend', 'superuser-backend') ORDER BY name"
)


def test_each_setting_of_a_session_is_ours_or_cannot_matter(database: psycopg.Connection) -> None:
    settings = database.execute(_OF_SESSIONS).fetchall()
    assert len(settings) > 150
    assert [name for name, *_ in settings if not _is_classified(name)] == []


_HOSTILE_SCHEMA = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.pg_current_snapshot() RETURNS text LANGUAGE sql AS $$ SELECT '1:1:' $$;
CREATE FUNCTION evil.pg_current_wal_insert_lsn() RETURNS pg_lsn LANGUAGE sql AS $$ SELECT '0/1'::pg_lsn $$;
CREATE FUNCTION evil.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_format';
CREATE FUNCTION evil.set_config(text, text, bool) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$;
CREATE FUNCTION evil.count("any") RETURNS bigint LANGUAGE internal AS 'pg_num_nulls';
CREATE FUNCTION evil.never(int, int) RETURNS bool LANGUAGE sql AS $$ SELECT false $$;
CREATE FUNCTION evil.never(text, text) RETURNS bool LANGUAGE sql AS $$ SELECT false $$;
CREATE OPERATOR evil.>= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.never);
CREATE OPERATOR evil.< (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.never);
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.never);
CREATE DOMAIN evil.bigint AS int; CREATE DOMAIN evil.text AS int; CREATE DOMAIN evil.uuid AS int;
CREATE TABLE evil.pg_class (oid oid, relname name, relnamespace oid);
CREATE TABLE evil.pg_publication (oid oid, pubname name);
CREATE TABLE evil.pg_replication_slots (slot_name name);
CREATE VIEW evil.pg_settings AS SELECT 1 AS name;
"""
_TABLES = """
CREATE EXTENSION vector;
CREATE FUNCTION odd(int) RETURNS bool LANGUAGE sql AS $$ SELECT $1 > 0 $$;
CREATE FUNCTION checked(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN odd($1); END $$;
CREATE DOMAIN number AS int CHECK (checked(VALUE));
CREATE TYPE pair AS (a int, b text);
CREATE TYPE mood AS ENUM ('bad', 'ok');
CREATE TABLE v (id int PRIMARY KEY, m money, i interval, y bytea, r real, d double precision, t timestamptz,
    day date, a int[], c regclass, o mood, p pair, n numeric, z time with time zone, tr tstzrange);
INSERT INTO v SELECT n, n * 1234.5, '1 mon 2 days 03:00:00.5', '\\x00ff'::bytea, 0.1::real * n, pi() * n,
    '2026-03-29 01:30+00'::timestamptz + n * interval '1 hour', '2026-04-05', ARRAY[n, NULL], 'v', 'ok',
    ROW(n, 'x')::pair, n / 3.0, '10:00+02', tstzrange('2026-03-29 01:30+00', '2026-10-25 01:30+00')
FROM generate_series(1, 2000) n;
CREATE TABLE of_vectors (k vector(2), id int, x text, PRIMARY KEY (k, id));
INSERT INTO of_vectors SELECT ('[' || n || ',1]')::vector, n % 3, repeat('x', 50)
FROM generate_series(1, 2000) n;
CREATE TABLE of_vector (k vector(2) PRIMARY KEY, x text);
INSERT INTO of_vector SELECT ('[' || n || ',1]')::vector, repeat('x', 50) FROM generate_series(1, 2000) n;
CREATE TABLE of_numbers (k number PRIMARY KEY, x text);
INSERT INTO of_numbers SELECT n, repeat('x', 50) FROM generate_series(1, 2000) n;
CREATE TABLE of_bits (k bit(24), c char(4), p pair, PRIMARY KEY (k, c, p));
INSERT INTO of_bits SELECT n::bit(24), 'c', ROW(n, 'x')::pair FROM generate_series(1, 2000) n;
CREATE TABLE parent (id int PRIMARY KEY, x text);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
INSERT INTO parent VALUES (1, 'p'); INSERT INTO child VALUES (2, 'c');
"""
_CHANGES = """
INSERT INTO v SELECT n, n, '1 day', '\\xff', 1.1, 1.1, now(), now(), '{NULL}', 'parent', 'bad', NULL, 1,
    '10:00+02' FROM generate_series(3000, 3010) n;
UPDATE v SET d = d + 0.1, tr = NULL WHERE id < 10; DELETE FROM v WHERE id = 11;
UPDATE v SET id = 9000 WHERE id = 12;
UPDATE of_vectors SET k = '[0.1,0.2]' WHERE k = '[5,1]'; DELETE FROM of_bits WHERE k < 5::bit(24);
TRUNCATE of_numbers; UPDATE parent SET x = 'y';
"""


def _hostile(
    name: str, kind: str, low: str, high: str, choices: list[str] | None, now: str, seed: int
) -> str:
    texts = {
        "search_path": "evil, pg_catalog, public",
        "DateStyle": ["German, DMY", "SQL, MDY", "Postgres, YMD"][seed % 3],
        "TimeZone": ["Asia/Kathmandu", "America/St_Johns", "Africa/Monrovia"][seed % 3],
        "client_encoding": "LATIN1",
        "default_text_search_config": "pg_catalog.simple",
        "default_table_access_method": "evil_heap",
        "restrict_nonsystem_relation_kind": "view, foreign-table",
        "timezone_abbreviations": "India",
        "default_tablespace": "missing",
        "createrole_self_grant": "set, inherit",
    }
    if name in texts:
        return texts[name]
    if kind == "bool":
        return "off" if now == "on" else "on"
    if kind == "enum":
        others = [choice for choice in choices or [] if choice != now]
        return others[seed % len(others)] if others else now
    if kind in ("integer", "real"):
        # The smallest times of all would end a session before its first statement.
        smallest = "500" if name.endswith("timeout") else low
        return (smallest, high)[seed % 2]
    return now


def _make_hostile(database: psycopg.Connection, seed: int, *, but: frozenset[str] = frozenset()) -> int:
    """All settings that a database can have, as far as the server takes the values."""
    name = sql.Identifier(database.info.dbname)
    database.execute("CREATE ACCESS METHOD evil_heap TYPE TABLE HANDLER heap_tableam_handler")
    count = 0
    for setting, kind, low, high, choices, now in database.execute(_OF_SESSIONS).fetchall():
        if setting in but or setting == "role":
            continue
        value = _hostile(setting, kind, low, high, choices, now, seed)
        if value == now:
            continue
        parts = [part.strip() for part in value.split(",")] if setting == "search_path" else [value]
        statement = sql.SQL("ALTER DATABASE {} SET {} = {}").format(
            name, sql.Identifier(setting), sql.SQL(", ").join(map(sql.Literal, parts))
        )
        try:
            database.execute(statement)
            count += 1
        except psycopg.Error as error:
            if error.sqlstate not in ("22023", "25001", "55P02", "0A000"):
                raise
    return count


_CUT_BY_LIMITS = frozenset(
    {
        "temp_file_limit", "temp_buffers", "max_stack_depth", "post_auth_delay", "debug_discard_caches",
        *REFUSED_SETTINGS,
    }
)  # fmt: skip
"""With these at their ends, statements fail by class, or take minutes."""


@pytest.fixture
def hostile(database: psycopg.Connection) -> Iterator[psycopg.Connection]:
    database.execute("SET client_min_messages = error")
    database.execute(_TABLES)
    database.execute(_HOSTILE_SCHEMA)
    yield database
    database.execute(f"ALTER DATABASE {database.info.dbname} RESET ALL")


def copied_values(log: PostgreSQLChangeLog, position: Any) -> list[Any]:
    """Values of all chunks: the snapshot and the place in the log differ with time."""
    copied = set()
    for relation, chunks in position.bulk.pending.items():
        for chunk in chunks:
            copied |= {
                (relation, tuple(row["columns"]))
                for row in log.read_chunk(relation, chunk)[0].to_pylist()
                if row["columns"]
            }
    return sorted(copied, key=repr)


@pytest.mark.parametrize("seed", SEEDS)
def test_captures_read_the_same_with_hostile_settings(
    hostile: psycopg.Connection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 20_000)
    with connect(url_of(hostile)) as connection:
        capture = capture_of(connection)
    with closing(PostgreSQLChangeLog(capture)) as log:
        position = log.begin("reader")
        assert {name for name, chunks in position.bulk.pending.items() if len(chunks) > 2} >= {
            "public.v", "public.of_vector", "public.of_vectors", "public.of_numbers", "public.of_bits",
        }  # fmt: skip
        copied = copied_values(log, position)
        assert len(copied) == 10_002
        hostile.execute(_CHANGES)
        read = log.read(position, 100_000)
        assert read.rows.num_rows > 30
    assert _make_hostile(hostile, seed, but=_CUT_BY_LIMITS) > 120
    url = url_of(hostile)
    with psycopg.connect(url) as plain:
        assert "evil" in str(plain.execute("SHOW search_path").fetchone())
    with closing(PostgreSQLChangeLog(capture)) as log:
        assert rows(log.read(position, 100_000)) == rows(read)
        hostile.execute("INSERT INTO parent VALUES (7, 'z')")
        follows = log.read(log.resume(read.position), 100_000)
        assert rows(follows) == [("public.parent", "insert", {"id": "7", "x": "z"})]
        log.acknowledge(follows.position)
        anew = log.begin("another")
        again = copied_values(log, anew)
        assert log.check_prerequisites().startswith("7 tables")
    # The rows as the changes left them, by the same texts.
    with closing(PostgreSQLChangeLog(capture)) as log:
        hostile.execute(f"ALTER DATABASE {hostile.info.dbname} RESET ALL")
        assert again == copied_values(log, log.begin("third"))


_VALUES = {
    "id": (spark.LongType(), 1),
    "d": (spark.DoubleType(), 0.1 + 0.2),
    "f": (spark.FloatType(), 0.1),
    "b": (spark.BinaryType(), b"\x00\xff\\"),
    "t": (spark.TimestampType(), dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)),
    "l": (spark.TimestampNTZType(), dt.datetime(2026, 4, 5, 1, 30, tzinfo=dt.UTC).replace(tzinfo=None)),
    "day": (spark.DateType(), dt.date(2026, 4, 5)),
    "x": (spark.StringType(), "a\\b'c"),
    "a": (spark.ArrayType(spark.DoubleType()), [0.1, None]),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_sinks_hold_and_audit_the_same_with_hostile_settings(hostile: psycopg.Connection, seed: int) -> None:
    assert _make_hostile(hostile, seed, but=_CUT_BY_LIMITS) > 120
    sink: Any = PostgresqlSink("mirror", postgresql_options("mirror", {"url": url_of(hostile)}))
    sink.fence(Fence(1))
    schema = spark.StructType([spark.StructField(name, kind) for name, (kind, _) in _VALUES.items()])
    sink.ensure(ORDERS, schema, ["id"], Fence(1))
    expected = [(number, *[value for _, value in _VALUES.values()][1:]) for number in range(5)]
    deliver(sink, transaction(1), expected, columns=[*_VALUES])
    deliver(sink, transaction(2), [], removed=expected[3:], columns=[*_VALUES])
    assert sink.audit(ORDERS, CheckpointNumber(2)) == sink.digest(ORDERS, ListRows([*_VALUES], expected[:3]))
    sink.close()


@pytest.mark.parametrize("setting", REFUSED_SETTINGS)
def test_where_damaged_pages_read_as_empty_nothing_is_read(shop: psycopg.Connection, setting: str) -> None:
    log = PostgreSQLChangeLog(capture_of(shop))
    shop.execute(f"ALTER DATABASE {shop.info.dbname} SET {setting} = on")
    with pytest.raises(IngestError, match=f"{setting} is on") as raised:
        log.begin("reader")
    assert error_class(raised) == "CAPTURE_SERVER_NOT_USABLE"
    with pytest.raises(SinkError, match=f"{setting} is on"):
        PostgresqlSink("mirror", postgresql_options("mirror", {"url": url_of(shop)}))
    # As the hint says.
    shop.execute(f"ALTER DATABASE {shop.info.dbname} RESET {setting}")
    log.begin("reader")
    log.close()


def test_row_security_refuses_a_copy(shop: psycopg.Connection) -> None:
    role = f"filtered_{shop.info.dbname[-8:]}"
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    shop.execute(f"GRANT SELECT ON accounts TO {role}; GRANT CREATE ON DATABASE {shop.info.dbname} TO {role}")
    shop.execute("ALTER TABLE accounts ENABLE ROW LEVEL SECURITY")
    shop.execute("CREATE POLICY first_only ON accounts FOR SELECT USING (id = 1)")
    shop.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE accounts WITH (publish_via_partition_root = true)")
    url = url_of(shop).replace("user=postgres", f"user={role}")
    log = PostgreSQLChangeLog(capture_of(shop, url, "public.accounts"))
    chunk = log.begin("reader").bulk.next_chunks(1)[0]
    for refused in (log.check_prerequisites, lambda: log.read_chunk(*chunk)):
        with pytest.raises(IngestError) as raised:
            refused()
        assert "BYPASSRLS" in str(raised.value.hint)
        assert error_class(raised) == "CAPTURE_RIGHTS_MISSING"
    shop.execute(f"ALTER ROLE {role} BYPASSRLS")
    log.check_prerequisites()
    assert log.read_chunk(*chunk)[0].num_rows == 3
    log.close()
    shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
