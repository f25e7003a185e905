"""The process dies before and after every step of a revision: before the decision nothing has happened,
after it whoever comes next carries out the rest, and the result is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.crash.faults import Crash, Strike, StrikingEffects

from tautochrone.errors import CommitOutcomeUnknownError
from tautochrone.model.effects import Step
from tautochrone.model.revision import RevisionState
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.revision.revise import complete_pending, revise, survey

from .world import GOOD, LATER, RIGHT, World, request

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(1800)]

TABLES = 5
BEFORE = [
    Strike(Step.META_TAKE_OVER, "before", "crash"),
    Strike(Step.META_TAKE_OVER, "after", "crash"),
    Strike(Step.META_REVISE, "before", "crash"),
]
DECIDING = [Strike(Step.META_REVISE, "after", "crash"), Strike(Step.META_REVISE, "after", "lose")]
AFTER = [
    Strike(Step.LAKE_REVERT, "before", "crash"),
    *(Strike(Step.LAKE_REVERT, "after", "crash") for _ in range(TABLES)),
    Strike(Step.META_REPORT, "before", "crash"),
    Strike(Step.META_REPORT, "after", "crash"),
    Strike(Step.META_REVISED, "before", "crash"),
    Strike(Step.META_REVISED, "after", "crash"),
]
SOME_BEFORE, SOME_AFTER = BEFORE[-1:], [*AFTER[1:3], *AFTER[-3:-1]]
"""The last step before the decision; two tables, a report, and the end of the revision."""


def attempt(world: World, strike: Strike | None, act: Callable[[Job], object]) -> StrikingEffects:
    """One process, which dies by the strike."""
    effects = StrikingEffects(strike)
    with world.pipeline.opened(effects) as (job, _):
        try:
            act(job)
        except (Crash, CommitOutcomeUnknownError):
            assert strike is not None
    assert strike is None or effects.struck, f"{strike} was not reached: {effects.seen}"
    return effects


def do(job: Job) -> None:
    revision = request("events", to=1, again=True)
    revise(job, revision, survey(job, revision))


def states(world: World) -> list[str]:
    with world.pipeline.opened() as (job, _):
        return [str(job.store.checkpoints.get(number).state) for number in (1, 2, 3)]


def revisions(world: World) -> list[RevisionState]:
    with world.pipeline.opened() as (job, _):
        return [revision.state for revision in job.store.revisions.find()]


def run(job: Job) -> None:
    Run(job).once()


@pytest.mark.parametrize(
    ("before", "deciding", "after", "resume"),
    [
        pytest.param(SOME_BEFORE, DECIDING[1], SOME_AFTER, run, id="some steps"),
        pytest.param(
            BEFORE, DECIDING[0], AFTER, complete_pending, id="resumed by taut revise", marks=pytest.mark.slow
        ),
        pytest.param(BEFORE, DECIDING[1], AFTER, run, id="resumed by taut run", marks=pytest.mark.slow),
    ],
)
def test_killed_at_every_step(
    one_at_a_time: World,
    before: Sequence[Strike],
    deciding: Strike,
    after: Sequence[Strike],
    resume: Callable[[Job], object],
) -> None:
    world = one_at_a_time
    pointers = world.pipeline.pointers()
    for strike in before:
        attempt(world, strike, do)
        assert states(world) == ["published"] * 3
        assert revisions(world) == []
        assert world.pipeline.pointers() == pointers
    attempt(world, deciding, do)
    assert world.pipeline.pointers() == pointers
    for strike in after:
        # From the decision on, readers see nothing of what is going back, whatever stands half done.
        assert states(world) == ["published", "revoked", "revoked"]
        assert sorted(world.pipeline.job.store.reads.resolve().versions) == sorted(
            world.pipeline.job.store.checkpoints.versions_at(1)
        )
        assert revisions(world) == [RevisionState.DECIDED]
        attempt(world, strike, resume)
    happened = world.run()
    assert revisions(world) == [RevisionState.DONE]
    assert happened.checkpoints[-1] == 4
    world.check(*GOOD, *RIGHT, *LATER)
