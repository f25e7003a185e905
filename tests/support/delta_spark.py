"""Delta's own Spark in a process of its own, which writes and reads tables for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tautochrone.spark.session.jars import Artifact, resolve

__all__ = ["DELTA", "DeltaSpark"]

DELTA = tuple(
    Artifact(group, name, version)
    for group, version, names in (
        (
            "io.delta",
            "4.4.0",
            (
                "delta-spark_4.1_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults",
                "delta-kernel-unitycatalog",
            ),
        ),
        ("io.unitycatalog", "0.6.0", ("unitycatalog-client", "unitycatalog-hadoop")),
    )
    for name in names
)  # fmt: skip
_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


class DeltaSpark:
    """Use as a context manager: it takes about 15 s to start.

    Args:
        folder: for what Spark writes besides the tables.
    """

    def __init__(self, folder: Path) -> None:
        jars = ",".join(str(jar) for jar in resolve(DELTA))
        conf = {**_CONF, "spark.jars": jars, "spark.sql.warehouse.dir": str(folder / "warehouse")}
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "delta-spark.log").open("w"),
            text=True,
            cwd=folder,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        self._answer()

    def sql(self, statement: str) -> list[list[Any]]:
        """The rows of a statement; values that JSON lacks are texts.

        Raises:
            RuntimeError: Spark refused it.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[list[Any]]:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or '{"error": "it ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        rows: list[list[Any]] = answer["rows"]
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(conf: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    # Java writes what it says about its options to stdout as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = SparkSession.builder.master("local[1]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    answer: dict[str, Any] = {"rows": []}
    while True:
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line:
            break
        try:
            answer = {"rows": [list(row) for row in session.sql(json.loads(line)).collect()]}
        except Exception as error:
            answer = {"error": str(error)}
    session.stop()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
