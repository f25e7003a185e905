"""A server is killed while it is written to, and the capture goes on at its replica, state by state."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike
from tests.sources.postgresql.test_capture import IN_THE_TAIL
from tests.support.mysql_protocol import PrivateServer

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import point_of
from tautochrone.sources.mysql.connection import address_of, connect, fetch
from tautochrone.sources.mysql.flavors import file_identity, flavor_of
from tautochrone.sources.mysql.markers import FILE, FILE_ID, GTID, entry_of

from .captured_bank import MariaBank
from .conftest import Schema
from .replicas import SERVERS, Servers, execute

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class _Current:
    """The server that the url leads to."""

    server: PrivateServer

    def server_url(self) -> str:
        return self.server.url

    def open_connection(self, **arguments: Any) -> Any:
        return self.server.connect(**arguments)


@pytest.fixture(params=SERVERS)
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    if not SERVERS[request.param].is_installed():
        pytest.skip(f"{request.param} is not installed")
    servers = Servers(request.param)
    yield servers
    servers.remove()


@pytest.mark.parametrize("when", ["before", "after"])
def test_checkpoints_through_a_failover(
    servers: Servers, spark: SparkSession, tmp_path: Path, when: str
) -> None:
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    primary = servers.start()
    replica = servers.replica_of(primary)
    execute(primary, "CREATE DATABASE bank")
    current = _Current(primary)
    with closing(primary.connect(database="bank")) as connection:
        bank = MariaBank.create(spark, tmp_path / "bank", Schema(current, "bank", connection))
    writer = threading.Thread(target=_write_until_it_is_killed, args=(bank,))
    writer.start()
    bank.run().require_completed()
    bank.run().require_completed()
    # What the lake has is on the replica, and some of what comes then is not.
    servers.wait(primary, replica)
    time.sleep(0.3)
    primary.kill()
    writer.join()
    servers.promote(replica)
    current.server, bank.url = replica, replica.url
    bank.set("")
    with bank.load():
        for step in IN_THE_TAIL:
            bank.run(Strike(step, when, "crash"))
    bank.work()
    attempt = bank.run()
    attempt.require_completed()
    assert bank.captured is not None
    bank.captured = replace(bank.captured, address=address_of(replica.url, "test"))
    bank.first = _first(bank)
    bank.check()
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


def _write_until_it_is_killed(bank: MariaBank) -> None:
    with suppress(pymysql.Error, OSError):
        while True:
            bank.work(1)


def _first(bank: MariaBank) -> LogPosition:
    """Where the log of the replica begins."""
    assert bank.captured is not None
    address = bank.captured.address
    with closing(connect(address)) as connection:
        file = fetch(connection, "SHOW BINARY LOGS")[0][0]
        file_id = file_identity(partial(connect, address), file)
        assert file_id is not None
        return LogPosition(
            log=flavor_of(connection).log_name(connection),
            point=point_of(file, 4),
            marker={FILE: file, FILE_ID: file_id, GTID: ""}
            | {table.name: entry_of(table, 0) for table in bank.captured.tables},
        )
