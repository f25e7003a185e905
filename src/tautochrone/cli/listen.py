"""Who listens to a run: chosen by flags and by where stderr goes. Nothing heavy is imported for the
first line; what draws comes after it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tautochrone.cli.events import failures, json_events, line_events
from tautochrone.model.events import Emit

__all__ = ["first_words", "listening"]


def first_words(arguments: argparse.Namespace) -> Emit:
    """The listener for the first line, which is never drawn."""
    if arguments.json:
        return json_events
    return failures if arguments.quiet else line_events


@contextmanager
def listening(arguments: argparse.Namespace, pipeline: str) -> Iterator[Emit]:
    """The listener for the rest of the run: a live display when people look at stderr.

    Args:
        arguments: `--json`, `--quiet`.
        pipeline: its name, for the display's title.
    """
    if arguments.json or arguments.quiet or not _draws():
        yield first_words(arguments)
        return
    from rich.console import Console

    from tautochrone.cli.live import LiveDisplay
    from tautochrone.cli.progress import Progress

    progress = Progress()
    progress.take("starting", {"pipeline": pipeline})
    with LiveDisplay(Console(file=sys.__stderr__, highlight=False), progress) as display:
        yield display


def _draws() -> bool:
    """A terminal that can move its cursor. NO_COLOR takes the colours only; rich heeds it."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
