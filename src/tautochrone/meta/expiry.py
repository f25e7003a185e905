"""What maintenance asks of the store and trims in it. Marking a checkpoint expired is in `pins`."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select

from tautochrone.meta import tables as t
from tautochrone.meta.repository import Repository
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import CheckpointNumber

__all__ = ["KEPT_UNREADABLE", "Expiry", "Standing"]

KEPT_UNREADABLE = 1_000
"""So many expired and aborted checkpoints of a job keep their row: who asks for one learns why not."""

_C = t.checkpoints.c
_P = t.checkpoint_jobs.c
_READABLE = (
    CheckpointState.PUBLISHED.value,
    CheckpointState.PARTIAL.value,
    CheckpointState.REVOKED.value,
)
_GONE = (CheckpointState.EXPIRED.value, CheckpointState.ABORTED.value)


@dataclass(frozen=True, slots=True)
class Standing:
    """A checkpoint that still holds versions, and when it was published (epoch milliseconds)."""

    number: CheckpointNumber
    at_ms: int


class Expiry(Repository):
    """The maintainer's side of the store."""

    def standing(self, job: str) -> tuple[Standing, ...]:
        """The published (and revoked) checkpoints of a job that are not expired, oldest first."""
        query = select(_C.number, _C.published_at_ms, _C.cut_at_ms).where(
            _C.number.in_(select(_P.checkpoint).where(_P.job == job)), _C.state.in_(_READABLE)
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(_C.number))
            return tuple(
                Standing(CheckpointNumber(row.number), row.published_at_ms or row.cut_at_ms) for row in rows
            )

    def forget_expired(self, job: str, kept: int = KEPT_UNREADABLE) -> int:
        """Drop the rows of all but the newest `kept` expired and aborted checkpoints; answers how many."""
        mine = (_C.job == job) & _C.state.in_(_GONE)
        newest = select(_C.number).where(mine).order_by(_C.number.desc())
        with self._write() as connection:
            last = connection.execute(newest.offset(kept).limit(1)).scalar()
            if last is None:
                return 0
            doomed = select(_C.number).where(mine, _C.number <= last)
            connection.execute(delete(t.checkpoint_jobs).where(_P.checkpoint.in_(doomed)))
            broken = t.invariants_broken.c.checkpoint
            connection.execute(delete(t.invariants_broken).where(broken.in_(doomed)))
            return connection.execute(delete(t.checkpoints).where(mine, _C.number <= last)).rowcount
