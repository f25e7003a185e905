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
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.errors import problem_of

__all__ = ["start_context"]

_EVERY_START = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector$|Setting default log level to |"
    r"To adjust logging level use sc\.setLogLevel|Picked up JAVA_TOOL_OPTIONS: "
)


def start_context(conf: Mapping[str, str]) -> None:
    """Start the JVM and its Spark context, if this process has none yet.

    Args:
        conf: everything that Spark must know before it starts, `spark.app.name` and `spark.master` too.

    Raises:
        EnvironmentProblemError: `JVM_NOT_STARTED` or `SPARK_NOT_STARTED`, with Spark's own reason.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    settings = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        settings.set(key, value)
    reading, writing = os.pipe()
    forward = threading.Thread(target=_forward, args=(reading,), name="jvm-stderr", daemon=True)
    forward.start()
    try:
        gateway = launch_gateway(settings, {"stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        raise EnvironmentProblemError(
            "JVM_NOT_STARTED",
            "Spark's Java process ended before it could be used",
            hint="its own words are above; `taut doctor` checks Java, memory settings come from "
            "spark.driver.memory and JAVA_TOOL_OPTIONS",
        ) from error
    finally:
        # Only the JVM's end stays open: the thread ends with it.
        os.close(writing)
    try:
        SparkContext(conf=settings, gateway=gateway)
    except (PySparkException, Py4JJavaError) as error:
        raise EnvironmentProblemError(
            "SPARK_NOT_STARTED",
            f"Spark does not start: {problem_of(error).message}",
            hint="look at --master and at Spark's settings (--conf, [spark] in tautochrone.toml)",
        ) from error


def _forward(descriptor: int) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if _EVERY_START.match(line):
                continue
            try:
                sys.stderr.write(line)
                sys.stderr.flush()
            except (ValueError, OSError):
                # Our own stderr is closed. Reading must go on, or the JVM would wait for room in the pipe.
                continue
