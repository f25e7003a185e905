"""Long answers from the JVM come at once."""

from __future__ import annotations

import socket
import statistics
import time

import pytest
from pyspark.sql import SparkSession

PAUSE_S = 0.04
"""Of a delayed acknowledgement on Linux."""


@pytest.mark.spark
@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="other systems have no such pause")
@pytest.mark.parametrize("length", [10, 10_000, 100_000])
def test_an_answer_of_any_length(spark: SparkSession, length: int) -> None:
    text = spark._jvm.java.lang.StringBuilder("x" * length)
    took = []
    for _ in range(15):
        started = time.perf_counter()
        assert text.toString() == "x" * length
        took.append(time.perf_counter() - started)
    assert statistics.median(took) < PAUSE_S
