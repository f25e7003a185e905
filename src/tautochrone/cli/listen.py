"""The listener of a run's events: chosen by flags and by where stderr goes. Nothing heavy is imported for the
first line; the live display is imported after it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tautochrone.cli.events import failures, json_events, line_events
from tautochrone.model import events

__all__ = ["listening", "plain_listener"]


def plain_listener(arguments: argparse.Namespace) -> events.Emit:
    """The listener for the first line, which is printed before the live display starts."""
    if arguments.json:
        return json_events
    return failures if arguments.quiet else line_events


@contextmanager
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

    from tautochrone.cli.live import LiveDisplay
    from tautochrone.cli.progress import Progress

    progress = Progress()
    progress.take(starting)
    with LiveDisplay(Console(file=sys.__stderr__, highlight=False), progress) as display:
        yield display


def _can_draw() -> bool:
    """Whether stderr is a terminal that can move its cursor. NO_COLOR only removes colours; rich reads it."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
