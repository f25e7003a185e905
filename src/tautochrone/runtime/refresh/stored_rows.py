"""The rows that a table has for the keys of events, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN, Fork, LakeTable
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.key_values import key_values

__all__ = ["RowPositions", "StoredRows"]


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Where rows are.

    Attributes:
        by_file: data file → positions of rows in it.
        left_to_spark: why a query found them; None: this process did.
    """

    by_file: Mapping[str, Sequence[int]]
    left_to_spark: Reason | None = None


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a table at one version.

    Attributes:
        base: reads the table itself, whatever the checkpoint shows of it.
        session: of the flow whose events are merged.
        events: so many are merged; None: nobody knows.
        is_local: the events are on the driver.
    """

    table: LakeTable
    fork: Fork
    apply: KeyedApply
    base: SparkSession
    session: SparkSession
    events: int | None = None
    is_local: bool = False

    def of_keys(self, events: DataFrame) -> DataFrame:
        """The rows whose keys have events."""
        return self._of_keys(events, []).drop(FILE_COLUMN, POSITION_COLUMN)

    def positions_of_keys(self, events: DataFrame, keys: Any = None) -> RowPositions:
        """Where the rows are whose keys have events.

        Args:
            keys: of the events, as an Arrow table, if they are known.
        """
        if keys is None and not self.is_local and self.events is not None:
            keys = events.select(*map(quoted, self.apply.keys)).toArrow()
        if keys is None:
            return self._positions_by_query(events, None)
        positions = self.table.positions_of_keys(self.fork, keys)
        if isinstance(positions, Reason):
            return self._positions_by_query(events, positions)
        return RowPositions(positions)

    def positions_of(self, keys: Any) -> RowPositions:
        """Where the rows with these keys are, an Arrow table."""
        positions = self.table.positions_of_keys(self.fork, keys)
        if isinstance(positions, Reason):
            stored = self.table.read(self.base, self.fork.version)
            # Without it, times that have no zone would become times of the session's.
            schema = stored.select(*map(quoted, keys.column_names)).schema
            return self._positions_by_query(self.session.createDataFrame(keys, schema), positions)
        return RowPositions(positions)

    def _positions_by_query(self, events: DataFrame, left_to_spark: Reason | None) -> RowPositions:
        stored = self._of_keys(events, [FILE_COLUMN, POSITION_COLUMN])
        by_file: dict[str, list[int]] = {}
        if not self.is_local:
            # Rows as Python objects would take longer than finding them.
            grouped = stored.toArrow().group_by(FILE_COLUMN).aggregate([(POSITION_COLUMN, "list")])
            for row in grouped.to_pylist():
                by_file[row[FILE_COLUMN]] = sorted(row[f"{POSITION_COLUMN}_list"])
            return RowPositions(by_file, left_to_spark)
        for row in stored.collect():
            by_file.setdefault(row[FILE_COLUMN], []).append(row[POSITION_COLUMN])
        return RowPositions({file: sorted(rows) for file, rows in by_file.items()}, left_to_spark)

    def all(self) -> DataFrame:
        """All rows of the table, with file and position."""
        stored = self.table.read(self.base, self.fork.version)
        return dataframe_of_plan(
            self.session, analyzed_plan(stored.select("*", FILE_COLUMN, POSITION_COLUMN))
        )

    def _of_keys(self, events: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The rows whose keys have events, with these columns; all without any."""
        names = [quoted(name) for name in self.apply.keys]
        stored = self.table.read(self.base, self.fork.version)
        if columns:
            stored = stored.select(*names, *columns)
        if self.is_local:
            for key, column in key_values(events, self.apply.keys).items():
                stored = stored.where(column.condition(quoted(key), or_null=None in column.values))
        stored = dataframe_of_plan(self.session, analyzed_plan(stored)).alias("stored")
        touched = events.select(*names)
        # A few keys go to the rows of the table, which may be many.
        are_sent = self.events is not None and self.events * len(names) <= limits.MAX_BROADCAST_VALUES
        touched = (sf.broadcast(touched) if are_sent else touched.distinct()).alias("touched")
        equal: Column = sf.lit(True)
        for name in names:
            equal = equal & sf.col(f"stored.{name}").eqNullSafe(sf.col(f"touched.{name}"))
        rows = stored.join(touched, equal, "left_semi")
        return rows.select(*columns) if columns else rows
