"""Comparing two relations: queries on which Spark's optimizer fails below a union, few rows and many."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tautochrone.model import limits
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.spark.execute.multiset_diff import DriverDiff, MultisetDiff, diff_sizes, multiset_diff

pytestmark = pytest.mark.spark

PARTS = "(VALUES (1), (2), (3)) AS part(p)"
LINES = "(VALUES (1, 10), (1, 11), (2, 5)) AS line(l, q)"


def test_correlated_scalar_subquery(spark: SparkSession) -> None:
    query = f"SELECT p, (SELECT max(q) FROM {LINES} WHERE l = p) AS largest FROM {PARTS} WHERE p < 9"
    assert diff_sizes(spark.sql(query), spark.sql(query)) == (0, 0)
    assert diff_sizes(spark.sql(query), spark.sql(f"{query} AND p > 1")) == (1, 0)
    assert spark.conf.get("spark.sql.constraintPropagation.enabled") == "true"


ROW = "id INT, amount DOUBLE, tags MAP<STRING, INT>"
ROWS = [
    (1, 1.0, {"a": 1}),
    (1, 1.0, {"a": None}),
    (2, float("nan"), None),
    (3, None, {}),
    (4, 0.5, {"b": 2}),
]


@pytest.mark.parametrize("limit", [0, 20_000])
def test_few_rows_are_compared_on_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Both ways add the same rows, and remove stored copies of the same rows; 0: all are too many."""
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", limit)
    pick = random.Random(limit)
    stored = [row for row in ROWS for _ in range(pick.randint(0, 3))]
    target = [row for row in ROWS for _ in range(pick.randint(0, 3))]
    positions = [(f"file-{number % 2}", number) for number in range(len(stored))]
    old = spark.createDataFrame(
        [(*row, *position) for row, position in zip(stored, positions, strict=True)],
        f"{ROW}, {FILE_COLUMN} STRING, {POSITION_COLUMN} BIGINT",
    )
    new = spark.createDataFrame(target, ROW)
    few, many = multiset_diff(old, new, few=True), multiset_diff(old, new)
    assert isinstance(few, DriverDiff) == isinstance(many, DriverDiff) == (limit > 0)

    def after(diff: DriverDiff | MultisetDiff) -> Counter[str]:
        if isinstance(diff, DriverDiff):
            removed = {(file, position) for file, positions in diff.deletes.items() for position in positions}
        else:
            removed = {(row[FILE_COLUMN], row[POSITION_COLUMN]) for row in diff.deletes.collect()}
        added = [repr(tuple(row)) for row in diff.inserts.collect()]
        assert (len(added), len(removed)) == (diff.inserted, diff.deleted)
        rows_at = Counter(repr(stored[positions.index(position)]) for position in removed)
        assert Counter(repr(tuple(row)) for row in diff.removed.collect()) == rows_at
        left = [repr(row) for row, position in zip(stored, positions, strict=True) if position not in removed]
        assert not {*added} & {repr(stored[positions.index(position)]) for position in removed}
        return Counter([*left, *added])

    assert after(few) == after(many) == Counter(map(repr, target))
