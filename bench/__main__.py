"""`python -m bench`: measure, write `.work/bench/bench.json` and `bench.txt`, print the table."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import Any

from bench import fixed, report, tpch
from tautochrone.spark.session import CatalogSettings, SparkSettings, start_session, use_database


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--scale", type=float, default=0.1, help="TPC-H's scale factor")
    add("--shares", type=float, nargs="+", default=[0.001, 0.01], help="changed part of tables")
    add("--queries", nargs="*", default=[], help="q1 … q22; all by default")
    add("--rounds", type=int, default=1, help="changes measured per share; the fastest counts")
    add("--rows", type=int, default=100_000, help="base of the tiny delta; 0 leaves it out")
    add("--policy", default="incremental", help="refresh policy of the views")
    add("--memory", default="8g", help="of Spark")
    add("--only", choices=["tpch", "fixed"], help="one of the two")
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
    if options.only != "fixed":
        found["tpch"] = tpch.measure(
            spark, folder, options.scale, options.shares, options.queries, options.policy, options.rounds
        )
    if options.only != "tpch" and options.rows:
        found["fixed"] = fixed.measure(spark, folder, options.rows)
    text = report.write(found, folder)
    sys.stdout.write(text.read_text())
    spark.stop()


if __name__ == "__main__":
    main()
