"""A world per test on the Spark of all tests, new or with a history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .world import SETTINGS, World, Wronged


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    project = World(tmp_path / "project", spark)
    yield project
    project.close()


@pytest.fixture(scope="session")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Wronged:
    return Wronged(tmp_path_factory.mktemp("revision") / "project", spark)


@pytest.fixture
def wronged(history: Wronged) -> Iterator[World]:
    """A world with wrong rows since checkpoint 2, whose file is corrected."""
    project = history.again()
    yield project
    project.close()


@pytest.fixture
def one_at_a_time(history: Wronged) -> Iterator[World]:
    """`wronged`, whose tables are taken back one after the other: the n-th step is always the same."""
    project = history.again(settings=f"{SETTINGS}[run]\nparallelism = 1\n")
    yield project
    project.close()
