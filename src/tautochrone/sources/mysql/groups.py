"""What a transaction of the log has done so far: rows, savepoints, and what follows from foreign keys."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tautochrone.sources.mysql.binlog import TableMap
from tautochrone.sources.mysql.statements import xid_of
from tautochrone.sources.mysql.tables import CapturedTable

__all__ = ["Change", "Group", "prepared_xid"]


@dataclass(frozen=True, slots=True)
class Change:
    """Row images of one event. Without a layout: the table was truncated."""

    kind: int
    table: CapturedTable
    layout: TableMap | None
    images: bytes


@dataclass(slots=True)
class Group:
    """A transaction that is being read.

    Attributes:
        is_single: one statement without an end of its own; None: not known before its first statement.
        file, start: where its first event is.
        is_prepared: it is committed later by another statement (`XA PREPARE`), so what counts is whether its
            tables were copied before that.
        changes: row events and truncates in their order.
        cascaded: tables whose rows foreign keys may change.
        doubtful: tables of which it is not known what it does to their rows.
    """

    is_single: bool | None
    file: str
    start: int
    is_prepared: bool = False
    changes: list[Change] = field(default_factory=list)
    cascaded: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    _savepoints: dict[str, int] = field(default_factory=dict)
    """How many changes there were before each, in their order."""

    @property
    def bytes(self) -> int:
        return sum(len(change.images) for change in self.changes)

    def set_savepoint(self, name: str) -> None:
        """
        Args:
            name: empty: not known.
        """
        self._savepoints.pop(name, None)
        self._savepoints[name] = len(self.changes)

    def roll_back_to(self, name: str) -> None:
        """The log still has the rows behind a savepoint when it has others there that stay: those of
        temporary tables, or of tables without transactions. The captured tables have transactions."""
        if "" in self._savepoints or name not in self._savepoints:
            self.doubtful |= {change.table.name for change in self.changes}
            return
        count = self._savepoints[name]
        del self.changes[count:]
        names = list(self._savepoints)
        for later in names[names.index(name) + 1 :]:
            del self._savepoints[later]


def prepared_xid(body: bytes) -> tuple[str, bool]:
    """Of the event behind an `XA` transaction: its identifiers, and whether it is committed by that."""
    one_phase, format_id, transaction, branch = struct.unpack_from("<BIII", body)
    data = body[13:]
    return xid_of(format_id, data[:transaction], data[transaction : transaction + branch]), one_phase == 1
