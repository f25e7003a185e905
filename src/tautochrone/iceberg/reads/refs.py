"""Reads branches, tags and files of snapshots from a table's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tautochrone.iceberg.commits.compare_and_set import NO_VERSION, Loaded
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, decode
from tautochrone.model.lake import Prepared
from tautochrone.model.names import TableName, Version

__all__ = ["BRANCH_PREFIX", "own_files", "prepared_batches", "tags"]

BRANCH_PREFIX = "tautochrone-prepared-"
"""Every prepared batch has its own branch, whose name begins with this prefix."""


def prepared_batches(name: TableName, metadata: Any) -> list[Prepared]:
    """Prepared batches on branches with our prefix, with their commit metadata."""
    batches = []
    for branch in metadata.refs().keySet():
        if not branch.startswith(BRANCH_PREFIX):
            continue
        snapshot = metadata.snapshot(metadata.ref(branch).snapshotId())
        commit_metadata = decode(snapshot.summary().get(COMMIT_METADATA_KEY))
        if commit_metadata is None:
            continue
        parent = snapshot.parentId()
        batches.append(
            Prepared(
                table=name,
                parent=NO_VERSION if parent is None else Version(str(parent)),
                version=Version(str(snapshot.snapshotId())),
                branch=str(branch),
                commit_metadata=commit_metadata,
                rows=int(snapshot.summary().get("added-records") or 0),
            )
        )
    return batches


def tags(metadata: Any) -> Sequence[str]:
    """Names of all tags, those of older snapshots first."""
    refs = {str(name): metadata.ref(name) for name in metadata.refs().keySet()}
    numbered_tags = [
        (metadata.snapshot(ref.snapshotId()).sequenceNumber(), name)
        for name, ref in refs.items()
        if ref.isTag()
    ]
    return [name for _, name in sorted(numbered_tags)]


def own_files(loaded: Loaded, snapshot: Any) -> list[str]:
    """Data files, manifests and the manifest list that this snapshot added."""
    io = loaded.table.io()
    manifests = [m for m in snapshot.allManifests(io) if m.snapshotId() == snapshot.snapshotId()]
    data = [str(file.location()) for file in snapshot.addedDataFiles(io)]
    return [*data, *(str(m.path()) for m in manifests), str(snapshot.manifestListLocation())]
