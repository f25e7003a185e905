"""What changed in tables between two versions, shared by all refreshes of a run.

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
from tautochrone.spark.execute.driver_scan import SmallTables
from tautochrone.spark.execute.engine import TableDelta
from tautochrone.spark.execute.key_lookups import KeyLookups
from tautochrone.spark.execute.materialize import materialize, materialize_if_small

__all__ = ["Changes"]

_VersionRange = tuple[TableName, Version, Version]


@dataclass(frozen=True, slots=True)
class _MaterializedChange:
    """A change whose rows are held, with some of its columns."""

    columns: frozenset[str]
    delta: TableDelta


class Changes:
    """Safe to use from the threads of one run.

    Attributes:
        lookups: rows of tables that were looked up by the keys of changes.
        small_tables: rows of small inputs and states.

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
        self.small_tables = SmallTables()
        self._lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._view_deltas: OrderedDict[_VersionRange, TableDelta] = OrderedDict()
        self._table_changes: OrderedDict[_VersionRange, RowChange] = OrderedDict()
        self._materialized: OrderedDict[_VersionRange, _MaterializedChange] = OrderedDict()
        self._table_locks: defaultdict[TableName, threading.Lock] = defaultdict(threading.Lock)

    def forget(self) -> None:
        """Drop the rows that were materialized for a checkpoint."""
        with self._lock:
            self._materialized.clear()
        self.lookups.forget()

    def add_view_delta(self, table: TableName, old: Version, new: Version, delta: TableDelta) -> None:
        """Keep a view's change for the views that read it; the oldest changes are dropped."""
        with self._lock:
            self._view_deltas[table, old, new] = delta
            while len(self._view_deltas) > limits.MAX_CACHED_VIEW_DELTAS or (
                len(self._view_deltas) > 1 and self._view_delta_rows() > limits.MAX_CACHED_VIEW_DELTA_ROWS
            ):
                self._view_deltas.popitem(last=False)

    def delta(
        self, table: TableName, old: Version, new: Version, columns: Collection[str]
    ) -> TableDelta | None:
        """The change of a table with at least these columns; None when no row changed.

        Raises:
            LakeError: the chain between the versions cannot be proven.
        """
        if old == new:
            return None
        with self._lock:
            cached = self._view_deltas.get((table, old, new))
        if cached is not None:
            return cached
        change = self._rows(table, old, new)
        if change.added is None and change.removed is None:
            return None
        if change.rows > limits.MAX_CACHED_TABLE_CHANGE_ROWS or not self._is_shared(table):
            return TableDelta(change.added, change.removed, change.rows)
        with self._lock:
            table_lock = self._table_locks[table]
        with table_lock:
            delta = self._materialized_delta((table, old, new), change, columns)
        return delta if delta.rows else None

    def stored_delta(
        self, table: TableName, old: Version, new: Version, columns: Collection[str]
    ) -> TableDelta | None:
        """The same, without rows if none changed. None: they are not held, or were not read from the table's
        files. What a view's refresh computed may have other last digits of floats than what it removed."""
        with self._lock:
            if (table, old, new) in self._view_deltas:
                return None
        delta = self.delta(table, old, new, columns)
        if delta is None:
            return TableDelta(None, None, 0, materialized=True)
        return delta if delta.materialized else None

    def small_table(self, table: TableName, version: Version, read: Callable[[], DataFrame]) -> DataFrame:
        """All rows of a version: held by the driver if they are few, otherwise as `read` gives them."""
        rows = self._load_input(table).row_count(version)
        if rows is None or rows > limits.MAX_SMALL_TABLE_ROWS:
            return read()
        return self.small_tables.rows(table, version, self._columns(table), read)

    def _view_delta_rows(self) -> int:
        return sum(delta.rows for delta in self._view_deltas.values())

    def _materialized_delta(
        self, key: _VersionRange, change: RowChange, columns: Collection[str]
    ) -> TableDelta:
        cached = self._materialized.get(key)
        if cached is None or not cached.columns.issuperset(columns):
            available = frozenset(
                next(rows for rows in (change.added, change.removed) if rows is not None).columns
            )
            read_columns = (self._columns(key[0]) & available).union(columns)
            cached = _MaterializedChange(read_columns, _computed_delta(change, sorted(read_columns)))
            with self._lock:
                self._materialized[key] = cached
                while len(self._materialized) > limits.MAX_CACHED_TABLE_CHANGES:
                    self._materialized.popitem(last=False)
        return cached.delta

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
        with self._count_lock:
            return self._counted_change(table, old, new).rows

    def bound(self, table: TableName, old: Version, new: Version) -> int | None:
        """The same from metadata alone, without a Spark job."""
        if old == new:
            return 0
        with self._lock:
            cached = self._view_deltas.get((table, old, new))
        if cached is not None:
            return cached.rows
        lake_table = self._load_input(table)
        if lake_table.change_between(old, new).kind is ChangeKind.UNKNOWN:
            return None
        return self._rows(table, old, new).rows

    def _rows(self, table: TableName, old: Version, new: Version) -> RowChange:
        key = (table, old, new)
        with self._lock:
            cached = self._table_changes.get(key)
        if cached is not None:
            return cached
        lake_table = self._load_input(table)
        change = lake_table.changed_rows(self._base, old, new)
        self._remember(key, change)
        return change

    def _counted_change(self, table: TableName, old: Version, new: Version) -> RowChange:
        change = self._rows(table, old, new)
        if not change.carried:  # Another view has just counted them.
            return change
        added, removed = (
            (None, 0) if rows is None else materialize_if_small(rows, limits.MIN_REWRITTEN_ROWS_TO_COUNT)
            for rows in (change.added, change.removed)
        )
        change = RowChange(
            added=added[0] if added[1] else None,
            removed=removed[0] if removed[1] else None,
            rows=added[1] + removed[1],
        )
        self._remember((table, old, new), change)
        return change

    def _remember(self, key: tuple[TableName, Version, Version], change: RowChange) -> None:
        with self._lock:
            self._table_changes[key] = change
            while len(self._table_changes) > limits.MAX_CACHED_VIEW_DELTAS:
                self._table_changes.popitem(last=False)


def _computed_delta(change: RowChange, columns: Collection[str]) -> TableDelta:
    """A change's rows with some columns, computed once and held."""

    def side(rows: DataFrame | None) -> tuple[DataFrame | None, int]:
        if rows is None:
            return None, 0
        materialized, count = materialize(rows.select(*map(quoted, columns)), max_rows=change.rows)
        return (materialized, count) if count else (None, 0)

    (added, added_rows), (removed, removed_rows) = side(change.added), side(change.removed)
    return TableDelta(added, removed, added_rows + removed_rows, materialized=True)
