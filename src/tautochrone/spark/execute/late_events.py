"""Events that come too late, and deletions that no event can need any more.

With a retention an event counts as late when its sequence value is smaller than the greatest one that was
merged before, less the retention:

    horizon = max(sequence values in the state) − retention
    late(event) ⇔ sequence(event) < horizon

Late events are refused, so a deletion before the horizon is not needed: an event that it should beat is late
too. The horizon never goes back, because the row with the greatest sequence value is never forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DateType, TimestampType

from tautochrone.model.auto_cdc import SEQUENCE_COLUMN
from tautochrone.spark.execute.merge_events import DELETED, SEQUENCE, EventMerge, NewestValues

__all__ = ["Horizon", "has_horizon", "horizon_of"]

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
