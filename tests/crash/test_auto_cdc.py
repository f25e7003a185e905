"""Crashes between the state of an AUTO CDC table and the table: every event is merged exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import TautochroneError
from tautochrone.model.effects import Step
from tautochrone.testing.harness import Pipeline

from .faults import Crash, Strike, StrikingEffects

pytestmark = [pytest.mark.crash, pytest.mark.spark]

DEFINITIONS = """
CREATE STREAMING TABLE newest (CONSTRAINT small EXPECT (a < 4));
APPLY CHANGES INTO newest FROM STREAM(events) KEYS (id) APPLY AS DELETE WHEN a IS NULL SEQUENCE BY n;

CREATE STREAMING TABLE history FLOW AUTO CDC FROM STREAM(events) KEYS (id)
APPLY AS DELETE WHEN a IS NULL SEQUENCE BY n COLUMNS id, a STORED AS SCD TYPE 2;

CREATE MATERIALIZED VIEW sums TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental') AS
SELECT h.id, count(*) AS n, sum(h.a) AS a, max(e.a) AS newest
FROM history h LEFT JOIN newest e ON h.id = e.id GROUP BY h.id;

CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM ticks;
"""
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

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.pipeline.write("definitions/a.sql", DEFINITIONS)
        self.pick = random.Random(5)
        self.unsent: dict[int, list[int]] = {}
        self.pipeline.session.sql("CREATE TABLE lake.default.events (id INT, n INT, a INT) USING iceberg")
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
        for table, query in EXPECTED.items():
            expected = _rows(session, query)
            if table == "history":
                expected = sorted((row for row in expected if row[1] is not None), key=str)
            assert _rows(session, f"SELECT * FROM {table}") == expected, table
        statuses = self.pipeline.job.store.datasets.statuses()
        (counted,) = next(status for status in statuses if status.dataset.table == "newest").expectations
        assert [(counted.violations,)] == _rows(session, "SELECT count_if(a >= 4) FROM events")
        (verdict,) = [verdict for verdict in self.pipeline.verify() if verdict.dataset.table == "sums"]
        assert verdict.equal


def _rows(session: SparkSession, query: str) -> Sequence[tuple[Any, ...]]:
    return sorted((tuple(row) for row in session.sql(query).collect()), key=str)


@pytest.fixture
def events(tmp_path: Path, spark: SparkSession) -> Iterator[Events]:
    events = Events(tmp_path, spark)
    yield events
    events.pipeline.close()


def state(table: str) -> str:
    return f"default__{table}__0"


def test_crash_around_the_commit_of_a_merge(events: Events) -> None:
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
