"""The error of a stream query whose batch fails, or which ends without an exception."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from tautochrone.errors import FencedError, IngestError, TautochroneError
from tautochrone.ingest.flow import FlowQuery
from tautochrone.ingest.source_checks import SourceCheck, SourceChecks
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.runtime.job.job import Journal

STACK = "\n".join(f"\tat org.apache.spark.Some.method{n}(Some.scala:{n})" for n in range(500))


@dataclass
class Query:
    """The part of a StreamingQuery that a flow uses."""

    isActive: bool = False  # noqa: N815

    lastProgress: None = None  # noqa: N815

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False


def flow_query(error: Exception | None = None) -> FlowQuery:
    """A flow whose table fails every batch with `error`."""

    def fork() -> Any:
        if error is not None:
            raise error from ValueError(STACK)

    nothing: Any = None
    folder: Any = SimpleNamespace(plan=lambda batch: batch)
    table = SimpleNamespace(name="lake.default.events", fork=fork, stage=None)
    committer: Any = SimpleNamespace(table=table)
    flow: Any = SimpleNamespace(name="events")
    return FlowQuery(
        flow=flow,
        stateful=False,
        schema=StructType(),
        committer=committer,
        folder=folder,
        effects=nothing,
        emit=nothing,
        position=None,
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FencedError("JOB_FENCED", "a newer owner"), "[JOB_FENCED] a newer owner. SQLSTATE: 25S03"),
        (
            OSError(f"[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n{STACK}"),
            "[DIVIDE_BY_ZERO] Flow events failed: Division by zero. SQLSTATE: 22012",
        ),
    ],
)
def test_batch_error_reaches_spark_without_stack(error: Exception, expected: str) -> None:
    query = flow_query(error)
    nothing: Any = None
    with pytest.raises(RuntimeError) as caught:
        query._on_batch(nothing, 0)
    # This is how PySpark hands it over to the JVM.
    assert "org.apache.spark" not in "".join(traceback.format_exception(caught.value))
    assert str(caught.value) == str(query.failure()) == expected
    if isinstance(error, FencedError):
        assert query.failure() is error


@pytest.mark.parametrize(
    ("endless", "active", "stopped", "dead"),
    [(True, False, False, True), (True, True, False, False), (True, False, True, False), (False,) * 4],
)
def test_query_that_ends_silently_is_a_failure(
    endless: bool, active: bool, stopped: bool, dead: bool
) -> None:
    query = flow_query()
    ended: Any = Query(active)
    query._query, query._endless, query._stopped = ended, endless, stopped
    problem = query.failure()
    assert (problem is not None) == dead
    if problem is not None:
        assert isinstance(problem, IngestError)
        assert problem.error_class == "FLOW_FAILED"


def test_reading_asks_no_source() -> None:
    recreated = IngestError("KAFKA_TOPIC_RECREATED", "another topic")
    checked: list[object] = []

    class Check(SourceCheck):
        def idle(self, progress: Mapping[str, Any] | None) -> None:
            checked.append(progress)
            raise recreated

    query, running = flow_query(), Query(isActive=True)
    stream: Any = running
    query._query, query._endless, query.checks = stream, True, SourceChecks((Check(),))
    assert (query.committed_up_to_ms, query.failure(), checked) == (None, None, [])
    query.observe()
    assert checked == [None]
    assert (query.failure(), running.isActive) == (recreated, False)


def test_folder_steps_require_the_fence() -> None:
    taken: list[str] = []
    query = flow_query()
    query.effects = DirectEffects()
    assert query.step(Step.INGEST_FOLDER, lambda: "done") == "done"

    def refuse() -> None:
        raise FencedError("JOB_FENCED", "a newer owner")

    query.require_fence = refuse
    for step in (Step.INGEST_FOLDER, Step.INGEST_CLEAN, Step.INGEST_SOURCE_FILES):
        with pytest.raises(FencedError):
            query.step(step, lambda: taken.append("done"))
    assert not taken


@pytest.mark.parametrize(("newest", "error"), [(6, None), (7, "JOB_FENCED"), (5, "FENCE_UNKNOWN")])
def test_fence_is_checked_in_the_store(newest: int, error: str | None) -> None:
    store: Any = SimpleNamespace(jobs=SimpleNamespace(newest_fence=lambda _job: newest))
    journal = Journal(store, "job", DirectEffects(), Fence(6))
    if error is None:
        journal.require()
        return
    with pytest.raises(TautochroneError) as caught:
        journal.require()
    assert caught.value.error_class == error


def test_file_moved_by_a_newer_owner_is_not_reported_lost() -> None:
    query = flow_query()
    query.effects = DirectEffects()
    calls: list[int] = []

    def fenced_the_second_time() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise FencedError("JOB_FENCED", "a newer owner")

    def gone() -> None:
        raise FileNotFoundError("state")

    query.require_fence = fenced_the_second_time
    with pytest.raises(FencedError):
        query.step(Step.INGEST_FOLDER, gone)
    with pytest.raises(IngestError, match="FLOW_POSITIONS_LOST"):
        query.step(Step.INGEST_FOLDER, gone)
