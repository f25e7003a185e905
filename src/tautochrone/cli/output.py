"""What a command writes: its answer on standard output; events and errors, for people, on standard error.

Standard output carries the answer and nothing else. Definitions print, libraries log, Spark's JVM and
sub-processes write to file descriptor 1. While a command runs, that descriptor is standard error, and the
command's own answer goes to a copy of the former one.

Nothing heavy is imported before a run's first line; the live display is imported after it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from tautochrone.errors import TautochroneError

if TYPE_CHECKING:
    from tautochrone.model import events

__all__ = [
    "answer",
    "csv_rows",
    "failures",
    "json_events",
    "json_line",
    "line_events",
    "listening",
    "plain_listener",
    "release_stdout",
    "report",
    "show",
    "stdout_reserved",
    "table",
]

_STDOUT = 1
_STDOUT_LOCK, _STDERR_LOCK = threading.Lock(), threading.Lock()
_reserved: TextIO | None = None


# -- standard output ----------------------------------------------------------------------------------


def answer() -> TextIO:
    """Where the command's answer is written."""
    return _reserved or sys.stdout


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Keep standard output for `answer` within the block; what others write to it goes to standard error."""
    # The descriptor belongs to the whole process, too.
    global _reserved
    if sys.stdout is None or sys.stderr is None:
        # Started with a closed descriptor: there is nothing to keep apart.
        yield
        return
    sys.stdout.flush()
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    _reserved = os.fdopen(os.dup(_STDOUT), "w", encoding=encoding, errors=errors)
    os.dup2(sys.stderr.fileno(), _STDOUT)
    try:
        yield
    finally:
        release_stdout()


def release_stdout() -> None:
    """Make descriptor 1 standard output again: at the end, or before the program image is replaced."""
    global _reserved
    if _reserved is None:
        return
    stream, _reserved = _reserved, None
    sys.stdout.flush()
    os.dup2(stream.fileno(), _STDOUT)
    # The reader of a pipe may have ended before all was written: `taut status | head -1`.
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def json_line(value: Mapping[str, Any]) -> None:
    """One object on one line of stdout. Dates and decimals become text."""
    text = json.dumps(value, default=str, ensure_ascii=False) + "\n"
    with _STDOUT_LOCK:
        answer().write(text)
        answer().flush()


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str | None = None) -> None:
    """Aligned columns on stdout; numbers to the right.

    Args:
        empty: the sentence that stands for a table without rows; None: its header does.
    """
    cells = [[_text(value) for value in row] for row in rows]
    if not cells and empty is not None:
        answer().write(f"{empty}\n")
        return
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(header)]
    for line in [list(header), ["-" * width for width in widths], *cells]:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        answer().write("  ".join(padded).rstrip() + "\n")


def show(
    objects: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    empty: str | None = None,
) -> None:
    """Objects on stdout: whole ones as JSON, or some of their fields as a table for people, see `table`."""
    if as_json:
        for value in objects:
            json_line(value)
    else:
        table(columns, [[value[column] for column in columns] for value in objects], empty=empty)


def csv_rows(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """RFC 4180 on stdout; NULL is an empty field."""
    writer = csv.writer(answer(), lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value).replace("\n", "\\n")


def _is_number(text: str) -> bool:
    return text == "NULL" or text.lstrip("-").replace(".", "", 1).isdigit()


# -- events -------------------------------------------------------------------------------------------


def json_events(event: events.Event) -> None:
    """Every event as one JSON object on stdout."""
    json_line(event.as_json())


def line_events(event: events.Event) -> None:
    """Every event as one readable line on stderr; the hint of a failure is a second one."""
    text = event.text()
    if text:
        with _STDERR_LOCK:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def failures(event: events.Event) -> None:
    """Only what failed: `--quiet`."""
    if event.failure:
        line_events(event)


def plain_listener(arguments: argparse.Namespace) -> events.Emit:
    """The listener that draws nothing: that of every other command than `run`, and of the first line of a
    run, which is printed before the live display starts."""
    if arguments.json:
        return json_events
    return failures if getattr(arguments, "quiet", False) else line_events


@contextlib.contextmanager
def listening(arguments: argparse.Namespace, starting: events.Starting) -> Iterator[events.Emit]:
    """The listener for the rest of the run: a live display when people look at stderr.

    Args:
        arguments: `--json`, `--quiet`.
        starting: the run's first event, which is printed already; the display's title has its pipeline.
    """
    if arguments.json or arguments.quiet or not _can_draw():
        yield plain_listener(arguments)
        return
    from rich.console import Console

    from tautochrone.cli.live import LiveDisplay, Progress

    progress = Progress()
    progress.take(starting)
    with LiveDisplay(Console(file=sys.__stderr__, highlight=False), progress) as display:
        yield display


def _can_draw() -> bool:
    """Whether stderr is a terminal that can move its cursor. NO_COLOR only removes colours; rich reads it."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


# -- errors -------------------------------------------------------------------------------------------


def report(error: TautochroneError) -> None:
    """The error as `TautochroneError.render` writes it, on a terminal with colours."""
    if not sys.stderr.isatty():
        sys.stderr.write(error.render() + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    # Rich reads NO_COLOR and TERM. The terminal wraps long lines, so that a copied line stays whole.
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    text = Text(error.render())
    text.highlight_regex(r"\A\[[^\]]*\]", "bold red")
    text.highlight_regex(r"SQLSTATE: \w{5}", "dim")
    if error.location:
        text.highlight_words([f"; {error.location}"], "bold")
    text.highlight_regex(r"(?m)^ +\|\s+(\^+)$", "bold red")
    text.highlight_regex(r"(?m)^  hint:", "bold cyan")
    console.print(text)
