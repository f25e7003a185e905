"""Spark's Java process is killed under a real `taut run`: it is told as that, no dataset is blamed, and no
row is wrong or lost after the next run, or after the run started a new Spark by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.support.crash import Ended, Running, Taut, fault

from tautochrone.meta import MetaStore
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.effects import Step

from .checks import check_tables
from .project import Sources, write_project

pytestmark = [pytest.mark.crash, pytest.mark.spark]


DIES_DURING = [
    pytest.param(Step.LAKE_COMMIT_STAGED, "totals", id="refresh"),
    pytest.param(Step.LAKE_PREPARE, "events", id="batch"),
]
BLAMING = ("refresh_failed", "flow_failed", "checkpoint_aborted", "maintenance_failed")


def test_continuous_run_whose_spark_dies_in_a_refresh_begins_anew(tmp_path: Path) -> None:
    sources = write_project(tmp_path / "project")
    sources.define_only("totals")
    taut = Taut(sources.folder, tmp_path)
    sources.add()
    at = fault(Step.LAKE_COMMIT_STAGED, "before", "pause", on="lake.default.totals")
    with taut.start("--continuous", "--interval", "200ms", fault=at) as running:
        running.wait_until_stopped()
        kill_java(running)
        running.resume()
        running.wait_for("spark_restarting")
        # The run that begins anew has the same fault.
        running.wait_until_stopped()
        running.resume()
        running.wait_for("batch")
        running.wait_for("checkpoint")
        running.terminate()
        ended = running.wait()
    ended.require_ok()
    (died,) = ended.named("spark_died")
    assert died["error_class"] == "SPARK_DIED", died
    assert "SIGKILL" in died["error"], died
    for blaming in BLAMING:
        assert not ended.named(blaming), ended.describe()
    nothing_is_blamed(sources)
    check_tables(sources)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "on"), DIES_DURING)
def test_killed_java_process_is_told_and_blames_no_dataset(tmp_path: Path, step: Step, on: str) -> None:
    """First under a run that ends with it, then under an idle continuous one, which begins anew."""
    sources = write_project(tmp_path / "project")
    sources.define_only("totals")
    taut = Taut(sources.folder, tmp_path)
    sources.add()
    with taut.start(fault=fault(step, "before", "pause", on=f"lake.default.{on}")) as running:
        running.wait_until_stopped()
        kill_java(running)
        running.resume()
        told_once(running.wait())
    nothing_is_blamed(sources)
    sources.add()
    with taut.start("--continuous", "--interval", "200ms") as running:
        running.wait_for("checkpoint")
        kill_java(running)
        running.wait_for("spark_restarting")
        sources.add()
        running.wait_for("starting", 2)
        before = running.count("checkpoint")
        running.wait_for("checkpoint", before + 1)
        running.terminate()
        ended = running.wait()
    ended.require_ok()
    assert len(ended.named("spark_died")) == 1, ended.describe()
    nothing_is_blamed(sources)
    check_tables(sources)


def kill_java(running: Running) -> None:
    """The Spark of a `taut` process, as the kernel does when memory runs out."""
    java = [child for child in psutil.Process(running.pid).children() if "java" in child.name()]
    assert len(java) == 1, java
    os.kill(java[0].pid, signal.SIGKILL)


def told_once(ended: Ended) -> None:
    assert ended.status == 1, ended.describe()
    (died,) = ended.named("spark_died")
    assert died["error_class"] == "SPARK_DIED", died
    assert "SIGKILL" in died["error"], died
    assert [event["state"] for event in ended.named("run")] == ["FAILED"], ended.describe()
    for blaming in (*BLAMING, "checkpoint"):
        assert not ended.named(blaming), ended.describe()


def nothing_is_blamed(sources: Sources) -> None:
    with MetaStore.open(f"sqlite:///{sources.storage}/meta.db") as store:
        for checkpoint in store.checkpoints.newest(limit=1000):
            assert store.checkpoints.failures_at(checkpoint.number) == {}, checkpoint
            assert checkpoint.state in (CheckpointState.OPEN, CheckpointState.PUBLISHED), checkpoint
