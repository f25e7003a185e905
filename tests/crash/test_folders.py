"""Spark's folder and the table disagree: the table is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .checks import check
from .test_folder_zombies import Interrupted
from .test_zombies import roll_back
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]


TABLES = ("names",)


def _grow(world: World) -> None:
    world.sources.add()
    world.run().require_completed()


@pytest.mark.quick
def test_folder_gone(world: World) -> None:
    _grow(world)
    _grow(world)
    world.sources.wipe_folders()
    _grow(world)
    check(world)


@pytest.mark.slow
def test_folder_restored_from_an_older_copy(world: World, tmp_path: Path) -> None:
    _grow(world)
    world.sources.copy_folders(tmp_path / "copy")
    _grow(world)
    _grow(world)
    world.sources.restore_folders(tmp_path / "copy")
    _grow(world)
    check(world)


@pytest.mark.slow
def test_folder_ahead_of_a_table_that_was_rolled_back(world: World) -> None:
    # Without a stream that has read what goes.
    world.sources.define_only("names", "totals")
    _grow(world)
    with world.table("events") as table:
        version = table.current_version()
    _grow(world)
    _grow(world)
    roll_back(world, "events", version)
    _grow(world)
    check(world)


@pytest.mark.slow
def test_folder_of_another_query(world: World, tmp_path: Path) -> None:
    """Wiped, run once against an empty table elsewhere, put back: same batch numbers, other offsets."""
    _grow(world)
    world.sources.copy_folders(tmp_path / "copy")
    world.sources.wipe_folders()
    _grow(world)
    _grow(world)
    world.sources.restore_folders(tmp_path / "copy")
    _grow(world)
    check(world)


def test_killed_while_the_first_batch_was_being_planned(world: World) -> None:
    """Spark starts no query in such a folder."""
    flow = world.sources.storage / "_checkpoints/lake/default/names/names"
    folder = flow / "0"
    unfinished = folder / "offsets/.0.0f3b2a10.tmp"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("v1\n{")
    query = "7c3b4f0e-0000-4000-8000-000000000000"
    (folder / "metadata").write_text(f'{{"id":"{query}"}}')
    world.sources.add()
    attempt = world.run()
    attempt.require_completed()
    (event,) = attempt.named("flow_folder")
    assert (event["flow"], event["action"]) == ("names", "sweep")
    (own,) = flow.iterdir()
    assert own.name.startswith("0-")
    assert query in (own / "metadata").read_text(), "where the sources began stays"
    check(world)


def _replace(file: Path) -> None:
    """With its checksum, or Hadoop would refuse to read it."""
    (file.parent / f".{file.name}.crc").unlink()
    text = file.read_text()
    assert '"logOffset":1}' in text
    file.write_text(text.replace('"logOffset":1}', '"logOffset":9}'))


@pytest.mark.parametrize(
    "does",
    [
        pytest.param(_replace, id="replaced"),
        pytest.param(Path.unlink, id="deleted", marks=pytest.mark.slow),
    ],
)
def test_somebody_changes_the_plan_of_a_batch_while_it_is_staged(
    world: World, does: Callable[[Path], None]
) -> None:
    _grow(world)
    world.sources.add()
    flow = world.sources.storage / "_checkpoints/lake/default/names/names"

    def meanwhile() -> None:
        (own,) = (folder for folder in flow.iterdir() if (folder / "offsets/1").exists())
        does(own / "offsets/1")

    with world.table("names") as table:
        before = table.fork().commit_metadata
    failed = world.run(effects=Interrupted(meanwhile))
    assert not failed.completed
    assert "FLOW_POSITIONS_DIVERGED" in failed.errors, failed.describe()
    with world.table("names") as table:
        now = table.fork().commit_metadata
    assert before is not None
    assert now is not None
    assert now.positions == before.positions
    _grow(world)
    check(world)
