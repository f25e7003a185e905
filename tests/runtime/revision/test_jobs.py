"""A source corrected below several jobs that share their checkpoints."""

from __future__ import annotations

import pytest
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.runtime.job.test_jobs import ALL, STRONG, Topology, topology

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber
from tautochrone.model.revision import RevisionPlan
from tautochrone.runtime.revision.revise import revise, survey

from .world import request

__all__ = ["topology"]

pytestmark = [pytest.mark.spark, pytest.mark.crash]


def take_back(topology: Topology, to: int, strike: Strike | None = None) -> RevisionPlan:
    with topology.jobs["test"].opened(StrikingEffects(strike)) as (job, _):
        revision = request("word_value", to=to, again=True)
        plan = survey(job, revision)
        try:
            revise(job, revision, plan)
        except Crash:
            assert strike is not None
        return plan


def check(topology: Topology, *numbers: int) -> None:
    """What strong readers see is one instant: the files of these numbers."""
    rows = topology.jobs["joins"].reader.sql(STRONG).collect()
    assert all(row.t1 == row.c1 and row.t2 == row.s2 for row in rows)
    assert sum(row.c1 for row in rows) == 10 * len(numbers)
    assert sum(row.s2 for row in rows) == sum(45 + 10 * number for number in numbers)


def correct(topology: Topology, file: int, number: int) -> None:
    topology.add(number)
    (topology.source / f"{number}.json").rename(topology.source / f"{file}.json")


def test_all_jobs_go_back_together_and_meet_again(topology: Topology) -> None:
    go_back_and_meet(topology)


@pytest.mark.slow
def test_a_job_that_skipped_the_checkpoint_goes_further_back(topology: Topology) -> None:
    newest = go_back_and_meet(topology)
    store = topology.jobs["test"].job.store
    for number in (3, 4):
        topology.add(number)
        topology.run("test", "counts")
    (last, partial, *_) = store.checkpoints.newest(2)
    assert partial.state is CheckpointState.PARTIAL
    topology.run("sums", "joins")
    check(topology, 1, 2, 3, 4)
    plan = take_back(topology, partial.number)
    earlier = f"checkpoint {newest}, the last one before"
    further = {table.table.table: earlier in table.reason for table in plan.changed}
    assert further == {"word_value": False, "word_count": False, "word_sum": True, "both": True}
    assert {str(table.action) for table in plan.changed} == {"roll back"}
    assert store.checkpoints.get(last.number).state is CheckpointState.REVOKED
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_REVOKED"):
        check(topology, 1, 2)
    topology.run(*ALL)
    check(topology, 1, 2, 3, 4)
    for job in ALL[1:]:
        assert all(verdict.equal for verdict in topology.jobs[job].verify())


def go_back_and_meet(topology: Topology) -> CheckpointNumber:
    """The newest checkpoint, which all jobs have again."""
    topology.add(1)
    topology.run(*ALL)
    check(topology, 1)
    store = topology.jobs["test"].job.store
    right = store.reads.resolve().checkpoint
    assert right is not None
    correct(topology, 2, 100)
    # Two have not done their part of the checkpoint that shows what is wrong.
    topology.run("test", "counts")
    (wrong, *_) = store.checkpoints.newest(1)
    assert wrong.state is CheckpointState.OPEN
    correct(topology, 2, 2)
    before = {job: store.jobs.newest_fence(job) for job in ALL}
    plan = take_back(topology, right, Strike(Step.META_REVISE, "after", "crash"))
    assert plan.jobs == tuple(sorted(ALL))
    assert store.checkpoints.get(wrong.number).state is CheckpointState.REVOKED
    check(topology, 1)
    # Whoever of them comes first does the rest for all.
    joins = topology.run("joins")["joins"]
    assert {event["action"] for event in joins.of("revised")} == {"roll back"}
    assert len(joins.of("revised")) == 4
    assert store.revisions.pending("test") == ()
    assert all(store.jobs.newest_fence(job) > before[job] for job in ALL)
    assert not any(status.alive for status in store.jobs.states())
    check(topology, 1)
    topology.run("test", "counts")
    check(topology, 1)
    topology.run("sums", "joins", "joins")
    check(topology, 1, 2)
    newest = store.reads.resolve().checkpoint
    assert newest is not None
    assert newest > wrong.number
    assert store.checkpoints.get(newest).state is CheckpointState.PUBLISHED
    return newest
