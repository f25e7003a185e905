"""What changed in tables between two versions, for everybody who refreshes from it.

A view's change was just computed by its own refresh, so views that read it in the same run get it from
here; any other change is read from the files that differ between the versions. Where several views read it,
that is done once, for the columns that any of their plans needs, and the rows are held.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tautochrone.model import limits
from tautochrone.model.lake import ChangeKind, ReadableTable, RowChange
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.spark.execute.engine import TableDelta
from tautochrone.spark.execute.key_lookups import KeyLookups
from tautochrone.spark.execute.materialize import materialize, materialize_if_small

__all__ = ["Changes"]

_Between = tuple[TableName, Version, Version]


@dataclass(frozen=True, slots=True)
class _Held:
    """A change whose rows are held, with some of its columns."""

    columns: frozenset[str]
    delta: TableDelta


class Changes:
    """Safe to use from the threads of one run.

    Attributes:
        lookups: rows of tables that were looked up by the keys of changes.

    Args:
        base: reads the lake itself.
        load_input: loads a table or a clock.
        is_shared: whether several views read a table.
        columns: those that the plans known so far read of a table.
    """

    def __init__(
        self,
        base: SparkSession,
        load_input: Callable[[TableName], ReadableTable],
        is_shared: Callable[[TableName], bool],
        columns: Callable[[TableName], frozenset[str]],
    ) -> None:
        self._base = base
        self._load_input = load_input
        self._is_shared = is_shared
        self._columns = columns
        self.lookups = KeyLookups(columns)
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._told: OrderedDict[_Between, TableDelta] = OrderedDict()
        self._read: OrderedDict[_Between, RowChange] = OrderedDict()
        self._held: OrderedDict[_Between, _Held] = OrderedDict()
        self._holding: defaultdict[TableName, threading.Lock] = defaultdict(threading.Lock)

    def forget(self) -> None:
        """Let go of what was read for a checkpoint."""
        with self._lock:
            self._held.clear()
        self.lookups.forget()

    def tell(self, table: TableName, old: Version, new: Version, delta: TableDelta) -> None:
        """Keep a change for the views downstream; the oldest ones are forgotten."""
        with self._lock:
            self._told[table, old, new] = delta
            while len(self._told) > limits.MAX_CACHED_VIEW_DELTAS or (
                len(self._told) > 1 and self._rows_told() > limits.MAX_CACHED_VIEW_DELTA_ROWS
            ):
                self._told.popitem(last=False)

    def delta(
        self, table: TableName, old: Version, new: Version, columns: Collection[str]
    ) -> TableDelta | None:
        """The change of a table with some of its columns, at least; None when no row changed.

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
        if found.rows > limits.MAX_CACHED_TABLE_CHANGE_ROWS or not self._is_shared(table):
            return TableDelta(found.added, found.removed, found.rows)
        with self._lock:
            turn = self._holding[table]
        with turn:
            delta = self._held_delta((table, old, new), found, columns)
        return delta if delta.rows else None

    def _rows_told(self) -> int:
        return sum(delta.rows for delta in self._told.values())

    def _held_delta(self, at: _Between, found: RowChange, columns: Collection[str]) -> TableDelta:
        known = self._held.get(at)
        if known is None or not known.columns.issuperset(columns):
            there = frozenset(next(rows for rows in (found.added, found.removed) if rows is not None).columns)
            wanted = (self._columns(at[0]) & there).union(columns)
            known = _Held(wanted, _computed(found, sorted(wanted)))
            with self._lock:
                self._held[at] = known
                while len(self._held) > limits.MAX_CACHED_TABLE_CHANGES:
                    self._held.popitem(last=False)
        return known.delta

    def size(self, table: TableName, old: Version, new: Version) -> int | None:
        """Upper bound of the rows that changed; None when nobody knows.

        A rewritten data file only tells how many rows it holds. Where the rows tell which of them changed,
        these are counted, once for all views; few of them are held on the driver from then on.
        """
        bound = self.bound(table, old, new)
        if (
            bound is None
            or bound <= limits.MIN_REWRITTEN_ROWS_TO_COUNT
            or not self._rows(table, old, new).carried
        ):
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
        lake_table = self._load_input(table)
        if lake_table.change_between(old, new).kind is ChangeKind.UNKNOWN:
            return None
        return self._rows(table, old, new).rows

    def _rows(self, table: TableName, old: Version, new: Version) -> RowChange:
        key = (table, old, new)
        with self._lock:
            known = self._read.get(key)
        if known is not None:
            return known
        lake_table = self._load_input(table)
        found = lake_table.changed_rows(self._base, old, new)
        self._remember(key, found)
        return found

    def _counted(self, table: TableName, old: Version, new: Version) -> RowChange:
        found = self._rows(table, old, new)
        if not found.carried:  # Another view has just counted them.
            return found
        came, left = (
            (None, 0) if rows is None else materialize_if_small(rows, limits.MIN_REWRITTEN_ROWS_TO_COUNT)
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
            while len(self._read) > limits.MAX_CACHED_VIEW_DELTAS:
                self._read.popitem(last=False)


def _computed(change: RowChange, columns: Collection[str]) -> TableDelta:
    """A change's rows with some columns, computed once and held."""

    def side(rows: DataFrame | None) -> tuple[DataFrame | None, int]:
        if rows is None:
            return None, 0
        found, count = materialize(rows.select(*map(quoted, columns)), most=change.rows)
        return (found, count) if count else (None, 0)

    (added, came), (removed, left) = side(change.added), side(change.removed)
    return TableDelta(added, removed, came + left, held=True)
