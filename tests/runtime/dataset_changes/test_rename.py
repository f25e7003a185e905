"""`taut rename`: rows, history and states go on under the new name, wherever the process dies."""

from __future__ import annotations

import subprocess

import pytest
from tests.crash.faults import Strike
from tests.runtime.commands import taut_in_process
from tests.support.harness import Happened

from tautochrone.model.dataset_change import DatasetChange
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.runtime.dataset_changes.rename import RenamePlan, _renamed_state, rename, survey
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.states import STATE_NAMESPACE

from .world import World, table

pytestmark = pytest.mark.spark


def taut(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return taut_in_process(world.folder, world.pipeline.session, *arguments)


def check_goes_on(world: World, name: str, above: str, happened: Happened) -> None:
    """Nothing was read or computed again: the view over it follows two new rows."""
    refresh = happened.refresh(above)
    assert refresh["mode"] == "incremental", refresh
    assert world.pipeline.query(f"SELECT count(*) FROM {name}") == [(world.rows,)]
    assert world.pipeline.query(f"SELECT sum(n) FROM {above}") == [(world.rows,)]
    world.pipeline.verify()


def test_a_stream_and_a_view_go_on_under_new_names(world: World) -> None:
    world.define("events", "totals<-events")
    for _ in range(2):
        world.run()
        world.add()
    refreshes = world.pipeline.job.store.history.refreshes(table("totals"))
    world.define("orders", "totals<-orders")
    listed = taut(world, "rename", "events", "orders", "--dry-run")
    assert "lake.default.orders" in listed.stdout, listed.stderr
    done = taut(world, "rename", "events", "orders")
    assert done.returncode == 0, done.stderr
    check_goes_on(world, "orders", "totals", world.run())
    assert world.left_of("events", files_stay=True) == []
    # Older checkpoints show it under its new name.
    assert world.pipeline.query("SELECT count(*) FROM orders", checkpoint=1) == [(2,)]
    world.define("orders", "sums<-orders")
    done = taut(world, "rename", "totals", "sums")
    assert done.returncode == 0, done.stderr
    assert world.left_of("totals", files_stay=True) == []
    assert len(world.pipeline.job.store.history.refreshes(table("sums"))) == len(refreshes) + 1
    world.add()
    check_goes_on(world, "orders", "sums", world.run())
    # A new dataset of the old name begins anew.
    world.define("orders", "sums<-orders", "events")
    world.add()
    check_goes_on(world, "orders", "sums", world.run())
    assert world.pipeline.query("SELECT count(*) FROM events") == [(world.rows,)]
    # What the store knew is in the lake, too.
    world.lose_store()
    world.add()
    check_goes_on(world, "orders", "sums", world.run())
    assert taut(world, "maintain").returncode == 0


STEPS = [
    Strike(step, when, "crash")
    for step in (
        Step.META_CHANGE,
        Step.LAKE_RENAME,
        Step.LAKE_COMMIT_METADATA,
        Step.INGEST_RENAME,
        Step.META_CHANGED,
    )
    for when in ("before", "after")
]
LOST = [Strike(step, "after", "lose") for step in (Step.META_CHANGE, Step.LAKE_RENAME, Step.INGEST_RENAME)]


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([STEPS[3], STEPS[5], STEPS[7]], id="some steps"),
        pytest.param(
            # In the order in which they are taken: a commit that was made is not made again.
            [*STEPS[:2], LOST[0], *STEPS[2:4], LOST[1], *STEPS[4:8], LOST[2], *STEPS[8:]],
            id="all steps", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_rename_that_dies_is_completed(world: World, strikes: list[Strike]) -> None:
    """The stream is renamed, which has folders; the view over it reads it under the new name."""

    def rename_events(job: Job) -> None:
        project = world.pipeline._project
        assert project is not None
        rename(job, survey(job, "events", "orders", project.graphs_of_rename))

    world.define("events", "totals<-events")
    world.run()
    world.add()
    world.define("orders", "totals<-orders")
    was_decided = False
    for strike in strikes:
        world.attempt(rename_events, strike)
        decided = bool(world.pipeline.job.store.datasets.pending_changes())
        assert ("being renamed" in taut(world, "status").stdout) is decided
        if decided and not was_decided:
            refused = taut(world, "run")
            assert "DATASET_CHANGE_UNFINISHED" in refused.stderr
            assert "taut rename default.events default.orders" in refused.stderr
        was_decided = was_decided or decided
    if table("events") in {change.dataset for change in world.pipeline.job.store.datasets.pending_changes()}:
        world.attempt(rename_events)
    check_goes_on(world, "orders", "totals", world.run())
    assert world.left_of("events", files_stay=True) == []


def test_a_prepared_batch_is_committed_before(world: World) -> None:
    """It names the flow as it was called: settled later, the new flow would read the same files again."""
    world.define("events", "totals<-events")
    world.run()
    world.add()
    world.attempt(
        lambda job: world.pipeline.execute(job),
        Strike(Step.LAKE_COMMIT, "before", "crash", on="events"),
    )
    world.define("orders", "totals<-orders")
    # A former table of the name was dropped by hand, and left folders of its streams.
    left = world.folder / "storage/_positions/lake/default/orders/events/0"
    left.mkdir(parents=True)
    done = taut(world, "rename", "events", "orders")
    assert done.returncode == 0, done.stderr
    assert not left.exists()
    check_goes_on(world, "orders", "totals", world.run())


def test_a_rename_is_refused(world: World) -> None:
    world.define("events", "totals<-events")
    world.run()
    before = world.pipeline.pointers()
    refused = {
        ("events", "orders"): "DATASET_NOT_FOUND",
        ("totals", "events"): "DATASET_STILL_DEFINED",
        ("nothing", "events"): "DATASET_NOT_FOUND",
    }
    for names, error_class in refused.items():
        assert error_class in taut(world, "rename", *names).stderr
    world.define("orders", "totals<-events")
    read = taut(world, "rename", "events", "orders")
    assert "DATASET_STILL_READ" in read.stderr
    assert "let it read lake.default.orders" in read.stderr
    world.define("orders")
    world.run()
    built_anew = taut(world, "rename", "events", "orders")
    assert "RENAME_TARGET_EXISTS" in built_anew.stderr
    pointers = world.pipeline.pointers()
    assert {name: pointers[name] for name in ("default.events", "default.totals")} == {
        name: before[name] for name in ("default.events", "default.totals")
    }


def test_a_query_that_changed_otherwise_is_computed_anew(world: World) -> None:
    world.define("events", "totals<-events")
    world.run()
    world.add()
    world.define("orders", "totals<-orders WHERE id < 100")
    assert taut(world, "rename", "events", "orders").returncode == 0
    refresh = world.run().refresh("totals")
    assert refresh["reason_code"] == "DEFINITION_CHANGED", refresh
    world.pipeline.verify()


@pytest.mark.slow
def test_a_revision_goes_back_behind_the_rename(world: World) -> None:
    world.define("events", "totals<-events")
    for _ in range(2):
        world.run()
        world.add()
    world.define("orders", "sums<-orders")
    assert taut(world, "rename", "events", "orders").returncode == 0
    assert taut(world, "rename", "totals", "sums").returncode == 0
    world.run()
    revised = taut(world, "revise", "orders", "--to", "1", "--read-again", "--accept")
    assert revised.returncode == 0, revised.stderr
    world.run()
    assert world.pipeline.query("SELECT count(*) FROM orders") == [(world.rows,)]
    assert world.pipeline.query("SELECT sum(n) FROM sums") == [(world.rows,)]
    world.pipeline.verify()


MERGED = """
    from pyspark import pipelines as dp

    @dp.view
    def changes():
        return spark.readStream.schema("id long, word string").json({folder!r})

    dp.create_streaming_table({name!r})
    dp.create_auto_cdc_flow(target={name!r}, source="changes", keys=["word"], sequence_by="id")
"""


@pytest.mark.slow
def test_merged_change_events_go_on(world: World) -> None:
    """With the table of the events beside it."""

    def define(name: str) -> None:
        world.pipeline.write("definitions/p.py", MERGED.format(name=name, folder=str(world.folder / "in")))
        world.pipeline.reload()

    define("words")
    for _ in range(2):
        world.run()
        world.add()
    companions = {each.table for each in world.tables() if each.table.startswith("words__")}
    define("terms")
    assert taut(world, "rename", "words", "terms").returncode == 0
    assert world.left_of("words", *companions, files_stay=True) == []
    happened = world.run()
    assert happened.refresh("terms")["mode"] != "full", happened.refresh("terms")
    assert world.pipeline.query("SELECT count(*), max(id) FROM terms") == [(3, world.rows - 1)]
    assert {each.table for each in world.tables() if each.table.startswith("terms__")} == {
        name.replace("words", "terms") for name in companions
    }
    # A reader that stays open would keep its versions.
    world.pipeline.reader.close()
    world.pipeline._reader = None
    world.pipeline.write("definitions/p.py", "")
    world.define()
    assert taut(world, "drop", "terms", "--yes").returncode == 0
    assert world.left_of("terms", *(name.replace("words", "terms") for name in companions)) == []


def test_states_follow_the_dataset_of_their_whole_name() -> None:
    names = {"totals": "sums", "totals__daily": "sums_by_day"}
    changes = [
        DatasetChange(dataset=table(old), job="test", renamed_to=table(new)) for old, new in names.items()
    ]
    plan = RenamePlan(
        changes=tuple(changes), tables={}, flows={}, readers={}, others=(), left=(), fingerprints={}
    )

    def state(name: str) -> TableName:
        return TableName("lake", STATE_NAMESPACE, f"default__{name}")

    assert _renamed_state(state("totals__0"), plan) == state("sums__0")
    assert _renamed_state(state("totals__daily__0"), plan) == state("sums_by_day__0")
