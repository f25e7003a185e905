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


def table(results: dict[str, Any]) -> str:
    """Plain text; times in ms."""
    lines = []
    if "tpch" in results:
        lines += _tpch(results["tpch"])
    if "fixed" in results:
        part = results["fixed"]
        lines += [
            "",
            f"{part['delta']} rows into {part['rows']}: {part['median_ms']:.0f} ms (median, after "
            f"{part['warm']} others); into {10 * part['rows']}: {part['median_ms_on_ten_times']:.0f} ms, "
            f"{part['grows_by']:.2f} times as long",
            f"the first {len(part['first_ms'])} of its process: {statistics.median(part['first_ms']):.0f} ms "
            "(median)",
            f"its checkpoint takes {part['jobs']} Spark jobs and {part['messages']} messages between Python "
            f"and JVM, {part['message_ms']:.3f} ms each when they ask for nothing",
        ]
    parts = {
        "ingest": _ingest,
        "skew": _skew,
        "idle": _idle,
        "checkpoint": _checkpoint,
        "hops": _hops,
        "revise": _revise,
        "auto_cdc": _auto_cdc,
        "cdc": _cdc,
        "cdc_tables": _cdc_tables,
        "cdc_idle": _cdc_idle,
        "cdc_lag": _cdc_lag,
        "cdc_state": _cdc_state,
        "service": _service,
        "sink_costs": _sink_costs,
        "sinks": _sinks,
        "sink_tables": _sink_tables,
        "publish": _publish,
        "publish_small": _publish_small,
        "one_shot": _one_shot,
    }
    for name, describe in parts.items():
        if name in results:
            lines += ["", *describe(results[name])]
    if "cluster" in results:
        part = results["cluster"]
        lines += [
            "",
            f"ingestion of {part['rows']} rows on a standalone cluster, {part['cores']} cores here",
        ]
        lines += [
            f"{count:>3} executors: {rates['rows_per_s']:10,.0f} rows/s, "
            f"{rates['fewest_rows']:,.0f} to {rates['most_rows']:,.0f} rows each"
            for count, rates in part["executors"].items()
        ]
    return "\n".join(lines).strip() + "\n"


def _auto_cdc(part: dict[str, Any]) -> list[str]:
    return [
        f"AUTO CDC of {part['keys']:,} keys, of which {part['deleted']:,} are deleted; MB are of 10^6 bytes",
        *(
            f"SCD type {name[-1]} after {batch}: state {sizes['state']['bytes'] / 1e6:.1f} MB "
            f"({sizes['state']['rows']:,} rows), table {sizes['table']['bytes'] / 1e6:.1f} MB "
            f"({sizes['table']['rows']:,} rows); merged in {sizes['merge_s']:.1f} s"
            for batch, types in part["after"].items()
            for name, sizes in types.items()
        ),
    ]


def _cdc(part: dict[str, Any]) -> list[str]:
    append, light_append, follow = "", "", []
    if "jdbc_append_s" in part:
        light_append = (
            f", {part['light_copied_s'] / part['jdbc_append_s']:.2f} times as long as Spark's JDBC source "
            f"and {part['light_copied_cpu_s_per_million'] / part['jdbc_append_cpu_s_per_million']:.2f} times "
            "its CPU"
        )
        append = (
            f"; Spark's JDBC source appends the rows to a table in {part['jdbc_append_s']:.1f} s, "
            f"{part['jdbc_append_cpu_s_per_million']:.1f} CPU seconds for a million: "
            f"{part['bulk_s'] / part['jdbc_append_s']:.2f} times as long, and "
            f"{part['copied_s'] / part['jdbc_append_s']:.2f} times until they are readable"
        )
    if "peer" in part:
        peer = part["peer"]
        times = part["events_per_s"] / peer["events_per_s"]
        cpu = part["events_cpu_s_per_million"] / peer["cpu_s_per_million"]
        follow = [
            f"Debezium and one MERGE, of the same changes into an equal table: "
            f"{peer['events_per_s']:,.0f} events/s, {peer['cpu_s_per_million']:.1f} CPU seconds for a "
            f"million, {peer['log_cpu_s_per_million']:.1f} of them Debezium's; {peer['log_s']:.1f} s until "
            f"the changes are in files, then {peer['merge_s']:.1f} s",
            f"the capture is {times:.2f} times as fast and takes {cpu:.2f} times the CPU",
        ]
    if "peer_skipped" in part:
        follow = [f"Debezium and MERGE are not measured: {part['peer_skipped']}"]
    return [
        f"capture of a PostgreSQL table of {part['events']} rows",
        f"the first copy of a process, of {part['first_copy_rows']:,} rows, takes "
        f"{part['first_copy_s']:.1f} s until they are readable; all others come after it in the same process",
        f"until they are readable, copied: {part['copied_per_s']:,.0f} rows/s, "
        f"{part['copied_cpu_s_per_million']:.1f} CPU seconds for a million; {part['build_s']:.1f} of "
        f"{part['copied_s']:.1f} s build the table from the log",
        f"a run that finds nothing new takes {part['run_without_news_s']:.1f} s and "
        f"{part['run_without_news_cpu_s']:.1f} CPU seconds",
        f"the project is opened in {part['loaded_s']:.1f} s, then the copy comes into the log table in "
        f"{part['bulk_s']:.1f} s, with all else that a run does but build the table{append}",
        f"until they are readable, all updated, a hundred in each transaction: "
        f"{part['events_per_s']:,.0f} events/s, {part['events_cpu_s_per_million']:.1f} CPU seconds for a "
        f"million; {part['merge_s']:.1f} of {part['wall_s']:.1f} s merge the table",
        *follow,
        f"a light capture of the same table: the first copy is readable {part['light_copied_s']:.1f} s after "
        f"the project is opened, {part['light_copied_cpu_s_per_million']:.1f} CPU seconds for a "
        f"million{light_append}; changes: {part['light_events_per_s']:,.0f} events/s, "
        f"{part['light_events_cpu_s_per_million']:.1f} CPU seconds for a million, in a run "
        "after that of the full capture, for which the server has read the log already",
    ]


def _cdc_tables(part: dict[str, Any]) -> list[str]:
    return [
        f"{part['changed']} of {part['tables']} captured tables change, 20 rows of each: a checkpoint takes "
        f"{part['median_checkpoint_ms'] / 1000:.1f} s (median of {len(part['rounds'])}), readable after "
        f"{part['median_readable_ms'] / 1000:.1f} s, {part['median_cpu_s']:.1f} CPU seconds, "
        f"{part['median_jobs']:g} Spark jobs; the first copy took {part['first_s']:.0f} s"
    ]


def _cdc_idle(part: dict[str, Any]) -> list[str]:
    lines = []
    for measured in part["rates"]:
        shares = ", ".join(f"{side} {share:.1%}" for side, share in measured["cpu_share"].items())
        lines.append(
            f"three captured tables with {measured['rate']} changes a second, every "
            f"{part['interval_ms'] / 1000:g} s: {measured['cpu_share_in_all']:.1%} of a CPU ({shares}), "
            f"{measured['jobs_of_a_checkpoint']:.1f} Spark jobs a checkpoint"
        )
    return lines


def _cdc_lag(part: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{side} {share:.0%}" for side, share in part["cpu_share"].items())
    return [
        f"{part['rate']} changes a second of {part['tables']} captured tables for {part['seconds']} s: "
        f"readable {part['median_s']:.1f} s after the transaction's commit (median of {part['transactions']} "
        f"transactions), p95 {part['p95_s']:.1f} s, slowest {part['slowest_s']:.1f} s; {part['checkpoints']} "
        f"checkpoints with a minute of others before, {shares} of a CPU, load {part['median_load']:.1f}",
        f"the writer was {part['writer_late_s']:.1f} s late at the end",
    ]


def _cdc_state(part: dict[str, Any]) -> list[str]:
    million = sum(part["rows"].values()) / 1e6
    names = {
        "copied": "after the copy",
        "merged": f"after checkpoints with {part['changes']} changes each",
        "deleted": f"after {part['deleted']:,} deletions",
        "shortened": "after maintenance, which drops what all tables have from the log",
    }
    copy, most = part["copy"], part["most"]
    lines = [
        f"captured tables of {part['rows']['small']:,} and {part['rows']['large']:,} rows, mode "
        f"{part['mode']}, copied in {copy['wall_s']:.0f} s with {copy['cpu_s']:.0f} CPU seconds; MB below "
        "are of 10^6 bytes",
        f"at most while they are copied: Python {most['python_bytes'] / 1e6:.0f} MB more than before, "
        f"the database's log {most['slot_bytes'] / 1e6:.1f} MB",
    ]
    for name, text in names.items():
        state = part["states"][name]
        tables = ", ".join(
            f"{table.removeprefix('default.')} {entry['bytes'] / 1e6:.1f} MB in {entry['files']} files "
            f"({entry['rows']:,} rows)"
            for table, entry in sorted(state["tables"].items())
        )
        lines.append(
            f"{text}: {tables}; JVM {state['jvm_bytes'] / 1e6:.0f} MB, database's log "
            f"{state['slot_bytes'] / 1e6:.1f} MB"
        )
    stored = part["states"]["copied"]["tables"].items()
    log = next(entry["bytes"] for name, entry in stored if name.endswith("_log"))
    lines.append(f"the log holds {log / million / 1e6:.1f} MB for a million copied rows")
    for spread, entry in part["merges"].items():
        small, large, times = entry["small"], entry["large"], entry["grows_by"]
        lines.append(
            f"{part['changes']} changes of keys {spread}: merged in {small['merge_s']:.2f} s into the small "
            f"table and {large['merge_s']:.2f} s into the large one ({times['merge_s']:.2f}x); checkpoint "
            f"{small['wall_s']:.2f} s and {large['wall_s']:.2f} s ({times['wall_s']:.2f}x), CPU "
            f"{small['cpu_s']:.2f} s and {large['cpu_s']:.2f} s ({times['cpu_s']:.2f}x)"
        )
    return lines


_SINK_WAYS = {
    "encode": "encode",
    "plain": "plain insert",
    "append": "transaction",
    "hashed": "hashed",
    "keyed": "changed rows",
}


_SINK_RATIOS = {
    "append_to_plain": "transaction to encode, plain insert",
    "inserted_to_plain": "the same without encoding",
    "keyed_to_append": "changed rows to transaction",
}


def _sink_costs(part: dict[str, Any]) -> list[str]:
    lines = [
        f"ClickHouse, CPU ms (wall ms)\n{'rows':>10}" + "".join(f"{text:>18}" for text in _SINK_WAYS.values())
    ]
    for size in part["sizes"]:
        costs = [size["costs"].get(name) for name in _SINK_WAYS]
        texts = [
            f"{cost['cpu_s'] * 1000:.0f} ({cost['wall_s'] * 1000:.0f})" if cost else "" for cost in costs
        ]
        lines.append((f"{size['rows']:>10}" + "".join(f"{text:>18}" for text in texts)).rstrip())
    lines.append(
        f"as many times as much CPU (wall)\n{'rows':>10}"
        + "".join(f"{text:>37}" for text in _SINK_RATIOS.values())
    )
    for size in part["sizes"]:
        factors = [size.get(name) for name in _SINK_RATIOS]
        texts = [f"{factor['cpu_s']:.2f} ({factor['wall_s']:.2f})" if factor else "" for factor in factors]
        lines.append((f"{size['rows']:>10}" + "".join(f"{text:>37}" for text in texts)).rstrip())
    return [
        *lines,
        "a minute of a stream, CPU s (wall s)",
        *(
            f"{each['rate']:>6} rows/s, every {each['interval_s']:>2} s: {each['transactions']:>2} "
            f"transactions {each['cpu_s']:6.2f} ({each['wall_s']:.2f}), encoded and inserted plainly "
            f"{each['plain_cpu_s']:6.2f} ({each['plain_wall_s']:.2f})"
            for each in part["intervals"]
        ),
    ]


def _sinks(part: dict[str, Any]) -> list[str]:
    return [
        f"{part['file_rows']} rows from the published checkpoint to the sink's pointer: "
        f"p50 {part['pointer_p50_ms']:.0f} ms, p95 {part['pointer_p95_ms']:.0f} ms of "
        f"{len(part['pointer_ms'])}; the delivery itself takes {part['delivery_p50_ms']:.0f} ms (median)",
        f"{part['task_rows']} rows inserted over HTTP, by tasks (0: the driver) and rows of a chunk",
        *(
            f"{each['tasks']} tasks, {each['chunk_rows']:>6} rows: {each['chunks']:>3} chunks "
            f"{each['wall_s']:6.2f} s {each['rows_per_s']:9,.0f} rows/s"
            for each in part["tasks"]
        ),
    ]


def _sink_tables(part: dict[str, Any]) -> list[str]:
    return [
        f"{part['rows']} updated rows of {part['tables']} tables, from the published checkpoint until "
        f"ClickHouse and PostgreSQL have them: {part['median_delivered_s']:.2f} s, "
        f"{part['median_cpu_s']:.2f} CPU s, {part['median_jobs']:.0f} Spark jobs (medians of "
        f"{len(part['rounds'])}); the deliveries take {part['median_mirror_ms']:.0f} ms and "
        f"{part['median_archive_ms']:.0f} ms",
    ]


def _publish(part: dict[str, Any]) -> list[str]:
    lines = [
        f"One-shot runs over two views that are published in other formats (medians of {part['rounds']})"
    ]
    for result in part["results"]:
        delivery = "" if result["delivery_ms"] is None else f", {result['delivery_ms']:.0f} ms a publication"
        formats = ", ".join(result["formats"]) or "none"
        lines.append(
            f"{result['rows']:>8} rows, {formats:<12} {result['run_ms']:7.0f} ms, "
            f"{result['cpu_s']:5.2f} CPU s{delivery}"
        )
    return lines


def _publish_small(part: dict[str, Any]) -> list[str]:
    lines = [
        f"{part['checkpoints']} checkpoints with {part['rows']} new rows each, published in other formats: "
        "files, and time of reading all rows"
    ]
    for result in part["results"]:
        for table in result["tables"]:
            formats = "; ".join(
                f"{name} {of_format['read_ms']:.0f} ms, {of_format['stored_files']} files stored"
                for name, of_format in table["formats"].items()
            )
            how = "with" if result["maintained"] else "without"
            lines.append(f"{how:>7} maintenance, {table['table']}: {table['files']} files; {formats}")
    return lines


def _one_shot(part: dict[str, Any]) -> list[str]:
    texts = {
        "first": "the first run",
        "one_row": "one new row",
        "no_news": "no news",
        "no_news_published": "no news, published",
    }
    return ["taut run of the sample project, as a process"] + [
        f"{text:18} {part[name]['wall_s']:5.1f} s, {part[name]['cpu_s']:5.1f} CPU s"
        for name, text in texts.items()
    ]


def _tpch(part: dict[str, Any]) -> list[str]:
    lines = [f"TPC-H, scale factor {part['scale']:g}, policy {part['policy']}"]
    for change in part["changes"]:
        lines += [
            "",
            f"{_size(change)} changed by {_CHANGES[change['kind']]}",
            f"{'':6}{'refresh':>10}{'full':>10}{'x':>8}  mode",
        ]
        for name, times in change["queries"].items():
            slow = "; ".join(f"{n['node']}: {n['reason']}" for n in times["slow_nodes"])
            lines.append(
                f"{name:6}{times['refresh_ms']:10.0f}{times['full_ms']:10.0f}"
                f"{times['times_faster']:8.2f}  {times['mode']} {slow}".rstrip()
            )
        if change["reached"]:
            lines += [
                f"geometric mean of the {change['reached']} that the change reaches "
                f"{change['geometric_mean']:.2f}, worst {change['worst']:.2f}, best {change['best']:.2f}",
                f"{change['checkpoint_cpu_s']:.1f} CPU s of the checkpoint, {change['full_cpu_s']:.1f} of "
                "computing these views",
            ]
    return lines


def _size(change: dict[str, Any]) -> str:
    rows = change["changed_rows"]
    return f"{change['share']:.1%}" if rows is None else f"{rows} new rows and as many old ones"


def _hops(part: dict[str, Any]) -> list[str]:
    return [
        f"three hops at {part['rows_per_s']} rows/s, {part['files']} files: readable after "
        f"{part['median_s']:.1f} s (median), p95 {part['p95_s']:.1f} s, slowest {part['slowest_s']:.1f} s; "
        f"{part['checkpoints']} checkpoints"
    ]


def _skew(part: dict[str, Any]) -> list[str]:
    names = {"ours": "shared evenly", "sparks_tasks": "a task for each partition", "plain": "plain Spark"}
    lines = [f"{part['rows']} records of 61 bytes in a commit, from 8 partitions"]
    for layout in ("even", "skewed"):
        of_layout = part[layout]
        for name, text in names.items():
            side = of_layout[name]
            lines.append(
                f"  {layout}, {text}: {side['median_ms']:.0f} ms, {side['rows_per_s']} rows/s, "
                f"{side['cpu_s']:.1f} CPU s, {side['files']:.0f} files"
            )
        lines.append(
            f"  {layout}, ours against plain Spark: {of_layout['time_against_plain']:.2f}x time, "
            f"{of_layout['cpu_against_plain']:.2f}x CPU; against a task for each partition "
            f"{of_layout['time_against_sparks_tasks']:.2f}x, {of_layout['cpu_against_sparks_tasks']:.2f}x"
        )
    return lines


def _ingest(part: dict[str, Any]) -> list[str]:
    return [
        f"Kafka, {part['rows']} rows a commit: {part['median_ours_ms']:.0f} ms (median), "
        f"plain Spark {part['median_plain_ms']:.0f} ms, {part['ratio']:.2f} times as long"
    ]


def _idle(part: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{side} {share:.2%}" for side, share in part["cpu_share"].items())
    return [
        f"idle, a poll every {part['interval_ms']} ms: {part['spark_jobs']} Spark jobs, a poll takes "
        f"{part['median_ms']:.0f} ms (median, longest {part['longest_ms']:.0f}), "
        f"{part['cpu_share_in_all']:.2%} of a CPU ({shares})"
    ]


def _service(part: dict[str, Any]) -> list[str]:
    times_by_request = {
        name: times for name, times in part.items() if isinstance(times, dict) and "median" in times
    }
    times_by_request |= {f"{name}, in process": times for name, times in part["in_process"].items()}
    rows = [(name.replace("_", " "), times) for name, times in times_by_request.items()]
    return [
        f"MetaService over HTTP, {part['tables']} tables: ms at the median, the 99th percentile, the slowest",
        *(f"{name:32}{t['median']:8.2f}{t['p99']:8.2f}{t['slowest']:8.2f}" for name, t in rows),
    ]


def _revise(part: dict[str, Any]) -> list[str]:
    return [
        f"{part['tables']} tables taken back to a checkpoint: listed in {part['list_ms']:.0f} ms, "
        f"done in {part['take_back_ms']:.0f} ms"
    ]


def _checkpoint(part: dict[str, Any]) -> list[str]:
    modes = ", ".join(f"{view} by {mode}" for view, mode in part["rounds"][-1]["mode"].items())
    return [
        f"{part['rows']} rows from the source to readable ({modes}): {part['median_ms']:.0f} ms (median), "
        f"{part['median_until_cut_ms']:.0f} of them until the cut; "
        f"{part['commits_of_a_checkpoint']} commits, of one table {part['commits_of_a_table']} at most"
    ]


def write(results: dict[str, Any], folder: Path) -> Path:
    """`bench.json` and `bench.txt` in `folder`; returns the text's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(results, indent=2) + "\n")
    text = folder / "bench.txt"
    text.write_text(table(results))
    return text
