"""Tables as the next run will leave them, for functions that decide from versions and changes.

What a run will do with a dataset is known before its rows are: a table whose columns change is replaced with
its history, one that is computed anew is overwritten. `ForetoldTable` answers for such a version as the lake
will, so that what decides in a run decides in a plan of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.lake import ChangeKind, ReadableTable, RowChange, Rows, TableChange
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "FORETOLD",
    "Foretold",
    "ForetoldTable",
    "change_of_refresh",
    "columns_added",
    "history_replaced",
    "rows_appended",
]

FORETOLD = Version("foretold")
"""The version that a table will have when the next run has written it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """How the next run changes a table.

    Attributes:
        change: from the version that it has now.
        is_conditional: it happens only if rows turn out to be others.
        rows: that it may have then; None: not known.
    """

    change: TableChange
    is_conditional: bool = False
    rows: int | None = None


def change_of_refresh(
    table: TableName, current: Version, mode: RefreshMode, *, is_redefined: bool, is_empty: bool
) -> TableChange:
    """How a refresh of this mode changes a view's table.

    Args:
        is_redefined: it gets other columns.
        is_empty: it has no rows yet.
    """
    if mode is RefreshMode.NO_DATA:
        return _change(table, ChangeKind.NONE, ReasonCode.TABLE_UNCHANGED)
    if mode is RefreshMode.FULL and is_redefined:
        return history_replaced(table, current)
    if mode is RefreshMode.APPEND or (mode is RefreshMode.FULL and is_empty):
        return rows_appended(table)
    return _change(table, ChangeKind.CHANGED, ReasonCode.ROWS_OVERWRITTEN)


def history_replaced(table: TableName, current: Version) -> TableChange:
    """The change of a table that is replaced together with its history."""
    reason = Reason.of(ReasonCode.TABLE_ROLLED_BACK, version=str(current), table=str(table))
    return TableChange(kind=ChangeKind.UNKNOWN, reason=reason)


def rows_appended(table: TableName) -> TableChange:
    """The change of a table that only gains rows."""
    return _change(table, ChangeKind.APPEND, ReasonCode.TABLE_APPENDED)


def columns_added(table: TableName) -> TableChange:
    """The change of a table that only gets columns."""
    return _change(table, ChangeKind.APPEND, ReasonCode.COLUMNS_ADDED)


def _change(table: TableName, kind: ChangeKind, code: ReasonCode) -> TableChange:
    return TableChange(kind=kind, reason=Reason.of(code, table=str(table)))


_ORDER = (ChangeKind.NONE, ChangeKind.APPEND, ChangeKind.CHANGED, ChangeKind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ForetoldTable:
    """A `ReadableTable` that also has the version `FORETOLD`, of which nothing can be read.

    Attributes:
        name: of the table.
        table: as it is; None: it does not exist yet.
        current: its version now.
        foretold: how the next run changes it.
    """

    name: TableName
    table: ReadableTable | None
    current: Version
    foretold: Foretold

    def change_between(self, old: Version, new: Version) -> TableChange:
        """See `ReadableTable`."""
        if self.table is None:
            return history_replaced(self.name, old)
        if new != FORETOLD:
            return self.table.change_between(old, new)
        before, change = self.table.change_between(old, self.current), self.foretold.change
        return before if _ORDER.index(before.kind) > _ORDER.index(change.kind) else change

    def changed_rows(self, session: Any, old: Version, new: Version) -> RowChange:
        """An upper bound, if the number of rows stays: each of them goes and comes."""
        if self.table is not None and new != FORETOLD:
            return self.table.changed_rows(session, old, new)
        kind = self.change_between(old, new).kind
        before = 0 if self.table is None else self.table.row_count(self.current) or 0
        overwritten = before + (self.foretold.rows or before)
        return RowChange(rows=overwritten if kind is ChangeKind.CHANGED else self.foretold.rows or 0)

    def row_count(self, version: Version) -> int | None:
        """See `ReadableTable`."""
        if version == FORETOLD:
            return self.foretold.rows
        return None if self.table is None else self.table.row_count(version)

    def read(self, session: Any, version: Version) -> Rows:
        """See `ReadableTable`.

        Raises:
            LookupError: nobody has computed the rows.
        """
        if self.table is None or version == FORETOLD:
            raise LookupError(f"{self.name} has no rows at the version {version}")
        return self.table.read(session, version)
