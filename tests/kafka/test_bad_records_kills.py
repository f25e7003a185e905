"""Crashes at every durable step of a batch with bad records: both tables have the batch, or none.

CI simulates a crash between their commits; `make soak` kills a process at every step.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.crash import Taut, fault
from tests.support.harness import Pipeline

from tautochrone.errors import TautochroneError
from tautochrone.model.effects import Step
from tautochrone.runtime.loop.run import Run

from .test_bad_records import TOGETHER, Source, good, pipeline, source

__all__ = ["pipeline", "source"]

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash]

TABLE, QUARANTINE_TABLE = "lake.default.events", "lake.default.events__quarantine"
STEPS = [
    (Step.LAKE_STAGE, QUARANTINE_TABLE),
    (Step.INGEST_SOURCE_FILES, TABLE),
    (Step.LAKE_PREPARE, QUARANTINE_TABLE),
    (Step.LAKE_PREPARE, TABLE),
    (Step.LAKE_COMMIT, TABLE),
    (Step.LAKE_COMMIT, QUARANTINE_TABLE),
    (Step.META_REPORT, TABLE),
]
"""What a batch does, in its order."""


def test_crash_while_quarantining(pipeline: Pipeline, source: Source) -> None:
    _begin(pipeline, source)
    step, subject = STEPS[4]
    before = _produce(pipeline, source)
    _crash(pipeline, Strike(step, "after", "crash", on=subject.rpartition(".")[2]))
    _complete(pipeline, source, before)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "subject"), STEPS)
def test_kill_while_quarantining(
    pipeline: Pipeline, source: Source, tmp_path: Path, step: Step, subject: str
) -> None:
    pipeline.write("definitions/together.sql", TOGETHER)
    _begin(pipeline, source)
    before = _produce(pipeline, source)
    Taut(tmp_path, tmp_path).killed(fault(step, "after", "kill", on=subject), "--master", "local[2]")
    _complete(pipeline, source, before)
    pipeline.verify()


def _begin(pipeline: Pipeline, source: Source) -> None:
    source.good(4)
    good(pipeline.run())


def _produce(pipeline: Pipeline, source: Source) -> list[tuple[int, int]]:
    """Good and bad records; returns what readers see before them."""
    source.good(2)
    source.bad("{broken")
    return _counts(pipeline)


def _crash(pipeline: Pipeline, strike: Strike) -> None:
    effects = StrikingEffects(strike)
    with pipeline.opened(effects) as (job, _):
        run = Run(job)
        try:
            run.once()
        except (Crash, TautochroneError):
            pass
        finally:
            for query in run._streams._queries.values():
                query.stop()
    assert effects.struck, f"{strike} was not reached: {effects.seen}"


def _complete(pipeline: Pipeline, source: Source, before: list[tuple[int, int]]) -> None:
    # Readers see nothing of it: the next checkpoint has both halves.
    assert _counts(pipeline) == before
    good(pipeline.run())
    source.check(pipeline)


def _counts(pipeline: Pipeline) -> list[tuple[int, int]]:
    return pipeline.query("SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM events__quarantine)")
