"""Streaming tables: watermarks, windows, several batches per run, several flows, static joins, sinks."""

from __future__ import annotations

import pytest

from .conftest import Survey

pytestmark = pytest.mark.spark

WINDOWS = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

SCHEMA = "event_id STRING, user_id STRING, event_time TIMESTAMP, amount DOUBLE"


def source():
    return spark.readStream.format("json").schema(SCHEMA).option("maxFilesPerTrigger", 1).load("@IN@/events")


@dp.table(comment="Raw events with their file", table_properties={"quality": "bronze"})
def events():
    return source().select("*", F.col("_metadata.file_path").alias("source_file"))


@dp.table(name="sliding_totals")
def totals():
    return (
        source()
        .withWatermark("event_time", "10 minutes")
        .groupBy(F.window("event_time", "10 minutes", "5 minutes"), "user_id")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
        .select(F.col("window.start").alias("from"), "window.end", "user_id", "n", "amount")
    )


@dp.table
def tumbling():
    return (
        spark.readStream.table("events")
        .withWatermark("event_time", "10 minutes")
        .groupBy(F.window("event_time", "10 minutes"))
        .count()
    )


@dp.table
def unique_events():
    return (
        spark.readStream.table("events")
        .withWatermark("event_time", "1 hour")
        .dropDuplicatesWithinWatermark(["event_id"])
        .drop("source_file")
    )


@dp.materialized_view
def per_user():
    users = spark.read.table("unique_events").groupBy("user_id")
    return users.agg(F.countDistinct("event_id").alias("events"))
"""


def event(number: int, user: str, time: str, amount: float = 1.0) -> dict[str, object]:
    stamp = f"2026-03-01T{time}:00Z"
    return {"event_id": f"e{number}", "user_id": user, "event_time": stamp, "amount": amount}


@pytest.mark.slow
def test_windows(survey: Survey) -> None:
    survey.define("pipeline.py", WINDOWS)
    survey.json("events/1.json", event(1, "ann", "10:01"), event(2, "bob", "10:02"), event(1, "ann", "10:01"))
    survey.json("events/2.json", event(3, "ann", "10:31", 2.5))
    happened = survey.build()
    assert (
        len([event_fields for event_fields in happened.of("batch") if event_fields["flow"] == "events"]) == 2
    )
    sliding = "SELECT date_format(`from`, 'HH:mm'), user_id, n, amount FROM sliding_totals"
    first = [
        ("09:55", "ann", 2, 2.0),
        ("09:55", "bob", 1, 1.0),
        ("10:00", "ann", 2, 2.0),
        ("10:00", "bob", 1, 1.0),
    ]
    assert survey.rows(sliding) == first
    assert survey.rows("SELECT date_format(window.start, 'HH:mm'), count FROM tumbling") == [("10:00", 3)]
    assert survey.rows("SELECT * FROM per_user") == [("ann", 2), ("bob", 1)]
    files = survey.rows("SELECT source_file, count(*) FROM events GROUP BY 1")
    assert [(file.rsplit("/", 1)[1], n) for file, n in files] == [("1.json", 3), ("2.json", 1)]

    # e9 is late and dropped; e3 is a duplicate that is in the state of the first run.
    survey.json("events/3.json", event(9, "bob", "10:03"), event(3, "ann", "10:31"), event(4, "bob", "10:33"))
    survey.json("events/4.json", event(5, "bob", "11:31"))
    survey.run()
    assert survey.rows(sliding) == sorted(
        [
            *first,
            *(
                ("10:25", "ann", 2, 3.5),
                ("10:30", "ann", 2, 3.5),
                ("10:25", "bob", 1, 1.0),
                ("10:30", "bob", 1, 1.0),
            ),
        ]
    )
    assert survey.rows("SELECT date_format(window.start, 'HH:mm'), count FROM tumbling") == [
        ("10:00", 3),
        ("10:30", 3),
    ]
    assert survey.rows("SELECT event_id FROM unique_events") == [
        ("e1",),
        ("e2",),
        ("e3",),
        ("e4",),
        ("e5",),
        ("e9",),
    ]


FLOWS_SQL = """
CREATE STREAMING TABLE orders_all (id BIGINT, region STRING, amount DECIMAL(10, 2))
  COMMENT 'all regions' TBLPROPERTIES ('quality' = 'silver') PARTITIONED BY (region);

CREATE FLOW from_archive AS INSERT INTO orders_all BY NAME
  SELECT CAST(amount AS DECIMAL(10, 2)) AS amount, id, 'archive' AS region FROM STREAM(archive);

CREATE STREAMING TABLE with_names AS
  SELECT o.id, o.region, r.name FROM STREAM orders_all o LEFT JOIN regions r ON o.region = r.code;

CREATE MATERIALIZED VIEW by_region AS
  SELECT region, sum(amount) AS amount, count(DISTINCT id) AS n
  FROM orders_all GROUP BY region ORDER BY region
"""

FLOWS_PY = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit

spark = SparkSession.active()
SCHEMA = "id BIGINT, amount DOUBLE"

for region in ["eu", "us"]:

    @dp.append_flow(target="orders_all", name=f"from_{region}")
    def load(region=region):
        return (
            spark.readStream.schema(SCHEMA).json(f"@IN@/{region}")
            .select("id", col("amount").cast("decimal(10,2)").alias("amount"), lit(region).alias("region"))
        )


@dp.temporary_view
def archive_raw():
    return spark.readStream.schema(SCHEMA).json("@IN@/archive").where("id IS NOT NULL")


@dp.table
def archive():
    return spark.readStream.table("archive_raw")


@dp.materialized_view
def regions():
    return spark.createDataFrame([("eu", "Europe"), ("us", "America")], "code string, name string")


dp.create_sink("alerts", "console", {"truncate": "false"})


@dp.append_flow(target="alerts")
def alert_flow():
    return spark.readStream.table("orders_all").where("amount > 100")
"""


def test_flows_into_one_table(survey: Survey) -> None:
    survey.define("flows.sql", FLOWS_SQL)
    survey.define("flows.py", FLOWS_PY)
    survey.json("eu/1.json", {"id": 1, "amount": 10.5}, {"id": 2, "amount": 200})
    survey.json("us/1.json", {"id": 3, "amount": 1})
    survey.json("archive/1.json", {"id": 4, "amount": 4}, {"amount": 9})
    happened = survey.build()
    batches = [(batch["sink"], batch["rows"]) for batch in happened.of("sink_batch")]
    assert batches == [("alerts", 1)]
    named = "SELECT id, region, name FROM with_names"
    first = [(1, "eu", "Europe"), (2, "eu", "Europe"), (3, "us", "America"), (4, "archive", None)]
    assert survey.rows(named) == first
    survey.json("us/2.json", {"id": 5, "amount": 2.25})
    survey.json("archive/2.json", {"id": 6, "amount": 1})
    survey.build()
    assert survey.rows(named) == [*first, (5, "us", "America"), (6, "archive", None)]
    totals = survey.rows("SELECT region, CAST(amount AS DOUBLE), n FROM by_region")
    assert totals == [("archive", 5.0, 2), ("eu", 210.5, 2), ("us", 3.25, 2)]
