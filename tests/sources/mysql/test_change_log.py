"""The binary log of a real server as a change log: whole transactions, losses, what it refuses."""

from __future__ import annotations

import importlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tautochrone.errors import (
    DefinitionError,
    DefinitionsOutdatedError,
    IngestError,
    SourceLoginRefusedError,
    SourceUnreachableError,
    TautochroneError,
)
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.mysql import capture, flavors
from tautochrone.sources.mysql.binlog import dump_events
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect

from .conftest import Schema, on

_TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20))"


def events(rows: Any) -> list[tuple[str, str, str | None]]:
    return [
        (row["operation"], dict(row["columns"] or {}).get("id", ""), dict(row["columns"] or {}).get("a"))
        for row in rows.to_pylist()
    ]


def test_batches_end_at_the_end_of_a_transaction(schema: Schema) -> None:
    schema.run(_TABLE, "CREATE TABLE other (id INT PRIMARY KEY)")
    log = schema.change_log()
    first = log.begin("reader")
    schema.run(
        "START TRANSACTION",
        "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
        "UPDATE t SET id = id + 10 ORDER BY id DESC",
        "INSERT INTO other VALUES (1)",
        "COMMIT",
        "START TRANSACTION",
        "INSERT INTO t VALUES (3, 'x')",
        "ROLLBACK",
        "START TRANSACTION",
        "UPDATE t SET a = 'b' WHERE id = 11",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (5, 'y')",
        "ROLLBACK TO s",
        "DELETE FROM t WHERE id = 12",
        "COMMIT",
        "FLUSH BINARY LOGS",
        "TRUNCATE TABLE t",
        "INSERT INTO t VALUES (7, 'é')",
    )
    batch = log.read(first, 1)
    of_table = [row for row in batch.rows.to_pylist() if row["relation"].endswith(".t")]
    assert [(row["operation"], dict(row["columns"])["id"]) for row in of_table] == [
        ("insert", "1"),
        ("insert", "2"),
        ("delete", "2"),
        ("insert", "12"),
        ("delete", "1"),
        ("insert", "11"),
    ]
    assert len(batch.rows) == 7
    assert {row["point"] for row in batch.rows.to_pylist()} == {batch.position.point}
    assert not batch.caught_up
    rest = log.read(batch.position, 100)
    assert events(rest.rows) == [
        ("update", "11", "b"),
        ("delete", "12", None),
        ("truncate", "", None),
        ("insert", "7", "é"),
    ]
    assert rest.caught_up
    assert rest.source_ms
    assert log.lag(rest.position) == {"bytes": 0}
    assert log.read(rest.position, 100).rows.num_rows == 0
    whole = MySQLChangeLog(schema.capture())
    repeated = whole.read(first, 100)
    assert repeated.rows.equals(
        type(batch.rows).from_batches([*batch.rows.to_batches(), *rest.rows.to_batches()])
    )
    assert repeated.position == rest.position
    for reader in (log, whole):
        reader.close()


def test_a_copy_is_published_behind_the_place_after_it(schema: Schema) -> None:
    schema.run(_TABLE, "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    log = schema.change_log()
    position = log.begin("reader")
    chunk = position.bulk.next_chunks(1)[0]
    rows, pass_at = log.read_chunk(*chunk)
    assert events(rows) == [("copy", "1", "a"), ("copy", "2", "b")]
    bulk = position.bulk.copied(*chunk, pass_at)
    # A new file of the log has no transaction, but it moves the place.
    schema.run("FLUSH BINARY LOGS")
    again, pass_at = log.read_chunk(*chunk)
    assert again.num_rows == 2
    bulk = bulk.at(0)
    waiting = LogPosition(
        log=position.log,
        point=position.point,
        marker=position.marker,
        bulk=type(bulk)(pass_at={f"{schema.name}.t": pass_at}),
    )
    batch = log.read(waiting, 10)
    assert not waiting.bulk.at(batch.position.point).waiting
    log.close()


def test_the_server_of_these_tests_shares_no_temporary_files(schema: Schema) -> None:
    [(folder,)] = schema.rows("SELECT @@tmpdir")
    assert Path(folder) != Path(tempfile.gettempdir())


@on("mariadb")
def test_the_log_goes_on_behind_a_restart(schema: Schema) -> None:
    schema.run(_TABLE)
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO t VALUES (1, 'a')")
    schema.server.restart_server()
    with schema.server.open_connection(database=schema.name) as connection:
        connection.cursor().execute("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(SourceUnreachableError) as raised:
        log.read(position, 100)
    assert raised.value.error_class == "CAPTURE_DATABASE_NOT_REACHABLE"
    assert events(log.read(position, 100).rows) == [("insert", "1", "a"), ("insert", "2", "b")]
    log.close()


def test_a_new_connection_to_another_server_takes_nothing(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.run(_TABLE)
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO t VALUES (1, 'a')")
    assert log.read(position, 100).rows.num_rows == 1
    monkeypatch.setattr(flavors.MySQL, "log_name", lambda *_: "mysql/other")
    monkeypatch.setattr(flavors.MariaDB, "log_name", lambda *_: "mariadb/other")
    with pytest.raises(SourceUnreachableError) as raised:
        log.read(position, 100)
    assert raised.value.retryable
    require_lost(log, position, "another server")


def test_a_log_that_is_gone_or_another_one_is_refused(schema: Schema) -> None:
    schema.run(_TABLE)
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'a')")
    newer = log.read(position, 100).position
    other = LogPosition(log=newer.log, point=newer.point, marker={**newer.marker, "gtid": _other_mark(newer)})
    unknown = {name: text for name, text in newer.marker.items() if name != "history"}
    elsewhere = LogPosition(log="mariadb/80", point=newer.point, marker=unknown)
    for position_of_other, reason in ((other, "other transactions before"), (elsewhere, "another server")):
        require_lost(log, position_of_other, reason)
    log.read(newer, 100)
    log.close()
    deadline = time.monotonic() + 30
    # The server removes a file once nothing needs it for its own recovery.
    while position.marker["file"] in {row[0] for row in schema.rows("SHOW BINARY LOGS")}:
        assert time.monotonic() < deadline
        schema.run("FLUSH BINARY LOGS")
        newest = schema.rows("SHOW BINARY LOGS")[-1][0]
        schema.run(f"PURGE BINARY LOGS TO '{newest}'")
    require_lost(log, position, "removed the binary log|does not have")


def _other_mark(position: LogPosition) -> str:
    """Of another transaction at the same position."""
    mark = position.marker["gtid"]
    return f"{mark[:-8]}{'0' * 8}" if "@" in mark else "0-7-1"


def require_lost(log: MySQLChangeLog, position: LogPosition, reason: str) -> None:
    log.close()
    with pytest.raises(IngestError, match=reason) as raised:
        log.read(position, 100)
    assert raised.value.error_class == "SOURCE_LOG_LOST"
    log.close()


@pytest.mark.parametrize(
    ("statement", "error_class"),
    [
        ("ALTER TABLE t ADD COLUMN b INT", "CAPTURED_TABLE_CHANGED"),
        ("ALTER TABLE t RENAME COLUMN a TO c", "CAPTURED_TABLE_CHANGED"),
        ("RENAME TABLE t TO u", "CAPTURED_TABLE_CHANGED"),
        ("DROP TABLE t", "CAPTURED_TABLE_CHANGED"),
        ("ALTER TABLE t ENGINE = MyISAM", "CAPTURED_TABLE_NOT_LOGGED"),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", "CAPTURED_TABLE_NOT_LOGGED"),
        (
            "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES lookalike (id) ON UPDATE CASCADE",
            "CAPTURED_TABLE_NOT_LOGGED",
        ),
        (
            "SET SESSION binlog_format = 'STATEMENT'; INSERT INTO t VALUES (9, 'x')",
            "CAPTURE_SERVER_NOT_USABLE",
        ),
    ],
)
def test_changes_that_the_log_does_not_show_are_refused(
    schema: Schema, statement: str, error_class: str
) -> None:
    if schema.is_mysql and "VERSIONING" in statement:
        pytest.skip("MySQL has no system-versioned tables")
    schema.run(_TABLE, "CREATE TABLE lookalike LIKE t")
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO lookalike VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'a')")
    schema.run("ALTER TABLE t ADD INDEX (a)", *statement.split(";"))
    if error_class.startswith("CAPTURED_TABLE"):
        before = log.read(position, 100)
        assert events(before.rows) == [("insert", "1", "a")] * 2
        position = before.position
    if schema.is_mysql and "CASCADE" in statement:
        # Its log has what foreign keys change.
        again = log.read(position, 100).position.marker
        assert again[f"{schema.name}.t"] != position.marker[f"{schema.name}.t"]
        log.close()
        return
    with pytest.raises(TautochroneError) as raised:
        log.read(position, 100)
    assert raised.value.error_class == error_class
    log.close()


_SAME_COLUMNS = (
    "ALTER TABLE t DROP COLUMN a, ADD COLUMN a VARCHAR(20)",
    "ALTER TABLE t DROP a, ADD a INT; UPDATE t SET a = 7; ALTER TABLE t MODIFY a VARCHAR(20)",
    "CREATE TABLE n LIKE t; INSERT INTO n VALUES (5, 'n'); RENAME TABLE t TO o, n TO t; DROP TABLE o",
    "DROP TABLE t; CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20)); INSERT INTO t VALUES (6, 'x')",
    "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a VARCHAR(20)) SELECT 7 AS id, 'y' AS a",
    "ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2; ALTER TABLE t TRUNCATE PARTITION p0",
)


def test_a_table_with_the_same_columns_is_copied_again(schema: Schema) -> None:
    """Its rows before count no more, those in the log since then do."""
    schema.run(_TABLE, "CREATE TABLE other LIKE t")
    log = schema.change_log()
    refusing = MySQLChangeLog(replace(schema.capture(), follows_changes=False))
    position = replace(log.begin("reader"), bulk=BulkProgress())
    name = f"{schema.name}.t"
    for number, statements in enumerate(_SAME_COLUMNS, start=10):
        if schema.is_mysql and "OR REPLACE" in statements:
            continue
        schema.run(f"INSERT INTO t VALUES ({number}, 'a')", *statements.split(";"))
        schema.run("INSERT INTO other VALUES (1, 'o')", "DELETE FROM other")
        before = log.read(position, 100)
        assert events(before.rows) == [("insert", str(number), "a")]
        with pytest.raises(IngestError) as raised:
            refusing.read(before.position, 100)
        assert raised.value.error_class == "CAPTURED_TABLE_CHANGED"
        again = log.read(before.position, 100)
        assert again.position.bulk.waiting == {name}
        assert again.position.point == before.position.point
        assert not again.rows.num_rows
        assert not again.caught_up
        assert log.read(before.position, 100).position.bulk.waiting == {name}, "a run died before its commit"
        (chunk,) = again.position.bulk.pending[name]
        schema.run(f"INSERT INTO t VALUES ({number + 100}, 'later')")
        copied, pass_at = log.read_chunk(name, chunk)
        rows = schema.rows("SELECT id, a FROM t ORDER BY id")
        assert [(row["columns"][0][1], row["columns"][1][1]) for row in copied.to_pylist()] == [
            (str(key), text) for key, text in rows
        ]
        bulk = again.position.bulk.copied(name, chunk, pass_at)
        behind = log.read(replace(again.position, bulk=bulk), 100)
        assert [event[0] for event in events(behind.rows)] == ["insert", "delete", "insert"]
        assert not behind.position.bulk.at(behind.position.point).waiting
        removal, completed = log.completed_rows([name], behind.position).to_pylist()
        assert (removal["operation"], completed["operation"]) == ("truncate", "completed")
        assert before.position.point < removal["point"] < behind.rows["point"][2].as_py()
        position = replace(behind.position, bulk=BulkProgress())
    for reader in (log, refusing):
        reader.close()


def test_a_crash_that_loses_copied_transactions_is_noticed(schema: Schema) -> None:
    schema.run(_TABLE, "INSERT INTO t VALUES (1, 'a')")
    log = schema.change_log()
    position = log.begin("reader")
    chunk = position.bulk.next_chunks(1)[0]
    schema.run("INSERT INTO t VALUES (2, 'b')")
    _rows, pass_at = log.read_chunk(*chunk)
    schema.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'c')")
    copied = replace(position, bulk=position.bulk.copied(*chunk, pass_at))
    log.close()
    assert events(log.read(copied, 100).rows) == [("insert", "2", "b"), ("insert", "3", "c")]
    lost = replace(position, bulk=position.bulk.copied(*chunk, pass_at + 1_000_000))
    require_lost(log, lost, "lost transactions")


def test_a_table_that_comes_later_is_copied(schema: Schema) -> None:
    schema.run(_TABLE)
    log = schema.change_log()
    position = log.begin("reader")
    log.close()
    schema.run(
        "CREATE TABLE later (id INT PRIMARY KEY)",
        "INSERT INTO later VALUES (1)",
        "ALTER TABLE later ADD COLUMN a VARCHAR(9)",
        "INSERT INTO t VALUES (5, 'x')",
    )
    log = schema.change_log()
    resumed = log.resume(position)
    assert set(resumed.bulk.pending) == {f"{schema.name}.later", f"{schema.name}.t"}
    schema.run("INSERT INTO later VALUES (2, 'b')")
    assert events(log.read(resumed, 100).rows) == [("insert", "5", "x"), ("insert", "2", "b")]
    assert events(log.read_chunk(f"{schema.name}.later", "{}")[0]) == [
        ("copy", "1", None),
        ("copy", "2", "b"),
    ]
    log.close()


def test_a_table_is_copied_anew_on_demand(schema: Schema) -> None:
    schema.run(_TABLE, "CREATE TABLE other (id INT PRIMARY KEY)")
    log, name = schema.change_log(), f"{schema.name}.t"
    position = replace(log.begin("reader"), bulk=BulkProgress())
    assert log.resume(position, ["elsewhere.t"]) == position
    resumed = log.resume(position, [name])
    assert set(resumed.bulk.pending) == {name}
    assert log.completed_rows([name], resumed)["operation"].to_pylist() == ["truncate", "completed"]
    log.close()


def test_columns_that_the_lake_does_not_take_are_passed_over(schema: Schema) -> None:
    schema.run(_TABLE)
    name = f"{schema.name}.t"

    def loaded() -> MySQLChangeLog:
        log = MySQLChangeLog(replace(schema.capture(), keeps_columns=True))
        log.set_lake_columns({name: ["ID", "a", "gone"]})
        return log

    log = loaded()
    position = replace(log.begin("reader"), bulk=BulkProgress())
    schema.run("ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t VALUES (1, 'x', 7)")
    batch = log.read(position, 100)
    assert (events(batch.rows), set(batch.ignored), batch.copied_again) == (
        [("insert", "1", "x")],
        {name},
        {},
    )
    log.close()
    log, position = loaded(), batch.position
    assert log.resume(position) == position
    log.set_lake_columns({name: ["id", "a", "more"]})
    assert set(log.resume(position).bulk.pending) == {name}
    log.close()
    # The lake's table has a column of that name.
    log = loaded()
    assert log.resume(position) == position
    schema.run("ALTER TABLE t ADD COLUMN Gone INT")
    with pytest.raises(DefinitionsOutdatedError):
        log.read(position, 100)
    log = loaded()
    resumed = log.resume(position)
    assert set(resumed.bulk.pending) == {name}
    schema.run("INSERT INTO t VALUES (2, 'y', 8, 9)")
    (row,) = log.read(resumed, 100).rows.to_pylist()
    assert dict(row["columns"]) == {"id": "2", "a": "y", "more": "8", "Gone": "9"}
    log.close()
    # It lacks a column, which another policy takes over.
    evolving = schema.change_log()
    assert set(evolving.resume(replace(resumed, bulk=BulkProgress())).bulk.pending) == {name}
    evolving.close()


def test_ignored_columns_before_others_copy_their_table(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has no names of columns."""
    captures = importlib.import_module("tautochrone.sources.mysql.capture")
    monkeypatch.setattr(captures, "define_log", lambda *_: None)
    monkeypatch.setattr(captures, "define_table", lambda *_, **__: None)
    schema.run(_TABLE, "INSERT INTO t VALUES (1, 'x')")
    url, name = schema.server.server_url(), f"{schema.name}.t"
    capture("ignoring", url=url, tables=f"{schema.name}.*", schema_changes="ignore")
    log = MySQLChangeLog(captures._captures["ignoring"])
    log.set_lake_columns({name: ["id", "a"]})
    position = replace(log.begin("reader"), bulk=BulkProgress())
    schema.run("ALTER TABLE t ADD COLUMN made INT FIRST", "INSERT INTO t VALUES (5, 2, 'y')")
    batch = log.read(position, 100)
    assert (set(batch.copied_again), set(batch.ignored)) == ({name}, {name})
    (chunk,) = batch.position.bulk.pending[name]
    assert events(log.read_chunk(name, chunk)[0]) == [("copy", "1", "x"), ("copy", "2", "y")]
    log.close()


def test_a_table_that_comes_while_the_log_is_read_ends_the_flow_once(schema: Schema) -> None:
    schema.run(_TABLE)
    log = MySQLChangeLog(replace(schema.capture(), patterns=[f"{schema.name}.*"], exclude=["*.hidden_*"]))
    position = log.begin("reader")
    schema.run("CREATE TABLE hidden_one (id INT PRIMARY KEY)", "INSERT INTO t VALUES (5, 'x')")
    position = log.read(position, 100).position
    schema.run("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO t VALUES (6, 'y')")
    with pytest.raises(DefinitionsOutdatedError, match="later was created since definitions were loaded"):
        log.read(position, 100)
    # The run goes on with these definitions if those with the table do not load.
    assert events(log.read(position, 100).rows) == [("insert", "6", "y")]
    log.close()


def require_cascades_in_log(schema: Schema) -> None:
    schema.run("INSERT INTO p VALUES (1), (2)", "INSERT INTO c VALUES (5, 1), (6, 2)")
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("DELETE FROM p WHERE id = 1")
    rows = log.read(position, 100).rows.to_pylist()
    log.close()
    assert {
        (row["relation"].split(".")[1], row["operation"], dict(row["columns"])["id"]) for row in rows
    } == {
        ("p", "delete", "1"),
        ("c", "delete", "5"),
    }


def test_tables_whose_log_is_not_complete_are_refused(schema: Schema) -> None:
    schema.run("CREATE TABLE p (id INT PRIMARY KEY) ENGINE = MyISAM")
    with pytest.raises(DefinitionError, match="its engine is MyISAM"):
        schema.capture()
    schema.run(
        "ALTER TABLE p ENGINE = InnoDB",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    )
    if schema.is_mysql:
        require_cascades_in_log(schema)
    else:
        with pytest.raises(DefinitionError, match="CASCADE") as raised:
            schema.capture()
        assert raised.value.error_class == "CAPTURED_TABLE_NOT_LOGGED"
    schema.run("DROP TABLE c", "CREATE TABLE k (a INT)")
    with pytest.raises(DefinitionError) as raised:
        schema.capture()
    assert raised.value.error_class == "CAPTURED_TABLE_WITHOUT_KEY"


def test_doctor_names_the_missing_right(schema: Schema) -> None:
    schema.run(_TABLE)
    assert "1 tables" in schema.change_log().check_prerequisites()
    schema.run(
        "DROP USER IF EXISTS weak",
        "CREATE USER weak IDENTIFIED BY 'x'",
        f"GRANT SELECT ON {schema.name}.* TO weak",
    )
    url = schema.server.server_url().replace("capture:se%3Acret%2F1", "weak:x")
    log = MySQLChangeLog(Capture("test", address_of(url, "test"), schema.capture().tables))
    with pytest.raises(IngestError) as raised:
        log.begin("reader")
    assert raised.value.error_class == "CAPTURE_RIGHTS_MISSING"
    with pytest.raises(IngestError) as raised:
        log.check_prerequisites()
    assert raised.value.error_class == "CAPTURE_RIGHTS_MISSING"
    wrong = address_of(url.replace("weak:x", "weak:y"), "test")
    with pytest.raises(SourceLoginRefusedError):
        MySQLChangeLog(Capture("test", wrong, ())).check_prerequisites()


def test_columns_with_computed_defaults_are_captured(schema: Schema) -> None:
    """Other servers than MariaDB call them generated too."""
    schema.run(
        "CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, n INT DEFAULT (1 + 2), "
        "v INT AS (id + 1) VIRTUAL, s INT AS (id + 1) STORED)"
    )
    (table,) = schema.capture().tables
    assert [column.name for column in table.columns] == ["id", "at", "n"]


def test_a_table_that_is_called_as_the_log_is_refused(schema: Schema) -> None:
    schema.run("CREATE TABLE log (id INT PRIMARY KEY)")
    with pytest.raises(DefinitionError, match="the capture's own log") as raised:
        capture("shop", url=schema.server.server_url(), tables=f"{schema.name}.*")
    assert raised.value.error_class == "CAPTURED_TABLE_NAME_TAKEN"
    assert f"exclude=['{schema.name}.log']" in str(raised.value.hint)


def test_a_lake_and_its_copy_read_at_the_same_time(schema: Schema) -> None:
    """The server keeps nothing for a reader, and ends no connection because another one reads."""
    schema.run(_TABLE)
    original, copy = schema.change_log(), schema.change_log()
    position = original.begin("reader")
    schema.run("INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
    file, offset = position.marker["file"], position.point & 0xFFFFFFFF
    address = address_of(schema.server.server_url(), "test")
    connections = [connect(address), connect(address)]
    readers = [dump_events(connection, file, offset) for connection in connections]
    one_by_one = [(next(readers[0]).end, next(readers[1]).end) for _ in range(4)]
    assert all(first == second for first, second in one_by_one)
    for connection in connections:
        connection._force_close()
    expected = [("insert", "1", "a"), ("insert", "2", "b")]
    batches = [log.read(position, 100) for log in (original, copy)]
    assert [events(batch.rows) for batch in batches] == [expected] * 2
    original.acknowledge(batches[0].position)
    assert events(copy.read(position, 100).rows) == expected
    for log in (original, copy):
        log.close()
