"""The catalog or the store acts, and the answer is lost; or it never acted. Nobody can tell from outside.

A commit to the lake finds out by itself and the run completes. Anything else may end the run with the
class for an unknown outcome, and the next run is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tautochrone.model.effects import Step

from .checks import check
from .faults import Strike
from .steps import CHAINS, lead_to, settle
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

FINDS_OUT = {
    Step.LAKE_PREPARE,
    Step.LAKE_COMMIT,
    Step.LAKE_COMMIT_STAGED,
    Step.LAKE_COMMIT_METADATA,
    Step.LAKE_FENCE,
    Step.LAKE_REDEFINE,
    Step.LAKE_TAG,
}
"""Commits that are compare-and-set: read the table, then it is known."""


@pytest.mark.parametrize("when", ["after", pytest.param("before", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("chain", "steps"),
    [
        pytest.param("ingestion", (Step.LAKE_COMMIT, Step.META_REPORT), id="commit"),
        *(
            pytest.param(name, tuple(chain), id=name, marks=pytest.mark.slow)
            for name, chain in CHAINS.items()
        ),
    ],
)
def test_lost_answers(world: World, chain: str, steps: Sequence[Step], when: str) -> None:
    for step in steps:
        lead_to(world, chain, step)
        attempt = world.run(Strike(step, when, "lose"))
        if step in FINDS_OUT:
            attempt.require_completed()
        elif not attempt.completed:
            unknown = "COMMIT_OUTCOME_UNKNOWN" in attempt.errors
            assert unknown or step is Step.META_FAILURE, attempt.describe()
    settle(world)
    world.sources.add()
    world.run().require_completed()
    check(world)
