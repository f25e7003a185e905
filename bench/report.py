"""Measurements as JSON for machines and as a table for people."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

__all__ = ["table", "write"]

_CHANGES = {
    "neighbours": "the refresh functions (orders and lines that come and go, their keys in a row)",
    "functions": "the refresh functions, for orders all over the table",
    "updates": "them and by updates of five tables",
}


def table(found: dict[str, Any]) -> str:
    """Plain text; times in ms."""
    lines = []
    if "tpch" in found:
        lines += _tpch(found["tpch"])
    if "fixed" in found:
        of = found["fixed"]
        lines += [
            "",
            f"{of['delta']} rows into {of['rows']}: {of['median_ms']:.0f} ms (median, after "
            f"{of['warm']} others); into {10 * of['rows']}: {of['median_ms_on_ten_times']:.0f} ms, "
            f"{of['grows_by']:.2f} times as long",
            f"the first {len(of['first_ms'])} of its process: {statistics.median(of['first_ms']):.0f} ms "
            "(median)",
            f"its checkpoint takes {of['jobs']} Spark jobs and {of['messages']} messages between Python and "
            f"JVM, {of['message_ms']:.3f} ms each when they ask for nothing",
        ]
    parts = {
        "ingest": _ingest,
        "idle": _idle,
        "checkpoint": _checkpoint,
        "hops": _hops,
        "revise": _revise,
        "service": _service,
    }
    for name, told in parts.items():
        if name in found:
            lines += ["", *told(found[name])]
    if "cluster" in found:
        of = found["cluster"]
        lines += ["", f"ingestion of {of['rows']} rows on a standalone cluster, {of['cores']} cores here"]
        lines += [
            f"{count:>3} executors: {result['rows_per_s']:10,.0f} rows/s, "
            f"{result['fewest_rows']:,.0f} to {result['most_rows']:,.0f} rows each"
            for count, result in of["executors"].items()
        ]
    return "\n".join(lines).strip() + "\n"


def _tpch(of: dict[str, Any]) -> list[str]:
    lines = [f"TPC-H, scale factor {of['scale']:g}, policy {of['policy']}"]
    for result in of["changes"]:
        lines += [
            "",
            f"{result['share']:.1%} changed by {_CHANGES[result['kind']]}",
            f"{'':6}{'refresh':>10}{'full':>10}{'x':>8}  mode",
        ]
        for name, times in result["queries"].items():
            slow = "; ".join(f"{n['node']}: {n['reason']}" for n in times["slow_nodes"])
            lines.append(
                f"{name:6}{times['refresh_ms']:10.0f}{times['full_ms']:10.0f}"
                f"{times['times_faster']:8.2f}  {times['mode']} {slow}".rstrip()
            )
        if result["reached"]:
            worst = min(times["times_faster"] for times in result["queries"].values())
            lines.append(
                f"geometric mean of the {result['reached']} that the change reaches "
                f"{result['geometric_mean']:.2f}, worst {worst:.2f}"
            )
    return lines


def _hops(of: dict[str, Any]) -> list[str]:
    return [
        f"three hops at {of['rows_per_s']} rows/s, {of['files']} files: readable after "
        f"{of['median_s']:.1f} s (median), p95 {of['p95_s']:.1f} s, slowest {of['slowest_s']:.1f} s; "
        f"{of['checkpoints']} checkpoints"
    ]


def _ingest(of: dict[str, Any]) -> list[str]:
    return [
        f"Kafka, {of['rows']} rows a commit: {of['median_ours_ms']:.0f} ms (median), "
        f"plain Spark {of['median_plain_ms']:.0f} ms, {of['ratio']:.2f} times as long"
    ]


def _idle(of: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{side} {share:.2%}" for side, share in of["cpu_share"].items())
    return [
        f"idle, a look every {of['interval_ms']} ms: {of['spark_jobs']} Spark jobs, a look takes "
        f"{of['median_ms']:.0f} ms (median, longest {of['longest_ms']:.0f}), "
        f"{of['cpu_share_in_all']:.2%} of a CPU ({shares})"
    ]


def _service(of: dict[str, Any]) -> list[str]:
    asked = {name: times for name, times in of.items() if isinstance(times, dict) and "median" in times}
    asked |= {f"{name}, in process": times for name, times in of["in_process"].items()}
    shown = [(name.replace("_", " "), times) for name, times in asked.items()]
    return [
        f"MetaService over HTTP, {of['tables']} tables: ms at the median, the 99th percentile, the slowest",
        *(f"{name:32}{t['median']:8.2f}{t['p99']:8.2f}{t['slowest']:8.2f}" for name, t in shown),
    ]


def _revise(of: dict[str, Any]) -> list[str]:
    return [
        f"{of['tables']} tables taken back to a checkpoint: listed in {of['list_ms']:.0f} ms, "
        f"done in {of['take_back_ms']:.0f} ms"
    ]


def _checkpoint(of: dict[str, Any]) -> list[str]:
    modes = ", ".join(f"{view} by {mode}" for view, mode in of["rounds"][-1]["mode"].items())
    return [
        f"{of['rows']} rows from there to readable ({modes}): {of['median_ms']:.0f} ms (median), "
        f"{of['median_until_cut_ms']:.0f} of them until the cut; "
        f"{of['commits_of_a_checkpoint']} catalog commits, of one table {of['commits_of_a_table']} at most"
    ]


def write(found: dict[str, Any], folder: Path) -> Path:
    """`bench.json` and `bench.txt` in `folder`; returns the text's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(found, indent=2) + "\n")
    text = folder / "bench.txt"
    text.write_text(table(found))
    return text
