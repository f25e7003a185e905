"""A source that was corrected where it stands stays; what is made from it goes back and is computed again."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.errors import (
    CheckpointUnavailableError,
    ConflictError,
    FencedError,
    MetaError,
    QueryError,
)
from tautochrone.model.names import Fence
from tautochrone.model.revision import RevisionState
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.revision.revise import confirm, revise, survey, tables_named

from .world import GOOD, LATER, RIGHT, WRONG, World, actions, name, request, tagged

pytestmark = pytest.mark.spark

OUTSIDE = "lake.shared.prices"


def outside(world: World) -> None:
    """Views two levels deep over a table that somebody else writes, beside one that does not read it."""
    for view in ("labelled", "sizes"):
        world.forget(view)
    sql = world.pipeline.session.sql
    sql("CREATE NAMESPACE IF NOT EXISTS lake.shared")
    sql(f"CREATE TABLE {OUTSIDE} (kind INT, price INT) USING iceberg TBLPROPERTIES ('format-version'='3')")
    sql(f"INSERT INTO {OUTSIDE} VALUES (0, 10), (1, 20), (2, 30)")
    world.define("worth", f"SELECT c.kind, sum(p.price) AS worth FROM clean c JOIN {OUTSIDE} p USING (kind) "
                 "GROUP BY c.kind")  # fmt: skip
    world.define("richest", "SELECT max(worth) AS most, count(*) AS kinds FROM worth")


def test_an_external_table(world: World) -> None:
    outside(world)
    world.put("a", *GOOD)
    world.run()
    sql = world.pipeline.session.sql
    sql(f"INSERT INTO {OUTSIDE} VALUES (1, 1000)")
    world.put("b", *RIGHT)
    world.run()
    assert world.rows("richest") == [(2040, 3)]
    sql(f"DELETE FROM {OUTSIDE} WHERE price = 1000")
    plan = world.plan(OUTSIDE, to=1)
    assert actions(plan) == [("prices", "stay"), ("worth", "roll back"), ("richest", "roll back")]
    world.revise(OUTSIDE, to=1)
    # Nobody reads what is revoked, neither by its number nor because a session has read it.
    for how in ({"checkpoint": 2}, {}):
        with pytest.raises((CheckpointUnavailableError, QueryError)) as refused_read:
            world.rows("richest", **how)
        assert refused_read.value.error_class == "CHECKPOINT_REVOKED"
    happened = world.run()
    assert happened.checkpoints == [3]
    for view in ("worth", "richest"):
        assert happened.mode(view)[0] == "incremental", happened.mode(view)
    # What is not made from it never moved.
    assert happened.mode("totals")[0] == "no_data"
    assert world.rows("richest") == [(60, 3)]
    views = {verdict.dataset.table for verdict in world.pipeline.verify()}
    assert {"worth", "richest"} <= views


def test_old_data_is_kept_until_it_is_confirmed_and_zombies_do_not_land(wronged: World) -> None:
    world = wronged
    table = world.table("events")
    zombie, last = table.fork(), table.fork().commit_metadata
    assert last is not None
    staged = table.stage(zombie, world.pipeline.session.createDataFrame([(99, 9)], "id long, kind int"))
    revision, _ = world.revise("events", to=1, again=True)
    # Forked before the revision, or now from the very version that it went back to: its fence is too low.
    for fork in (zombie, table.fork()):
        with pytest.raises((FencedError, ConflictError)):
            table.prepare(fork, [staged], last)
    world.put("d", (8, 1))
    world.run()
    with world.pipeline.opened() as (job, _):
        rules = job.settings.maintenance
        maintenance = Maintenance(job, now_ms=lambda: 10**15)
        assert rules.keep_last
        maintenance.run(orphans=False)
        assert tagged(job, revision, "events")
        tagged_rows = world.pipeline.session.read.option("versionAsOf", f"taut-revision-{revision.id}")
        assert {tuple(row) for row in tagged_rows.table("lake.default.events").collect()} == {
            *GOOD,
            *WRONG,
            *LATER,
        }
        assert confirm(job, revision.id).state is RevisionState.CONFIRMED
        assert confirm(job, revision.id).state is RevisionState.CONFIRMED
        assert not tagged(job, revision, "events")
        with pytest.raises(MetaError, match="REVISION_NOT_FOUND"):
            confirm(job, "nothing")
    world.check(*GOOD, *RIGHT, *LATER, (8, 1))


@pytest.mark.slow
def test_full_clears_and_builds_anew_in_one_revision(wronged: World) -> None:
    world = wronged
    plan = world.plan("events", again=True, full=True)
    assert actions(plan) == [
        ("events", "clear"), ("clean", "clear"),
        ("totals", "rebuild"), ("labelled", "rebuild"), ("sizes", "rebuild"),
    ]  # fmt: skip
    revision, _ = world.revise("events", again=True, full=True)
    # Without a checkpoint nothing is revoked: the old instant stays until the new one is there.
    assert world.rows("totals", checkpoint=3)
    with world.pipeline.opened() as (job, _):
        assert all(tagged(job, revision, revised.table.table) for revised in plan.changed)
    happened = world.run()
    assert {happened.mode(view)[0] for view in ("totals", "sizes", "labelled")} == {"full"}
    world.check(*GOOD, *RIGHT, *LATER)
    world.put("d", (8, 1))
    assert world.run().mode("totals")[0] == "incremental"
    world.check(*GOOD, *RIGHT, *LATER, (8, 1))


def test_refusals_change_nothing(wronged: World) -> None:
    world = wronged
    world.pipeline.session.sql("UPDATE lake.default.events SET kind = 1 WHERE kind = 9")
    pointers = world.pipeline.pointers()
    with pytest.raises(MetaError, match="events as a stream") as refused:
        world.plan("events", to=1)
    assert refused.value.error_class == "REVISION_NOT_REPLAYABLE"
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        world.plan("events", to=77, again=True)
    with world.pipeline.opened() as (job, _):
        original = request("events", to=1, again=True)
        plan = survey(job, original)
        with pytest.raises(ConflictError, match="REVISION_PLAN_CHANGED"):
            revise(job, original, survey(job, request("totals", to=1)))
        # Somebody takes the job over between the fence and the decision.
        honest = job.store.jobs.take_over

        def contested(job_name: str, **how: Any) -> Fence:
            fence = honest(job_name, **how)
            honest(job_name)
            return fence

        job.store.jobs.take_over = contested  # type: ignore[method-assign]
        with pytest.raises(FencedError, match="REVISION_CONTESTED"):
            revise(job, original, plan)
        assert job.store.revisions.find() == ()
        assert tables_named(job.store, job.definitions, ["Totals", "default.EVENTS"]) == (
            name("totals"),
            name("events"),
        )
    assert world.pipeline.pointers() == pointers


@pytest.mark.slow
def test_a_root_that_was_updated_by_hand_is_taken_as_it_is(wronged: World) -> None:
    world = wronged
    world.pipeline.session.sql("UPDATE lake.default.events SET kind = 1 WHERE kind = 9")
    plan = world.plan("events", full=True)
    assert actions(plan)[:2] == [("events", "stay"), ("clean", "clear")]
    world.revise("events", full=True)
    happened = world.run()
    # The stream cannot be led past the update: it begins with what the table is now.
    assert [refused_read["dataset"] for refused_read in happened.of("flow_from_snapshot")] == [
        "lake.default.clean"
    ]
    world.check(*GOOD, (5, 1), (6, 1), *LATER)
    world.put("d", (8, 1))
    assert world.run().mode("clean")[0] == "append"
    world.check(*GOOD, (5, 1), (6, 1), *LATER, (8, 1))
