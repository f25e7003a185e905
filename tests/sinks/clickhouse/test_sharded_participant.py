"""A program without our code drives one transaction over several ClickHouse servers by HTTP alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tests.sinks.clickhouse.benches import FaultyEngine

from tautochrone.errors import SinkError
from tautochrone.meta import MetaStore
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.coordinator import TransactionCoordinator
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import Participant
from tautochrone.sinks.adapters import open_participant
from tautochrone.sinks.clickhouse.engines import open_engine
from tautochrone.sinks.clickhouse.options import ClickHouseOptions, clickhouse_options
from tautochrone.sinks.clickhouse.participant import staged_name

_S = TransactionState


class Engines:
    """Two servers: databases of the engine in this process. Each call of a participant connects anew.

    Attributes:
        down: servers that do not answer.
        fault: at which server the connection breaks, before or after which statement; once.
    """

    def __init__(self, folder: Path) -> None:
        self._options = clickhouse_options("servers", {"url": f"clickhouse://embedded/{folder}"})
        self.session = open_engine("servers", self._options)
        self.down: set[str] = set()
        self.fault: tuple[str, str, str] | None = None

    def connect(self, _name: str, options: ClickHouseOptions, subject: str) -> FaultyEngine:
        server = f"{options.host}:{options.port}"
        if server in self.down:
            raise SinkError("SINK_NOT_REACHABLE", f"{subject}: no connection to {server}", retryable=True)
        engine = FaultyEngine(open_engine("servers", self._options))
        for moment in ("before", "after"):
            setattr(engine, moment, lambda text, moment=moment: self._strikes(server, moment, text))
        return engine

    def _strikes(self, server: str, moment: str, statement: str) -> bool:
        if self.fault is None or self.fault[:2] != (server, moment) or self.fault[2] not in statement:
            return False
        self.fault = None
        self.down.add(server)
        return True


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    engines = Engines(tmp_path_factory.mktemp("engine"))
    yield engines
    engines.session.close()


class Loader:
    """A program, and the service with a participant of two servers."""

    def __init__(self, folder: Path, engines: Engines, database: str) -> None:
        self.engines = engines
        engines.down, engines.fault = set(), None
        self.databases = {"one:8123": f"{database}_one", "two:8123": f"{database}_two"}
        self.names = list(self.databases)
        for name in self.databases.values():
            engines.session.run(f"CREATE DATABASE {name} ENGINE = Atomic")
            engines.session.run(f"CREATE TABLE {name}.orders (id UInt32) ENGINE = MergeTree ORDER BY id")
        self.store = MetaStore.open(f"sqlite:///{folder}/meta.db")
        self.participants: dict[str, Participant] = {"warehouse": self.participant(self.names)}
        self.coordinator = TransactionCoordinator(self.store, self.participants)
        app = create_app(
            access=Access(anonymous=Role.OPERATE), store=self.store, coordinator=self.coordinator
        )
        self.http = TestClient(app, raise_server_exceptions=False)

    def participant(self, names: Sequence[str]) -> Any:
        urls = ", ".join(f"clickhouse://{name}/{self.databases[name]}" for name in names)
        return open_participant("warehouse", "clickhouse", {"url": urls}, "here")

    def call(self, transaction: str, operation: str, **more: Any) -> httpx.Response:
        body = {"owner": "loader", "fence": 1, **more}
        return self.http.post(f"/v1/transactions/{transaction}/{operation}", json=body)

    def stage(self, transaction: str, chunk: str, server: str, ids: Sequence[int]) -> dict[str, Any]:
        """Stage rows on a server; the chunk as the program registers it, without its server."""
        session, database = self.engines.session, self.databases[server]
        staged = f"{database}.{staged_name(transaction, chunk)}"
        session.run(f"CREATE OR REPLACE TABLE {staged} AS {database}.orders")
        session.run(f"INSERT INTO {staged} VALUES {', '.join(f'({number})' for number in ids)}")
        ((rows, content),) = session.rows(
            f"SELECT count(), toString(sum(cityHash64(tuple(*)))) FROM {staged}"
        )
        return {"id": chunk, "table": "orders", "rows": int(rows), "hash": content}

    def load(self, transaction: str) -> None:
        """Begin, stage and register one chunk on each server."""
        assert self.call(transaction, "begin", participant="warehouse").json()["state"] == "initialized"
        for number, name in enumerate(self.names):
            chunk = self.stage(transaction, str(number), name, [10 * number + 1, 10 * number + 2])
            assert self.call(transaction, "write", chunk={**chunk, "server": name}).status_code == 200

    def shown(self) -> list[list[int]]:
        """By server what readers see."""
        rows = self.engines.session.rows
        queries = [f"SELECT id FROM {name}.orders ORDER BY id" for name in self.databases.values()]
        return [[row[0] for row in rows(query)] for query in queries]

    def left(self) -> list[str]:
        names = ", ".join(f"'{name}'" for name in self.databases.values())
        query = (
            f"SELECT name FROM system.tables WHERE database IN ({names}) "
            "AND startsWith(name, 'taut_') AND name != 'taut_committed'"
        )
        return [str(name) for (name,) in self.engines.session.rows(query)]

    def state(self, transaction: str) -> TransactionState:
        record = self.store.transactions.get(transaction)
        assert record is not None
        return record.state


@pytest.fixture
def loader(
    engines: Engines, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loader]:
    monkeypatch.setattr("tautochrone.sinks.clickhouse.participant.HttpEngine", engines.connect)
    loader = Loader(tmp_path, engines, re.sub(r"\W+", "_", request.node.name).lower())
    yield loader
    for database in loader.databases.values():
        engines.session.run(f"DROP DATABASE {database} SYNC")
    loader.store.close()


def test_a_chunk_on_a_wrong_server_is_told_the_right_one(loader: Loader) -> None:
    assert loader.call("load-1", "begin", participant="warehouse").status_code == 200
    chunk = loader.stage("load-1", "0", loader.names[0], [1, 2])
    servers = set()
    for wrong in ("", "ch3.example.org:8123"):
        refused = loader.call("load-1", "write", chunk={**chunk, "server": wrong})
        assert (refused.status_code, refused.json()["error_class"]) == (421, "TRANSACTION_WRONG_SERVER")
        servers.add(refused.json()["parameters"]["server"])
    (right,) = servers
    # The rows that were staged on the first server before are not shown by anybody.
    chunk = loader.stage("load-1", "0", right, [1, 2])
    assert loader.call("load-1", "write", chunk={**chunk, "server": right}).status_code == 200
    other = next(name for name in loader.names if name != right)
    moved = loader.call("load-1", "write", chunk={**chunk, "server": other})
    assert (moved.status_code, moved.json()["error_class"]) == (409, "TRANSACTION_CHUNK_DIFFERS")
    assert loader.call("load-1", "commit").json()["state"] == "committed"
    assert sorted(loader.shown()) == [[], [1, 2]]
    assert loader.left() == []


def test_all_servers_commit_or_none(loader: Loader) -> None:
    loader.load("load-1")
    loader.load("load-2")
    staged = f"{loader.databases['two:8123']}.{staged_name('load-2', '1')}"
    loader.engines.session.run(f"INSERT INTO {staged} VALUES (99)")
    refused = loader.call("load-2", "commit")
    assert (refused.status_code, refused.json()["error_class"]) == (409, "TRANSACTION_NOT_PREPARED")
    assert loader.call("load-2", "rollback").json()["state"] == "aborted"
    for _ in range(2):
        assert loader.call("load-1", "commit").json()["state"] == "committed"
    assert loader.shown() == [[1, 2], [11, 12]]
    assert loader.left() == []


FAULTS = [
    (statement, position, moment)
    for statement in ("RENAME TABLE", "MOVE PARTITION", "`taut_committed` (id", "DROP TABLE")
    for position in (0, 1)
    for moment in ("before", "after")
]
QUICK = {("MOVE PARTITION", 1, "after"), ("`taut_committed` (id", 0, "before")}


@pytest.mark.parametrize(
    ("statement", "position", "moment"),
    [pytest.param(*fault, marks=() if fault in QUICK else pytest.mark.slow) for fault in FAULTS],
)
def test_a_server_that_goes_away_in_the_commit_gets_its_rows_later(
    loader: Loader, statement: str, position: int, moment: str
) -> None:
    loader.load("load-1")
    assert loader.call("load-1", "prepare").json()["state"] == "prepared"
    server = loader.names[position]
    loader.engines.fault = (server, moment, statement)
    assert loader.call("load-1", "commit").json()["state"] == "committing"
    assert loader.engines.fault is None
    assert loader.call("load-1", "commit").json()["state"] == "committing"
    record = loader.store.transactions.get("load-1")
    assert record is not None
    assert f"no connection to {server}" in str(record.error)
    refused = loader.call("load-1", "rollback")
    assert (refused.status_code, refused.json()["error_class"]) == (409, "TRANSACTION_STATE")
    loader.engines.down.clear()
    assert loader.call("load-1", "commit").json()["state"] == "committed"
    assert loader.shown() == [[1, 2], [11, 12]]
    assert loader.left() == []


@pytest.mark.parametrize("position", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_server_that_is_down_lets_nothing_be_decided(loader: Loader, position: int) -> None:
    loader.load("load-1")
    server = loader.names[position]
    loader.engines.down.add(server)
    refused = loader.call("load-1", "commit")
    assert refused.json()["error_class"] == "TRANSACTION_NOT_PREPARED"
    assert server in refused.json()["detail"]
    assert loader.state("load-1") is _S.INITIALIZED
    assert loader.call("load-1", "rollback").json()["state"] == "aborting"
    loader.engines.down.clear()
    assert loader.call("load-1", "rollback").json()["state"] == "aborted"
    assert (loader.shown(), loader.left()) == ([[], []], [])


def test_a_server_that_left_the_settings_is_not_passed_over(loader: Loader) -> None:
    loader.load("load-1")
    assert loader.call("load-1", "prepare").json()["state"] == "prepared"
    both = loader.participants["warehouse"]
    loader.participants["warehouse"] = loader.participant(loader.names[:1])
    assert loader.call("load-1", "commit").json()["state"] == "committing"
    record = loader.store.transactions.get("load-1")
    assert record is not None
    assert f"is on the server {loader.names[1]}" in str(record.error)
    assert loader.shown() == [[], []]
    loader.participants["warehouse"] = both
    assert loader.call("load-1", "commit").json()["state"] == "committed"
    assert loader.shown() == [[1, 2], [11, 12]]


def test_one_database_under_two_names_is_refused(loader: Loader) -> None:
    loader.databases["1.2.3.4:8123"] = loader.databases["one:8123"]
    same = loader.participant(["one:8123", "1.2.3.4:8123"])
    del loader.databases["1.2.3.4:8123"]
    with pytest.raises(SinkError, match="PARTICIPANT_SERVERS_SAME"):
        same.check()


def test_an_older_store_doubles_nothing_on_any_server(loader: Loader) -> None:
    loader.load("load-1")
    assert loader.call("load-1", "commit").json()["state"] == "committed"
    record, chunks = loader.store.transactions.get("load-1"), loader.store.transactions.chunks("load-1")
    assert record is not None
    for number, server in enumerate(loader.names):
        loader.stage("load-1", str(number), server, [10 * number + 1, 10 * number + 2])
    for step in ("prepare", "rollback"):
        with pytest.raises(SinkError, match="PARTICIPANT_ID_COMMITTED"):
            getattr(loader.participants["warehouse"], step)(record, chunks)
    loader.participants["warehouse"].commit(record, chunks)
    assert loader.shown() == [[1, 2], [11, 12]]


def test_one_server_takes_chunks_that_name_it_or_none(loader: Loader) -> None:
    loader.participants["warehouse"] = loader.participant(loader.names[:1])
    loader.call("load-1", "begin", participant="warehouse")
    for chunk, server in (("0", ""), ("1", "one:8123")):
        staged = loader.stage("load-1", chunk, "one:8123", [int(chunk)])
        assert loader.call("load-1", "write", chunk={**staged, "server": server}).status_code == 200
    assert loader.call("load-1", "commit").json()["state"] == "committed"
    assert (loader.shown(), loader.left()) == ([[0, 1], []], [])
    loader.call("load-2", "begin", participant="warehouse")
    staged = loader.stage("load-2", "0", "one:8123", [2])
    loader.call("load-2", "write", chunk={**staged, "server": "two:8123"})
    refused = loader.call("load-2", "commit")
    assert refused.json()["error_class"] == "TRANSACTION_NOT_PREPARED"
    assert "PARTICIPANT_SERVER_UNKNOWN" in refused.json()["detail"]
    assert loader.call("load-2", "rollback").json()["state"] == "aborted"
    assert (loader.shown(), loader.left()) == ([[0, 1], []], [])
