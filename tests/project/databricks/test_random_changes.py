"""Random changes under views with expectations: rows and counts are those of plain Spark."""

from __future__ import annotations

import random

import pytest

from .conftest import DialectProject

pytestmark = pytest.mark.spark

QUERIES = {
    "filtered": "SELECT k, v, v + w AS s FROM items WHERE k % 7 <> 0",
    "joined": "SELECT i.k, i.v, n.name FROM items i LEFT JOIN names n ON i.k % 5 = n.id",
    "grouped": "SELECT k % 10 AS g, sum(v) AS v, count(*) AS n FROM items GROUP BY k % 10",
    "newest": "SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY w, v) r FROM items) "
    "WHERE r = 1",
}
CONDITIONS = {
    "filtered": {"warn": "s > 0", "drop": "v > -5 AND s IS NOT NULL"},
    "joined": {"warn": "name <> 'b'", "drop": "name IS NOT NULL OR v > 0"},
    "grouped": {"warn": "v % 2 = 0", "drop": "n > 3"},
    "newest": {"warn": "v < 10", "drop": "k <> 3"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rounds"), [(1, 2), (2, 4)])
def test_rows_and_counts_are_those_of_plain_spark(project: DialectProject, seed: int, rounds: int) -> None:
    rng, sql = random.Random(seed), project.pipeline.session.sql
    sql("CREATE TABLE lake.default.items (k INT, v INT, w INT) USING iceberg")
    sql("CREATE TABLE lake.default.names (id INT, name STRING) USING iceberg")
    sql("INSERT INTO lake.default.names VALUES (0, 'a'), (1, 'b'), (2, 'c')")
    sql("INSERT INTO lake.default.items SELECT id % 60, id % 23 - 9, id % 13 - 4 FROM range(400)")
    for view, query in QUERIES.items():
        project.define(
            f"{view}.sql",
            f"""
            CREATE OR REFRESH MATERIALIZED VIEW {view} (
              CONSTRAINT warn EXPECT ({CONDITIONS[view]["warn"]}),
              CONSTRAINT drop EXPECT ({CONDITIONS[view]["drop"]}) ON VIOLATION DROP ROW
            ) TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental') AS {query}
            """,
        )
    project.build()
    for _ in range(rounds):
        for _ in range(5):
            change(project, rng)
        events = project.run()
        assert {project.verdicts[view] for view in QUERIES} == {True}
        sql("USE lake.default")
        counted = {
            status.dataset.table: {count.name: count.violations for count in status.expectations}
            for status in project.pipeline.job.store.datasets.statuses()
        }
        for view, query in QUERIES.items():
            conditions = CONDITIONS[view].items()
            flags = ", ".join(f"count_if(NOT coalesce({c}, false)) AS `{n}`" for n, c in conditions)
            assert counted[view] == sql(f"SELECT {flags} FROM ({query})").collect()[0].asDict(), view
    assert {events.mode(view)[0] for view in QUERIES} <= {"incremental", "append"}


def change(project: DialectProject, rng: random.Random) -> None:
    """One commit of somebody else."""
    k, v = rng.randrange(60), rng.randrange(-12, 15)
    statement = rng.choice(
        [
            f"INSERT INTO lake.default.items VALUES ({k}, {v}, {rng.choice(['NULL', '1', '-3'])})",
            f"INSERT INTO lake.default.items SELECT id % 60, {v}, 2 FROM range({k})",
            f"DELETE FROM lake.default.items WHERE k = {k}",
            f"UPDATE lake.default.items SET v = {v} WHERE k BETWEEN {k} AND {k + 3}",
            f"UPDATE lake.default.names SET name = '{rng.choice('abz')}' WHERE id = {k % 3}",
        ]
    )
    project.pipeline.session.sql(statement)
