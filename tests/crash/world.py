"""A crash project whose runs share the test's Spark: the same assembly as `taut run`, other effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.ended_runs import as_process, ended

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.errors import TautochroneError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.model.events import Emit, Event
from tautochrone.model.lake import LakeTable
from tautochrone.model.names import TableName
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run, RunState

from .faults import Crash, Strike, StrikingEffects
from .project import OUTSIDE, Sources, write_project

__all__ = ["Attempt", "World"]

_ICEBERG = "org.apache.iceberg.spark.SparkCatalog"


@dataclass
class Attempt:
    """One run in this process: how it ended, what it said, which steps it took."""

    effects: StrikingEffects
    events: list[dict[str, Any]] = field(default_factory=list)
    state: RunState | None = None
    error: BaseException | None = None

    @property
    def completed(self) -> bool:
        return self.state is RunState.COMPLETED

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for fields in self.events if fields["event"] == event]

    def emit(self, event: Event) -> None:
        self.events.append(event.as_json())

    def require_completed(self) -> None:
        assert self.completed, self.describe()

    def describe(self) -> str:
        events = "\n".join(map(str, self.events))
        return f"{self.state} {self.error!r}\n{events}\n{dict(self.effects.seen)}"

    @property
    def errors(self) -> str:
        """The error that ended the run, and those of its events."""
        return " ".join([str(self.error or ""), *(str(e.get("error", "")) for e in self.events)])


def _deaf(_event: Event) -> None:
    """For what nobody asks to hear of."""


@dataclass
class World:
    """A project, its truth, and the numbers that its runs published."""

    spark: SparkSession
    sources: Sources
    published: list[int] = field(default_factory=list)

    @classmethod
    def make(cls, spark: SparkSession, folder: Path) -> World:
        """A new project, and a session of its own whose catalog is the project's lake."""
        sources = write_project(folder)
        sources.storage.mkdir()
        session = spark.newSession()
        catalog = {"": _ICEBERG, ".cache-enabled": "false"}
        catalog |= {f".{k}": v for k, v in CatalogSettings.default(str(sources.storage)).options.items()}
        for key, value in catalog.items():
            session.conf.set(f"spark.sql.catalog.lake{key}", value)
        session.conf.set("spark.sql.shuffle.partitions", "1")
        return cls(session, sources)

    @contextmanager
    def open(self, effects: StrikingEffects | None = None, emit: Emit | None = None) -> Iterator[Project]:
        options = Options(spec=str(self.sources.folder / "spark-pipeline.yml"))
        listener = emit or _deaf
        with Project(options, listener, base=self.spark, effects=effects or StrikingEffects()) as project:
            yield project

    def run(
        self,
        strike: Strike | None = None,
        *,
        full: bool = False,
        effects: StrikingEffects | None = None,
        reached: bool = True,
        takeover: bool = False,
    ) -> Attempt:
        """One-shot, as `taut run`. A strike that must be `reached` and is not fails the test."""
        attempt = Attempt(effects or StrikingEffects(strike))
        with self.open(attempt.effects, attempt.emit) as project:
            execution = job = None
            try:
                job = project.job()
                as_process(job)
                job.ownership.takeover = takeover
                execution = Run(job, select(job.topology, [], [], everything=full))
                attempt.state = execution.once()
            except (Crash, TautochroneError, AssertionError) as error:
                attempt.error = error
            finally:
                if job is not None:
                    ended(job)
                if execution is not None:
                    for query in execution._streams._queries.values():
                        query.stop()
        missed = strike is not None and reached and not attempt.effects.struck
        assert not missed, f"{strike} was not reached\n{attempt.describe()}"
        self.commit_metadata(attempt.events)
        return attempt

    def commit_metadata(self, events: Iterable[dict[str, Any]]) -> None:
        """Numbers only grow, whatever crashed in between."""
        for event in events:
            if event["event"] == "checkpoint":
                number = event["checkpoint"]
                assert not self.published or number > self.published[-1], (self.published, number)
                self.published.append(number)

    @contextmanager
    def table(self, name: str) -> Iterator[LakeTable]:
        """The port of one of the pipeline's tables, for what somebody else does to it."""
        with self.open() as project:
            yield project.lake.load(TableName("lake", ("default",), name))

    def write_outside(self, *rows: tuple[int, str]) -> None:
        """What another owner does to their own table."""
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {OUTSIDE.rpartition('.')[0]}")
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS {OUTSIDE} (kind INT, label STRING) USING iceberg")
        self.spark.sql(f"INSERT INTO {OUTSIDE} VALUES {', '.join(str(row) for row in rows)}")
        self.sources.outside.update(rows)
