"""TPC-H's 22 queries as views: each view's refresh against the same query computed and written by plain
Spark, in the same session, after the same change."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support import tpch
from tests.support.harness import Happened
from tests.support.tpch_changes import TpchChanges

from bench.project import Measured, timed_ms
from bench.running import cpu_s, cpu_since

__all__ = ["KINDS", "geometric_mean", "measure"]


KINDS = ("neighbours", "functions", "updates")
"""Changes: TPC-H's own refresh functions (new orders with their lines, old ones removed with theirs), of
orders whose keys follow each other, as its generator makes them; of orders all over the table; or on top of
these as many rows updated in five of its tables."""


def measure(
    spark: SparkSession,
    folder: Path,
    scale: float,
    shares: Sequence[float],
    names: Sequence[str] = (),
    policy: str | None = "incremental",
    rounds: int = 1,
    kinds: Sequence[str] = KINDS,
    changed_rows: Sequence[int] = (),
) -> dict[str, Any]:
    """Times in ms per kind of change, size and query, and CPU seconds of all queries together. A first change
    of each kind warms both sides up and isn't counted.

    Args:
        spark: a warm session.
        folder: of the pipeline and the data; data is kept for the next time.
        scale: TPC-H's scale factor.
        shares: parts of the tables that a change touches, 0.001 for 0.1 %; not used with `changed_rows`.
        names: of the queries; all when empty.
        policy: of the views.
        rounds: how often each is measured; the fastest counts, on both sides.
        kinds: of `KINDS`.
        changed_rows: numbers of orders and lines that come, and as many that go, whatever the scale.
    """
    project_folder = folder / "project"
    shutil.rmtree(project_folder, ignore_errors=True)
    chosen = {name: q for name, q in tpch.queries(scale).items() if not names or name in names}
    measured = Measured(project_folder, spark)
    try:
        tpch.load(measured.outside, tpch.generate(folder / "data", scale))
        clause = "" if policy is None else f" TBLPROPERTIES ('tautochrone.refresh-policy' = '{policy}')"
        for name, query in chosen.items():
            text = f"CREATE MATERIALIZED VIEW {name}{clause} AS\n{query};\n"
            measured.pipeline.write(f"definitions/{name}.sql", text)
        measured.outside.sql("CREATE NAMESPACE lake.plain")
        with measured.opened() as refresh:
            built = refresh()
            results: dict[str, Any] = {
                "scale": scale,
                "policy": policy,
                "build_ms": {name: built.refresh(name)["duration_ms"] for name in chosen},
                "changes": [],
            }
            steps = itertools.count(1)
            sizes: list[tuple[float, int | None]] = [(share, None) for share in shares]
            if changed_rows:
                rows = _changing_rows(measured.outside)
                sizes = [(number / rows, number) for number in changed_rows]
            for kind in kinds:
                _best(measured, refresh, chosen, steps, kind, sizes[0][0], rounds=1)
                for share, number in sizes:
                    best = _best(measured, refresh, chosen, steps, kind, share, rounds)
                    size = {"kind": kind, "share": share, "changed_rows": number}
                    results["changes"].append({**size, **_with_ratios(*best)})
        measured.right()
        return results
    finally:
        measured.close()


def _changing_rows(session: SparkSession) -> int:
    """How many rows the tables have that each change touches."""
    return sum(session.table(f"lake.tpch.{table}").count() for table in ("orders", "lineitem"))


def _best(
    measured: Measured,
    refresh: Callable[[], Happened],
    chosen: dict[str, str],
    steps: Iterator[int],
    kind: str,
    share: float,
    rounds: int,
) -> tuple[dict[str, dict[str, Any]], float]:
    """The fastest of several rounds of changes, of each view and on either side; and the CPU seconds of the
    checkpoint that needed fewest."""
    changes = TpchChanges(measured.outside, seed=3, share=share)
    best: dict[str, dict[str, Any]] = {}
    checkpoint_cpu_s = math.inf
    for step in itertools.islice(steps, rounds):
        (changes.neighbours if kind == "neighbours" else changes.functions)(step)
        if kind == "updates":
            changes.updates(step)
        before = cpu_s(measured.outside)
        happened = refresh()
        checkpoint_cpu_s = min(checkpoint_cpu_s, sum(cpu_since(measured.outside, before).values()))
        for name, times in _once(measured, happened, chosen).items():
            best_so_far = best.get(name, times)
            fastest = min(best_so_far, times, key=lambda measurement: measurement["refresh_ms"])
            full = {side: min(best_so_far[side], times[side]) for side in ("full_ms", "full_cpu_s")}
            best[name] = {**fastest, **full}
    return best, checkpoint_cpu_s


def _once(measured: Measured, happened: Happened, chosen: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Times of the refreshes that just happened, and of plain Spark now."""
    results = {}
    for name, query in chosen.items():
        event = happened.refresh(name)
        plain = query.replace(" tpch.", " lake.tpch.")
        before = cpu_s(measured.outside)
        full_ms = timed_ms(lambda name=name, plain=plain: _recompute(measured.outside, name, plain))
        results[name] = {
            "refresh_ms": event["duration_ms"],
            "mode": event["mode"],
            "slow_nodes": [n for n in event["nodes"] if n["mode"] in ("diff", "full")],
            "rows": event["rows_inserted"] + event["rows_deleted"],
            "full_ms": full_ms,
            "full_cpu_s": sum(cpu_since(measured.outside, before).values()),
        }
    return results


def _recompute(session: SparkSession, name: str, query: str) -> None:
    session.sql(
        f"CREATE OR REPLACE TABLE lake.plain.{name} USING iceberg TBLPROPERTIES ('format-version' = '3') "
        f"AS {query}"
    )


def _with_ratios(times: dict[str, dict[str, Any]], checkpoint_cpu_s: float) -> dict[str, Any]:
    for measurement in times.values():
        measurement["times_faster"] = measurement["full_ms"] / max(measurement["refresh_ms"], 1)
    # A view without changed inputs is not refreshed: its ratio would be meaningless.
    reached = [measurement for measurement in times.values() if measurement["mode"] != "no_data"]
    ratios = [measurement["times_faster"] for measurement in reached]
    return {
        "queries": times,
        "reached": len(ratios),
        "geometric_mean": geometric_mean(ratios) if ratios else None,
        "worst": min(ratios, default=None),
        "best": max(ratios, default=None),
        "checkpoint_cpu_s": checkpoint_cpu_s,
        "full_cpu_s": sum(measurement["full_cpu_s"] for measurement in reached),
    }


def geometric_mean(ratios: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
