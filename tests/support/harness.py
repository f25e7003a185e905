"""A pipeline that runs in this process on a Spark that exists already, for end-to-end tests.

Every `run` is what `taut run` does: a new job with a new fence over the same storage. Starting Spark
is left out, so a run takes a second or two instead of twelve.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from tests.support.ended_runs import as_process, ended

from tautochrone.app.locate import Options, locate
from tautochrone.app.open import Project
from tautochrone.app.plan_graph import plan_of_graph
from tautochrone.app.stores import project_store
from tautochrone.iceberg.sessions.spark_sessions import lake_conf
from tautochrone.model.effects import Effects
from tautochrone.model.events import Event
from tautochrone.model.project_plan import ProjectPlan
from tautochrone.model.reason import ReasonCode
from tautochrone.model.verdict import Verdict
from tautochrone.project.session_settings import needed_at_start
from tautochrone.project.settings import Settings
from tautochrone.reader import Reader
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.runtime.job.effects import CountingEffects
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.views.verify import verify
from tautochrone.spark.session.factory import use_database

__all__ = ["Happened", "Pipeline"]

_SPEC = """\
name: test
storage: storage
libraries:
  - glob:
      include: definitions/**
"""


_FALLBACKS = (ReasonCode.INCREMENTAL_FAILED, ReasonCode.REMOVED_ROWS_NOT_STORED)


class Happened(list[dict[str, Any]]):
    """The events of a run in their order, as a line of `taut run --json` has them."""

    def take(self, event: Event) -> None:
        self.append(event.as_json())

    def of(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self if entry["event"] == event]

    @property
    def state(self) -> str:
        return str(self.of("run")[-1]["state"])

    @property
    def checkpoints(self) -> list[int]:
        return [entry["checkpoint"] for entry in self.of("checkpoint")]

    def refresh(self, table: str) -> dict[str, Any]:
        """The last refresh of a table, by the last part of its name."""
        return [r for r in self.of("refresh") if r["dataset"].endswith(f".{table}")][-1]

    def mode(self, table: str) -> tuple[str, str]:
        """Mode and reason of the table's last refresh."""
        refresh = self.refresh(table)
        return refresh["mode"], refresh["reason"]

    def failure(self, name: str) -> str:
        """The error of a table (last part of its name) or of a flow."""
        errors = [f["error"] for f in self.of("refresh_failed") if f["dataset"].endswith(f".{name}")]
        errors += [f["error"] for f in self.of("flow_failed") if f["flow"] == name]
        return str(errors[-1])


class Pipeline:
    """A project in `folder` with its storage beside it.

    Args:
        folder: empty, or a project.
        spark: any session; a new one on the same context is bound to the project's lake.
        spec: the text of `spark-pipeline.yml`; by default everything below `definitions/`.
        settings: the text of `tautochrone.toml`.
        target: the target of the project; None: the settings' own.
        may_fall_back: whether a view that could not follow a change may be compared instead. That gives
            the same rows, so nothing else would show it.
    """

    def __init__(
        self,
        folder: Path,
        spark: SparkSession,
        *,
        spec: str = _SPEC,
        settings: str = "",
        target: str | None = None,
        may_fall_back: bool = False,
    ) -> None:
        self.folder = folder
        self._may_fall_back = may_fall_back
        self.write("spark-pipeline.yml", spec)
        if settings:
            self.write("tautochrone.toml", settings)
        self._options = Options(spec=str(folder / "spark-pipeline.yml"), target=target)
        self.reload()
        self.session = _bound(spark, self.settings)
        self.effects = CountingEffects()
        self._project: Project | None = None
        self._job: Job | None = None
        self._reader: Reader | None = None

    def reload(self, conf: Mapping[str, str] | None = None) -> None:
        """Read the project's settings, which a test may have changed, with `conf` as `--conf` gives it."""
        self._options = replace(self._options, conf=conf or {})
        self.settings: Settings = locate(self._options)[1]

    def write(self, file: str, text: str) -> Path:
        """Write a file of the project; the path is below its folder."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, *, full: Sequence[str] = ()) -> Happened:
        """A one-shot run by a new job, as a new process would do it.

        `effects` then holds the steps of this run alone.
        """
        with self.opened(full=full) as (job, happened):
            self.execute(job, full=full)
            return happened

    def plan(self, *, full: Sequence[str] = ()) -> ProjectPlan:
        """What the next run will do, as `taut plan` computes it in a process of its own."""
        self._close_project()
        with Project(self._options, lambda _: None, base=self.session) as project:
            definitions, graph = project.analysed(full)
            return plan_of_graph(project, definitions, graph, full)

    def execute(self, job: Job, *, full: Sequence[str] = ()) -> None:
        """A one-shot run of a job that is already there, and was analysed when it was opened."""
        Run(job, select(job.topology, (), full, everything=False)).once()

    @contextmanager
    def opened(
        self, effects: Effects | None = None, *, full: Sequence[str] = ()
    ) -> Iterator[tuple[Job, Happened]]:
        """A new job and the list that its events go to. It can be verified until the next one.

        `effects` are those of a process that dies, instead of those that count; `full` are the tables that it
        will rebuild.

        Raises:
            AssertionError: at the end, a view could not follow a change and was compared.
        """
        self._close_project()
        happened = Happened()
        self.effects = CountingEffects()
        project = Project(
            self._options,
            happened.take,
            base=self.session,
            effects=effects or self.effects,
            renews_roots=True,
        )
        self._project = project
        self._job = project.job(full)
        as_process(self._job)
        try:
            yield self._job, happened
        finally:
            ended(self._job)
        refreshes = happened.of("refresh")
        fell_back = [refresh for refresh in refreshes if refresh["reason_code"] in _FALLBACKS]
        assert self._may_fall_back or not fell_back, fell_back

    @contextmanager
    def running(self, interval_ms: int = 300) -> Iterator[Happened]:
        """A continuous run in a thread of its own, which ends with the block.

        Raises:
            AssertionError: it does not end, or something was broken at its end.
        """
        with self.opened() as (job, happened):
            run = Run(job)
            thread = threading.Thread(target=run.continuously, args=(interval_ms,))
            thread.start()
            try:
                yield happened
            finally:
                run.stop()
                thread.join(timeout=120)
            assert not thread.is_alive(), "the run does not end"
            assert not run.problems, run.problems

    @property
    def job(self) -> Job:
        """The last run's job."""
        assert self._job is not None
        return self._job

    def verify(self, number: int | None = None) -> list[Verdict]:
        """Recompute every view by plain Spark.

        Raises:
            AssertionError: a view differs.
        """
        job = self.job
        views = job.topology.derived_tables
        verdicts = list(
            verify(self.session, job.store, job.read_points, job.definitions, job.graph, views, number)
        )
        wrong = [verdict for verdict in verdicts if verdict.equal is False]
        assert not wrong, wrong
        return verdicts

    @property
    def reader(self) -> Reader:
        """One reader for the whole test: it never goes backwards."""
        if self._reader is None:
            store = project_store(self.settings)
            self._reader = Reader(store, self.settings.catalog, base=self.session)
        return self._reader

    def query(self, sql: str, **how: Any) -> list[tuple[Any, ...]]:
        """Rows of a strong read, sorted. `how` is that of `Reader.sql`."""
        rows: list[Row] = self.reader.sql(sql, **how).collect()
        return sorted(tuple(row) for row in rows)

    def spark_jobs(self) -> int:
        """How many Spark jobs this Spark has been given so far."""
        context: Any = self.session.sparkContext
        return int(context._jsc.sc().dagScheduler().numTotalJobs())

    def pointers(self) -> dict[str, str]:
        """Where the catalog points for each table: a commit of any kind moves it."""
        source = metadata_source(self.settings.catalog)
        return {name.without_catalog: source.load(name)[0] for name in source.tables()}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._close_project()

    def _close_project(self) -> None:
        if self._project is not None:
            self._project.close()
        self._project = self._job = None


def _bound(spark: SparkSession, settings: Settings) -> SparkSession:
    """A session on the same context whose lake is the project's own."""
    Path(settings.storage).mkdir(parents=True, exist_ok=True)
    session = spark.newSession()
    # What Spark needs before it starts cannot be set in a Spark that is already there.
    confs = {key: value for key, value in settings.confs.items() if not needed_at_start(key)}
    for key, value in {**lake_conf(settings.catalog), **confs}.items():
        session.conf.set(key, value)
    use_database(session, settings.catalog.name, "default", create=True)
    return session
