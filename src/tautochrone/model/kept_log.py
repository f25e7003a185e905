"""What a database keeps of its log for those who read it, such as PostgreSQL's replication slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tautochrone.model.reason import Reason
from tautochrone.model.source_position import LogPosition

__all__ = ["AwaitsTransactions", "KeepsColumns", "KeepsLogs", "KeptLog", "RaisesAlarms", "SetsTablesAside"]


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
