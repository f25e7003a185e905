"""The smallest form of each benchmark runs, and its report has the numbers. All but two are long forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import (
    cdc,
    checkpoint,
    fixed,
    hops,
    idle,
    ingest,
    report,
    revise,
    service,
    sink_costs,
    sinks,
    skew,
    tpch,
)
from bench.running import catalog_commits
from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_smallest_bench_of_refreshes(tmp_path: Path, spark: SparkSession) -> None:
    results = {
        "tpch": tpch.measure(spark, tmp_path, scale=0.001, shares=[0.02], names=["q1", "q4", "q6"]),
        "fixed": fixed.measure(spark, tmp_path, rows=1000, delta=10, rounds=1, warm=1),
    }
    text = report.write(results, tmp_path / "out").read_text()
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == results
    first_change, *_ = results["tpch"]["changes"]
    assert [(change["kind"], change["share"]) for change in results["tpch"]["changes"]] == [
        ("neighbours", 0.02),
        ("functions", 0.02),
        ("updates", 0.02),
    ]
    assert set(first_change["queries"]) == {"q1", "q4", "q6"}
    for times in first_change["queries"].values():
        assert times["refresh_ms"] > 0
        assert times["full_ms"] > 0
        assert times["times_faster"] == pytest.approx(times["full_ms"] / times["refresh_ms"])
    assert "geometric mean of the 3 that the change reaches" in text
    assert first_change["worst"] <= first_change["geometric_mean"] <= first_change["best"]
    assert min(first_change["checkpoint_cpu_s"], first_change["full_cpu_s"]) > 0
    assert "2.0% changed by the refresh functions" in text
    assert "10 rows into 1000" in text
    assert results["fixed"]["messages"] > 100
    assert 0 < results["fixed"]["message_ms"] < 100
    assert f"{results['fixed']['messages']} messages" in text


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_changes_of_constant_size(tmp_path: Path, spark: SparkSession) -> None:
    part = tpch.measure(
        spark, tmp_path, scale=0.001, shares=[], names=["q6"], kinds=["neighbours"], changed_rows=[100]
    )
    (change,) = part["changes"]
    assert change["changed_rows"] == 100
    assert 0.01 < change["share"] < 0.02
    assert "100 new rows and as many old ones changed by" in report.table({"tpch": part})


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_smallest_bench_of_checkpoints(tmp_path: Path, spark: SparkSession) -> None:
    results = {
        "idle": idle.measure(spark, tmp_path, interval_ms=500, polls=3),
        "checkpoint": checkpoint.measure(spark, tmp_path, rows=1001, rounds=1),
    }
    assert results["idle"]["spark_jobs"] == 0
    assert results["idle"]["polls"] == 3
    assert results["idle"]["cpu_share_in_all"] > 0
    (last_round,) = results["checkpoint"]["rounds"]
    assert last_round["mode"] == {"large": "append", "totals": "diff"}
    assert last_round["commits"] == {"default.events": 2, "default.large": 1, "default.totals": 1}
    assert results["checkpoint"]["median_ms"] == last_round["readable_ms"] >= last_round["checkpoint_ms"]
    text = report.table(results)
    assert "0 Spark jobs" in text
    assert f"{last_round['readable_ms'] - last_round['checkpoint_ms']:.0f} of them until the cut" in text
    assert "4 commits, of one table 2 at most" in text


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_smallest_bench_of_ingestion(tmp_path: Path, spark: SparkSession) -> None:
    results = ingest.measure(spark, tmp_path, rows=100, commits=3, rounds=1)
    assert len(results["ours_ms"]) == len(results["plain_ms"]) == 2
    assert results["ratio"] == pytest.approx(results["median_ours_ms"] / results["median_plain_ms"])
    assert "100 rows a commit" in report.table({"ingest": results})
    results = skew.measure(spark, tmp_path, rows=800, commits=2, rounds=1)
    for layout in ("even", "skewed"):
        assert results[layout]["ours"]["files"] == 1
        assert results[layout]["plain"]["files"] == results[layout]["sparks_tasks"]["files"] == 8
    assert "skewed, shared evenly" in report.table({"skew": results})


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_smallest_bench_of_three_hops(tmp_path: Path, spark: SparkSession) -> None:
    results = hops.measure(spark, tmp_path, rate=100, seconds=2, warm_up=1)
    assert results["files"] == 2
    assert 0 < results["median_s"] <= results["p95_s"] <= results["slowest_s"]
    assert "three hops at 100 rows/s, 2 files" in report.table({"hops": results})


def test_freshness_counts_the_first_checkpoint_with_all_rows_of_a_file() -> None:
    shown = [(10, 100.0), (15, 101.0), (20, 102.5), (40, 104.0)]
    assert hops._freshness([101.0, 102.0, 103.5], shown, 10) == [1.5, 2.0, 0.5]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_smallest_bench_of_a_revision(tmp_path: Path, spark: SparkSession) -> None:
    results = revise.measure(spark, tmp_path, tables=3)
    assert results["tables"] == 3
    assert results["list_ms"] > 0
    assert "3 tables taken back to a checkpoint" in report.table({"revise": results})


def test_smallest_bench_of_the_service(tmp_path: Path) -> None:
    results = service.measure(tmp_path, requests=12)
    assert results["tables"] == 100
    assert 0 < results["versions_of_all"]["median"] <= results["versions_of_all"]["p99"]
    assert "versions of three, in process" in report.table({"service": results})


def test_commits_are_counted_by_metadata_names() -> None:
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


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_smallest_bench_of_capture(tmp_path: Path, spark: SparkSession) -> None:
    results = cdc.measure(spark, tmp_path, events=200, no_peer="not in tests")
    assert results["events_per_s"] > 0
    assert 0 < results["merge_s"] < results["wall_s"]
    text = report.table({"cdc": results})
    assert "capture of a PostgreSQL table of 200 rows" in text
    assert "Debezium and MERGE are not measured: not in tests" in text


@pytest.mark.slow
def test_smallest_bench_of_transactions(tmp_path: Path) -> None:
    results = sink_costs.measure(tmp_path, sizes=(100, 1000), rounds=1, rates=(1,), intervals_s=(30, 60))
    assert [each["transactions"] for each in results["intervals"]] == [2, 1]
    small, large = results["sizes"]
    assert small["keyed_to_append"]["wall_s"] > 0
    assert large["rows"] == 1000
    text = report.table({"sink_costs": results})
    assert "1 rows/s, every 60 s:  1 transactions" in text


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_smallest_bench_of_sinks(tmp_path: Path, spark: SparkSession) -> None:
    results = sinks.measure(
        spark,
        tmp_path,
        files=1,
        file_rows=10,
        task_rows=100,
        task_counts=(2,),
        chunk_sizes=(20,),
    )
    assert 0 < results["pointer_p50_ms"] <= results["pointer_p95_ms"]
    text = report.table({"sinks": results})
    assert "10 rows from the published checkpoint to the sink's pointer" in text
    # Each of the two tasks has 50 rows.
    assert "2 tasks,     20 rows:   6 chunks" in text
