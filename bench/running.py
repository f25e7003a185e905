"""A pipeline in `run --continuous` while something is measured."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.runtime.loop.run import Run

__all__ = ["catalog_commits", "continuous", "cpu_s", "cpu_since", "record_checkpoints", "root", "wait_until"]

_LIMIT_S = 300.0
_ROOT = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

INPUT = Path(__file__).resolve().parents[1] / "input"


@dp.table
def events():
    return SparkSession.active().readStream.schema({schema!r}).json(str(INPUT))
"""
_NUMBER = re.compile(r"/(\d+)-[^/]*\.metadata\.json$")


def root(schema: str) -> str:
    """Definitions of the streaming table `events`, whose rows come as JSON files into `input`."""
    return _ROOT.format(schema=schema)


@contextmanager
def continuous(pipeline: Pipeline, interval_ms: int) -> Iterator[Happened]:
    """Runs until the context ends; gives what happens while it happens."""
    with pipeline.opened() as (job, happened):
        execution = Run(job)
        thread = threading.Thread(target=execution.continuously, args=(interval_ms,))
        thread.start()
        try:
            yield happened
        finally:
            execution.stop()
            thread.join()
    if happened.state != "COMPLETED":
        raise RuntimeError("; ".join(event["error"] for event in happened if "error" in event))


def wait_until(condition: Callable[[], object], awaited: str) -> None:
    """Wait for a condition, to a millisecond.

    Raises:
        TimeoutError: the condition does not become true.
    """
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_LIMIT_S:g} s for {awaited}")
        time.sleep(0.001)


def record_checkpoints(
    pipeline: Pipeline, root: str, checkpoints: Sequence[int], shown: dict[int, tuple[int, float]]
) -> None:
    """Record for new checkpoints how many rows a root has, and when each was published, in seconds of the
    epoch. During the run: old checkpoints and versions expire."""
    table = TableName(pipeline.settings.catalog.name, ("default",), root)
    _, metadata = metadata_source(pipeline.settings.catalog).load(table)
    rows = {
        str(snapshot["snapshot-id"]): int(snapshot["summary"]["total-records"])
        for snapshot in metadata["snapshots"]
    }
    for number in set(checkpoints) - shown.keys():
        checkpoint = pipeline.job.store.checkpoints.get(CheckpointNumber(number))
        if checkpoint.published_at_ms is None:
            raise RuntimeError(f"checkpoint {number} is reported and not published")
        shown[number] = rows[checkpoint.roots[table]], checkpoint.published_at_ms / 1000


def catalog_commits(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, int]:
    """The number of commits of each table between two results of `Pipeline.pointers`, of any writer.

    A table's metadata files are numbered: each commit of any kind writes the next.
    """
    return {
        name: _number(location) - _number(before[name]) for name, location in after.items() if name in before
    }


def _number(location: str) -> int:
    match = _NUMBER.search(location)
    if match is None:
        raise ValueError(f"{location} has no number")
    return int(match[1])


def cpu_s(spark: SparkSession) -> dict[str, float]:
    """CPU time so far of Python, of the JVM and of Spark's Python workers, in seconds."""
    jvm: Any = spark._jvm  # noqa: SLF001
    # Spark's own metric; Java's management beans are of classes that Py4J may not call.
    metrics = jvm.org.apache.spark.metrics.source.JVMCPUSource().metricRegistry().getGauges()
    jvm_pid = jvm.java.lang.ProcessHandle.current().pid()
    return {
        "python": time.process_time(),
        "jvm": int(metrics.get("jvmCpuTime").getValue()) / 1e9,
        "workers": _of_children(psutil.Process(int(jvm_pid))),
    }


def cpu_since(spark: SparkSession, before: dict[str, float]) -> dict[str, float]:
    """CPU time since `cpu_s` gave `before`. Spark's Python workers are forgotten when it ends their daemon
    after a pause, so the time of workers is too low then, and never below 0."""
    return {side: max(0.0, seconds - before[side]) for side, seconds in cpu_s(spark).items()}


def _of_children(process: psutil.Process) -> float:
    """CPU seconds of the processes that a process started, and these in turn, with those that ended."""
    try:
        times, children = process.cpu_times(), process.children()
        own = [child.cpu_times() for child in children]
    except psutil.NoSuchProcess:
        return 0.0
    ended = times.children_user + times.children_system
    return float(ended + sum(each.user + each.system for each in own) + sum(map(_of_children, children)))
