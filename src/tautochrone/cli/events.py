"""A run's events as text: one line each, JSON objects, failures only. The live display is `live`."""

from __future__ import annotations

import sys
import threading

from tautochrone.cli.output import json_line
from tautochrone.model.events import Event

__all__ = ["failures", "json_events", "line_events"]

_LOCK = threading.Lock()


def json_events(event: Event) -> None:
    """Every event as one JSON object on stdout."""
    json_line(event.as_json())


def line_events(event: Event) -> None:
    """Every event as one readable line on stderr; the hint of a failure is a second one."""
    text = event.text()
    if text:
        with _LOCK:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def failures(event: Event) -> None:
    """Only what failed: `--quiet`."""
    if event.failure:
        line_events(event)
