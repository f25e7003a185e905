"""The new rows of a change log's table, read once for all tables that take their events from it.

A log has the events of many relations, and each of its tables needs those of one. What the log gained since
the last checkpoint is read by the first table that asks, and split:

    few rows       are held on the driver, by relation, unless they are long
    more rows      are counted by relation; those of many relations are held on the executors
    very many      are counted by relation, and each table reads the files

The rows are counted by this process in the data files, or by a Spark job where it cannot read these.

A table whose relation has no new rows needs no Spark job then.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.lake import AppendedRows
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.execute.materialize import (
    computed_on_executors,
    fits_on_driver,
    local_rows_by_value,
    unpersist,
)

__all__ = ["LogRange", "LogRows", "RelationRows"]

_FEW_RELATIONS = 2
"""So many relations read their rows from the files: holding all rows costs more than reading them twice."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The rows that a log's table has in one version and not in an older one; None: all rows."""

    table: TableName
    old: Version | None
    new: Version


@dataclass(frozen=True, slots=True)
class RelationRows:
    """Rows of one relation.

    Attributes:
        count: so many they are, at most; None: nobody knows.
        characters: as text, or bytes in memory, at most; None: nobody knows.
        of: so many rows the log got for all relations.
        counted_by_spark: why a Spark job counted them; None: this process did.
    """

    rows: DataFrame
    count: int | None
    characters: int | None = None
    of: int = 0
    counted_by_spark: Reason | None = None

    @property
    def fit_in_arrow(self) -> bool:
        """Whether they can be handed to the driver as Arrow."""
        if self.count is None or self.characters is None:
            return False
        return self.count <= limits.MAX_ARROW_ROWS and self.characters <= limits.MAX_ARROW_BYTES

    @property
    def left_to_executors(self) -> Reason | None:
        """Why the driver does not hold them; None: they are few and short."""
        if self.count is None:
            return Reason.of(ReasonCode.EVENTS_NOT_COUNTED)
        if not fits_on_driver(self.count):
            return Reason.of(ReasonCode.MANY_EVENTS, rows=self.count, limit=limits.MAX_DRIVER_ROWS)
        if self.characters is None:
            return Reason.of(ReasonCode.LOG_ROWS_NOT_HELD, rows=self.of)
        limit = limits.MAX_DRIVER_CHARACTERS
        if self.characters > limit:
            return Reason.of(ReasonCode.LONG_EVENTS, characters=self.characters, limit=limit)
        return None


@dataclass(frozen=True, slots=True)
class _Split:
    """The rows of a range by relation.

    Attributes:
        rows: all of them; None: there are none.
        sizes: of each relation, the number of rows and of their characters or bytes at most, as far as known.
        local: rows of each relation, if these are on the driver.
        is_held: `rows` are kept on the executors.
    """

    rows: DataFrame | None
    sizes: Mapping[str | None, tuple[int, int | None]] = field(default_factory=dict)
    local: Mapping[str | None, DataFrame] = field(default_factory=dict)
    is_held: bool = False
    counted_by_spark: Reason | None = None


class LogRows:
    """Safe to use from the threads of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._range_locks: defaultdict[LogRange, threading.Lock] = defaultdict(threading.Lock)
        self._splits: dict[LogRange, _Split] = {}

    def of_relation(
        self,
        log_range: LogRange,
        column: str,
        relation: str,
        expected: int,
        read: Callable[[], DataFrame | None],
        count: Callable[[int], AppendedRows | Reason],
    ) -> RelationRows | None:
        """The rows of a relation; None: the range has no rows at all.

        Args:
            column: the log's column that names the relation of a row.
            expected: how many rows the range has, about; only where they are held depends on it.
            read: reads the range; None: it has no rows.
            count: counts its rows by relation, and their bytes up to a number, as
                `LakeTable.appended_rows` does.
        """
        with self._lock:
            range_lock = self._range_locks[log_range]
        with range_lock:
            split = self._splits.get(log_range)
            if split is None:
                split = self._splits[log_range] = _split(read(), column, expected, count)
        if split.rows is None:
            return None
        number, characters = split.sizes.get(relation, (0, 0))
        rows = split.local.get(relation)
        if rows is None:
            rows = split.rows.where(sf.col(quoted(column)) == sf.lit(relation))
        total = sum(number for number, _ in split.sizes.values())
        return RelationRows(rows, number, characters, total, split.counted_by_spark)

    def forget(self) -> None:
        """Drop the rows that were held for a checkpoint."""
        with self._lock:
            for split in self._splits.values():
                if split.is_held and split.rows is not None:
                    unpersist(split.rows)
            self._splits.clear()
            self._range_locks.clear()


def _split(
    rows: DataFrame | None, column: str, expected: int, count: Callable[[int], AppendedRows | Reason]
) -> _Split:
    if rows is None:
        return _Split(None)
    are_few = fits_on_driver(expected)
    limit = limits.MAX_DRIVER_CHARACTERS if are_few else limits.MAX_ARROW_BYTES
    counted = count(limit if expected <= limits.MAX_ARROW_ROWS else 0)
    counted_by_spark = counted if isinstance(counted, Reason) else None
    if are_few and _are_few_and_short(rows, counted):
        groups = local_rows_by_value(rows.coalesce(1).sortWithinPartitions(quoted(column)), column)
        local = {relation: frame for relation, (frame, _) in groups.items()}
        sizes = {relation: (number, limit) for relation, (_, number) in groups.items()}
        return _Split(rows, sizes, local, counted_by_spark=counted_by_spark)
    if not are_few:
        sizes_by_count = _counts(rows, column, counted)
        total = sum(number for number, _ in sizes_by_count.values())
        if len(sizes_by_count) <= _FEW_RELATIONS or total > limits.MAX_HELD_LOG_ROWS:
            return _Split(rows, sizes_by_count, counted_by_spark=counted_by_spark)
    cached, _ = computed_on_executors(rows)
    return _Split(cached, _sizes(cached, column), is_held=True, counted_by_spark=counted_by_spark)


def _are_few_and_short(rows: DataFrame, counted: AppendedRows | Reason) -> bool:
    """Whether the rows of a range fit on the driver; `expected` may be too low."""
    if not isinstance(counted, Reason):
        return counted.bytes is not None and fits_on_driver(sum(counted.counts.values()))
    # Reading a few rows twice takes less than holding them on the executors in between.
    number, characters = _size(rows.coalesce(1))
    return fits_on_driver(number) and characters <= limits.MAX_DRIVER_CHARACTERS


def _counts(
    rows: DataFrame, column: str, counted: AppendedRows | Reason
) -> dict[str | None, tuple[int, int | None]]:
    """By relation, the number of rows, and the bytes that they have at most, as far as known."""
    if isinstance(counted, Reason):
        counts = rows.groupBy(sf.col(quoted(column)).alias("relation")).agg(sf.count(sf.lit(1)).alias("rows"))
        return {row["relation"]: (int(row["rows"]), None) for row in counts.collect()}
    is_short = counted.bytes is not None and counted.bytes <= limits.MAX_DRIVER_CHARACTERS
    return {
        # Of few rows nobody knows whether they are short where all rows are not.
        relation: (number, None if fits_on_driver(number) and not is_short else counted.bytes)
        for relation, number in counted.counts.items()
    }


def _size(rows: DataFrame) -> tuple[int, int]:
    """The number of rows, and of characters of them as text."""
    size = rows.agg(sf.count(sf.lit(1)), sf.coalesce(sf.sum(_characters(rows)), sf.lit(0))).first()
    assert size is not None
    return int(size[0]), int(size[1])


def _characters(rows: DataFrame) -> Column:
    return sf.length(sf.struct(*[sf.col(quoted(name)) for name in rows.columns]).cast("string"))


def _sizes(rows: DataFrame, column: str) -> dict[str | None, tuple[int, int]]:
    """By relation, the number of rows and of characters of them as text."""
    sizes = rows.groupBy(sf.col(quoted(column)).alias("relation")).agg(
        sf.count(sf.lit(1)).alias("rows"), sf.sum(_characters(rows)).alias("characters")
    )
    return {row["relation"]: (int(row["rows"]), int(row["characters"])) for row in sizes.collect()}
