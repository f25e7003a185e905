"""The change logs that are known, by the format of `spark.readStream.format(…)` that stands for them.

A new change log is a file of its own and a call of `register_change_log`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tautochrone.model.source import ChangeLog

__all__ = ["OpenChangeLog", "any_change_logs", "change_log", "register_change_log"]

OpenChangeLog: TypeAlias = Callable[[Mapping[str, str]], ChangeLog]
"""From the options of the read to the log. It must not connect before it is asked for something."""

_CHANGE_LOGS: dict[str, OpenChangeLog] = {}


def register_change_log(format_name: str, open_log: OpenChangeLog) -> None:
    """Let streams of a format be read by us instead of by Spark. Repeatable."""
    _CHANGE_LOGS[format_name.lower()] = open_log


def any_change_logs() -> bool:
    """Whether there is a change log at all that a stream could stand for."""
    return bool(_CHANGE_LOGS)


def change_log(format_name: str, options: Mapping[str, str]) -> ChangeLog | None:
    """The change log that a stream stands for; None: Spark reads it."""
    open_log = _CHANGE_LOGS.get(format_name.lower())
    return None if open_log is None else open_log(options)
