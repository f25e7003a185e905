"""A project that Spark's own `spark-pipelines` has run, put back as it was for every test."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyspark
from pyspark.sql import SparkSession
from tests.support.ended_runs import as_process, ended
from tests.support.harness import Happened, Pipeline

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.model.effects import Effects, Step
from tautochrone.runtime.adoption.adopt import Adoption
from tautochrone.runtime.adoption.adoptable import Finding
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import find_all
from tautochrone.runtime.loop.run import Run
from tautochrone.spark.session.jars import CORE, resolve

T = TypeVar("T")

SPEC = """\
name: {name}
storage: {storage}
catalog: lake
database: default
libraries:
  - glob:
      include: definitions/**
"""
SETTINGS = """\
[refresh]
policy = "incremental"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""
_CONNECT_PORT = 15002
"""Of the Spark Connect server that `spark-pipelines` starts."""

_PORT_S = 60.0
_LOCK = Path(tempfile.gettempdir()) / "tautochrone-tests-spark-pipelines.lock"

_STREAMS = """\
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()
HERE = Path(__file__).resolve().parents[1]


def files(name):
    return spark.readStream.schema("id INT, kind STRING, price DOUBLE, at TIMESTAMP").json(str(HERE / name))


@dp.table
def orders():
    return files("orders")


dp.create_streaming_table("both")


@dp.append_flow(target="both")
def near():
    return files("orders").select("id", "price")


@dp.append_flow(target="both")
def far():
    return files("extra").select("id", "price")


@dp.table
def cheap():
    return spark.readStream.table("orders").where("price < 3")


@dp.table
def hourly():
    rows = files("orders").withWatermark("at", "1 hour")
    return rows.groupBy(sf.window("at", "1 hour")).count().selectExpr("window.start AS hour", "count AS n")
"""
VIEWS = """\
CREATE MATERIALIZED VIEW sales AS
  SELECT kind, count(*) AS n, sum(price) AS total FROM orders GROUP BY kind;
CREATE MATERIALIZED VIEW dear AS SELECT id, kind FROM orders WHERE price >= 3;
CREATE MATERIALIZED VIEW top AS SELECT max(total) AS most FROM sales;
"""


class Died(Exception):  # noqa: N818
    """The process is dead: the next durable step raises it again."""


class Dying(DirectEffects):
    """Dies right after the `nth` time that a step is taken; `died` tells whether it came to that."""

    def __init__(self, step: Step, nth: int = 1) -> None:
        self._step, self._left = step, nth
        self.died = False

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if self.died:
            raise Died
        result = super().perform(step, subject, action)
        self._left -= step is self._step
        if not self._left:
            self.died = True
            raise Died
        return result


@dataclass
class Built:
    """The project, with what Spark built in it."""

    pipeline: Pipeline
    rows: int = 0

    @property
    def folder(self) -> Path:
        return self.pipeline.folder

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def add(self, count: int = 4, into: str = "orders") -> None:
        """One more file of rows."""
        numbers = range(self.rows, self.rows + count)
        self.rows += count
        lines = [
            {"id": n, "kind": "ab"[n % 2], "price": n % 5 + 0.5, "at": f"2026-01-01T{n % 24:02}:00:00"}
            for n in numbers
        ]
        self.pipeline.write(f"{into}/{self.rows:06d}.json", "".join(json.dumps(row) + "\n" for row in lines))

    def name(self, pipeline: str) -> None:
        """Give the pipeline another name."""
        self.pipeline.write("spark-pipeline.yml", SPEC.format(name=pipeline, storage=self.storage.as_uri()))

    @contextmanager
    def job(self, effects: Effects | None = None) -> Iterator[tuple[Job, Happened]]:
        """A job as a new process would open it."""
        happened = Happened()

        options = Options(spec=str(self.folder / "spark-pipeline.yml"))
        with Project(options, happened.take, base=self.pipeline.session, effects=effects) as project:
            job = project.job()
            as_process(job)
            try:
                yield job, happened
            finally:
                ended(job)

    def survey(self, *rebuild: str) -> dict[str, Finding]:
        with self.job() as (job, _):
            findings = Adoption(job, find_all(job.definitions, rebuild)).survey()
            return {finding.dataset.table: finding for finding in findings}

    def adopt(self, *rebuild: str, effects: Effects | None = None) -> Happened:
        """As `taut adopt`."""
        with self.job(effects) as (job, happened):
            adoption = Adoption(job, find_all(job.definitions, rebuild))
            findings = adoption.survey()
            if findings:
                adoption.adopt_and_publish(findings)
            return happened

    def run(self) -> Happened:
        """As `taut run`, which must complete."""
        with self.pipeline.opened() as (job, happened):
            Run(job).once()
        assert happened.state == "COMPLETED", happened
        return happened

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """At the tables' newest versions, by the base session."""
        return sorted(tuple(row) for row in self.pipeline.session.sql(text).collect())

    def versions(self) -> dict[str, list[int]]:
        """Snapshot ids of each table, oldest first."""
        return {
            name: [row[0] for row in self._meta(name, "snapshots", "snapshot_id", "ORDER BY committed_at")]
            for name in self.tables
        }

    def files(self) -> dict[str, set[str]]:
        """Data files of each table's newest version."""
        return {name: {row[0] for row in self._meta(name, "files", "file_path")} for name in self.tables}

    @property
    def tables(self) -> list[str]:
        names = (name.split(".") for name in self.pipeline.pointers())
        return sorted(table for namespace, table in names if namespace == "default")

    def _meta(self, table: str, part: str, column: str, how: str = "") -> list[Any]:
        return self.pipeline.session.sql(f"SELECT {column} FROM lake.default.{table}.{part} {how}").collect()

    def check(self) -> None:
        """Every row is there once, and views equal their queries."""
        arrived = sorted(
            json.loads(line)["id"]
            for file in sorted(self.folder.glob("orders/*.json"))
            for line in file.read_text().splitlines()
        )
        more = [
            json.loads(line)["id"]
            for file in sorted(self.folder.glob("extra/*.json"))
            for line in file.read_text().splitlines()
        ]
        query = self.pipeline.query
        assert [row[0] for row in query("SELECT id FROM orders")] == arrived
        assert [row[0] for row in query("SELECT id FROM both")] == sorted([*arrived, *more])
        assert [row[0] for row in query("SELECT id FROM cheap")] == [n for n in arrived if n % 5 < 3]
        assert {verdict.equal for verdict in self.pipeline.verify()} == {True}


class Original:
    """A project that `spark-pipelines run` ran once, or twice; each test gets it back as it was then, in the
    same folder, because tables name their files by absolute paths."""

    def __init__(self, folder: Path, spark: SparkSession, *, runs: int = 1) -> None:
        self._folder, self._spark = folder, spark
        built = self._written()
        for name in ("orders", "extra"):
            (built.folder / name).mkdir()
        built.add(6)
        built.add(2, into="extra")
        if runs > 1:
            spark_pipelines(built.folder)
        built.add(5)
        spark_pipelines(built.folder)
        self._rows = built.rows
        built.pipeline.close()
        self._copy = folder.with_name("kept")
        shutil.copytree(folder, self._copy)

    def again(self) -> Built:
        """The project as it was."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        built = self._written()
        built.rows = self._rows
        return built

    def _written(self) -> Built:
        storage = (self._folder / "storage").as_uri()
        spec = SPEC.format(name="shop", storage=storage)
        built = Built(Pipeline(self._folder, self._spark, spec=spec, settings=SETTINGS))
        built.pipeline.write("definitions/streams.py", _STREAMS)
        built.pipeline.write("definitions/views.sql", VIEWS)
        return built


def spark_pipelines(folder: Path) -> None:
    """`spark-pipelines run` as its users start it, on the catalog that the project has here."""
    home = Path(pyspark.__file__).parent
    jars = [str(path) for path in resolve(CORE)]
    options = CatalogSettings.default(str(folder / "storage")).options
    conf = {
        # Not spark.jars: the server that it starts does not get them.
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        **{f"spark.sql.catalog.lake.{key}": value for key, value in options.items()},
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": (folder / "storage" / "unused").as_uri(),
    }
    conf_folder = folder / "conf"
    conf_folder.mkdir(exist_ok=True)
    lines = "".join(f"{key} {value}\n" for key, value in conf.items())
    (conf_folder / "spark-defaults.conf").write_text(lines)
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf_folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with open(_LOCK, "w") as alone:
        # Other processes of this test run start it as well, and it has one port.
        fcntl.flock(alone, fcntl.LOCK_EX)
        _wait_for_port()
        done = subprocess.run(
            [str(home / "bin" / "spark-pipelines"), "run"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert "Run is COMPLETED" in done.stdout + done.stderr, (done.stdout + done.stderr)[-6000:]


def _wait_for_port() -> None:
    """Until nobody holds the port of the server that it starts: one of a run before outlives its command."""
    deadline = time.monotonic() + _PORT_S
    while time.monotonic() < deadline:
        try:
            socket.create_server(("0.0.0.0", _CONNECT_PORT)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"somebody holds the port {_CONNECT_PORT}")
