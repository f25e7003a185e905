"""The rows that came and went between two versions, read from the files that changed and no others.

Snapshots name the files that they add and remove, so what is read follows the change and not the
table. The chain between the versions is cut at compactions, which move rows between files without
changing any: each run of commits between two of them is netted on its own, and the changes add up.

A data file that only gained deletes is read for what it lost:

- it had none before: the rows that Iceberg marks as deleted (`_deleted`),
- it had a deletion vector: the rows of the older state at the positions of the newer vector,
- anything else (position delete files over many data files, equality deletes after other deletes, very many
  positions): all its rows at the older state leave and all at the newer come; the caller consolidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tautochrone.errors import LakeError
from tautochrone.lake.iceberg.commits import Loaded
from tautochrone.lake.iceberg.functions import items
from tautochrone.lake.iceberg.history import commits_between, moves_rows
from tautochrone.lake.iceberg.jvm import Iceberg
from tautochrone.lake.iceberg.tasks import planned
from tautochrone.model.lake import RowChange
from tautochrone.model.names import TableName, Version, quoted

__all__ = ["rows_appended", "rows_changed"]

MOST_POSITIONS = 5000
"""Positions that a filter on one scan may list; beyond it the data files are compared whole."""


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
    return RowChange(added=reader.added.union(), removed=reader.removed.union(), rows=reader.rows)


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
        self._whole(self.removed, before, run.removed | whole)
        self._whole(self.added, after, run.added | whole)

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
        positions: list[str] = []
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
            found = self._grown(path, then, now, MOST_POSITIONS - len(positions))
            if found is None:
                whole.add(path)
            elif found:
                listed.append(then)
                positions += found
        if marked:
            self.removed.add(self._frame(marked).where("_deleted"))
        if listed:
            self.removed.add(_at(self._frame(listed), self._functions.strings(positions)))
        return whole

    def _grown(self, path: str, then: Any, now: Any, most: int) -> list[str] | None:
        """Keys of the rows that a grown deletion vector took away; None when that is not what happened."""
        older, newer = then.deletes(), now.deletes()
        vectors = self._iceberg.api.util.ContentFileUtil
        if not (vectors.containsSingleDV(older) and vectors.containsSingleDV(newer)):
            return None
        loader = self._iceberg.api.data.BaseDeleteLoader(self._functions.input_files(self._table.io()))
        first, last = loader.loadPositionDeletes(older, path), loader.loadPositionDeletes(newer, path)
        size, had = int(last.cardinality()), int(first.cardinality())
        if size > most:
            return None
        numbers = self._functions.numbers(last)
        last.merge(first)
        if int(last.cardinality()) != size:
            # Rows came back, which no commit of a writer does, but a hand may.
            return None
        self.rows += size - had
        # Those deleted before are in the list too; the older state does not show them any more.
        return [_key(path, number) for number in numbers]

    def _whole(self, into: _Frames, tasks: Any, paths: set[str]) -> None:
        if paths:
            chosen = self._functions.tasks(tasks, paths)
            self.rows += self._functions.task_rows(chosen)
            into.add(self._frame(chosen))

    def _frame(self, tasks: Any) -> DataFrame:
        if isinstance(tasks, list):
            chosen = self._iceberg.jvm.java.util.ArrayList()
            for task in tasks:
                chosen.add(task)
            tasks = chosen
        self._iceberg.activate(self._session)
        return self._iceberg.task_sets.frame(self._session, self._name, self._table, tasks)


def _key(path: str, position: int) -> str:
    return f"{position}@{path}"


def _at(frame: DataFrame, keys: Any) -> DataFrame:
    """The rows that are among `keys`, a Java list: one hash look-up a row however many there are."""
    key: Any = sql.concat(sql.col("_pos").cast("string"), sql.lit("@"), sql.col("_file"))
    return DataFrame(frame._jdf.filter(key._jc.isInCollection(keys)), frame.sparkSession)  # noqa: SLF001
