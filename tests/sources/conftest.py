"""A bank per test; one Spark for all that runs inside this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .bank import Bank


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path) -> Iterator[Bank]:
    # Crashes are meant: neither side shall write a stack for each.
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    yield Bank.make(spark, tmp_path / "bank")
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")
