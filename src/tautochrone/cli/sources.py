"""`taut sources`: how far captures of databases are, and what the databases keep for them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.stdout import answer

if TYPE_CHECKING:
    from tautochrone.app.captures import CaptureStatus
    from tautochrone.model.reason import Reason

__all__ = ["show_sources", "source_line", "sources"]


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
    columns = ("source", "table", "phase", "relations", "waiting", "lag", "log_rows", "error")
    table(columns, [[_cell(line[column]) for column in columns] for line in lines])
    answer().write("\n")
    progress = ("source", "chunks", "rows_per_s", "events_per_s", "lag_s", "last_commit")
    table(progress, [[_progress_cell(line, column) for column in progress] for line in lines])
    for line in lines:
        for reason in [*line["waits_for"], *line["set_aside"]]:
            answer().write(f"\n{line['source']}: {reason['reason']}\n")
    kept = [{"source": line["source"], **entry} for line in lines for entry in line["kept"]]
    if kept:
        answer().write("\n")
        shown = ("source", "name", "is_own", "distance_bytes", "kept_bytes", "is_lost", "last_read")
        table(shown, [[_cell(entry[column]) for column in shown] for entry in kept])
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
        "last_commit": _utc(status.rates.committed_ms),
        "lag": dict(status.lag),
        "lag_s": None if status.lag_ms is None else _rounded(status.lag_ms / 1000),
        "log_rows": status.log_rows,
        "log_retention": status.log_retention,
        "waits_for": [_reason_fields(reason) for reason in status.waits_for],
        "set_aside": [
            {"relation": relation, **_reason_fields(reason)} for relation, reason in status.set_aside.items()
        ],
        "kept": [asdict(entry) for entry in status.kept],
        "error": None if status.error is None else f"[{status.error.error_class}] {status.error.message}",
        "hint": None if status.error is None else status.error.hint,
    }


def _reason_fields(reason: Reason) -> dict[str, Any]:
    return {"reason": str(reason), "reason_code": reason.code, "reason_params": dict(reason.params)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _utc(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _progress_cell(line: dict[str, Any], column: str) -> object:
    """Empty where there is nothing to say: no copy runs, or two commits to compare are missing."""
    if column == "chunks":
        return f"{line['chunks_done']} of {line['chunks_total']}" if line["chunks_total"] else ""
    value = line[column]
    return "" if value is None else f"{value:,}" if isinstance(value, float) else value


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{number:,} {unit}" for unit, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value
