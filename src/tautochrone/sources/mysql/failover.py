"""The offset in the log of another server, such as a promoted replica, before which are the transactions that
the lake has, all of them and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import Event, Kind, dump
from tautochrone.sources.mysql.connection import fetch
from tautochrone.sources.mysql.flavors import Flavor, file_identity
from tautochrone.sources.mysql.histories import History
from tautochrone.sources.mysql.markers import history_at, moved_position

__all__ = ["position_at"]

_FIRST_OFFSET = 4
"""Before it stands a number that marks a file as a log."""


@dataclass(frozen=True, slots=True)
class _LogOffset:
    file: str
    offset: int


def position_at(
    connection: Any, connect: Callable[[], Any], flavor: Flavor, position: LogPosition
) -> LogPosition | str:
    """
    Args:
        connection: to the other server.
        connect: opens another one.
        position: in the log of the former server.

    Returns:
        The position in its log, or why there is none: the end of a sentence about the other server.
    """
    if position.bulk.waiting:
        tables = ", ".join(sorted(position.bulk.waiting))
        return f"the copy of {tables} from the former one was not complete"
    lake = history_at(position, flavor.history)
    if lake is None:
        return "the GTIDs that the lake has are not known: they have tags, or many gaps"
    files = [row[0] for row in fetch(connection, "SHOW BINARY LOGS")]
    log_offset = _offset_of(connect, flavor, files, lake)
    if isinstance(log_offset, str):
        return log_offset
    server = flavor.log_name(connection)
    file_id = file_identity(connect, log_offset.file)
    if file_id is None:
        return f"it removed the binary log {log_offset.file} a moment ago"
    return moved_position(
        position, server, log_offset.file, file_id, log_offset.offset, flavor.marks_of(lake)
    )


def _offset_of(
    connect: Callable[[], Any], flavor: Flavor, files: Sequence[str], lake: History
) -> _LogOffset | str:
    if lake.time_s is None:
        return "no transaction was read from the former one yet by which it could be recognised"
    start = _newest_start(connect, flavor, files, lake)
    if start is None:
        return "its log begins behind transactions that the lake lacks, or has other ones"
    file, history = start
    with _events(connect, file) as events:
        return _offset_in(events, history, lake) or (
            f"it lacks transactions that the lake has: {lake.missing_in(history) or 'the last one'}"
        )


def _newest_start(
    connect: Callable[[], Any], flavor: Flavor, files: Sequence[str], lake: History
) -> tuple[str, History] | None:
    """The newest file that begins before the last transaction of the lake, and what was before the file."""
    for file in reversed(files):
        with _events(connect, file) as events:
            history = next(filter(None, map(flavor.history.at_start, events)), None)
        if history is not None and not history.missing_in(lake) and not history.is_same(lake):
            return file, history
    return None


def _offset_in(events: Iterator[Event], history: History, lake: History) -> _LogOffset | str:
    """Empty: the log ends before. The history goes on with the log."""
    end: _LogOffset | None = None
    is_first = False
    for event in events:
        if event.kind in Kind.GTID:
            if history.is_same(lake):
                break
            if not history.take(event):
                return "its log has transactions without a number that is understood"
            if history.missing_in(lake):
                return (
                    f"it has transactions that the lake does not have, before others that the lake has: "
                    f"{history.missing_in(lake)}"
                )
            history.time_s, is_first = None, True
        elif is_first and event.kind in Kind.FIRST:
            history.time_s, is_first = event.timestamp, False
        end = _LogOffset(event.file, event.end)
    if end is None or not history.is_same(lake):
        return ""
    if history.time_s != lake.time_s:
        return "it has another transaction with the number of the last one that the lake has"
    return end


@contextmanager
def _events(connect: Callable[[], Any], file: str) -> Iterator[Iterator[Event]]:
    """Of a file and those behind it, by a connection of its own."""
    connection = connect()
    try:
        yield dump(connection, file, _FIRST_OFFSET)
    finally:
        connection._force_close()  # noqa: SLF001
