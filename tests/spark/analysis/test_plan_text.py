"""The text of a plan is the same each time a query is analysed: what Spark counts or draws is not in it."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.project.session_settings import SECRET
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, plan_text

pytestmark = pytest.mark.spark

_SEEDED = frozenset({"rand", "randn", "random", "shuffle", "uuid"})
"""Functions for which Spark draws a seed. A definition with them is evaluated twice."""

QUERIES = [
    "SELECT id FROM range(9) WHERE id BETWEEN 2 AND 5 OR id NOT BETWEEN 1 AND 7",
    "SELECT CASE WHEN id BETWEEN 1 AND 2 THEN 'a' END, nullif(id, 3) FROM range(3)",
    "SELECT count_if(id % 2 = 0), regexp_substr(max(CAST(id AS STRING)), '1') FROM range(9)",
    "WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT sum(n) FROM t",
    "WITH c AS (SELECT 1 AS x) SELECT * FROM c a JOIN c b",
    "SELECT a + 1 AS b, b + 1 AS c FROM (SELECT id AS a FROM range(3))",
    "SELECT id, (SELECT max(id) FROM range(3)) FROM range(2) t WHERE id IN (SELECT id FROM range(9))",
    "SELECT * FROM range(2) t WHERE EXISTS (SELECT 1 FROM range(3) u WHERE u.id = t.id)",
    "SELECT * FROM range(9) |> WHERE id > 1 |> AGGREGATE count(*) AS n GROUP BY id",
    "SELECT transform(array(1, 2), x -> size(transform(array(x), y -> x + y)))",
    "SELECT * FROM (SELECT id, id % 2 AS k FROM range(4)) PIVOT (sum(id) FOR k IN (0, 1))",
    "SELECT * FROM range(4) UNPIVOT (v FOR k IN (id))",
    "SELECT window(timestamp_seconds(id), '5 seconds'), count(*) FROM range(9) GROUP BY 1",
    "SELECT session_window(timestamp_seconds(id), '5 seconds'), count(*) FROM range(9) GROUP BY 1",
    "SELECT id, lag(id) OVER (ORDER BY id), percent_rank() OVER (ORDER BY id) FROM range(3)",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM range(9) GROUP BY ROLLUP(id % 2)",
    "SELECT * FROM range(3) t, LATERAL (SELECT t.id + 1 AS y), LATERAL explode(array(y)) AS e(z)",
]


def text(session: SparkSession, query: str) -> tuple[str, ...]:
    return plan_text(session, analyzed_plan(session.sql(query)), SECRET).tokens


def examples(session: SparkSession) -> dict[str, list[str]]:
    """By function the queries of its documentation."""
    names = session.sql("SHOW SYSTEM FUNCTIONS FROM spark_catalog.default").collect()
    queries = {}
    for (name,) in names:
        described = session.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
        queries[name] = re.findall(r"> (SELECT.*?);", "\n".join(row[0] for row in described), re.DOTALL)
    return queries


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_has_the_same_text_each_time(spark: SparkSession, query: str) -> None:
    assert text(spark, query) == text(spark, query)


@pytest.mark.slow
def test_every_function_has_the_same_text_each_time(spark: SparkSession) -> None:
    different, compared = [], 0
    for name, queries in examples(spark).items():
        for query in queries:
            try:
                first = text(spark, query)
            except (PySparkException, Py4JJavaError):
                continue  # Some examples show an error.
            compared += 1
            if first != text(spark, query) and name not in _SEEDED:
                different.append(query)
    assert compared > 1000
    assert different == []


def test_seeds_are_in_the_text(spark: SparkSession) -> None:
    for name in _SEEDED:
        query = f"SELECT {name}({'array(1, 2, 3)' if name == 'shuffle' else ''})"
        assert text(spark, query) != text(spark, query)
