"""What sinks and publications have of a table is dropped with it, and goes on under its new name."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from tests.crash.faults import Strike
from tests.runtime.commands import taut_in_process
from tests.support.harness import Happened

from tautochrone.model.effects import Step
from tautochrone.runtime.dataset_changes.drop import drop, survey
from tautochrone.runtime.job.job import Job
from tautochrone.sinks import register_sink
from tautochrone.testing.sqlite_sink import open_toy_sink

from .world import World

pytestmark = pytest.mark.spark

PROJECT = """
    from pyspark import pipelines as dp

    MIRRORED = {{"tautochrone.sinks": "mirror", "tautochrone.publish": "delta"}}

    @dp.table(table_properties=MIRRORED)
    def other():
        return spark.readStream.schema("id long, word string").json({folder!r})
"""
VIEW = """
    @dp.materialized_view(table_properties=MIRRORED)
    def {name}():
        return spark.sql("SELECT word, count(*) AS n FROM other GROUP BY word")
"""


def define(world: World, *views: str) -> None:
    text = PROJECT.format(folder=str(world.folder / "in")) + "".join(VIEW.format(name=name) for name in views)
    world.pipeline.write("definitions/p.py", text)
    file = world.folder / "mirror.db"
    world.pipeline.write(
        "tautochrone.toml", f'[sinks.mirror]\nformat = "toy-changed"\noptions.path = "{file}"\n'
    )
    register_sink("toy-changed", open_toy_sink)
    world.pipeline.reload()


def taut(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return taut_in_process(world.folder, world.pipeline.session, *arguments)


def mirrored(world: World) -> dict[str, int]:
    """The tables of the sink with their rows."""
    with sqlite3.connect(world.folder / "mirror.db") as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        shown = [name for name in names if not name.startswith(("taut_", "sqlite_", "_"))]
        return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in shown}


def published(world: World) -> list[str]:
    return sorted(path.name for path in Path(world.folder / "storage/publications/delta/default").iterdir())


def sent_whole(happened: Happened) -> list[object]:
    return [table for event in happened.of("sink_delivered") for table in event["replaced"]]


def test_mirrors_are_dropped(world: World) -> None:
    define(world, "totals")
    world.run()
    assert published(world) == ["other", "totals"]
    define(world)
    listed = taut(world, "drop", "totals", "--dry-run").stdout
    assert "of sink mirror" in listed
    assert "of sink delta-publication" in listed

    def drop_totals(job: Job) -> None:
        drop(job, survey(job, ["totals"]))

    for strike in (
        Strike(Step.SINK_DROP, "before", "crash"),
        Strike(Step.SINK_DROP, "after", "crash", nth=1),
    ):
        world.attempt(drop_totals, strike)
    assert taut(world, "drop", "totals", "--yes").returncode == 0
    assert list(mirrored(world)) == ["other"]
    assert published(world) == ["other"]
    world.add()
    happened = world.run()
    assert not sent_whole(happened)
    assert mirrored(world)["other"] == world.rows
    # Defined again it is mirrored anew.
    define(world, "totals")
    world.run()
    assert mirrored(world) == {"other": world.rows, "totals": 3}


def test_mirrors_go_on_under_the_new_name(world: World) -> None:
    define(world, "totals")
    world.run()
    define(world, "sums")
    # A folder that somebody put there, or a former table of the name left, is found before anything is done.
    taken = Path(world.folder / "storage/publications/delta/default/sums")
    (taken / "_delta_log").mkdir(parents=True)
    (taken / "_delta_log" / "0.json").touch()
    refused = taut(world, "rename", "totals", "sums")
    assert "RENAME_TARGET_EXISTS" in refused.stderr
    assert not world.pipeline.job.store.datasets.pending_changes()
    shutil.rmtree(taken)
    done = taut(world, "rename", "totals", "sums")
    assert done.returncode == 0, done.stderr
    assert sorted(mirrored(world)) == ["other", "sums"]
    assert published(world) == ["other", "sums"]
    world.add()
    happened = world.run()
    assert len(happened.of("sink_delivered")) == 2
    assert not sent_whole(happened)
    for sink in ("mirror", "delta-publication"):
        verified = taut(world, "verify", "--sink", sink)
        assert verified.returncode == 0, verified.stdout + verified.stderr
