"""What `spark-pipelines` built is taken over as it is, and goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import LakeError
from tautochrone.model.effects import Step

from .world import Built, Died, Dying, Original

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

STREAMS, ROOTS = {"orders", "both", "hourly", "cheap"}, {"orders", "both", "hourly"}
VIEWS = {"sales", "dear", "top"}


def test_nothing_is_rewritten_and_the_next_run_goes_on(built: Built) -> None:
    versions, files, rows = built.versions(), built.files(), built.sql("SELECT * FROM lake.default.both")
    happened = built.adopt()
    assert {event["dataset"].rpartition(".")[2] for event in happened.of("adopted")} == STREAMS | VIEWS
    assert built.versions() == versions
    assert built.files() == files
    assert happened.checkpoints == [1]
    assert built.pipeline.query("SELECT * FROM both") == rows

    again = built.adopt()
    assert not again.checkpoints
    assert not again.of("adopted")

    # Windows that are open when the table is adopted get the rows that come after it.
    late = '{"id": 100, "kind": "a", "price": 0.5, "at": "2026-01-01T11:30:00"}'
    later = '{"id": 103, "kind": "b", "price": 3.5, "at": "2026-01-03T00:00:00"}'
    built.pipeline.write("orders/late.json", f"{late}\n{later}\n")
    built.add(3, into="extra")
    first = built.run()
    assert first.checkpoints == [2]
    assert first.mode("dear")[0] == "append"
    assert first.mode("cheap")[0] == "append"
    mode, reason = first.mode("sales")
    assert (mode, reason) == ("full", "the view has no state default__sales__1 yet")
    assert not first.of("flow_folder")
    now = built.files()
    unchanged = {name for name in STREAMS | {"dear"} if files[name] <= now[name]}
    assert unchanged == STREAMS | {"dear"}
    # One row an hour came before, and the hour of the last but one was still open.
    counts = dict.fromkeys((0, 1, 2, 3, 4, 5, 8, 9, 10, 12), 1) | {11: 2}
    assert dict(built.pipeline.query("SELECT hour(hour), n FROM hourly")) == counts
    built.check()

    built.add(4)
    assert built.run().mode("sales")[0] == "incremental"
    built.check()


STEPS = (
    Step.META_START,
    Step.META_TAKE_OVER,
    Step.INGEST_SOURCE_FILES,
    Step.LAKE_ADOPT,
    Step.META_REPORT,
    Step.META_OPEN,
    Step.META_VERSION,
    Step.META_PUBLISH,
)
"""Of an adoption, in the order in which they are first taken."""
BETWEEN_TABLES = (Step.INGEST_SOURCE_FILES, Step.LAKE_ADOPT, Step.META_VERSION)
"""At these the next process meets some adopted tables, or an open checkpoint."""
ONCE = {Step.META_START, Step.META_TAKE_OVER, Step.META_OPEN, Step.META_PUBLISH}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(BETWEEN_TABLES, id="between tables"),
        pytest.param(STEPS, id="all", marks=pytest.mark.slow),
    ],
)
def test_dying_at_every_step(built: Built, steps: Sequence[Step]) -> None:
    """The adoption that dies at one step completes, up to the next, what died before it."""
    before = built.versions()
    for step in steps:
        assert dies(built, Dying(step)), step
        assert built.versions() == before
    goes_on(built)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [Step.INGEST_SOURCE_FILES, Step.LAKE_ADOPT, Step.META_REPORT, Step.META_VERSION]
)
def test_dying_at_every_occurrence(built: Built, step: Step) -> None:
    times = 1
    while dies(built, Dying(step, times)):
        times += 1
    assert times > len(ROOTS)
    goes_on(built)


@pytest.mark.slow
def test_what_two_runs_built(spark: SparkSession, tmp_path: Path) -> None:
    """The flows of the second run began at what the first one had read."""
    built = Original(tmp_path / "shop", spark, runs=2).again()
    goes_on(built)
    built.pipeline.close()


@pytest.mark.slow
def test_a_run_completes_what_only_lacks_its_publication(built: Built) -> None:
    assert dies(built, Dying(Step.META_OPEN))
    with pytest.raises(LakeError, match="TABLE_ALREADY_EXISTS"):
        built.run()
    assert dies(built, Dying(Step.META_VERSION, len(VIEWS) + 1))
    # Every table is taken over, and the checkpoint is open: what is left is what any run does.
    built.add()
    happened = built.run()
    assert len(happened.checkpoints) == 2
    built.check()


def dies(built: Built, effects: Dying) -> bool:
    """An adoption that is to die; whether it did."""
    try:
        built.adopt(effects=effects)
    except Died:
        return True
    assert not effects.died
    return False


def goes_on(built: Built) -> None:
    """The adoption is complete, and a run finds all as it should be."""
    built.adopt()
    assert built.pipeline.query("SELECT count(*) FROM orders") == [(11,)]
    built.add()
    built.run()
    built.check()
