"""Is it the log that the table was filled from, and is everything there that follows?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tautochrone.errors import IngestError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import OFFSET_BITS
from tautochrone.sources.mysql.failover import position_at
from tautochrone.sources.mysql.flavors import flavor_of
from tautochrone.sources.mysql.markers import FILE, GTID, server_of, shift_of
from tautochrone.sources.mysql.server import check_server, log_sizes

__all__ = ["log_lost", "position_at_server", "require_same_log"]

_AGAIN = "copy the database again: --full-refresh of the log table and of the captured tables"
_LOG_GONE = f"{_AGAIN}; binlog_expire_logs_seconds says how long the server keeps its log"
_AT_OTHER_SERVER = (
    "if the url leads to the wrong server, mend it; runs go on at the former one, and at a replica that has "
    f"what the lake has and nothing else before it. Here {_AGAIN}"
)


def log_lost(log: str, reason: str, hint: str = _LOG_GONE) -> IngestError:
    return IngestError("SOURCE_LOG_LOST", f"{log} cannot go on: {reason}", hint=hint)


def position_at_server(
    connection: Any, connect: Callable[[], Any], capture: str, log: str, position: LogPosition
) -> LogPosition:
    """The position itself, or the same one in the log of another server that is the same database: it has
    what the lake has, and nothing else before it.

    Args:
        connect: opens another connection to the server.
        log: the name of the change log.

    Raises:
        IngestError: `SOURCE_LOG_LOST`; `CAPTURE_SERVER_NOT_USABLE`.
    """
    flavor = flavor_of(connection)
    server = flavor.log_name(connection)
    if server == server_of(position):
        return position
    check_server(connection, capture)
    here = position_at(connection, connect, flavor, position)
    if isinstance(here, str):
        raise log_lost(log, f"this is another server ({server}), and {here}", _AT_OTHER_SERVER)
    return here


def require_same_log(
    connection: Any, connect: Callable[[], Any], capture: str, log: str, after: LogPosition, end: int
) -> None:
    """
    Args:
        end: where the log ends, as a point.

    Raises:
        IngestError: `SOURCE_LOG_LOST`; `CAPTURE_SERVER_NOT_USABLE`.
    """
    if end < after.point:
        raise log_lost(log, "the server's log ends before: it was restored, or its log was reset")
    check_server(connection, capture)
    flavor = flavor_of(connection)
    shift = shift_of(after)
    offset = after.point & ((1 << OFFSET_BITS) - 1)
    marks = flavor.transactions_of(after.marker[GTID])
    difference = flavor.difference(connection, connect, after.marker[FILE], offset, marks)
    if difference:
        raise log_lost(log, difference)
    # A server that crashes goes on in a new file, and may have lost the end of the one before.
    sizes = log_sizes(connection)
    for point in after.bulk.pass_at.values():
        number, offset = divmod(point - shift, 1 << OFFSET_BITS)
        if sizes.get(number, 0) < offset:
            raise log_lost(log, "the server crashed and lost transactions whose rows were copied")
