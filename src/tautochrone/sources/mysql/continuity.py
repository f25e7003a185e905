"""Is it the log that the table was filled from, and is everything there that follows?

The name of a server proves nothing: MariaDB has only a number that somebody chose, and a copy of MySQL's
files has its UUID.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import IngestError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import OFFSET_BITS
from tautochrone.sources.mysql.failover import position_at
from tautochrone.sources.mysql.flavors import file_identity, flavor_of
from tautochrone.sources.mysql.markers import FILE, FILE_ID, GTID, server_of, shift_of
from tautochrone.sources.mysql.server import check_server, log_sizes

__all__ = ["SameLog", "log_lost", "other_file"]

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


def log_lost(log: str, reason: str, hint: str = _LOG_GONE) -> IngestError:
    return IngestError("SOURCE_LOG_LOST", f"{log} cannot go on: {reason}", hint=hint)


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

    def begin(self, position: LogPosition) -> None:
        """A new position, which comes from the connection itself."""
        self.shift, self._position, self._is_verified = 0, position, True

    def forget(self) -> None:
        """The next connection may lead to another server."""
        self._is_verified = False

    def take_move(self) -> Reason | None:
        """To which server the position was moved, once."""
        moved, self._moved = self._moved, None
        return moved

    def checked(self, connection: Any) -> Any:
        """The connection. Rows of another server that were copied would not be noticed later.

        Raises:
            IngestError: see `verified`.
        """
        if self._position is not None:
            self.verified(connection, self._position)
        return connection

    def verified(self, connection: Any, position: LogPosition) -> LogPosition:
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
        here = position_at(connection, self.connect, flavor, position)
        if isinstance(here, str):
            raise log_lost(self.log, f"this is another server ({server}), and {here}", _AT_OTHER_SERVER)
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
            raise log_lost(self.log, difference)
        # A server that crashes goes on in a new file, and may have lost the end of the one before.
        sizes = log_sizes(connection)
        for point in after.bulk.pass_at.values():
            number, offset = divmod(point - self.shift, 1 << OFFSET_BITS)
            if sizes.get(number, 0) < offset:
                raise log_lost(self.log, "the server crashed and lost transactions whose rows were copied")
