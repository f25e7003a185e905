"""`store.invariants` in SQL."""

from __future__ import annotations

from sqlalchemy import select

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES, Repository, parse
from tautochrone.meta.protocols.invariants import InvariantCheck
from tautochrone.model.checkpoint import InvariantEntry
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber

__all__ = ["SqlInvariants"]

_C, _I, _P = t.checkpoints.c, t.invariants.c, t.checkpoint_jobs.c


class SqlInvariants(Repository):
    """`protocols.invariants.Invariants` in SQL."""

    def entries(self, job: str | None = None) -> tuple[InvariantEntry, ...]:
        query = select(t.invariants).order_by(_I.name)
        if job is not None:
            query = query.where(_I.job == job)
        with self._read() as connection:
            return tuple(
                InvariantEntry(
                    name=row.name,
                    location=row.location,
                    definition=row.definition,
                    tables=frozenset(map(parse, row.tables)),
                )
                for row in connection.execute(query)
            )

    def last_check(self, job: str) -> InvariantCheck | None:
        query = (
            select(_P.checkpoint, _P.passed_invariants)
            .join(t.checkpoints, _C.number == _P.checkpoint)
            .where(
                _P.job == job,
                _P.state == Part.DONE.value,
                _P.passed_invariants.is_not(None),
                _C.state.in_(VISIBLE_STATES),
            )
        )
        with self._read() as connection:
            row = connection.execute(query.order_by(_P.checkpoint.desc()).limit(1)).first()
            if row is None:
                return None
            return InvariantCheck(
                checkpoint=CheckpointNumber(row.checkpoint), definitions=row.passed_invariants
            )
