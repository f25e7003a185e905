"""Random queries × random changes × several checkpoints, each compared with plain Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .random_sql import QueryWriter
from .small_tables import SmallTables
from .testbed import ViewTestbed

pytestmark = pytest.mark.spark


def run_random_views(folder: Path, spark: SparkSession, seed: int, views: int, checkpoints: int) -> int:
    """One pipeline of random views; returns the number of refreshes that had something to do."""
    testbed = ViewTestbed(folder, spark)
    try:
        tables = SmallTables(testbed, seed, rows=25)
        writer = QueryWriter(seed)
        for number in range(views):
            testbed.view(f"r{number}", writer.view(f"r{number}"))
        testbed.checkpoint()
        refreshes = 0
        for number in range(checkpoints):
            tables.change()
            happened = testbed.checkpoint(restart=number == checkpoints // 2)
            refreshes += sum(refresh["mode"] != "no_data" for refresh in happened.of("refresh"))
        return refreshes
    finally:
        testbed.close()


def test_same_seed_writes_the_same_queries() -> None:
    first, second = QueryWriter(5), QueryWriter(5)
    assert [first.view(f"r{n}") for n in range(30)] == [second.view(f"r{n}") for n in range(30)]
    assert QueryWriter(6).view("r0") != QueryWriter(5).view("r0")


@pytest.mark.timeout(3600)
def test_random_views(tmp_path: Path, spark: SparkSession) -> None:
    assert run_random_views(tmp_path, spark, seed=3, views=5, checkpoints=1) >= 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_more_random_views(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    assert run_random_views(tmp_path, spark, seed=seed, views=40, checkpoints=12) >= 400
