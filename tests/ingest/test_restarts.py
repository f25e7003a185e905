"""A flow that dies while the run goes on is started again, and events report it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.harness import Pipeline

from tautochrone.errors import (
    DefinitionsOutdatedError,
    FencedError,
    IngestError,
    SourceLoginRefusedError,
    TautochroneError,
)
from tautochrone.model.events import Event, FlowFailed, FlowRecovered
from tautochrone.runtime.streams.ingestion import Ingestion

from .test_bad_input import define, drop
from .test_source_files import wait_for

BROKEN = IngestError("FLOW_FAILED", "the broker does not answer")


class Query:
    """A flow's query whose fate the test decides."""

    def __init__(self, name: str = "flow") -> None:
        self.table = name
        self.name = name
        self.starts = 0
        self.error: TautochroneError | None = None
        self.active = self.has_completed_once = False

    committed_up_to_ms = None

    def ends_within(self, _timeout_s: float) -> bool:
        return not self.active

    def observe(self) -> None:
        """There is no source."""

    def store_time_is(self, store_ms: int) -> None:
        """Not used here."""

    def inspect(self, *, at_once: bool = False) -> None:
        """Nothing is left out."""

    def start(self, _session: object, **_trigger: object) -> None:
        self.starts += 1
        self.error, self.active, self.has_completed_once = None, True, False

    def die(self, error: TautochroneError = BROKEN) -> None:
        self.error, self.active = error, False

    def failure(self) -> TautochroneError | None:
        return self.error

    def stop(self) -> None:
        self.active = False


class Bench:
    """One flow and a clock that the test turns."""

    def __init__(self, **trigger: object) -> None:
        self.query, self.now = Query(), 0.0
        self.emitted: list[Event] = []
        self.ingestion = Ingestion(self.emitted.append, lambda: self.now)
        flow: Any = (self.query, lambda: None)
        self.ingestion.start([flow], 0, **trigger)

    def after(self, seconds: float) -> int:
        """How often the flow was started, once that time has passed."""
        self.now += seconds
        self.ingestion.watch()
        return self.query.starts

    @property
    def events(self) -> list[str]:
        return [event.name for event in self.emitted]

    @property
    def again_in_s(self) -> float | None:
        """Of the last event, a failure."""
        event = self.emitted[-1]
        assert isinstance(event, FlowFailed)
        return event.again_in_s


@pytest.fixture
def bench() -> Bench:
    return Bench(processingTime="1 seconds")


def test_restart_waits_double_up_to_a_minute(bench: Bench) -> None:
    waits = []
    for attempt in range(2, 11):
        bench.query.die()
        assert bench.after(0) == attempt - 1
        waits.append(bench.again_in_s)
        assert bench.after(waits[-1] - 0.01) == attempt - 1
        assert bench.after(0.02) == attempt
        assert bench.ingestion.problems == {"flow": str(BROKEN)}, "a flow recovers only after progress"
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_flow_recovers_after_progress(bench: Bench) -> None:
    for _ in range(3):
        bench.query.die()
        bench.after(0)
        bench.after(100)
    bench.query.has_completed_once = True
    bench.after(0)
    assert bench.ingestion.problems == {}
    assert bench.emitted[-1] == FlowRecovered(flow="flow", dataset="flow", attempts=3)
    bench.query.die()
    bench.after(0)
    assert bench.again_in_s == 1, "after a recovery the wait begins anew"


def test_each_failure_is_reported_once(bench: Bench) -> None:
    bench.query.die()
    for _ in range(5):
        bench.after(0.1)
    assert bench.events == ["flow_failed"]
    bench.after(1)
    bench.query.die()
    for _ in range(5):
        bench.after(0.1)
    assert bench.events == ["flow_failed", "flow_restarted", "flow_failed"]


def test_one_shot_run_tries_once() -> None:
    bench = Bench(availableNow=True)
    bench.query.die()
    assert bench.after(1e6) == 1
    assert bench.again_in_s is None
    assert bench.ingestion.problems == {"flow": str(BROKEN)}


@pytest.mark.parametrize(
    "error",
    [
        DefinitionsOutdatedError("CAPTURED_TABLE_CHANGED", "orders has another column"),
        SourceLoginRefusedError("CAPTURE_LOGIN_REFUSED", "the password is another one"),
    ],
    ids=lambda error: error.error_class,
)
def test_only_flows_that_lack_new_definitions_are_outdated(bench: Bench, error: TautochroneError) -> None:
    changed, broken = Query("changed"), Query("broken")
    flows: Any = [(changed, lambda: None), (broken, lambda: None)]
    bench.ingestion.start(flows, 0, processingTime="1 seconds")
    changed.die(error)
    broken.die()
    bench.ingestion.watch()
    assert set(bench.ingestion.problems) == {"changed", "broken"}
    assert bench.ingestion.outdated_flows == {"changed"}
    assert [bench.ingestion.take_outdated(), bench.ingestion.take_outdated()] == [error, None]


def test_fenced_flow_ends_the_run(bench: Bench) -> None:
    bench.query.die(FencedError("FENCED", "a newer owner exists"))
    with pytest.raises(FencedError):
        bench.ingestion.watch()


def test_fence_at_the_end_stops_all_flows(bench: Bench) -> None:
    fenced, other_flow = Query(), Query()
    flows: Any = [(fenced, lambda: None), (other_flow, lambda: None)]
    bench.ingestion.start(flows, 0, processingTime="1 seconds")
    fenced.die(FencedError("FENCED", "a newer owner exists"))
    with pytest.raises(FencedError):
        bench.ingestion.stop()
    assert not other_flow.active


def test_no_flow_starts_after_stop(bench: Bench) -> None:
    bench.query.die()
    bench.after(0)
    bench.ingestion.stop()
    assert bench.after(1e6) == 1
    assert bench.ingestion.problems == {"flow": str(BROKEN)}


@pytest.mark.spark
def test_corrected_file_is_read_by_the_running_flow(pipeline: Pipeline) -> None:
    define(pipeline)
    drop(pipeline, "b", '{"id":2,"amount":"many"}')
    with pipeline.running() as happened:
        wait_for(lambda: happened.of("flow_restarted"))
        drop(pipeline, "b", '{"id":2,"amount":20}')
        wait_for(lambda: happened.of("flow_recovered"))
        drop(pipeline, "c", '{"id":3,"amount":30}')
        wait_for(lambda: [batch for batch in happened.of("batch") if batch["batch"] == 1])
    assert pipeline.run().checkpoints == [], "all was published"
    assert pipeline.query("SELECT * FROM total") == [(3, 60)]


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    drop(pipeline, "a", '{"id":1,"amount":10}')
    return pipeline


def test_a_failure_that_new_definitions_end_is_reported_if_they_do_not(bench: Bench) -> None:
    bench.query.die(DefinitionsOutdatedError("CAPTURED_TABLE_CHANGED", "orders has another column"))
    bench.after(0.1)
    assert bench.events == []
    assert bench.ingestion.outdated_flows == {"flow"}
    bench.ingestion.report_deferred()
    bench.ingestion.report_deferred()
    assert bench.events == ["flow_failed"]
