"""Hourly weather at the three airports, as the stations send it."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
INPUT = os.environ.get("FLIGHTS_INPUT", str(Path(__file__).resolve().parents[1] / "input"))

# Decimals, not doubles: what is summed or compared later must not depend on the order of rows.
REPORT = """
    origin STRING, observed_at TIMESTAMP, temp DECIMAL(6,2), dewp DECIMAL(6,2),
    humid DECIMAL(6,2), wind_dir INT, wind_speed DECIMAL(9,5), wind_gust DECIMAL(9,5),
    precip DECIMAL(6,2), pressure DECIMAL(6,1), visib DECIMAL(6,2)
"""


@dp.temporary_view
def weather_reports() -> DataFrame:
    return spark.readStream.schema(REPORT).json(f"{INPUT}/weather")
