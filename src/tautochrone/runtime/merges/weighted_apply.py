"""Tables without a key: their rows are a multiset, and each event adds or removes one of several equal rows.

    rows = rows of the newest copy, if there is one, else the stored ones
           + rows of the events that no snapshot of a copy saw      (weight 1)
           - rows that these events removed                         (weight -1)

A copy of such a table is one statement, so it has one snapshot, which an event of its own names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.model.names import quoted
from tautochrone.runtime.merges.latest_events import (
    InvalidValues,
    has_invalid,
    invalid_rows,
    same_values,
    snapshot_sees,
)

__all__ = ["StoredPositions", "WeightedChange", "weighted_change"]

_WEIGHT = "__taut_weight"
_RANK = "__taut_rank"


@dataclass(frozen=True, slots=True)
class WeightedChange:
    """What events do to a multiset of rows.

    Attributes:
        weights: the table's columns, and how many of such rows come (above 0) or go.
        replaces_all: the stored rows go, whatever they are.
        invalid: rows that come with values which the types of their columns do not have.
    """

    weights: DataFrame
    replaces_all: bool
    invalid: InvalidValues | None

    def added(self) -> DataFrame:
        """The rows that come, each as often as it does."""
        weight = sf.col(_WEIGHT)
        copies = self.weights.where(weight > 0).withColumn(_RANK, sf.explode(sf.sequence(sf.lit(1), weight)))
        return copies.drop(_WEIGHT, _RANK)

    def removed(self, stored: DataFrame) -> StoredPositions:
        """Where rows are that go.

        Args:
            stored: the table's rows, with file and position.
        """
        names = [quoted(name) for name in self.weights.columns if name != _WEIGHT]
        gone = self.weights.where(sf.col(_WEIGHT) < 0).alias("gone")
        matching = (
            stored.select(*names, FILE_COLUMN, POSITION_COLUMN)
            .alias("stored")
            .join(gone, same_values("stored", "gone", names))
            .select("stored.*", _WEIGHT)
        )
        of_equal_rows = Window.partitionBy(*names).orderBy(FILE_COLUMN, POSITION_COLUMN)
        chosen = matching.withColumn(_RANK, sf.row_number().over(of_equal_rows)).where(
            sf.col(_RANK) <= -sf.col(_WEIGHT)
        )
        positions: dict[str, list[int]] = {}
        count = 0
        for row in chosen.select(FILE_COLUMN, POSITION_COLUMN).collect():
            positions.setdefault(row[FILE_COLUMN], []).append(row[POSITION_COLUMN])
            count += 1
        expected = gone.agg(sf.coalesce(sf.sum(-sf.col(_WEIGHT)), sf.lit(0))).first()
        assert expected is not None
        return StoredPositions({file: sorted(rows) for file, rows in positions.items()}, expected[0] - count)


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """Data file → positions of rows; `missing`: so many rows are not stored."""

    positions: dict[str, list[int]]
    missing: int


def weighted_change(events: DataFrame, apply: KeyedApply) -> WeightedChange:
    """What the events of a flow do to the rows of its table."""
    sequence = sf.struct(*[sf.col(quoted(name)) for name in apply.sequence])
    snapshot = sf.col(quoted(apply.snapshot or ""))
    is_copied = _condition(apply.copied)
    newest_copy = sf.struct(sequence.alias("sequence"), snapshot.alias("snapshot"))
    copy = _first_value(events, sf.max(sf.when(is_copied, newest_copy)))
    logged = snapshot.isNull()
    if copy is not None:
        unseen = ~sf.coalesce(
            snapshot_sees(sf.lit(copy["snapshot"]), sf.col(quoted(apply.transaction or ""))), sf.lit(False)
        )
        of_copy = (snapshot == copy["snapshot"]) & (sequence == _literal(copy["sequence"], apply))
        events = events.where(~is_copied & ((logged & unseen) | of_copy))
    else:
        events = events.where(logged)
    is_truncate = _condition(apply.truncate)
    truncate = _first_value(events, sf.max(sf.when(is_truncate, sequence)))
    if truncate is not None:
        events = events.where(logged & (sequence > _literal(truncate, apply)))
    columns = [quoted(name) for name in events.columns if name not in apply.dropped]
    groups = columns if apply.invalid is None else [*columns, quoted(apply.invalid)]
    weights = (
        events.where(~is_truncate)
        .withColumn(_WEIGHT, sf.expr(apply.weight or "1").cast("long"))
        .groupBy(*groups)
        .agg(sf.sum(_WEIGHT).alias(_WEIGHT))
    )
    invalid = None
    if apply.invalid is not None:
        invalid = invalid_rows(
            weights.where((sf.col(_WEIGHT) > 0) & has_invalid(apply)), apply, sf.sum(_WEIGHT)
        )
        weights = weights.groupBy(*columns).agg(sf.sum(_WEIGHT).alias(_WEIGHT))
    is_replaced = copy is not None or truncate is not None
    return WeightedChange(weights.where(sf.col(_WEIGHT) != 0), is_replaced, invalid)


def _condition(text: str | None) -> Column:
    return sf.coalesce(sf.expr(text or "false"), sf.lit(False))


def _literal(sequence: Any, apply: KeyedApply) -> Column:
    return sf.struct(*[sf.lit(sequence[name]).alias(name) for name in apply.sequence])


def _first_value(events: DataFrame, aggregate: Column) -> Any:
    row = events.agg(aggregate).first()
    assert row is not None
    return row[0]
