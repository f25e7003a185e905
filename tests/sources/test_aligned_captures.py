"""Cuts over two captured databases are aligned by the commit times of their transactions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.harness import Pipeline

from tautochrone.errors import IngestError
from tautochrone.model.source import LogBatch
from tautochrone.model.source_position import LogPosition
from tautochrone.testing.toy_database import Change, ToyChangeLog, ToyDatabase

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOUR = 3_600_000

PROJECT = """
    from pyspark import pipelines as dp
    from tautochrone.testing import toy_database

    toy_database.register(spark)

    def capture(name):
        @dp.table(name=f"{{name}}_log", table_properties={{"tautochrone.commit-time": "committed_at"}})
        def log():
            return toy_database.stream(spark, {folder!r} + f"/{{name}}.db")

        @dp.table(
            name=name,
            table_properties={{
                "tautochrone.apply.keys": "id",
                "tautochrone.apply.sequence": "point, sequence",
                "tautochrone.apply.delete": "operation = 'delete'",
                "tautochrone.apply.relation": "accounts",
            }},
        )
        def accounts():
            events = spark.readStream.table(f"{{name}}_log")
            return events.where("relation = 'accounts' AND operation <> 'completed'").select(
                "id", "amount", "operation", "point", "sequence"
            )

    capture("east")
    capture("west")

    @dp.materialized_view
    def both():
        return spark.sql("SELECT e.id, w.amount AS west FROM east e LEFT JOIN west w USING (id)")
"""


def test_database_that_is_behind_holds_the_other_one_back(pipeline: Pipeline, tmp_path: Path) -> None:
    east, west = (ToyDatabase(tmp_path / f"{name}.db") for name in ("east", "west"))
    settings = "[run]\nalign = '1h'\n[flows.east_log]\nmax_events_per_trigger = 1\n"
    pipeline.write("tautochrone.toml", settings + "[flows.west_log]\nmax_events_per_trigger = 1\n")
    pipeline.reload()
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(tmp_path)))
    began_ms = time.time_ns() // 1_000_000
    for database in (east, west):
        database.transaction(Change("accounts", 0, 0))
    # Rows that were copied have no commit time: nobody waits for one.
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT id, west FROM both") == [(0, 0)]
    points = [
        database.transaction(Change("accounts", hour, hour), committed_at_ms=began_ms + hour * HOUR)
        for database in (east, west)
        for hour in range(1, 4)
    ]
    read = ToyChangeLog.read

    def read_a_part(log: ToyChangeLog, after: LogPosition, max_events: int) -> LogBatch:
        if "west" in log.name and after.point == points[3]:
            raise IngestError("FLOW_FAILED", "the database does not answer")
        return read(log, after, max_events)

    with patch.object(ToyChangeLog, "read", read_a_part):
        happened = pipeline.run()
    assert happened.state == "FAILED"
    (aligned,) = happened.of("cut_aligned")
    assert (aligned["root"], aligned["behind"]) == ("lake.default.east_log", "lake.default.west_log")
    assert pipeline.query("SELECT id, west FROM both ORDER BY id") == [(0, 0), (1, 1), (2, None)]
    pipeline.verify()

    assert pipeline.run().state == "COMPLETED"
    expected: list[Any] = [(hour, hour) for hour in range(4)]
    assert pipeline.query("SELECT id, west FROM both ORDER BY id") == expected
    pipeline.verify()
