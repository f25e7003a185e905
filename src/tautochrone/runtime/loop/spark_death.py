"""What a run does when Spark's Java process is gone: it says so once, and blames nobody else."""

from __future__ import annotations

import threading
import time

from tautochrone.errors import FencedError, SparkDiedError
from tautochrone.runtime.job.job import Job
from tautochrone.spark.session.jvm_liveness import jvm_failure
from tautochrone.traces import trace_of

__all__ = ["rest", "tell_death"]

_WATCH_S = 1.0


def rest(stopping: threading.Event, seconds: float) -> None:
    """Wait until it is time or `stopping` is set, but not for a Spark that is gone.

    Raises:
        SparkDiedError: its process has ended.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stopping.wait(min(left, _WATCH_S)):
        died = jvm_failure()
        if died is not None:
            raise died


def tell_death(job: Job, error: Exception) -> SparkDiedError:
    """Tell that Spark is gone, which is why `error` came; anything else is raised again."""
    died = error if isinstance(error, SparkDiedError) else None
    if died is None and not isinstance(error, FencedError):
        died = jvm_failure(ask=True)
    if died is None:
        raise error
    last = {"the last lines of Spark's Java process": died.parameters.get("last_lines", "")}
    trace = trace_of(error, f"run of job {job.name}: {died.error_class}", last)
    job.emit("spark_died", error_class=died.error_class, error=f"{died} ({trace})", hint=died.hint)
    job.emit("run", state="FAILED", problems=[died.error_class])
    return died
