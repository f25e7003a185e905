"""CPU time of this process, and of single pieces of work in its Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tautochrone.spark.jvm.driver_calls import driver_calls

__all__ = ["MeteredJobs", "cpu_ms", "metered_jobs"]

_LISTENER_TIMEOUT_MS = 200
"""Spark adds up CPU times from task-end events; this is how long to wait until those are processed."""


def cpu_ms() -> int:
    """CPU time of this process, its JVM and its Python workers so far, in milliseconds.

    Executors on other machines and workers that have ended are not included.
    """
    process = psutil.Process()
    cpu_s = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        cpu_s += times.user + times.system
    return round(cpu_s * 1000)


@dataclass(frozen=True, slots=True)
class MeteredJobs:
    """The Spark jobs of one piece of work, identified by their job tag, and what its thread computed
    without a job."""

    _context: Any
    _tag: str
    _without_job_before_ns: int

    def tasks_ms(self) -> int | None:
        """CPU time of the tasks so far, on all executors and in the driver, in milliseconds, without Python
        workers and query planning. None when Spark's status store does not have it (yet, or any more)."""
        try:
            cpu_ns = int(driver_calls().tasksNs(self._context, self._tag, _LISTENER_TIMEOUT_MS))
        except Py4JJavaError:
            return None
        cpu_ns -= self._without_job_before_ns
        return round(cpu_ns / 1_000_000)


def _without_job_ns(context: Any) -> int:
    """CPU time of what this thread's thread in the JVM ever computed without a job; see `DriverScan.java`."""
    return int(context.getLocalProperty("tautochrone.driver-scan.cpu-ns") or 0)


@contextmanager
def metered_jobs(session: SparkSession) -> Iterator[MeteredJobs]:
    """Tag the Spark jobs that this thread, and the streams that it starts, run inside the block."""
    context = session.sparkContext
    tag = f"tautochrone-{uuid4().hex}"
    context.addJobTag(tag)
    try:
        java_context = context._jsc.sc()  # noqa: SLF001
        yield MeteredJobs(java_context, tag, _without_job_ns(java_context))
    finally:
        context.removeJobTag(tag)
