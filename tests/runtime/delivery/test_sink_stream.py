"""When a sink that Spark writes waits, fails and recovers, with queries that a test controls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import IngestError
from tautochrone.model.catalog import NEWEST
from tautochrone.model.events import SinkFailed
from tautochrone.model.names import TableName
from tautochrone.model.sink import SinkDeclaration
from tautochrone.runtime.delivery import delivery, sink_stream, worker
from tautochrone.runtime.delivery.delivery import DeliveryWorker
from tautochrone.runtime.delivery.sink_stream import SinkStream
from tautochrone.runtime.delivery.worker import UNFINISHED


class Query:
    """A flow's query: each start calls `on_start`."""

    def __init__(self, on_start: Callable[[], object] = lambda: None) -> None:
        self.on_start = on_start
        self.starts = 0
        self.active, self.has_completed_once = False, False
        self.error: IngestError | None = None
        self.batch: int | None = None
        self.rows = 0

    def start(self, _session: object, **_trigger: object) -> None:
        self.starts += 1
        self.error, self.active, self.has_completed_once = None, "processingTime" in _trigger, False
        self.on_start()

    def die(self) -> None:
        self.active, self.error = False, IngestError("SINK_TEST", "it is broken")

    def failure(self) -> IngestError | None:
        return self.error

    def take_failure(self) -> IngestError | None:
        error, self.error = self.error, None
        return error

    def collect(self) -> bool:
        return False

    def stop(self) -> None:
        self.active = False


class Sink:
    """A sink whose flows read outside sources alone."""

    def __init__(self, *queries: Query, interval_ms: int | None = None, is_fresh: bool = False) -> None:
        self.events: list[SinkFailed] = []
        self.recorded: list[tuple[object, ...]] = []
        self.cancelled = threading.Event()
        job = SimpleNamespace(
            name="job",
            topology=SimpleNamespace(graph=SimpleNamespace(order=()), sibling_tables=frozenset()),
            journal=None,
            ownership=SimpleNamespace(cancelled=self.cancelled),
            store=SimpleNamespace(checkpoints=SimpleNamespace(latest_published=lambda _job: None)),
            emit=self.events.append,
        )
        target = SimpleNamespace(name="out", target=TableName("lake", ("db",), "out"), flows=())
        self.stream = SinkStream(job, None, target, is_fresh=is_fresh, interval_ms=interval_ms)  # type: ignore[arg-type]
        self.stream._journal = SimpleNamespace(  # type: ignore[assignment]
            fence=1,
            status=lambda: SimpleNamespace(delivered=SimpleNamespace(checkpoint=7)),
            record=lambda _method, *state: self.recorded.append(state),
            record_failure=lambda *_, **__: None,
        )
        self.stream._session = lambda _flow: None  # type: ignore[method-assign, assignment, return-value]
        for number, query in enumerate(queries):
            resolved = SimpleNamespace(flow=SimpleNamespace(name=f"flow_{number}"))
            self.stream._flows.append(sink_stream._Flow(resolved, query, frozenset()))  # type: ignore[arg-type]


def test_end_of_a_run_waits_for_a_slow_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_JOIN_S", 0.0)
    release = threading.Event()
    sink = Sink(Query(lambda: release.wait(10)))
    sink.stream.start()
    finishing = threading.Thread(target=sink.stream.wait_until_settled)
    finishing.start()
    finishing.join(0.2)
    assert finishing.is_alive()
    release.set()
    finishing.join(5)
    assert (finishing.is_alive(), sink.stream.error, sink.stream.is_settled) == (False, None, True)
    sink.stream.stop()


def test_cancelled_run_reports_a_sink_without_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_JOIN_S", 0.0)
    release = threading.Event()
    sink = Sink(Query(lambda: release.wait(10)))
    sink.cancelled.set()
    sink.stream.start()
    sink.stream.wait_until_settled()
    assert sink.stream.error == UNFINISHED
    release.set()
    sink.stream.stop()


def test_failing_flow_does_not_stop_the_other_flows_of_a_sink() -> None:
    broken = Query()
    broken.on_start = broken.die
    sound = Query()
    sink = Sink(broken, sound)
    sink.stream._try()
    assert (broken.starts, sound.starts) == (1, 1)
    assert [event.error_class for event in sink.events] == ["SINK_TEST"]


def test_each_death_of_a_continuous_query_is_a_failure_with_a_longer_pause() -> None:
    query = Query()
    sink = Sink(query, interval_ms=1000)
    sink.stream._stopping.wait = lambda _seconds=None: False  # type: ignore[method-assign, assignment]
    sink.stream._try()
    for _ in range(3):
        query.die()
        sink.stream._try()
        # It is started again by the next try, and has not succeeded yet.
        sink.stream._try()
        assert (query.active, sink.stream.error) == (True, sink.events[-1].error)
    assert [(event.failures, event.retry_in_ms) for event in sink.events] == [
        (1, 1000),
        (2, 2000),
        (3, 4000),
    ]
    query.has_completed_once = True
    sink.stream._try()
    assert sink.stream.error is None


def test_death_during_a_try_keeps_the_error_of_a_sink() -> None:
    query = Query()
    sink = Sink(query, interval_ms=1000)
    sink.stream.error = "an older failure"
    query.on_start = query.die
    sink.stream._try()
    assert sink.stream.error == "an older failure"


def test_full_refresh_has_happened_when_all_flows_began_anew() -> None:
    def refuse() -> None:
        raise IngestError("SINK_TEST", "it is broken")

    sound, late = Query(), Query(refuse)
    sink = Sink(sound, late, is_fresh=True)
    sink.stream._try()
    assert (sink.stream.is_full_refresh_left, sink.recorded) == (True, [])
    late.on_start = lambda: None
    sink.stream._try()
    assert not sink.stream.is_full_refresh_left
    # The versions that the older queries had read are forgotten.
    assert sink.recorded[0] == ({}, 7, {})


def test_table_of_no_project_is_shown_as_a_streamed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_stream, "session_at", lambda *_: None)
    sink, lookups = Sink(Query()), []
    job: Any = sink.stream._job
    job.base, job.journal = None, SimpleNamespace(fence=1)
    job.settings = SimpleNamespace(catalog=SimpleNamespace(name="lake"))
    job.read_points = SimpleNamespace(uri="", show=lambda _name, lookup: lookups.append(lookup))
    sink.stream._streams = SimpleNamespace(streamed=lambda *shown: shown)  # type: ignore[assignment]
    (flow,) = sink.stream._flows
    flow.resolved.flow.scope, flow.resolved.flow.conf = SimpleNamespace(namespace=("db",)), {}  # type: ignore[misc, assignment]
    SinkStream._session(sink.stream, flow)
    (lookup,) = lookups
    assert lookup(TableName("lake", ("theirs",), "events")) == (sink.stream.target, "flow_0", NEWEST)


def test_end_of_a_run_waits_for_a_slow_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_JOIN_S", 0.0)
    release, cancelled = threading.Event(), threading.Event()

    class Delivery:
        def __init__(self, *_: object) -> None: ...

        def deliver(self) -> bool:
            return not release.wait(10)

        def close(self) -> None: ...

    monkeypatch.setattr(delivery, "Delivery", Delivery)
    job: Any = SimpleNamespace(ownership=SimpleNamespace(cancelled=cancelled))
    mirror = DeliveryWorker(job, SinkDeclaration(name="mirror", format="test", tables=()))
    mirror.start()
    finishing = threading.Thread(target=mirror.wait_until_settled)
    finishing.start()
    finishing.join(0.2)
    assert finishing.is_alive()
    cancelled.set()
    finishing.join(5)
    assert (finishing.is_alive(), mirror.error) == (False, UNFINISHED)
    release.set()
    mirror.stop()
    mirror._thread.join(5)
