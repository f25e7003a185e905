"""Which jobs keep a checkpoint from readers, and why. It must never know how long a run waits for them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select

from tautochrone.meta.database import tables as t
from tautochrone.meta.queries.invariant_checks import broken_at
from tautochrone.meta.queries.source_observations import unobserved_roots
from tautochrone.meta.queries.topology import read_topology
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import BlockerKind, Part, PublicationBlocker
from tautochrone.model.names import CheckpointNumber
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["unfinished_parts", "unobserved_sources"]

_C, _P, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.jobs.c


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
