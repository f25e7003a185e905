"""Ends a run whose Spark Java process died, with one event instead of many secondary errors."""

from __future__ import annotations

import threading
import time

from tautochrone.errors import FencedError, SparkDiedError
from tautochrone.model import events
from tautochrone.spark.session.jvm_liveness import jvm_failure
from tautochrone.traces import trace_of

__all__ = ["report_spark_death", "wait_while_alive"]

_CHECK_S = 1.0


def wait_while_alive(stopping: threading.Event, seconds: float) -> None:
    """Wait for `seconds`, or until `stopping` is set.

    Raises:
        SparkDiedError: Spark's process ended meanwhile.
    """
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0 and not stopping.wait(min(remaining, _CHECK_S)):
        failure = jvm_failure()
        if failure is not None:
            raise failure


def report_spark_death(job: str, emit: events.Emit, error: Exception) -> SparkDiedError:
    """Report the death of Spark as the cause of `error`.

    Raises:
        Exception: `error` itself, if Spark is alive.
    """
    died = error if isinstance(error, SparkDiedError) else None
    if died is None and not isinstance(error, FencedError):
        died = jvm_failure(ask=True)
    if died is None:
        raise error
    details = {"the last lines of Spark's Java process": died.parameters.get("last_lines", "")}
    trace = trace_of(error, f"run of job {job}: {died.error_class}", details)
    emit(events.SparkDied(error_class=died.error_class, error=f"{died} ({trace})", hint=died.hint))
    emit(events.Run(state="FAILED", problems=[died.error_class]))
    return died
