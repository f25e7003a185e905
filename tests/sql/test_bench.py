"""The bench runs and tells what it should: its smallest form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import fixed, report, tpch
from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_smallest_bench(tmp_path: Path, spark: SparkSession) -> None:
    found = {
        "tpch": tpch.measure(spark, tmp_path, scale=0.001, shares=[0.02], names=["q1", "q4", "q6"]),
        "fixed": fixed.measure(spark, tmp_path, rows=1000, delta=10, rounds=1),
    }
    text = report.write(found, tmp_path / "out").read_text()
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found
    measured = found["tpch"]["shares"]["0.02"]
    assert set(measured["queries"]) == {"q1", "q4", "q6"}
    for times in measured["queries"].values():
        assert times["refresh_ms"] > 0
        assert times["full_ms"] > 0
        assert times["times_faster"] == pytest.approx(times["full_ms"] / times["refresh_ms"])
    assert "geometric mean" in text
    assert "2.0% changed" in text
    assert "10 rows into 1000" in text


def test_geometric_mean() -> None:
    assert tpch.geometric_mean([1, 4, 16]) == pytest.approx(4)
