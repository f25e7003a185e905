"""The rows added and removed between two versions, read only from the files that changed.

Snapshots name the files that they add and remove, so the cost of a read depends on the change and not on
the table. The chain of commits is split at compactions, which move rows between files without changing
them: each run of commits between two compactions is netted on its own, and the results are added up.

Of a data file that only gained deletes, the removed rows are read as follows:

- it had no deletes before: the rows that Iceberg marks as deleted (`_deleted`),
- it had a deletion vector: the marked rows at positions that the older vector did not contain,
- anything else (position delete files over many data files, equality deletes after other deletes, very many
  positions): all rows of the older state are removed and all of the newer are added; the caller consolidates.

Data files that a writer replaced are treated like the last case. If rows have ids (format version 3), the
rows that were only carried over are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.history import commits_between, moves_rows
from tautochrone.iceberg.changes.tasks import planned
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.functions import items
from tautochrone.model import limits
from tautochrone.model.lake import RowChange
from tautochrone.model.names import TableName, Version, quoted

__all__ = ["rows_appended", "rows_changed"]

_ROW, _CHANGED_AT, _STAYED = "_row_id", "_last_updated_sequence_number", "__taut_stayed"
_ROW_POSITION_KEY, _ROWS_OF_A_FILE = "__taut_place", 1 << 40


@dataclass(slots=True)
class _Run:
    """Commits between two compactions, netted: paths of data files at `base` and at `end`."""

    base: Version
    end: Version
    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    anywhere: bool = False

    def take(self, iceberg: Iceberg, io: Any, snapshot: Any) -> None:
        functions = iceberg.functions
        for path in functions.paths(snapshot.removedDataFiles(io)):
            if path in self.added:
                self.added.remove(path)
            else:
                self.removed.add(path)
        for path in functions.paths(snapshot.addedDataFiles(io)):
            if path in self.removed:
                self.removed.remove(path)
                # The file was removed and added again; its delete files show whether they changed.
                self.touched.add(path)
            else:
                self.added.add(path)
        for deletes in (snapshot.addedDeleteFiles(io), snapshot.removedDeleteFiles(io)):
            about = functions.referenced(deletes)
            self.anywhere |= None in about
            self.touched.update(path for path in about if path is not None)


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
    return sum(int(s.summary().get("added-records") or 0) for s in between if str(s.operation()) == "append")


def rows_changed(
    iceberg: Iceberg, name: TableName, loaded: Loaded, session: SparkSession, old: Version, new: Version
) -> RowChange:
    """The change of a table that was overwritten or deleted from; `old` is an ancestor of `new`."""
    reader = _Reader(iceberg, name, loaded.table, session)
    for run in _runs(iceberg, loaded, old, new):
        reader.read(run)
    return RowChange(
        added=reader.added.union(), removed=reader.removed.union(), rows=reader.rows, carried=reader.carried
    )


def _runs(iceberg: Iceberg, loaded: Loaded, old: Version, new: Version) -> list[_Run]:
    io = loaded.table.io()
    runs = [_Run(base=old, end=old)]
    for snapshot in commits_between(loaded.metadata, old, new):
        version = Version(str(snapshot.snapshotId()))
        if str(snapshot.operation()) == "replace":
            runs.append(_Run(base=version, end=version))
            continue
        runs[-1].end = version
        if moves_rows(snapshot):
            runs[-1].take(iceberg, io, snapshot)
    return [run for run in runs if run.base != run.end]


class _Reader:
    """Turns runs into frames."""

    def __init__(self, iceberg: Iceberg, name: TableName, table: Any, session: SparkSession) -> None:
        self._iceberg = iceberg
        self._functions = iceberg.functions
        self._name = name
        self._table = table
        self._session = session
        columns = table.schema().columns()
        names = [str(columns.get(index).name()) for index in range(columns.size())]
        self.added, self.removed = _Frames(names), _Frames(names)
        self.rows = 0
        self._without_carried_rows: list[bool] = []

    @property
    def carried(self) -> bool:
        """Whether files were rewritten, and rows that were only carried over are left out of all of them."""
        return bool(self._without_carried_rows) and all(self._without_carried_rows)

    def read(self, run: _Run) -> None:
        """Add the rows of one run."""
        functions = self._functions
        paths_read_before = None if run.anywhere else run.removed | run.touched
        paths_read_after = None if run.anywhere else run.added | run.touched
        before = planned(functions, self._table, run.base, paths_read_before)
        after = planned(functions, self._table, run.end, paths_read_after)
        paths_before, paths_after = functions.task_paths(before), functions.task_paths(after)
        if run.anywhere:
            run.touched |= self._touched_anywhere(before, after, paths_before, paths_after)
        missing = (run.removed - set(paths_before)) | (run.added - set(paths_after))
        stayed = (run.touched - run.added - run.removed) & (set(paths_before) | set(paths_after))
        missing |= stayed - set(paths_before) | stayed - set(paths_after)
        if missing:
            raise LakeError(
                "CHANGE_UNREADABLE",
                f"{self._name}: the commits between {run.base} and {run.end} name files that the versions"
                f" don't have: {', '.join(sorted(missing)[:3])}",
            )
        whole = self._read_stayed(
            stayed,
            dict(zip(paths_before, range(len(paths_before)), strict=True)),
            dict(zip(paths_after, range(len(paths_after)), strict=True)),
            before,
            after,
        )
        tasks_before = self._chosen(before, run.removed | whole)
        tasks_after = self._chosen(after, run.added | whole)
        rows_before, rows_after = (
            None if tasks is None else self._frame(tasks) for tasks in (tasks_before, tasks_after)
        )
        if rows_before is not None and rows_after is not None and _ROW in rows_after.columns:
            # Data files written before format version 3 have rows without ids.
            self._without_carried_rows.append(
                functions.rows_have_ids(tasks_before) and functions.rows_have_ids(tasks_after)
            )
            if self._without_carried_rows[-1]:
                rows_before, rows_after = self._without_carried(rows_before, rows_after, run.base)
        if rows_before is not None:
            self.removed.add(rows_before)
        if rows_after is not None:
            self.added.add(rows_after)

    def _chosen(self, tasks: Any, paths: set[str]) -> Any:
        """The tasks of these files, or None if there are none. Adds their rows to `rows`."""
        if not paths:
            return None
        chosen = self._functions.tasks(tasks, paths)
        self.rows += self._functions.task_rows(chosen)
        return chosen

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

    def _touched_anywhere(
        self, before: Any, after: Any, paths_before: list[str], paths_after: list[str]
    ) -> set[str]:
        """Files in both versions whose lists of delete files differ."""
        deletes_before = dict(zip(paths_before, self._functions.described_delete_files(before), strict=True))
        deletes_after = dict(zip(paths_after, self._functions.described_delete_files(after), strict=True))
        return {
            path
            for path in deletes_before.keys() & deletes_after.keys()
            if deletes_before[path] != deletes_after[path]
        }

    def _read_stayed(
        self, stayed: set[str], before_at: dict[str, int], after_at: dict[str, int], before: Any, after: Any
    ) -> set[str]:
        """Read the rows that data files in both versions lost. Returns the paths of the files whose rows
        must be compared completely."""
        whole: set[str] = set()
        marked: list[Any] = []
        listed: list[Any] = []
        positions: list[tuple[str, int]] = []
        for path in sorted(stayed):
            task_before, task_after = before.get(before_at[path]), after.get(after_at[path])
            if not task_before.deletes().size():
                marked.append(task_after)
                deletes = items(task_after.deletes())
                by_position = all(str(delete.content()) == "POSITION_DELETES" for delete in deletes)
                rows = int(task_after.file().recordCount())
                delete_count = sum(int(delete.recordCount()) for delete in deletes)
                self.rows += min(rows, delete_count) if by_position else rows
                continue
            new_positions = self._grown(path, task_before, task_after)
            if new_positions is None or len(positions) + len(new_positions) > limits.MAX_DELETE_POSITIONS:
                whole.add(path)
            elif new_positions:
                listed.append(task_after)
                positions += ((path, number) for number in new_positions)
        self.rows += len(positions)
        if marked:
            self.removed.add(self._frame(marked).where("_deleted"))
        if listed:
            # Filtering by `_deleted` first removes most rows before positions are compared.
            self.removed.add(self._at(self._frame(listed).where("_deleted"), positions))
        return whole

    def _grown(self, path: str, task_before: Any, task_after: Any) -> set[int] | None:
        """Positions that the newer deletion vector added to the older one. None if the deletes are not
        single vectors, if the vector is too large, or if it does not contain the older one."""
        older, newer = task_before.deletes(), task_after.deletes()
        vectors = self._iceberg.api.util.ContentFileUtil
        if not (vectors.containsSingleDV(older) and vectors.containsSingleDV(newer)):
            return None
        loader = self._iceberg.api.data.BaseDeleteLoader(self._functions.input_files(self._table.io()))
        newest_vector = loader.loadPositionDeletes(newer, path)
        if int(newest_vector.cardinality()) > limits.MAX_DELETION_VECTOR_POSITIONS:
            return None
        positions_before = set(self._functions.positions(loader.loadPositionDeletes(older, path)))
        positions_after = set(self._functions.positions(newest_vector))
        # A vector that lost positions restores rows. No engine does this, but manual edits can.
        return positions_after - positions_before if positions_before <= positions_after else None

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
