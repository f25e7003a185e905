"""`python -m bench`: measure, write `.work/bench/bench.json` and `bench.txt`, print the table."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import (
    auto_cdc,
    cdc,
    checkpoint,
    cluster,
    fixed,
    hops,
    idle,
    ingest,
    one_shot,
    publish,
    report,
    revise,
    service,
    sink_costs,
    sinks,
    skew,
    tpch,
)
from bench.cdc_continuous import measure_idle, measure_lag, measure_tables
from bench.cdc_peer import JDBC_DRIVER
from bench.cdc_state import measure_state
from bench.sink_tables import measure_sink_tables
from tautochrone.errors import EnvironmentProblemError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.spark.session.factory import use_database
from tautochrone.spark.session.jars import resolve
from tautochrone.spark.session.java import find_java
from tautochrone.spark.session.settings import SparkSettings

Parts = dict[str, Callable[[], dict[str, Any]]]

_CAPTURES = ("auto_cdc", "cdc", "cdc_tables", "cdc_idle", "cdc_lag", "cdc_state")
_IN_ONE_SPARK = (
    "tpch",
    "fixed",
    "ingest",
    "skew",
    "idle",
    "checkpoint",
    "hops",
    "revise",
    *_CAPTURES,
    "sinks",
    "sink_tables",
    "publish",
)
_PUBLISH_SMALL = "publish_small"
_CLUSTER = "cluster"
_SERVICE = "service"
_SINK_COSTS = "sink_costs"
_ONE_SHOT = "one_shot"


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--scale", type=float, default=0.1, help="TPC-H's scale factor")
    add("--shares", type=float, nargs="+", default=[0.001, 0.01], help="changed part of tables")
    add("--changed-rows", type=int, nargs="+", default=[], help="numbers of changed rows instead of shares")
    add("--changes", choices=tpch.KINDS, nargs="+", default=tpch.KINDS, help="kinds of changes of TPC-H")
    add("--queries", nargs="*", default=[], help="q1 … q22; all by default")
    add("--rounds", type=int, default=1, help="changes measured per share; the fastest counts")
    add("--rows", type=int, default=100_000, help="base of the tiny delta")
    add("--policy", default="incremental", help="refresh policy of the views")
    add("--memory", default="8g", help="of Spark")
    add("--ingest-rows", type=int, default=1_000_000, help="of a commit, or of what a cluster ingests")
    add("--executors", type=int, nargs="+", default=[1, 2, 4], help="of the clusters")
    add("--tables", type=int, default=100, help="that are taken back to a checkpoint, or captured")
    add("--events", type=int, default=500_000, help="changes of a captured database")
    add("--state-rows", type=int, default=1_000_000, help="of a captured table, and a tenth of another")
    add(
        "--capture-mode", choices=["full", "light"], default="full", help="of cdc_state, _tables, _idle, _lag"
    )
    add("--change-rate", type=int, default=5_000, help="changes a second of ten captured tables")
    add("--seconds", type=int, default=120, help="of changes that are measured, after a minute of others")
    add("--rate", type=int, default=10_000, help="rows a second into the pipeline of three hops")
    parts = (*_IN_ONE_SPARK, _SINK_COSTS, _ONE_SHOT, _SERVICE)
    named_only = (_CLUSTER, _PUBLISH_SMALL)
    only_help = f"{' and '.join(named_only)} are only run when named"
    add("--only", choices=(*parts, *named_only), nargs="+", default=parts, help=only_help)
    add("--folder", type=Path, default=Path(".work/bench"), help="data and results")
    options = parser.parse_args()

    folder: Path = options.folder.absolute()
    (folder / "base").mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": platform.platform()}
    if _CLUSTER in options.only:
        _run(
            {_CLUSTER: lambda: cluster.measure(folder, options.ingest_rows, options.executors)},
            results,
            folder,
        )
    if _SINK_COSTS in options.only:
        _run({_SINK_COSTS: lambda: sink_costs.measure(folder)}, results, folder)
    if _ONE_SHOT in options.only:
        _run({_ONE_SHOT: lambda: one_shot.measure(folder)}, results, folder)
    if _SERVICE in options.only:
        _run({_SERVICE: lambda: service.measure(folder)}, results, folder)
    named = [name for name in options.only if name in (*_IN_ONE_SPARK, _PUBLISH_SMALL)]
    if named:
        _in_one_spark(named, options, results, folder)
    sys.stdout.write(report.table(results))


def _in_one_spark(
    named: list[str], options: argparse.Namespace, results: dict[str, Any], folder: Path
) -> None:
    conf = {"spark.driver.memory": options.memory}
    no_peer = _add_jdbc_driver(conf) if "cdc" in named else None
    spark = start_session(
        SparkSettings(master="local[*]", conf=conf),
        CatalogSettings.default(str(folder / "base")),
    )
    use_database(spark, "lake", "default", create=True)
    results["spark"] = spark.version
    parts: Parts = {
        "tpch": lambda: tpch.measure(
            spark,
            folder,
            options.scale,
            options.shares,
            options.queries,
            options.policy,
            options.rounds,
            options.changes,
            options.changed_rows,
        ),
        "fixed": lambda: fixed.measure(spark, folder, options.rows),
        "ingest": lambda: ingest.measure(spark, folder, options.ingest_rows),
        "skew": lambda: skew.measure(spark, folder, options.ingest_rows),
        "idle": lambda: idle.measure(spark, folder),
        "checkpoint": lambda: checkpoint.measure(spark, folder),
        "hops": lambda: hops.measure(spark, folder, options.rate),
        "revise": lambda: revise.measure(spark, folder, options.tables),
        "auto_cdc": lambda: auto_cdc.measure(spark, folder),
        "cdc": lambda: cdc.measure(spark, folder, options.events, no_peer=no_peer),
        "sinks": lambda: sinks.measure(spark, folder),
        "publish": lambda: publish.measure(spark, folder),
        _PUBLISH_SMALL: lambda: publish.measure_small(spark, folder),
        "sink_tables": lambda: measure_sink_tables(spark, folder),
        "cdc_tables": lambda: measure_tables(spark, folder, options.tables, mode=options.capture_mode),
        "cdc_idle": lambda: measure_idle(spark, folder, mode=options.capture_mode),
        "cdc_lag": lambda: measure_lag(
            spark, folder, options.change_rate, seconds=options.seconds, mode=options.capture_mode
        ),
        "cdc_state": lambda: measure_state(spark, folder, options.state_rows, options.capture_mode),
    }
    _run({name: parts[name] for name in named}, results, folder)
    spark.stop()


def _add_jdbc_driver(conf: dict[str, str]) -> str | None:
    """Returns why there is none."""
    try:
        conf["spark.driver.extraClassPath"] = ":".join(map(str, resolve((JDBC_DRIVER,), find_java())))
    except EnvironmentProblemError as problem:
        return str(problem)
    return None


def _run(parts: Parts, results: dict[str, Any], folder: Path) -> None:
    for name, measure in parts.items():
        results[name] = measure() | {"load": os.getloadavg()[0]}
        # Results are written after each part, because the next one may fail.
        report.write(results, folder)


if __name__ == "__main__":
    main()
