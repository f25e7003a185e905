"""A project on a standalone cluster: executors write files, only the driver commits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import cluster, report
from pyiceberg.catalog.sql import SqlCatalog
from tests.support.cluster import StandaloneCluster, executor_writes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_SPEC = """\
name: clustered
storage: storage
libraries:
  - glob:
      include: definitions/**
"""
_DEFINITIONS = """\
import sys
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from naming import label

spark = SparkSession.active()
HERE = Path(__file__).resolve().parents[1]


@dp.table
def events():
    return spark.readStream.schema("id INT, kind INT").json(str(HERE / "input"))


@dp.materialized_view
def labels():
    # Rows that the driver holds, and a Python function of a module beside the project.
    kinds = spark.createDataFrame([(n,) for n in range(3)], "kind INT")
    return kinds.select("kind", label("kind").alias("label"))
"""
_HELPER = """\
from pyspark.sql.functions import udf


@udf("string")
def label(kind):
    return f"kind {kind}"
"""
_VIEWS = """\
CREATE MATERIALIZED VIEW totals TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental') AS
  SELECT l.label, count(*) AS n, sum(e.id) AS total FROM events e JOIN labels l USING (kind) GROUP BY l.label;
CREATE MATERIALIZED VIEW odd AS SELECT id FROM events WHERE id % 2 = 1;
"""

# A process with these options cannot open an SQLite file: an executor that opened the catalog would fail.
_NO_CATALOG = "-Dorg.sqlite.tmpdir=/nonexistent -Dorg.sqlite.lib.path=/nonexistent"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_rows(folder: Path, first: int, count: int) -> None:
    """Write rows into four files, so that each executor has a task."""
    for part in range(4):
        lines = [json.dumps({"id": n, "kind": n % 3}) for n in range(first + part, first + count, 4)]
        write(folder / "input" / f"{first:06d}-{part}.json", "\n".join(lines) + "\n")


def run_taut(folder: Path, command: str, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout


def test_executors_write_and_the_driver_commits(tmp_path: Path) -> None:
    folder, logs = tmp_path / "project", tmp_path / "events"
    write(folder / "spark-pipeline.yml", _SPEC)
    write(folder / "definitions" / "events.py", _DEFINITIONS)
    write(folder / "definitions" / "views.sql", _VIEWS)
    write(folder / "helpers" / "naming.py", _HELPER)
    logs.mkdir()
    write_rows(folder, 0, 2000)
    with StandaloneCluster(tmp_path / "cluster", workers=2) as standalone:
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "640m",
            "spark.executor.extraJavaOptions": _NO_CATALOG,
            "spark.locality.wait": "0s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": logs.as_uri(),
            "spark.eventLog.compress": "false",
        }
        options = ["--master", standalone.master]
        options += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        run_taut(folder, "run", *options)
        write_rows(folder, 2000, 100)
        events = [json.loads(line) for line in run_taut(folder, "run", "--json", *options).splitlines()]
    modes = {e["dataset"].rpartition(".")[2]: e["mode"] for e in events if e["event"] == "refresh"}
    assert modes == {"totals": "incremental", "odd": "append", "labels": "diff"}

    written = executor_writes(logs)
    assert "driver" not in written
    assert set(written) == {"0", "1"}
    assert all(rows > 0 for rows in written.values()), written

    storage = folder / "storage"
    lake = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        scanned = lake.load_table(f"default.{table}").scan(selected_fields=columns).to_arrow()
        return sorted(tuple(row[column] for column in columns) for row in scanned.to_pylist())

    assert rows("events", "id") == [(n,) for n in range(2100)]
    assert rows("odd", "id") == [(n,) for n in range(1, 2100, 2)]
    assert rows("labels", "kind", "label") == [(n, f"kind {n}") for n in range(3)]
    assert rows("totals", "label", "n", "total") == [
        (f"kind {n}", 700, sum(range(n, 2100, 3))) for n in range(3)
    ]


@pytest.mark.slow
def test_smallest_cluster_benchmark(tmp_path: Path) -> None:
    measured = {"cluster": cluster.measure(tmp_path, rows=160, executors=[2])}
    assert measured["cluster"]["rows"] == 160
    result = measured["cluster"]["executors"]["2"]
    assert result["rows_per_s"] > 0
    assert 0 < result["fewest_rows"] <= result["most_rows"] < 160
    assert "  2 executors:" in report.write(measured, tmp_path / "out").read_text()
