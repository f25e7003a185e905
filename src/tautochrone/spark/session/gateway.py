"""Starting Spark's JVM with its error stream in our hands.

By itself the JVM writes into the terminal, through a live display and into whatever reads one event per
line. Here each of its lines goes to `sys.stderr`, which whoever owns the terminal may replace; what every
start says is left out.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Collection, Mapping

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from tautochrone.errors import EnvironmentProblemError
from tautochrone.redaction import redacted
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import jvm_failure, reset_pyspark, set_stderr_tail
from tautochrone.spark.session.py4j_quickack import enable_quickack

__all__ = ["start_context"]

_EVERY_START = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector$|Setting default log level to |"
    r"To adjust logging level use sc\.setLogLevel|Picked up JAVA_TOOL_OPTIONS: "
)
_STACK = re.compile(r"\s+at |\s+\.\.\. \d+ more")
_EXCEPTION = re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?')
_LAST_WORDS_S = 5.0
_KEPT_LINES, _KEPT_CHARACTERS = 50, 500


def start_context(conf: Mapping[str, str], secret: Collection[str] = ()) -> None:
    """Start the JVM and its Spark context, if this process has none yet or its JVM has ended.

    Args:
        conf: everything that Spark must know before it starts, `spark.app.name` and `spark.master` too.
        secret: names of settings that must not stand on Java's command line, where everybody can read
            them: the context gets them over its socket.

    Raises:
        EnvironmentProblemError: `JVM_NOT_STARTED` or `SPARK_NOT_STARTED`, with Spark's own reason.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001
        if jvm_failure() is None:
            return
        reset_pyspark()
    public = SparkConf(loadDefaults=False).setAll([(k, v) for k, v in conf.items() if k not in secret])
    reading, writing = os.pipe()
    ear = _Ear(reading)
    ear.start()
    try:
        try:
            gateway = launch_gateway(public, {"stderr": writing})  # type: ignore[no-untyped-call]
        finally:
            # Only the JVM's end stays open: the thread ends with it.
            os.close(writing)
    except PySparkException as error:
        ear.join(_LAST_WORDS_S)
        raise EnvironmentProblemError(
            "JVM_NOT_STARTED",
            f"Spark's Java process ended before it could be used: {ear.reason()}",
            hint="look at --master, spark.driver.memory, spark.driver.extraJavaOptions and the variable "
            "JAVA_TOOL_OPTIONS; `taut doctor` checks Java itself",
        ) from error
    ear.let_go()
    set_stderr_tail(ear.last_lines)
    enable_quickack(gateway)
    try:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        SparkContext(conf=settings, gateway=gateway)
    except (PySparkException, Py4JJavaError) as error:
        raise EnvironmentProblemError(
            "SPARK_NOT_STARTED",
            f"Spark does not start: {problem_of(error).message}",
            hint="look at --master and at Spark's settings (--conf, [spark] in tautochrone.toml)",
        ) from error


class _Ear(threading.Thread):
    """Reads what the JVM says: holds it back while it starts, then passes it on line by line."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="jvm-stderr", daemon=True)
        self._descriptor = descriptor
        self._held: list[str] = []
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._holding = True
        self._lock = threading.Lock()

    def run(self) -> None:
        with open(self._descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if _EVERY_START.match(line):
                    continue
                with self._lock:
                    self._last.append(line.rstrip()[:_KEPT_CHARACTERS])
                    if self._holding:
                        self._held.append(line)
                        continue
                _say(line)

    def let_go(self) -> None:
        """The JVM is up: what it said and what it will say goes to stderr."""
        with self._lock:
            for line in self._held:
                _say(line)
            self._holding = False

    def last_lines(self) -> list[str]:
        """What the JVM said last, after waiting for the end of its stream; for a JVM that has ended."""
        self.join(_LAST_WORDS_S)
        with self._lock:
            return [redacted(line) for line in self._last]

    def reason(self) -> str:
        """Why the JVM did not start, in its own words without the stack."""
        with self._lock:
            words = [line.strip() for line in self._held if not _STACK.match(line)]
        return " ".join(_EXCEPTION.sub("", line) for line in words[:3]) or "it did not say why"


def _say(line: str) -> None:
    try:
        sys.stderr.write(redacted(line))
        sys.stderr.flush()
    except (ValueError, OSError):
        # Our own stderr is closed, so nobody can be told. Reading must go on all the same: the JVM would
        # wait for room in the pipe.
        return
