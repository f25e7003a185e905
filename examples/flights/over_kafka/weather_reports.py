"""Hourly weather at the three airports, as Avro in a topic."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

spark = SparkSession.active()
SCHEMA = Path(__file__).resolve().parents[1] / "schemas" / "observation.avsc"

# Decimals, not doubles: what is summed or compared later must not depend on the order of rows.
NUMBERS = {
    "temp": "DECIMAL(6,2)", "dewp": "DECIMAL(6,2)", "humid": "DECIMAL(6,2)", "wind_dir": "INT",
    "wind_speed": "DECIMAL(9,5)", "wind_gust": "DECIMAL(9,5)",
    "precip": "DECIMAL(6,2)", "pressure": "DECIMAL(6,1)", "visib": "DECIMAL(6,2)",
}  # fmt: skip


def observed(records: DataFrame) -> DataFrame:
    row = records.select(from_avro("value", SCHEMA.read_text()).alias("row"))
    numbers = [sf.col(f"row.{name}").cast(kind).alias(name) for name, kind in NUMBERS.items()]
    return row.select("row.origin", "row.observed_at", *numbers)


@dp.temporary_view
def weather_reports() -> DataFrame:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["FLIGHTS_BROKER"])
        .option("subscribe", "weather")
        .option("startingOffsets", "earliest")
        .load()
    )
    return observed(records)
