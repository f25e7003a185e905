"""Events of the log that were read once, such as those of a transaction that is committed much later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from tautochrone.sources.mysql.binlog import Event, dump
from tautochrone.sources.mysql.connection import BINLOG_NOT_READABLE

__all__ = ["events_from"]


@contextmanager
def events_from(connect: Callable[[], Any], file: str, offset: int) -> Iterator[Iterable[Event] | None]:
    """From an offset on, by a connection of its own; None: the server does not have the file any more."""
    connection = connect()
    try:
        events = dump(connection, file, offset)
        try:
            first = next(events, None)
        except pymysql.Error as error:
            if error.args and error.args[0] == BINLOG_NOT_READABLE:
                first = None
            else:
                raise
        yield None if first is None else _chained(first, events)
    finally:
        connection._force_close()  # noqa: SLF001


def _chained(first: Event, others: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from others
