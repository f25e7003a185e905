"""Whether readers see what a job has done, and who is missing when they don't.

It must never know how long anybody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select

from tautochrone.meta.database import tables as t
from tautochrone.meta.queries.invariant_checks import broken_at
from tautochrone.meta.queries.source_observations import unseen
from tautochrone.meta.queries.topology import topology
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import Missing, MissingPart, Part
from tautochrone.model.names import CheckpointNumber
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["unfinished_parts", "unseen_sources"]

_C, _P, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.jobs.c


def unfinished_parts(connection: Connection, job: str, number: int, alive: set[str]) -> Iterator[Missing]:
    state = connection.execute(select(_C.state).where(_C.number == number)).scalar_one()
    if state == CheckpointState.PUBLISHED:
        return
    broken: dict[str, dict[str, str]] = {}
    for name, by, error in _broken(connection, number):
        broken.setdefault(by, {})[name] = error
    parts = select(_P.job, _P.state, _P.waits_for).where(
        _P.checkpoint == number, _P.job != job, _P.state != Part.DONE.value
    )
    for row in connection.execute(parts.order_by(_P.job)):
        names = tuple(sorted(broken.get(row.job, ())))
        if names:
            what, text = MissingPart.INVARIANT, "; ".join(broken[row.job][name] for name in names)
            reason = Reason.of(ReasonCode.INVARIANT_BROKEN, invariants=list(names), text=text)
        elif row.state == Part.SKIPPED:
            what = MissingPart.SKIPPED
            reason = Reason.of(ReasonCode.JOB_SKIPPED_CHECKPOINT, job=row.job, checkpoint=number)
        elif row.job not in alive:
            what = MissingPart.AWAY
            reason = Reason.of(ReasonCode.JOB_NOT_RUNNING, job=row.job, checkpoint=number)
        else:
            what = MissingPart.PENDING
            reason = Reason.of(
                ReasonCode.JOB_UNFINISHED, job=row.job, checkpoint=number, waits_for=row.waits_for
            )
        yield Missing(
            job=row.job, checkpoint=CheckpointNumber(number), what=what, invariants=names, reason=reason
        )


def _broken(connection: Connection, number: int) -> list[tuple[str, str, str]]:
    """Name, job and sentence of the invariants that were broken at a checkpoint."""
    b = t.invariants_broken.c
    rows = connection.execute(
        select(b.name, b.job).where(b.checkpoint == number).order_by(b.job, b.name)
    ).all()
    errors = [one.error for one in broken_at(connection, number)]
    return [(row.name, row.job, error) for row, error in zip(rows, errors, strict=True)]


def unseen_sources(
    connection: Connection, job: str, number: int, alive: set[str], after_ms: int
) -> Iterator[Missing]:
    told: set[str] = set()
    for name, lookers in unseen(connection, number, topology(connection).datasets(job), after_ms):
        for looker in lookers:
            # Our own sources are in what we did; what nobody looks at is not there for anybody.
            if looker == job or looker not in alive or job in lookers or looker in told:
                continue
            told.add(looker)
            yield Missing(
                job=looker,
                checkpoint=CheckpointNumber(number),
                what=MissingPart.SOURCE,
                reason=Reason.of(
                    ReasonCode.SOURCE_NOT_OBSERVED, checkpoint=number, table=str(name), job=looker
                ),
            )
