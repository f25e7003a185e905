"""Tables that other jobs write, at a checkpoint that this job is at work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.model.jobs import Part
from tautochrone.model.names import TableName
from tautochrone.runtime.job.job import Job

__all__ = ["Brought", "Elsewhere", "look_elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What other jobs say of the tables that this one reads.

    `waiting`: no word yet, with the job that owes it (its name is empty when it never ran). `failed`:
    there will be no version, with the reason. `lost`: a job that will never do this checkpoint.
    """

    waiting: Mapping[TableName, str] = field(default_factory=dict)
    failed: Mapping[TableName, str] = field(default_factory=dict)
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """How far a job came with a checkpoint: what failed for good, what waits for whose tables.

    With `lost`, a job that will never do the checkpoint, it can't be finished here either.
    """

    failed: Mapping[TableName, str]
    waiting: Mapping[TableName, str]
    lost: str | None


def look_elsewhere(job: Job, number: int) -> Elsewhere:
    """What the other jobs have said for checkpoint `number` of the tables that this one reads."""
    foreign = job.foreign()
    if not foreign:
        return Elsewhere()
    # The parts first: what is recorded between the two looks is then no more than not yet seen.
    parts = {progress.job: progress.part for progress in job.store.progress(number)}
    versions, failures = job.store.versions_at(number), job.store.failures_at(number)
    waiting: dict[TableName, str] = {}
    failed: dict[TableName, str] = {}
    lost: str | None = None
    for table, owner in sorted(foreign.items()):
        part = parts.get(owner)
        if part is Part.SKIPPED or (part is None and owner):
            # It went on to a newer one, or came when this one was already open.
            waiting[table], lost = owner, owner
        elif table in versions:
            continue
        elif table in failures:
            failed[table] = failures[table]
        elif part is Part.DONE:
            failed[table] = f"job {owner} has no version of it"
        else:
            waiting[table] = owner
    return Elsewhere(waiting=waiting, failed=failed, lost=lost)
