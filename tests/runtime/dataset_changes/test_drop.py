"""`taut drop`: nothing of a dataset is left, wherever the process dies, and nobody loses what they need."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.crash.faults import Strike
from tests.runtime.commands import taut_in_process

from tautochrone.app.health import _check_store
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, encode
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import Fence
from tautochrone.runtime.dataset_changes.drop import drop, survey
from tautochrone.runtime.job.job import Job

from .world import World, table

pytestmark = pytest.mark.spark


def taut(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return taut_in_process(world.folder, world.pipeline.session, *arguments)


def drop_both(job: Job) -> None:
    drop(job, survey(job, ["totals", "events"]))


def drop_events(job: Job) -> None:
    drop(job, survey(job, ["events"]))


def test_nothing_is_left(world: World) -> None:
    world.define("events", "totals<-events")
    world.run()
    world.add()
    world.run()
    world.define()
    listed = taut(world, "drop", "totals", "events", "--dry-run", "--json")
    parts = [json.loads(line) for line in listed.stdout.splitlines()]
    kinds = [
        (part["dataset"].rpartition(".")[2], part["kind"]) for part in parts if part["event"] == "drop_part"
    ]
    assert ("totals", "state") in kinds, (kinds, listed.stderr)
    assert ("events", "stream folder") in kinds
    assert all(part["bytes"] > 0 for part in parts if part.get("kind") in ("table", "state"))
    assert world.left_of("events")
    dropped = taut(world, "drop", "totals,events", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert world.left_of("events", "totals") == []
    assert "left the project" not in taut(world, "status").stdout
    world.run()
    assert world.pipeline.verify() is not None
    assert taut(world, "maintain").returncode == 0
    assert world.pipeline.query("SELECT count(*) FROM other") == [(world.rows,)]
    # Defined again it begins anew, from all files.
    world.define("events", "totals<-events")
    happened = world.run()
    assert happened.mode("totals")[0] == "full"
    assert world.pipeline.query("SELECT sum(n) FROM totals") == [(world.rows,)]
    assert len(world.pipeline.job.store.history.refreshes(table("totals"))) == 1


STEPS = [
    Strike(step, when, "crash")
    for step in (Step.META_CHANGE, Step.LAKE_DROP, Step.LAKE_DELETE, Step.INGEST_CLEAN, Step.META_CHANGED)
    for when in ("before", "after")
]
LOST = [Strike(step, "after", "lose") for step in (Step.META_CHANGE, Step.LAKE_DROP, Step.LAKE_DELETE)]


def check_half_dropped(world: World) -> None:
    """Nobody sees what is half gone, other tables go on, and the name is not given again."""
    assert table("events") not in world.pipeline.job.store.reads.resolve().versions
    world.define("events")
    refused = taut(world, "run")
    assert refused.returncode == 1
    assert "DATASET_CHANGE_UNFINISHED" in refused.stderr
    world.define()
    world.run()


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([STEPS[1], STEPS[3], LOST[2]], id="some steps"),
        pytest.param(
            [Strike(Step.META_TAKE_OVER, "after", "crash"), *STEPS[:2], *LOST, *STEPS[2:]],
            id="all steps", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_drop_that_dies_is_completed(world: World, strikes: list[Strike]) -> None:
    world.define("events", "totals<-events")
    world.run()
    world.define()
    was_decided = False
    for strike in strikes:
        world.attempt(drop_both, strike)
        decided = bool(world.pipeline.job.store.datasets.pending_changes())
        assert ("being dropped" in taut(world, "status").stdout) is decided
        assert ("is unfinished" in _check_store(world.pipeline.settings)) is decided
        if decided and not was_decided:
            check_half_dropped(world)
        was_decided = was_decided or decided
    if world.pipeline.job.store.datasets.pending_changes():
        # It is completed even where the name came back.
        world.define("events")
        world.attempt(drop_both)
        assert world.left_of("events", "totals") == []
        world.run()
    assert world.pipeline.query("SELECT count(*) FROM other") == [(world.rows,)]


def test_what_somebody_needs_stays(world: World) -> None:
    world.define("events", "totals<-events")
    world.run()
    before = world.pipeline.pointers()
    still = taut(world, "drop", "events", "--yes")
    assert "DATASET_STILL_DEFINED" in still.stderr
    assert "p.py" in still.stderr
    world.define("totals<-events")
    read = taut(world, "drop", "events", "--yes")
    assert "DATASET_STILL_READ" in read.stderr
    assert "lake.default.totals" in read.stderr
    assert "DATASET_NOT_FOUND" in taut(world, "drop", "event", "--yes").stderr
    world.define()
    store = world.pipeline.job.store
    pin = store.reads.resolve(owner="a dashboard").pin
    assert "a dashboard" in taut(world, "drop", "events", "totals", "--yes").stderr
    assert world.pipeline.pointers() == before
    with world.pipeline.opened() as (job, _):
        job.store.pins.release(pin)
    assert "DROP_NOT_ACCEPTED" in taut(world, "drop", "events", "totals").stderr
    assert world.pipeline.pointers() == before


def test_a_later_table_of_the_name_stays(world: World) -> None:
    """The old one was dropped by hand, and somebody else gave its name to another table."""
    world.define("events")
    world.run()
    world.define()
    world.run()
    sql = world.pipeline.session.sql
    for pipeline, options in (("theirs", ()), (world.pipeline.settings.job, ("--keep-table",))):
        sql("DROP TABLE lake.default.events")
        metadata = CommitMetadata(pipeline=pipeline, job=pipeline, fence=Fence(1), store="theirs")
        properties = f"TBLPROPERTIES ('{COMMIT_METADATA_KEY}' = '{encode(metadata)}')"
        sql(f"CREATE TABLE lake.default.events USING iceberg {properties} AS SELECT 1 AS id")
        assert "TABLE_OF_ANOTHER_PIPELINE" in taut(world, "drop", "events", "--yes", *options).stderr
        assert sql("SELECT count(*) FROM lake.default.events").collect() == [(1,)]
    assert "left the project" not in taut(world, "status").stdout


def test_a_table_that_got_another_name_keeps_its_files(world: World) -> None:
    world.define("events")
    world.run()
    world.define()
    world.attempt(drop_events, Strike(Step.META_CHANGE, "after", "crash"))
    sql = world.pipeline.session.sql
    sql("ALTER TABLE lake.default.events RENAME TO default.kept")
    dropped = taut(world, "drop", "events", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert "lake.default.kept" in dropped.stdout + dropped.stderr
    assert sql("SELECT count(*) FROM lake.default.kept").collect() == [(world.rows,)]


def test_a_running_job_is_left_alone(world: World) -> None:
    world.define("events")
    world.run()
    with world.pipeline.running():
        world.define()
        refused = taut(world, "drop", "events", "--yes")
        assert "JOB_RUNNING" in refused.stderr
    assert table("events") in world.tables()


def test_the_table_stays_on_demand(world: World) -> None:
    world.define("events")
    world.run()
    world.define()
    assert taut(world, "drop", "events", "--yes", "--keep-table").returncode == 0
    assert [str(table("events"))] == [str(each) for each in world.tables() if each.table == "events"]
    assert world.rows_of([str(table("events"))]) == []
    assert world.pipeline.session.sql("SELECT count(*) FROM lake.default.events").collect() == [(world.rows,)]
    world.define("events")
    assert "TABLE_ALREADY_EXISTS" in taut(world, "run").stderr


@pytest.mark.slow
def test_a_store_that_does_not_know_the_table(world: World) -> None:
    world.define("events")
    world.run()
    world.define()
    world.lose_store()
    world.run()
    assert taut(world, "drop", "events", "--yes").returncode == 0
    assert world.left_of("events") == []


@pytest.mark.slow
def test_an_open_checkpoint_is_finished_without_it(world: World) -> None:
    world.define("events", "totals<-events")
    world.run()
    world.add()
    world.attempt(lambda job: world.pipeline.execute(job), Strike(Step.META_OPEN, "after", "crash"))
    world.define()
    world.attempt(drop_both)
    world.run()
    assert world.left_of("events", "totals") == []
    assert world.pipeline.query("SELECT count(*) FROM other") == [(world.rows,)]
