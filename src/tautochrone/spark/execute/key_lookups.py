"""Rows of large tables that were looked up by keys, held for whoever asks for some of the same.

A change of some orders makes every view above read the lines of these orders, most of them several times:
before and after the change, and once for each operator. All of these are reads of the same rows.
"""

from __future__ import annotations

import decimal
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.spark.execute.materialize import materialize_up_to
from tautochrone.spark.translate.literals import UNORDERED_TYPE, in_list, in_ranges

__all__ = ["KeyLookups", "LookupRequest"]

_KEY, _SEPARATOR = "__taut_key", "\x1f"

_At = tuple[TableName, Version, str]


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """Which rows are asked for.

    Attributes:
        column: of the table, whose value is to be among the keys. NULL is no key.
        kind: its type's catalog string.
        values: the keys, as `literals` takes them.
        columns: of the table, at least.
    """

    column: str
    kind: str
    values: frozenset[Any]
    columns: Collection[str]


@dataclass(frozen=True, slots=True)
class _Held:
    """What was looked up, and by which keys; `size` counts its values."""

    values: frozenset[Any]
    columns: frozenset[str]
    rows: DataFrame
    size: int

    def has(self, wanted: LookupRequest) -> bool:
        """Whether all that is wanted is here."""
        return wanted.values <= self.values and self.columns.issuperset(wanted.columns)


class KeyLookups:
    """Safe to use from the threads of one run.

    Args:
        columns: those that the plans known so far read of a table.
    """

    def __init__(self, columns: Callable[[TableName], frozenset[str]]) -> None:
        self._columns = columns
        self._lock = threading.Lock()
        self._turns: defaultdict[tuple[TableName, str], threading.Lock] = defaultdict(threading.Lock)
        self._held: OrderedDict[_At, _Held] = OrderedDict()
        self._too_many: dict[tuple[TableName, str], int] = {}

    def rows(
        self,
        table: TableName,
        version: Version,
        wanted: LookupRequest,
        wider: Callable[[], LookupRequest | None],
        read: Callable[[], DataFrame],
    ) -> DataFrame | None:
        """The rows of a version whose key is among those wanted, and maybe rows with other keys, held.
        None: they are too many for that, or could not be read this way.

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
            both = None if known is None else replace(wanted, values=wanted.values | known.values)
            for asked in (wider(), both, wanted):
                if asked is not None and len(asked.values) < self._limit(at, asked):
                    found = self._looked_up(at, asked, known, read())
                    if found is not None:
                        return found.rows
        return None

    def forget(self) -> None:
        """Let go of all rows. How many keys are too many is remembered."""
        with self._lock:
            self._held.clear()

    # -- inside -----------------------------------------------------------------------------------

    def _limit(self, at: _At, asked: LookupRequest) -> int:
        """So many keys are too many, as an earlier look-up has shown."""
        return self._too_many.get((at[0], at[2]), len(asked.values) + 1)

    def _looked_up(
        self, at: _At, wanted: LookupRequest, known: _Held | None, rows: DataFrame
    ) -> _Held | None:
        columns = self._columns(at[0]).union(wanted.columns, [wanted.column], known.columns if known else ())
        # An older version may lack columns: who asks for them reads NULLs there.
        there = [name for name in rows.columns if name in columns]
        if wanted.column not in there:
            return None
        most = min(limits.MAX_LOOKUP_ROWS, limits.MAX_LOOKUP_VALUES // len(there))
        try:
            found = _read(rows.select(*map(quoted, there)), wanted, most)
        except (PySparkException, Py4JJavaError):
            # Whatever it was, the ordinary read that follows either does without or tells.
            found = None
        with self._lock:
            if found is None:
                self._too_many[at[0], at[2]] = len(wanted.values)
                return None
            held = self._held[at] = _Held(wanted.values, columns, found[0], found[1] * len(there))
            self._held.move_to_end(at)
            while len(self._held) > 1 and self._cached_values() > limits.MAX_CACHED_LOOKUP_VALUES:
                self._held.popitem(last=False)
        return held

    def _cached_values(self) -> int:
        return sum(lookup.size for lookup in self._held.values())


def _read(rows: DataFrame, wanted: LookupRequest, most: int) -> tuple[DataFrame, int] | None:
    """The rows with one of the keys, and how many; None when there are more than `most`."""
    few = len(wanted.values) <= limits.MAX_IN_LIST_VALUES
    text = (in_list if few else in_ranges)(quoted(wanted.column), wanted.values, wanted.kind)
    rows = rows.where(text)
    if not few:
        keys = _keys(rows.sparkSession, wanted)
        if keys is None:
            return None
        rows = rows.join(sf.broadcast(keys), rows[quoted(wanted.column)] == keys[_KEY], "left_semi")
    return materialize_up_to(rows, most)


def _keys(session: SparkSession, wanted: LookupRequest) -> DataFrame | None:
    """The keys as one column of rows, sent as one text; None when there is no such text."""
    texts = [f"{v:f}" if isinstance(v, decimal.Decimal) else str(v) for v in wanted.values]
    if wanted.kind.startswith(UNORDERED_TYPE) or any(_SEPARATOR in text for text in texts):
        return None
    each = sf.explode(sf.split(sf.lit(_SEPARATOR.join(texts)), _SEPARATOR))
    return session.range(1).select(each.alias(_KEY)).select(sf.col(_KEY).cast(wanted.kind).alias(_KEY))
