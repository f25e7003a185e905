"""Before and after every durable step: the process dies there, the next one is right.

A real process is killed after the step, a simulated one (which costs a second, not ten) dies before
it. CI only simulates here; `make soak` does each of the two both ways in all chains, and at every
occurrence of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.crash import Taut, fault

from tautochrone.model.effects import Step

from .checks import check
from .faults import Strike
from .steps import CHAINS, ELSEWHERE, IN_LONG_FORM, lead_to, settle
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("step", Step)
def test_every_step_has_its_scenario(step: Step) -> None:
    places = [name for name, chain in CHAINS.items() if step in chain]
    places += ["elsewhere"] * (step in ELSEWHERE)
    assert len(places) == 1, f"{step} belongs into one chain or into ELSEWHERE with its reason"


def _deaths() -> Iterator[Any]:
    for chain, steps in CHAINS.items():
        in_ci = [step for step in steps if step not in IN_LONG_FORM]
        rest = [step for step in steps if step in IN_LONG_FORM]
        yield pytest.param(chain, in_ci, "before", id=f"{chain}-before")
        if rest:
            yield pytest.param(chain, rest, "before", id=f"{chain}-rest-before", marks=pytest.mark.slow)
        yield pytest.param(chain, [*steps], "after", id=f"{chain}-after", marks=pytest.mark.slow)


@pytest.mark.parametrize(("chain", "steps", "when"), list(_deaths()))
def test_crashes(world: World, chain: str, steps: Sequence[Step], when: str) -> None:
    for step in steps:
        lead_to(world, chain, step)
        attempt = world.run(Strike(step, when, "crash"))
        assert not attempt.completed
    _finish(world)


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_kills(world: World, chain: str, tmp_path: Path) -> None:
    _kill(world, chain, tmp_path, "after")


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_kills_before(world: World, chain: str, tmp_path: Path) -> None:
    _kill(world, chain, tmp_path, "before")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chain", CHAINS)
def test_crashes_at_every_occurrence(world: World, chain: str) -> None:
    for step in CHAINS[chain]:
        for nth in range(1, 30):
            lead_to(world, chain, step)
            attempt = world.run(Strike(step, "after", "crash", nth), reached=False)
            if not attempt.effects.struck:
                assert nth > 1, step
                break
    _finish(world)


def _kill(world: World, chain: str, logs: Path, when: str) -> None:
    taut = Taut(world.sources.folder, logs)
    for step in CHAINS[chain]:
        lead_to(world, chain, step)
        world.commit_metadata(taut.killed(fault(step, when, "kill")).events)
    _finish(world)


def _finish(world: World) -> None:
    settle(world)
    world.sources.add()
    world.run().require_completed()
    check(world)
