"""Rows per second of ingestion on a standalone cluster with one, two and four executors.

All of them run on this machine: with more executors than cores the figure shows the overhead, not the gain.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import StandaloneCluster, executor_writes

__all__ = ["measure"]

_BATCHES, _FILES_PER_BATCH = 4, 4
_SPEC = """\
name: cluster
storage: storage
libraries:
  - glob:
      include: definitions/**
"""
_SETTINGS = f"""\
[flows.events]
max_files_per_trigger = {_FILES_PER_BATCH}
[maintenance]
enabled = false
"""
_FLOW = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession


@dp.table
def events():
    schema = "id BIGINT, kind INT, amount DOUBLE, note STRING"
    return SparkSession.active().readStream.schema(schema).json({folder!r})
"""


def measure(folder: Path, rows: int, executors: Sequence[int] = (1, 2, 4)) -> dict[str, Any]:
    """Rows/s by number of executors (one core each), from the end of the first batch, which is warm-up, to
    the end of the last.

    Args:
        folder: of the input, the projects and the clusters; what an earlier measurement left is removed.
        rows: of all batches together.
    """
    root = folder / "cluster"
    shutil.rmtree(root, ignore_errors=True)
    row_count = _input(root / "input", rows)
    results = {
        str(count): _ingest(root / str(count), root / "input", row_count, count) for count in executors
    }
    return {"rows": row_count, "cores": os.cpu_count(), "executors": results}


def _input(folder: Path, rows: int) -> int:
    """JSON files of equal size; the number of rows in all of them."""
    folder.mkdir(parents=True)
    files = _BATCHES * _FILES_PER_BATCH
    each = max(1, rows // files)
    for number in range(files):
        with (folder / f"{number:03d}.json").open("w") as out:
            for n in range(number * each, (number + 1) * each):
                row = {"id": n, "kind": n % 7, "amount": n % 1000 / 10, "note": f"note of row {n}"}
                out.write(json.dumps(row) + "\n")
    return each * files


def _ingest(folder: Path, source: Path, rows: int, executors: int) -> dict[str, float]:
    """Rows/s, and the rows that the busiest and the idlest executor wrote."""
    logs, project = folder / "events", folder / "project"
    (project / "definitions").mkdir(parents=True)
    logs.mkdir()
    (project / "spark-pipeline.yml").write_text(_SPEC)
    (project / "tautochrone.toml").write_text(_SETTINGS)
    (project / "definitions" / "events.py").write_text(_FLOW.format(folder=str(source)))
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.locality.wait": "0s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": str(executors),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with StandaloneCluster(folder / "processes", workers=executors, memory="1200m") as cluster:
        command = [sys.executable, "-m", "tautochrone.cli.main", "run", "--json", "--master", cluster.master]
        command += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        ends = _batch_ends(command, project, folder / "taut.log")
    if len(ends) != _BATCHES:
        raise RuntimeError(f"{len(ends)} batches instead of {_BATCHES}: see {folder / 'taut.log'}")
    written = executor_writes(logs)
    return {
        "rows_per_s": rows * (_BATCHES - 1) / _BATCHES / (ends[-1] - ends[0]),
        "most_rows": max(written.values()),
        "fewest_rows": min(written.values()),
    }


def _batch_ends(command: list[str], project: Path, log: Path) -> list[float]:
    """When each batch was committed, in seconds of this process's clock."""
    with (
        log.open("w") as errors,
        subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=errors, text=True) as taut,
    ):
        assert taut.stdout is not None
        try:
            return [time.perf_counter() for line in taut.stdout if json.loads(line)["event"] == "batch"]
        except BaseException:
            # An interrupted measurement must not leave a run behind that waits for its cluster.
            taut.kill()
            raise
