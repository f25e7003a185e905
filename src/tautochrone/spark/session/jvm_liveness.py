"""Whether Spark's Java process lives, and what it left behind when it does not.

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

__all__ = ["jvm_failure", "require_live_jvm", "reset_pyspark", "set_stderr_tail", "stop_session"]

_ENDING_S = 10.0
"""A process that is killed closes its sockets a moment before it has ended."""
_SHOWN_LINES = 5

Lines = Callable[[], Sequence[str]]

_last_lines: Lines | None = None


def set_stderr_tail(last_lines: Lines) -> None:
    """From now on `last_lines` knows what the Java process said last."""
    global _last_lines
    _last_lines = last_lines


def require_live_jvm() -> None:
    """Ask Spark's process for an answer.

    Raises:
        SparkDiedError: it has ended, or does not answer.
    """
    died = jvm_failure(ask=True)
    if died is not None:
        raise died


def jvm_failure(*, ask: bool = False) -> SparkDiedError | None:
    """How Spark's process ended; None while it lives, and when there is none.

    Args:
        ask: also wait for an answer of it: where something failed, which may be the first sign.
    """
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return None
    # Its attributes that are not there are looked up in the JVM.
    process: subprocess.Popen[bytes] | None = vars(gateway).get("proc")
    if process is None:
        # Somebody else started it.
        return _silent("") if ask and not _answers(gateway) else None
    if process.poll() is None:
        if not ask or _answers(gateway):
            return None
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return _silent(f" (process {process.pid})")
    return _ended(process.pid, process.returncode)


def _answers(gateway: Any) -> bool:
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return False
    return True


def _silent(which: str) -> SparkDiedError:
    return SparkDiedError(
        "SPARK_NOT_ANSWERING",
        f"Spark's Java process{which} is there and does not answer",
        hint="it may have run out of memory, threads or files; no dataset is blamed for it",
    )


def _ended(pid: int, status: int) -> SparkDiedError:
    lines = [line for line in _last_lines() if line] if _last_lines else []
    said = " / ".join(lines[-_SHOWN_LINES:])
    last = f"it said last: {said}" if said else "it said nothing"
    return SparkDiedError(
        "SPARK_DIED",
        f"Spark's Java process (process {pid}) {_how(status)}; {last}",
        hint=_hint(pid, status),
        parameters={"pid": str(pid), "status": str(status), "last_lines": "\n".join(lines)},
    )


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"was ended by signal {-status}"


def _hint(pid: int, status: int) -> str:
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
    """Let this process start a new Spark after the Java process of the old one has ended."""
    context = SparkContext._active_spark_context  # noqa: SLF001
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        setattr(SparkSession, name, None)


def stop_session(session: SparkSession) -> None:
    """End a session's Spark, which may have ended by itself."""
    if jvm_failure() is None:
        try:
            session.stop()
            return
        except (Py4JError, OSError):
            if jvm_failure(ask=True) is None:
                raise
    reset_pyspark()
