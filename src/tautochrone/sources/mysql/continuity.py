"""Is it the log that the table was filled from, and is everything there that follows?

The name of a server proves nothing: MariaDB has only a number that somebody chose, and a copy of MySQL's
files has its UUID.

The log of another server, such as a promoted replica, can be read on from the offset before which are the
transactions that the lake has, all of them and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import IngestError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import OFFSET_BITS, Event, Kind, dump_events
from tautochrone.sources.mysql.connection import fetch
from tautochrone.sources.mysql.flavors import Flavor, file_identity, flavor_of
from tautochrone.sources.mysql.histories import History
from tautochrone.sources.mysql.markers import (
    FILE,
    FILE_ID,
    GTID,
    history_at,
    moved_position,
    server_of,
    shift_of,
)
from tautochrone.sources.mysql.server import check_server, log_sizes

__all__ = [
    "SameLog",
    "log_lost_error",
    "logged_statement_error",
    "other_file",
    "table_changed_error",
    "unsupported_event_error",
]


_FIRST_OFFSET = 4
"""Before it stands a number that marks a file as a log."""


@dataclass(frozen=True, slots=True)
class _LogOffset:
    file: str
    offset: int


def _position_at(
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
    with _events_of_files(connect, file) as events:
        return _offset_in(events, history, lake) or (
            f"it lacks transactions that the lake has: {lake.missing_in(history) or 'the last one'}"
        )


def _newest_start(
    connect: Callable[[], Any], flavor: Flavor, files: Sequence[str], lake: History
) -> tuple[str, History] | None:
    """The newest file that begins before the last transaction of the lake, and what was before the file."""
    for file in reversed(files):
        with _events_of_files(connect, file) as events:
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
def _events_of_files(connect: Callable[[], Any], file: str) -> Iterator[Iterator[Event]]:
    """Of a file and those behind it, by a connection of its own."""
    connection = connect()
    try:
        yield dump_events(connection, file, _FIRST_OFFSET)
    finally:
        connection._force_close()  # noqa: SLF001


_OFFSET = (1 << OFFSET_BITS) - 1

_AGAIN = "copy the database again: --full-refresh of the log table and of the captured tables"
_LOG_GONE = (
    f"if the url leads to the wrong server, mend it, and runs go on; otherwise {_AGAIN}. "
    f"binlog_expire_logs_seconds says how long the server keeps its log"
)
_AT_OTHER_SERVER = (
    "if the url leads to the wrong server, mend it; runs go on at the former one, and at a replica that has "
    f"what the lake has and nothing else before it. Here {_AGAIN}"
)


def other_file(file: str) -> str:
    return (
        f"the server has another binary log under the name {file}: it is another server with the same number "
        f"or UUID, it was restored or made of a copy, or its log was reset"
    )


def log_lost_error(log: str, reason: str, hint: str = _LOG_GONE) -> IngestError:
    return IngestError("SOURCE_LOG_LOST", f"{log} cannot go on: {reason}", hint=hint)


def table_changed_error(name: str, change: str) -> IngestError:
    return IngestError(
        "CAPTURED_TABLE_CHANGED",
        f"The table {name} {change} since it is captured",
        hint=f"run again: a table that got other columns is copied; if it is refused again, {_AGAIN}",
    )


def unsupported_event_error(event: Event, what: str) -> IngestError:
    return IngestError(
        "CHANGE_LOG_EVENT_NOT_SUPPORTED",
        f"The binary log has {what}, before {event.file} {event.end}",
        hint=f"this is not read from the log; {_AGAIN}",
    )


def logged_statement_error(event: Event) -> IngestError:
    return IngestError(
        "CAPTURE_SERVER_NOT_USABLE",
        f"The log has a statement instead of its rows, before {event.file} {event.end}",
        hint=f"SET GLOBAL binlog_format = 'ROW', no session may change it; {_AGAIN}",
    )


@dataclass(slots=True)
class SameLog:
    """Whether a connection leads to the log of the last position that was asked about. It is looked at once.

    Args:
        connect: opens another connection to the server.
        log: the name of the change log.

    Attributes:
        shift: what is added to points of the server's log, see `markers.moved_position`.
    """

    connect: Callable[[], Any]
    capture: str
    log: str
    shift: int = 0
    _position: LogPosition | None = None
    _is_verified: bool = False
    _moved: Reason | None = None

    def record_verified_position(self, position: LogPosition) -> None:
        """A new position, read from the connection itself, so that it needs no check."""
        self.shift, self._position, self._is_verified = 0, position, True

    def forget(self) -> None:
        """The next connection may lead to another server."""
        self._is_verified = False

    def take_move(self) -> Reason | None:
        """To which server the position was moved, once."""
        moved, self._moved = self._moved, None
        return moved

    def checked_connection(self, connection: Any) -> Any:
        """The connection. Rows of another server that were copied would not be noticed later.

        Raises:
            IngestError: see `verified_position`.
        """
        if self._position is not None:
            self.verified_position(connection, self._position)
        return connection

    def verified_position(self, connection: Any, position: LogPosition) -> LogPosition:
        """The position itself, or the same one in the log of another server that is the same database: it has
        what the lake has, and nothing else before it.

        Raises:
            IngestError: `SOURCE_LOG_LOST`; `CAPTURE_SERVER_NOT_USABLE`.
        """
        if self._position is None or server_of(position) != server_of(self._position):
            self._is_verified = False
        if not self._is_verified:
            position = self._at_this_server(connection, position)
            self.shift = shift_of(position)
            self.require(connection, position)
        self._position, self._is_verified = position, True
        return position

    def _at_this_server(self, connection: Any, position: LogPosition) -> LogPosition:
        flavor = flavor_of(connection)
        server = flavor.log_name(connection)
        if server == server_of(position):
            return position
        check_server(connection, self.capture)
        here = _position_at(connection, self.connect, flavor, position)
        if isinstance(here, str):
            raise log_lost_error(self.log, f"this is another server ({server}), and {here}", _AT_OTHER_SERVER)
        at = f"{here.marker[FILE]} {here.point & _OFFSET}"
        self._moved = Reason.of(ReasonCode.SERVER_HAS_SAME_TRANSACTIONS, server=server, position=at)
        return here

    def require(self, connection: Any, after: LogPosition) -> None:
        """
        Raises:
            IngestError: `SOURCE_LOG_LOST`; `CAPTURE_SERVER_NOT_USABLE`.
        """
        check_server(connection, self.capture)
        flavor = flavor_of(connection)
        marks = flavor.transactions_of(after.marker[GTID])
        file = after.marker[FILE]
        difference = flavor.difference(connection, self.connect, file, after.point & _OFFSET, marks)
        if not difference and file_identity(self.connect, file) != after.marker[FILE_ID]:
            difference = other_file(file)
        if difference:
            raise log_lost_error(self.log, difference)
        # A server that crashes goes on in a new file, and may have lost the end of the one before.
        sizes = log_sizes(connection)
        for point in after.bulk.pass_at.values():
            number, offset = divmod(point - self.shift, 1 << OFFSET_BITS)
            if sizes.get(number, 0) < offset:
                raise log_lost_error(
                    self.log, "the server crashed and lost transactions whose rows were copied"
                )
