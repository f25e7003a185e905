"""An aggregate that occurs twice in a query is refreshed once and has one state."""

from __future__ import annotations

import pytest

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

QUERIES = {
    # Spark copies the subquery to both sides of the join.
    "chosen": "SELECT a.k, count(*) AS n FROM src.x a JOIN src.x b ON a.k = b.k "
    "WHERE a.k IN (SELECT k FROM src.x GROUP BY k HAVING sum(v) > 40) GROUP BY a.k",
    "named_twice": "WITH t AS (SELECT k, count(*) AS n FROM src.x GROUP BY k) "
    "SELECT a.k, a.n, b.n AS other FROM t a FULL JOIN t b ON a.k = b.k + 1",
    "other_rows": "SELECT a.k, a.s, b.s AS less FROM (SELECT k, sum(v) AS s FROM src.x GROUP BY k) a "
    "JOIN (SELECT k, sum(v) AS s FROM src.x WHERE v < 5 GROUP BY k) b ON a.k = b.k",
    "other_function": "SELECT a.k, a.s, b.s AS most FROM (SELECT k, sum(v) AS s FROM src.x GROUP BY k) a "
    "JOIN (SELECT k, max(v) AS s FROM src.x GROUP BY k) b ON a.k = b.k",
}
STATES = {"chosen": 2, "named_twice": 1, "other_rows": 2, "other_function": 2}
"""Sums of the filter and counts; counts; sums of other rows; another function of the same rows."""


@pytest.fixture
def testbed(testbed: ViewTestbed) -> ViewTestbed:
    testbed.sql("CREATE NAMESPACE lake.src")
    return testbed


def test_equal_aggregates_share_one_state(testbed: ViewTestbed) -> None:
    testbed.sql(
        "CREATE TABLE lake.src.x USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id % 9 AS k, id % 13 AS v FROM range(200)"
    )
    for name, query in QUERIES.items():
        testbed.view(name, query)
    testbed.checkpoint()
    tables = [
        row["tableName"] for row in testbed.external_session.sql("SHOW TABLES IN lake._tautochrone").collect()
    ]
    assert {name: sum(f"__{name}__" in table for table in tables) for name in QUERIES} == STATES
    testbed.sql(
        "INSERT INTO lake.src.x VALUES (3, 40), (20, 1), (NULL, 2)",
        "DELETE FROM lake.src.x WHERE k = 5",
        "UPDATE lake.src.x SET k = 4 WHERE v = 12",
    )
    testbed.checkpoint(restart=False)
