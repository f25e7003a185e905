"""How far other jobs are with the tables that this job reads, at a checkpoint that it works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.meta import Store
from tautochrone.model.jobs import Part
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["RefreshProgress", "UpstreamTables", "poll_upstream_jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTables:
    """Tables of other jobs that have no version at a checkpoint.

    Attributes:
        waiting: not recorded yet, with the job that will (its name is empty when it never ran).
        failed: there will be no version, with the reason.
        lost: a job that will never do this checkpoint.
    """

    waiting: Mapping[TableName, str] = field(default_factory=dict)
    failed: Mapping[TableName, Reason] = field(default_factory=dict)
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshProgress:
    """How far a job is with a checkpoint.

    Attributes:
        failed: own datasets that get no version at the checkpoint, with the reason.
        waiting: tables of other jobs that something here waits for, with the job that writes them.
        lost: a job that will never do the checkpoint, so that it cannot be finished here either.
        waiting_for_bulk: own datasets that get no version because the bulk of a database is not
            complete. That is no error.
    """

    failed: Mapping[TableName, Reason]
    waiting: Mapping[TableName, str]
    lost: str | None
    waiting_for_bulk: frozenset[TableName] = frozenset()


def poll_upstream_jobs(store: Store, owners: Mapping[TableName, str], number: int) -> UpstreamTables:
    """What other jobs have recorded for checkpoint `number` by now.

    Args:
        owners: the tables to ask for, each with the job that writes it.
    """
    if not owners:
        return UpstreamTables()
    # The parts are read first: a version that is recorded between the two reads only counts as waiting.
    parts = {progress.job: progress.part for progress in store.checkpoints.progress(number)}
    versions, failures = store.checkpoints.versions_at(number), store.checkpoints.failures_at(number)
    waiting: dict[TableName, str] = {}
    failed: dict[TableName, Reason] = {}
    lost: str | None = None
    for table, owner in sorted(owners.items()):
        part = parts.get(owner)
        if part is Part.SKIPPED or (part is None and owner):
            # It went on to a newer one, or came when this one was already open.
            waiting[table], lost = owner, owner
        elif table in versions:
            continue
        elif table in failures:
            failed[table] = failures[table]
        elif part is Part.DONE:
            failed[table] = Reason.of(ReasonCode.UPSTREAM_HAS_NO_VERSION, job=owner)
        else:
            waiting[table] = owner
    return UpstreamTables(waiting=waiting, failed=failed, lost=lost)
