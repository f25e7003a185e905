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
    """Of the tables that read others it has those of the test module's `TABLES`, or all without it."""
    return _with_tables(World.make(quiet, tmp_path / "project"), request)


@pytest.fixture
def world_of_views(quiet: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """Without a streaming table that reads another one."""
    return _with_tables(World.make(quiet, tmp_path / "project", stream=False), request)


def _with_tables(world: World, request: pytest.FixtureRequest) -> World:
    tables = getattr(request.module, "TABLES", None)
    if tables is not None:
        world.sources.define_only(*tables)
    return world
