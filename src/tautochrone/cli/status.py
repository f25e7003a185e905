"""`taut status`, `checkpoints`, `sinks` and `sources`: how far a pipeline is. All but `sources` read the
store alone, without Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tautochrone.app.locate import locate
from tautochrone.app.stores import existing_store
from tautochrone.app.unchanged import since_last_run
from tautochrone.cli.options import options_of, say_sinks_are_off
from tautochrone.cli.output import answer, json_line, show, table
from tautochrone.errors import EnvironmentProblemError, MetaError, SettingsError, SinkError, TableMissingError
from tautochrone.meta import DatasetStatus, RefreshTotals, Store
from tautochrone.metaservice.flow_sources import flow_sources
from tautochrone.metaservice.last_words import last_words
from tautochrone.model.alarms import Alarm, AlarmRule
from tautochrone.model.auto_cdc import EVENTS_SET_ASIDE
from tautochrone.model.checkpoint import RefreshRecord
from tautochrone.model.counts import counted
from tautochrone.model.dataset_change import DatasetChange
from tautochrone.model.durations import duration
from tautochrone.model.foreign import FOREIGN_PATH_KEY, FOREIGN_VERSION_KEY
from tautochrone.model.jobs import JobStatus, Liveness, quarantines_of
from tautochrone.model.moments import iso_timestamp
from tautochrone.model.names import TableName, describe_input, is_shadow_table
from tautochrone.model.near_names import matching_tables, near_names_hint, table_spellings
from tautochrone.model.reason import reason_fields
from tautochrone.model.run_report import Quarantine
from tautochrone.model.sink import DeliveryState, SinkStatus
from tautochrone.model.source import MALFORMED_DROPPED, MALFORMED_WRITTEN, quarantine_of
from tautochrone.model.what_if import INTERVALS, LOOKED_AT, what_if
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.traces import logs_of, traces_in

if TYPE_CHECKING:
    from tautochrone.app.captures import CaptureStatus
    from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
    from tautochrone.project.settings import Settings

__all__ = ["checkpoints", "show_last_words", "show_sources", "sinks", "source_line", "sources", "status"]

_DEFECTS = 10
_DAY_MS = 24 * 3_600_000
_ALARMS = 5


# -- taut status --------------------------------------------------------------------------------------


def status(arguments: argparse.Namespace) -> int:
    """Every dataset, or the history of one. `checkpoint` and `lag_ms` are what readers see, `done` and
    `done_lag_ms` how far its own job is.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
    """
    _require_one_list(arguments)
    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        all_statuses = statuses = store.datasets.statuses()
        if arguments.name:
            known = [entry.dataset for entry in all_statuses]
            named = set(matching_tables(arguments.name, known))
            statuses = tuple(entry for entry in statuses if entry.dataset in named)
            if not statuses:
                raise MetaError(
                    "DATASET_NOT_FOUND",
                    f"No dataset is called {arguments.name}",
                    hint=near_names_hint(
                        arguments.name,
                        known,
                        "there are",
                        "`taut run` registers datasets",
                        spellings=table_spellings,
                    ),
                )
        if arguments.cost or arguments.what_if:
            return _costs(store, arguments) if arguments.cost else _what_ifs(store, statuses, arguments)
        jobs, alarms = store.jobs.states(), store.alarms.current()
        bad_records = _quarantined_rows(all_statuses, settings.catalog)
        if arguments.history:
            for entry in statuses:
                _history(store, entry.dataset, arguments)
            return 0
        sink_lines = [] if arguments.name else _sink_lines(store, with_retired=False)
        table_ids = {} if arguments.name else store.datasets.retired_table_ids()
        pending = () if arguments.name else store.datasets.pending_changes()
        now_ms = store.now_ms()
        totals = {entry.dataset: entry for entry in store.history.totals(now_ms - _DAY_MS)}
    last_bad = quarantines_of(jobs)
    lines = [
        {
            **_dataset_line(entry, bad_records, totals.get(entry.dataset)),
            "bad_record": last_bad[str(entry.dataset)].text if str(entry.dataset) in last_bad else None,
        }
        for entry in statuses
    ]
    quarantines = ("quarantined",) if bad_records else ()
    skips = ("skipped",) if any(entry.skipped for entry in statuses) else ()
    # A job is ahead of what readers see only where several jobs share a checkpoint.
    ahead = ("done",) if any(entry.checkpoint != entry.readable for entry in statuses) else ()
    violations = ("violations",) if any(entry.expectations for entry in statuses) else ()
    counts = (*quarantines, *skips, *violations)
    columns = ("dataset", "kind", "state", "checkpoint", *ahead, "mode", "lag", *counts, "error")
    if not arguments.json:
        say_sinks_are_off(settings)
        _show_jobs(jobs, statuses, settings, now_ms)
        _show_alarms(alarms)
    shown = lines if arguments.json else map(_with_lag, lines)
    show(shown, columns, as_json=arguments.json, empty="no dataset is registered")
    if arguments.json:
        for job in jobs:
            json_line(_job_line(job, settings))
    if not arguments.json:
        _show_skipped(statuses)
        _show_expectations(statuses)
        _show_quarantines(statuses, last_bad)
    left = [name for name, identity in table_ids.items() if _is_left(settings.catalog, name, identity)]
    _show_retired(left, pending, as_json=arguments.json)
    _show_sinks(sink_lines, as_json=arguments.json)
    _defects(settings.storage, as_json=arguments.json)
    return 0


def _show_jobs(
    jobs: Iterable[JobStatus], statuses: Iterable[DatasetStatus], settings: Settings, now_ms: int
) -> None:
    """A line for each job with datasets that does not run, or works. That one is not running is part of the
    answer."""
    shown = {status.job for status in statuses}
    for job in jobs:
        words = last_words(job)
        if job.name not in shown:
            continue
        seen = iso_timestamp(job.seen_ms)
        if words is not None:
            state = "is NOT RUNNING since" if job.liveness is Liveness.STOPPED else "FAILED at"
            answer().write(f"job {job.name} {state} {seen}: {words.process}\n")
            show_last_words(words.error, words.hint, words.lines, words.command)
        elif job.work is not None:
            sys.stderr.write(f"job {job.name}: {job.work.text(now_ms)}\n")
        elif job.liveness is Liveness.ENDED:
            since = since_last_run(settings, job)
            news = "" if since is None else f"; {since}"
            sys.stderr.write(f"job {job.name}: the last run ended at {seen}{news}\n")


def show_last_words(error: str | None, hint: str | None, lines: Sequence[str], command: str) -> None:
    """What is known of a job that does not run, after the line that says so; see `LastWords`."""
    if error:
        answer().write(f"  {error}\n")
    if hint:
        answer().write(f"  hint: {hint}\n")
    if lines:
        answer().write("  its last lines:\n")
        answer().writelines(f"    | {line}\n" for text in lines for line in text.splitlines())
    answer().write(f"  `{command}` goes on where it stopped\n")


def _job_line(job: JobStatus, settings: Settings) -> dict[str, object]:
    """A job as an object of JSON; it has `job` instead of `dataset`."""
    words = last_words(job)
    return {
        "job": job.name,
        "pipeline": job.pipeline,
        "liveness": str(job.liveness),
        "seen_at": iso_timestamp(job.seen_ms),
        "last_words": None if words is None else asdict(words),
        "work": None if job.work is None else asdict(job.work),
        "sources": flow_sources(job),
        **reason_fields("since_last_run", since_last_run(settings, job)),
    }


def _show_alarms(alarms: Sequence[Alarm]) -> None:
    """How many there are; `taut alarms` says which."""
    shown = [alarm for alarm in alarms if alarm.rule is not AlarmRule.JOB_NOT_RUNNING]
    if shown:
        number = counted(len(shown), "alarm")
        names = ", ".join(f"{alarm.rule} {alarm.subject}" for alarm in shown[:_ALARMS])
        answer().write(f"{number}: {names}{', …' if len(shown) > _ALARMS else ''}; see `taut alarms`\n")


def _dataset_line(
    entry: DatasetStatus, bad_records: Mapping[TableName, int | None], day: RefreshTotals | None
) -> dict[str, object]:
    """A dataset as an object of JSON. `last_day` has what its refreshes took, as far as they are kept."""
    return {
        "dataset": str(entry.dataset),
        "kind": entry.kind,
        "state": str(entry.state),
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
        "last_day": None
        if day is None
        else {
            "refreshes": {str(mode): number for mode, number in day.refreshes.items()},
            "failed": day.failed,
            "duration_ms": day.duration_ms,
            "cpu_ms": day.cpu_ms,
            "rows_inserted": day.rows_inserted,
            "rows_deleted": day.rows_deleted,
            "is_cut": day.is_cut,
        },
    }


def _with_lag(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line for people: its lag as a duration."""
    return {**line, "lag": duration(line["lag_ms"])}


def _sink_lines(store: Store, *, with_retired: bool) -> list[dict[str, object]]:
    """All sinks, or those that a job still writes."""
    now_ms = store.now_ms()
    running = {job.name for job in store.jobs.states() if job.liveness is Liveness.RUNNING}
    return [
        _sink_line(sink, now_ms, is_running=sink.job in running)
        for sink in store.deliveries.sinks()
        if with_retired or sink.state is not DeliveryState.RETIRED
    ]


def _works(lines: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """The column of what deliveries do, if one does something."""
    return ("work",) if any(line["work"] for line in lines) else ()


def _show_sinks(lines: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """The sinks; a line of JSON has `sink` instead of `dataset`."""
    columns = ("sink", "format", "state", "checkpoint", *_works(lines), "lag", "batch", "rows", "error")
    if lines:
        show(lines if as_json else map(_with_lag, lines), columns, as_json=as_json)


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
                f"{status.dataset}: flow {skipped.flow} skipped {counted(skipped.count, 'file')} "
                f"({skipped.reason}): {', '.join(skipped.paths)}{more}\n"
            )


def _violations(status: DatasetStatus) -> int | None:
    """Violations of all expectations of a dataset, with records of files that did not parse; None if neither
    is counted."""
    return sum(count.violations for count in status.expectations) if status.expectations else None


_COUNTED = {
    MALFORMED_WRITTEN: ("record", "of files did not parse (rows with NULL)"),
    MALFORMED_DROPPED: ("record", "of files did not parse (dropped by the reader)"),
    EVENTS_SET_ASIDE: ("event", "without a key or a sequence value (not merged)"),
}


def _show_expectations(statuses: Sequence[DatasetStatus]) -> None:
    for status in statuses:
        for count in status.expectations:
            verb = "violates" if count.violations == 1 else "violate"
            noun, what = _COUNTED.get(count.name, ("row", f"{verb} {count.name!r} ({count.action})"))
            number = counted(count.violations, noun)
            answer().write(f"{status.dataset}: {number} {what}, {count.change:+} by the last change\n")


def _show_quarantines(statuses: Sequence[DatasetStatus], known: Mapping[str, Quarantine]) -> None:
    """Of each dataset, where the first bad record of its last batch with some is."""
    for status in statuses:
        if (quarantine := known.get(str(status.dataset))) is not None:
            at = iso_timestamp(quarantine.last_ms)
            answer().write(f"{status.dataset}: bad records set aside, the last at {at}: {quarantine.text}\n")


def _costs(store: Store, arguments: argparse.Namespace) -> int:
    """What refreshes took by day and dataset: the newest day first, of a day what took most CPU time."""
    totals = [
        entry
        for entry in store.history.totals(0, by_day=True)
        if not arguments.name or matching_tables(arguments.name, [entry.dataset])
    ]
    totals.sort(key=lambda entry: (-(entry.cpu_ms or 0), -entry.duration_ms, str(entry.dataset)))
    totals.sort(key=lambda entry: entry.day or "", reverse=True)
    lines = [
        {
            "dataset": str(entry.dataset),
            "day": entry.day,
            "since": iso_timestamp(entry.since_ms),
            "first_ms": entry.since_ms,
            "refreshes": sum(entry.refreshes.values()),
            "failed": entry.failed,
            "measured": entry.measured,
            "cpu_ms": entry.cpu_ms,
            "duration_ms": entry.duration_ms,
            "rows": entry.rows_inserted + entry.rows_deleted,
        }
        for entry in totals[: arguments.limit]
    ]
    columns = ("day", "since", "dataset", "refreshes", "failed", "measured", "cpu_ms", "duration_ms", "rows")
    show(lines, columns, as_json=arguments.json, empty="the history has no refresh")
    return 0


def _what_ifs(store: Store, statuses: Iterable[DatasetStatus], arguments: argparse.Namespace) -> int:
    """What the newest refreshes of each dataset would have taken otherwise."""
    lines = []
    for entry in statuses:
        records = store.history.refreshes(entry.dataset, LOOKED_AT)
        estimated = what_if([each.refresh for each in records if each.refresh and not each.error])
        if estimated is None:
            continue
        lines.append(
            {
                "dataset": str(entry.dataset),
                "followed": estimated.followed,
                "computed": estimated.computed,
                "took_ms": estimated.took_ms,
                **{f"interval_x{times}_ms": estimated.longer_ms[times] for times in INTERVALS},
                "all_full_ms": estimated.full_ms,
                "all_followed_ms": estimated.followed_ms,
            }
        )
    columns = tuple(lines[0]) if lines else ()
    show(lines, columns, as_json=arguments.json, empty="the history has no refresh")
    if lines and not arguments.json:
        answer().write(f"\nestimates from the newest refreshes of each dataset, {LOOKED_AT} at most\n")
    return 0


def _history(store: Store, dataset: TableName, arguments: argparse.Namespace) -> None:
    records = store.history.refreshes(dataset, arguments.limit)
    lines = [_record_line(record) for record in records]
    if arguments.json:
        show(lines, (), as_json=True)
        return
    answer().write(f"{dataset}\n")
    shown = {title: key for title, key in _HISTORY.items() if key != "error" or any(r.error for r in records)}
    rows = [[line[key] for key in shown.values()] for line in lines]
    table(tuple(shown), rows, empty="no checkpoint has refreshed it")
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


def _require_one_list(arguments: argparse.Namespace) -> None:
    if sum((arguments.history, arguments.what_if, arguments.cost)) > 1:
        raise SettingsError("CONFLICTING_OPTIONS", "--history, --what-if and --cost exclude each other")


def _quarantined_rows(
    statuses: Iterable[DatasetStatus], settings: CatalogSettings
) -> dict[TableName, int | None]:
    """For each table with a quarantine: how many bad records its newest checkpoint has.

    None where it is unknown: the catalog is not readable from Python, or the version is expired.
    """
    versions = {status.dataset: status.version for status in statuses}
    quarantines = {name: quarantine_of(name) for name in versions if quarantine_of(name) in versions}
    return {name: _rows_at(settings, table, versions[table]) for name, table in quarantines.items()}


def _is_left(settings: CatalogSettings, table: TableName, identity: str | None) -> bool:
    """Whether the table of a retired dataset exists, as far as Python can tell. A later one of its name has
    another identity."""
    try:
        _, metadata = metadata_source(settings).load(table)
    except TableMissingError:
        return False
    except EnvironmentProblemError:
        return True
    return identity is None or metadata.get("table-uuid") in (None, identity)


def _show_retired(tables: Sequence[TableName], pending: Sequence[DatasetChange], *, as_json: bool) -> None:
    """The tables of datasets that left the project, and what is decided about them and not complete."""
    for change in pending:
        word = "renamed" if change.renamed_to else "dropped"
        if as_json:
            json_line({"dataset": str(change.dataset), "state": f"being {word}", "command": change.command})
        else:
            answer().write(
                f"{change.dataset} is being {word}, unfinished: `{change.command}` goes on with it\n"
            )
    decided = {change.dataset for change in pending}
    for name in (each for each in tables if each not in decided):
        if as_json:
            json_line({"dataset": str(name), "state": "retired"})
        else:
            command = f"taut drop {name.without_catalog}"
            answer().write(f"{name} left the project; its table stays, until `{command}` removes it\n")


def _rows_at(settings: CatalogSettings, table: TableName, version: str | None) -> int | None:
    try:
        _, metadata = metadata_source(settings).load(table)
    except (EnvironmentProblemError, TableMissingError):
        return None
    for snapshot in metadata.get("snapshots", ()):
        if str(snapshot["snapshot-id"]) == version:
            return int(snapshot["summary"].get("total-records", 0))
    return None


# -- taut checkpoints ----------------------------------------------------------------------------------


def checkpoints(arguments: argparse.Namespace) -> int:
    """The newest checkpoints, newest first."""
    from tautochrone.app.publications import published_as

    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        lines = [
            {
                "checkpoint": int(checkpoint.number),
                "state": str(checkpoint.state),
                "cut_at": iso_timestamp(checkpoint.cut_at_ms),
                "published_at": iso_timestamp(checkpoint.published_at_ms),
                "reason": "; ".join(invariant.error for invariant in checkpoint.broken) or None,
                "broken": [asdict(invariant) for invariant in checkpoint.broken],
                "roots": {str(name): version for name, version in checkpoint.roots.items()},
                "foreign": _foreign_versions(settings.catalog, checkpoint.roots),
                "published": published_as(settings, store, checkpoint.number),
            }
            for checkpoint in store.checkpoints.newest(arguments.limit)
        ]
    columns = ("checkpoint", "state", "cut_at", "published_at", "reason")
    show(lines, columns, as_json=arguments.json, empty="no run has opened a checkpoint")
    return 0


def _foreign_versions(settings: CatalogSettings, roots: Mapping[TableName, str]) -> dict[str, int | None]:
    """By path the versions of the foreign tables in a cut. None where it is unknown: the catalog is not
    readable from Python, or the shadow table's version is expired."""
    versions: dict[str, int | None] = {}
    for name, version in roots.items():
        if not is_shadow_table(name):
            continue
        try:
            _, metadata = metadata_source(settings).load(name)
        except (EnvironmentProblemError, TableMissingError):
            versions[describe_input(name)] = None
            continue
        path = metadata.get("properties", {}).get(FOREIGN_PATH_KEY, describe_input(name))
        summaries = {str(each["snapshot-id"]): each["summary"] for each in metadata.get("snapshots", ())}
        number = summaries.get(version, {}).get(FOREIGN_VERSION_KEY)
        versions[path] = None if number is None else int(number)
    return versions


# -- taut sinks ----------------------------------------------------------------------------------------


def sinks(arguments: argparse.Namespace) -> int:
    """Every sink: the checkpoint that it shows, its lag, its last error; or forget one."""
    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        if arguments.forget:
            known = [sink.name for sink in store.deliveries.sinks()]
            if arguments.forget not in known:
                raise SinkError(
                    "SINK_NOT_FOUND",
                    f"No sink is called {arguments.forget}",
                    hint=near_names_hint(arguments.forget, known, "known sinks:"),
                    sqlstate="42704",
                )
            store.deliveries.forget(arguments.forget)
        say_sinks_are_off(settings)
        lines = _sink_lines(store, with_retired=True)
    columns = (
        *("sink", "format", "state", "checkpoint", *_works(lines), "newest", "lag", "delivered_at", "batch"),
        *("rows", "failures", "error"),
    )
    shown = lines if arguments.json else map(_with_lag, lines)
    show(shown, columns, as_json=arguments.json, empty="no sink was ever written")
    return 0


def _sink_line(sink: SinkStatus, now_ms: int, *, is_running: bool) -> dict[str, object]:
    """A sink as an object of JSON; `is_running`: its job runs."""
    return {
        "sink": sink.name,
        "format": sink.format,
        "job": sink.job,
        "tables": [str(name) for name in sink.tables],
        "policy": str(sink.policy),
        "state": str(sink.state),
        "checkpoint": None if sink.delivered is None else int(sink.delivered.checkpoint),
        "work": sink.work(is_running=is_running),
        "newest": None if sink.newest is None else int(sink.newest),
        "lag_ms": 0 if sink.behind_since_ms is None else max(0, now_ms - sink.behind_since_ms),
        "delivered_at_ms": None if sink.delivered is None else sink.delivered.delivered_at_ms,
        "delivered_at": iso_timestamp(None if sink.delivered is None else sink.delivered.delivered_at_ms),
        # A sink that Spark writes has batches, one with an adapter has checkpoints alone.
        "batch": max((flow.batch for flow in sink.flows.values()), default=None),
        "rows": sum(flow.rows for flow in sink.flows.values()) if sink.flows else None,
        "flows": {name: asdict(flow) for name, flow in sink.flows.items()},
        "failures": sink.failures,
        "skipped": sink.skipped,
        "error": sink.error,
        "failed_at_ms": sink.failed_at_ms,
    }


# -- taut sources --------------------------------------------------------------------------------------


def sources(arguments: argparse.Namespace) -> int:
    """Each capture: phase, progress, lag, and the log that its database keeps."""
    from tautochrone.app.captures import capture_statuses
    from tautochrone.app.open import Project, log_event

    with Project(options_of(arguments), log_event, short_lived=True) as project:
        lines = [source_line(status) for status in capture_statuses(project)]
    if arguments.json:
        for line in lines:
            json_line(line)
    else:
        show_sources(lines)
    return 0


def show_sources(lines: Sequence[dict[str, Any]]) -> None:
    """Captures as tables for people."""
    if not lines:
        answer().write("no source is captured; `taut status` shows when the others were read\n")
        return
    columns = ("source", "table", "phase", "relations", "waiting", "lag", "log_rows", "error")
    table(columns, [[_source_cell(line[column]) for column in columns] for line in lines])
    answer().write("\n")
    progress = ("source", "chunks", "rows_per_s", "events_per_s", "lag_s", "last_commit")
    table(progress, [[_progress_cell(line, column) for column in progress] for line in lines])
    for line in lines:
        for reason in [*line["waits_for"], *line["set_aside"]]:
            answer().write(f"\n{line['source']}: {reason['reason']}\n")
    kept = [
        {"source": line["source"], "expires": iso_timestamp(entry["expires_ms"]), **entry}
        for line in lines
        for entry in line["kept"]
    ]
    if kept:
        answer().write("\n")
        shown = (
            "source",
            "name",
            "is_own",
            "distance_bytes",
            "kept_bytes",
            "is_lost",
            "expires",
            "last_read",
        )
        table(shown, [[_source_cell(entry[column]) for column in shown] for entry in kept])
    others = [entry["drop"] for entry in kept if entry["is_own"] is False]
    if others:
        answer().write(
            "\nOf other lakes, or of none. What nobody reads any more fills the database's disk:\n"
        )
        answer().write("".join(f"  {drop};\n" for drop in others))


def source_line(status: CaptureStatus) -> dict[str, Any]:
    """A capture as an object of JSON."""
    return {
        "source": status.source,
        "table": str(status.table),
        "phase": status.phase,
        "relations": status.relations,
        "waiting": list(status.waiting),
        "chunks_left": status.chunks_left,
        "chunks_done": status.chunks_done,
        "chunks_total": status.chunks_left + status.chunks_done,
        "rows_per_s": _rounded(status.rates.rows_per_s),
        "events_per_s": _rounded(status.rates.events_per_s),
        "last_commit": iso_timestamp(status.rates.committed_ms),
        "lag": dict(status.lag),
        "lag_s": None if status.lag_ms is None else _rounded(status.lag_ms / 1000),
        "log_rows": status.log_rows,
        "log_retention": status.log_retention,
        "waits_for": [reason_fields("reason", reason) for reason in status.waits_for],
        "set_aside": [
            {"relation": relation, **reason_fields("reason", reason)}
            for relation, reason in status.set_aside.items()
        ],
        "kept": [asdict(entry) for entry in status.kept],
        "error": None if status.error is None else f"[{status.error.error_class}] {status.error.message}",
        "hint": None if status.error is None else status.error.hint,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _progress_cell(line: dict[str, Any], column: str) -> object:
    """Empty where there is nothing to say: no copy runs, or two commits to compare are missing."""
    if column == "chunks":
        return f"{line['chunks_done']} of {line['chunks_total']}" if line["chunks_total"] else ""
    value = line[column]
    return "" if value is None else f"{value:,}" if isinstance(value, float) else value


def _source_cell(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{number:,} {unit}" for unit, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value
