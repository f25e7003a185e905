"""Crashes between the state of an AUTO CDC table and the table: every event is merged exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.errors import TautochroneError
from tautochrone.model import limits
from tautochrone.model.auto_cdc import TOMBSTONE_RETENTION
from tautochrone.model.effects import Step

from .faults import Crash, Strike, StrikingEffects

pytestmark = [pytest.mark.crash, pytest.mark.spark]

NEWEST = """
CREATE STREAMING TABLE newest (CONSTRAINT small EXPECT (a < 4));
APPLY CHANGES INTO newest FROM STREAM(events) KEYS (id) APPLY AS DELETE WHEN a IS NULL SEQUENCE BY n;
"""
HISTORY = """
CREATE STREAMING TABLE history FLOW AUTO CDC FROM STREAM(events) KEYS (id)
APPLY AS DELETE WHEN a IS NULL SEQUENCE BY n COLUMNS id, a STORED AS SCD TYPE 2;
"""
SUMS = """
CREATE MATERIALIZED VIEW sums TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental') AS
SELECT h.id, count(*) AS n, sum(h.a) AS a, max(e.a) AS newest
FROM history h LEFT JOIN newest e ON h.id = e.id GROUP BY h.id;
"""
COUNTS = "CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM ticks;"
KEYS = 12
EXPECTED = {
    "newest": "SELECT * FROM (SELECT id, max_by(n, n) AS n, max_by(a, n) AS a FROM events GROUP BY id) "
    "WHERE a IS NOT NULL",
    "history": """
        SELECT id, a, start, lead(start) OVER (PARTITION BY id ORDER BY start) AS ended FROM (
          SELECT id, a, n AS start,
            lag(struct(a)) OVER (PARTITION BY id ORDER BY n) <=> struct(a) AS same
          FROM (SELECT DISTINCT * FROM events)
        ) WHERE NOT same
    """,
}


class Events:
    """A project over a lake table of events, which others write."""

    definitions = NEWEST + HISTORY + SUMS + COUNTS
    sequence = "INT"

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.pipeline.write("definitions/a.sql", self.definitions)
        self.pick = random.Random(5)
        self.unsent: dict[int, list[int]] = {}
        columns = f"(id INT, n {self.sequence}, a INT)"
        self.pipeline.session.sql(f"CREATE TABLE lake.default.events {columns} USING iceberg")
        self.pipeline.session.sql("CREATE TABLE lake.default.ticks (id INT) USING iceberg")
        self.send()

    def tick(self) -> None:
        """A change of another table: a checkpoint without events."""
        self.pipeline.session.sql("INSERT INTO lake.default.ticks VALUES (1)")

    def send(self) -> None:
        """A few events in any order, some of them again."""
        rows: list[tuple[int, int, str]] = []
        for _ in range(8):
            key = self.pick.randrange(KEYS)
            unsent = self.unsent.setdefault(key, self.pick.sample(range(60), 60))
            number = unsent.pop()
            rows.append((key, number, "NULL" if number % 5 == 0 else str(number // 7)))
        values = ", ".join(f"({key}, {number}, {a})" for key, number, a in [*rows, *rows[:2]])
        self.pipeline.session.sql(f"INSERT INTO lake.default.events VALUES {values}")

    def run(self, strike: Strike | None = None) -> None:
        effects = StrikingEffects(strike)
        with self.pipeline.opened(effects) as (job, happened):
            try:
                self.pipeline.execute(job)
            except (Crash, TautochroneError):
                assert strike is not None
        assert strike is None or effects.struck, (str(strike), happened)

    def check(self) -> None:
        session = self.pipeline.session
        session.sql("USE lake.default")
        self.check_history()
        assert _rows(session, "SELECT * FROM newest") == _rows(session, EXPECTED["newest"])
        violations = self.expectation_of_newest("small")
        assert [(violations,)] == _rows(session, "SELECT count_if(a >= 4) FROM events")
        (verdict,) = [verdict for verdict in self.pipeline.verify() if verdict.dataset.table == "sums"]
        assert verdict.equal

    def check_history(self) -> None:
        session = self.pipeline.session
        session.sql("USE lake.default")
        rows = [row for row in _rows(session, EXPECTED["history"]) if row[1] is not None]
        assert _rows(session, "SELECT * FROM history") == sorted(rows, key=str)

    def expectation_of_newest(self, name: str) -> int:
        """How many events violated it so far."""
        statuses = self.pipeline.job.store.datasets.statuses()
        (newest,) = (status for status in statuses if status.dataset.table == "newest")
        return next(counted.violations for counted in newest.expectations if counted.name == name)


class EventsOfHistory(Events):
    """A project with the table of all versions alone."""

    definitions = HISTORY


class EventsWithTimes(Events):
    """A project whose table forgets deletions that are older than two days; and what it must hold."""

    definitions = f"""
    CREATE STREAMING TABLE newest TBLPROPERTIES ('{TOMBSTONE_RETENTION}' = '2 days');
    APPLY CHANGES INTO newest FROM STREAM(events) KEYS (id) APPLY AS DELETE WHEN a IS NULL SEQUENCE BY n;
    """
    sequence = "TIMESTAMP"

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.now = datetime(2026, 3, 1)  # noqa: DTZ001 (of the session's time zone)
        self.greatest: datetime | None = None
        self.newest: dict[int, tuple[datetime, int | None]] = {}
        self.late = self.number = 0
        super().__init__(folder, spark)

    def send(self) -> None:
        """A day later: a new key, a deletion, an event between, and one of the key whose deletion is three
        days old. All must be merged before the next are sent."""
        self.now += timedelta(days=1)
        self.number += 10
        events: list[tuple[int, datetime, int | None]] = [
            (self.number, self.now, self.number),
            (self.number - 10, self.now, None),
            (self.number - 20, self.now - timedelta(hours=30), 1),
            (self.number - 40, self.now - timedelta(days=3, hours=1), 2),
        ]
        self._send(events)

    def send_late(self) -> None:
        self._send([(self.number + 5, self.now - timedelta(days=3), 3)])

    def _send(self, events: list[tuple[int, datetime, int | None]]) -> None:
        horizon = datetime.min if self.greatest is None else self.greatest - timedelta(days=2)  # noqa: DTZ901
        for key, at, value in events:
            if at < horizon:
                self.late += 1
                continue
            if key not in self.newest or at > self.newest[key][0]:
                self.newest[key] = (at, value)
            self.greatest = at if self.greatest is None else max(self.greatest, at)
        values = ", ".join(
            f"({key}, TIMESTAMP '{at}', {'NULL' if value is None else value})" for key, at, value in events
        )
        self.pipeline.session.sql(f"INSERT INTO lake.default.events VALUES {values}")

    def check(self) -> None:
        expected = sorted((key, at, value) for key, (at, value) in self.newest.items() if value is not None)
        assert sorted(_rows(self.pipeline.session, "SELECT * FROM lake.default.newest")) == expected
        assert self.expectation_of_newest(TOMBSTONE_RETENTION) == self.late

    def deletions(self) -> list[int]:
        """The keys whose deletion the state remembers."""
        rows = _rows(self.pipeline.session, f"SELECT k0 FROM lake._tautochrone.{state('newest')}")
        gone = {key for key, (_, value) in self.newest.items() if value is None}
        return sorted(key for (key,) in rows if key in gone)


def _rows(session: SparkSession, query: str) -> Sequence[tuple[Any, ...]]:
    return sorted((tuple(row) for row in session.sql(query).collect()), key=str)


@pytest.fixture
def events(tmp_path: Path, spark: SparkSession) -> Iterator[Events]:
    events = Events(tmp_path, spark)
    yield events
    events.pipeline.close()


def state(table: str) -> str:
    return f"default__{table}__0"


def test_crash_around_the_commit_of_a_merge(tmp_path: Path, spark: SparkSession) -> None:
    events = EventsOfHistory(tmp_path, spark)
    events.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on=state("history")))
    events.send()
    events.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on="history"))
    events.run()
    events.check_history()
    events.pipeline.close()


@pytest.mark.slow
def test_crash_around_the_commits_of_two_merges(events: Events) -> None:
    events.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on=state("history")))
    events.tick()
    events.run()
    events.send()
    events.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on=state("newest")))
    events.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on="history"))
    events.run()
    events.check()


@pytest.mark.slow
def test_crash_at_each_step(events: Events) -> None:
    steps = [
        (Step.LAKE_CREATE, state("history")),
        (Step.LAKE_STAGE, state("history")),
        (Step.LAKE_STAGE, "history"),
        (Step.LAKE_COMMIT_STAGED, state("history")),
        (Step.LAKE_COMMIT_STAGED, "history"),
        (Step.LAKE_STAGE, state("newest")),
        (Step.LAKE_COMMIT_STAGED, state("newest")),
        (Step.LAKE_COMMIT_STAGED, "newest"),
    ]
    for step, table in steps:
        for when in ("before", "after"):
            if step is not Step.LAKE_CREATE or when == "before":
                events.run(Strike(step, when, "crash", on=table))
            events.send()
    events.run()
    events.check()
    for when in ("before", "after"):
        events.send()
        events.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on=state("history")))
        events.run(Strike(Step.LAKE_ROLL_BACK, when, "crash", on=state("history")))
    events.run()
    events.check()
    # More merges than a state has runs: the log of the state is folded.
    for _ in range(26):
        events.send()
        events.run()
    events.check()


STRIKES_WHILE_FOLDING = (
    (Step.LAKE_STAGE, state("newest")),
    (Step.LAKE_COMMIT_STAGED, state("newest")),
    (Step.LAKE_COMMIT_STAGED, "newest"),
    (Step.META_VERSION, None),
)
BOTH = ("before", "after")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strikes", "moments"),
    [
        pytest.param(STRIKES_WHILE_FOLDING[1:2], BOTH[1:], id="state"),
        pytest.param(STRIKES_WHILE_FOLDING, BOTH, id="all"),
    ],
)
def test_crash_while_old_deletions_are_forgotten(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    strikes: Sequence[tuple[Step, str | None]],
    moments: Sequence[str],
) -> None:
    # Each merge folds the state's runs, and with that forgets deletions.
    monkeypatch.setattr(limits, "MAX_STATE_RUNS", 0)
    events = EventsWithTimes(tmp_path, spark)
    try:
        for _ in range(4):
            events.run()
            events.send()
        for number, (step, table) in enumerate(strikes):
            if number:
                events.send()
            rolled_back = step is Step.LAKE_COMMIT_STAGED and table == state("newest")
            for when in moments:
                events.run(Strike(step, when, "crash", on=table))
                if rolled_back and when == "after":
                    events.run(Strike(Step.LAKE_ROLL_BACK, when, "crash", on=table))
            if rolled_back and "before" in moments:
                events.run(Strike(step, "after", "crash", on=table))
                events.run(Strike(Step.LAKE_ROLL_BACK, "before", "crash", on=table))
            events.run()
            events.check()
        # Only events that are refused.
        for when in moments:
            events.send_late()
            events.run(Strike(Step.LAKE_COMMIT_METADATA, when, "crash", on="newest"))
            events.run()
            events.check()
        assert events.late > len(strikes)
        # By the horizon of before the last merge: three days before the newest event.
        assert events.deletions() == [events.number - day * 10 for day in (4, 3, 2, 1)]
    finally:
        events.pipeline.close()
