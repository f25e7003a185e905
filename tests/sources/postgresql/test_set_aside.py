"""What can be wrong with one table of several: it is set aside, the others go on, and its hint ends it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from tautochrone.errors import DefinitionsOutdatedError
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog

from .test_change_log import url_of

captures = importlib.import_module("tautochrone.sources.postgresql.capture")
_ABSENT, _WITHOUT_KEY, _COLUMN, _RIGHTS = (
    "CAPTURE_WITHOUT_TABLES",
    "CAPTURED_TABLE_WITHOUT_KEY",
    "CAPTURED_COLUMN_NAME_TAKEN",
    "CAPTURE_RIGHTS_MISSING",
)
_DEFINED = "(id int PRIMARY KEY, a text NOT NULL)"
_TROUBLES = {
    "dropped": (
        _ABSENT,
        "DROP TABLE dropped",
        f"CREATE TABLE dropped {_DEFINED}; INSERT INTO dropped VALUES (4, 'd'); "
        "GRANT SELECT ON dropped TO guest",
    ),
    "renamed": (_ABSENT, "ALTER TABLE renamed RENAME TO away", "ALTER TABLE away RENAME TO renamed"),
    "moved": (
        _ABSENT,
        "CREATE SCHEMA elsewhere; ALTER TABLE moved SET SCHEMA elsewhere",
        "ALTER TABLE elsewhere.moved SET SCHEMA public",
    ),
    "viewed": (
        _ABSENT,
        "ALTER TABLE viewed RENAME TO behind; CREATE VIEW viewed AS SELECT * FROM behind",
        "DROP VIEW viewed; ALTER TABLE behind RENAME TO viewed",
    ),
    "unlogged": (
        _ABSENT,
        "ALTER PUBLICATION aside DROP TABLE unlogged; ALTER TABLE unlogged SET UNLOGGED",
        "ALTER TABLE unlogged SET LOGGED; ALTER PUBLICATION aside ADD TABLE unlogged",
    ),
    "keyless": (
        _WITHOUT_KEY,
        "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey",
        "ALTER TABLE keyless ADD PRIMARY KEY (id)",
    ),
    "nothing": (
        _WITHOUT_KEY,
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "ALTER TABLE nothing REPLICA IDENTITY DEFAULT",
    ),
    "indexed": (
        _WITHOUT_KEY,
        "ALTER TABLE indexed DROP CONSTRAINT indexed_pkey; CREATE UNIQUE INDEX ia ON indexed (a); "
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX ia; DROP INDEX ia",
        "ALTER TABLE indexed ADD PRIMARY KEY (id); ALTER TABLE indexed REPLICA IDENTITY DEFAULT",
    ),
    "named": (_COLUMN, 'ALTER TABLE named ADD "A" int', 'ALTER TABLE named RENAME "A" TO b'),
    "revoked": (_RIGHTS, "REVOKE SELECT ON revoked FROM guest", "GRANT SELECT ON revoked TO guest"),
}


@pytest.fixture(autouse=True)
def names(database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Of tables, of which the first one stays good. A role that owns none captures them."""
    monkeypatch.setattr(captures, "define_log", lambda *_: None)
    monkeypatch.setattr(captures, "define_table", lambda *_, **__: None)
    names = ["good", *_TROUBLES]
    for name in names:
        database.execute(f"CREATE TABLE {name} {_DEFINED}")
        if name != "good":
            database.execute(f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y')")
    tables = ", ".join(names)
    database.execute(f"CREATE PUBLICATION aside FOR TABLE {tables} WITH (publish_via_partition_root = true)")
    database.execute("DROP ROLE IF EXISTS guest")
    database.execute("CREATE ROLE guest LOGIN REPLICATION")
    database.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
    yield [f"public.{name}" for name in names]
    database.execute("DROP OWNED BY guest")


def loaded(database: psycopg.Connection, names: list[str]) -> tuple[PostgreSQLChangeLog, dict[str, Reason]]:
    """As the definitions of a new process have it, which name each table."""
    url = url_of(database).replace("user=postgres", "user=guest")
    slot = f"aside_{database.info.dbname[-6:]}"
    captures.capture("aside", url=url, tables=names, publication="aside", slot=slot)
    captured = captures._captures["aside"]
    return PostgreSQLChangeLog(captured), {name.split(".")[1]: why for name, why in captured.aside.items()}


def execute(database: psycopg.Connection, number: int) -> None:
    for trouble in _TROUBLES.values():
        for statement in trouble[number].split("; "):
            database.execute(statement.encode())


def require_only_good_goes_on(
    database: psycopg.Connection, names: list[str], position: LogPosition
) -> LogPosition:
    log, aside = loaded(database, names)
    assert {name: reason.params["error"] for name, reason in aside.items()} == {
        name: error for name, (error, *_) in _TROUBLES.items()
    }
    assert "GRANT SELECT" in str(aside["revoked"].params["hint"])
    position = log.resume(position)
    database.execute("INSERT INTO good SELECT count(*) + 1, 'x' FROM good")
    batch = log.read(position, 1000)
    assert {row["relation"] for row in batch.rows.to_pylist()} == {"public.good"}
    assert batch.caught_up
    log.close()
    return batch.position


def require_mended(database: psycopg.Connection, names: list[str], position: LogPosition) -> None:
    """All that was set aside is copied, with the rows of the database."""
    execute(database, 2)
    # As its owner; the hint of a role that may not says it.
    published = {row[0] for row in database.execute("SELECT tablename FROM pg_publication_tables").fetchall()}
    for name in _TROUBLES.keys() - published:
        _log, aside = loaded(database, names)
        database.execute(str(aside[name].params["hint"]).partition(": ")[2].partition("; or")[0].encode())
    log, aside = loaded(database, names)
    assert not aside
    position = log.resume(position)
    assert position.bulk.pending.keys() == {f"public.{name}" for name in _TROUBLES}
    for relation, (chunk,) in position.bulk.pending.items():
        copied = {dict(row["columns"])["id"] for row in log.read_chunk(relation, chunk)[0].to_pylist()}
        assert copied == {str(row[0]) for row in database.execute(f"SELECT id FROM {relation}").fetchall()}
    log.close()


def test_tables_in_trouble_before_the_first_run_are_set_aside(
    database: psycopg.Connection, names: list[str]
) -> None:
    execute(database, 1)
    log, _ = loaded(database, names)
    position = replace(log.begin("reader"), bulk=BulkProgress())
    log.close()
    position = require_only_good_goes_on(database, names, position)
    require_mended(database, names, position)


def test_tables_that_get_into_trouble_are_set_aside(database: psycopg.Connection, names: list[str]) -> None:
    log, aside = loaded(database, names)
    assert not aside
    position = replace(log.begin("reader"), bulk=BulkProgress())
    execute(database, 1)
    with pytest.raises(DefinitionsOutdatedError):
        log.read(position, 1000)
    log.close()
    position = require_only_good_goes_on(database, names, position)
    require_mended(database, names, position)
