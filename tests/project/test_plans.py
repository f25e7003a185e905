"""Replacing the leaves of an analysed plan, as incremental refreshes do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from tautochrone.model.names import TableName
from tautochrone.spark.analysis.analyzed_plan import substitute_leaves

pytestmark = pytest.mark.spark

TABLE = TableName("lake", ("plans",), "t")


@pytest.fixture(scope="module")
def snapshots(spark: SparkSession) -> Iterator[list[str]]:
    """A table with three appends, and their snapshot ids."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.plans")
    spark.sql(f"CREATE TABLE {TABLE.sql} (id BIGINT, v STRING) USING iceberg")
    for number in range(3):
        spark.sql(f"INSERT INTO {TABLE.sql} VALUES ({number}, 'v{number}')")
    rows = spark.sql("SELECT snapshot_id FROM lake.plans.t.snapshots ORDER BY committed_at").collect()
    yield [str(row.snapshot_id) for row in rows]
    spark.sql(f"DROP TABLE {TABLE.sql} PURGE")


def test_delta_of_a_linear_query(spark: SparkSession, snapshots: list[str]) -> None:
    frame = spark.sql("SELECT upper(v) AS v FROM lake.plans.t WHERE id > 0")
    options = {"start-snapshot-id": snapshots[1], "end-snapshot-id": snapshots[2]}
    delta = substitute_leaves(spark, frame, lambda table, _: options if table == TABLE else {}, "lake")
    assert [row.v for row in delta.collect()] == ["V2"]
    assert sorted(row.v for row in frame.collect()) == ["V1", "V2"]


def test_each_occurrence_of_a_table_has_its_own_options(spark: SparkSession, snapshots: list[str]) -> None:
    frame = spark.sql("SELECT l.id, r.id AS other FROM lake.plans.t l JOIN lake.plans.t r ON l.id <= r.id")
    indexes: list[int] = []

    def newest_on_the_right(table: TableName, index: int) -> Mapping[str, str]:
        indexes.append(index)
        return {"snapshot-id": snapshots[index * 2]}

    result = substitute_leaves(spark, frame, newest_on_the_right, "lake")
    assert indexes == [0, 1]
    assert sorted(tuple(row) for row in result.collect()) == [(0, 0), (0, 1), (0, 2)]


def test_none_means_no_rows(spark: SparkSession, snapshots: list[str]) -> None:
    frame = spark.sql("SELECT id FROM lake.plans.t UNION ALL SELECT id FROM lake.plans.t")
    result = substitute_leaves(spark, frame, lambda _, index: {} if index == 0 else None, "lake")
    assert sorted(row.id for row in result.collect()) == [0, 1, 2]


def test_a_plan_moves_to_another_session(spark: SparkSession, snapshots: list[str]) -> None:
    new_session = spark.newSession()
    frame = spark.table("lake.plans.t")
    moved = substitute_leaves(new_session, frame, lambda *_: {"snapshot-id": snapshots[0]}, "lake")
    assert moved.sparkSession is new_session
    assert moved.count() == 1
