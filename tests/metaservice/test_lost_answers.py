"""Whatever answer of the service gets lost after the call took place: asking again means it once.

Each write of the store is done twice on stores of their own, undisturbed in this process, and by a service
with its answer lost while the service restarts, which forgets all calls. Both must say the same and look the
same afterwards.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.metaservice.calls import READS, TOPOLOGY, WRITES, repaired
from tests.support.stores import service_app

from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore, Store
from tautochrone.meta.database.tables import metadata
from tautochrone.meta.wire import remote_calls
from tautochrone.metaservice.rpc import RemoteStore
from tautochrone.model import events
from tautochrone.model.names import Fence

pytestmark = pytest.mark.thorough


@dataclass
class Service(httpx.BaseTransport):
    """A service whose process can lose an answer, by dying after it has done what was asked."""

    store: MetaStore
    lose: str = ""
    token: str | None = None
    requested: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        # Without a socket: a server takes longer to start and to end than all calls of a test.
        app = service_app(self.store, self.token)
        self._client = TestClient(app, raise_server_exceptions=False)
        self._client.__enter__()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        method = request.url.path.rpartition("/")[2]
        self.requested.append(method)
        headers = {key: value for key, value in request.headers.items() if key != "host"}
        answer = self._client.post(request.url.path, content=request.read(), headers=headers)
        if method == self.lose:
            self.lose = ""
            self._client.__exit__()
            self._start()
            raise httpx.ReadError("connection reset by peer")
        return httpx.Response(answer.status_code, content=answer.content)

    def stop(self) -> None:
        self._client.__exit__()
        self.store.close()


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store, for copies: to create all tables takes as long as a test."""
    file = tmp_path_factory.mktemp("empty") / "meta.db"
    MetaStore.open(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def opened(tmp_path: Path, empty_store: Path) -> Callable[[str], MetaStore]:
    """Opens an empty store of that name."""

    def open_copy(name: str) -> MetaStore:
        file = shutil.copy(empty_store, tmp_path / f"{name}.db")
        return MetaStore.open(f"sqlite:///{file}", clock=lambda: 1_000)

    return open_copy


@pytest.fixture
def serve(opened: Callable[[str], MetaStore]) -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def make(name: str = "meta", **how: Any) -> Service:
        services.append(Service(opened(name), **how))
        return services[-1]

    yield make
    for service in services:
        service.stop()


def looks(store: MetaStore) -> dict[str, list[tuple[Any, ...]]]:
    """Every row but those that may differ: ids, a fence that nobody holds, a pin that nobody renews."""
    own = {"id", "incarnation", "fence"}
    with store._database.read() as connection:
        return {
            table.name: sorted(
                map(tuple, connection.execute(select(*(c for c in table.c if c.name not in own)))), key=repr
            )
            for table in metadata.sorted_tables
            if table.name != "pins"
        }


def test_every_method_is_judged() -> None:
    """A new method reads, or it writes: then it needs a way through it here."""
    assert READS | WRITES.keys() == remote_calls().keys()
    assert not READS & WRITES.keys()


def test_the_role_read_may_ask_and_pin() -> None:
    allowed = {name for name, call in remote_calls().items() if call.for_readers}
    assert READS | {"reads.resolve", "pins.renew", "pins.release"} == allowed


@pytest.mark.parametrize(
    ("method", "act"), [*WRITES.items(), ("checkpoints.record_version", repaired)], ids=[*WRITES, "repair"]
)
def test_a_lost_answer_changes_nothing(
    serve: Callable[..., Service],
    opened: Callable[[str], MetaStore],
    method: str,
    act: Callable[[Store, Fence], object],
) -> None:
    with opened("calm") as calm:
        expected = act(calm, _begun(calm))
        expected_rows = looks(calm)
    service = serve("lossy")
    store = RemoteStore("http://service", transport=service, emit=lambda _event: None)
    fence = _begun(store)
    service.lose, service.requested = method, []
    assert act(store, fence) == expected
    assert not service.lose, "the method was never called"
    assert service.requested.count(method) >= 2
    assert looks(service.store) == expected_rows


def _begun(store: Store) -> Fence:
    store.jobs.start_run("shop", "job", TOPOLOGY)
    return store.jobs.take_over("job")


def post(service: Service, method: str, arguments: dict[str, Any], call_id: str) -> httpx.Response:
    url = f"http://service/rpc/{method}"
    headers = {"Tautochrone-Call": call_id}
    return service.handle_request(httpx.Request("POST", url, json=arguments, headers=headers))


def test_delayed_request_cannot_arrive_after_its_repeat(serve: Callable[..., Service]) -> None:
    service = serve()
    service.store.jobs.start_run("shop", "job", TOPOLOGY)
    calls = [post(service, "jobs.take_over", {"job": "job"}, call_id) for call_id in ("a", "a", "b", "a")]
    assert [call.json()["answer"] for call in calls] == [1, 1, 2, 1]
    assert service.store.jobs.newest_fence("job") == 2


def test_repeat_waits_for_the_running_call(
    serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, acted, go_on = serve(), Event(), Event()
    counted: list[str] = []

    def take_over(job: str, *, at_least: int = 0) -> Fence:
        counted.append(job)
        acted.set()
        assert go_on.wait(30)
        return Fence(len(counted))

    monkeypatch.setattr(service.store.jobs, "take_over", take_over)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, service, "jobs.take_over", {"job": "job"}, "a")
        assert acted.wait(30)
        second = pool.submit(post, service, "jobs.take_over", {"job": "job"}, "a")
        time.sleep(0.2)
        assert not second.done()
        go_on.set()
        assert [call.result().json() for call in (first, second)] == [{"answer": 1}] * 2
    assert counted == ["job"]


def test_errors_keep_their_type_and_are_not_retried(serve: Callable[..., Service]) -> None:
    service = serve()
    remote = RemoteStore("http://service", transport=service)
    with pytest.raises(MetaError, match="JOB_NOT_FOUND") as caught:
        remote.jobs.take_over("nobody")
    assert caught.value.hint == "`taut run` registers a pipeline's jobs."
    assert service.requested.count("jobs.take_over") == 1


def test_busy_store_is_retried(serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def emit(event: events.Event) -> None:
        names.append(event.name)

    service = serve()
    remote = RemoteStore("http://service", transport=service, retry_ms=600, emit=emit)
    busy = [True, True, False]

    def take_over(job: str, *, at_least: int = 0) -> Fence:
        if busy.pop(0):
            raise MetaError("META_STORE_BUSY", "locked", retryable=True)
        return Fence(5)

    monkeypatch.setattr(service.store.jobs, "take_over", take_over)
    assert remote.jobs.take_over("job") == 5
    assert names == ["meta_service_away", "meta_service_away", "meta_service_back"]
    busy[:] = [True] * 100
    with pytest.raises(MetaError, match="META_STORE_BUSY"):
        remote.jobs.take_over("job")


@pytest.mark.parametrize(
    ("status", "body", "error_class"),
    [
        (401, b"", "META_SERVICE_REFUSED"),
        (403, b"{}", "META_SERVICE_REFUSED"),
        (404, b"nothing here", "META_SERVICE_UNKNOWN"),
        (200, b"<html>a portal</html>", "META_SERVICE_UNKNOWN"),
        (200, b'{"answer": 7}', "META_SERVICE_UNKNOWN"),
        (307, b"", "META_SERVICE_UNKNOWN"),
        (500, b"", "META_SERVICE_UNREACHABLE"),
        (503, b"", "META_SERVICE_UNREACHABLE"),
    ],
)
def test_answers_that_no_service_of_ours_gives(status: int, body: bytes, error_class: str) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=body))
    with pytest.raises(MetaError, match=error_class) as caught:
        RemoteStore(
            "http://joe:let-me-hide@service",
            transport=transport,
            retry_ms=120,
            emit=lambda _event: None,
        )
    assert caught.value.retryable == (status >= 500)
    assert "let-me-hide" not in caught.value.render()


def test_unreachable_service_is_an_error_after_bounded_time(
    caplog: pytest.LogCaptureFixture, unused_port: int
) -> None:
    started = time.monotonic()
    with pytest.raises(MetaError, match=r"META_SERVICE_UNREACHABLE.*tries.*[Cc]onnection refused") as caught:
        RemoteStore(f"http://127.0.0.1:{unused_port}", retry_ms=500)
    assert 0.4 < time.monotonic() - started < 10
    assert caught.value.retryable
    assert caplog.text.count("asked again in") >= 3


def test_call_of_another_version_is_refused(serve: Callable[..., Service]) -> None:
    service = serve()
    service.store.jobs.start_run("shop", "job", TOPOLOGY)
    for method, arguments in (
        ("of_tomorrow", {}),
        ("close", {}),
        ("_write", {}),
        ("jobs.take_over", {}),
        ("jobs.take_over", {"job": "job", "more": 1}),
        ("jobs.take_over", {"job": 7}),
    ):
        answer = post(service, method, dict(arguments), method + str(arguments))
        assert answer.status_code == 422, method
        assert answer.json()["error"]["error_class"] == "META_CALL_UNREADABLE"
    assert service.store.jobs.newest_fence("job") == 0


def test_the_token_is_sent(serve: Callable[..., Service]) -> None:
    service = serve(token="let-me-in")
    with pytest.raises(MetaError, match="META_SERVICE_REFUSED"):
        RemoteStore("http://service", transport=service)
    assert RemoteStore("http://service", token="let-me-in", transport=service).recovery.is_empty()
