"""What a run says before a captured database's disk is full, also with a role that sees little."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tautochrone.model.reason import ReasonCode
from tautochrone.sources.postgresql import server
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog

from .test_change_log import capture_of, url_of


def test_slots_and_open_transactions(database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("CREATE TABLE accounts (id int PRIMARY KEY)")
    database.execute("DROP ROLE IF EXISTS watcher; CREATE ROLE watcher LOGIN REPLICATION")
    database.execute("GRANT SELECT ON accounts TO watcher")
    database.execute(
        "CREATE PUBLICATION tautochrone_shop FOR TABLE accounts WITH (publish_via_partition_root)"
    )
    log = PostgreSQLChangeLog(capture_of(database, url_of(database).replace("postgres", "watcher")))
    position = log.begin("reader")
    assert log.alarms(position) == []
    monkeypatch.setattr(server, "LOG_BYTES", 1000)
    monkeypatch.setattr(server, "TRANSACTION_S", 0.05)
    with psycopg.connect(url_of(database)) as other:
        other.execute("INSERT INTO accounts SELECT generate_series(1, 100)")
        # Others go on, and make log.
        database.execute("INSERT INTO accounts SELECT generate_series(101, 200)")
        log.alarms(position)
        database.execute("SELECT pg_sleep(0.1)")
        reasons = {reason.code: reason for reason in log.alarms(position)}
        other.rollback()
    assert reasons.keys() == {ReasonCode.LOG_KEPT_AT_SOURCE, ReasonCode.TRANSACTION_OPEN_AT_SOURCE}
    assert "nothing bounds it" in str(reasons[ReasonCode.LOG_KEPT_AT_SOURCE])
    assert {reason.code for reason in log.alarms(position)} == {ReasonCode.LOG_KEPT_AT_SOURCE}
    with psycopg.connect(url_of(database)) as alone:
        alone.execute("SELECT pg_current_xact_id()")
        log.alarms(position)
        database.execute("SELECT pg_sleep(0.1)")
        assert ReasonCode.TRANSACTION_OPEN_AT_SOURCE in {reason.code for reason in log.alarms(position)}
    assert {reason.code for reason in log.alarms(position)} == {ReasonCode.LOG_KEPT_AT_SOURCE}
    log.close()
    database.execute("DROP OWNED BY watcher")


def test_what_a_copy_waits_for(database: psycopg.Connection) -> None:
    database.execute("CREATE TABLE accounts (id int PRIMARY KEY)")
    log = PostgreSQLChangeLog(capture_of(database))
    with psycopg.connect(url_of(database)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("INSERT INTO accounts VALUES (1)")
        session = f"process {other.info.backend_pid}"
        (number,) = other.execute("SELECT pg_current_xact_id()::text").fetchone() or ()
        begun = pool.submit(log.begin, "reader")
        time.sleep(1)
        reasons = {reason.params["session"]: reason for reason in log.open_transactions()}
        reason = reasons[session]
        assert reason.params["transaction"] == f"transaction {number}"
        assert reason.params["seconds"] >= 1
        assert f"{number} of {session}, open for" in str(reason)
        assert not begun.done()
        other.rollback()
        begun.result(30)
    assert session not in str(log.open_transactions())
    log.close()
