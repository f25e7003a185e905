"""An aggregate that a query holds twice is followed once, with one state."""

from __future__ import annotations

import pytest

from .stand import Stand

pytestmark = pytest.mark.spark

QUERIES = {
    # Spark asks for the groups on both sides of the join.
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
"""Sums to choose by, and the counts; the counts; sums of other rows; another function of the same rows."""


@pytest.fixture
def stand(stand: Stand) -> Stand:
    stand.sql("CREATE NAMESPACE lake.src")
    return stand


def test_the_same_groups_are_followed_once(stand: Stand) -> None:
    stand.sql(
        "CREATE TABLE lake.src.x USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id % 9 AS k, id % 13 AS v FROM range(200)"
    )
    for name, query in QUERIES.items():
        stand.view(name, query)
    stand.checkpoint()
    tables = [row["tableName"] for row in stand.outside.sql("SHOW TABLES IN lake._tautochrone").collect()]
    assert {name: sum(f"__{name}__" in table for table in tables) for name in QUERIES} == STATES
    stand.sql("INSERT INTO lake.src.x VALUES (3, 40), (20, 1), (NULL, 2)")
    stand.checkpoint(restart=False)
    stand.sql("DELETE FROM lake.src.x WHERE k = 5", "UPDATE lake.src.x SET k = 4 WHERE v = 40")
    stand.checkpoint(restart=False)
