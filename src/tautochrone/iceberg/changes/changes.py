"""The rows that came and went between two versions, read from the files that changed and no others.

Snapshots name the files that they add and remove, so what is read follows the change and not the
table. The chain between the versions is cut at compactions, which move rows between files without
changing any: each run of commits between two of them is netted on its own, and the changes add up.

A data file that only gained deletes is read for what it lost:

- it had none before: the rows that Iceberg marks as deleted (`_deleted`),
- it had a deletion vector: those of them at positions that the older vector had not,
- anything else (position delete files over many data files, equality deletes after other deletes, very many
  positions): all its rows at the older state leave and all at the newer come; the caller consolidates.

So it is with data files that a writer replaced by others. Where rows have ids (format version 3), those that
were only carried over are left out.
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
_PLACE, _ROWS_OF_A_FILE = "__taut_place", 1 << 40


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
                # Whether it came back with the same deletes is for the delete files to say.
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
        self._told_apart: list[bool] = []

    @property
    def carried(self) -> bool:
        """Whether files were rewritten, and rows that were only carried over are left out of all of them."""
        return bool(self._told_apart) and all(self._told_apart)

    def read(self, run: _Run) -> None:
        """Add the rows of one run."""
        functions = self._functions
        wanted_before = None if run.anywhere else run.removed | run.touched
        wanted_after = None if run.anywhere else run.added | run.touched
        before = planned(functions, self._table, run.base, wanted_before)
        after = planned(functions, self._table, run.end, wanted_after)
        paths_before, paths_after = functions.task_paths(before), functions.task_paths(after)
        if run.anywhere:
            run.touched |= self._touched_anywhere(before, after, paths_before, paths_after)
        lost = (run.removed - set(paths_before)) | (run.added - set(paths_after))
        stayed = (run.touched - run.added - run.removed) & (set(paths_before) | set(paths_after))
        lost |= stayed - set(paths_before) | stayed - set(paths_after)
        if lost:
            raise LakeError(
                "CHANGE_UNREADABLE",
                f"{self._name}: the commits between {run.base} and {run.end} name files that the versions"
                f" don't have: {', '.join(sorted(lost)[:3])}",
            )
        whole = self._read_stayed(
            stayed,
            dict(zip(paths_before, range(len(paths_before)), strict=True)),
            dict(zip(paths_after, range(len(paths_after)), strict=True)),
            before,
            after,
        )
        gone = self._chosen(before, run.removed | whole)
        new = self._chosen(after, run.added | whole)
        left, came = (None if tasks is None else self._frame(tasks) for tasks in (gone, new))
        if left is not None and came is not None and _ROW in came.columns:
            # Files of a table that once had an older format may have rows without ids.
            self._told_apart.append(functions.rows_have_ids(gone) and functions.rows_have_ids(new))
            if self._told_apart[-1]:
                left, came = self._without_carried(left, came, run.base)
        if left is not None:
            self.removed.add(left)
        if came is not None:
            self.added.add(came)

    def _chosen(self, tasks: Any, paths: set[str]) -> Any:
        """The tasks of these files, counted; None for none."""
        if not paths:
            return None
        chosen = self._functions.tasks(tasks, paths)
        self.rows += self._functions.task_rows(chosen)
        return chosen

    def _without_carried(
        self, left: DataFrame, came: DataFrame, base: Version
    ) -> tuple[DataFrame, DataFrame]:
        """Leave out what a writer only carried over from an old data file to a new one.

        Such rows keep their id and the number of the commit that last changed them. A writer that does not
        carry those over gives all rows new ones; then all of them left and came, and the caller consolidates.
        """
        sequence = int(self._table.snapshot(int(base)).sequenceNumber())
        carried = sql.coalesce(sql.col(_CHANGED_AT) <= sequence, sql.lit(False)) & sql.col(_ROW).isNotNull()
        stayed = came.where(carried).select(sql.col(_ROW).alias(_STAYED))
        left = left.join(stayed, left[_ROW] == stayed[_STAYED], "left_anti")
        return left, came.where(~carried)

    def _touched_anywhere(self, before: Any, after: Any, left: list[str], right: list[str]) -> set[str]:
        """Files in both versions whose lists of delete files differ."""
        then = dict(zip(left, self._functions.task_deletes(before), strict=True))
        now = dict(zip(right, self._functions.task_deletes(after), strict=True))
        return {path for path in then.keys() & now.keys() if then[path] != now[path]}

    def _read_stayed(
        self, stayed: set[str], before_at: dict[str, int], after_at: dict[str, int], before: Any, after: Any
    ) -> set[str]:
        """Read what data files in both versions lost; answers those that must be compared whole."""
        whole: set[str] = set()
        marked: list[Any] = []
        listed: list[Any] = []
        positions: list[tuple[str, int]] = []
        for path in sorted(stayed):
            then, now = before.get(before_at[path]), after.get(after_at[path])
            if not then.deletes().size():
                marked.append(now)
                deletes = items(now.deletes())
                by_position = all(str(delete.content()) == "POSITION_DELETES" for delete in deletes)
                rows = int(now.file().recordCount())
                known = sum(int(delete.recordCount()) for delete in deletes)
                self.rows += min(rows, known) if by_position else rows
                continue
            found = self._grown(path, then, now)
            if found is None or len(positions) + len(found) > limits.MAX_DELETE_POSITIONS:
                whole.add(path)
            elif found:
                listed.append(now)
                positions += ((path, number) for number in found)
        self.rows += len(positions)
        if marked:
            self.removed.add(self._frame(marked).where("_deleted"))
        if listed:
            # Most rows are not deleted at all: these are out before a position is looked for.
            self.removed.add(self._at(self._frame(listed).where("_deleted"), positions))
        return whole

    def _grown(self, path: str, then: Any, now: Any) -> set[int] | None:
        """Positions that a grown deletion vector took away; None when that is not what happened."""
        older, newer = then.deletes(), now.deletes()
        vectors = self._iceberg.api.util.ContentFileUtil
        if not (vectors.containsSingleDV(older) and vectors.containsSingleDV(newer)):
            return None
        loader = self._iceberg.api.data.BaseDeleteLoader(self._functions.input_files(self._table.io()))
        last = loader.loadPositionDeletes(newer, path)
        if int(last.cardinality()) > limits.MAX_DELETION_VECTOR_POSITIONS:
            return None
        had = set(self._functions.numbers(loader.loadPositionDeletes(older, path)))
        has = set(self._functions.numbers(last))
        # Rows came back, which no commit of a writer does, but a hand may.
        return has - had if had <= has else None

    def _at(self, frame: DataFrame, places: list[tuple[str, int]]) -> DataFrame:
        """The rows at these places (file, position)."""
        if len(places) > limits.MAX_POSITIONS_IN_FILTER:
            return self._joined_at(frame, places)
        # Most rows are not even at such a position of another file.
        numbers = self._functions.longs({number for _, number in places})
        keys = self._functions.strings([f"{number}@{path}" for path, number in places])
        key: Any = sql.concat(sql.col("_pos").cast("string"), sql.lit("@"), sql.col("_file"))
        position: Any = sql.col("_pos")
        near = frame._jdf.filter(position._jc.isInCollection(numbers))  # noqa: SLF001
        return DataFrame(near.filter(key._jc.isInCollection(keys)), frame.sparkSession)  # noqa: SLF001

    def _joined_at(self, frame: DataFrame, places: list[tuple[str, int]]) -> DataFrame:
        """The same by a join: each place is one number, of the file and of the position in it."""
        session = frame.sparkSession
        paths = sorted({path for path, _ in places})
        first = {path: number * _ROWS_OF_A_FILE for number, path in enumerate(paths)}
        numbers = self._functions.longs({first[path] + position for path, position in places})
        encoder = self._iceberg.jvm.org.apache.spark.sql.Encoders.LONG()
        made = session._jsparkSession.createDataset(  # noqa: SLF001
            self._iceberg.jvm.java.util.ArrayList(numbers), encoder
        )
        wanted = DataFrame(made.toDF(), session).toDF(_PLACE)
        files = sql.array(*map(sql.lit, paths))
        number = (sql.array_position(files, sql.col("_file")) - 1) * _ROWS_OF_A_FILE + sql.col("_pos")
        return frame.join(sql.broadcast(wanted), number == wanted[_PLACE], "left_semi")

    def _frame(self, tasks: Any) -> DataFrame:
        if isinstance(tasks, list):
            chosen = self._iceberg.jvm.java.util.ArrayList()
            for task in tasks:
                chosen.add(task)
            tasks = chosen
        self._iceberg.activate(self._session)
        return self._iceberg.task_sets.frame(self._session, self._name, self._table, tasks)
