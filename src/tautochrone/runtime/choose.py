"""Which refresh mode a view needs to get from its last checkpoint to the next, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.model.lake import ChangeKind, Fork, TableChange
from tautochrone.model.names import TableName, Version
from tautochrone.model.refresh import RefreshMode
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job import Job

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode with its reason; `ranges` holds (old, new) of each input whose rows changed."""

    mode: RefreshMode
    reason: str
    ranges: Mapping[TableName, tuple[Version, Version]] = field(default_factory=dict)


def choose(
    job: Job,
    table: TableName,
    fork: Fork,
    new: Mapping[TableName, Version],
    *,
    forced: str | None = None,
) -> Choice:
    """Decide from metadata alone, without a Spark job.

    Args:
        fork: the view's table now. The inputs that its note names are what its rows were computed
            from, which need not be a published checkpoint: an aborted target may lie in between.
        new: versions of the inputs at the target.
        forced: a reason to compare contents although no input changed.
    """
    flow = job.flows(table)[0]
    if fork.note is None or fork.note.definition is None:
        return Choice(RefreshMode.FULL, "first build")
    old = {TableName.parse(name): Version(version) for name, version in fork.note.inputs.items()}
    if fork.note.definition != job.fingerprint(table):
        return Choice(RefreshMode.FULL, "the definition changed")
    changes = {
        name: _change(job, name, old.get(name), version)
        for name, version in new.items()
        if name in job.inputs(table)
    }
    moved = {name: change for name, change in changes.items() if change.kind is not ChangeKind.NONE}
    if not moved and forced is None:
        return Choice(RefreshMode.NO_DATA, "no input changed")
    obstacle = forced or _obstacle(flow, moved)
    if obstacle is not None:
        return Choice(RefreshMode.DIFF, obstacle)
    ranges = {name: (old[name], new[name]) for name in moved}
    return Choice(RefreshMode.APPEND, "rows were only added to inputs of a linear query", ranges)


def _change(job: Job, name: TableName, old: Version | None, new: Version) -> TableChange:
    if old is None:
        return TableChange(kind=ChangeKind.UNKNOWN, reason=f"{name} is a new input")
    if old == new:
        return TableChange(kind=ChangeKind.NONE, reason="")
    table = job.tables.get(name) or job.lake.load(name)
    return table.change_between(old, new)


def _obstacle(flow: ResolvedFlow, moved: Mapping[TableName, TableChange]) -> str | None:
    """Why the change cannot simply be appended, or None."""
    if not flow.linear:
        return flow.linear_reason
    return next((change.reason for change in moved.values() if change.kind is not ChangeKind.APPEND), None)
