"""A project that captures the toy database, and what must hold of every checkpoint that it publishes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.ended_runs import as_process, ended

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.app.unchanged import run_and_remember, since_last_run
from tautochrone.errors import TautochroneError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.meta import MetaStore
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.events import Emit, Event
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import LogPosition
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run, RunState
from tautochrone.testing.toy_database import RELATIONS, Change, ToyDatabase

__all__ = ["CAPITAL", "Attempt", "Bank"]

CAPITAL = 2_000
"""The sum over all accounts and savings after every transaction."""

_SPEC = """
name: bank
storage: storage
libraries:
  - glob:
      include: transformations/**
"""

_SETTINGS = """
[spark]
master = "local[2]"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""

_PYTHON = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from tautochrone.testing import toy_database

DATABASE = Path(__file__).resolve().parents[1] / "bank.db"
toy_database.register(SparkSession.active())


@dp.table
def bank_log():
    return toy_database.stream(SparkSession.active(), DATABASE)


def captured(relation):
    @dp.table(
        name=relation,
        table_properties={
            "tautochrone.apply.keys": "id",
            "tautochrone.apply.sequence": "point, sequence",
            "tautochrone.apply.delete": "operation = 'delete'",
            "tautochrone.apply.relation": relation,
            "tautochrone.apply.relation_column": "relation",
        },
    )
    def rows():
        events = SparkSession.active().readStream.table("bank_log")
        return events.where(f"relation = '{relation}' AND operation <> 'completed'").select(
            "id", "amount", "operation", "point", "sequence"
        )


for relation in toy_database.RELATIONS:
    captured(relation)
"""

_TOTAL = """
CREATE MATERIALIZED VIEW total AS
SELECT sum(amount) AS total FROM (SELECT amount FROM accounts UNION ALL SELECT amount FROM savings);
"""


@dataclass
class Attempt:
    """One run in this process: how it ended and what it said."""

    effects: StrikingEffects
    events: list[dict[str, Any]] = field(default_factory=list)
    state: RunState | None = None
    error: BaseException | None = None

    def emit(self, event: Event) -> None:
        self.events.append(event.as_json())

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for fields in self.events if fields["event"] == event]

    def require_completed(self) -> None:
        assert self.state is RunState.COMPLETED, self.describe()

    def describe(self) -> str:
        events = "\n".join(map(str, self.events))
        return f"{self.state} {self.error!r}\n{events}\n{dict(self.effects.seen)}"


def _ignore(_event: Event) -> None:
    """For events that no test looks at."""


@dataclass
class Bank:
    """The database, the project over it, and the runs of its job."""

    spark: SparkSession
    folder: Path
    database: ToyDatabase
    pick: random.Random = field(default_factory=lambda: random.Random(7))
    transfers: int = 0
    committed_at_ms: int | None = None
    """When transactions are committed; None: now."""

    @classmethod
    def make(cls, spark: SparkSession, folder: Path) -> Bank:
        (folder / "transformations").mkdir(parents=True)
        (folder / "storage").mkdir()
        (folder / "spark-pipeline.yml").write_text(_SPEC)
        (folder / "tautochrone.toml").write_text(_SETTINGS)
        (folder / "transformations" / "bank.py").write_text(_PYTHON)
        (folder / "transformations" / "total.sql").write_text(_TOTAL)
        session = spark.newSession()
        catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}
        options = CatalogSettings.default(str(folder / "storage")).options
        catalog |= {f".{key}": value for key, value in options.items()}
        for key, value in catalog.items():
            session.conf.set(f"spark.sql.catalog.lake{key}", value)
        session.conf.set("spark.sql.shuffle.partitions", "1")
        bank = cls(session, folder, ToyDatabase(folder / "bank.db"))
        opening = [Change("accounts", key * 11 % 100, 100) for key in range(10)]
        opening += [Change("savings", key * 13 % 100, 100) for key in range(10)]
        bank.database.transaction(*opening)
        return bank

    def work(self, transactions: int = 3) -> None:
        """Transfers between the two tables; accounts are opened and closed."""
        for _ in range(transactions):
            self.transfers += 1
            accounts, savings = self.database.rows("accounts"), self.database.rows("savings")
            giver, taker = self.pick.choice(sorted(accounts)), self.pick.randrange(100)
            amount = self.pick.randint(1, 9)
            left: int | None = accounts[giver] - amount
            if self.pick.random() < 0.3 and len(accounts) > 3:
                # The account is closed, all that it holds is moved.
                amount, left = accounts[giver], None
            self.database.transaction(
                Change("accounts", giver, left),
                Change("savings", taker, savings.get(taker, 0) + amount),
                Change("transfers", self.transfers % 100, amount),
                committed_at_ms=self.committed_at_ms,
            )

    def define(self, before: str, after: str) -> None:
        """Change the definitions."""
        file = self.folder / "transformations" / "bank.py"
        text = file.read_text()
        assert text.count(before) == 1
        file.write_text(text.replace(before, after))

    def set(self, settings: str) -> None:
        """Run with these settings from now on, besides those of every bank."""
        (self.folder / "tautochrone.toml").write_text(f"{_SETTINGS}\n{settings}\n")

    @contextmanager
    def open(self, effects: StrikingEffects, emit: Emit) -> Iterator[Project]:
        options = Options(spec=str(self.folder / "spark-pipeline.yml"))
        with Project(options, emit, base=self.spark, effects=effects) as project:
            yield project

    def run(
        self,
        strike: Strike | None = None,
        *,
        full: bool = False,
        full_of: tuple[str, ...] = (),
        takeover: bool = False,
        reached: bool = True,
        remembers: bool = False,
    ) -> Attempt:
        """One-shot, as `taut run`. Whatever became of it, nothing is acknowledged that the table has not.
        `remembers`: it writes down what it depended on."""
        attempt = Attempt(StrikingEffects(strike))
        with self.open(attempt.effects, attempt.emit) as project:
            execution = job = None
            try:
                job = project.job()
                as_process(job)
                job.ownership.takeover = takeover
                execution = Run(job, select(job.topology, [], full_of, everything=full))
                if remembers:
                    attempt.state = run_and_remember(job, "program", execution, attempt.emit)
                else:
                    attempt.state = execution.once()
            except (Crash, TautochroneError, AssertionError) as error:
                attempt.error = error
            finally:
                if job is not None:
                    ended(job)
                if execution is not None:
                    execution._streams.stop()
        missed = strike is not None and reached and not attempt.effects.struck
        assert not missed, f"{strike} was not reached\n{attempt.describe()}"
        self.require_acknowledged_is_durable()
        return attempt

    def news(self) -> Reason:
        """What came since the last run that remembers."""
        with self.open(StrikingEffects(), _ignore) as project:
            (job,) = project.store().jobs.states()
            reason = since_last_run(project.settings, job)
        assert reason is not None
        return reason

    def require_acknowledged_is_durable(self) -> None:
        """The table holds every point that was acknowledged."""
        acknowledged = self.database.points_acknowledged_by_reader
        if acknowledged:
            position = self.position()
            assert position is not None, acknowledged
            assert max(acknowledged) <= position.point, (acknowledged, position)

    def modes(self) -> dict[str, str | None]:
        """What `taut status` shows as the mode of each captured table."""
        with MetaStore.open(f"sqlite:///{self.folder}/storage/meta.db") as store:
            statuses = {status.dataset.table: status for status in store.datasets.statuses()}
        return {name: None if status.mode is None else str(status.mode) for name, status in statuses.items()}

    def position(self) -> LogPosition | None:
        """Where the log table says that its flow stands."""
        with self.open(StrikingEffects(), _ignore) as project:
            metadata = project.lake.load(TableName("lake", ("default",), "bank_log")).fork().commit_metadata
        position = None if metadata is None else metadata.positions.get("bank_log")
        assert position is None or isinstance(position, LogPosition)
        return position

    def check(self) -> None:
        """Every published checkpoint shows one state that the database had, later ones no older one; the
        newest shows the last state; the log has every event once. Read by PyIceberg: no line of ours
        between."""
        states = self.database.states()
        storage = self.folder / "storage"
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        newest = 0
        shown: dict[str, dict[int, int]] = {}
        with MetaStore.open(f"sqlite:///{storage}/meta.db") as store:
            assert store.checkpoints.next_for("bank") is None
            numbers = [
                entry.number
                for entry in store.checkpoints.newest()
                if entry.state in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL)
            ]
            for number in sorted(numbers):
                versions = {
                    name.table: version for name, version in store.checkpoints.versions_at(number).items()
                }
                shown = {
                    relation: self._rows(catalog, relation, versions[relation])
                    for relation in RELATIONS
                    if relation in versions
                }
                fitting = [
                    point
                    for point, state in enumerate(states)
                    if point >= newest and all(state[relation] == rows for relation, rows in shown.items())
                ]
                assert fitting, (number, shown)
                newest = fitting[0]
                if {"accounts", "savings"} <= shown.keys():
                    both = [*shown["accounts"].values(), *shown["savings"].values()]
                    assert sum(both) == CAPITAL, (number, shown)
                if "total" in versions:
                    table = catalog.load_table("default.total")
                    (row,) = table.scan(snapshot_id=int(versions["total"])).to_arrow().to_pylist()
                    assert row["total"] == CAPITAL, (number, row)
            assert set(shown) == set(RELATIONS), shown.keys()
            assert shown == {relation: self.database.rows(relation) for relation in RELATIONS}
        self._check_log(catalog)
        catalog.close()

    def log_points(self) -> list[int]:
        """The transactions whose events the log table has, in order."""
        storage = self.folder / "storage"
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        rows = catalog.load_table("default.bank_log").scan().to_arrow().to_pylist()
        catalog.close()
        return sorted({row["point"] for row in rows if row["operation"] not in ("copy", "completed")})

    def _check_log(self, catalog: SqlCatalog) -> None:
        rows = catalog.load_table("default.bank_log").scan().to_arrow().to_pylist()
        events = [row for row in rows if row["operation"] not in ("copy", "completed")]
        occurrences = Counter((row["point"], row["sequence"]) for row in events)
        assert set(occurrences.values()) <= {1}, [event for event, count in occurrences.items() if count > 1]
        first = min((row["point"] for row in events), default=0)
        points = {row["point"] for row in events}
        assert points == set(range(first, first + len(points))), sorted(points)
        assert not points or max(points) == len(self.database.states()) - 1

    def _rows(self, catalog: SqlCatalog, relation: str, version: str) -> dict[int, int]:
        table = catalog.load_table(f"default.{relation}")
        rows = table.scan(snapshot_id=int(version)).to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), rows
        return {row["id"]: row["amount"] for row in rows}
