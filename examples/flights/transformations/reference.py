"""Airlines, airports and planes: small CSV files that exist from the beginning."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
INPUT = os.environ.get("FLIGHTS_INPUT", str(Path(__file__).resolve().parents[1] / "input"))


def csv_stream(folder: str, schema: str) -> DataFrame:
    return spark.readStream.schema(schema).option("header", "true").csv(f"{INPUT}/{folder}")


@dp.table(comment="Carrier codes and names")
def airlines() -> DataFrame:
    return csv_stream("airlines", "carrier STRING, name STRING")


@dp.table(comment="Airports of the United States; some destinations outside are missing")
def airports() -> DataFrame:
    return csv_stream(
        "airports",
        "faa STRING, name STRING, lat DECIMAL(9,6), lon DECIMAL(9,6), alt INT, tz INT, "
        "dst STRING, tzone STRING",
    )


@dp.table(comment="Aircraft; about one tail number in six is unknown")
def planes() -> DataFrame:
    return csv_stream(
        "planes",
        "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, "
        "seats INT, speed INT, engine STRING",
    )
