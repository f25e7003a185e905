"""What this process, and what single pieces of work in its Spark, have used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tautochrone.spark.jvm.catalyst import items

__all__ = ["MeteredJobs", "cpu_ms", "metered_jobs"]

_PATIENCE_MS = 200
"""Spark counts what tasks used when it hears of their end; so long that news is waited for."""


def cpu_ms() -> int:
    """CPU time of this process, its JVM and its Python workers so far, in milliseconds.

    What executors on other machines use is not in it, nor are workers that have ended.
    """
    process = psutil.Process()
    spent = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return round(spent * 1000)


@dataclass(frozen=True, slots=True)
class MeteredJobs:
    """A piece of work in Spark, by the tag that its Spark jobs carry."""

    _context: Any
    _tag: str

    def tasks_ms(self) -> int | None:
        """The CPU time of its tasks so far on all executors, in milliseconds, without Python workers and
        Spark's planning. None when Spark does not know: too much else happens, or happened since then."""
        try:
            self._context.listenerBus().waitUntilEmpty(_PATIENCE_MS)
            store = self._context.statusStore()
            jobs = self._context.statusTracker().getJobIdsForTag(self._tag)
            stages = {int(stage) for job in jobs for stage in items(store.job(job).stageIds())}
            spent_ns = sum(int(store.lastStageAttempt(stage).executorCpuTime()) for stage in stages)
        except Py4JJavaError:
            return None
        return round(spent_ns / 1_000_000)


@contextmanager
def metered_jobs(session: SparkSession) -> Iterator[MeteredJobs]:
    """What Spark does inside for this thread, and for the streams that it starts, is told apart."""
    context = session.sparkContext
    tag = f"tautochrone-{uuid4().hex}"
    context.addJobTag(tag)
    try:
        yield MeteredJobs(context._jsc.sc(), tag)  # noqa: SLF001
    finally:
        context.removeJobTag(tag)
