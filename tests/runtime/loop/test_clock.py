"""Views that ask for the time: it is that of the checkpoint, and an input like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.cut import take_cut
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.loop.takeover import take_over

pytestmark = pytest.mark.spark

HOUR = 3_600_000_000
NOON = 1_750_000_000_000_000 // (24 * HOUR) * 24 * HOUR + 12 * HOUR
"""Of some day in 2025, in UTC."""

VIEWS = """
CREATE MATERIALIZED VIEW recent TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict') AS
SELECT id, at FROM src.events WHERE at > now() - INTERVAL 2 HOURS;

CREATE MATERIALIZED VIEW aged TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict') AS
SELECT id, timestampdiff(HOUR, at, current_timestamp()) AS hours, localtimestamp() AS seen FROM src.events;

CREATE MATERIALIZED VIEW by_day TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict') AS
SELECT datediff(current_date(), CAST(at AS DATE)) AS days, count(*) AS n,
  sum(CASE WHEN CAST(at AS DATE) = current_date() THEN 1 ELSE 0 END) AS today
FROM src.events GROUP BY datediff(current_date(), CAST(at AS DATE));

CREATE MATERIALIZED VIEW computed TBLPROPERTIES ('tautochrone.refresh-policy' = 'full') AS
SELECT id, current_date() AS day FROM src.events;
"""

TIMELESS = "CREATE MATERIALIZED VIEW recent AS SELECT id, at FROM src.events;"
TIMED = (
    "CREATE MATERIALIZED VIEW recent AS SELECT id, at FROM src.events WHERE at > now() - INTERVAL 2 HOURS;"
)


class Clocked:
    """A pipeline whose job is told the time."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.pipeline.write("definitions/views.sql", VIEWS)
        self.micros = NOON

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.pipeline.session.sql(statement).collect()

    def event(self, number: int, hours_ago: float) -> None:
        micros = self.micros - int(hours_ago * HOUR)
        self.sql(f"INSERT INTO lake.src.events VALUES ({number}, timestamp_micros({micros}))")

    def run(self) -> Happened:
        with self.pipeline.opened() as (job, happened):
            job.clock_us = lambda: self.micros
            Run(job, select(job.topology, (), (), everything=False)).once()
        assert not [event for event in happened if "error" in event], list(happened)
        return happened

    def rows(self, view: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in self.pipeline.session.table(f"lake.default.{view}").collect())


@pytest.fixture
def clocked(tmp_path: Path, spark: SparkSession) -> Iterator[Clocked]:
    pipeline = Clocked(tmp_path, spark)
    pipeline.sql(
        "CREATE NAMESPACE IF NOT EXISTS lake.src",
        "CREATE TABLE lake.src.events (id INT, at TIMESTAMP) USING iceberg",
    )
    yield pipeline
    pipeline.pipeline.close()


def test_views_stand_at_their_checkpoints_time(clocked: Clocked) -> None:
    for number, hours in enumerate((0.5, 1.5, 3, 30)):
        clocked.event(number, hours)
    clocked.run()
    assert [row[0] for row in clocked.rows("recent")] == [0, 1]
    assert clocked.rows("by_day") == [(0, 3, 3), (1, 1, 0)]

    clocked.micros += HOUR
    clocked.event(9, 0)
    happened = clocked.run()
    assert [row[0] for row in clocked.rows("recent")] == [0, 9]
    recent = happened.refresh("recent")
    assert (recent["mode"], recent["rows_inserted"], recent["rows_deleted"]) == ("incremental", 1, 1)
    assert happened.refresh("aged")["mode"] == "incremental"
    # What asks for the date only is not touched by an hour.
    assert happened.refresh("by_day")["rows_deleted"] == 1

    # Time alone opens no checkpoint, a new date does.
    clocked.micros += HOUR
    assert clocked.run().of("no_news")
    clocked.micros += 24 * HOUR
    happened = clocked.run()
    assert happened.of("checkpoint")
    assert clocked.rows("by_day") == [(1, 4, 0), (2, 1, 0)]
    assert clocked.rows("recent") == []
    assert {verdict.equal for verdict in clocked.pipeline.verify()} == {True}

    # An older checkpoint keeps its time.
    assert {verdict.equal for verdict in clocked.pipeline.verify(1)} == {True}


def test_what_was_cut_before_the_query_asked_for_the_time_has_none(clocked: Clocked) -> None:
    clocked.pipeline.write("definitions/views.sql", TIMELESS)
    clocked.event(1, 1)
    clocked.run()
    with clocked.pipeline.opened() as (job, _):
        # As a process leaves it that dies right after its cut.
        take_over(job)
        cut = take_cut(job, job.store.now_ms(), {})
        unfinished = job.journal.open(NewCheckpoint(cut.roots, cut.taken_at_us // 1000))
    clocked.pipeline.write("definitions/views.sql", TIMED)

    with clocked.pipeline.opened():
        (before,) = clocked.pipeline.verify(1)
    assert before.equal is None
    assert before.reason == "checkpoint 1 does not tell the time, which its query asks for"

    happened = clocked.run()
    (aborted,) = happened.of("checkpoint_aborted")
    assert aborted["checkpoint"] == unfinished.number
    assert aborted["reason"].startswith("its cut has no version of tautochrone.clock.now")
    assert happened.checkpoints == [unfinished.number + 1]
    assert [verdict.equal for verdict in clocked.pipeline.verify()] == [True]
