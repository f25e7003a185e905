"""Random queries × random changes × several checkpoints, each compared with plain Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .random_sql import Writer
from .small import SmallTables
from .stand import Stand

pytestmark = pytest.mark.spark


def play(folder: Path, spark: SparkSession, seed: int, views: int, checkpoints: int) -> int:
    """One pipeline of random views; returns how many (query, change) cases had something to do."""
    stand = Stand(folder, spark)
    try:
        tables = SmallTables(stand, seed, rows=25)
        writer = Writer(seed)
        for number in range(views):
            stand.view(f"r{number}", writer.view(f"r{number}"))
        stand.checkpoint()
        cases = 0
        for number in range(checkpoints):
            tables.change()
            happened = stand.checkpoint(restart=number == checkpoints // 2)
            cases += sum(told["mode"] != "no_data" for told in happened.of("refresh"))
        return cases
    finally:
        stand.close()


def test_the_same_seed_writes_the_same_queries() -> None:
    first, second = Writer(5), Writer(5)
    assert [first.view(f"r{n}") for n in range(30)] == [second.view(f"r{n}") for n in range(30)]
    assert Writer(6).view("r0") != Writer(5).view("r0")


@pytest.mark.timeout(3600)
def test_views_through_twelve_changes(tmp_path: Path, spark: SparkSession) -> None:
    assert play(tmp_path, spark, seed=3, views=18, checkpoints=12) >= 200


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_more(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    assert play(tmp_path, spark, seed=seed, views=40, checkpoints=12) >= 400
