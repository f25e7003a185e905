"""Kills at every durable step of a batch with bad records: both tables have it, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.model.effects import Step
from tautochrone.testing.crash import Taut, fault
from tautochrone.testing.harness import Pipeline

from .test_bad_records import Source, good, pipeline, source

__all__ = ["pipeline", "source"]

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash]

TABLE, BESIDE = "lake.default.events", "lake.default.events__quarantine"
STEPS = [
    (Step.LAKE_STAGE, BESIDE),
    (Step.INGEST_SOURCE_FILES, TABLE),
    (Step.LAKE_PREPARE, BESIDE),
    (Step.LAKE_PREPARE, TABLE),
    (Step.LAKE_COMMIT, TABLE),
    (Step.LAKE_COMMIT, BESIDE),
    (Step.META_REPORT, TABLE),
]
"""What a batch does, in its order."""


@pytest.mark.parametrize(("step", "subject"), STEPS)
def test_killed_after(pipeline: Pipeline, source: Source, tmp_path: Path, step: Step, subject: str) -> None:
    source.good(10)
    good(pipeline.run())
    source.good(6)
    source.bad("{broken")
    source.good(3)
    source.bad('{"id": 1, "amount": "x"}')
    before = both(pipeline)
    Taut(tmp_path, tmp_path).killed(fault(step, "after", "kill", on=subject), "--master", "local[2]")
    # Readers see nothing of it: the next checkpoint has both halves.
    assert both(pipeline) == before
    good(pipeline.run())
    source.check(pipeline)
    pipeline.verify()


def both(pipeline: Pipeline) -> list[tuple[int, int]]:
    return pipeline.query("SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM events__quarantine)")
