"""A small pipeline whose checkpoints expire as soon as they may."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

SETTINGS = """\
[refresh]
policy = "incremental"
[maintenance]
keep = "0s"
keep_last = 2
history = "0s"
every = "0s"
budget = "60s"
min_versions = 1
min_files = 2
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""

_INGEST = """\
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
INPUT = Path(__file__).resolve().parents[1] / "input"


@dp.table
def events():
    return spark.readStream.schema("id BIGINT, kind INT").json(str(INPUT))
"""
_CLEAN = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession


@dp.table(name="{name}")
def clean():
    return SparkSession.active().readStream.table("events").where("id % 5 != 0")
"""
_VIEWS = {
    "totals": "SELECT kind, count(*) AS n FROM events GROUP BY kind",
    "odd": "SELECT id FROM clean WHERE id % 2 = 1",
}


class Upkept:
    """The pipeline and what it must show: `events`, and the streams and views that a test is about."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.rows = 0

    def add(self, count: int = 3) -> None:
        """One more file of events."""
        lines = [json.dumps({"id": n, "kind": n % 3}) for n in range(self.rows, self.rows + count)]
        self.rows += count
        self.pipeline.write(f"input/{self.rows:06d}.json", "\n".join(lines) + "\n")

    def stream(self, name: str) -> None:
        """One more streaming table that reads `events` as a stream."""
        self.pipeline.write(f"definitions/{name}.py", _CLEAN.format(name=name))

    def view(self, name: str) -> None:
        """One more view; `odd` reads the stream `clean`."""
        self.pipeline.write(f"definitions/{name}.sql", f"CREATE MATERIALIZED VIEW {name} AS {_VIEWS[name]};")

    def keep_last(self, number: int) -> None:
        """Change the setting for the runs to come."""
        settings = self.pipeline.folder / "tautochrone.toml"
        settings.write_text(settings.read_text().replace("keep_last = 2", f"keep_last = {number}"))
        self.pipeline.reload()

    def ids(self, table: str) -> list[int]:
        return [row[0] for row in self.pipeline.query(f"SELECT id FROM {table}")]

    def files(self, table: str, suffix: str = "") -> list[Path]:
        """Every file of a table that is there, of a catalog of its own."""
        root = Path(self.pipeline.settings.storage) / "warehouse"
        return [path for path in root.rglob(f"{table}/*/*{suffix}") if not path.name.startswith(".")]

    def folder(self, namespace: str) -> Path:
        return Path(self.pipeline.settings.storage) / "warehouse" / namespace

    def grow_old(self, days: int = 4) -> None:
        """All files of all tables were written so long ago."""
        then = time.time() - days * 86_400
        for path in (Path(self.pipeline.settings.storage) / "warehouse").rglob("*.*"):
            os.utime(path, (then, then))

    def orphan(self, table: str, namespace: str = "default") -> Path:
        """What a killed writer leaves: a data file that no metadata names."""
        folder = self.folder(namespace) / table / "data"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"left-{time.time_ns()}.parquet"
        path.write_bytes(b"half a file")
        return path

    def set(self, setting: str, value: str) -> None:
        """A setting of `[maintenance]` for the runs to come."""
        settings = self.pipeline.folder / "tautochrone.toml"
        without_setting = re.sub(rf"^{setting} = .*\n", "", settings.read_text(), flags=re.MULTILINE)
        settings.write_text(
            without_setting.replace("[maintenance]\n", f"[maintenance]\n{setting} = {value}\n")
        )
        self.pipeline.reload()

    def versions(self, table: str) -> int:
        return self.pipeline.session.sql(f"SELECT * FROM lake.default.{table}.snapshots").count()


@pytest.fixture
def upkept(spark: SparkSession, tmp_path: Path) -> Iterator[Upkept]:
    pipeline = Pipeline(tmp_path / "project", spark, settings=SETTINGS)
    pipeline.write("definitions/ingest.py", _INGEST)
    (pipeline.folder / "input").mkdir()
    yield Upkept(pipeline)
    pipeline.close()
