"""A cache of rows of large tables that are looked up by key, and keys as conditions that leave out files.

When some orders change, every view over orders and lines reads the lines of these orders, often several
times: at both cuts, and once for each operator. All of these read the same rows, so the views of a run share
the cache.
"""

from __future__ import annotations

import decimal
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import ReasonCode
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.driver_scan import note_job
from tautochrone.spark.execute.materialize import local_relation, materialize_few, materialize_up_to
from tautochrone.spark.jvm.catalyst import kind, known_row_count
from tautochrone.spark.jvm.driver_rows import COMPARED_TYPES, rows_at_other_version
from tautochrone.spark.translate.literals import UNORDERED_TYPE, are_exact, has_literals, in_list, in_ranges

__all__ = ["KeyLookups", "KeyValues", "LookupRequest", "OtherVersion", "collected_values", "key_values"]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The values of one column of a key.

    Attributes:
        kind: the column's type, as its catalog string.
    """

    values: Collection[Any]
    kind: str

    def condition(self, name: str, *, or_null: bool) -> str:
        """SQL over a column called `name` that all these values meet, and perhaps others.

        >>> KeyValues({7}, "int").condition("id", or_null=True)
        '(id IN (7)) OR id IS NULL'
        """
        is_short = len(self.values) <= limits.MAX_IN_LIST_VALUES
        condition = (in_list if is_short else in_ranges)(name, self.values, self.kind)
        return f"({condition}) OR {name} IS NULL" if or_null else condition


def key_values(rows: DataFrame, keys: Sequence[str]) -> dict[str, KeyValues]:
    """By column the values of a few rows' keys, see `collected_values`."""
    return collected_values(rows, keys)[0]


def collected_values(rows: DataFrame, columns: Sequence[str]) -> tuple[dict[str, KeyValues], int]:
    """By column the values of a few rows, and how many rows there are.

    Columns are left out whose type has no exact literals, or whose values Python does not hold as they are:
    Spark's dates go beyond the year 9999, and its strings may have bytes that are no text.
    """
    kinds = dict(rows.select(*map(quoted, columns)).dtypes)
    usable = [name for name in columns if has_literals(kinds[name]) and not _is_unordered(kinds[name])]
    try:
        collected = _collected(rows, usable)
    except (ValueError, OverflowError):
        usable = [name for name in usable if kinds[name] != "date"]
        collected = _collected(rows, usable)
    by_column = {
        name: KeyValues({row[number] for row in collected}, kinds[name]) for number, name in enumerate(usable)
    }
    return {name: values for name, values in by_column.items() if are_exact(values.values, values.kind)}, len(
        collected
    )


def _is_unordered(kind: str) -> bool:
    return kind.startswith(UNORDERED_TYPE)


def _collected(rows: DataFrame, columns: Sequence[str]) -> list[Row]:
    return rows.select(*(map(quoted, columns) if columns else [sf.lit(1)])).collect()


_KEY, _SEPARATOR = "__taut_key", "\x1f"

_CacheKey = tuple[TableName, Version, str]
"""Table, version, and the column that has the keys."""


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """A request for the rows of a table with one of some keys.

    Attributes:
        column: the table's column that is compared with the keys. NULL is no key.
        kind: the catalog string of the column's type.
        values: the keys, as `literals` takes them.
        columns: the table's columns that the result must have.
    """

    column: str
    kind: str
    values: frozenset[Any]
    columns: Collection[str]


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """Another version of a table that is looked up, and how the two differ.

    Attributes:
        version: the other one.
        difference: returns the rows that only the other version has, and those that only the version that is
            looked up has, None for no row; or None for both if they are not known.
    """

    version: Version
    difference: Callable[[], tuple[DataFrame | None, DataFrame | None] | None]


@dataclass(frozen=True, slots=True)
class _Lookup:
    """The result of a lookup.

    Attributes:
        values: its keys.
        columns: those that were read, also those that the version lacks.
        size: the number of values: rows times columns.
    """

    values: frozenset[Any]
    columns: frozenset[str]
    rows: DataFrame
    size: int

    def answers(self, request: LookupRequest) -> bool:
        """Whether the result has all keys and columns of a request."""
        return request.values <= self.values and self.columns.issuperset(request.columns)

    def has_rows_of(self, request: LookupRequest) -> bool:
        """The same, and its version lacks none of the columns: another version may have them."""
        return self.answers(request) and set(request.columns) <= set(self.rows.columns)


class KeyLookups:
    """The cache. Safe to use from the threads of one run.

    Args:
        columns: the columns of a table that the plans known so far read.
    """

    def __init__(self, columns: Callable[[TableName], frozenset[str]]) -> None:
        self._columns = columns
        self._lock = threading.Lock()
        self._column_locks: defaultdict[tuple[TableName, str], threading.Lock] = defaultdict(threading.Lock)
        self._cached: OrderedDict[_CacheKey, _Lookup] = OrderedDict()
        self._too_many: dict[tuple[TableName, str], int] = {}
        self._many: dict[tuple[TableName, str], int] = {}
        self._requested: defaultdict[tuple[TableName, str], set[str]] = defaultdict(set)
        self._learned: dict[tuple[TableName, str], frozenset[str]] = {}

    def candidate_rows(
        self,
        table: TableName,
        version: Version,
        request: LookupRequest,
        wider_request: Callable[[], LookupRequest | None],
        read_all: Callable[[], DataFrame],
        other: OtherVersion | None = None,
    ) -> DataFrame | None:
        """Materialized rows of a version: all rows with one of the requested keys, and maybe others.

        None: there are too many of them, or the lookup failed. Then the caller reads the table itself.

        Args:
            table: the table.
            version: its version.
            request: the keys and columns that the caller needs.
            wider_request: a request with more keys, which other views may need; None: no others are known.
            read_all: returns all rows of the version.
            other: a version whose rows with these keys may be known; None: there is no other one.
        """
        key = table, version, request.column
        with self._lock:
            column_lock = self._column_locks[table, request.column]
        with column_lock:
            self._requested[table, request.column].update(request.columns)
            cached = self._cached.get(key)
            if cached is not None and cached.answers(request):
                return cached.rows
            derived = None if other is None else self._derived(key, request, other)
            if derived is not None:
                return derived.rows
            extended = None if cached is None else replace(request, values=request.values | cached.values)
            for attempt in (wider_request(), extended, request):
                if attempt is not None and len(attempt.values) < self._too_many_keys(key, attempt):
                    lookup = self._looked_up(key, attempt, cached, read_all())
                    if lookup is not None:
                        return lookup.rows
        return None

    def forget(self) -> None:
        """Drop all cached rows. How many keys are too many, and which columns were requested, is
        remembered."""
        with self._lock:
            self._cached.clear()
            self._learned = {key: frozenset(columns) for key, columns in self._requested.items()}

    # -- inside -----------------------------------------------------------------------------------

    def _derived(self, key: _CacheKey, request: LookupRequest, other: OtherVersion) -> _Lookup | None:
        """The lookup, from that of another version and what differs between them; None: that one is not
        cached, or the rows are not all held by the driver."""
        with self._lock:
            cached = self._cached.get((key[0], other.version, key[2]))
        if request.kind not in COMPARED_TYPES or cached is None or not cached.has_rows_of(request):
            return None
        columns = cached.rows.columns
        rows = _held(cached.rows, columns)
        # What differs is computed last: that may take a job.
        difference = None if rows is None else other.difference()
        if rows is None or difference is None:
            return None
        own, others = (None if side is None else _held(side, columns) for side in difference)
        if (own is None, others is None) != (difference[0] is None, difference[1] is None):
            return None
        plan = rows_at_other_version(rows, own, others, columns.index(request.column), cached.values)
        if plan is None:
            return None
        frame = dataframe_of_plan(cached.rows.sparkSession, plan)
        size = int(plan.data().size()) * len(columns)
        return self._keep(key, _Lookup(cached.values, frozenset(columns), frame, size))

    def _keep(self, key: _CacheKey, lookup: _Lookup) -> _Lookup:
        with self._lock:
            self._cached[key] = lookup
            self._cached.move_to_end(key)
            while len(self._cached) > 1 and self._cached_values() > limits.MAX_CACHED_LOOKUP_VALUES:
                self._cached.popitem(last=False)
        return lookup

    def _too_many_keys(self, key: _CacheKey, request: LookupRequest) -> int:
        """The smallest number of keys of which a lookup is known to give too many rows."""
        return self._too_many.get((key[0], key[2]), len(request.values) + 1)

    def _looked_up(
        self, key: _CacheKey, request: LookupRequest, cached: _Lookup | None, rows: DataFrame
    ) -> _Lookup | None:
        cached_columns = cached.columns if cached else ()
        # Plans may read columns of the table that they never look up by this one.
        columns = self._learned.get((key[0], key[2])) or self._columns(key[0])
        columns = columns.union(request.columns, [request.column], cached_columns)
        # An older version may lack columns; a reader that needs them takes them as NULL.
        available = [name for name in rows.columns if name in columns]
        if request.column not in available:
            return None
        max_rows = min(limits.MAX_LOOKUP_ROWS, limits.MAX_LOOKUP_VALUES // len(available))
        many = self._many.get((key[0], key[2]), len(request.values) + 1)
        max_few = limits.MAX_SINGLE_TASK_ROWS if len(request.values) < many else 0
        note_job(ReasonCode.KEYS_LOOKED_UP, table=str(key[0]))
        try:
            result = _read(rows.select(*map(quoted, available)), request, max_rows, max_few)
        except (PySparkException, Py4JJavaError):
            # The caller then reads the table itself. If the error matters, that read raises it again.
            return None
        if result is None:
            with self._lock:
                self._too_many[key[0], key[2]] = len(request.values)
            return None
        frame, count = result
        if max_few and count > limits.MAX_SINGLE_TASK_ROWS:
            with self._lock:
                self._many[key[0], key[2]] = len(request.values)
        return self._keep(key, _Lookup(request.values, columns, frame, count * len(available)))

    def _cached_values(self) -> int:
        return sum(lookup.size for lookup in self._cached.values())


def _read(
    rows: DataFrame, request: LookupRequest, max_rows: int, max_few: int
) -> tuple[DataFrame, int] | None:
    """The rows with one of the keys, and their number; None when there are more than `max_rows`. Up to
    `max_few` rows are held by the driver."""
    name, is_in_list = quoted(request.column), len(request.values) <= limits.MAX_IN_LIST_VALUES
    condition = in_ranges(name, request.values, request.kind)
    if is_in_list:
        # Iceberg compares no long list with the statistics of its files, but ranges.
        condition = f"({condition}) AND {in_list(name, request.values, request.kind)}"
    rows = rows.where(condition)
    if not is_in_list:
        keys = _keys(rows.sparkSession, request)
        if keys is None:
            return None
        rows = rows.join(sf.broadcast(keys), rows[quoted(request.column)] == keys[_KEY], "left_semi")
    if max_few:
        # One job instead of three.
        few = materialize_few(rows, min(max_rows, max_few))
        if few is not None:
            return few, known_row_count(analyzed_plan(few)) or 0
    return materialize_up_to(rows, max_rows)


def _held(rows: DataFrame, columns: Sequence[str]) -> JavaObject | None:
    """A local relation of rows with some columns; None if the driver does not hold them, or they lack one."""
    plan = analyzed_plan(rows)
    if kind(plan) != "LocalRelation" or not set(columns) <= set(rows.columns):
        return None
    if rows.columns == list(columns):
        return plan
    return local_relation(rows.select(*map(quoted, columns)))[0]


def _keys(session: SparkSession, request: LookupRequest) -> DataFrame | None:
    """The keys as rows of one column. They are sent to the JVM as one text; None when that is ambiguous."""
    texts = [f"{v:f}" if isinstance(v, decimal.Decimal) else str(v) for v in request.values]
    if request.kind.startswith(UNORDERED_TYPE) or any(_SEPARATOR in text for text in texts):
        return None
    key_text = sf.explode(sf.split(sf.lit(_SEPARATOR.join(texts)), _SEPARATOR))
    keys = session.range(1).select(key_text.alias(_KEY))
    return keys.select(sf.col(_KEY).cast(request.kind).alias(_KEY))
