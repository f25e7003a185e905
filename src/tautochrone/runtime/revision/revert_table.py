"""Taking one table back, as a revision has decided: each way is a commit that may be repeated.

Its commits name what was taken back: a store that is lost, or an older copy of it, must not publish it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tautochrone.errors import LakeError
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.names import Fence, Version
from tautochrone.model.refresh import RefreshMode
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.runtime.job.job import Job

__all__ = ["Says", "revoked_range", "take_back"]


@dataclass(frozen=True, slots=True)
class Says:
    """What every commit of a revision says: who writes, with which store, and what is taken back."""

    fence: Fence
    store: str
    revoked: tuple[tuple[int, int], ...]


def revoked_range(plan: RevisionPlan) -> tuple[tuple[int, int], ...]:
    if plan.to is None:
        return ()
    # A decision of an older release does not know the highest number of then.
    last = max((plan.to, *plan.revoked)) if plan.last is None else plan.last
    return ((int(plan.to), int(last)),) if last > plan.to else ()


def take_back(job: Job, table: LakeTable, one: RevisedTable, says: Says, tag: str) -> Version:
    """Do what the decision says of the table; `tag` marks what it was, and that it was done."""
    if one.action is RevisionAction.ROLL_BACK:
        return _roll_back(table, one, says, tag)
    if one.action is RevisionAction.CLEAR:
        return _clear(job, table, says, tag)
    return _rebuild(table, says, tag)


def _roll_back(table: LakeTable, one: RevisedTable, says: Says, tag: str) -> Version:
    assert one.version is not None
    commit_metadata = table.commit_metadata_at(one.version)
    if commit_metadata is None:
        raise LakeError("NOT_A_TABLE_OF_OURS", f"{one.table} at version {one.version} was not written by us")
    newest = table.fork().commit_metadata
    revoked = tuple(
        sorted({*says.revoked, *commit_metadata.revoked, *(() if newest is None else newest.revoked)})
    )
    said = replace(commit_metadata, fence=says.fence, store=says.store, revoked=revoked)
    return table.revert(one.version, said, tag).version


def _clear(job: Job, table: LakeTable, says: Says, tag: str) -> Version:
    """Rows and positions go in one commit, and its history starts anew, so that a stream that reads it from
    the beginning meets new rows only."""
    commit_metadata = _commit_metadata(table, says)
    if tag not in table.tags():
        # The fence comes first: nobody moves main between its tag and its end.
        table.raise_fence(table.fork(), commit_metadata)
        table.tag(table.current_version(), tag)
    nothing = job.base.createDataFrame([], job.graph.schemas[table.name])
    reset = replace(commit_metadata, reset=True)
    return table.redefine(table.fork(), job.topology.table_definition(table.name), nothing, reset).version


def _rebuild(table: LakeTable, says: Says, tag: str) -> Version:
    """The view forgets what it was computed from; its rows stay until there are others."""
    commit_metadata = _commit_metadata(table, says)
    if tag not in table.tags():
        table.raise_fence(table.fork(), commit_metadata)
        table.tag(table.current_version(), tag)
    return table.commit_metadata_only(
        table.fork(), replace(commit_metadata, mode=str(RefreshMode.FULL), reset=True)
    ).version


def _commit_metadata(table: LakeTable, says: Says) -> CommitMetadata:
    """Who writes: nothing about rows or positions."""
    known = table.fork().commit_metadata
    if known is None:
        raise LakeError("NOT_A_TABLE_OF_OURS", f"{table.name} was not written by us")
    return CommitMetadata(
        pipeline=known.pipeline,
        job=known.job,
        fence=says.fence,
        store=says.store,
        revoked=says.revoked,
    )
