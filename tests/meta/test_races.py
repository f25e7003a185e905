"""Processes that take one job from each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.stores import Backing

from tautochrone.meta import MetaStore

RACER = """
import sys
from tautochrone.errors import FencedError
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.names import TableName, Version
from tautochrone.app.stores import open_store
name = TableName("lake", ("db",), "t")
store = open_store(sys.argv[1])
store.jobs.start_run("p", "race", [DatasetEntry(name, "streaming table", "x")])
done = fenced = 0
for turn in range(12):
    fence = store.jobs.take_over("race")
    try:
        for _ in range(4):
            target = store.checkpoints.next_for("race")
            if target is None:
                roots = {name: Version(f"{fence}-{turn}")}
                target = store.checkpoints.open("race", fence, NewCheckpoint(roots, 1))
            store.checkpoints.publish("race", fence, target.number, fence)
            done += 1
    except FencedError:
        fenced += 1
print(done, fenced)
"""


def test_concurrent_takeovers_keep_checkpoints_consistent(database: Backing) -> None:
    race(database)


@pytest.mark.slow
def test_concurrent_takeovers_over_http(tmp_path: Path) -> None:
    backing = Backing("http", tmp_path)
    race(backing)
    backing.close()


def race(backing: Backing) -> None:
    url = backing.shared()
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, url], stdout=-1, stderr=-1, text=True)
        for _ in range(4)
    ]
    answers = [racer.communicate(timeout=240) for racer in racers]
    assert [err for _, err in answers] == [""] * 4
    done = sum(int(out.split()[0]) for out, _ in answers)
    with MetaStore.open(backing.url) as store:
        assert store.jobs.newest_fence("race") == 4 * 12
        checkpoints = store.checkpoints.newest(10_000)
        assert [c.number for c in checkpoints] == list(range(len(checkpoints), 0, -1))
        fences = [c.published_at_ms for c in reversed(checkpoints) if c.published_at_ms]
        # A publication of an older owner never comes after one of a newer owner.
        assert fences == sorted(fences)
        assert len(fences) <= done
