"""What happened to each flight, as JSON in a topic: scheduled, departed, arrived."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

# The same as in `transformations/events.py`.
EVENT = """
    kind STRING, event_time TIMESTAMP,
    flight_date DATE, carrier STRING, flight INT, origin STRING, dest STRING,
    scheduled_departure TIMESTAMP, scheduled_hour INT,
    tailnum STRING, distance_miles INT, delay_minutes INT, air_minutes INT
"""


@dp.table(comment="Reports about flights, in the order in which they were delivered")
def events() -> DataFrame:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["FLIGHTS_BROKER"])
        .option("subscribe", "flight-reports")
        .option("startingOffsets", "earliest")
        .load()
    )
    # Records that are no reports fail, and go into quarantine (`bad_records` in tautochrone.toml).
    report = sf.from_json(sf.col("value").cast("string"), EVENT, {"mode": "FAILFAST"})
    return records.select(report.alias("report")).select("report.*")
