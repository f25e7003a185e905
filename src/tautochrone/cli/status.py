"""`taut status` and `taut checkpoints`: from the store alone, without Spark."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from tautochrone.app.locate import locate
from tautochrone.app.quarantined_rows import quarantined_rows
from tautochrone.app.stores import existing_store
from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.sinks import sink_line
from tautochrone.cli.stdout import answer
from tautochrone.cli.timestamps import iso_timestamp
from tautochrone.errors import MetaError
from tautochrone.meta import DatasetStatus, Store
from tautochrone.model.checkpoint import RefreshRecord
from tautochrone.model.names import TableName
from tautochrone.model.reason import reason_fields
from tautochrone.model.sink import DeliveryState
from tautochrone.traces import logs_of, traces_in

__all__ = ["checkpoints", "status"]

_DEFECTS = 10


@contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[Store]:
    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        yield store


def status(arguments: argparse.Namespace) -> int:
    """Every dataset, or the history of one. `checkpoint` and `lag_ms` are what readers see, `done` and
    `done_lag_ms` how far its own job is."""
    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        statuses = store.datasets.statuses()
        bad_records = quarantined_rows(statuses, settings.catalog)
        if arguments.name:
            statuses = tuple(entry for entry in statuses if _matches(entry.dataset, arguments.name))
            if not statuses:
                raise MetaError("DATASET_NOT_FOUND", f"No dataset is called {arguments.name}")
        if arguments.history:
            for entry in statuses:
                _history(store, entry.dataset, arguments)
            return 0
        sinks = [] if arguments.name else _sink_lines(store)
    lines = [
        {
            "dataset": str(entry.dataset),
            "kind": entry.kind,
            "checkpoint": entry.readable,
            "done": entry.checkpoint,
            "mode": None if entry.mode is None else str(entry.mode),
            **reason_fields("reason", entry.reason),
            "lag_ms": entry.readable_lag_ms,
            "done_lag_ms": entry.lag_ms,
            "quarantined": bad_records.get(entry.dataset),
            "skipped": sum(skipped.count for skipped in entry.skipped) or None,
            "skipped_files": [asdict(skipped) for skipped in entry.skipped],
            "violations": _violations(entry),
            "expectations": [asdict(count) for count in entry.expectations],
            "error": entry.error,
        }
        for entry in statuses
    ]
    quarantines = ("quarantined",) if bad_records else ()
    skips = ("skipped",) if any(entry.skipped for entry in statuses) else ()
    # A job is ahead of what readers see only where several jobs share a checkpoint.
    ahead = ("done",) if any(entry.checkpoint != entry.readable for entry in statuses) else ()
    violations = ("violations",) if any(entry.expectations for entry in statuses) else ()
    counts = (*quarantines, *skips, *violations)
    columns = ("dataset", "kind", "checkpoint", *ahead, "mode", "lag_ms", *counts, "error")
    _show(lines, columns, as_json=arguments.json)
    if not arguments.json:
        _show_skipped(statuses)
        _show_expectations(statuses)
    _show_sinks(sinks, as_json=arguments.json)
    _defects(settings.storage, as_json=arguments.json)
    return 0


def _sink_lines(store: Store) -> list[dict[str, object]]:
    """The sinks that a job still writes."""
    now_ms, sinks = store.now_ms(), store.deliveries.sinks()
    return [sink_line(sink, now_ms) for sink in sinks if sink.state is not DeliveryState.RETIRED]


def _show_sinks(sinks: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """The sinks; a line of JSON has `sink` instead of `dataset`."""
    columns = ("sink", "format", "state", "checkpoint", "lag_ms", "batch", "rows", "error")
    if sinks:
        _show(sinks, columns, as_json=as_json)


def _defects(storage: str, *, as_json: bool) -> None:
    """The defects that left a trace, newest first. A line of JSON has `defect` instead of `dataset`."""
    for trace in traces_in(logs_of(storage))[:_DEFECTS]:
        if as_json:
            json_line(
                {
                    "defect": trace.error_class,
                    "at": trace.at,
                    "where": trace.where,
                    "message": trace.message,
                    "file": str(trace.file),
                }
            )
        else:
            answer().write(f"defect: {trace.at}  {trace.where}  {trace.error_class}  {trace.file}\n")


def _show_skipped(statuses: Sequence[DatasetStatus]) -> None:
    for status in statuses:
        for skipped in status.skipped:
            more = (
                f" and {skipped.count - len(skipped.paths)} more"
                if skipped.count > len(skipped.paths)
                else ""
            )
            answer().write(
                f"{status.dataset}: flow {skipped.flow} skipped {skipped.count} files ({skipped.reason}): "
                f"{', '.join(skipped.paths)}{more}\n"
            )


def _violations(status: DatasetStatus) -> int | None:
    """Violations of all expectations of a dataset; None if it has no expectation."""
    return sum(count.violations for count in status.expectations) if status.expectations else None


def _show_expectations(statuses: Sequence[DatasetStatus]) -> None:
    for status in statuses:
        for count in status.expectations:
            answer().write(
                f"{status.dataset}: {count.violations} rows violate {count.name!r} ({count.action}), "
                f"{count.change:+} by the last change\n"
            )


def _history(store: Store, dataset: TableName, arguments: argparse.Namespace) -> None:
    records = store.history.refreshes(dataset, arguments.limit)
    lines = [_record_line(record) for record in records]
    if arguments.json:
        _show(lines, (), as_json=True)
        return
    answer().write(f"{dataset}\n")
    shown = {title: key for title, key in _HISTORY.items() if key != "error" or any(r.error for r in records)}
    table(tuple(shown), [[line[key] for key in shown.values()] for line in lines])
    if arguments.nodes:
        answer().write("\n")
        nodes = [
            (int(record.checkpoint), node.node, str(node.mode), str(node.reason))
            for record in records
            if record.refresh is not None
            for node in record.refresh.nodes
        ]
        table(("checkpoint", "node", "mode", "reason"), nodes)


_HISTORY = {
    "checkpoint": "checkpoint",
    "finished_at": "finished_at",
    "mode": "mode",
    "changed": "delta_rows",
    "inserted": "rows_inserted",
    "deleted": "rows_deleted",
    "expected_ms": "estimate_ms",
    "took_ms": "duration_ms",
    "cpu_ms": "cpu_ms",
    "reason": "reason",
    "error": "error",
}
"""Columns for people and the fields of `--json` that they show."""


def _record_line(record: RefreshRecord) -> dict[str, object]:
    refresh = record.refresh
    return {
        "dataset": str(record.dataset),
        "checkpoint": int(record.checkpoint),
        "version": record.version,
        "mode": None if refresh is None else str(refresh.mode),
        **reason_fields("reason", None if refresh is None else refresh.reason),
        "delta_rows": None if refresh is None else refresh.delta_rows,
        "rows_inserted": None if refresh is None else refresh.rows_inserted,
        "rows_deleted": None if refresh is None else refresh.rows_deleted,
        "estimate_ms": None if refresh is None else refresh.estimate_ms,
        "duration_ms": None if refresh is None else refresh.duration_ms,
        "cpu_ms": None if refresh is None else refresh.cpu_ms,
        "nodes": [
            {"node": node.node, "mode": str(node.mode), **reason_fields("reason", node.reason)}
            for node in (refresh.nodes if refresh else ())
        ],
        "expectations": [asdict(count) for count in (refresh.expectations if refresh else ())],
        **reason_fields("error", record.failure),
        "finished_at": iso_timestamp(record.finished_at_ms),
    }


def checkpoints(arguments: argparse.Namespace) -> int:
    """The newest checkpoints, newest first."""
    with _store(arguments) as store:
        lines = [
            {
                "checkpoint": int(checkpoint.number),
                "state": str(checkpoint.state),
                "cut_at": iso_timestamp(checkpoint.cut_at_ms),
                "published_at": iso_timestamp(checkpoint.published_at_ms),
                "reason": "; ".join(invariant.error for invariant in checkpoint.broken) or None,
                "broken": [asdict(invariant) for invariant in checkpoint.broken],
                "roots": {str(name): version for name, version in checkpoint.roots.items()},
            }
            for checkpoint in store.checkpoints.newest(arguments.limit)
        ]
    _show(lines, ("checkpoint", "state", "cut_at", "published_at", "reason"), as_json=arguments.json)
    return 0


def _matches(dataset: TableName, text: str) -> bool:
    return text.lower() in (str(dataset).lower(), dataset.without_catalog.lower(), dataset.table.lower())


def _show(lines: Sequence[Mapping[str, object]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        for line in lines:
            json_line(line)
    else:
        table(columns, [[line[column] for column in columns] for line in lines])
