"""What can be wrong with one table of several: it is set aside, the others go on, and its hint ends it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tautochrone.errors import DefinitionError, DefinitionsOutdatedError
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.copied_rows import completed_rows
from tautochrone.sources.mysql.change_log import MySQLChangeLog

from .conftest import Schema

captures = importlib.import_module("tautochrone.sources.mysql.capture")
_ABSENT, _WITHOUT_KEY, _NOT_LOGGED, _TYPE, _COLUMN = (
    "CAPTURE_WITHOUT_TABLES",
    "CAPTURED_TABLE_WITHOUT_KEY",
    "CAPTURED_TABLE_NOT_LOGGED",
    "CAPTURED_TYPE_NOT_SUPPORTED",
    "CAPTURED_COLUMN_NAME_TAKEN",
)
_DEFINED = "(id INT PRIMARY KEY, a VARCHAR(20), p INT)"
_TROUBLES = {
    "dropped": (
        _ABSENT,
        "DROP TABLE dropped",
        f"CREATE TABLE dropped {_DEFINED}; INSERT INTO dropped VALUES (4, 'd', NULL)",
    ),
    "renamed": (_ABSENT, "RENAME TABLE renamed TO away", "RENAME TABLE away TO renamed"),
    "viewed": (
        _ABSENT,
        "RENAME TABLE viewed TO behind; CREATE VIEW viewed AS SELECT * FROM behind",
        "DROP VIEW viewed; RENAME TABLE behind TO viewed",
    ),
    "keyless": (
        _WITHOUT_KEY,
        "ALTER TABLE keyless DROP PRIMARY KEY",
        "ALTER TABLE keyless ADD PRIMARY KEY (id)",
    ),
    "engine": (_NOT_LOGGED, "ALTER TABLE engine ENGINE = MyISAM", "ALTER TABLE engine ENGINE = InnoDB"),
    "named": (
        _COLUMN,
        "ALTER TABLE named ADD __taut_point INT",
        "ALTER TABLE named RENAME COLUMN __taut_point TO point",
    ),
}
_OF_MARIADB = {
    "versioned": (
        _NOT_LOGGED,
        "ALTER TABLE versioned ADD SYSTEM VERSIONING",
        "ALTER TABLE versioned DROP SYSTEM VERSIONING",
    ),
    "typed": (_TYPE, "ALTER TABLE typed ADD address INET6", "ALTER TABLE typed MODIFY address VARCHAR(50)"),
    "packed": (_TYPE, "ALTER TABLE packed ADD c TEXT COMPRESSED", "ALTER TABLE packed MODIFY c TEXT"),
    "dated": (
        _TYPE,
        "SET GLOBAL mysql56_temporal_format = OFF; ALTER TABLE dated ADD d DATETIME, ADD e TIMESTAMP NULL, "
        "ADD f TIME(3); UPDATE dated SET d = '2026-01-02 03:04:05', e = d, f = '01:02:03.004'",
        "SET GLOBAL mysql56_temporal_format = ON; ALTER TABLE dated FORCE",
    ),
    "cascaded": (
        _NOT_LOGGED,
        "ALTER TABLE cascaded ADD CONSTRAINT parent FOREIGN KEY (p) REFERENCES good (id) ON DELETE CASCADE",
        "ALTER TABLE cascaded DROP FOREIGN KEY parent",
    ),
}
_OF_MYSQL = {"typed": (_TYPE, "ALTER TABLE typed ADD v VECTOR(3)", "ALTER TABLE typed DROP v")}


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch, schema: Schema) -> Iterator[None]:
    monkeypatch.setattr(captures, "define_log", lambda *_: None)
    monkeypatch.setattr(captures, "define_table", lambda *_, **__: None)
    yield
    if not schema.is_mysql:
        schema.run("SET GLOBAL mysql56_temporal_format = DEFAULT")


def loaded(schema: Schema, names: list[str]) -> tuple[MySQLChangeLog, dict[str, Reason]]:
    """As the definitions of a new process have it, which name each table."""
    captures.capture("aside", url=schema.server.server_url(), tables=names)
    captured = captures._captures["aside"]
    return MySQLChangeLog(captured), {name.split(".")[1]: why for name, why in captured.aside.items()}


def troubles(schema: Schema) -> dict[str, tuple[str, str, str]]:
    return _TROUBLES | (_OF_MYSQL if schema.is_mysql else _OF_MARIADB)


def require_only_good_goes_on(schema: Schema, names: list[str], position: LogPosition) -> LogPosition:
    log, aside = loaded(schema, names)
    assert {name: reason.params["error"] for name, reason in aside.items()} == {
        name: error for name, (error, *_) in troubles(schema).items()
    }
    assert all(reason.params["hint"] for reason in aside.values())
    assert log.relations() == (f"{schema.name}.good",)
    position = log.resume(position)
    schema.run("INSERT INTO good (id) SELECT COUNT(*) + 1 FROM good AS g")
    batch = log.read(position, 1000)
    assert {row["relation"] for row in batch.rows.to_pylist()} == {f"{schema.name}.good"}
    assert batch.caught_up
    log.close()
    return batch.position


def require_mended(schema: Schema, names: list[str], position: LogPosition) -> None:
    """All that was set aside is copied, with the rows of the database."""
    log, aside = loaded(schema, names)
    assert not aside
    position = log.resume(position)
    assert position.bulk.pending.keys() == {f"{schema.name}.{name}" for name in troubles(schema)}
    for relation, (chunk,) in position.bulk.pending.items():
        copied = {dict(row["columns"])["id"] for row in log.read_chunk(relation, chunk)[0].to_pylist()}
        assert copied == {row[0] if isinstance(row[0], str) else str(row[0]) for row in ids(schema, relation)}
        assert len(completed_rows([relation], position.point))
    log.close()


def ids(schema: Schema, relation: str) -> list[tuple[object, ...]]:
    return schema.rows(f"SELECT id FROM {relation}")


def create(schema: Schema) -> list[str]:
    names = ["good", *troubles(schema)]
    for name in names:
        schema.run(f"CREATE TABLE {name} {_DEFINED}")
        if name != "good":
            schema.run(f"INSERT INTO {name} VALUES (1, 'x', NULL), (2, 'y', NULL)")
    return [f"{schema.name}.{name}" for name in names]


def execute(schema: Schema, number: int) -> None:
    """The statements of each trouble (1), or those that end it (2)."""
    for trouble in troubles(schema).values():
        schema.run(*trouble[number].split("; "))


def test_tables_in_trouble_before_the_first_run_are_set_aside(schema: Schema) -> None:
    names = create(schema)
    execute(schema, 1)
    log, _ = loaded(schema, names)
    position = replace(log.begin("reader"), bulk=BulkProgress())
    log.close()
    position = require_only_good_goes_on(schema, names, position)
    execute(schema, 2)
    require_mended(schema, names, position)


def test_tables_that_get_into_trouble_are_set_aside(schema: Schema) -> None:
    names = create(schema)
    log, aside = loaded(schema, names)
    assert not aside
    position = replace(log.begin("reader"), bulk=BulkProgress())
    execute(schema, 1)
    # A run that goes on takes what was before, and then loads its definitions anew.
    with pytest.raises(DefinitionsOutdatedError):
        log.read(position, 1000)
    log.close()
    position = require_only_good_goes_on(schema, names, position)
    execute(schema, 2)
    require_mended(schema, names, position)


@pytest.mark.parametrize("name", sorted(_TROUBLES))
def test_each_trouble_alone_ends_a_run_only_until_definitions_are_loaded(schema: Schema, name: str) -> None:
    schema.run(f"CREATE TABLE good {_DEFINED}", f"CREATE TABLE {name} {_DEFINED}")
    names = [f"{schema.name}.good", f"{schema.name}.{name}"]
    log, _ = loaded(schema, names)
    position = replace(log.begin("reader"), bulk=BulkProgress())
    error, trouble, _mended = _TROUBLES[name]
    schema.run(*trouble.split("; "), "INSERT INTO good (id) VALUES (1)")
    with pytest.raises(DefinitionsOutdatedError) as raised:
        log.read(position, 1000)
    assert raised.value.hint
    log.close()
    log, aside = loaded(schema, names)
    assert [reason.params["error"] for reason in aside.values()] == [error]
    assert log.read(log.resume(position), 100).rows.num_rows == 1
    log.close()


def test_without_any_other_table_a_trouble_is_an_error(schema: Schema) -> None:
    schema.run("CREATE TABLE keyless (a INT)")
    with pytest.raises(DefinitionError) as raised:
        loaded(schema, [f"{schema.name}.keyless", f"{schema.name}.absent"])
    assert raised.value.error_class in (_WITHOUT_KEY, _ABSENT)


def test_rows_that_a_session_logs_incompletely_copy_their_table_only(schema: Schema) -> None:
    schema.run(f"CREATE TABLE good {_DEFINED}", "CREATE TABLE t (id INT PRIMARY KEY, j JSON, k INT)")
    schema.run("CREATE TABLE other LIKE t", "INSERT INTO t VALUES (1, '{\"a\": 1}', 1)")
    schema.run("INSERT INTO other VALUES (1, '{\"a\": 1}', 1)")
    log, _ = loaded(schema, [f"{schema.name}.good", f"{schema.name}.t"])
    position = replace(log.begin("reader"), bulk=BulkProgress())
    options = ["binlog_row_image = MINIMAL"]
    if schema.is_mysql:
        options.append("binlog_row_value_options = PARTIAL_JSON")
    for option in options:
        partly, whole = f"SET SESSION {option}", "SET SESSION binlog_row_image = FULL"
        good = "INSERT INTO good (id) SELECT COUNT(*) + 1 FROM good AS g"
        schema.run(partly, "UPDATE other SET j = JSON_SET(j, '$.a', 2), k = k + 1", whole, good)
        batch = log.read(position, 100)
        # Nobody captures that table.
        assert (batch.rows.num_rows, batch.caught_up) == (1, True)
        schema.run(partly, "UPDATE t SET j = JSON_SET(j, '$.a', 3), k = k + 1", whole, good)
        again = log.read(batch.position, 100)
        assert set(again.copied_again) == {f"{schema.name}.t"}
        copied = log.resume(again.position)
        (chunk,) = copied.bulk.pending[f"{schema.name}.t"]
        (row,) = log.read_chunk(f"{schema.name}.t", chunk)[0].to_pylist()
        assert dict(row["columns"])["k"] == str(schema.rows("SELECT k FROM t")[0][0])
        behind = log.read(copied, 100)
        assert [row["relation"] for row in behind.rows.to_pylist()] == [f"{schema.name}.good"]
        position = replace(behind.position, bulk=BulkProgress())
    log.close()
