"""A table taken back to an older version: what it knew then, and the metadata that says so. Nothing here
commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tautochrone.errors import HistoryLostError, LakeError
from tautochrone.iceberg.changes.history import ancestors, stood_at
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.commits.metadata import NOTE_KEY, carry_forward, decode, encode
from tautochrone.model.lake import CommitNote
from tautochrone.model.names import TableName, Version

__all__ = ["companions_at", "note_at", "reverted"]


def note_at(name: TableName, loaded: Loaded, version: Version) -> CommitNote | None:
    """See `LakeTable.note_at`."""
    if not stood_at(loaded.metadata, loaded.main, version):
        raise HistoryLostError(
            "VERSION_NOT_IN_HISTORY", f"{name} was rolled back or replaced since it stood at {version}"
        )
    chain = ancestors(loaded.metadata, version)
    found: CommitNote | None = None
    for snapshot in reversed(chain):
        note = decode(snapshot.summary().get(NOTE_KEY))
        found = found if note is None else carry_forward(found, note)
    newest = loaded.note
    unknown = set(newest.positions) - set(found.positions) if newest and found else set()
    if unknown and chain[-1].parentId() is not None:
        raise HistoryLostError(
            "POSITIONS_LOST",
            f"Where the flow {min(unknown)} of {name} stood at version {version} was told by commits that "
            "are expired",
            hint="choose a later checkpoint, or clear the table with --full",
        )
    return found


def companions_at(
    metadata: Mapping[str, Any], versions: Collection[Version]
) -> Mapping[TableName, frozenset[Version]]:
    """See `LakeTable.companions_at`.

    Args:
        metadata: a table's metadata as its JSON says it: asking Java for each snapshot would take too long.
    """
    snapshots = {str(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}
    found: dict[TableName, set[Version]] = {}
    for version in versions:
        at = snapshots.get(version)
        note = None
        # A fence on top of a commit says nothing; the rows below it are still those of that commit.
        while at is not None and (note is None or note.mode is None):
            note = decode(at.get("summary", {}).get(NOTE_KEY))
            at = snapshots.get(str(at.get("parent-snapshot-id")))
        for name, companion in (note.companions if note else {}).items():
            found.setdefault(TableName.parse(name), set()).add(Version(companion))
    return {name: frozenset(of) for name, of in found.items()}


def reverted(
    name: TableName, loaded: Loaded, version: Version, note: CommitNote, tag: str
) -> tuple[Any, Version]:
    """Java TableMetadata that names main `tag`, moves main to `version` and puts an empty snapshot on top;
    and the version of that snapshot.

    The snapshot says who wrote it and where the flows stand, not that it is a refresh: its rows are told by
    the commit that made them.
    """
    if not stood_at(loaded.metadata, loaded.main, version):
        raise LakeError("VERSION_NOT_IN_HISTORY", f"{name} never stood at {version}")
    # Used only to produce metadata: its own commit would retry blindly.
    transaction = loaded.table.newTransaction()
    manage = transaction.manageSnapshots()
    manage.createTag(tag, int(loaded.main)).setCurrentSnapshot(int(version)).commit()
    says = CommitNote(
        pipeline=note.pipeline,
        job=note.job,
        fence=note.fence,
        store=note.store,
        positions=note.positions,
        revoked=note.revoked,
    )
    transaction.newAppend().set(NOTE_KEY, encode(says)).commit()
    metadata = transaction.currentMetadata()
    return metadata, Version(str(metadata.currentSnapshot().snapshotId()))
