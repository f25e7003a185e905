"""Comparing queries on which Spark's optimizer fails below a union."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.spark.execute.multiset_diff import diff_sizes

pytestmark = pytest.mark.spark

PARTS = "(VALUES (1), (2), (3)) AS part(p)"
LINES = "(VALUES (1, 10), (1, 11), (2, 5)) AS line(l, q)"


def test_correlated_scalar_subquery(spark: SparkSession) -> None:
    query = f"SELECT p, (SELECT max(q) FROM {LINES} WHERE l = p) AS largest FROM {PARTS} WHERE p < 9"
    assert diff_sizes(spark.sql(query), spark.sql(query)) == (0, 0)
    assert diff_sizes(spark.sql(query), spark.sql(f"{query} AND p > 1")) == (1, 0)
    assert spark.conf.get("spark.sql.constraintPropagation.enabled") == "true"
