"""Classifies the commits between two snapshots of an Iceberg table.

Only the chain of parent snapshots proves what changed. If a snapshot is missing or is not an ancestor, the
change is unknown and the reader compares the rows instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tautochrone.iceberg.commits.compare_and_set import NO_VERSION
from tautochrone.model.lake import ChangeKind, TableChange
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["ancestors", "change_between", "commits_between", "in_history", "moves_rows", "stood_at"]


def _back_from(metadata: Any, version: Version) -> Iterator[Any]:
    """Snapshots from `version` backwards; lazily, because each step costs calls over Py4J."""
    snapshot = None if version == NO_VERSION else metadata.snapshot(int(version))
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def ancestors(metadata: Any, version: Version) -> list[Any]:
    """Snapshots from `version` back to the oldest that is not expired, newest first."""
    return list(_back_from(metadata, version))


def in_history(metadata: Any, main: Version, version: Version, since: Version) -> bool:
    """Whether `version` is main or one of its ancestors. The search ends at `since`, the version's parent."""
    current = main
    while current not in (NO_VERSION, since):
        if current == version:
            return True
        snapshot = metadata.snapshot(int(current))
        parent = None if snapshot is None else snapshot.parentId()
        current = NO_VERSION if parent is None else Version(str(parent))
    return False


def stood_at(metadata: Any, main: Version, version: Version) -> bool:
    """Whether main can be moved back to a version that it had before: the snapshot exists, and main's
    history either contains it or is expired up to a later one. False if main was rolled back or replaced
    since."""
    snapshot_of_version = None if version == NO_VERSION else metadata.snapshot(int(version))
    if snapshot_of_version is None:
        return False
    oldest = None
    for snapshot in _back_from(metadata, main):
        if str(snapshot.snapshotId()) == version:
            return True
        oldest = snapshot
    if oldest is None or oldest.parentId() is None:
        return False
    return bool(snapshot_of_version.sequenceNumber() < oldest.sequenceNumber())


def change_between(name: TableName, metadata: Any, old: Version, new: Version) -> TableChange:
    """Classify the commits after `old` up to `new`."""

    def change(kind: ChangeKind, code: ReasonCode, *, appended: bool = False, **params: str) -> TableChange:
        return TableChange(kind=kind, reason=Reason.of(code, table=str(name), **params), appended=appended)

    if old == new:
        return change(ChangeKind.NONE, ReasonCode.TABLE_UNCHANGED)
    between = []
    for snapshot in _back_from(metadata, new):
        if str(snapshot.snapshotId()) == old:
            break
        between.append(snapshot)
    else:
        complete = bool(between) and between[-1].parentId() is None
        if not (old == NO_VERSION and complete):
            return change(ChangeKind.UNKNOWN, _unknown_code(metadata, old), version=str(old))
    operations = {str(snapshot.operation()) for snapshot in between if moves_rows(snapshot)}
    before = None if old == NO_VERSION else metadata.snapshot(int(old)).schemaId()
    after = between[0].schemaId() if between else before
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


def commits_between(metadata: Any, old: Version, new: Version) -> list[Any]:
    """Snapshots after `old` up to `new`, oldest first; `old` must be an ancestor of `new`, or no version."""
    between = []
    for snapshot in _back_from(metadata, new):
        if str(snapshot.snapshotId()) == old:
            break
        between.append(snapshot)
    return between[::-1]


def moves_rows(snapshot: Any) -> bool:
    """Whether this commit changed the rows of the table."""
    operation = str(snapshot.operation())
    if operation == "replace":
        # A compaction writes the same rows into other files.
        return False
    summary = snapshot.summary()
    counts = (
        "added-data-files",
        "deleted-data-files",
        "added-delete-files",
        "removed-delete-files",
        "added-records",
        "deleted-records",
    )
    return any(str(summary.get(key) or "0") != "0" for key in counts)


def _unknown_code(metadata: Any, old: Version) -> ReasonCode:
    exists = old != NO_VERSION and metadata.snapshot(int(old)) is not None
    return ReasonCode.TABLE_ROLLED_BACK if exists else ReasonCode.VERSION_EXPIRED
