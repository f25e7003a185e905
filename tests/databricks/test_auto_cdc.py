"""AUTO CDC end to end, with the sample of Databricks' documentation."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import DialectProject

pytestmark = pytest.mark.spark

PYTHON = """
import dlt
from pyspark.sql.functions import col, expr

@dlt.table
def cdc_events():
    return spark.readStream.schema(
        "userId INT, name STRING, city STRING, operation STRING, sequenceNum BIGINT"
    ).json("@IN@/users")

dlt.create_streaming_table("target")

dlt.create_auto_cdc_flow(
    target="target",
    source="cdc_events",
    keys=["userId"],
    sequence_by=col("sequenceNum"),
    apply_as_deletes=expr("operation = 'DELETE'"),
    except_column_list=["operation", "sequenceNum"],
    stored_as_scd_type=1,
)
"""


def event(
    user: int | None, name: str | None, city: str | None, operation: str, sequence: int
) -> dict[str, Any]:
    return {"userId": user, "name": name, "city": city, "operation": operation, "sequenceNum": sequence}


EVENTS = [
    event(124, "Raul", "Oaxaca", "INSERT", 1),
    event(123, "Isabel", "Monterrey", "INSERT", 1),
    event(125, "Mercedes", "Tijuana", "INSERT", 2),
    event(126, "Lily", "Cancun", "INSERT", 2),
    event(123, None, None, "DELETE", 6),
    event(125, "Mercedes", "Guadalajara", "UPDATE", 6),
    event(125, "Mercedes", "Mexicali", "UPDATE", 5),
    event(123, "Isabel", "Chihuahua", "UPDATE", 5),
]


def test_newest_row_of_each_key(project: DialectProject) -> None:
    project.define("users.py", PYTHON)
    project.json("users/1.json", *EVENTS[:5])
    project.run()
    assert project.rows("SELECT * FROM target") == [
        (124, "Raul", "Oaxaca"),
        (125, "Mercedes", "Tijuana"),
        (126, "Lily", "Cancun"),
    ]
    project.json("users/2.json", *EVENTS[5:])
    happened = project.run()
    assert project.rows("SELECT * FROM target") == [
        (124, "Raul", "Oaxaca"),
        (125, "Mercedes", "Guadalajara"),
        (126, "Lily", "Cancun"),
    ]
    assert happened.mode("target")[0] == "incremental"
