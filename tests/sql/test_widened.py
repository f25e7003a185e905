"""A column gets another type, and a function of it no longer has the state that it had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .stand import Stand

pytestmark = pytest.mark.spark


MERGE = "USING iceberg TBLPROPERTIES ('format-version' = '3')"


@pytest.fixture
def stand(tmp_path: Path, spark: SparkSession) -> Iterator[Stand]:
    made = Stand(tmp_path, spark)
    made.sql("CREATE NAMESPACE lake.src")
    yield made
    made.close()


def test_a_state_that_the_plan_no_longer_has(stand: Stand) -> None:
    """Else rows that its sums gave would be looked for as the whole computation gives them."""
    stand.sql(
        f"CREATE TABLE lake.src.t (k INT, x INT) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 10), (1, 25), (2, 3), (2, 7), (2, -2147483648)",
    )
    stand.view("spread", "SELECT k, stddev(x) AS s FROM src.t GROUP BY k")
    stand.checkpoint()
    stand.sql("INSERT INTO lake.src.t VALUES (1, 31)", "DELETE FROM lake.src.t WHERE x < 0")
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


def test_sums_of_another_scale_are_another_state(stand: Stand) -> None:
    stand.sql(
        f"CREATE TABLE lake.src.t (k INT, d DECIMAL(9,2)) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1.25), (1, 2.50)",
    )
    stand.view("spread", "SELECT k, var_pop(d) AS v FROM src.t GROUP BY k")
    stand.checkpoint()
    stand.sql(
        "ALTER TABLE lake.src.t DROP COLUMN d",
        "ALTER TABLE lake.src.t ADD COLUMN d DECIMAL(9,4)",
        "INSERT INTO lake.src.t VALUES (1, 1.2525), (1, 2.5001), (1, 3.0000)",
    )
    refresh = stand.checkpoint(allowed={"spread"}).refresh("spread")
    assert refresh["mode"] == "full"
    assert "of other types" in refresh["reason"]
