"""What changed between two versions of a table: which commits, data files and rows of them. Reads no rows.

Only the chain of parent snapshots proves what changed. If a snapshot is missing or is not an ancestor, the
change is unknown and the reader compares the rows instead.

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

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.compare_and_set import NO_VERSION, Loaded
from tautochrone.iceberg.java.api import Functions, Iceberg, items
from tautochrone.iceberg.java.calls import Snapshot, history
from tautochrone.model import limits
from tautochrone.model.lake import ChangeKind, TableChange
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "ChangedFiles",
    "can_move_main_back",
    "change_between",
    "changed_files",
    "commits_between",
    "file_tasks",
    "in_history",
    "moves_rows",
    "rows_behind_vectors",
]


def file_tasks(
    functions: Functions,
    table: Any,
    version: Version,
    paths: Collection[str] | None = None,
    condition: Any | None = None,
) -> Any:
    """The file tasks of a version as a Java list, each with its delete files; only `paths` when given, and
    only files that may have rows that meet an Iceberg `condition`."""
    if version == NO_VERSION or (paths is not None and not paths):
        return functions.no_tasks()
    scan = table.newScan().useSnapshot(int(version)).planWith(functions.this_thread)
    if condition is not None:
        scan = scan.filter(condition)
    with contextlib.closing(scan.planFiles()) as tasks:
        return functions.tasks(tasks, paths)


def rows_behind_vectors(functions: Functions, table: Any, version: Version) -> int | None:
    """The number of rows of a version, or None if it has delete files other than deletion vectors.

    The total of deleted positions in the snapshot summary is not exact: it counts vectors of data files
    that a writer removed without their vectors, and positions that are listed twice.
    """
    tasks = file_tasks(functions, table, version)
    if not functions.only_vectors(tasks):
        return None
    return functions.task_rows(tasks) - functions.deleted_rows(tasks)


def in_history(metadata: Any, main: Version, version: Version, since: Version) -> bool:
    """Whether `version` is main or one of its ancestors. The search ends at `since`, the version's parent."""
    chain = [snapshot.version for snapshot in history(metadata, main, since)]
    return version in chain and version != since


def can_move_main_back(metadata: Any, main: Version, version: Version) -> bool:
    """Whether main can be moved back to a version that it had before: the snapshot exists, and main's
    history either contains it or is expired up to a later one. False if main was rolled back or replaced
    since."""
    snapshot_of_version = None if version == NO_VERSION else metadata.snapshot(int(version))
    if snapshot_of_version is None:
        return False
    chain = history(metadata, main, version)
    if not chain:
        return False
    oldest = chain[-1]
    if oldest.version == version:
        return True
    return oldest.parent is not None and int(snapshot_of_version.sequenceNumber()) < oldest.sequence_number


def change_between(name: TableName, metadata: Any, old: Version, new: Version) -> TableChange:
    """Classify the commits after `old` up to `new`."""

    def change(kind: ChangeKind, code: ReasonCode, *, appended: bool = False, **params: str) -> TableChange:
        return TableChange(kind=kind, reason=Reason.of(code, table=str(name), **params), appended=appended)

    if old == new:
        return change(ChangeKind.NONE, ReasonCode.TABLE_UNCHANGED)
    chain = history(metadata, new, old)
    between = [snapshot for snapshot in chain if snapshot.version != old]
    if len(between) == len(chain):
        complete = bool(between) and between[-1].parent is None
        if not (old == NO_VERSION and complete):
            return change(ChangeKind.UNKNOWN, _unknown_code(metadata, old, new), version=str(old))
    operations = {str(snapshot.operation) for snapshot in between if moves_rows(snapshot)}
    before = None if old == NO_VERSION else chain[-1].schema_id
    after = between[0].schema_id if between else before
    unrecorded = _unrecorded_change(metadata, before, after)
    if unrecorded is not None:
        code, column = unrecorded
        return change(ChangeKind.UNKNOWN, code, appended=operations <= {"append"}, column=column)
    if not operations:
        if before is not None and before != after:
            return change(ChangeKind.APPEND, ReasonCode.COLUMNS_ADDED)
        return change(ChangeKind.NONE, ReasonCode.NO_ROWS_MOVED)
    if operations == {"append"}:
        return change(ChangeKind.APPEND, ReasonCode.TABLE_APPENDED)
    overwritten = "overwrite" in operations
    return change(ChangeKind.CHANGED, ReasonCode.ROWS_OVERWRITTEN if overwritten else ReasonCode.ROWS_DELETED)


def _unrecorded_change(metadata: Any, before: int | None, after: int | None) -> tuple[ReasonCode, str] | None:
    """A column in which every older row has another value, although no commit says so."""
    replaced = _replaced_column(metadata, before, after)
    if replaced is not None:
        return ReasonCode.COLUMN_REPLACED, replaced
    added = _column_with_default(metadata, before, after)
    return None if added is None else (ReasonCode.COLUMN_WITH_DEFAULT, added)


def _replaced_column(metadata: Any, *schemas: int | None) -> str | None:
    """The name of a column whose field id differs between one of these schemas and the newest one, with
    which changes are read. None if there is none. Snapshots of old writers have no schema id."""
    newest = int(metadata.currentSchemaId())
    others = {int(schema) for schema in schemas if schema is not None} - {newest}
    if not others:
        return None
    schemas_by_id = metadata.schemasById()

    def ids(schema: int) -> dict[str, int]:
        return {str(name): int(column) for column, name in schemas_by_id.get(schema).idToName().items()}

    newest_ids = ids(newest)
    changed = (
        name
        for other in others
        for name, column in ids(other).items()
        if newest_ids.get(name, column) != column
    )
    return next(changed, None)


def _column_with_default(metadata: Any, before: int | None, after: int | None) -> str | None:
    """The name of a column that was added since the schema `before`, and that older rows have a value in."""
    newest = int(metadata.currentSchemaId())
    if before is None or {int(before), int(after if after is not None else newest), newest} == {newest}:
        return None
    schemas_by_id = metadata.schemasById()
    schema = schemas_by_id.get(newest)
    older = set(schemas_by_id.get(int(before)).idToName().keySet())
    for column, name in schema.idToName().items():
        if column not in older and schema.findField(column).initialDefault() is not None:
            return str(name)
    return None


def commits_between(metadata: Any, old: Version, new: Version) -> list[Snapshot]:
    """Snapshots after `old` up to `new`, oldest first; `old` must be an ancestor of `new`, or no version."""
    return [snapshot for snapshot in reversed(history(metadata, new, old)) if snapshot.version != old]


def moves_rows(snapshot: Snapshot) -> bool:
    """Whether this commit changed the rows of the table."""
    if snapshot.operation == "replace":
        # A compaction writes the same rows into other files.
        return False
    counts = (
        "added-data-files",
        "deleted-data-files",
        "added-delete-files",
        "removed-delete-files",
        "added-records",
        "deleted-records",
    )
    return any((snapshot.summary.get(key) or "0") != "0" for key in counts)


def _unknown_code(metadata: Any, old: Version, new: Version) -> ReasonCode:
    if old == NO_VERSION or metadata.snapshot(int(old)) is None:
        return ReasonCode.VERSION_EXPIRED
    is_older = can_move_main_back(metadata, new, old)
    return ReasonCode.HISTORY_EXPIRED if is_older else ReasonCode.TABLE_ROLLED_BACK


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
        version = snapshot.version
        if snapshot.operation == "replace":
            runs.append(_Run(base=version, end=version))
            continue
        runs[-1].end = version
        if moves_rows(snapshot):
            runs[-1].take(iceberg, io, loaded.metadata.snapshot(int(version)))
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
        before = file_tasks(functions, self._table, run.base, paths_read_before)
        after = file_tasks(functions, self._table, run.end, paths_read_after)
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
        chosen_before = self._tasks_of_paths(before, run.removed | deletes.whole)
        chosen_after = self._tasks_of_paths(after, run.added | deletes.whole)
        whole_rows = (functions.task_rows(each) for each in (chosen_before, chosen_after) if each is not None)
        rows = deletes.rows + len(deletes.positions) + sum(whole_rows)
        return ChangedFiles(
            run.base, chosen_before, chosen_after, deletes.marked, deletes.listed, deletes.positions, rows
        )

    def _tasks_of_paths(self, tasks: Any, paths: set[str]) -> Any | None:
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
        new_positions = self._added_deletes(path, task_before, task_after)
        listed = len(deletes.positions)
        if new_positions is None or listed + len(new_positions) > limits.MAX_DELETE_POSITIONS:
            deletes.whole.add(path)
        elif new_positions:
            deletes.listed.append(task_after)
            deletes.positions += ((path, number) for number in new_positions)

    def _added_deletes(self, path: str, task_before: Any, task_after: Any) -> set[int] | None:
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
