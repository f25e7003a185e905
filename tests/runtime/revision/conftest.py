"""A world per test on the Spark of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .world import SETTINGS, World


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    project = World(tmp_path / "project", spark)
    yield project
    project.close()


@pytest.fixture
def one_at_a_time(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    """Tables are taken back one after the other, so that the n-th step is always the same."""
    project = World(tmp_path / "project", spark, settings=f"{SETTINGS}[run]\nparallelism = 1\n")
    yield project
    project.close()
