"""Starting Spark's JVM with its stderr redirected through this process.

Without the redirection the JVM writes directly to the terminal: into a live progress display, and into the
output that a program reads as one event per line. Here each line goes to `sys.stderr`, which the command line
may replace. Lines that the JVM writes at every start are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from tautochrone.errors import EnvironmentProblemError
from tautochrone.redaction import redacted
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import jvm_failure, reset_pyspark, set_stderr_tail
from tautochrone.spark.session.py4j_connection import enable_quickack, forget_objects_together, remember_names

__all__ = ["start_context"]

_NOISE = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector$|Setting default log level to |"
    r"To adjust logging level use sc\.setLogLevel|Picked up JAVA_TOOL_OPTIONS: "
)
_STACK_FRAME = re.compile(r"\s+at |\s+\.\.\. \d+ more")
_MAIN_EXCEPTION = re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?')
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_STDERR_TIMEOUT_S = 5.0
_TAIL_LINES, _LINE_CHARACTERS = 50, 500


def start_context(conf: Mapping[str, str], secret: Collection[str] = ()) -> None:
    """Start the JVM and its Spark context, if this process has none yet or its JVM has ended.

    Args:
        conf: all settings that Spark needs before it starts, with `spark.app.name` and `spark.master`.
        secret: names of settings that must not be on Java's command line, which every user of the machine
            can read; the context gets them over the Py4J socket.

    Raises:
        EnvironmentProblemError: `JVM_NOT_STARTED` or `SPARK_NOT_STARTED`, with Spark's own reason.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001
        if jvm_failure() is None:
            return
        reset_pyspark()
    public = SparkConf(loadDefaults=False).setAll([(k, v) for k, v in conf.items() if k not in secret])
    read_end, write_end = os.pipe()
    reader = _StderrReader(read_end)
    reader.start()
    try:
        try:
            with _without_spark_defaults():
                gateway = launch_gateway(public, {"stderr": write_end})  # type: ignore[no-untyped-call]
        finally:
            # Then only the JVM holds the write end, so the thread ends when the JVM does.
            os.close(write_end)
    except PySparkException as error:
        reader.join(_STDERR_TIMEOUT_S)
        raise EnvironmentProblemError(
            "JVM_NOT_STARTED",
            f"Spark's Java process ended before it could be used: {reader.start_failure()}",
            hint="check --master, spark.driver.memory, spark.driver.extraJavaOptions and the variable "
            "JAVA_TOOL_OPTIONS; `taut doctor` checks Java itself",
        ) from error
    reader.forward()
    set_stderr_tail(reader.last_lines)
    enable_quickack(gateway)
    forget_objects_together(gateway)
    remember_names(gateway)
    try:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        SparkContext(conf=settings, gateway=gateway)
    except (PySparkException, Py4JJavaError) as error:
        raise EnvironmentProblemError(
            "SPARK_NOT_STARTED",
            f"Spark does not start: {problem_of(error).message}",
            hint="check --master and Spark's settings (--conf, [spark] in tautochrone.toml)",
        ) from error


@contextmanager
def _without_spark_defaults() -> Iterator[None]:
    """Let spark-submit read an empty file instead of spark-defaults.conf.

    A project's settings hold what counts of it, without what was left out on purpose. So each command has the
    same settings as a run. The other files of that folder stay in force.
    """
    given = os.environ.get(_SUBMIT_ARGS)
    with tempfile.NamedTemporaryFile(prefix="spark-", suffix=".conf") as empty:
        # An option that the user gives comes later and wins.
        own = shlex.join(["--properties-file", empty.name])
        os.environ[_SUBMIT_ARGS] = f"{own} {given or 'pyspark-shell'}"
        try:
            yield
        finally:
            if given is None:
                del os.environ[_SUBMIT_ARGS]
            else:
                os.environ[_SUBMIT_ARGS] = given


class _StderrReader(threading.Thread):
    """Reads the JVM's stderr: buffers it while the JVM starts, then forwards it line by line."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="jvm-stderr", daemon=True)
        self._descriptor = descriptor
        self._buffered: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._buffering = True
        self._lock = threading.Lock()

    def run(self) -> None:
        with open(self._descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if _NOISE.match(line):
                    continue
                with self._lock:
                    self._tail.append(line.rstrip()[:_LINE_CHARACTERS])
                    if self._buffering:
                        self._buffered.append(line)
                        continue
                _write_stderr(line)

    def forward(self) -> None:
        """Write the buffered lines to stderr, and every later line as it comes."""
        with self._lock:
            for line in self._buffered:
                _write_stderr(line)
            self._buffering = False

    def last_lines(self) -> list[str]:
        """The last lines of an ended JVM, redacted. Waits for the end of its stream."""
        self.join(_STDERR_TIMEOUT_S)
        with self._lock:
            return [redacted(line) for line in self._tail]

    def start_failure(self) -> str:
        """The JVM's own message on why it did not start, without the stack trace."""
        with self._lock:
            message = [line.strip() for line in self._buffered if not _STACK_FRAME.match(line)]
        return " ".join(_MAIN_EXCEPTION.sub("", line) for line in message[:3]) or "it gave no reason"


def _write_stderr(line: str) -> None:
    try:
        sys.stderr.write(redacted(line))
        sys.stderr.flush()
    except (ValueError, OSError):
        # This process's stderr is closed. Reading goes on: otherwise the pipe fills up and the JVM blocks.
        return
