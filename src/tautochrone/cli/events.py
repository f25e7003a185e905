"""A run's events as text: one line each, JSON objects, failures only. The live display is `live`.

An event without a text here is shown with all its fields: an unknown event must
not be lost, and must not end the run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tautochrone.cli.output import json_line
from tautochrone.model.events import as_json_fields

__all__ = ["describe", "failures", "is_failure", "json_events", "line_events", "short"]

Fields = Mapping[str, Any]
_LOCK = threading.Lock()
_SHOWN_NAMES = 8


def json_events(event: str, /, **fields: Any) -> None:
    """Every event as one JSON object on stdout."""
    json_line({"event": event, **as_json_fields(fields)})


def line_events(event: str, /, **fields: Any) -> None:
    """Every event as one readable line on stderr; the hint of a failure is a second one."""
    _write_line(describe(event, fields))


def failures(event: str, /, **fields: Any) -> None:
    """Only what failed: `--quiet`."""
    if is_failure(event):
        _write_line(describe(event, fields))


def is_failure(event: str) -> bool:
    """Names of failures end so: `flow_failed`, `refresh_failed`, `invariant_broken`, `spark_died`; and
    `checkpoint_left`, after which readers miss what the run did."""
    return event.endswith(("_failed", "_broken", "_died")) or event == "checkpoint_left"


def describe(event: str, fields: Fields) -> str:
    """The text of an event for people; empty for events without news."""
    try:
        return _TEXTS.get(event, _all_fields)(event, fields)
    except (LookupError, TypeError, ValueError, AttributeError):
        # Its fields are not those that its text expects.
        return _all_fields(event, fields)


def short(dataset: str) -> str:
    """A dataset's name without its catalog, which is the same for all."""
    return dataset.partition(".")[2] or dataset


def _write_line(line: str) -> None:
    if line:
        with _LOCK:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _all_fields(event: str, fields: Fields) -> str:
    pairs = " ".join(
        f"{key}={value}"
        for key, value in fields.items()
        # The text of a reason says what its code and its parameters say.
        if value not in (None, "", []) and not key.endswith(("_code", "_params", "_reasons"))
    )
    return f"{event.replace('_', ' ')}: {pairs}".rstrip(": ")


def _reason_of(event: str, f: Fields) -> str:
    """What happened to a dataset or a sink, and why.

    >>> _reason_of("columns_added", {"dataset": "lake.a.t", "columns": ["x", "y"], "reason": "because"})
    '  a.t                              columns added (columns x, y): because'
    """
    details = [
        f"{key} {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for key, value in f.items()
        if key not in ("dataset", "sink", "flow", "reason") and not key.startswith("reason_")
        if value not in (None, "", [])
    ]
    subject = short(f["dataset"]) if "dataset" in f else f"sink {f['sink']}"
    more = f" ({'; '.join(details)})" if details else ""
    return f"  {subject:<32} {event.replace('_', ' ')}{more}: {f['reason']}"


def _some_of(names: Sequence[str]) -> str:
    """The names, or the first ones of many; the event has all.

    >>> _some_of([f"t{number}" for number in range(20)])
    't0, t1, t2, t3, t4, t5, t6, t7 and 12 others'
    """
    others = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {others} others" if others > 0 else "")


def _graph(_event: str, f: Fields) -> str:
    kinds = [entry["kind"] for entry in f["datasets"]]
    counts = ", ".join(
        f"{kinds.count(kind)} {kind}{'s' * (kinds.count(kind) > 1)}" for kind in sorted({*kinds})
    )
    return f"the definitions fit together: {counts}"


def _of_change_log(f: Fields) -> str:
    """How far the copy and the log are, for flows that read the change log of a database.

    >>> _of_change_log({"chunks_left": 2, "lag": {"bytes": 4096}})
    ', 2 chunks of the copy left, 4,096 bytes behind'
    >>> _of_change_log({"chunks_left": 1})
    ', 1 chunk of the copy left'
    """
    left = f.get("chunks_left")
    copy = f", {left} chunk{'s' * (left != 1)} of the copy left" if left else ""
    return copy + "".join(f", {count:,} {unit} behind" for unit, count in f.get("lag", {}).items())


def _violations(f: Fields) -> str:
    """The expectations of a dataset that rows violate."""
    violated = [f"{e['name']!r} {e['violations']:,}" for e in f.get("expectations", ()) if e["violations"]]
    return f"  violations: {', '.join(violated)}" if violated else ""


def _refresh(_event: str, f: Fields) -> str:
    return (
        f"  {short(f['dataset']):<32} {f['mode'].upper():<11} +{f['rows_inserted']:,} "
        f"-{f['rows_deleted']:,} rows  {f['duration_ms'] / 1000:.1f} s  ({f['reason']}){_violations(f)}"
    )


def _checkpoint(_event: str, f: Fields) -> str:
    failed = f"  FAILED: {', '.join(f['failed'])}" if f["failed"] else ""
    duration = f"in {f['duration_ms'] / 1000:.1f} s{failed}"
    if f.get("state", "published") == "published":
        return f"checkpoint {f['checkpoint']} published {duration}"
    obstacles = [f"waits for job {name}" for name in f.get("waits_for", ())]
    obstacles += [f"job {name} skipped it" for name in f.get("skipped_by", ())]
    obstacles += [f"held back by invariant {name}" for name in f.get("invariants", ())]
    suffix = f" ({'; '.join(obstacles)})" if obstacles else ""
    return f"checkpoint {f['checkpoint']}: this job's part is done {duration}; not published yet{suffix}"


def _refresh_failed(_event: str, f: Fields) -> str:
    lines = [f"  {f['dataset']} FAILED at checkpoint {f['checkpoint']}: {f['error']}"]
    lines += [f"    hint: {f['hint']}"] if f.get("hint") else []
    return "\n".join(lines)


def _flow_failed(_event: str, f: Fields) -> str:
    lines = [f"  flow {f['flow']} FAILED: {f['error']}"]
    lines += [f"    hint: {f['hint']}"] if f.get("hint") else []
    lines += [f"    it is started again in {f['again_in_s']:g} s"] if f.get("again_in_s") else []
    return "\n".join(lines)


def _sink_failed(_event: str, f: Fields) -> str:
    times = f" {f['failures']} times in a row" if f["failures"] > 1 else ""
    lines = [f"  sink {f['sink']} FAILED{times}: {f['error']}"]
    lines += [f"    hint: {f['hint']}"] if f.get("hint") else []
    again = f.get("retry_in_ms")
    lines += [
        "    trying again cannot help" if again is None else f"    it is tried again in {again / 1000:g} s"
    ]
    return "\n".join(lines)


def _spark_died(_event: str, f: Fields) -> str:
    lines = [f"{f['error']}"] + ([f"  hint: {f['hint']}"] if f.get("hint") else [])
    return "\n".join(lines)


def _invariant_broken(_event: str, f: Fields) -> str:
    more = f["at_least"] or f["rows"] > len(f["sample"])
    rows = [f"    {row}" for row in f["sample"]] + ["    …"] * bool(more and f["sample"])
    return "\n".join([f"  {f['error']} (checkpoint {f['checkpoint']})", *rows])


def _outcome(f: Fields, word: str) -> str:
    return f"would be {word}" if f["dry_run"] else word


def _replaced(f: Fields) -> list[tuple[str, object]]:
    """Tables of which a sink got all rows, and why."""
    return [(short(str(table)), why) for table, why in (f.get("replaced") or {}).items()]


_WITH_REASON = (
    "batch_skipped",
    "bulk_again",
    "columns_added",
    "compaction_skipped",
    "copy_waits",
    "flow_from_snapshot",
    "log_not_shortened",
    "orphans_skipped",
    "refresh_waiting",
    "sink_login_again",
    "sink_not_served",
    "sink_recovered",
    "sink_retired",
    "sink_skipped",
    "sink_waiting",
    "source_alarm",
    "view_not_persisted",
)

_TEXTS: dict[str, Callable[[str, Fields], str]] = {
    "starting": lambda _e, f: f"pipeline {f['pipeline']}: starting Spark on {f['master']} (about 6 s)",
    "jar_download": lambda _e, f: f"downloading jar {f['number']} of {f['total']}: {f['artifact']}",
    "graph": _graph,
    "catalog": lambda _e, f: f"readable at one instant as Iceberg REST catalog {f['uri']} (warehouse strong)",
    "takeover": lambda _e, f: f"job {f['job']} taken over with fence {f['fence']}",
    "store_reconciled": lambda _e, f: (
        f"the store is {'an older copy' if f['relation'] == 'restored' else 'another one'}: it now "
        f"agrees with the lake, numbers go on above {f['numbers_above']:,}\n  {f['reason']}"
    ),
    "sink_batch": lambda _e, f: (
        f"  sink {f['sink']}: batch {f['batch']} of {f['flow']}, {f['rows']:,} rows" if f["rows"] else ""
    ),
    "sink_delivered": lambda _e, f: (
        f"  sink {f['sink']}: checkpoint {f['checkpoint']} delivered, {f['rows']:,} rows  "
        f"{f['duration_ms'] / 1000:.1f} s" + "".join(f"\n    {name}: {why}" for name, why in _replaced(f))
    ),
    "sink_failed": _sink_failed,
    "bulk_complete": lambda _e, f: f"  {short(f['dataset']):<32} copied: {_some_of(f['relations'])}",
    **dict.fromkeys(_WITH_REASON, _reason_of),
    "adopted": lambda _e, f: (
        f"  {short(f['dataset']):<32} "
        f"{'left to be rebuilt' if f['action'] == 'rebuild' else 'taken over'} at version {f['version']}"
    ),
    "table_copied": lambda _e, f: (
        f"  {short(f['dataset']):<32} {'would be copied' if f['dry_run'] else 'copied'}: "
        f"{f['files']:,} files, {f['bytes']:,} bytes"
    ),
    "nothing_to_adopt": lambda _e, f: f"nothing to take over for job {f['job']}: {f['reason']}",
    "pipeline_renamed": lambda _e, f: (
        f"{f['tables']} tables of pipeline {f['before']} belong to pipeline {f['pipeline']} now"
    ),
    "relocated": lambda _e, f: (
        f"{f['storage']} is a storage of its own now: {f['tables']} tables and views, "
        f"{f['source_lists']} lists of source files"
    ),
    "relocation_outside": lambda _e, f: (
        f"  {short(f['table']):<32} {f['files']} files left alone, such as {f['sample']}: {f['reason']}"
    ),
    "batch": lambda _e, f: (
        f"  {short(f['dataset']):<32} ingested +{f['rows']:,} rows (batch {f['batch']}){_violations(f)}"
        f"{_of_change_log(f)}"
    ),
    "definition_warning": lambda _e, f: f"warning: {f['location']}: {f['reason']}",
    "source_read_twice": lambda _e, f: (
        f"warning: {', '.join(map(short, f['datasets']))} ({', '.join(f['locations'])}): {f['reason']}\n"
        f"  hint: {f['hint']}"
    ),
    "setting_ignored": lambda _e, f: f"warning: {f['setting']} ({f['origin']}) is ignored: {f['reason']}",
    "catalog_mapped": lambda _e, f: f"warning: {f['location']}: {f['reason']}",
    "table_format_mapped": lambda _e, f: f"warning: {short(f['dataset'])} ({f['location']}): {f['reason']}",
    "quarantined": lambda _e, f: (
        f"  {short(f['dataset']):<32} {f['records']:,} bad records set aside in {short(f['beside'])}, "
        f"the first at {f['first']}: {f['reason']}"
    ),
    "source_files_skipped": lambda _e, f: (
        f"  {short(f['dataset']):<32} {f['files']:,} source files skipped ({f['reason']}): "
        f"{', '.join(f['paths'][:3])}{', …' if f['files'] > 3 else ''}"
    ),
    "files_taken_in": lambda _e, f: (
        f"  {f['files']:<32} {f['added']:,} files added, {f['changed']:,} changed, {f['removed']:,} removed"
    ),
    "files_not_taken_in": lambda _e, f: f"  {f['files']:<32} compared as a whole: {f['reason']}",
    "source_files_unchecked": lambda _e, f: f"  {short(f['dataset']):<32} {f['reason']}",
    "source_rows_left_out": lambda _e, f: f"  {short(f['dataset']):<32} {f['reason']}",
    "kafka_topic_recreated": lambda _e, f: (
        f"  {short(f['dataset']):<32} recreated topics {', '.join(f['topics'])}: {f['reason']}"
    ),
    "kafka_topic_ids_unknown": lambda _e, f: f"  {short(f['dataset']):<32} {f['reason']}",
    "copied_through_log": lambda _e, f: (
        f"  {short(f['dataset']):<32} {f['relation']} is copied through the log: {f['reason']}"
    ),
    "changes_through_log": lambda _e, f: (
        f"  {short(f['dataset']):<32} changes of {f['relation']} go through the log: {f['reason']}"
    ),
    "log_written_by_spark": lambda _e, f: f"  {short(f['dataset']):<32} written by Spark: {f['reason']}",
    "few_input_rows": lambda _e, f: (
        f"  views whose inputs hold at most {f['rows']:,} rows together are compared (DIFF) unless rows were "
        "only added: that is cheaper than following a change"
    ),
    "refresh": _refresh,
    "refresh_failed": _refresh_failed,
    "flow_failed": _flow_failed,
    "invariant_broken": _invariant_broken,
    "spark_died": _spark_died,
    "spark_restarting": lambda _e, f: f"a new Spark is started in {f['in_s']:g} s (attempt {f['attempt']})",
    "definitions_reloading": lambda _e, f: (
        f"{f['error']}\ndefinitions are loaded anew in {f['in_s']:g} s, by a new start of this run"
    ),
    "definitions_not_reloaded": lambda _e, f: (
        f"definitions cannot be loaded anew: {f['error']}"
        + (f"\n  hint: {f['hint']}" if f.get("hint") else "")
    ),
    "flow_restarted": lambda _e, f: f"  flow {f['flow']} started again (attempt {f['attempt']})",
    "flow_recovered": lambda _e, f: f"  flow {f['flow']} has recovered",
    "checkpoint": _checkpoint,
    "checkpoints_expired": lambda _e, f: (
        f"maintenance: {f['count']} checkpoints {_outcome(f, 'expired')} ({f['first']} to {f['last']}): "
        f"{f['reason']}"
    ),
    "versions_expired": lambda _e, f: (
        f"  {short(f['dataset']):<32} {f['versions']} versions {_outcome(f, 'removed')}, {f['kept']} kept, "
        f"{f['files']} files deleted  {f['duration_ms'] / 1000:.1f} s"
    ),
    "compacted": lambda _e, f: (
        f"  {short(f['dataset']):<32} {f['files_before']} files rewritten as {f['files_after']}  "
        f"{f['duration_ms'] / 1000:.1f} s"
    ),
    "log_shortened": lambda _e, f: (
        f"  {short(f['dataset']):<32} {f['rows']} rows in {f['files']} files dropped: {f['reason']}  "
        f"{f['duration_ms'] / 1000:.1f} s"
    ),
    "orphans_removed": lambda _e, f: "\n".join(
        [
            f"  {short(f['dataset']):<32} {f['count']} files that nothing refers to ({f['bytes']:,} bytes) "
            f"{_outcome(f, 'deleted')}  {f['duration_ms'] / 1000:.1f} s",
            *(f"    {file}" for file in f["files"]),
        ]
    ),
    "meta_service_away": lambda _e, f: f"{f['error']}; asked again in {f['retry_in_ms'] / 1000:.1f} s",
    "meta_service_back": lambda _e, f: (
        f"the MetaService at {f['url']} answers again, after {f['duration_ms'] / 1000:.1f} s"
    ),
    "revised": lambda _e, f: f"  {short(f['dataset']):<32} {f['action']}  ({f['reason']})",
    "revision": lambda _e, f: (
        f"revision {f['revision']}: {f['tables']} tables; the next run computes them again; "
        f"`taut revise --confirm {f['revision']}` drops the old data"
    ),
    "checkpoint_published": lambda _e, f: f"checkpoint {f['checkpoint']} published: all jobs did their part",
    "checkpoint_held": lambda _e, f: f"checkpoint {f['checkpoint']} is not shown to readers: {f['reason']}",
    "waiting_for_jobs": lambda _e, f: f"waiting for checkpoint {f['checkpoint']}: {f['reason']}",
    "checkpoint_left": lambda _e, f: (
        f"[{f['error_class']}] readers do not see all that was there when this run began: {f['reason']}"
    ),
    "waiting_for_run": lambda _e, f: f"waiting: {f['reason']}",
    "no_news": lambda _e, _f: "",
    "stopping": lambda _e, _f: "stopping after what is under way (Ctrl-C again: at once)",
    "run": lambda _e, f: f"run {f['state']}",
}
