"""The flow that asks a function for one snapshot after the other and writes what changed into a table.

start:   1. the table says which snapshot it has
round:   2. ask the function for the snapshot behind that   3. its version must be later
         4. compare its rows with what the table's events lead to, stage an event for each difference
         5. one commit: events and version   6. report it

A crash before 5 leaves nothing that counts: the function is asked for the same snapshot again. After 5 the
table has it, and the function is asked for the one behind it. So each snapshot is taken exactly once, also
when the function returns other rows when it is asked again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.errors import IngestError
from tautochrone.ingest.running_flow import PolledFlow
from tautochrone.ingest.source_observations import position_of
from tautochrone.ingest.staging import align
from tautochrone.model import events
from tautochrone.model.auto_cdc import DELETE_COLUMN, SEQUENCE_COLUMN, TRUNCATE_COLUMN
from tautochrone.model.lake import Staged
from tautochrone.model.names import quoted
from tautochrone.model.source_position import (
    SnapshotPosition,
    is_wider_number,
    position_of_version,
    require_later,
    version_at,
)
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.execute.materialize import first_row, materialize
from tautochrone.spark.execute.merge_events import ROWS_OF_KEY, snapshot_difference

__all__ = ["NextSnapshot", "SnapshotFlow"]

NextSnapshot = Callable[[SparkSession, Any], tuple[DataFrame, Any] | None]
"""From a session and the newest version, or None, to the next snapshot and its version, or None."""

_SPECIAL = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)


@dataclass(slots=True, kw_only=True)
class SnapshotFlow(PolledFlow):
    """A function that returns snapshots, bound to the table that takes their differences as events.

    Args:
        next_snapshot: the function.
        keys: columns that identify a row of a snapshot.
        columns: of the snapshots, as they were found when the definitions were analysed.
        base: reads the lake itself.
    """

    next_snapshot: NextSnapshot
    keys: Sequence[str]
    columns: StructType
    base: SparkSession
    position: SnapshotPosition | None = None
    _snapshots: int = 0

    def _read_position(self) -> None:
        self.position = position_of(
            self.committer.table.fork().commit_metadata,
            self.name,
            SnapshotPosition,
            "snapshots of a function",
            f"{self.table.table} and its target",
        )

    def _round(self) -> bool:
        answer = self.next_snapshot(self._session, version_at(self.position))
        if answer is None:
            return True
        snapshot, version = answer
        set_active_session(snapshot.sparkSession)
        position = position_of_version(version, self.name)
        require_later(position, self.position, self.name)
        staged = self._stage(self._aligned(snapshot), position)
        self.require_fence()
        self.committer.submit(self.name, staged, position)
        self.position = position
        self.rows += staged.rows
        self._snapshots += 1
        self.emit(
            events.Batch(
                flow=self.name,
                dataset=str(self.table),
                batch=self._snapshots,
                rows=staged.rows,
                snapshot=position.version,
            )
        )
        return False

    def _stage(self, snapshot: DataFrame, position: SnapshotPosition) -> Staged:
        """An event for each key whose row is not that of the snapshot before."""
        table = self.committer.table
        fork = table.fork()
        if position.version_type != self.schema[SEQUENCE_COLUMN].dataType.simpleString():
            raise self._columns_changed_error(f"its version is {position.version_type}")
        stored = analyzed_plan(table.read(self.base, fork.version))
        log = align(dataframe_of_plan(snapshot.sparkSession, stored), self.schema, self.name)
        version = sf.lit(position.version).cast(position.version_type)
        difference = snapshot_difference(snapshot, log, self.schema, self.keys, version)
        events, count = materialize(difference, max_rows=sys.maxsize)
        self._require_keys(events)
        if count == 0:
            return self._staged_nothing()
        return table.stage(fork, align(events.drop(ROWS_OF_KEY), self.schema, self.name))

    def _require_keys(self, events: DataFrame) -> None:
        keys = [sf.col(quoted(key)) for key in self.keys]
        is_null: Any = reduce(or_, (key.isNull() for key in keys))
        bad = events.where((sf.col(ROWS_OF_KEY) > 1) | (is_null & (sf.col(ROWS_OF_KEY) > 0)))
        first = first_row(bad.select(*keys, ROWS_OF_KEY))
        if first is None:
            return
        key = dict(zip(self.keys, first[:-1], strict=True))
        if None in key.values():
            raise IngestError(
                "AUTO_CDC_EVENT_INVALID",
                f"A snapshot of flow {self.name} has a row with NULL in its key: {key}",
                sqlstate="22004",
                hint="leave such rows out in the function, .where(… IS NOT NULL)",
            )
        raise IngestError(
            "AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE",
            f"A snapshot of flow {self.name} has {first[-1]} rows with the key {key}",
            sqlstate="23505",
            hint="name all columns that identify a row as keys, or let the function keep one row of each key",
        )

    def _aligned(self, snapshot: DataFrame) -> DataFrame:
        """The snapshot with the table's columns and their types in the lake.

        Raises:
            IngestError: `AUTO_CDC_SNAPSHOT_COLUMNS_CHANGED`.
        """
        known = {column.name.lower(): column.dataType.simpleString() for column in self.columns.fields}
        for column in snapshot.schema.fields:
            kind, before = column.dataType.simpleString(), known.get(column.name.lower())
            if before is None:
                raise self._columns_changed_error(f"{column.name} is new")
            if kind != before and not is_wider_number(before, kind):
                raise self._columns_changed_error(f"{column.name} is {kind} and was {before}")
        data = StructType([field for field in self.schema.fields if field.name not in _SPECIAL])
        aligned = align(snapshot, data, self.name)
        return aligned.select(
            *(sf.col(quoted(field.name)).cast(field.dataType).alias(field.name) for field in data.fields)
        )

    def _columns_changed_error(self, how: str) -> IngestError:
        return IngestError(
            "AUTO_CDC_SNAPSHOT_COLUMNS_CHANGED",
            f"The next snapshot of flow {self.name} has other columns than the run began with: {how}",
            sqlstate="55000",
            hint="run again: columns are taken from the next snapshot when a run starts. A column whose type "
            "changes is cast in the function",
        )
