"""The order of change events that came through Kafka, where a log's positions may begin lower again.

A connector writes a key's changes into one partition, in their order. It may send some of them again. So of a
key's events in the order of their offsets

    repetition(e) ⇔ an event before it has its position, row and digest
    went_back(e)  ⇔ e is no repetition, and its position is below one before it

Repetitions are left out, and then positions and offsets order the events alike. An event that went back has a
position of another log, or came through a topic in another order: nothing tells which of the two events is
later, so it is refused.

| offset | position | row |                                  |
|-------:|---------:|-----|----------------------------------|
|      0 |      100 | a   |                                  |
|      1 |      200 | b   |                                  |
|      2 |      100 | a   | repetition                       |
|      3 |       50 | c   | went back: another server's      |

What holds for a key holds for the truncation of the table too, which concerns all keys. Offsets of several
partitions say nothing about each other, so all events of a key, and all of a table that is truncated, must be
in one partition. Declared restarts (`model.auto_cdc`) divide a key's events into generations, whose order
is known; the rules hold within each.

An event without a position, such as a row of Maxwell's bootstrap, has that of the events before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, IntegerType, StructType
from pyspark.sql.window import Window

from tautochrone.model.auto_cdc import DIGEST, GENERATION, IS_UPSERT, OFFSET, PARTITION, TOPIC, Restart
from tautochrone.spark.execute.merge_events import DELETED, HASH, INVALID, SEQUENCE, TRUNCATES, EventMerge

__all__ = ["IS_CANDIDATE", "MOVED", "WENT_BACK", "ChangeOrder", "is_change_order", "with_generation"]

WENT_BACK, MOVED = "went_back", "moved"
IS_CANDIDATE = "is_candidate"

_GENERATION, _POSITION, _ARRIVAL, _PLACE = "o_generation", "o_position", "o_arrival", "o_place"
_DIGEST = "o_digest"
_OWN = (_GENERATION, _POSITION, _ARRIVAL, _PLACE, _DIGEST)
_KNOWN, _EARLIER_TRUNCATIONS, _KNOWN_PLACES = "o_known", "o_truncations", "o_known_places"
_COPY = "o_copy"
_BEFORE = Window.unboundedPreceding, -1


def is_change_order(kind: DataType) -> bool:
    """Whether a sequence is one of `model.auto_cdc`."""
    return isinstance(kind, StructType) and (
        kind.names[:1] == [GENERATION]
        and kind.names[-3:] == [TOPIC, PARTITION, DIGEST]
        and OFFSET in kind.names
    )


def with_generation(sequence: Column, restarts: Sequence[Restart]) -> Column:
    """A sequence whose generation is the number of restarts before it."""

    def has_begun(restart: Restart) -> Column:
        begun = [
            (sequence[TOPIC] == topic) & (sequence[PARTITION] == partition) & (sequence[OFFSET] >= offset)
            for topic, offsets in restart.items()
            for partition, offset in offsets.items()
        ]
        return reduce(lambda left, right: left | right, begun, sf.lit(False)).cast("int")

    generation = reduce(lambda left, right: left + right, map(has_begun, restarts), sf.lit(0))
    return sf.when(sequence.isNotNull(), sequence.withField(GENERATION, generation))


@dataclass(frozen=True, slots=True)
class ChangeOrder:
    """The rules for the events of one merge, as `EventMerge.renamed` gives them."""

    merge: EventMerge
    is_one_flow: bool = True
    """Events of several flows may come later than others with greater offsets."""

    @property
    def kind(self) -> StructType:
        kind = self.merge.sequence_type
        assert isinstance(kind, StructType)
        return kind

    @property
    def position_fields(self) -> tuple[str, ...]:
        """Empty where offsets order the events."""
        names = self.kind.names
        return tuple(names[1 : min(names.index(name) for name in (OFFSET, IS_UPSERT) if name in names)])

    def known_sequences(self, state: DataFrame) -> DataFrame:
        """The last sequence of each key of a state, and of the last truncation."""
        kinds = dict(self.merge.state_types)
        columns = [SEQUENCE] if SEQUENCE in self.merge.state_keys or SEQUENCE in kinds else []
        columns += [DELETED] if kinds.get(DELETED) == self.kind else []
        latest = sf.greatest(*columns) if len(columns) > 1 else sf.col(columns[0])
        return state.groupBy(*self.merge.keys).agg(sf.max(latest).alias(_KNOWN))

    def first_copies(self, events: DataFrame) -> DataFrame:
        """Events without those that repeat others of them."""
        parts = self._with_parts(events)
        if not self.position_fields:
            return parts
        copies = Window.partitionBy(*self._identity()).orderBy(_GENERATION, _ARRIVAL)
        numbered = parts.withColumn(_COPY, sf.row_number().over(copies))
        return numbered.where(~self._is_placed() | sf.col(INVALID) | (sf.col(_COPY) == 1)).drop(_COPY)

    def candidates(self, copies: DataFrame, known: DataFrame) -> DataFrame:
        """`first_copies` of events that may repeat others which are merged: as `IS_CANDIDATE`."""
        joined = self._with_known(copies, known)
        before = Window.partitionBy(*self.merge.keys, TRUNCATES).orderBy(_GENERATION, _ARRIVAL)
        latest = sf.greatest(
            sf.max(self._placed_position()).over(before.rowsBetween(*_BEFORE)), self._position_of(_KNOWN)
        )
        is_behind = sf.col(_POSITION) <= latest
        if self.merge.is_truncating:
            is_behind = sf.coalesce(is_behind, sf.lit(False)) | sf.exists(
                _EARLIER_TRUNCATIONS, lambda other: other["position"] > sf.col(_POSITION)
            )
        marked = joined.withColumn(
            IS_CANDIDATE, sf.coalesce(self._is_placed() & is_behind & ~sf.col(INVALID), sf.lit(False))
        )
        return marked.drop(_KNOWN, _EARLIER_TRUNCATIONS, _KNOWN_PLACES)

    def without_repetitions(self, marked: DataFrame, earlier: DataFrame) -> DataFrame:
        """`candidates` without those that repeat one of `earlier`, events as `renamed` gives them."""
        identity = self._identity()
        others = self._with_parts(earlier).select(
            *(sf.col(name).alias(f"e_{name}") for name in (*identity, _PLACE, _ARRIVAL))
        )
        is_copy = reduce(
            lambda left, right: left & right,
            (sf.col(f"e_{name}").eqNullSafe(sf.col(name)) for name in identity),
        ) & ((sf.col(f"e_{_PLACE}") != sf.col(_PLACE)) | (sf.col(f"e_{_ARRIVAL}") < sf.col(_ARRIVAL)))
        return marked.join(others, sf.col(IS_CANDIDATE) & is_copy, "left_anti").drop(IS_CANDIDATE)

    def with_order_errors(self, copies: DataFrame, known: DataFrame | None) -> DataFrame:
        """Events that repeat no other, in order: one that is not is `INVALID` and has `WENT_BACK` or `MOVED`.

        Args:
            copies: of `first_copies` or `without_repetitions`.
            known: of `known_sequences`; None: nothing is.
        """
        joined = self._with_known(copies, known)
        group = Window.partitionBy(*self.merge.keys, TRUNCATES, _GENERATION)
        before = group.orderBy(_ARRIVAL).rowsBetween(*_BEFORE)
        partition, position, arrival = sf.col(_PLACE), sf.col(_POSITION), sf.col(_ARRIVAL)
        last = sf.col(_KNOWN)
        has_known = sf.coalesce(last[GENERATION] == sf.col(_GENERATION), sf.lit(False))
        in_known_place = has_known & self._place_of(_KNOWN).eqNullSafe(partition)
        moved = (sf.min(partition).over(group) != sf.max(partition).over(group)) | (
            has_known & ~self._place_of(_KNOWN).eqNullSafe(partition)
        )
        is_before_known = in_known_place & (arrival <= self._arrival_of(_KNOWN))
        went_back = is_before_known if self.is_one_flow else sf.lit(False)
        if self.position_fields:
            known_position = sf.when(has_known, self._position_of(_KNOWN))
            is_after_known = in_known_place & (arrival > self._arrival_of(_KNOWN))
            contradicts = (is_after_known & (position < known_position)) | (
                is_before_known & (position > known_position)
            )
            in_batch = sf.max(self._placed_position()).over(before)
            went_back |= self._is_placed() & (contradicts | sf.coalesce(position < in_batch, sf.lit(False)))
        if self.merge.is_truncating:
            moved |= self._is_elsewhere(known is not None)
            went_back |= self._contradicts_truncation(known is not None)
        marks = {
            MOVED: sf.coalesce(moved, sf.lit(False)) & ~sf.col(INVALID),
            WENT_BACK: sf.coalesce(went_back, sf.lit(False)) & ~sf.col(INVALID),
        }
        checked = joined.withColumns(marks)
        if self.position_fields:
            latest = sf.greatest(
                sf.max(self._placed_position()).over(before),
                sf.when(in_known_place, self._position_of(_KNOWN)),
            )
            checked = checked.withColumn(SEQUENCE, self._filled(latest))
        checked = checked.withColumn(INVALID, sf.col(INVALID) | sf.col(MOVED) | sf.col(WENT_BACK))
        return checked.drop(*_OWN, _KNOWN, _EARLIER_TRUNCATIONS, _KNOWN_PLACES)

    def in_range(self, events: DataFrame, sequence: str, candidates: DataFrame) -> DataFrame:
        """Events whose position may be one of some candidates, so that files with others are not read.

        Args:
            events: with a column `sequence`.
            candidates: few events, as `candidates` gives them.
        """
        names = self.position_fields
        bounds = candidates.agg(
            *(
                bound(sf.col(f"{_POSITION}.{name}")).alias(f"{bound.__name__}_{name}")
                for name in names
                for bound in (sf.min, sf.max)
            )
        ).first()
        assert bounds is not None
        for name in names:
            field = sf.col(f"{sequence}.{name}")
            least, greatest = bounds[f"min_{name}"], bounds[f"max_{name}"]
            if least is not None:
                events = events.where(field.isNull() | ((field >= least) & (field <= greatest)))
        return events

    # -- inside -----------------------------------------------------------------------------------

    def _with_parts(self, events: DataFrame) -> DataFrame:
        sequence = sf.col(SEQUENCE)
        return events.withColumns(
            {
                _GENERATION: sequence[GENERATION],
                _POSITION: self._position_of(SEQUENCE),
                _ARRIVAL: self._arrival_of(SEQUENCE),
                _PLACE: self._place_of(SEQUENCE),
                _DIGEST: sequence[DIGEST],
            }
        )

    def _identity(self) -> tuple[str, ...]:
        return (*self.merge.keys, TRUNCATES, _POSITION, DELETED, HASH, _DIGEST)

    def _position_of(self, column: str) -> Column:
        """NULL where the column is, or where offsets order the events."""
        if not self.position_fields:
            return sf.lit(None).cast(IntegerType())
        fields = sf.struct(*(sf.col(f"{column}.{name}").alias(name) for name in self.position_fields))
        return sf.when(sf.col(column).isNotNull(), fields)

    def _arrival_of(self, column: str) -> Column:
        """The offset and the position in the message."""
        names = self.kind.names
        fields = names[names.index(OFFSET) : names.index(TOPIC)]
        return sf.when(
            sf.col(column).isNotNull(),
            sf.struct(*(sf.col(f"{column}.{name}").alias(name) for name in fields)),
        )

    def _place_of(self, column: str) -> Column:
        fields = sf.struct(sf.col(f"{column}.{TOPIC}"), sf.col(f"{column}.{PARTITION}"))
        return sf.when(sf.col(column).isNotNull(), fields)

    def _is_placed(self) -> Column:
        """Whether an event has a position."""
        fields = (sf.col(f"{_POSITION}.{name}").isNotNull() for name in self.position_fields)
        return reduce(lambda left, right: left | right, fields, sf.lit(False))

    def _placed_position(self) -> Column:
        return sf.when(self._is_placed(), sf.col(_POSITION)) if self.position_fields else sf.col(_POSITION)

    def _filled(self, latest: Column) -> Column:
        """The sequence; of an event without a position with that of the events before it."""
        sequence = sf.col(SEQUENCE)
        filled = sequence
        for name in self.position_fields:
            filled = filled.withField(name, latest[name])
        has_none = sequence.isNotNull() & ~self._is_placed() & latest.isNotNull()
        return sf.when(has_none, filled).otherwise(sequence)

    def _with_known(self, events: DataFrame, known: DataFrame | None) -> DataFrame:
        """Events with the last sequence of their key, the truncations, and where known keys are."""
        if known is None:
            joined = events.withColumn(_KNOWN, sf.lit(None).cast(self.kind))
        else:
            renamed = known.select(
                *(sf.col(key).alias(f"s_{key}") for key in self.merge.keys), sf.col(_KNOWN)
            )
            equal = reduce(
                lambda left, right: left & right,
                (sf.col(f"s_{key}").eqNullSafe(sf.col(key)) for key in self.merge.keys),
            )
            joined = events.join(renamed, equal, "left").drop(*(f"s_{key}" for key in self.merge.keys))
        if not self.merge.is_truncating:
            return joined
        truncations = self._truncations(events.where(TRUNCATES))
        if known is not None:
            of_state = self._with_parts(known.withColumnRenamed(_KNOWN, SEQUENCE))
            is_key = sf.col(self.merge.keys[0]).isNotNull()
            truncations = truncations.unionAll(self._truncations(of_state.where(~is_key)))
            grouped = (
                of_state.where(is_key).groupBy(_GENERATION, _PLACE).agg(sf.max(_POSITION).alias(_POSITION))
            )
            listed = grouped.agg(
                sf.collect_list(
                    sf.struct(
                        sf.col(_GENERATION).alias("generation"),
                        sf.col(_PLACE).alias("place"),
                        sf.col(_POSITION).alias("position"),
                    )
                ).alias(_KNOWN_PLACES)
            )
            joined = joined.crossJoin(sf.broadcast(listed))
        listed = truncations.agg(sf.collect_list("truncation").alias(_EARLIER_TRUNCATIONS))
        return joined.crossJoin(sf.broadcast(listed))

    def _truncations(self, events: DataFrame) -> DataFrame:
        return events.select(
            sf.struct(
                sf.col(_GENERATION).alias("generation"),
                sf.col(_PLACE).alias("place"),
                sf.col(_POSITION).alias("position"),
                sf.col(_ARRIVAL).alias("arrival"),
            ).alias("truncation")
        )

    def _is_elsewhere(self, has_state: bool) -> Column:
        """Whether a truncation of the event's generation, or an event that a truncation concerns, is in
        another partition."""
        is_other = _exists(_EARLIER_TRUNCATIONS, lambda other: other["place"] != sf.col(_PLACE))
        if not has_state:
            return is_other
        known_elsewhere = _exists(_KNOWN_PLACES, lambda other: other["place"] != sf.col(_PLACE))
        return is_other | (sf.col(TRUNCATES) & known_elsewhere)

    def _contradicts_truncation(self, has_state: bool) -> Column:
        """Whether the event's position is not on the same side of a truncation's as its offset."""
        if not self.position_fields:
            return sf.lit(False)
        position, arrival = sf.col(_POSITION), sf.col(_ARRIVAL)
        contradicts = _exists(
            _EARLIER_TRUNCATIONS,
            lambda other: (
                ((other["arrival"] < arrival) & (other["position"] > position))
                | ((other["arrival"] > arrival) & (other["position"] < position))
            ),
        )
        if has_state:
            is_later = _exists(_KNOWN_PLACES, lambda other: other["position"] > position)
            contradicts |= sf.col(TRUNCATES) & is_later
        return self._is_placed() & contradicts


def _exists(array: str, is_so: Callable[[Column], Column]) -> Column:
    """Whether some element of the event's generation is so."""
    return sf.coalesce(
        sf.exists(array, lambda other: (other["generation"] == sf.col(_GENERATION)) & is_so(other)),
        sf.lit(False),
    )
