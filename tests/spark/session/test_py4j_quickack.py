"""Long answers from the JVM are not delayed."""

from __future__ import annotations

import socket
import statistics
import time

import pytest
from pyspark.sql import SparkSession

DELAYED_ACK_S = 0.04
"""How long Linux delays an acknowledgement."""


@pytest.mark.spark
@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="other systems have no such delay")
@pytest.mark.parametrize("length", [10, 10_000, 100_000])
def test_answer_of_any_length_is_not_delayed(spark: SparkSession, length: int) -> None:
    text = spark._jvm.java.lang.StringBuilder("x" * length)
    durations = []
    for _ in range(15):
        started = time.perf_counter()
        assert text.toString() == "x" * length
        durations.append(time.perf_counter() - started)
    assert statistics.median(durations) < DELAYED_ACK_S
