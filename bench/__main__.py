"""`python -m bench`: measure, write `.work/bench/bench.json` and `bench.txt`, print the table."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import checkpoint, fixed, idle, ingest, report, tpch
from tautochrone.spark.session import CatalogSettings, SparkSettings, start_session, use_database

_PARTS = ("tpch", "fixed", "ingest", "idle", "checkpoint")


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--scale", type=float, default=0.1, help="TPC-H's scale factor")
    add("--shares", type=float, nargs="+", default=[0.001, 0.01], help="changed part of tables")
    add("--queries", nargs="*", default=[], help="q1 … q22; all by default")
    add("--rounds", type=int, default=1, help="changes measured per share; the fastest counts")
    add("--rows", type=int, default=100_000, help="base of the tiny delta")
    add("--policy", default="incremental", help="refresh policy of the views")
    add("--memory", default="8g", help="of Spark")
    add("--ingest-rows", type=int, default=1_000_000, help="of a commit")
    add("--only", choices=_PARTS, nargs="+", default=_PARTS, help="some of the parts")
    add("--folder", type=Path, default=Path(".work/bench"), help="data and results")
    options = parser.parse_args()

    folder: Path = options.folder.absolute()
    (folder / "base").mkdir(parents=True, exist_ok=True)
    spark = start_session(
        SparkSettings(master="local[*]", conf={"spark.driver.memory": options.memory}),
        CatalogSettings.default(str(folder / "base")),
    )
    use_database(spark, "lake", "default", create=True)
    found: dict[str, Any] = {"machine": platform.platform(), "spark": spark.version}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "tpch": lambda: tpch.measure(
            spark, folder, options.scale, options.shares, options.queries, options.policy, options.rounds
        ),
        "fixed": lambda: fixed.measure(spark, folder, options.rows),
        "ingest": lambda: ingest.measure(spark, folder, options.ingest_rows),
        "idle": lambda: idle.measure(spark, folder),
        "checkpoint": lambda: checkpoint.measure(spark, folder),
    }
    for name in options.only:
        found[name] = parts[name]() | {"load": os.getloadavg()[0]}
        # What was measured is kept though the next part fails.
        text = report.write(found, folder)
    sys.stdout.write(text.read_text())
    spark.stop()


if __name__ == "__main__":
    main()
