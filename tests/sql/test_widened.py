"""A column gets a wider type, and a function of it no longer has the state that it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .stand import Stand

pytestmark = pytest.mark.spark


def test_a_state_that_the_plan_no_longer_has(tmp_path: Path, spark: SparkSession) -> None:
    """Else rows that its sums gave would be looked for as the whole computation gives them."""
    stand = Stand(tmp_path, spark)
    try:
        stand.sql(
            "CREATE NAMESPACE lake.src",
            "CREATE TABLE lake.src.t (k INT, x INT) USING iceberg TBLPROPERTIES ('format-version' = '3')",
            "INSERT INTO lake.src.t VALUES (1, 10), (1, 25), (2, 3), (2, 7)",
        )
        stand.view("spread", "SELECT k, stddev(x) AS s FROM src.t GROUP BY k")
        stand.checkpoint()
        stand.sql("INSERT INTO lake.src.t VALUES (1, 31)")
        assert stand.checkpoint().refresh("spread")["mode"] == "incremental"
        stand.sql(
            "ALTER TABLE lake.src.t ALTER COLUMN x TYPE BIGINT",
            "INSERT INTO lake.src.t VALUES (1, 5000000000)",
        )
        refresh = stand.checkpoint(allowed={"spread"}).refresh("spread")
        assert refresh["mode"] == "full"
        assert "no longer has the state" in refresh["reason"]
        stand.sql("DELETE FROM lake.src.t WHERE x = 31")
        assert stand.checkpoint().refresh("spread")["mode"] == "incremental"
    finally:
        stand.close()
