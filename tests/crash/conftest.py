"""A world per test; one Spark for all that runs inside this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .world import World


@pytest.fixture
def quiet(spark: SparkSession) -> Iterator[SparkSession]:
    """Crashes are meant: neither side shall write a stack for each."""
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    yield spark
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


@pytest.fixture
def world(quiet: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """Beside `events` it has the tables of the test module's `TABLES`, or all without it."""
    world = World.make(quiet, tmp_path / "project")
    tables = getattr(request.module, "TABLES", None)
    if tables is not None:
        world.sources.define_only(*tables)
    return world
