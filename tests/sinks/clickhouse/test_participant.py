"""A participant of `taut serve` commits what programs stage in ClickHouse, once, whatever answer is lost."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.docs.reference import DOCS
from tests.metaservice.serving import serving
from tests.sinks.clickhouse.dashboards import Client
from tests.sinks.clickhouse.test_server import Server

from tautochrone.app.serve import open_participants
from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore
from tautochrone.metaservice import leftovers
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.coordinator import TransactionCoordinator
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.events import Event, TransactionLeftoversDropped
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import TransactionChunk, TransactionOperation
from tautochrone.project.settings import load_settings
from tautochrone.project.spec import load_spec
from tautochrone.sinks.clickhouse.participant import staged_name

_S = TransactionState
PAGE = (DOCS / "transactions.md").read_text("utf-8")
ROWS = [(1, 10), (2, 20), (3, 30)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("participant") / "engine")
    yield server
    server.stop()


class Loader:
    """A service whose settings are those of docs/transactions.md, and a program."""

    def __init__(self, server: Server, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.clickhouse = Client(server.port)
        self.clickhouse.rows(f"CREATE DATABASE IF NOT EXISTS {database} ENGINE = Atomic")
        self.clickhouse.rows(
            f"CREATE TABLE IF NOT EXISTS {database}.orders (id UInt32, amount Nullable(UInt32)) "
            "ENGINE = MergeTree PARTITION BY id % 2 ORDER BY id"
        )
        toml = re.search(r"```toml\n(\[transactions\.participants.*?)```", PAGE, re.DOTALL)
        assert toml is not None
        url = f"clickhouse://loader@127.0.0.1:{server.port}/{database}"
        text = toml[1].replace("clickhouse://loader@ch.example.org:8123/shop", url)
        assert url in text
        (folder / "spark-pipeline.yml").write_text(
            "name: p\nstorage: s\nlibraries:\n  - glob: {include: d/**}\n"
        )
        (folder / "tautochrone.toml").write_text(text)
        spec = load_spec(folder / "spark-pipeline.yml")
        settings = load_settings(spec, environment={"CLICKHOUSE_PASSWORD": "secret-of-the-loader"})
        self.participants = open_participants(settings.participants)
        self.coordinator = self.service("meta.db")

    def service(self, store: str) -> TransactionCoordinator:
        self.store = MetaStore.open(f"sqlite:///{self.folder}/{store}")
        return TransactionCoordinator(self.store, self.participants)

    def stage(
        self, transaction: str, rows: Sequence[tuple[int, int]] = ROWS, like: str = "orders", chunk: str = "0"
    ) -> TransactionChunk:
        """Stage rows anew, and what the program registers."""
        staged = f"{self.database}.{staged_name(transaction, chunk)}"
        self.clickhouse.rows(f"CREATE OR REPLACE TABLE {staged} AS {self.database}.{like}")
        self.clickhouse.rows(f"INSERT INTO {staged} VALUES {', '.join(map(str, rows))}, (4, NULL)")
        ((count, content),) = self.clickhouse.rows(
            f"SELECT count(), toString(sum(cityHash64(tuple(*)))) FROM {staged}"
        )
        return TransactionChunk(id=chunk, table="orders", rows=int(count), hash=content)

    def begin(self, transaction: str, *chunks: TransactionChunk) -> None:
        self.coordinator.begin(transaction, "loader", 1, 60_000, "warehouse")
        for chunk in chunks:
            self.coordinator.write(transaction, "loader", 1, chunk)

    def commit(self, transaction: str) -> TransactionState:
        return self.coordinator.commit(transaction, "loader", 1)

    def shown(self) -> list[int]:
        return [row[0] for row in self.clickhouse.rows(f"SELECT id FROM {self.database}.orders ORDER BY id")]

    def left(self) -> list[str]:
        """Tables of transactions."""
        rows = self.clickhouse.rows(
            f"SELECT name FROM system.tables WHERE database = '{self.database}' AND name LIKE 'taut%'"
        )
        return sorted(name for (name,) in rows if name != "taut_committed")


@pytest.fixture
def loader(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Loader]:
    loader = Loader(server, tmp_path, re.sub(r"\W", "_", request.node.name))
    yield loader
    loader.clickhouse.close()
    loader.store.close()


def test_the_published_script_loads_a_file_once_without_python(server: Server, tmp_path: Path) -> None:
    loader = Loader(server, tmp_path, "shop")
    script = re.search(r"```sh\n(#!/usr/bin/env bash\n.*?)```", PAGE, re.DOTALL)
    assert script is not None
    (tmp_path / "load.sh").write_text(script[1])
    (tmp_path / "load-1").write_text('{"id": 1, "amount": 10}\n{"id": 2, "amount": 20}\n')
    app = create_app(
        access=Access(anonymous=Role.OPERATE), store=loader.store, coordinator=loader.coordinator
    )

    def load() -> subprocess.CompletedProcess[str]:
        variables = {
            "SERVICE": url,
            "CLICKHOUSE": f"http://127.0.0.1:{server.port}",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        arguments = ["bash", "load.sh", "1", "load-1"]
        return subprocess.run(
            arguments, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )

    with serving(app) as url:
        # The rows arrive, and their answer does not.
        server.plan("lose", "INSERT INTO")
        assert load().returncode != 0
        loaded = load()
        assert loaded.returncode == 0, loaded.stdout + loaded.stderr
        assert '"state":"committed"' in loaded.stdout
        again = load()
    assert again.returncode != 0
    assert '"state": "committed"' in again.stdout
    assert (loader.shown(), loader.left()) == ([1, 2], [])
    loader.clickhouse.close()
    loader.store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "MOVE PARTITION",
        "TO `{}`.`taut_moving_",
        pytest.param("RENAME TABLE", marks=pytest.mark.slow),
        pytest.param("INSERT INTO `{}`.`taut_committed`", marks=pytest.mark.slow),
        pytest.param("DROP TABLE", marks=pytest.mark.slow),
    ],
)
def test_rows_are_there_once_when_an_answer_is_lost(server: Server, loader: Loader, statement: str) -> None:
    loader.begin("load-1", loader.stage("load-1"))
    server.plan("lose", statement.format(loader.database))
    if statement == "RENAME TABLE":
        with pytest.raises(MetaError, match="TRANSACTION_NOT_PREPARED"):
            loader.commit("load-1")
    else:
        assert loader.commit("load-1") is _S.COMMITTING
    assert not server.is_planned()
    assert loader.commit("load-1") is _S.COMMITTED
    assert loader.shown() == [1, 2, 3, 4]
    assert loader.left() == []


def test_two_services_at_one_commit_show_its_rows_once(server: Server, loader: Loader) -> None:
    loader.begin("load-1", loader.stage("load-1"))
    assert loader.coordinator.prepare("load-1", "loader", 1) is _S.PREPARED
    late = server.folder.with_suffix(".late")
    late.touch()
    server.plan("late", "MOVE PARTITION")
    states: list[TransactionState] = []
    other = TransactionCoordinator(loader.store, loader.participants)
    thread = threading.Thread(target=lambda: states.append(other.commit("load-1", "loader", 1)))
    thread.start()
    while server.is_planned():
        thread.join(0.01)
    assert loader.commit("load-1") is _S.COMMITTED
    assert loader.shown() == [1, 2, 3, 4]
    late.unlink()
    thread.join(30)
    assert states == [_S.COMMITTED]
    assert loader.shown() == [1, 2, 3, 4]
    assert loader.left() == []


def test_what_changes_after_it_was_registered_is_refused(loader: Loader) -> None:
    chunk = loader.stage("load-1")
    loader.begin("load-1", chunk)
    staged = f"{loader.database}.{staged_name('load-1', '0')}"
    loader.clickhouse.rows(f"INSERT INTO {staged} VALUES (1, 10)")
    for _ in range(2):
        with pytest.raises(MetaError, match="PARTICIPANT_CHUNK_DIFFERS") as refused:
            loader.commit("load-1")
        assert "cityHash64(tuple(*))" in str(refused.value.hint)
    assert loader.stage("load-1") == chunk
    assert loader.coordinator.prepare("load-1", "loader", 1) is _S.PREPARED
    # An insert that comes late finds no table.
    with pytest.raises(AssertionError, match="UNKNOWN_TABLE"):
        loader.clickhouse.rows(f"INSERT INTO {staged} VALUES (1, 10)")
    assert loader.commit("load-1") is _S.COMMITTED
    assert loader.shown() == [1, 2, 3, 4]


def test_what_could_not_be_moved_is_refused_before_it_is_decided(loader: Loader) -> None:
    loader.clickhouse.rows(
        f"CREATE TABLE {loader.database}.other (id UInt32, amount Nullable(UInt32)) "
        "ENGINE = MergeTree ORDER BY id"
    )
    loader.clickhouse.rows(f"CREATE VIEW {loader.database}.report AS SELECT 1 AS id")
    chunks = {
        "missing": TransactionChunk(id="0", table="orders", rows=1, hash="1"),
        "other": loader.stage("other", like="other"),
        "dash": TransactionChunk(id="a-b", table="orders", rows=1, hash="1"),
        "nowhere": TransactionChunk(id="0", table="nowhere", rows=1, hash="1"),
        "view": TransactionChunk(id="0", table="report", rows=1, hash="1"),
        "own": TransactionChunk(id="0", table="taut_committed", rows=1, hash="1"),
    }
    problems = {}
    for transaction, chunk in chunks.items():
        loader.begin(transaction, chunk)
        with pytest.raises(MetaError, match=r"PARTICIPANT_CHUNK_(MISSING|UNFIT)") as refused:
            loader.commit(transaction)
        problems[transaction] = str(refused.value)
        assert loader.coordinator.rollback(transaction, "loader", 1) is _S.ABORTED
    assert staged_name("missing", "0") in problems["missing"]
    assert "partition_key" in problems["other"]
    assert (loader.shown(), loader.left()) == ([], [])


def test_an_older_store_doubles_nothing(loader: Loader) -> None:
    loader.begin("load-1", loader.stage("load-1"))
    assert loader.commit("load-1") is _S.COMMITTED
    committed = loader.store.transactions.get("load-1")
    assert committed is not None
    # It still says that the transaction is committing.
    loader.participants["warehouse"].commit(committed, loader.store.transactions.chunks("load-1"))
    assert loader.shown() == [1, 2, 3, 4]
    loader.store.close()
    # It does not know the transaction.
    loader.coordinator = loader.service("older.db")
    loader.begin("load-1", loader.stage("load-1"))
    with pytest.raises(MetaError, match="PARTICIPANT_ID_COMMITTED"):
        loader.commit("load-1")
    assert loader.coordinator.rollback("load-1", "loader", 1) is _S.ABORTING
    record = loader.store.transactions.get("load-1")
    assert record is not None
    assert "committed by loader" in str(record.error)
    assert loader.shown() == [1, 2, 3, 4]


def test_a_lost_table_is_said_and_the_hint_helps(loader: Loader) -> None:
    loader.begin("load-1", loader.stage("load-1"), loader.stage("load-1", [(5, 50)], chunk="1"))
    assert loader.coordinator.prepare("load-1", "loader", 1) is _S.PREPARED
    (lost,) = (table for table in loader.left() if "_1__" in table)
    loader.clickhouse.rows(f"RENAME TABLE {loader.database}.{lost} TO {loader.database}.hidden")
    assert loader.commit("load-1") is _S.COMMITTING
    assert loader.shown() == []
    record = loader.store.transactions.get("load-1")
    assert record is not None
    by_hand = re.search(r"into a table (\w+)", str(record.error))
    assert by_hand is not None
    loader.clickhouse.rows(f"RENAME TABLE {loader.database}.hidden TO {loader.database}.{by_hand[1]}")
    loader.store.transactions.settle("load-1", TransactionOperation.COMMIT)
    loader.coordinator.sweep()
    assert loader.shown() == [1, 2, 3, 4, 4, 5]
    assert loader.left() == []


def test_what_was_staged_and_taken_after_a_rollback_goes_away(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_MIN_AGE_MS", 0)
    loader.begin("load-1", loader.stage("load-1"))
    begun = loader.store.transactions.get("load-1")
    assert begun is not None
    assert loader.coordinator.rollback("load-1", "loader", 1) is _S.ABORTED
    assert loader.left() == []
    # A program is late, and another service had read the transaction before it was rolled back.
    loader.stage("load-1")
    loader.participants["warehouse"].prepare(begun, loader.store.transactions.chunks("load-1"))
    loader.stage("load-1", chunk="1")
    gone = loader.left()
    assert sorted(name.split("_")[1] for name in gone) == ["staged", "taken"]
    live = loader.stage("load-2")
    loader.begin("load-2", live)
    loader.stage("of-another-installation")
    # Its rows are not in `orders`, and somebody said that they are.
    loader.begin("by-hand", loader.stage("by-hand", [(9, 90)]))
    assert loader.coordinator.prepare("by-hand", "loader", 1) is _S.PREPARED
    by_hand = loader.store.transactions
    by_hand.commit("by-hand", "loader", 1)
    by_hand.settle("by-hand", TransactionOperation.CONFIRM)
    expected = sorted(set(loader.left()) - set(gone))
    events: list[Event] = []
    service = TransactionCoordinator(loader.store, loader.participants, emit=events.append)
    service.sweep()
    service.join(30)
    assert loader.left() == expected
    (event,) = events
    assert isinstance(event, TransactionLeftoversDropped)
    assert sorted(event.tables) == gone
    assert loader.commit("load-2") is _S.COMMITTED
    assert loader.shown() == [1, 2, 3, 4]
