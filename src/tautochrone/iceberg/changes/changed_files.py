"""Which data files, and which rows of them, make up the change between two versions. Reads no rows.

Snapshots name the files that they add and remove, so the cost depends on the change and not on the table. The
chain of commits is split at compactions, which move rows between files without changing them: each run of
commits between two compactions is netted on its own, and the results are added up.

Of a data file that only gained deletes, the removed rows are found as follows:

- it had no deletes before: the rows that are deleted now,
- it had a deletion vector: the rows at positions that the older vector did not contain,
- anything else (position delete files over many data files, equality deletes after other deletes, very many
  positions): all rows of the older state are removed and all of the newer are added; the caller consolidates.

Data files that a writer replaced are treated like the last case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.history import commits_between, moves_rows
from tautochrone.iceberg.changes.tasks import planned
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.functions import items
from tautochrone.model import limits
from tautochrone.model.names import TableName, Version

__all__ = ["ChangedFiles", "changed_files"]


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """The change of one run of commits, as Java scan tasks.

    Attributes:
        base: the version before.
        before: Java list: files all of whose rows at `base` are removed; None: there are none.
        after: Java list: files all of whose rows at the end are added; None: there are none.
        marked: files without deletes before, whose rows that are deleted now are removed.
        listed: files with more deletes than before.
        positions: of the removed rows of `listed`, each as (file, position).
        rows: upper bound of the rows of all of them.
    """

    base: Version
    before: Any | None
    after: Any | None
    marked: list[Any]
    listed: list[Any]
    positions: list[tuple[str, int]]
    rows: int


def changed_files(
    iceberg: Iceberg, name: TableName, loaded: Loaded, old: Version, new: Version
) -> Iterator[ChangedFiles]:
    """Run by run, the oldest first; `old` is an ancestor of `new`."""
    finder = _Finder(iceberg, name, loaded.table)
    return (finder.files(run) for run in _runs(iceberg, loaded, old, new))


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


class _Finder:
    """Finds the scan tasks of runs."""

    def __init__(self, iceberg: Iceberg, name: TableName, table: Any) -> None:
        self._iceberg = iceberg
        self._functions = iceberg.functions
        self._name = name
        self._table = table

    def files(self, run: _Run) -> ChangedFiles:
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
        deletes = _Deletes()
        tasks_before = dict(zip(paths_before, range(len(paths_before)), strict=True))
        tasks_after = dict(zip(paths_after, range(len(paths_after)), strict=True))
        for path in sorted(stayed):
            self._find_deletes(path, before.get(tasks_before[path]), after.get(tasks_after[path]), deletes)
        chosen_before = self._chosen(before, run.removed | deletes.whole)
        chosen_after = self._chosen(after, run.added | deletes.whole)
        whole_rows = (functions.task_rows(each) for each in (chosen_before, chosen_after) if each is not None)
        rows = deletes.rows + len(deletes.positions) + sum(whole_rows)
        return ChangedFiles(
            run.base, chosen_before, chosen_after, deletes.marked, deletes.listed, deletes.positions, rows
        )

    def _chosen(self, tasks: Any, paths: set[str]) -> Any | None:
        return self._functions.tasks(tasks, paths) if paths else None

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

    def _find_deletes(self, path: str, task_before: Any, task_after: Any, deletes: _Deletes) -> None:
        """Add the rows that a data file in both versions lost."""
        if not task_before.deletes().size():
            deletes.marked.append(task_after)
            delete_files = items(task_after.deletes())
            by_position = all(str(delete.content()) == "POSITION_DELETES" for delete in delete_files)
            rows = int(task_after.file().recordCount())
            delete_count = sum(int(delete.recordCount()) for delete in delete_files)
            deletes.rows += min(rows, delete_count) if by_position else rows
            return
        new_positions = self._grown(path, task_before, task_after)
        listed = len(deletes.positions)
        if new_positions is None or listed + len(new_positions) > limits.MAX_DELETE_POSITIONS:
            deletes.whole.add(path)
        elif new_positions:
            deletes.listed.append(task_after)
            deletes.positions += ((path, number) for number in new_positions)

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


@dataclass(slots=True)
class _Deletes:
    """Of the data files in both versions: see `ChangedFiles`.

    Attributes:
        whole: files whose rows must be compared completely.
        rows: upper bound of the removed rows of `marked`.
    """

    whole: set[str] = field(default_factory=set)
    marked: list[Any] = field(default_factory=list)
    listed: list[Any] = field(default_factory=list)
    positions: list[tuple[str, int]] = field(default_factory=list)
    rows: int = 0
