"""What changed in tables between two versions, for everybody who refreshes from it.

A view's change was just computed by its own refresh, so views that read it in the same run get it from
here; any other change is read from the files that differ between the versions.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tautochrone.model.lake import ChangeKind, RowChange
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.job import Job
from tautochrone.spark.engine import LOCAL_ROWS, TableDelta
from tautochrone.spark.held import held_if_few

__all__ = ["Changes"]

_KEPT = 64


class Changes:
    """Safe to use from the threads of one run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._told: OrderedDict[tuple[TableName, Version, Version], TableDelta] = OrderedDict()
        self._read: OrderedDict[tuple[TableName, Version, Version], RowChange] = OrderedDict()

    def tell(self, table: TableName, old: Version, new: Version, delta: TableDelta) -> None:
        """Keep a change for the views downstream; the oldest ones are forgotten."""
        with self._lock:
            self._told[table, old, new] = delta
            while len(self._told) > _KEPT:
                self._told.popitem(last=False)

    def delta(self, table: TableName, old: Version, new: Version) -> TableDelta | None:
        """The change of a table; None when no row changed.

        Raises:
            LakeError: the chain between the versions cannot be proven.
        """
        if old == new:
            return None
        with self._lock:
            told = self._told.get((table, old, new))
        if told is not None:
            return told
        found = self._rows(table, old, new)
        if found.added is None and found.removed is None:
            return None
        return TableDelta(found.added, found.removed, found.rows)

    def size(self, table: TableName, old: Version, new: Version) -> int | None:
        """Upper bound of the rows that changed; None when nobody knows.

        A rewritten data file only tells how many rows it holds. Where the rows tell which of them changed,
        these are counted, once for all views; few of them are held on the driver from then on.
        """
        bound = self.bound(table, old, new)
        if bound is None or bound <= LOCAL_ROWS or not self._rows(table, old, new).carried:
            return bound
        with self._counting:
            return self._counted(table, old, new).rows

    def bound(self, table: TableName, old: Version, new: Version) -> int | None:
        """The same from metadata alone, without a Spark job."""
        if old == new:
            return 0
        with self._lock:
            told = self._told.get((table, old, new))
        if told is not None:
            return told.rows
        lake_table = self._job.input_table(table)
        if lake_table.change_between(old, new).kind is ChangeKind.UNKNOWN:
            return None
        return self._rows(table, old, new).rows

    def _rows(self, table: TableName, old: Version, new: Version) -> RowChange:
        key = (table, old, new)
        with self._lock:
            known = self._read.get(key)
        if known is not None:
            return known
        lake_table = self._job.input_table(table)
        found = lake_table.changed_rows(self._job.base, old, new)
        self._remember(key, found)
        return found

    def _counted(self, table: TableName, old: Version, new: Version) -> RowChange:
        found = self._rows(table, old, new)
        if not found.carried:  # Another view has just counted them.
            return found
        came, left = (
            (None, 0) if rows is None else held_if_few(rows, LOCAL_ROWS)
            for rows in (found.added, found.removed)
        )
        found = RowChange(
            added=came[0] if came[1] else None, removed=left[0] if left[1] else None, rows=came[1] + left[1]
        )
        self._remember((table, old, new), found)
        return found

    def _remember(self, key: tuple[TableName, Version, Version], found: RowChange) -> None:
        with self._lock:
            self._read[key] = found
            while len(self._read) > _KEPT:
                self._read.popitem(last=False)
