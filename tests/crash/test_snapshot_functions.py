"""Crashes while a flow takes the snapshots of a function: each of them is taken exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.errors import TautochroneError
from tautochrone.model.effects import Step

from .faults import Crash, Strike, StrikingEffects

pytestmark = [pytest.mark.crash, pytest.mark.spark]

# The function never returns the same rows for a version twice: what a call returned and was not committed
# must leave nothing.
DEFINITIONS = """
import dlt
from pathlib import Path

CALLS = Path("@FOLDER@/calls")
NEWEST = Path("@FOLDER@/newest")

def next_snapshot(latest):
    version = (latest or 0) + 1
    if version > int(NEWEST.read_text()):
        return None
    call = int(CALLS.read_text()) + 1
    CALLS.write_text(str(call))
    # Every fourth snapshot changes nothing: the last call for a version is the one that was committed.
    shown = version if version % 4 else version - 1
    call_of = CALLS.with_name(f"call-{shown}")
    if shown == version:
        call_of.write_text(str(call))
    call = int(call_of.read_text())
    rows = [(key, shown if key < 3 else 0, call) for key in range(5) if shown % 3 or key]
    return spark.createDataFrame(rows, "id INT, a INT, call INT"), version

dlt.create_streaming_table("history")
dlt.create_auto_cdc_from_snapshot_flow("history", next_snapshot, ["id"], stored_as_scd_type=2)
"""
EVENTS = "history__events"
STEPS = [
    (Step.LAKE_CREATE, "before"), (Step.LAKE_STAGE, "before"), (Step.LAKE_STAGE, "after"),
    (Step.LAKE_PREPARE, "before"), (Step.LAKE_PREPARE, "after"),
    (Step.LAKE_COMMIT, "before"), (Step.LAKE_COMMIT, "after"),
]  # fmt: skip


class Snapshots:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.pipeline = Pipeline(folder, spark)
        self.pipeline.write("definitions/a.py", DEFINITIONS.replace("@FOLDER@", str(folder)))
        (folder / "calls").write_text("0")
        self.newest = 0
        self.add(1)

    def add(self, count: int) -> None:
        self.newest += count
        (self.folder / "newest").write_text(str(self.newest))

    def run(self, strike: Strike | None = None) -> None:
        effects = StrikingEffects(strike)
        with self.pipeline.opened(effects) as (job, happened):
            try:
                self.pipeline.execute(job)
            except (Crash, TautochroneError):
                assert strike is not None
        assert strike is None or effects.struck, (str(strike), happened)

    def check(self) -> None:
        """The events are those of one call for each version, and the table is what they give."""
        calls = self.pipeline.query(
            "SELECT __taut_sequence, count(DISTINCT call) FROM history__events WHERE NOT __taut_delete "
            "GROUP BY 1"
        )
        versions = [version for version in range(1, self.newest + 1) if version % 4]
        assert calls == [(version, 1) for version in versions]
        (current,) = self.pipeline.query(
            "SELECT count(*), min(id), max(call) FROM history WHERE __END_AT IS NULL"
        )
        last = versions[-1]
        call = self.pipeline.query(f"SELECT max(call) FROM history__events WHERE __taut_sequence = {last}")
        assert current == ((5, 0) if last % 3 else (4, 1)) + call[0]
        starts = self.pipeline.query("SELECT __START_AT FROM history WHERE id = 1")
        assert starts == [(version,) for version in versions]
        assert all(verdict.equal for verdict in self.pipeline.verify())


def test_crash_after_the_commit_of_a_snapshot(tmp_path: Path, spark: SparkSession) -> None:
    snapshots = Snapshots(tmp_path, spark)
    snapshots.run(Strike(Step.LAKE_COMMIT, "after", "crash", on=EVENTS))
    snapshots.add(1)
    snapshots.run()
    snapshots.check()
    snapshots.pipeline.close()


@pytest.mark.slow
def test_crash_at_each_step_of_a_snapshot(tmp_path: Path, spark: SparkSession) -> None:
    snapshots = Snapshots(tmp_path, spark)
    for step, when in STEPS:
        snapshots.run(Strike(step, when, "crash", on=EVENTS))
        snapshots.add(1)
        if snapshots.newest % 4 == 0:
            snapshots.run()
            snapshots.add(1)
    snapshots.run()
    snapshots.check()
    snapshots.add(4 - snapshots.newest % 4)
    for when in ("before", "after"):
        snapshots.run(Strike(Step.LAKE_COMMIT_METADATA, when, "crash", on=EVENTS))
    snapshots.run()
    snapshots.check()
    snapshots.add(1)
    snapshots.run(Strike(Step.LAKE_COMMIT, "after", "lose", on=EVENTS))
    snapshots.run()
    snapshots.check()
    snapshots.pipeline.close()
