"""A process that stands still at its flow's folder while another takes the job over: no row of a source is
lost or doubled, whatever it writes when it wakes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
from tests.support.crash import Running, Taut, fault

from tautochrone.model.effects import Step

from .checks import check, pyiceberg
from .faults import StrikingEffects
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1200)]

T = TypeVar("T")
TABLES = ("names",)
STATELESS, STATEFUL = "names", "once"
FOLDER_STEPS = (Step.INGEST_FOLDER, Step.INGEST_CLEAN, Step.INGEST_SOURCE_FILES)

_ONCE = """\
@dp.table
def once():
    rows = spark.readStream.schema("kind INT, name STRING").option("header", "true").csv(f"{INPUT}/names")
    keys = rows.selectExpr("CAST(right(name, 1) AS INT) % 4 AS key", "timestamp'2026-01-01' AS at")
    return keys.withWatermark("at", "1 day").dropDuplicates(["key", "at"])
"""


class Interrupted(StrikingEffects):
    """Something happens once the batch of `names` is staged: its plan is made, and it is not committed."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens: Callable[[], None] | None = happens

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        result = super().perform(step, subject, action)
        if step is Step.LAKE_STAGE and subject.endswith(f".{STATELESS}") and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return result


def _cases() -> Iterator[Any]:
    for step in FOLDER_STEPS:
        for when in ("before", "after"):
            for on in (STATELESS, STATEFUL):
                if step is Step.INGEST_CLEAN and on == STATEFUL:
                    # Its older folder has become the new one: nothing is left to delete.
                    continue
                in_ci = (step, when, on) == (Step.INGEST_FOLDER, "after", STATEFUL)
                marks = [] if in_ci else [pytest.mark.slow]
                yield pytest.param(step, when, on, marks=marks, id=f"{step}-{when}-{on}")


@pytest.mark.parametrize(("step", "when", "on"), list(_cases()))
def test_it_wakes_when_a_newer_one_has_planned_a_batch(
    world: World, tmp_path: Path, step: Step, when: str, on: str
) -> None:
    world.sources.define_stream("once", _ONCE)
    _grow(world)
    _grow(world)
    if step is Step.INGEST_FOLDER and on == STATELESS:
        # Both find it gone. What has a state cannot do without its folder.
        shutil.rmtree(_folder(world, STATELESS))
    world.sources.add()
    with _asleep(world, tmp_path, step, when, on) as zombie:
        # Its other flows may have taken in what was there.
        world.sources.add()

        def meanwhile() -> None:
            world.sources.add()
            _wakes(zombie)

        effects = Interrupted(meanwhile)
        world.run(effects=effects, takeover=True).require_completed()
        assert effects.happens is None
    _grow(world)
    check(world)
    keys = Counter(
        row["key"]
        for row in pyiceberg(world.sources).load_table("default.once").scan().to_arrow().to_pylist()
    )
    assert keys == Counter({int(name[-1]) % 4 for _, name in world.sources.names})
    for flow in (STATELESS, STATEFUL):
        assert len(list(_folder(world, flow).iterdir())) == 1, "what older owners left is deleted"


def _grow(world: World) -> None:
    world.sources.add()
    world.run().require_completed()


def _folder(world: World, flow: str) -> Path:
    return world.sources.storage / "_checkpoints" / "lake" / "default" / flow / flow


@contextmanager
def _asleep(world: World, logs: Path, step: Step, when: str, on: str) -> Iterator[Running]:
    taut = Taut(world.sources.folder, logs)
    # It sleeps while nothing of it writes the store: neither another step nor a heartbeat.
    with (
        patch.dict(os.environ, TAUTOCHRONE_LEASE="1h"),
        taut.start(fault=fault(step, when, "pause", on=f"lake.default.{on}")) as zombie,
    ):
        zombie.wait_until_stopped()
        yield zombie


def _wakes(zombie: Running) -> None:
    zombie.resume()
    ended = zombie.wait()
    assert ended.status == 1, ended.describe()
    assert "JOB_FENCED" in ended.stderr + ended.describe(), ended.describe()
    assert not ended.named("checkpoint"), ended.describe()
