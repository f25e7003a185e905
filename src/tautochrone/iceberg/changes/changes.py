"""The rows added and removed between two versions as DataFrames, read only from the files that changed.

Which these are, `changed_files` tells. If rows have ids (format version 3), the rows that writers of replaced
data files only carried over are left out.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tautochrone.iceberg.changes.changed_files import ChangedFiles, changed_files, commits_between
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.calls import column_names
from tautochrone.model import limits
from tautochrone.model.lake import RowChange
from tautochrone.model.names import TableName, Version, quoted

__all__ = ["rows_appended", "rows_changed"]

_ROW, _CHANGED_AT, _STAYED = "_row_id", "_last_updated_sequence_number", "__taut_stayed"
_ROW_POSITION_KEY, _ROWS_OF_A_FILE = "__taut_place", 1 << 40


class _Frames:
    """Collects rows of one sign."""

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns
        self._frames: list[DataFrame] = []

    def add(self, frame: DataFrame) -> None:
        self._frames.append(frame.select(*map(quoted, self._columns)))

    def union(self) -> DataFrame | None:
        return reduce(DataFrame.union, self._frames) if self._frames else None


def rows_appended(loaded: Loaded, old: Version, new: Version) -> int:
    """Rows that the commits between two versions appended."""
    between = commits_between(loaded.metadata, old, new)
    return sum(int(s.summary.get("added-records") or 0) for s in between if s.operation == "append")


def rows_changed(
    iceberg: Iceberg, name: TableName, loaded: Loaded, session: SparkSession, old: Version, new: Version
) -> RowChange:
    """The change of a table that was overwritten or deleted from; `old` is an ancestor of `new`."""
    reader = _Reader(iceberg, name, loaded.table, session)
    for files in changed_files(iceberg, name, loaded, old, new):
        reader.read(files)
    return RowChange(
        added=reader.added.union(), removed=reader.removed.union(), rows=reader.rows, carried=reader.carried
    )


class _Reader:
    """Turns runs into frames."""

    def __init__(self, iceberg: Iceberg, name: TableName, table: Any, session: SparkSession) -> None:
        self._iceberg = iceberg
        self._functions = iceberg.functions
        self._name = name
        self._table = table
        self._session = session
        names = column_names(table.schema())
        self.added, self.removed = _Frames(names), _Frames(names)
        self.rows = 0
        self._without_carried_rows: list[bool] = []

    @property
    def carried(self) -> bool:
        """Whether files were rewritten, and rows that were only carried over are left out of all of them."""
        return bool(self._without_carried_rows) and all(self._without_carried_rows)

    def read(self, files: ChangedFiles) -> None:
        """Add the rows of one run."""
        self.rows += files.rows
        if files.marked:
            self.removed.add(self._frame(files.marked).where("_deleted"))
        if files.listed:
            # Filtering by `_deleted` first removes most rows before positions are compared.
            self.removed.add(self._at(self._frame(files.listed).where("_deleted"), files.positions))
        rows_before, rows_after = (
            None if tasks is None else self._frame(tasks) for tasks in (files.before, files.after)
        )
        if rows_before is not None and rows_after is not None and _ROW in rows_after.columns:
            # Data files written before format version 3 have rows without ids.
            have_ids = self._functions.rows_have_ids
            self._without_carried_rows.append(have_ids(files.before) and have_ids(files.after))
            if self._without_carried_rows[-1]:
                rows_before, rows_after = self._without_carried(rows_before, rows_after, files.base)
        if rows_before is not None:
            self.removed.add(rows_before)
        if rows_after is not None:
            self.added.add(rows_after)

    def _without_carried(
        self, before: DataFrame, after: DataFrame, base: Version
    ) -> tuple[DataFrame, DataFrame]:
        """Leave out rows that a writer only carried over from an old data file to a new one.

        Such rows keep their id and the sequence number of the commit that last changed them. A writer that
        does not keep them gives all rows new ids: then all rows are removed and added, and the caller
        consolidates.
        """
        sequence = int(self._table.snapshot(int(base)).sequenceNumber())
        carried = sql.coalesce(sql.col(_CHANGED_AT) <= sequence, sql.lit(False)) & sql.col(_ROW).isNotNull()
        stayed = after.where(carried).select(sql.col(_ROW).alias(_STAYED))
        before = before.join(stayed, before[_ROW] == stayed[_STAYED], "left_anti")
        return before, after.where(~carried)

    def _at(self, frame: DataFrame, row_positions: list[tuple[str, int]]) -> DataFrame:
        """The rows at these positions, each given as (file, position)."""
        if len(row_positions) > limits.MAX_POSITIONS_IN_FILTER:
            return self._joined_at(frame, row_positions)
        # The cheap filter by number first: most rows are at none of these positions in any file.
        numbers = self._functions.longs({number for _, number in row_positions})
        keys = self._functions.strings([f"{number}@{path}" for path, number in row_positions])
        key: Any = sql.concat(sql.col("_pos").cast("string"), sql.lit("@"), sql.col("_file"))
        position: Any = sql.col("_pos")
        candidates = frame._jdf.filter(position._jc.isInCollection(numbers))  # noqa: SLF001
        return DataFrame(candidates.filter(key._jc.isInCollection(keys)), frame.sparkSession)  # noqa: SLF001

    def _joined_at(self, frame: DataFrame, row_positions: list[tuple[str, int]]) -> DataFrame:
        """Like `_at`, by a join: the file's index and the position are encoded as one number."""
        session = frame.sparkSession
        paths = sorted({path for path, _ in row_positions})
        first = {path: number * _ROWS_OF_A_FILE for number, path in enumerate(paths)}
        numbers = self._functions.longs({first[path] + position for path, position in row_positions})
        encoder = self._iceberg.jvm.org.apache.spark.sql.Encoders.LONG()
        java_dataset = session._jsparkSession.createDataset(  # noqa: SLF001
            self._iceberg.jvm.java.util.ArrayList(numbers), encoder
        )
        keys = DataFrame(java_dataset.toDF(), session).toDF(_ROW_POSITION_KEY)
        files = sql.array(*map(sql.lit, paths))
        number = (sql.array_position(files, sql.col("_file")) - 1) * _ROWS_OF_A_FILE + sql.col("_pos")
        return frame.join(sql.broadcast(keys), number == keys[_ROW_POSITION_KEY], "left_semi")

    def _frame(self, tasks: Any) -> DataFrame:
        if isinstance(tasks, list):
            chosen = self._iceberg.jvm.java.util.ArrayList()
            for task in tasks:
                chosen.add(task)
            tasks = chosen
        self._iceberg.activate(self._session)
        return self._iceberg.task_sets.frame(self._session, self._name, self._table, tasks)
