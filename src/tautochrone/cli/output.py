"""Rendering: data to stdout, progress to stderr; one JSON object per line, or text for people."""

from __future__ import annotations

import csv
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Events", "csv_rows", "json_line", "table"]

_LOCK = threading.Lock()


def json_line(value: Mapping[str, Any]) -> None:
    """One object on one line of stdout. Dates and decimals become text."""
    with _LOCK:
        sys.stdout.write(json.dumps(value, default=str, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns on stdout; numbers to the right."""
    cells = [[_text(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(header)]
    lines = [list(header), ["-" * width for width in widths], *cells]
    for line in lines:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def csv_rows(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """RFC 4180 on stdout; NULL is an empty field."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value).replace("\n", "\\n")


def _is_number(text: str) -> bool:
    return text == "NULL" or text.lstrip("-").replace(".", "", 1).isdigit()


class Events:
    """The listener of a run: JSON objects on stdout, or one readable line per event on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json

    def __call__(self, event: str, /, **fields: Any) -> None:
        if self._json:
            json_line({"event": event, **fields})
            return
        line = _LINES.get(event, _plain)(event, fields)
        if line:
            with _LOCK:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()


def _plain(event: str, fields: Mapping[str, Any]) -> str:
    shown = " ".join(f"{key}={value}" for key, value in fields.items() if value not in (None, "", []))
    return f"{event.replace('_', ' ')}: {shown}"


def _refresh(_event: str, f: Mapping[str, Any]) -> str:
    name = f["dataset"].split(".", 1)[1]
    return (
        f"  {name:<32} {f['mode'].upper():<11} +{f['rows_inserted']:,} -{f['rows_deleted']:,} rows  "
        f"{f['duration_ms'] / 1000:.1f} s  ({f['reason']})"
    )


def _checkpoint(_event: str, f: Mapping[str, Any]) -> str:
    failed = f"  FAILED: {', '.join(f['failed'])}" if f["failed"] else ""
    return f"checkpoint {f['checkpoint']} published in {f['duration_ms'] / 1000:.1f} s{failed}"


_LINES: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "starting": lambda _e, f: f"pipeline {f['pipeline']}: starting Spark on {f['master']} (about 6 s)",
    "catalog": lambda _e, f: f"readable at one instant as Iceberg REST catalog {f['uri']} (warehouse strong)",
    "takeover": lambda _e, f: f"job {f['job']} taken over with fence {f['fence']}",
    "batch": lambda _e, f: (
        f"  {f['dataset'].split('.', 1)[1]:<32} ingested +{f['rows']:,} rows (batch {f['batch']})"
    ),
    "refresh": _refresh,
    "refresh_failed": lambda _e, f: f"  {f['dataset']} FAILED at checkpoint {f['checkpoint']}: {f['error']}",
    "flow_failed": lambda _e, f: (
        f"  flow {f['flow']} FAILED: {f['error']}"
        + (f"\n    hint: {f['hint']}" if f.get("hint") else "")
        + (f"\n    it is started again in {f['again_in_s']:g} s" if f["again_in_s"] else "")
    ),
    "flow_restarted": lambda _e, f: f"  flow {f['flow']} started again (attempt {f['attempt']})",
    "flow_recovered": lambda _e, f: f"  flow {f['flow']} is well again",
    "checkpoint": _checkpoint,
    "no_news": lambda _e, _f: "",
    "run": lambda _e, f: f"run {f['state']}",
}
