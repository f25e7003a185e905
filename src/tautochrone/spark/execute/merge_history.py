"""The merge of SCD type 2: the table holds all rows that a key ever had, and from when to when.

The state holds all events. An event whose tracked columns are those of the event before it begins no row; it
changes the other columns of the row in which it falls.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DataType, LongType, StructType
from pyspark.sql.window import Window, WindowSpec

from tautochrone.model.auto_cdc import END_COLUMN, START_COLUMN, AutoCdc, MergeColumns
from tautochrone.spark.execute.merge_events import (
    COUNT,
    DELETED,
    HASH,
    INVALID,
    SEQUENCE,
    TRUNCATES,
    EventMerge,
    Merged,
    NewestRow,
    NewestValues,
    all_equal,
    as_json,
    is_unordered,
    prefixed,
)

__all__ = ["History", "event_merge"]

_START, _END, _ROW = "start_at", "end_at", "row"
_VERSION, _LIFE, _IS_FIRST = "version", "life", "is_first"


@dataclass(frozen=True, slots=True)
class History(EventMerge):
    """SCD type 2. A NULL in an event may leave the value of the event before it."""

    @property
    def row_keys(self) -> dict[str, str]:
        keys = dict(zip(self.columns.keys, self.keys, strict=True))
        return {**keys, START_COLUMN: _START}

    @property
    def state_keys(self) -> tuple[str, ...]:
        return (*self.keys, SEQUENCE)

    @property
    def state_types(self) -> tuple[tuple[str, DataType], ...]:
        return (
            (COUNT, LongType()),
            (DELETED, BooleanType()),
            (HASH, LongType()),
            *zip(self.values, self._value_types, strict=True),
        )

    def _folded(self, events: DataFrame) -> DataFrame:
        return self._last_of(events, *self.state_keys)

    def merge(self, folded: DataFrame, state: DataFrame) -> Merged:
        columns = [*self.state_keys, DELETED, HASH, *self.values]
        known, events = state.select(*columns), folded.select(*columns)
        rank = sf.struct(DELETED, HASH)
        before = known.select(*prefixed("s", self.state_keys), rank.alias("of_state"))
        joined = events.select(*prefixed("e", self.state_keys), *columns).join(
            before, all_equal(self.state_keys), "left"
        )
        is_new = sf.col("of_state").isNull() | (rank > sf.col("of_state"))
        count = sf.lit(1).cast(LongType()).alias(COUNT)
        update = joined.where(is_new).select(*self.state_keys, count, DELETED, HASH, *self.values)
        merged = self._last_of(_valid(known.unionAll(events)), *self.state_keys)
        return self._difference(update, self._versions(known), self._versions(merged))

    def _versions(self, events: DataFrame) -> DataFrame:
        """The rows of the table that events give."""
        by_sequence = Window.partitionBy(*self.keys).orderBy(SEQUENCE)
        if self._null_ignoring:
            events = self._filled(events, by_sequence)
        deleted = sf.col(DELETED)
        current = sf.struct(deleted.alias(DELETED), self._tracked().alias(_ROW))
        previous = sf.lag(current).over(by_sequence)
        is_first = (
            deleted
            | previous.isNull()
            | previous.getField(DELETED)
            | ~previous.getField(_ROW).eqNullSafe(self._tracked())
        )
        up_to_here = by_sequence.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        numbered = events.withColumn(_IS_FIRST, is_first.cast("int"))
        numbered = numbered.withColumn(_VERSION, sf.sum(_IS_FIRST).over(up_to_here))
        versions = numbered.groupBy(*self.keys, _VERSION).agg(
            sf.min(SEQUENCE).alias(_START),
            sf.max(DELETED).alias(DELETED),
            sf.max_by(self._row(), SEQUENCE).alias(_ROW),
        )
        following = sf.lead(_START).over(Window.partitionBy(*self.keys).orderBy(_START))
        return (
            versions.withColumn(_END, following)
            .where(~sf.col(DELETED))
            .select(*self.keys, _START, _END, _ROW)
        )

    def _filled(self, events: DataFrame, by_sequence: WindowSpec) -> DataFrame:
        """Events with the values of those before them, back to the last deletion, where NULL is ignored."""
        up_to_here = Window.unboundedPreceding, Window.currentRow
        deletions = sf.sum(sf.col(DELETED).cast("int")).over(by_sequence.rowsBetween(*up_to_here))
        life = Window.partitionBy(*self.keys, _LIFE).orderBy(SEQUENCE).rowsBetween(*up_to_here)
        filled = {
            name: sf.last(sf.when(~sf.col(DELETED), sf.col(name)), ignorenulls=True).over(life)
            for name in sorted(self._null_ignoring)
        }
        return events.withColumn(_LIFE, deletions).withColumns(filled)

    def _difference(self, update: DataFrame, before: DataFrame, after: DataFrame) -> Merged:
        row_keys = tuple(self.row_keys.values())
        old = before.select(*prefixed("s", row_keys), sf.struct(_END, _ROW).alias("of_state"))
        new = after.select(*prefixed("e", row_keys), *after.columns, sf.struct(_END, _ROW).alias("of_event"))
        both = new.join(old, all_equal(row_keys), "full_outer")
        changed = both.where(~self._comparable("of_event").eqNullSafe(self._comparable("of_state")))
        gone = changed.where(sf.col("of_state").isNotNull())
        came = changed.where(sf.col("of_event").isNotNull())
        values = (sf.col(f"{_ROW}.{name}").alias(name) for name in self.values)
        added = self._table_rows(
            came.select(*self.keys, *values, _START, _END),
            sf.col(_START).alias(START_COLUMN),
            sf.col(_END).alias(END_COLUMN),
        )
        removed = gone.select(*(sf.col(f"s_{name}").alias(name) for name in row_keys))
        return Merged(update, added, removed)

    def _comparable(self, row: str) -> Column:
        """A row of the table for a comparison; NULL if it is not there."""
        is_text = any(map(is_unordered, self._value_types))
        return sf.when(sf.col(row).isNotNull(), as_json(sf.col(row))) if is_text else sf.col(row)

    def _row(self) -> Column:
        # A struct without fields cannot be stored.
        return sf.struct(*self.values, sf.lit(0).alias("_"))

    def _tracked(self) -> Column:
        chosen = set(self.columns.tracked)
        pairs = zip(self.columns.values, self.values, self._value_types, strict=True)
        columns = [
            as_json(sf.struct(name)) if is_unordered(kind) else sf.col(name)
            for value, name, kind in pairs
            if value in chosen
        ]
        return sf.struct(*(column.alias(f"t{number}") for number, column in enumerate(columns)), sf.lit(0))


def _valid(events: DataFrame) -> DataFrame:
    return events.withColumns({TRUNCATES: sf.lit(False), INVALID: sf.lit(False)})


def event_merge(
    auto_cdc: AutoCdc, columns: MergeColumns, query: StructType, *, truncates: bool
) -> EventMerge:
    """How events are merged.

    Args:
        query: the schema of the flow's query.
        truncates: whether an event may empty the table.
    """
    if auto_cdc.scd_type == 2:
        return History(columns, query, False)
    kind = NewestValues if auto_cdc.is_ignoring_nulls else NewestRow
    return kind(columns, query, truncates)
