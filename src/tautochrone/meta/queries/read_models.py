"""Checkpoint rows, the errors of asking for one that can't be read, and which jobs keep one from readers.

It knows no policy, and never how long a run waits for other jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.meta.queries.invariant_checks import broken_at
from tautochrone.meta.queries.source_observations import unobserved_roots
from tautochrone.meta.queries.topology import read_topology
from tautochrone.meta.queries.version_intervals import Cut, cut_at, discard, recorded
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.jobs import BlockerKind, Part, PublicationBlocker
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "as_checkpoint",
    "as_versions",
    "checkpoint_row",
    "close_if_finished",
    "require_readable",
    "row_cut",
    "set_state",
    "stored_failure",
    "unfinished_parts",
    "unobserved_sources",
    "unrecorded_datasets",
]


_C, _P = t.checkpoints.c, t.checkpoint_jobs.c


def stored_failure(row: Row[Any]) -> Reason | None:
    """The failure of a row that has the columns `error`, `error_code` and `error_params`."""
    return None if row.error is None else Reason.stored(row.error, row.error_code, row.error_params)


def checkpoint_row(connection: Connection, number: int, *, lock: bool = False) -> Row[Any]:
    """The row of a checkpoint.

    Raises:
        CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
    """
    query = select(t.checkpoints).where(_C.number == number)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise CheckpointUnavailableError(
            "CHECKPOINT_NOT_FOUND",
            f"There is no checkpoint {number}: it never was, or it expired long ago",
            hint="`taut checkpoints` lists those that can be read.",
        )
    return row


_WHY_NOT = {
    CheckpointState.OPEN: ("CHECKPOINT_NOT_PUBLISHED", "is still being built"),
    CheckpointState.ABORTED: ("CHECKPOINT_NOT_PUBLISHED", "was aborted and never published"),
    CheckpointState.EXPIRED: ("CHECKPOINT_EXPIRED", "has expired"),
    CheckpointState.REVOKED: ("CHECKPOINT_REVOKED", "was revoked"),
}


def require_readable(connection: Connection, row: Row[Any]) -> None:
    """Raise the error class that fits a checkpoint's state unless some job's tables can be read at it."""
    if row.state in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL):
        return
    p = t.checkpoint_jobs.c
    done = select(p.job).where(p.checkpoint == row.number, p.state == Part.DONE.value).limit(1)
    if row.state == CheckpointState.OPEN and connection.execute(done).first() is not None:
        return
    error_class, state = _WHY_NOT[CheckpointState(row.state)]
    raise CheckpointUnavailableError(
        error_class,
        f"Checkpoint {row.number} {state}",
        hint="`taut checkpoints` lists those that can be read.",
    )


def row_cut(connection: Connection, row: Row[Any]) -> Cut:
    """The tables at this checkpoint; for an open one, what was recorded for it so far."""
    return cut_at(connection, row.number)


def as_versions(versions: Any) -> dict[TableName, Version]:
    """Names and versions as values of the model."""
    return {TableName.parse(name): Version(version) for name, version in versions.items()}


def as_checkpoint(connection: Connection, row: Row[Any]) -> Checkpoint:
    """The row as a value, with the versions of its roots (empty once it was given up)."""
    cut = row_cut(connection, row)
    roots = {name: version for name, version in cut.versions.items() if name in cut.roots}
    return Checkpoint(
        number=CheckpointNumber(row.number),
        state=CheckpointState(row.state),
        cut_at_ms=row.cut_at_ms,
        published_at_ms=row.published_at_ms,
        roots=as_versions({} if row.state == CheckpointState.ABORTED else roots),
        broken=broken_at(connection, row.number) if row.state != CheckpointState.PUBLISHED else (),
    )


def set_state(connection: Connection, number: int, state: CheckpointState) -> None:
    """Change the state of one checkpoint."""
    connection.execute(update(t.checkpoints).where(_C.number == number).values(state=state.value))


def unrecorded_datasets(connection: Connection, job: str, number: int) -> list[str]:
    """Datasets of the job that have neither a version nor a failure at its open target."""
    d, f = t.datasets.c, t.failures.c
    names = connection.execute(
        select(d.name).where(d.job == job, d.retired.is_(False), d.kind.in_(VERSIONED_KINDS))
    ).scalars()
    failed = set(connection.execute(select(f.dataset).where(f.checkpoint == number)).scalars())
    known = recorded(connection, job, number)
    return sorted(name for name in names if name not in failed and name not in known)


def close_if_finished(connection: Connection, number: int, at_ms: int | None = None) -> None:
    """Close a checkpoint when no job is at work on it any more: published when all did their part,
    partial when some did, aborted (what was recorded is forgotten) when nobody did."""
    p = t.checkpoint_jobs.c
    parts = set(connection.execute(select(p.state).where(p.checkpoint == number)).scalars())
    if Part.PENDING in parts:
        return
    if Part.DONE not in parts:
        connection.execute(delete(t.failures).where(t.failures.c.checkpoint == number))
        discard(connection, number)
        set_state(connection, number, CheckpointState.ABORTED)
        return
    state = CheckpointState.PARTIAL if Part.SKIPPED in parts else CheckpointState.PUBLISHED
    connection.execute(
        update(t.checkpoints).where(_C.number == number).values(state=state.value, published_at_ms=at_ms)
    )


def unfinished_parts(
    connection: Connection, job: str, number: int, alive: set[str]
) -> Iterator[PublicationBlocker]:
    """The other jobs that have not done their part of a checkpoint; none when it is published."""
    state = connection.execute(select(_C.state).where(_C.number == number)).scalar_one()
    if state == CheckpointState.PUBLISHED:
        return
    broken: dict[str, dict[str, str]] = {}
    for name, broken_job, error in _broken(connection, number):
        broken.setdefault(broken_job, {})[name] = error
    parts = select(_P.job, _P.state, _P.waits_for).where(
        _P.checkpoint == number, _P.job != job, _P.state != Part.DONE.value
    )
    for row in connection.execute(parts.order_by(_P.job)):
        names = tuple(sorted(broken.get(row.job, ())))
        if names:
            blocker_kind, text = BlockerKind.INVARIANT, "; ".join(broken[row.job][name] for name in names)
            reason = Reason.of(ReasonCode.INVARIANT_BROKEN, invariants=list(names), text=text)
        elif row.state == Part.SKIPPED:
            blocker_kind = BlockerKind.SKIPPED
            reason = Reason.of(ReasonCode.JOB_SKIPPED_CHECKPOINT, job=row.job, checkpoint=number)
        elif row.job not in alive:
            blocker_kind = BlockerKind.AWAY
            reason = Reason.of(ReasonCode.JOB_NOT_RUNNING, job=row.job, checkpoint=number)
        else:
            blocker_kind = BlockerKind.PENDING
            reason = Reason.of(
                ReasonCode.JOB_UNFINISHED, job=row.job, checkpoint=number, waits_for=row.waits_for
            )
        yield PublicationBlocker(
            job=row.job,
            checkpoint=CheckpointNumber(number),
            kind=blocker_kind,
            invariants=names,
            reason=reason,
        )


def _broken(connection: Connection, number: int) -> list[tuple[str, str, str]]:
    """Name, job and sentence of the invariants that were broken at a checkpoint."""
    b = t.invariants_broken.c
    rows = connection.execute(
        select(b.name, b.job).where(b.checkpoint == number).order_by(b.job, b.name)
    ).all()
    errors = [invariant.error for invariant in broken_at(connection, number)]
    return [(row.name, row.job, error) for row, error in zip(rows, errors, strict=True)]


def unobserved_sources(
    connection: Connection, job: str, number: int, alive: set[str], sources_as_of_ms: int
) -> Iterator[PublicationBlocker]:
    """The live jobs that have not observed a source of the job's tables since `sources_as_of_ms`."""
    reported: set[str] = set()
    for name, observers in unobserved_roots(
        connection, number, read_topology(connection).datasets(job), sources_as_of_ms
    ):
        for observer in observers:
            # The job has observed its own sources, and no live job observes the others.
            if observer == job or observer not in alive or job in observers or observer in reported:
                continue
            reported.add(observer)
            yield PublicationBlocker(
                job=observer,
                checkpoint=CheckpointNumber(number),
                kind=BlockerKind.SOURCE,
                reason=Reason.of(
                    ReasonCode.SOURCE_NOT_OBSERVED, checkpoint=number, table=str(name), job=observer
                ),
            )
