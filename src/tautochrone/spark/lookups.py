"""Rows of large tables that were looked up by keys, held for whoever asks for some of the same.

A change of some orders makes every view above read the lines of these orders, most of them several times:
before and after the change, and once for each operator. All of these are reads of the same rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tautochrone.model.names import TableName, Version, quoted
from tautochrone.spark.catalyst import Catalyst
from tautochrone.spark.evaluate import dataframe_of_plan
from tautochrone.spark.held import local_relation
from tautochrone.spark.literals import LITERALS, among, within
from tautochrone.spark.plans import analysed

__all__ = ["Lookups", "Wanted"]

_MOST_ROWS = 300_000
"""More rows than these are not held: every read of them is its own."""

_MOST_HELD = 600_000
"""Rows of all look-ups together; the oldest are forgotten first."""

_VERSIONS = 2
"""Of a table, by one column: as it was and as it is."""

_MARKS = 256
"""So many times it is remembered that rows were too many."""

_KEY = "__taut_key"

_At = tuple[TableName, Version, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are asked for.

    Attributes:
        column: of the table, whose value is to be among the keys. NULL is no key.
        kind: its type's catalog string.
        values: the keys, as `literals` takes them.
        keys: the same as one column of rows.
        columns: of the table, at least.
    """

    column: str
    kind: str
    values: frozenset[Any]
    keys: DataFrame
    columns: Collection[str]


@dataclass(frozen=True, slots=True)
class _Held:
    """What was looked up, and by which keys."""

    values: frozenset[Any]
    keys: DataFrame
    columns: frozenset[str]
    rows: DataFrame
    count: int

    def has(self, wanted: Wanted) -> bool:
        """Whether all that is wanted is here."""
        return wanted.values <= self.values and self.columns.issuperset(wanted.columns)


class Lookups:
    """Safe to use from the threads of one run.

    Args:
        columns: those that the plans known so far read of a table.
    """

    def __init__(self, columns: Callable[[TableName], frozenset[str]]) -> None:
        self._columns = columns
        self._lock = threading.Lock()
        self._turns: defaultdict[tuple[TableName, str], threading.Lock] = defaultdict(threading.Lock)
        self._held: OrderedDict[_At, _Held] = OrderedDict()
        self._too_many: OrderedDict[_At, int] = OrderedDict()

    def rows(
        self,
        table: TableName,
        version: Version,
        wanted: Wanted,
        wider: Callable[[], Wanted | None],
        read: Callable[[], DataFrame],
    ) -> DataFrame | None:
        """The rows of a version whose key is among those wanted, and maybe rows with other keys, on the
        driver. None: they are too many to be held.

        Args:
            wider: more keys, for those who come next; None: nobody knows of others.
            read: all rows of the version.
        """
        at = table, version, wanted.column
        with self._lock:
            turn = self._turns[table, wanted.column]
        with turn:
            known = self._held.get(at)
            if known is not None and known.has(wanted):
                return known.rows
            for asked in (wider(), wanted):
                if asked is not None and len(asked.values) < self._too_many.get(at, len(asked.values) + 1):
                    found = self._looked_up(at, asked, known, read())
                    if found is not None:
                        return found.rows
        return None

    def forget(self) -> None:
        """Let go of all rows."""
        with self._lock:
            self._held.clear()

    # -- inside -----------------------------------------------------------------------------------

    def _looked_up(self, at: _At, wanted: Wanted, known: _Held | None, rows: DataFrame) -> _Held | None:
        """Look up what is wanted, and with it what was known."""
        columns = self._columns(at[0]).union(wanted.columns, [wanted.column])
        values, keys = wanted.values, dataframe_of_plan(rows.sparkSession, analysed(wanted.keys)).toDF(_KEY)
        if known is not None and len(known.values & values) * 2 > len(known.values):
            # Else it belongs to another change, of which this version was the end.
            values, columns = values | known.values, columns | known.columns
            both = keys.union(known.keys).distinct()
            keys = dataframe_of_plan(keys.sparkSession, local_relation(both)[0])
        # An older version may lack columns: who asks for them reads NULLs there.
        there = [name for name in rows.columns if name in columns]
        if wanted.column not in there:
            return None
        found, count = _read(rows.select(*map(quoted, there)), wanted, values, keys)
        with self._lock:
            if count >= _MOST_ROWS:
                self._too_many[at] = len(values)
                while len(self._too_many) > _MARKS:
                    self._too_many.popitem(last=False)
                return None
            held = self._held[at] = _Held(values, keys, columns, found, count)
            self._held.move_to_end(at)
            self._forget(at)
        return held

    def _forget(self, newest: _At) -> None:
        """Let go of what nobody will ask for, and of the oldest while all that is held is too much."""
        same = [at for at in self._held if (at[0], at[2]) == (newest[0], newest[2])]
        for at in same[:-_VERSIONS]:
            del self._held[at]
        while len(self._held) > 1 and sum(each.count for each in self._held.values()) > _MOST_HELD:
            self._held.popitem(last=False)


def _read(rows: DataFrame, wanted: Wanted, values: frozenset[Any], keys: DataFrame) -> tuple[DataFrame, int]:
    """The rows with one of the keys, and how many; not all of them when they are too many."""
    few = len(values) <= LITERALS
    text = (among if few else within)(quoted(wanted.column), values, wanted.kind)
    rows = rows.where(text)
    if not few:
        rows = rows.join(sf.broadcast(keys), rows[quoted(wanted.column)] == keys[_KEY], "left_semi")
    catalyst = Catalyst(rows.sparkSession)
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
    limited = catalyst.logical("LocalLimit")(catalyst.literal(_MOST_ROWS), plan)
    relation, count = local_relation(dataframe_of_plan(rows.sparkSession, limited))
    return dataframe_of_plan(rows.sparkSession, relation), count
