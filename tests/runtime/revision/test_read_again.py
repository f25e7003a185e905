"""A source that said wrong things is corrected and read again from where a checkpoint stood."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tautochrone.runtime.maintenance.maintain import Maintenance

from .world import GOOD, LATER, RIGHT, World, actions, name

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_rows_state_and_positions_go_back_and_are_replayed(wronged: World) -> None:
    world = wronged
    with world.pipeline.opened() as (job, happened):
        # Hours later: of the versions between, and of the states, only what checkpoints need is left.
        Maintenance(job, now_ms=lambda: time.time_ns() // 1_000_000 + 36_000_000).run(orphans=False)
        assert {event["dataset"] for event in happened.of("versions_expired")} >= {str(name("totals"))}
    plan = world.plan("events", to=1, again=True)
    assert actions(plan) == [(t, "roll back") for t in ("events", "clean", "totals", "labelled", "sizes")]
    assert plan.revoked == (2, 3)
    pointers = world.pipeline.pointers()
    revision, _ = world.revise("events", to=1, again=True)
    assert revision.plan == replace(plan, last=3)
    with world.pipeline.opened() as (job, _):
        assert [str(job.store.checkpoints.get(n).state) for n in (1, 2, 3)] == [
            "published",
            "revoked",
            "revoked",
        ]
        assert {t for t, pointer in world.pipeline.pointers().items() if pointer == pointers[t]} == {
            t for t in pointers if t.startswith("_tautochrone")
        }
    happened = world.run()
    assert happened.checkpoints == [4]
    world.check(*GOOD, *RIGHT, *LATER)
    # Followed from checkpoint 1, with the states of then.
    assert happened.mode("clean")[0] == "append"
    for view in ("totals", "sizes", "labelled"):
        assert happened.mode(view)[0] == "incremental", happened.mode(view)
    world.put("d", (8, 1))
    assert world.run().mode("totals")[0] == "incremental"
    world.check(*GOOD, *RIGHT, *LATER, (8, 1))
