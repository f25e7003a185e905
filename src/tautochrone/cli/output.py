"""Data to stdout: one JSON object per line, or text for people."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tautochrone.cli.stdout import answer

__all__ = ["csv_rows", "json_line", "table"]

_LOCK = threading.Lock()


def json_line(value: Mapping[str, Any]) -> None:
    """One object on one line of stdout. Dates and decimals become text."""
    text = json.dumps(value, default=str, ensure_ascii=False) + "\n"
    with _LOCK:
        answer().write(text)
        answer().flush()


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
        answer().write("  ".join(padded).rstrip() + "\n")


def csv_rows(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """RFC 4180 on stdout; NULL is an empty field."""
    writer = csv.writer(answer(), lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value).replace("\n", "\\n")


def _is_number(text: str) -> bool:
    return text == "NULL" or text.lstrip("-").replace(".", "", 1).isdigit()
