"""How long logs of databases and the log table are kept, and for how long deletions are remembered.

What a database keeps of its log for those who read it, such as PostgreSQL's replication slots. How long the
log table of a capture keeps its rows: a property of the table. For how long a table of AUTO CDC remembers
deletions: a property of the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tautochrone.errors import DefinitionError
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import LogPosition

__all__ = [
    "LOG_RETENTION",
    "RELATION_COLUMN",
    "TOMBSTONE_RETENTION",
    "AwaitsTransactions",
    "KeepsColumns",
    "KeepsLogs",
    "KeptLog",
    "RaisesAlarms",
    "SetsTablesAside",
    "duration_ms",
    "log_retention_ms",
    "parse_log_retention",
    "tombstone_retention_ms",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLog:
    """Log that a database keeps for one reader of a capture.

    Attributes:
        name: such as that of a replication slot.
        is_own: it belongs to the position that was asked for; others are of other lakes, or of none. None:
            the table has no position yet, so it may be what a copy that begins has made.
        distance_bytes: how far the log is ahead of what was acknowledged.
        kept_bytes: how much of it is on the database's disk; None where it does not say.
        is_lost: the database removed log that the reader needs.
        last_read: since when nobody reads it; None: somebody does, or the database does not say.
        drop: SQL that gives it up.
    """

    name: str
    is_own: bool | None
    distance_bytes: int | None
    kept_bytes: int | None
    is_lost: bool
    last_read: str | None
    drop: str


@runtime_checkable
class KeepsLogs(Protocol):
    """A change log whose database keeps log for each reader."""

    def kept_logs(self, position: LogPosition | None) -> Sequence[KeptLog]:
        """All that is kept for readers of this capture; `position` is that of this lake's table."""


@runtime_checkable
class RaisesAlarms(Protocol):
    """A change log that can say what fills its database's disk, while there is time."""

    def alarms(self, position: LogPosition) -> Sequence[Reason]:
        """What somebody should look at; empty: nothing."""


@runtime_checkable
class AwaitsTransactions(Protocol):
    """A change log that can begin, or copy tables, only when transactions that are open have ended."""

    def open_transactions(self) -> Sequence[Reason]:
        """Those that a copy which begins now waits for, the oldest first. By a connection of its own, so it
        can be asked while another thread waits."""


@runtime_checkable
class SetsTablesAside(Protocol):
    """A change log that goes on without tables which it cannot capture as they are."""

    def set_aside(self) -> Mapping[str, Reason]:
        """By relation, why, and what ends it."""


@runtime_checkable
class KeepsColumns(Protocol):
    """A change log that may pass over columns which the tables of the lake do not take."""

    def know_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        """The columns that the lake's tables have, by relation, whether the database still has them or not.
        Of a relation that is missing here it is not known."""


LOG_RETENTION = "tautochrone.log-retention"
RELATION_COLUMN = "relation"
"""The column of a log table that says to which relation a row belongs."""

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|seconds?|minutes?|hours?|days?)\s*")


def log_retention_ms(properties: Mapping[str, str], location: str) -> int | None:
    """From the properties of a streaming table; None: it keeps all its rows.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.
    """
    text = properties.get(LOG_RETENTION)
    return None if text is None else parse_log_retention(text, location)


def parse_log_retention(text: str, location: str | None = None) -> int:
    """Milliseconds of a duration; 0: rows go as soon as all captured tables have them.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.

    >>> parse_log_retention("7 days"), parse_log_retention("90m"), parse_log_retention("0s")
    (604800000, 5400000, 0)
    """
    milliseconds = duration_ms(text)
    if milliseconds is None:
        raise DefinitionError(
            "INVALID_LOG_RETENTION",
            f"{text!r} is no duration for which a log table keeps its rows",
            location=location,
            hint="such as '7 days', '12h' or '0s'",
        )
    return milliseconds


def duration_ms(text: str) -> int | None:
    """Milliseconds; None: the text is no duration."""
    match = _TEXT.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNITS_MS[match[2][0]])


TOMBSTONE_RETENTION = "tautochrone.tombstone-retention"


def tombstone_retention_ms(properties: Mapping[str, str], location: str) -> int | None:
    """Milliseconds, from the properties of a streaming table; None: it remembers them for ever.

    Raises:
        DefinitionError: `INVALID_TOMBSTONE_RETENTION`.

    >>> tombstone_retention_ms({"tautochrone.tombstone-retention": "2 days"}, "a.py:1")
    172800000
    """
    text = properties.get(TOMBSTONE_RETENTION)
    if text is None:
        return None
    retention_ms = duration_ms(text)
    if retention_ms is None:
        raise DefinitionError(
            "INVALID_TOMBSTONE_RETENTION",
            f"{text!r} is no duration for which a table remembers deletions",
            location=location,
            hint="such as '2 days' or '12h'",
        )
    return retention_ms
