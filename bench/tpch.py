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

from bench.project import Measured, timed_ms
from tautochrone.testing import tpch
from tautochrone.testing.harness import Happened
from tautochrone.testing.tpch_changes import TpchChanges

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
) -> dict[str, Any]:
    """Times in ms per kind of change, share and query. A first change of each kind warms both sides up and
    isn't counted.

    Args:
        spark: a warm session.
        folder: of the pipeline and the data; data is kept for the next time.
        scale: TPC-H's scale factor.
        shares: parts of the tables that a change touches, 0.001 for 0.1 %.
        names: of the queries; all when empty.
        policy: of the views.
        rounds: how often each is measured; the fastest counts, on both sides.
        kinds: of `KINDS`.
    """
    place = folder / "project"
    shutil.rmtree(place, ignore_errors=True)
    chosen = {name: q for name, q in tpch.queries(scale).items() if not names or name in names}
    measured = Measured(place, spark)
    try:
        tpch.load(measured.outside, tpch.generate(folder / "data", scale))
        clause = "" if policy is None else f" TBLPROPERTIES ('tautochrone.refresh-policy' = '{policy}')"
        for name, query in chosen.items():
            text = f"CREATE MATERIALIZED VIEW {name}{clause} AS\n{query};\n"
            measured.pipeline.write(f"definitions/{name}.sql", text)
        measured.outside.sql("CREATE NAMESPACE lake.plain")
        with measured.opened() as bring:
            built = bring()
            found: dict[str, Any] = {
                "scale": scale,
                "policy": policy,
                "build_ms": {name: built.refresh(name)["duration_ms"] for name in chosen},
                "changes": [],
            }
            steps = itertools.count(1)
            for kind in kinds:
                _best(measured, bring, chosen, steps, kind, shares[0], rounds=1)
                for share in shares:
                    best = _best(measured, bring, chosen, steps, kind, share, rounds)
                    found["changes"].append({"kind": kind, "share": share, **_with_ratios(best)})
        measured.right()
        return found
    finally:
        measured.close()


def _best(
    measured: Measured,
    bring: Callable[[], Happened],
    chosen: dict[str, str],
    steps: Iterator[int],
    kind: str,
    share: float,
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """The fastest of several rounds of changes, of each view and on either side."""
    changes = TpchChanges(measured.outside, seed=3, share=share)
    best: dict[str, dict[str, Any]] = {}
    for step in itertools.islice(steps, rounds):
        (changes.neighbours if kind == "neighbours" else changes.functions)(step)
        if kind == "updates":
            changes.updates(step)
        for name, times in _once(measured, bring(), chosen).items():
            before = best.get(name, times)
            fastest = min(before, times, key=lambda of: of["refresh_ms"])
            best[name] = {**fastest, "full_ms": min(before["full_ms"], times["full_ms"])}
    return best


def _once(measured: Measured, happened: Happened, chosen: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Times of the refreshes that just happened, and of plain Spark now."""
    found = {}
    for name, query in chosen.items():
        told = happened.refresh(name)
        plain = query.replace(" tpch.", " lake.tpch.")
        found[name] = {
            "refresh_ms": told["duration_ms"],
            "mode": told["mode"],
            "slow_nodes": [n for n in told["nodes"] if n["mode"] in ("diff", "full")],
            "rows": told["rows_inserted"] + told["rows_deleted"],
            "full_ms": timed_ms(lambda name=name, plain=plain: _recompute(measured.outside, name, plain)),
        }
    return found


def _recompute(session: SparkSession, name: str, query: str) -> None:
    session.sql(
        f"CREATE OR REPLACE TABLE lake.plain.{name} USING iceberg TBLPROPERTIES ('format-version' = '3') "
        f"AS {query}"
    )


def _with_ratios(times: dict[str, dict[str, Any]]) -> dict[str, Any]:
    for of in times.values():
        of["times_faster"] = of["full_ms"] / max(of["refresh_ms"], 1)
    # A view whose inputs stand still costs nothing: hundreds of times faster, which says nothing.
    reached = [of["times_faster"] for of in times.values() if of["mode"] != "no_data"]
    mean = geometric_mean(reached) if reached else None
    return {"queries": times, "reached": len(reached), "geometric_mean": mean}


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
