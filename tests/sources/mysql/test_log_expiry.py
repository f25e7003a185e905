"""From when on the server may remove log that a capture needs: the server itself says when it does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .conftest import Schema, on


@pytest.fixture
def expiring(schema: Schema) -> Iterator[Schema]:
    """Its server keeps logs for as long as the test says."""
    (before,) = schema.rows("SELECT @@binlog_expire_logs_seconds")
    schema.run("CREATE TABLE a (id INT PRIMARY KEY)")
    yield schema
    schema.run(f"SET GLOBAL binlog_expire_logs_seconds = {before[0]}")


@on("mariadb")
def test_a_log_is_not_removed_before_it_expires(expiring: Schema) -> None:
    log = expiring.change_log()
    position = log.begin("reader")
    expiring.run("SET GLOBAL binlog_expire_logs_seconds = 0")
    (kept,) = log.kept_logs(position)
    assert (kept.expires_ms, kept.is_lost, kept.is_own) == (None, False, True)
    expiring.run("SET GLOBAL binlog_expire_logs_seconds = 4")
    before_ms = time.time() * 1000
    (kept,) = log.kept_logs(position)
    assert kept.expires_after_ms == 4000
    assert kept.expires_ms is not None
    # The file that is written to has not begun to age.
    assert before_ms + 3000 <= kept.expires_ms <= time.time() * 1000 + 4000
    expiring.run("INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)")
    (kept,) = log.kept_logs(position)
    assert kept.expires_ms is not None
    while not (now := log.kept_logs(position)[0]).is_lost:
        assert now == kept
        assert time.time() * 1000 < kept.expires_ms + 20_000
        # The server looks at the age of its files when it begins one.
        expiring.run("FLUSH BINARY LOGS")
    assert time.time() * 1000 > kept.expires_ms
    assert log.kept_logs(position)[0].expires_ms is None
    log.close()


@on("mariadb")
def test_a_log_that_was_removed_is_lost(expiring: Schema) -> None:
    log = expiring.change_log()
    position = log.begin("reader")
    expiring.run("FLUSH BINARY LOGS")
    deadline = time.monotonic() + 20
    while not log.kept_logs(position)[0].is_lost:
        assert time.monotonic() < deadline
        # The server removes no file that it still sends.
        expiring.run("PURGE BINARY LOGS BEFORE NOW() + INTERVAL 1 DAY")
    assert not log.kept_logs(log.begin("other"))[0].is_lost
    log.close()
