"""What happened to each flight, as it is reported: scheduled, departed, arrived."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
INPUT = os.environ.get("FLIGHTS_INPUT", str(Path(__file__).resolve().parents[1] / "input"))

# Every report names its flight in full, because reports overtake one another: "arrived" may be
# here before "departed". Only what a kind of report knows is set: the aircraft by "scheduled",
# the delay by the other two (NULL when a diverted flight landed elsewhere), the time in the air
# by "arrived".
EVENT = """
    kind STRING, event_time TIMESTAMP,
    flight_date DATE, carrier STRING, flight INT, origin STRING, dest STRING,
    scheduled_departure TIMESTAMP, scheduled_hour INT,
    tailnum STRING, distance_miles INT, delay_minutes INT, air_minutes INT
"""


@dp.table(comment="Reports about flights, in the order in which they were delivered")
def events() -> DataFrame:
    return spark.readStream.schema(EVENT).json(f"{INPUT}/events")
