"""What a stream query tells when a batch fails, or when it dies without a word."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from tautochrone.errors import FencedError, IngestError
from tautochrone.ingest.flow import FlowQuery

STACK = "\n".join(f"\tat org.apache.spark.Some.method{n}(Some.scala:{n})" for n in range(500))


@dataclass
class Query:
    """As much of a StreamingQuery as is asked here."""

    isActive: bool = False  # noqa: N815

    def exception(self) -> None:
        return None


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
def test_no_stack_goes_back_to_spark(error: Exception, expected: str) -> None:
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
def test_dying_without_a_word(endless: bool, active: bool, stopped: bool, dead: bool) -> None:
    query = flow_query()
    ended: Any = Query(active)
    query._query, query._endless, query._stopped = ended, endless, stopped
    problem = query.failure()
    assert (problem is not None) == dead
    if problem is not None:
        assert isinstance(problem, IngestError)
        assert problem.error_class == "FLOW_FAILED"
