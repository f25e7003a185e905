"""The demo's chart reads a mirror of ClickHouse's embedded engine at the pointer."""

from __future__ import annotations

import datetime as dt
import tomllib
from contextlib import closing
from pathlib import Path

from examples.flights.clickhouse import chart, url_of
from pyspark.sql import types as spark

from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, TransactionId
from tautochrone.sinks import open_sink
from tautochrone.testing.sink_conformance import begin
from tautochrone.testing.sqlite_sink import ListRows

from .conftest import ROOT

SCHEMA = spark.StructType(
    [
        spark.StructField("flight_date", spark.DateType()),
        spark.StructField("scheduled_hour", spark.IntegerType()),
        spark.StructField("origin", spark.StringType()),
        spark.StructField("departed", spark.LongType()),
        spark.StructField("delay_minutes", spark.LongType()),
    ]
)
DAY = dt.date(2013, 1, 1)


def test_the_chart_sums_departures_by_hour(tmp_path: Path) -> None:
    text = (ROOT / "examples/flights/to_clickhouse/tautochrone.toml").read_text()
    settings = tomllib.loads(text)["sinks"]["dashboard"]
    folder = tmp_path / "a folder"
    options = settings["options"] | {"url": url_of(folder)}
    table, fence = TableName("lake", ("default",), "departures"), Fence(1)
    rows = [(DAY, 17, "JFK", 4, 80), (DAY, 17, "EWR", 1, 20), (DAY, 5, "LGA", 2, -3), (DAY, 6, "LGA", 0, 0)]
    with closing(open_sink("dashboard", settings["format"], options)) as sink:
        sink.fence(fence)
        sink.ensure(table, SCHEMA, (), fence)
        for number, change in (
            (3, RowChange(added=ListRows(SCHEMA.names, rows[1:]), rows=3)),
            (7, RowChange(added=ListRows(SCHEMA.names, rows[:1]), rows=1)),
        ):
            transaction = TransactionId(
                incarnation="store", sink="dashboard", checkpoint=CheckpointNumber(number), fence=fence
            )
            begin(sink, Intent(transaction=transaction, versions={table: Version(str(number))}))
            sink.prepare(transaction, sink.write(transaction, table, change))
            sink.commit(transaction, fence)
    drawn = chart(folder)
    assert drawn.checkpoint == 7
    assert [hour.numbers for hour in drawn.hours] == [(5, 2, -3), (17, 5, 100)]
    assert str(drawn.hours[1]) == "17 h   20.0  " + "█" * 16
