"""The keys of events, as conditions by which a merge reads few rows of the state and of the table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from tautochrone.model.names import quoted
from tautochrone.spark.execute.key_values import key_values
from tautochrone.spark.execute.materialize import fits_on_driver
from tautochrone.spark.execute.merge_events import EventMerge

__all__ = ["EventKeys"]


class EventKeys:
    """The keys of folded events, as conditions for reads.

    Args:
        count: of the folded events.
        is_all: all keys are needed, because the table is emptied.
    """

    def __init__(self, merge: EventMerge, folded: DataFrame, count: int, *, is_all: bool) -> None:
        self._merge = merge
        self._folded = folded
        self._is_all = is_all
        self._values = {} if is_all or not fits_on_driver(count) else key_values(folded, merge.keys)

    def matching(self, state: DataFrame) -> DataFrame:
        """The state's rows of the keys, and the row of the last truncation."""
        if self._is_all:
            return state
        keys = self._merge.keys_of(self._folded)
        events = keys.select(*(sf.col(key).alias(f"e_{key}") for key in self._merge.keys))
        equal = [sf.col(f"e_{key}").eqNullSafe(sf.col(key)) for key in self._merge.keys]
        return self.pruned(state).join(events, reduce(Column.__and__, equal), "left_semi")

    def pruned(self, rows: DataFrame, prefix: str = "", names: Mapping[str, str] | None = None) -> DataFrame:
        """Rows without files that have none of the keys, as their statistics tell.

        Args:
            names: the rows' columns by name → the column of the events; None: they are named alike.
        """
        columns = {f"{prefix}{key}": key for key in self._values} if names is None else names
        for column, key in columns.items():
            if key in self._values:
                # The state has a row without keys: that of the last truncation.
                rows = rows.where(self._values[key].condition(quoted(column), or_null=True))
        return rows
