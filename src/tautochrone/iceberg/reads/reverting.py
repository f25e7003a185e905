"""A table taken back to an older version: what it knew then, and the metadata that says so. Nothing here
commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tautochrone.errors import HistoryLostError, LakeError
from tautochrone.iceberg.changes.history import ancestors, stood_at
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, decode, encode
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import TableName, Version

__all__ = ["commit_metadata_at", "companions_at", "reverted"]


def commit_metadata_at(name: TableName, loaded: Loaded, version: Version) -> CommitMetadata | None:
    """See `LakeTable.commit_metadata_at`."""
    if not stood_at(loaded.metadata, loaded.main, version):
        raise HistoryLostError(
            "VERSION_NOT_IN_HISTORY", f"{name} was rolled back or replaced since it stood at {version}"
        )
    chain = ancestors(loaded.metadata, version)
    merged: CommitMetadata | None = None
    for snapshot in reversed(chain):
        commit_metadata = decode(snapshot.summary().get(COMMIT_METADATA_KEY))
        merged = merged if commit_metadata is None else carry_forward(merged, commit_metadata)
    newest = loaded.commit_metadata
    unknown = set(newest.positions) - set(merged.positions) if newest and merged else set()
    if unknown and chain[-1].parentId() is not None:
        raise HistoryLostError(
            "POSITIONS_LOST",
            f"Where the flow {min(unknown)} of {name} stood at version {version} was told by commits that "
            "are expired",
            hint="choose a later checkpoint, or clear the table with --full",
        )
    return merged


def companions_at(
    metadata: Mapping[str, Any], versions: Collection[Version]
) -> Mapping[TableName, frozenset[Version]]:
    """See `LakeTable.companions_at`.

    Args:
        metadata: a table's metadata as its JSON says it: asking Java for each snapshot would take too long.
    """
    snapshots = {str(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}
    companions: dict[TableName, set[Version]] = {}
    for version in versions:
        current = snapshots.get(version)
        commit_metadata = None
        # A fence on top of a commit says nothing; the rows below it are still those of that commit.
        while current is not None and (commit_metadata is None or commit_metadata.mode is None):
            commit_metadata = decode(current.get("summary", {}).get(COMMIT_METADATA_KEY))
            current = snapshots.get(str(current.get("parent-snapshot-id")))
        for name, companion in (commit_metadata.companions if commit_metadata else {}).items():
            companions.setdefault(TableName.parse(name), set()).add(Version(companion))
    return {name: frozenset(of) for name, of in companions.items()}


def reverted(
    name: TableName, loaded: Loaded, version: Version, commit_metadata: CommitMetadata, tag: str
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
    snapshot_metadata = CommitMetadata(
        pipeline=commit_metadata.pipeline,
        job=commit_metadata.job,
        fence=commit_metadata.fence,
        store=commit_metadata.store,
        positions=commit_metadata.positions,
        revoked=commit_metadata.revoked,
    )
    transaction.newAppend().set(COMMIT_METADATA_KEY, encode(snapshot_metadata)).commit()
    metadata = transaction.currentMetadata()
    return metadata, Version(str(metadata.currentSnapshot().snapshotId()))
