"""TPC-H's 22 queries as views: each view's refresh against the same query computed and written by plain
Spark, in the same session, after the same change."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.project import Measured, timed_ms
from tautochrone.testing import tpch
from tautochrone.testing.tpch_changes import TpchChanges

__all__ = ["geometric_mean", "measure"]


def measure(
    spark: SparkSession,
    folder: Path,
    scale: float,
    shares: Sequence[float],
    names: Sequence[str] = (),
    policy: str | None = "incremental",
    rounds: int = 1,
) -> dict[str, Any]:
    """Times in ms per share and query. The first round of changes warms both sides up and isn't counted.

    Args:
        spark: a warm session.
        folder: of the pipeline and the data; data is kept for the next time.
        scale: TPC-H's scale factor.
        shares: parts of the tables that a change touches, 0.001 for 0.1 %.
        names: of the queries; all when empty.
        policy: of the views.
        rounds: how often each share is measured; the fastest counts, on both sides.
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
                "shares": {},
            }
            step = 0
            for number, share in enumerate([shares[0], *shares]):
                best: dict[str, dict[str, Any]] = {}
                changes = TpchChanges(measured.outside, seed=3, share=share)
                for _ in range(1 if number == 0 else rounds):
                    step += 1
                    changes.functions(step)
                    changes.updates(step)
                    for name, times in _once(measured, bring(), chosen).items():
                        if name not in best or times["refresh_ms"] < best[name]["refresh_ms"]:
                            best[name] = {**times, "full_ms": best.get(name, times)["full_ms"]}
                        best[name]["full_ms"] = min(best[name]["full_ms"], times["full_ms"])
                if number > 0:
                    found["shares"][str(share)] = _with_ratios(best)
        measured.right()
        return found
    finally:
        measured.close()


def _once(measured: Measured, happened: Any, chosen: dict[str, str]) -> dict[str, dict[str, Any]]:
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
    mean = geometric_mean([of["times_faster"] for of in times.values()])
    return {"queries": times, "geometric_mean": mean}


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
