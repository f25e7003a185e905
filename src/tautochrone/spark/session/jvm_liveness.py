"""Whether Spark's Java process is alive, and how it ended when it is not.

When the process has ended, every call into Spark fails, each with another error. So errors are not inspected:
before a failure is attributed to a dataset, a flow or an invariant, `require_live_jvm` asks the process.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tautochrone.errors import SparkDiedError

__all__ = ["jvm_error", "require_live_jvm", "reset_pyspark", "set_stderr_tail"]

_EXIT_TIMEOUT_S = 10.0
"""A killed process closes its sockets a moment before it has exited."""
_SHOWN_LINES = 5

StderrTail = Callable[[], Sequence[str]]

_stderr_tail: StderrTail | None = None


def set_stderr_tail(stderr_tail: StderrTail) -> None:
    """Set the function that returns the last lines of the Java process's stderr, for error messages."""
    global _stderr_tail
    _stderr_tail = stderr_tail


def require_live_jvm() -> None:
    """Check that Spark's Java process is alive and answers.

    Raises:
        SparkDiedError: it has ended, or does not answer.
    """
    failure = jvm_error(ask=True)
    if failure is not None:
        raise failure


def jvm_error(*, ask: bool = False) -> SparkDiedError | None:
    """How Spark's Java process ended; None while it is alive, and when none was started.

    Args:
        ask: also call it and wait for the answer. Set this after a failure, which may be the first sign of
            the end; without it only the operating system is asked.
    """
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return None
    # Not `gateway.proc`: Py4J looks missing attributes up in the JVM.
    process: subprocess.Popen[bytes] | None = vars(gateway).get("proc")
    if process is None:
        # Another process (spark-submit) started the JVM.
        return _not_answering_error("") if ask and not _answers(gateway) else None
    if process.poll() is None:
        if not ask or _answers(gateway):
            return None
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return _not_answering_error(f" (process {process.pid})")
    return _jvm_ended_error(process.pid, process.returncode)


def _answers(gateway: Any) -> bool:
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return False
    return True


def _not_answering_error(process: str) -> SparkDiedError:
    return SparkDiedError(
        "SPARK_NOT_ANSWERING",
        f"Spark's Java process{process} is running and does not answer",
        hint="it may have run out of memory, threads or open files; no dataset is marked as failed for this",
    )


def _jvm_ended_error(pid: int, status: int) -> SparkDiedError:
    lines = [line for line in _stderr_tail() if line] if _stderr_tail else []
    tail = " / ".join(lines[-_SHOWN_LINES:])
    output = f"its last output: {tail}" if tail else "it wrote no output"
    return SparkDiedError(
        "SPARK_DIED",
        f"Spark's Java process (process {pid}) {_exit_text(status)}; {output}",
        hint=_exit_hint(pid, status),
        parameters={"pid": str(pid), "status": str(status), "last_lines": "\n".join(lines)},
    )


def _exit_text(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"was ended by signal {-status}"


def _exit_hint(pid: int, status: int) -> str:
    report = Path.cwd() / f"hs_err_pid{pid}.log"
    if report.exists():
        return f"Java crashed and wrote a report: {report}"
    if status == -signal.SIGKILL:
        return (
            "the kernel does this when memory runs out (its log says so: dmesg); lower spark.driver.memory, "
            "or give the machine or the container more"
        )
    return "nothing is lost: the next run finishes what was begun"


def reset_pyspark() -> None:
    """Clear PySpark's references to an ended Java process, so that this process can start Spark again."""
    context = SparkContext._active_spark_context  # noqa: SLF001
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        setattr(SparkSession, name, None)
