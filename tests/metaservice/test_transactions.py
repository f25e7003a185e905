"""Transactions over HTTP: each operation in each state, roles, participants, failures, the commands."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tests.docs.reference import DOCS
from tests.docs.transactions import table
from tests.support.stores import Clock

from tautochrone.cli.main import main
from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import MetaStore, Store
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.coordinator import CoordinatorLoop, TransactionCoordinator
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.metaservice.transactions import TransactionClient
from tautochrone.model.events import Event, TransactionExpired
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import (
    ANSWERS,
    LONGEST_TIMEOUT_MS,
    CoordinatedTransaction,
    TransactionChunk,
    TransactionOperation,
)
from tautochrone.testing.toy_participant import ToyTarget

_S, _Operation = TransactionState, TransactionOperation
CHUNK = TransactionChunk(id="0", table="orders", rows=2, hash="9f2c", partition="p", server="s1")
STEPS_TO: dict[TransactionState, list[TransactionOperation]] = {
    _S.UNKNOWN: [],
    _S.INITIALIZED: [_Operation.BEGIN],
    _S.PREPARED: [_Operation.BEGIN, _Operation.PREPARE],
    _S.COMMITTING: [_Operation.BEGIN, _Operation.COMMIT],
    _S.COMMITTED: [_Operation.BEGIN, _Operation.COMMIT, _Operation.CONFIRM],
    _S.ABORTING: [_Operation.BEGIN, _Operation.ROLLBACK],
    _S.ABORTED: [_Operation.ROLLBACK],
}
READ, OPERATE = "a-token-that-may-read", "a-token-that-may-operate"


def transport_to(http: TestClient) -> httpx.BaseTransport:
    """The application in this process, for clients of httpx."""

    def send(request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        answer = http.request(request.method, str(request.url), content=request.content, headers=headers)
        return httpx.Response(answer.status_code, content=answer.content, request=request)

    return httpx.MockTransport(send)


class Service:
    """A service over a store with a clock of its own, and the target that its participant writes."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.events = Clock(), list[Event]()
        self.url = f"sqlite:///{folder}/meta.db"
        self.store: Store = MetaStore.open(self.url, clock=self.clock)
        self.fails_at: str | None = None
        self.target = ToyTarget(folder / "target.db", self._reached)
        self.coordinator = TransactionCoordinator(
            self.store, {"toy": self.target}, emit=self.emit, max_failures=3
        )
        app = create_app(
            access=Access(anonymous=Role.OPERATE), store=self.store, coordinator=self.coordinator
        )
        self.http = TestClient(app, raise_server_exceptions=False)

    def client(self, owner: str = "loader", fence: int = 1) -> TransactionClient:
        return TransactionClient(
            "http://testserver", owner=owner, fence=fence, retry_ms=0, transport=transport_to(self.http)
        )

    def state(self, transaction: str) -> TransactionState:
        record = self.store.transactions.get(transaction)
        return _S.UNKNOWN if record is None else record.state

    def _reached(self, point: str) -> None:
        if point == self.fails_at:
            raise ConnectionError("no route to the target")

    def emit(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    new_service = Service(tmp_path)
    yield new_service
    new_service.store.close()


def call(client: TransactionClient, operation: TransactionOperation, transaction: str) -> TransactionState:
    if operation is _Operation.WRITE:
        return client.write(transaction, CHUNK)
    if operation is _Operation.FAIL:
        return client.fail(transaction, "no route", 1).state
    step: Callable[[str], TransactionState] = getattr(client, operation.value)
    return step(transaction)


def test_every_operation_in_every_state(service: Service) -> None:
    with service.client() as client:
        for operation in TransactionOperation:
            for state, steps in STEPS_TO.items():
                transaction = f"{operation}-{state}"
                for step in steps:
                    call(client, step, transaction)
                assert service.state(transaction) is state
                check_answer(service, client, operation, state, transaction)


def check_answer(
    service: Service,
    client: TransactionClient,
    operation: TransactionOperation,
    state: TransactionState,
    transaction: str,
) -> None:
    """The answer is that of the table, twice, and the state with it."""
    answer = ANSWERS[operation].get(state)
    for _ in range(2):
        if answer is None:
            with pytest.raises(MetaError, match="TRANSACTION_STATE") as refused:
                call(client, operation, transaction)
            assert refused.value.parameters == {"operation": operation, "state": state}
        else:
            assert call(client, operation, transaction) is answer
        assert service.state(transaction) is (answer or state)


def test_documented_table_is_that_of_the_code() -> None:
    assert table() in (DOCS / "transactions.md").read_text("utf-8")


def test_transaction_is_shown_with_its_chunks_and_listed(service: Service) -> None:
    with service.client() as client:
        for transaction in ("a", "b"):
            client.begin(transaction, timeout_ms=5_000)
        client.write("a", CHUNK)
        client.prepare("b")
        shown = client.get("a")
        assert [chunk.model_dump() for chunk in shown.chunks] == [
            {"id": "0", "table": "orders", "rows": 2, "hash": "9f2c", "partition": "p", "server": "s1"}
        ]
        assert (shown.owner, shown.fence, shown.due_at_ms) == ("loader", 1, 1_005_000)
        with pytest.raises(MetaError, match="TRANSACTION_NOT_FOUND"):
            client.get("c")

    def listed(query: str) -> list[str]:
        return [line["id"] for line in service.http.get(f"/v1/transactions{query}").json()]

    assert listed("") == ["a", "b"]
    assert listed("?state=prepared") == ["b"]
    assert listed("?owner=another") == []
    assert listed("?after=a&limit=1") == ["b"]
    assert service.http.get("/v1/transactions/c").status_code == 404


def test_reader_reads_and_changes_nothing(service: Service) -> None:
    app = create_app(access=Access.by_tokens({READ: Role.READ, OPERATE: Role.OPERATE}), store=service.store)
    http = TestClient(app)
    run = {"owner": "loader", "fence": 1}
    paths = ["recover", *(f"t/{operation}" for operation in TransactionOperation)]
    for path in paths:
        url = f"/v1/transactions/{path}"
        refused = http.post(url, json=run, headers={"Authorization": f"Bearer {READ}"})
        assert (refused.status_code, refused.json()["error_class"]) == (403, "ROLE_MISSING"), path
        assert http.post(url, json=run).json()["error_class"] == "TOKEN_MISSING"
    assert service.state("t") is _S.UNKNOWN
    with TransactionClient(
        "http://testserver", owner="loader", fence=1, token=OPERATE, transport=transport_to(http)
    ) as client:
        client.begin("t")
    shown = http.get("/v1/transactions/t", headers={"Authorization": f"Bearer {READ}"})
    assert shown.json()["state"] == "initialized"


def test_catalog_answers_beside_the_transactions(service: Service) -> None:
    for path in ("/v1/config", "/v1/strong/namespaces", "/v1/transactionsx", "/v1/"):
        answer = service.http.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchWarehouseException"), path
    posted = service.http.post("/v1/strong/transactions/commit", json={})
    assert posted.json()["error"]["type"] == "NoSuchWarehouseException"
    assert service.http.get("/v1/transactions/t/nonsense").json()["error_class"] == "HTTP_404"
    wrong_method = service.http.delete("/v1/transactions/t")
    assert (wrong_method.status_code, wrong_method.json()["error_class"]) == (405, "HTTP_405")


INVALID: list[tuple[str, dict[str, object]]] = [
    ("t/begin", {"owner": "loader"}),
    ("t/begin", {"owner": "", "fence": 1}),
    ("t/begin", {"owner": "loader", "fence": -1}),
    ("t/begin", {"owner": "loader", "fence": "1"}),
    ("t/begin", {"owner": "loader", "fence": 1, "timeout_ms": 0}),
    ("t/begin", {"owner": "loader", "fence": 1, "participant": "nobody"}),
    ("t/write", {"owner": "loader", "fence": 1}),
    ("t/fail", {"owner": "loader", "fence": 1, "error": "x", "attempt": 0}),
    ("a%20b/begin", {"owner": "loader", "fence": 1}),
]


def test_invalid_requests_are_refused(service: Service) -> None:
    for path, body in INVALID:
        answer = service.http.post(f"/v1/transactions/{path}", json=body)
        assert answer.status_code == 422, (path, body)
    assert service.store.transactions.find() == ()


def test_older_run_is_fenced_off_and_the_new_run_finds_what_is_left(service: Service) -> None:
    with service.client() as old, service.client(fence=2) as new:
        for state in (_S.INITIALIZED, _S.PREPARED, _S.COMMITTING):
            for step in STEPS_TO[state]:
                call(old, step, state.value)
        assert {t.id: t.state for t in new.recover()} == {
            "initialized": _S.ABORTING,
            "prepared": _S.PREPARED,
            "committing": _S.COMMITTING,
        }
        for operation in TransactionOperation:
            with pytest.raises(FencedError, match="TRANSACTION_FENCED"):
                call(old, operation, "prepared")
        assert new.commit("prepared") is _S.COMMITTING
        with pytest.raises(FencedError):
            old.recover()


def test_participant_carries_decisions_out(service: Service) -> None:
    with service.client() as client:
        for transaction, operation in (("kept", "commit"), ("dropped", "rollback")):
            client.begin(transaction, participant="toy")
            client.write(transaction, service.target.stage(transaction, "0", [1, 2]))
            for _ in range(2):
                assert getattr(client, operation)(transaction).endswith("ted")
            with pytest.raises(MetaError, match="TRANSACTION_DIFFERS"):
                client.confirm(transaction)
    assert (service.target.rows(), service.target.staged()) == ([1, 2], [])
    assert service.events == []


@pytest.mark.parametrize("operation", ["prepare", "commit"])
def test_participant_refuses_rows_that_are_not_staged(service: Service, operation: str) -> None:
    with service.client() as client:
        client.begin("t", participant="toy")
        chunk = service.target.stage("t", "0", [1, 2])
        client.write("t", chunk)
        service.target.stage("t", "0", [1])
        with pytest.raises(MetaError, match="TRANSACTION_NOT_PREPARED"):
            getattr(client, operation)("t")
        assert service.state("t") is _S.INITIALIZED
        service.target.stage("t", "0", [1, 2])
        getattr(client, operation)("t")
        assert client.commit("t") is _S.COMMITTED
    assert service.target.rows() == [1, 2]


def test_a_service_without_the_participant_decides_nothing(service: Service) -> None:
    other = TransactionCoordinator(service.store)
    with service.client() as client:
        client.begin("t", participant="toy")
        client.write("t", service.target.stage("t", "0", [1]))
        for step in (other.prepare, other.commit):
            with pytest.raises(MetaError, match="TRANSACTION_PARTICIPANT_UNKNOWN"):
                step("t", "loader", 1)
            assert service.state("t") is _S.INITIALIZED
        assert client.commit("t") is _S.COMMITTED


def test_a_service_without_the_participant_counts_no_failures(service: Service) -> None:
    other = TransactionCoordinator(service.store, emit=service.emit, max_failures=3)
    service.fails_at = "before commit"
    with service.client() as client:
        client.begin("t", participant="toy")
        client.write("t", service.target.stage("t", "0", [1]))
        assert client.commit("t") is _S.COMMITTING
        for _ in range(20):
            service.clock.now_ms += 1_000
            other.sweep()
        shown = client.get("t")
        assert (shown.failures, shown.needs_attention) == (1, False)
        service.fails_at = None
        service.coordinator.sweep()
        assert client.get("t").state is _S.COMMITTED
    assert service.target.rows() == [1]


def test_a_participant_that_no_service_has_needs_attention(service: Service) -> None:
    other = TransactionCoordinator(service.store, emit=service.emit, max_failures=3)
    with service.client() as client:
        client.begin("t", participant="toy")
        client.prepare("t")
        assert other.commit("t", "loader", 1) is _S.COMMITTING
        for _ in range(4):
            service.clock.now_ms += 120_000
            other.sweep()
        shown = client.get("t")
        assert (shown.failures, shown.needs_attention) == (3, True)
        assert "no participant of this one is called toy" in str(shown.error)


@pytest.mark.parametrize("point", ["before commit", "after commit"])
def test_failing_participant_is_tried_again(service: Service, point: str) -> None:
    service.fails_at = point
    with service.client() as client:
        client.begin("t", participant="toy")
        client.write("t", service.target.stage("t", "0", [1]))
        assert client.commit("t") is _S.COMMITTING
        service.coordinator.sweep()  # not due yet
        assert [event.name for event in service.events] == ["transaction_failed"]
        service.fails_at = None
        service.clock.now_ms += 1_000
        service.coordinator.sweep()
        assert client.commit("t") is _S.COMMITTED
    assert service.target.rows() == [1]


def test_exhausted_retries_raise_an_alarm_and_a_command_settles(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    def taut(*arguments: str) -> list[dict[str, Any]]:
        assert main(["transactions", *arguments, "--json", "--meta", service.url]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    service.fails_at = "before commit"
    with service.client() as client:
        client.begin("t", participant="toy")
        client.write("t", service.target.stage("t", "0", [1]))
        client.commit("t")
        for _ in range(5):
            service.clock.now_ms += 60_000
            service.coordinator.sweep()
        failed = ["transaction_failed"] * 3
        assert [event.name for event in service.events] == [*failed, "transaction_needs_attention"]
        assert service.events[-1].json_fields()["error"] == "no route to the target"
        assert "tautochrone_transactions_needing_attention 1.0" in service.http.get("/metrics").text
        assert [line["id"] for line in taut("list", "--attention")] == ["t"]
        assert [line["id"] for line in service.http.get("/v1/transactions?attention=true").json()] == ["t"]
        assert taut("show", "t")[0]["chunks"][0]["rows"] == 1
        assert client.commit("t") is _S.COMMITTING  # the program cannot end the alarm
        assert main(["transactions", "rollback", "t", "--meta", service.url]) == 1
        assert "TRANSACTION_STATE" in capsys.readouterr().err
        service.fails_at = None
        assert taut("commit", "t")[0]["needs_attention"] is False
        service.clock.now_ms = service.store.transactions.get("t").due_at_ms  # type: ignore[union-attr]
        service.coordinator.sweep()
        assert client.commit("t") is _S.COMMITTED
    assert service.target.rows() == [1]


def test_program_that_does_not_confirm_needs_attention(service: Service) -> None:
    with service.client() as client:
        client.begin("t", timeout_ms=1_000)
        client.commit("t")
        assert client.fail("t", "no route", 1).failures == 1
        for _ in range(3):
            service.clock.now_ms += 1_000
            service.coordinator.sweep()
        shown = client.get("t")
        assert (shown.failures, shown.needs_attention) == (3, True)
        assert "did not confirm" in str(shown.error)
        assert client.confirm("t") is _S.COMMITTED
    assert service.store.transactions.find(attention=True) == ()


def test_start_of_a_service_rolls_back_and_retries(service: Service) -> None:
    service.fails_at = "before commit"
    with service.client() as client:
        for transaction in ("unprepared", "committing"):
            client.begin(transaction, timeout_ms=1_000, participant="toy")
            client.write(transaction, service.target.stage(transaction, "0", [1]))
        client.commit("committing")
        service.fails_at = None
        service.clock.now_ms += 1_000
        with CoordinatorLoop(service.coordinator, interval_s=0.01):
            while service.state("unprepared") is not _S.ABORTED:
                pass
        assert client.commit("committing") is _S.COMMITTED
    assert (service.target.rows(), service.target.staged()) == ([1], [])
    assert TransactionExpired(transaction="unprepared") in service.events


class ShardedTarget(ToyTarget):
    """Takes rows of odd chunks on the server `s1`, those of even ones on `s0`."""

    def server_of(self, _transaction: CoordinatedTransaction, chunk: TransactionChunk) -> str:
        return f"s{int(chunk.id) % 2}"


def test_chunk_on_a_wrong_server_is_refused_with_the_right_one(service: Service, tmp_path: Path) -> None:
    service.coordinator._participants["sharded"] = ShardedTarget(tmp_path / "sharded.db")  # type: ignore[index]
    chunk = {"id": "1", "table": "rows", "rows": 1, "hash": "h", "server": "s0"}
    with service.client() as client:
        client.begin("t", participant="sharded")
        body = {"owner": "loader", "fence": 1, "chunk": chunk}
        refused = service.http.post("/v1/transactions/t/write", json=body)
        assert (refused.status_code, refused.json()["error_class"]) == (421, "TRANSACTION_WRONG_SERVER")
        assert refused.json()["parameters"] == {"server": "s1"}
        assert client.get("t").chunks == []
        for _ in range(2):
            assert client.write("t", TransactionChunk(**{**chunk, "server": "s1"})) is _S.INITIALIZED
        assert [registered.server for registered in client.get("t").chunks] == ["s1"]
    with service.client(fence=2) as newer:
        newer.recover()
    with service.client() as older, pytest.raises(FencedError):
        older.write("t", TransactionChunk(**chunk))


def test_store_that_was_put_back_is_told_from_the_one_before(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        client.begin("load-1")
        backup = sqlite3.connect(tmp_path / "backup.db")
        with closing(sqlite3.connect(tmp_path / "meta.db")) as store, closing(backup):
            store.backup(backup)
        for step in (client.commit, client.confirm):
            step("load-1")
        remembered = client.serial
        backup = sqlite3.connect(tmp_path / "backup.db")
        with closing(sqlite3.connect(tmp_path / "meta.db")) as store, closing(backup):
            backup.backup(store)
        assert service.state("load-1") is _S.INITIALIZED
        for operation in TransactionOperation:
            with pytest.raises(MetaError, match="TRANSACTION_STORE_OLDER"):
                call(client, operation, "load-1")
        with pytest.raises(MetaError, match="TRANSACTION_STORE_OLDER"):
            client.recover()
        assert service.state("load-1") is _S.INITIALIZED
    run = {"owner": "loader", "fence": 2, "serial": remembered}
    refused = service.http.post("/v1/transactions/recover", json=run)
    assert (refused.status_code, refused.json()["parameters"]["known"]) == (409, "2")
    # After the target was settled by hand, the program starts anew without it.
    with service.client(fence=2) as newer:
        newer.recover()
        assert newer.begin("load-2") is _S.INITIALIZED


def test_ids_are_forgotten_when_the_setting_says_so(service: Service) -> None:
    coordinator = TransactionCoordinator(service.store, emit=service.emit, keep_ids_ms=LONGEST_TIMEOUT_MS)
    with service.client() as client:
        client.rollback("load-1")
        coordinator.sweep()
        assert client.get("load-1").state is _S.ABORTED
        service.clock.now_ms += LONGEST_TIMEOUT_MS
        coordinator.sweep()
        assert client.rollback("load-1") is _S.ABORTED, "a repeat after a day learns what was decided"
        service.clock.now_ms += 60_000
        service.coordinator.sweep()
        assert client.get("load-1").state is _S.ABORTED, "without the setting ids are kept"
        coordinator.sweep()
        for refused in (client.get, client.begin, client.commit, client.rollback):
            with pytest.raises(MetaError, match="TRANSACTION_ID_FORGOTTEN"):
                refused("load-1")
        assert client.begin("load-2") is _S.INITIALIZED
    assert service.http.get("/v1/transactions/load-1").status_code == 409


def test_ids_are_kept_as_long_as_calls_are_repeated(service: Service) -> None:
    with pytest.raises(ValueError, match="keep_ids_ms"):
        TransactionCoordinator(service.store, keep_ids_ms=LONGEST_TIMEOUT_MS - 1)
    with pytest.raises(ValueError, match="retry_ms"):
        TransactionClient("http://testserver", owner="loader", fence=1, retry_ms=LONGEST_TIMEOUT_MS + 1)
