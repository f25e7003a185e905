"""Reverts one table as a revision decided. Each way ends in one commit that may be repeated.

The commits name the revoked checkpoints, so that a rebuilt or older store does not publish them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from tautochrone.errors import LakeError
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.runtime.job.topology import JobTopology

__all__ = ["RevisionCommit", "revert_table", "revoked_range"]


@dataclass(frozen=True, slots=True)
class RevisionCommit:
    """What every commit of a revision names.

    Attributes:
        fence: of the table's job.
        store: the store's incarnation.
        revoked: ranges of checkpoint numbers: first exclusive, last inclusive.
        versions: of all tables at the checkpoint that stays.
    """

    fence: Fence
    store: str
    revoked: tuple[tuple[int, int], ...]
    versions: Mapping[TableName, Version]


def revoked_range(plan: RevisionPlan) -> tuple[tuple[int, int], ...]:
    if plan.to is None:
        return ()
    if plan.last is None or plan.last <= plan.to:
        return ()
    return ((int(plan.to), int(plan.last)),)


def revert_table(
    base: SparkSession,
    topology: JobTopology,
    table: LakeTable,
    revised: RevisedTable,
    commit: RevisionCommit,
    tag: str,
) -> Version:
    """Revert, clear or rebuild the table.

    Args:
        topology: of the project that defines the table.
        tag: keeps the old version; its presence shows that an earlier attempt got this far.
    """
    if revised.action is RevisionAction.ROLL_BACK:
        return _roll_back(table, revised, commit, tag)
    if revised.action is RevisionAction.CLEAR:
        return _clear(base, topology, table, commit, tag)
    return _mark_for_rebuild(table, commit, tag)


def _roll_back(table: LakeTable, revised: RevisedTable, commit: RevisionCommit, tag: str) -> Version:
    assert revised.version is not None
    commit_metadata = table.merged_commit_metadata_at(revised.version)
    if commit_metadata is None:
        raise LakeError(
            "NOT_A_TABLE_OF_OURS",
            f"{revised.table} at version {revised.version} was not written by Tautochrone",
        )
    newest = table.fork().commit_metadata
    revoked = tuple(
        sorted({*commit.revoked, *commit_metadata.revoked, *(() if newest is None else newest.revoked)})
    )
    reverted = replace(
        commit_metadata,
        fence=commit.fence,
        store=commit.store,
        revoked=revoked,
        inputs=_inputs(commit_metadata, revised, commit),
    )
    return table.revert(revised.version, reverted, tag).version


def _inputs(
    commit_metadata: CommitMetadata, revised: RevisedTable, commit: RevisionCommit
) -> Mapping[str, str]:
    """The versions of its inputs that the table has merged: those of the checkpoint, where it has this
    version. The commit of the version may name older ones, which are not kept with the checkpoint."""
    inputs = commit_metadata.inputs
    is_same = commit.versions.get(revised.table) == revised.version
    if not is_same or commit_metadata.companions or commit_metadata.positions:
        # States and offsets belong to the inputs of their own commit.
        return inputs
    return {name: commit.versions.get(TableName.parse(name), Version(old)) for name, old in inputs.items()}


def _clear(
    base: SparkSession, topology: JobTopology, table: LakeTable, commit: RevisionCommit, tag: str
) -> Version:
    """Remove rows and positions in one commit.

    The table's history starts there, so that a stream that reads it from the beginning gets new rows only.
    """
    commit_metadata = _commit_metadata(table, commit)
    if tag not in table.tags():
        # With the fence raised first, no older owner moves main between the tag and the commit.
        table.raise_fence(table.fork(), commit_metadata)
        table.tag(table.current_version(), tag)
    no_rows = base.createDataFrame([], topology.graph.schemas[table.name])
    reset = replace(commit_metadata, reset=True)
    return table.redefine(table.fork(), topology.table_definition(table.name), no_rows, reset).version


def _mark_for_rebuild(table: LakeTable, commit: RevisionCommit, tag: str) -> Version:
    """Drop what the view was computed from; its rows stay until its next refresh."""
    commit_metadata = _commit_metadata(table, commit)
    if tag not in table.tags():
        table.raise_fence(table.fork(), commit_metadata)
        table.tag(table.current_version(), tag)
    return table.commit_metadata_only(
        table.fork(), replace(commit_metadata, mode=str(RefreshMode.FULL), reset=True)
    ).version


def _commit_metadata(table: LakeTable, commit: RevisionCommit) -> CommitMetadata:
    """The commit metadata of the table's owner, without inputs and positions."""
    current = table.fork().commit_metadata
    if current is None:
        raise LakeError("NOT_A_TABLE_OF_OURS", f"{table.name} was not written by Tautochrone")
    return CommitMetadata(
        pipeline=current.pipeline,
        job=current.job,
        fence=commit.fence,
        store=commit.store,
        revoked=commit.revoked,
    )
