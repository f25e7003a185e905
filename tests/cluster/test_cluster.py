"""A project on a standalone cluster: executors write files, only the driver commits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import cluster, report
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from tests.support.cluster import StandaloneCluster, executor_writes
from tests.support.crash import Running, Taut

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
    """Write rows into four files, so that each executor has a task. A run that goes on sees whole ones."""
    for part in range(4):
        lines = [json.dumps({"id": n, "kind": n % 3}) for n in range(first + part, first + count, 4)]
        name = f"{first:06d}-{part}.json"
        write(folder / "input" / f".{name}", "\n".join(lines) + "\n")
        (folder / "input" / f".{name}").rename(folder / "input" / name)


def rows(storage: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    """Empty: there is no such table yet."""
    lake = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
    try:
        scanned = lake.load_table(f"default.{table}").scan(selected_fields=columns).to_arrow()
    except NoSuchTableError:
        return []
    finally:
        lake.close()
    return sorted(tuple(row[column] for column in columns) for row in scanned.to_pylist())


def totals_of(count: int) -> list[tuple[object, ...]]:
    """Of the first events."""
    ids = [range(kind, count, 3) for kind in range(3)]
    return [(f"kind {kind}", len(of_kind), sum(of_kind)) for kind, of_kind in enumerate(ids)]


def wait_for_totals(running: Running, storage: Path, count: int) -> None:
    while rows(storage, "totals", "label", "n", "total") != totals_of(count):
        assert running.lives_for(0.3), running.wait().describe()


def test_executors_write_and_the_driver_commits(tmp_path: Path) -> None:
    folder, logs = tmp_path / "project", tmp_path / "events"
    write(folder / "spark-pipeline.yml", _SPEC)
    write(folder / "definitions" / "events.py", _DEFINITIONS)
    write(folder / "definitions" / "views.sql", _VIEWS)
    write(folder / "helpers" / "naming.py", _HELPER)
    storage = folder / "storage"
    logs.mkdir()
    write_rows(folder, 0, 2000)
    # One worker is a process less; its two executors are processes of their own.
    with StandaloneCluster(tmp_path / "cluster", workers=1, cores=2, memory="2g") as standalone:
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "640m",
            "spark.executor.extraJavaOptions": _NO_CATALOG,
            "spark.locality.wait": "0s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": logs.as_uri(),
            "spark.eventLog.compress": "false",
        }
        options = ["--master", standalone.master]
        options += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        # Another run would start a driver and its executors again.
        with Taut(folder, tmp_path).start("--continuous", "--interval", "300ms", *options) as running:
            running.wait_for("checkpoint")
            wait_for_totals(running, storage, 2000)
            write_rows(folder, 2000, 100)
            wait_for_totals(running, storage, 2100)
            running.terminate()
            ended = running.wait()
    ended.require_ok()
    modes = {(e["dataset"].rpartition(".")[2], e["mode"]) for e in ended.named("refresh")}
    assert {("totals", "incremental"), ("odd", "append")} <= modes

    written = executor_writes(logs)
    assert "driver" not in written
    assert set(written) == {"0", "1"}
    assert all(count > 0 for count in written.values()), written

    assert rows(storage, "events", "id") == [(n,) for n in range(2100)]
    assert rows(storage, "odd", "id") == [(n,) for n in range(1, 2100, 2)]
    assert rows(storage, "labels", "kind", "label") == [(n, f"kind {n}") for n in range(3)]


@pytest.mark.slow
def test_smallest_cluster_benchmark(tmp_path: Path) -> None:
    measured = {"cluster": cluster.measure(tmp_path, rows=160, executors=[2])}
    assert measured["cluster"]["rows"] == 160
    result = measured["cluster"]["executors"]["2"]
    assert result["rows_per_s"] > 0
    assert 0 < result["fewest_rows"] <= result["most_rows"] < 160
    assert "  2 executors:" in report.write(measured, tmp_path / "out").read_text()
