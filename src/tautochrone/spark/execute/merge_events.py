"""What AUTO CDC merges, as DataFrames: events and the state of their keys in, rows and the new state out.

A state is what must be known of a key so that later events of it, in whatever order they come, give the rows
that all of its events together give in the order of their sequence values.

* SCD type 1: the last event of each key, without its values.
* SCD type 1 that ignores NULL: for each column the last value, which is not NULL where NULL is ignored.
* SCD type 2: all events.

Two events of a key with the same sequence value count as one: a deletion before others, then the one with
the greater hash. So the order in which they come makes no difference there either.

Columns are renamed: `k0, k1, …` are the keys and `c0, c1, …` the other columns of the table.

With a retention an event counts as late when its sequence value is smaller than the greatest one that was
merged before, less the retention:

    horizon = max(sequence values in the state) − retention
    late(event) ⇔ sequence(event) < horizon

Late events are refused, so a deletion before the horizon is not needed: an event that it should beat is late
too. The horizon never goes back, because the row with the greatest sequence value is never forgotten.

The events of a new snapshot are what changed by key since the snapshot that the log of earlier events leads
to.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.window import Window, WindowSpec

from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TRUNCATE_COLUMN,
    AutoCdc,
    MergeColumns,
)
from tautochrone.model.names import quoted

__all__ = [
    "COUNT",
    "DELETED",
    "HASH",
    "INVALID",
    "ROWS_OF_KEY",
    "SEQUENCE",
    "TRUNCATES",
    "EventMerge",
    "Horizon",
    "Merged",
    "all_equal",
    "event_merge",
    "has_horizon",
    "horizon_of",
    "prefixed",
    "row_hash",
    "snapshot_difference",
]

COUNT, SEQUENCE, DELETED, HASH, TRUNCATES = "count", "sequence", "deleted", "hash", "truncates"
INVALID, _ALIVE = "invalid", "alive"
_HORIZON, _STATE, _EVENT, _RANK = "horizon", "of_state", "of_event", "rank"
_START, _END, _ROW = "start_at", "end_at", "row"
_VERSION, _LIFE, _IS_FIRST = "version", "life", "is_first"
_UNORDERED = ("map", "variant")
_NESTED = ("array", "struct", *_UNORDERED)
_JSON_OPTIONS = {
    # Spark writes milliseconds if it is not told otherwise.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of a merge.

    Attributes:
        state: rows of the state that are new or others than before; with a count of 0 the row is gone.
        added: rows that the table gets, with its columns.
        removed: `EventMerge.row_keys` of the rows that the table loses.
    """

    state: DataFrame
    added: DataFrame
    removed: DataFrame


@dataclass(frozen=True, slots=True)
class EventMerge(abc.ABC):
    """How events of one schema are merged.

    Attributes:
        columns: roles of the table's columns.
        query: the schema of the flow's query.
        is_truncating: an event may empty the table.
    """

    columns: MergeColumns
    query: StructType
    is_truncating: bool

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"k{number}" for number in range(len(self.columns.keys)))

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(f"c{number}" for number in range(len(self.columns.values)))

    @property
    def row_keys(self) -> dict[str, str]:
        """What identifies a row: the table's column → the column of `Merged.removed`."""
        return dict(zip(self.columns.keys, self.keys, strict=True))

    @property
    def state_keys(self) -> tuple[str, ...]:
        """What tells a row of the state."""
        return self.keys

    @property
    @abc.abstractmethod
    def state_types(self) -> tuple[tuple[str, DataType], ...]:
        """The other columns of the state, the count first."""

    def state_schema(self, run: str) -> StructType:
        """The state's table, with the column of the run at the end."""
        types = zip(self.keys, self.columns.keys, strict=True)
        fields = [StructField(name, self.query[key].dataType) for name, key in types]
        if SEQUENCE in self.state_keys:
            fields.append(StructField(SEQUENCE, self.sequence_type))
        fields += [StructField(name, kind) for name, kind in self.state_types]
        return StructType([*fields, StructField(run, LongType())])

    def folded(self, events: DataFrame) -> DataFrame:
        """The events that count among some.

        Truncations have NULL as key and are one group. Events without a key or without a sequence value are
        kept, so that the caller can refuse them: `invalid`.
        """
        return self.fold(self.renamed(events))

    def fold(self, renamed: DataFrame) -> DataFrame:
        """`folded` of events that are renamed already."""
        return self._folded(renamed)

    def invalid(self, folded: DataFrame) -> DataFrame:
        """The folded events that lack a part of their key or the sequence value."""
        return folded.where(INVALID)

    def truncations(self, folded: DataFrame) -> DataFrame:
        """The folded events that empty the table."""
        return folded.where(TRUNCATES)

    def keys_of(self, folded: DataFrame) -> DataFrame:
        """The keys of the state's rows that a merge needs; NULL for the row of the last truncation."""
        keys = folded.select(*self.keys).distinct()
        if not self.is_truncating:
            return keys
        types = zip(self.keys, self.columns.keys, strict=True)
        nulls = [sf.lit(None).cast(self.query[column].dataType).alias(key) for key, column in types]
        return keys.unionAll(folded.sparkSession.range(1).select(*nulls))

    @abc.abstractmethod
    def _folded(self, events: DataFrame) -> DataFrame: ...

    @abc.abstractmethod
    def merge(self, folded: DataFrame, state: DataFrame) -> Merged:
        """The change by some folded events.

        Args:
            state: the state's rows of these keys and of the key NULL; all of them if an event empties the
                table now.
        """

    # -- shared -----------------------------------------------------------------------------------

    @property
    def _null_ignoring(self) -> frozenset[str]:
        """The values in which NULL leaves what was there."""
        names = zip(self.columns.values, self.values, strict=True)
        return frozenset(name for column, name in names if column in self.columns.null_ignoring)

    @property
    def sequence_type(self) -> DataType:
        return self.query[SEQUENCE_COLUMN].dataType

    @property
    def _value_types(self) -> tuple[DataType, ...]:
        return tuple(self.query[name].dataType for name in self.columns.values)

    def renamed(self, events: DataFrame) -> DataFrame:
        """Events with the columns of a merge, and whether they are `INVALID`."""
        truncates = sf.col(TRUNCATE_COLUMN)
        keys = zip(self.columns.keys, self.keys, strict=True)
        values = zip(self.columns.values, self.values, strict=True)
        renamed = events.select(
            *(sf.when(~truncates, sf.col(quoted(key))).alias(name) for key, name in keys),
            sf.col(SEQUENCE_COLUMN).alias(SEQUENCE),
            sf.col(DELETE_COLUMN).alias(DELETED),
            truncates.alias(TRUNCATES),
            *(sf.col(quoted(value)).alias(name) for value, name in values),
        )
        is_null = (sf.col(key).isNull() for key in self.keys)
        without_key = reduce(lambda left, right: left | right, is_null) & ~sf.col(TRUNCATES)
        return renamed.withColumns(
            {
                # Orders events with the same sequence value.
                HASH: row_hash(map(sf.col, self.values), self._value_types),
                INVALID: without_key | sf.col(SEQUENCE).isNull(),
            }
        )

    def _last_of(self, events: DataFrame, *group: str) -> DataFrame:
        window = Window.partitionBy(*group, TRUNCATES, INVALID).orderBy(
            sf.col(SEQUENCE).desc(), sf.col(DELETED).desc(), sf.col(HASH).desc()
        )
        ranked = events.withColumn(_RANK, sf.row_number().over(window))
        return ranked.where(sf.col(_RANK) == 1).drop(_RANK)

    def _with_horizon(
        self, rows: DataFrame, folded: DataFrame, state: DataFrame, column: str = SEQUENCE
    ) -> DataFrame:
        """Rows with the sequence value up to which the table was emptied, or NULL."""
        if not self.is_truncating:
            return rows.withColumn(_HORIZON, sf.lit(None).cast(self.sequence_type))
        older = state.where(sf.col(self.keys[0]).isNull()).select(column)
        horizon = folded.where(TRUNCATES).select(column).unionAll(older).agg(sf.max(column).alias(_HORIZON))
        return rows.crossJoin(sf.broadcast(horizon))

    def _horizon_row(self, folded: DataFrame, state: DataFrame, column: str = SEQUENCE) -> DataFrame:
        """The state's row with the key NULL after a truncation."""
        later = self._with_horizon(folded.where(TRUNCATES).select(*self.keys), folded, state, column)
        names = [name for name, _ in self.state_types]
        values = {COUNT: sf.lit(1).cast(LongType()), column: sf.col(_HORIZON)}
        kinds = dict(self.state_types)
        others = (values.get(name, sf.lit(None).cast(kinds[name])).alias(name) for name in names)
        return later.select(*self.keys, *others)

    def _table_rows(self, rows: DataFrame, *more: Column) -> DataFrame:
        """Rows with the names of the table."""
        names = zip(
            (*self.keys, *self.values), (*self.columns.keys, *self.columns.values), strict=True
        )  # fmt: skip
        return rows.select(*(sf.col(internal).alias(name) for internal, name in names), *more)


@dataclass(frozen=True, slots=True)
class NewestRow(EventMerge):
    """SCD type 1."""

    @property
    def state_types(self) -> tuple[tuple[str, DataType], ...]:
        return (
            (COUNT, LongType()),
            (SEQUENCE, self.sequence_type),
            (DELETED, BooleanType()),
            (HASH, LongType()),
        )

    def _folded(self, events: DataFrame) -> DataFrame:
        return self._last_of(events, *self.keys)

    def merge(self, folded: DataFrame, state: DataFrame) -> Merged:
        rank = sf.struct(SEQUENCE, DELETED, HASH)
        known = state.where(sf.col(self.keys[0]).isNotNull()) if self.is_truncating else state
        known = known.select(*prefixed("s", self.keys), rank.alias(_STATE))
        events = folded.where(~sf.col(TRUNCATES)) if self.is_truncating else folded
        events = events.select(*prefixed("e", self.keys), *self.values, rank.alias(_EVENT))
        both = all_equal(self.keys)
        joined = events.join(known, both, "full_outer" if self.is_truncating else "left")
        joined = self._with_horizon(joined, folded, state)
        state_rank, event_rank = sf.col(_STATE), sf.col(_EVENT)
        takes_event = event_rank.isNotNull() & (state_rank.isNull() | (event_rank > state_rank))
        newest = sf.when(takes_event, event_rank).otherwise(state_rank)
        is_dead = sf.coalesce(newest.getField(SEQUENCE) <= sf.col(_HORIZON), sf.lit(False))
        keys = [sf.coalesce(sf.col(f"e_{key}"), sf.col(f"s_{key}")).alias(key) for key in self.keys]
        changed = joined.where((takes_event & ~is_dead) | (state_rank.isNotNull() & is_dead))
        update = changed.select(
            *keys,
            sf.when(is_dead, 0).otherwise(1).cast(LongType()).alias(COUNT),
            newest.getField(SEQUENCE).alias(SEQUENCE),
            newest.getField(DELETED).alias(DELETED),
            newest.getField(HASH).alias(HASH),
        )
        if self.is_truncating:
            update = update.unionAll(self._horizon_row(folded, state))
        was_row = state_rank.isNotNull() & ~state_rank.getField(DELETED)
        added = changed.where(~is_dead & ~newest.getField(DELETED)).select(*keys, *self.values)
        return Merged(update, self._table_rows(added), changed.where(was_row).select(*keys))


@dataclass(frozen=True, slots=True)
class NewestValues(EventMerge):
    """SCD type 1 that ignores NULL. `sequence` is that of the last event that is no deletion, `deleted` the
    sequence value of the last deletion or truncation, and each value has its own."""

    @property
    def state_types(self) -> tuple[tuple[str, DataType], ...]:
        values = [
            StructType([StructField(SEQUENCE, self.sequence_type), StructField("value", kind)])
            for kind in self._value_types
        ]
        return (
            (COUNT, LongType()),
            (SEQUENCE, self.sequence_type),
            (DELETED, self.sequence_type),
            *zip(self.values, values, strict=True),
        )

    def _folded(self, events: DataFrame) -> DataFrame:
        sequence, is_deletion = sf.col(SEQUENCE), sf.col(DELETED) | sf.col(TRUNCATES)
        rows = events.select(
            *self.keys,
            TRUNCATES,
            INVALID,
            sf.when(~is_deletion, sequence).alias(SEQUENCE),
            sf.when(is_deletion, sequence).alias(DELETED),
            *(
                sf.when(
                    ~is_deletion & (sf.lit(name not in self._null_ignoring) | sf.col(name).isNotNull()),
                    sf.struct(sequence.alias(SEQUENCE), sf.col(name).alias("value")),
                ).alias(name)
                for name in self.values
            ),
        )
        return self._grouped(rows, TRUNCATES, INVALID)

    def merge(self, folded: DataFrame, state: DataFrame) -> Merged:
        columns = [*self.keys, SEQUENCE, DELETED, *self.values]
        events = folded.where(~sf.col(TRUNCATES)).select(*columns)
        known = state.where(sf.col(self.keys[0]).isNotNull()).select(*columns)
        before = known.select(
            *prefixed("s", self.keys), _is_alive().alias(_ALIVE), self._content().alias(_STATE)
        )
        merged = self._with_horizon(self._grouped(known.unionAll(events)), folded, state, DELETED)
        merged = merged.withColumn(DELETED, sf.greatest(DELETED, _HORIZON))
        for name in self.values:
            is_valid = sf.col(DELETED).isNull() | (sf.col(f"{name}.{SEQUENCE}") > sf.col(DELETED))
            merged = merged.withColumn(name, sf.when(is_valid, sf.col(name)))
        merged = merged.withColumn(_EVENT, self._content())
        merged = merged.select(*prefixed("e", self.keys), *merged.columns)
        joined = merged.join(before, all_equal(self.keys), "left")
        changed = joined.where(~sf.col(_EVENT).eqNullSafe(sf.col(_STATE)))
        count = sf.lit(1).cast(LongType()).alias(COUNT)
        update = changed.select(*self.keys, count, SEQUENCE, DELETED, *self.values)
        if self.is_truncating:
            update = update.unionAll(self._horizon_row(folded, state, DELETED))
        values = (sf.col(f"{name}.value").alias(name) for name in self.values)
        added = changed.where(_is_alive()).select(*self.keys, *values)
        return Merged(update, self._table_rows(added), changed.where(sf.col(_ALIVE)).select(*self.keys))

    def _grouped(self, rows: DataFrame, *more_keys: str) -> DataFrame:
        """Values with the same sequence value are told by their hashes."""
        newest = (
            sf.max_by(name, sf.struct(f"{name}.{SEQUENCE}", _value_hash(sf.col(f"{name}.value"), kind)))
            for name, kind in zip(self.values, self._value_types, strict=True)
        )
        return rows.groupBy(*self.keys, *more_keys).agg(
            sf.max(SEQUENCE).alias(SEQUENCE),
            sf.max(DELETED).alias(DELETED),
            *(value.alias(name) for name, value in zip(self.values, newest, strict=True)),
        )

    def _content(self) -> Column:
        """What two states of a key have in common exactly if they are the same."""
        hashes = (
            sf.struct(f"{name}.{SEQUENCE}", _value_hash(sf.col(f"{name}.value"), kind))
            for name, kind in zip(self.values, self._value_types, strict=True)
        )
        return sf.struct(SEQUENCE, DELETED, *hashes)


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
        before = known.select(*prefixed("s", self.state_keys), rank.alias(_STATE))
        joined = events.select(*prefixed("e", self.state_keys), *columns).join(
            before, all_equal(self.state_keys), "left"
        )
        is_new = sf.col(_STATE).isNull() | (rank > sf.col(_STATE))
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
        old = before.select(*prefixed("s", row_keys), sf.struct(_END, _ROW).alias(_STATE))
        new = after.select(*prefixed("e", row_keys), *after.columns, sf.struct(_END, _ROW).alias(_EVENT))
        both = new.join(old, all_equal(row_keys), "full_outer")
        changed = both.where(~self._comparable(_EVENT).eqNullSafe(self._comparable(_STATE)))
        gone = changed.where(sf.col(_STATE).isNotNull())
        came = changed.where(sf.col(_EVENT).isNotNull())
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
        is_text = any(map(_is_unordered, self._value_types))
        return sf.when(sf.col(row).isNotNull(), _as_json(sf.col(row))) if is_text else sf.col(row)

    def _row(self) -> Column:
        # A struct without fields cannot be stored.
        return sf.struct(*self.values, sf.lit(0).alias("_"))

    def _tracked(self) -> Column:
        chosen = set(self.columns.tracked)
        pairs = zip(self.columns.values, self.values, self._value_types, strict=True)
        columns = [
            _as_json(sf.struct(name)) if _is_unordered(kind) else sf.col(name)
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


# -- columns of merges -----------------------------------------------------------------------------


def _is_unordered(kind: DataType) -> bool:
    """Whether values of the type cannot be compared, only their texts."""
    return any(word in kind.simpleString() for word in _UNORDERED)


def row_hash(values: Iterable[Column], kinds: Iterable[DataType]) -> Column:
    """A hash of several values of these types. Of no values it is a constant."""
    return sf.xxhash64(*map(_value_hash, values, kinds), sf.lit(0))


def _value_hash(value: Column, kind: DataType) -> Column:
    """A hash of a value. It is never NULL.

    Spark's hash of several values, or of a nested one, leaves NULL out: (NULL, 'x') has that of ('x', NULL).
    So each value has a hash of its own, and nested ones are hashed as JSON.
    """
    is_nested = kind.simpleString().startswith(_NESTED)
    return sf.xxhash64(_as_json(sf.struct(value)) if is_nested else value)


def _as_json(value: Column) -> Column:
    """A struct as JSON, from which all that differs can be told."""
    return sf.to_json(value, _JSON_OPTIONS)


def all_equal(names: Iterable[str]) -> Column:
    """Whether columns of two sides, prefixed by `prefixed`, are the same."""
    conditions = (sf.col(f"e_{name}").eqNullSafe(sf.col(f"s_{name}")) for name in names)
    return reduce(lambda left, right: left & right, conditions)


def prefixed(prefix: str, names: Iterable[str]) -> list[Column]:
    """The columns of one side of a join: `e` for events, `s` for the state."""
    return [sf.col(name).alias(f"{prefix}_{name}") for name in names]


def _is_alive() -> Column:
    return sf.col(SEQUENCE).isNotNull() & (sf.col(DELETED).isNull() | (sf.col(SEQUENCE) > sf.col(DELETED)))


# -- late events -----------------------------------------------------------------------------------


_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Horizon:
    """A time in microseconds of the epoch; a value that comes later is greater."""

    at_us: int
    merge: EventMerge

    def is_late(self) -> Column:
        """Of an event, as a flow's query gives it. One without a sequence value is not late, but invalid."""
        return sf.coalesce(sf.expr(_as_us(SEQUENCE_COLUMN, self._kind)) < self.at_us, sf.lit(False))

    @property
    def text(self) -> str:
        """The time as ISO 8601 says it."""
        # Python's datetime ends with the year 9999, Spark's TIMESTAMP does not.
        return f"{np.datetime64(self.at_us, 'us')}Z"

    @property
    def forgets(self) -> str:
        """SQL: whether a row of the state is that of a key which was deleted before the horizon."""
        deleted, at = DELETED, SEQUENCE
        if isinstance(self.merge, NewestValues):
            deleted, at = f"{DELETED} >= coalesce({SEQUENCE}, {DELETED})", DELETED
        # The row of the last truncation has no key.
        is_key = f"{self.merge.keys[0]} IS NOT NULL"
        return f"coalesce({deleted} AND {is_key} AND {_as_us(at, self._kind)} < {self.at_us}, false)"

    @property
    def _kind(self) -> DataType:
        return self.merge.query[SEQUENCE_COLUMN].dataType


def has_horizon(kind: DataType) -> bool:
    """Whether values of this type are times."""
    return isinstance(kind, TimestampType | DateType)


def horizon_of(merge: EventMerge, state: DataFrame, retention_ms: int) -> Horizon | None:
    """Reads all rows of a state, or the statistics of its files; None: it is empty."""
    kind = merge.query[SEQUENCE_COLUMN].dataType
    columns = (SEQUENCE, DELETED) if isinstance(merge, NewestValues) else (SEQUENCE,)
    greatest = state.agg(*(sf.max(column).alias(column) for column in columns))
    (row,) = greatest.selectExpr(*(_as_us(column, kind) for column in columns)).collect()
    newest_us = max((value for value in row if value is not None), default=None)
    return None if newest_us is None else Horizon(newest_us - retention_ms * 1000, merge)


def _as_us(column: str, kind: DataType) -> str:
    return f"unix_date({column}) * {_DAY_US}" if isinstance(kind, DateType) else f"unix_micros({column})"


# -- snapshots -------------------------------------------------------------------------------------


ROWS_OF_KEY = "__taut_rows"
"""How many rows of the new snapshot have the key."""

_IS_NEW, _HASH, _NEW_ROW = "__taut_is_new", "__taut_hash", "__taut_row"
_OLD_HASH, _NEW_HASH, _WAS_THERE = "__taut_old_hash", "__taut_new_hash", "__taut_was_there"
_SPECIAL = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)


def snapshot_difference(
    snapshot: DataFrame, log: DataFrame, schema: StructType, keys: Sequence[str], version: Column
) -> DataFrame:
    """An event for each key whose row came, changed or went, and `ROWS_OF_KEY`.

    The events are unusable if a key is NULL or has several rows in the snapshot.

    Args:
        snapshot: the rows, with the columns of `schema` without those of AUTO CDC.
        log: the events of the snapshots before, with the columns of `schema`.
        schema: of the log.
        keys: columns as `schema` spells them.
        version: becomes the sequence value.
    """
    sequence = schema[SEQUENCE_COLUMN].dataType
    fields = [field for field in schema.fields if field.name not in (*keys, *_SPECIAL)]
    values = [sf.col(quoted(field.name)) for field in fields]
    kinds = [field.dataType for field in fields]
    key_columns = [sf.col(quoted(key)) for key in keys]

    def with_hash(rows: DataFrame, order: Column, deleted: Column, *, is_new: bool) -> DataFrame:
        return rows.select(
            *key_columns,
            sf.lit(is_new).alias(_IS_NEW),
            order.cast(sequence).alias(SEQUENCE_COLUMN),
            deleted.alias(DELETE_COLUMN),
            row_hash(values, kinds).alias(_HASH),
            # A struct without fields cannot be stored.
            sf.when(sf.lit(is_new), sf.struct(*values, sf.lit(0).alias("_"))).alias(_NEW_ROW),
        )

    new = with_hash(snapshot, sf.lit(None), sf.lit(False), is_new=True)
    old = with_hash(log, sf.col(SEQUENCE_COLUMN), sf.col(DELETE_COLUMN), is_new=False)
    # The sequence value of a new row is NULL, which max_by leaves out.
    last = sf.max_by(sf.struct(sf.col(_HASH), sf.col(DELETE_COLUMN)), SEQUENCE_COLUMN)
    by_key = (
        new.unionByName(old)
        .groupBy(*key_columns)
        .agg(
            sf.count_if(_IS_NEW).alias(ROWS_OF_KEY),
            sf.max(sf.when(sf.col(_IS_NEW), sf.col(_HASH))).alias(_NEW_HASH),
            sf.any_value(_NEW_ROW, True).alias(_NEW_ROW),
            last.getField(_HASH).alias(_OLD_HASH),
            sf.coalesce(~last.getField(DELETE_COLUMN), sf.lit(False)).alias(_WAS_THERE),
        )
    )
    is_there = sf.col(ROWS_OF_KEY) > 0
    differs = sf.col(_WAS_THERE) != is_there
    changed = is_there & ~sf.col(_NEW_HASH).eqNullSafe(sf.col(_OLD_HASH))
    return by_key.where(differs | changed | (sf.col(ROWS_OF_KEY) > 1)).select(
        *key_columns,
        *(sf.col(f"{_NEW_ROW}.{quoted(field.name)}").alias(field.name) for field in fields),
        version.cast(sequence).alias(SEQUENCE_COLUMN),
        (~is_there).alias(DELETE_COLUMN),
        sf.lit(False).alias(TRUNCATE_COLUMN),
        ROWS_OF_KEY,
    )
