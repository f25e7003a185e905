"""A project with a root, a stream and views two levels deep, and the ways to revise it in process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.model.lake import LakeTable
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.revision import Revision, RevisionPlan
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import revise, survey

__all__ = ["GOOD", "LATER", "RIGHT", "SETTINGS", "WRONG", "World", "Wronged", "name"]

GOOD = [(1, 0), (2, 1), (3, 2), (4, 0)]
WRONG = [(5, 9), (6, 9)]
RIGHT = [(5, 1), (6, 2)]
LATER = [(7, 0)]

SETTINGS = """
[refresh]
policy = "incremental"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""

_PROJECT = """
    from pyspark import pipelines as dp

    @dp.table
    def events():
        return spark.readStream.schema("id long, kind int").json({folder!r})

    @dp.table
    def clean():
        return spark.readStream.table("events").where("id >= 0")
"""
_VIEWS = {
    "totals": "SELECT kind, count(*) AS n, sum(id) AS ids FROM clean GROUP BY kind",
    "sizes": "SELECT n, count(*) AS kinds, max(ids) AS most FROM totals GROUP BY n",
    "labelled": "SELECT e.id, t.n FROM events e JOIN totals t ON t.kind = e.kind",
}


def name(table: str) -> TableName:
    return TableName("lake", ("default",), table)


class World:
    """What is in the files of `events` is the truth, row by row."""

    def __init__(self, folder: Path, spark: SparkSession, *, settings: str = SETTINGS) -> None:
        self.folder = folder
        (folder / "in").mkdir(parents=True, exist_ok=True)
        self.pipeline = Pipeline(folder, spark, settings=settings)
        self.pipeline.write("definitions/p.py", _PROJECT.format(folder=str(folder / "in")))
        for view, query in _VIEWS.items():
            self.define(view, query)

    def define(self, view: str, query: str) -> None:
        self.pipeline.write(f"definitions/{view}.sql", f"CREATE MATERIALIZED VIEW {view} AS {query};")

    def forget(self, view: str) -> None:
        (self.folder / f"definitions/{view}.sql").unlink()

    def put(self, file: str, *rows: tuple[int, int]) -> None:
        """Write a file of the source, or write it anew: a correction."""
        lines = [json.dumps({"id": number, "kind": kind}) for number, kind in rows]
        self.pipeline.write(f"in/{file}.json", "\n".join(lines))

    def run(self) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        return happened

    def plan(
        self, *names: str, to: int | None = None, again: bool = False, full: bool = False
    ) -> RevisionPlan:
        with self.pipeline.opened() as (job, _):
            return survey(job, request(*names, to=to, again=again, full=full))

    def revise(
        self, *names: str, to: int | None = None, again: bool = False, full: bool = False
    ) -> tuple[Revision, Happened]:
        """A revision by a process of its own, everything accepted."""
        with self.pipeline.opened() as (job, happened):
            revision_request = request(*names, to=to, again=again, full=full)
            return revise(job, revision_request, survey(job, revision_request)), happened

    def table(self, table: str) -> LakeTable:
        with self.pipeline.opened() as (job, _):
            return job.lake.load(name(table))

    def rows(self, table: str, **how: object) -> list[tuple[object, ...]]:
        return self.pipeline.query(f"SELECT * FROM {table}", **how)

    def check(self, *events: tuple[int, int]) -> None:
        """The newest checkpoint shows exactly these rows, and every view what plain Spark makes of them."""
        assert self.rows("events") == sorted(events)
        assert self.rows("clean") == sorted(row for row in events if row[0] >= 0)
        assert {verdict.dataset.table for verdict in self.pipeline.verify()} == set(_VIEWS)

    def close(self) -> None:
        self.pipeline.close()


class Wronged:
    """Checkpoint 1 is right, 2 and 3 show wrong rows; the file is corrected by now.

    It runs once; tests get it back in the same folder, because tables name their files by absolute paths.
    """

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._folder, self._copy, self._spark = folder, folder.with_name("kept"), spark
        world = World(folder, spark)
        for file, rows in (("a", GOOD), ("b", WRONG), ("c", LATER)):
            world.put(file, *rows)
            world.run()
        world.check(*GOOD, *WRONG, *LATER)
        world.put("b", *RIGHT)
        world.close()
        shutil.copytree(folder, self._copy)

    def again(self, *, settings: str = SETTINGS) -> World:
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        return World(self._folder, self._spark, settings=settings)


def request(*names: str, to: int | None = None, again: bool = False, full: bool = False) -> RevisionRequest:
    tables = tuple(TableName.parse(n) if "." in n else name(n) for n in names)
    number = None if to is None else CheckpointNumber(to)
    return RevisionRequest(named=tables, to=number, read_again=again, full=full)


def actions(plan: RevisionPlan) -> Sequence[tuple[str, str]]:
    return [(revised.table.table, str(revised.action)) for revised in plan.tables]


def tagged(job: Job, revision: Revision, table: str) -> bool:
    return f"taut-revision-{revision.id}" in job.lake.load(name(table)).tags()
