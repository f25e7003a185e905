"""The bench runs and tells what it should: its smallest form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import checkpoint, fixed, hops, idle, ingest, report, revise, service, tpch
from bench.running import catalog_commits
from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_smallest_bench(tmp_path: Path, spark: SparkSession) -> None:
    found = {
        "tpch": tpch.measure(spark, tmp_path, scale=0.001, shares=[0.02], names=["q1", "q4", "q6"]),
        "fixed": fixed.measure(spark, tmp_path, rows=1000, delta=10, rounds=1, warm=1),
    }
    text = report.write(found, tmp_path / "out").read_text()
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found
    measured, *_ = found["tpch"]["changes"]
    assert [(of["kind"], of["share"]) for of in found["tpch"]["changes"]] == [
        ("neighbours", 0.02),
        ("functions", 0.02),
        ("updates", 0.02),
    ]
    assert set(measured["queries"]) == {"q1", "q4", "q6"}
    for times in measured["queries"].values():
        assert times["refresh_ms"] > 0
        assert times["full_ms"] > 0
        assert times["times_faster"] == pytest.approx(times["full_ms"] / times["refresh_ms"])
    assert "geometric mean of the 3 that the change reaches" in text
    assert "2.0% changed by the refresh functions" in text
    assert "10 rows into 1000" in text
    assert found["fixed"]["messages"] > 100
    assert 0 < found["fixed"]["message_ms"] < 100
    assert f"{found['fixed']['messages']} messages" in text


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_smallest_bench_of_a_run(tmp_path: Path, spark: SparkSession) -> None:
    found = {
        "idle": idle.measure(spark, tmp_path, interval_ms=500, looks=3),
        "checkpoint": checkpoint.measure(spark, tmp_path, rows=1001, rounds=1),
    }
    assert found["idle"]["spark_jobs"] == 0
    assert found["idle"]["looks"] == 3
    assert found["idle"]["cpu_share_in_all"] > 0
    (one,) = found["checkpoint"]["rounds"]
    assert one["mode"] == {"large": "append", "totals": "diff"}
    assert one["commits"] == {"default.events": 2, "default.large": 1, "default.totals": 1}
    assert found["checkpoint"]["median_ms"] == one["readable_ms"] >= one["checkpoint_ms"]
    text = report.table(found)
    assert "0 Spark jobs" in text
    assert f"{one['readable_ms'] - one['checkpoint_ms']:.0f} of them until the cut" in text
    assert "4 catalog commits, of one table 2 at most" in text


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_the_smallest_bench_of_ingestion(tmp_path: Path, spark: SparkSession) -> None:
    found = ingest.measure(spark, tmp_path, rows=100, commits=3, rounds=1)
    assert len(found["ours_ms"]) == len(found["plain_ms"]) == 2
    assert found["ratio"] == pytest.approx(found["median_ours_ms"] / found["median_plain_ms"])
    assert "100 rows a commit" in report.table({"ingest": found})


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_smallest_bench_of_three_hops(tmp_path: Path, spark: SparkSession) -> None:
    found = hops.measure(spark, tmp_path, rate=100, seconds=2, warm_up=1)
    assert found["files"] == 2
    assert 0 < found["median_s"] <= found["p95_s"] <= found["slowest_s"]
    assert "three hops at 100 rows/s, 2 files" in report.table({"hops": found})


def test_freshness_is_that_of_the_first_checkpoint_that_has_all_rows_of_a_file() -> None:
    shown = [(10, 100.0), (15, 101.0), (20, 102.5), (40, 104.0)]
    assert hops._freshness([101.0, 102.0, 103.5], shown, 10) == [1.5, 2.0, 0.5]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_smallest_bench_of_a_revision(tmp_path: Path, spark: SparkSession) -> None:
    found = revise.measure(spark, tmp_path, tables=3)
    assert found["tables"] == 3
    assert found["list_ms"] > 0
    assert "3 tables taken back to a checkpoint" in report.table({"revise": found})


def test_the_smallest_bench_of_the_service(tmp_path: Path) -> None:
    found = service.measure(tmp_path, requests=12)
    assert found["tables"] == 100
    assert 0 < found["versions_of_all"]["median"] <= found["versions_of_all"]["p99"]
    assert "versions of three, in process" in report.table({"service": found})


def test_commits_are_counted_by_the_names_of_metadata() -> None:
    before = {
        "a.x": "file:/w/x/metadata/00009-0c.metadata.json",
        "a.y": "s3://w/y/metadata/00001-0d.metadata.json",
    }
    after = {**before, "a.x": "file:/w/x/metadata/00011-0e.metadata.json", "a.z": "new"}
    assert catalog_commits(before, after) == {"a.x": 2, "a.y": 0}
    with pytest.raises(ValueError, match="no number"):
        catalog_commits({"a.z": "new"}, after)


def test_geometric_mean() -> None:
    assert tpch.geometric_mean([1, 4, 16]) == pytest.approx(4)
