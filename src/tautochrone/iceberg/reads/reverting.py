"""Reads the commit metadata of older versions, and builds the table metadata that reverts to one. Nothing
here commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tautochrone.errors import HistoryLostError, LakeError
from tautochrone.iceberg.changes.history import ancestors, stood_at
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, decode, encode
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import TableName, Version

__all__ = ["companions_at", "merged_commit_metadata_at", "reverted"]


def merged_commit_metadata_at(name: TableName, loaded: Loaded, version: Version) -> CommitMetadata | None:
    """See `LakeTable.merged_commit_metadata_at`."""
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
        metadata: a table's metadata, parsed from its JSON, because one Java call per snapshot is too slow.
    """
    snapshots = {str(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}
    companions: dict[TableName, set[Version]] = {}
    for version in versions:
        current = snapshots.get(version)
        commit_metadata = None
        # A fence commit names no companions; its rows are still those of the commit below it.
        while current is not None and (commit_metadata is None or commit_metadata.mode is None):
            commit_metadata = decode(current.get("summary", {}).get(COMMIT_METADATA_KEY))
            current = snapshots.get(str(current.get("parent-snapshot-id")))
        for name, companion in (commit_metadata.companions if commit_metadata else {}).items():
            companions.setdefault(TableName.parse(name), set()).add(Version(companion))
    return {name: frozenset(versions_of_companion) for name, versions_of_companion in companions.items()}


def reverted(
    name: TableName, loaded: Loaded, version: Version, commit_metadata: CommitMetadata, tag: str
) -> tuple[Any, Version]:
    """Java TableMetadata that tags main as `tag`, moves main to `version` and adds an empty snapshot; and
    the version of that snapshot.

    The snapshot's commit metadata has its writer and the positions of the flows, but no refresh fields:
    these stay on the commit that wrote the rows.
    """
    if not stood_at(loaded.metadata, loaded.main, version):
        raise LakeError("VERSION_NOT_IN_HISTORY", f"{name} never stood at {version}")
    # The transaction only produces metadata. Its own commit would retry without checks.
    transaction = loaded.table.newTransaction()
    manage = transaction.manageSnapshots()
    manage.createTag(tag, int(loaded.main)).setCurrentSnapshot(int(version)).commit()
    snapshot_metadata = CommitMetadata(
        pipeline=commit_metadata.pipeline,
        job=commit_metadata.job,
        fence=commit_metadata.fence,
        store=commit_metadata.store,
        positions=commit_metadata.positions,
        shortened=commit_metadata.shortened,
        revoked=commit_metadata.revoked,
    )
    transaction.newAppend().set(COMMIT_METADATA_KEY, encode(snapshot_metadata)).commit()
    metadata = transaction.currentMetadata()
    return metadata, Version(str(metadata.currentSnapshot().snapshotId()))
