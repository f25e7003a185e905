"""`store.reads` in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import func, select

from tautochrone.errors import QueryError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES, Repository
from tautochrone.meta.protocols.reads import DEFAULT_LEASE_MS
from tautochrone.meta.queries.coordinator import is_alive
from tautochrone.meta.queries.invariant_checks import held_back
from tautochrone.meta.queries.read_models import as_versions, checkpoint_row, require_readable
from tautochrone.meta.queries.read_versions import (
    incomplete_error,
    missing_reason,
    missing_reasons,
    needed_tables,
    newest_versions,
    requested_tables,
    strong_versions,
)
from tautochrone.meta.queries.readability import unfinished_parts, unobserved_sources
from tautochrone.meta.queries.source_observations import require_observed
from tautochrone.meta.queries.version_intervals import cut_at
from tautochrone.meta.sql.pins import add_pin
from tautochrone.model.checkpoint import Consistency, Resolution
from tautochrone.model.inputs import is_clock
from tautochrone.model.jobs import Part, PublicationBlocker
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["SqlReads"]

_C, _J, _P = t.checkpoints.c, t.jobs.c, t.checkpoint_jobs.c


class SqlReads(Repository):
    """`protocols.reads.Reads` in SQL."""

    def resolve(
        self,
        consistency: Consistency = Consistency.STRONG,
        tables: Iterable[TableName] | None = None,
        checkpoint: int | None = None,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        owner: str = "reader",
        at_least: int = 0,
        only_named: bool = False,
        after_ms: int | None = None,
        principal: str | None = None,
    ) -> Resolution:
        if after_ms is not None and checkpoint is None and consistency is Consistency.WEAK:
            raise QueryError(
                "TOKEN_NEEDS_CHECKPOINT",
                "A weak read mixes moments, so nothing tells whether it is after a token",
                hint="read strongly; --only-named waits for the fewest",
            )
        transaction = self._write(durable=False) if lease_ms > 0 else self._read()
        with transaction as connection:
            requested = None if tables is None else {str(table) for table in tables}
            behind: dict[str, str] = {}
            chosen: int | None = None
            versions: Mapping[str, str]
            if checkpoint is not None:
                row = checkpoint_row(connection, checkpoint, lock=lease_ms > 0)
                require_readable(connection, row)
                requested_names = requested_tables(connection, requested)
                cut = cut_at(
                    connection,
                    row.number,
                    only=None if requested is None else requested_names,
                    done_only=True,
                )
                behind = missing_reasons(connection, row.number, requested_names - cut.versions.keys())
                if requested is not None and behind:
                    raise incomplete_error(row.number, behind)
                chosen, versions = row.number, dict(cut.versions)
            elif consistency is Consistency.STRONG:
                requested_names, needed = needed_tables(connection, requested, only_named=only_named)
                # The checkpoint must not expire between its choice and the pin.
                chosen, versions, behind = strong_versions(
                    connection, requested, requested_names, needed, at_least, lock=lease_ms > 0
                )
            else:
                versions = newest_versions(connection, requested)
            behind = {
                name: f"held back at checkpoint {number}: {error}"
                for name, (number, error) in held_back(connection, requested).items()
                if checkpoint is None and (chosen is None or number > chosen)
            } | behind
            if after_ms is not None and chosen is not None:
                require_observed(connection, chosen, versions, after_ms)
            now = self._clock()
            expires_at_ms = now + lease_ms
            pin = ""
            if lease_ms > 0:
                pin = add_pin(
                    connection, chosen, versions, owner, expires_at_ms, principal=principal, now_ms=now
                )
            return Resolution(
                checkpoint=None if chosen is None else CheckpointNumber(chosen),
                versions={
                    name: version for name, version in as_versions(versions).items() if not is_clock(name)
                },
                pin=pin,
                behind={TableName.parse(name): reason for name, reason in sorted(behind.items())},
            )

    def missing_reason(self, table: TableName, number: int | None = None) -> str:
        with self._read() as connection:
            return missing_reason(connection, str(table), number)

    def published_versions(self, number: int) -> dict[TableName, Version]:
        with self._read() as connection:
            row = checkpoint_row(connection, number)
            require_readable(connection, row)
            return as_versions(cut_at(connection, row.number, done_only=True).versions)

    def newest_versions(self) -> dict[TableName, Version]:
        with self._read() as connection:
            return as_versions(newest_versions(connection, None))

    def knows(self, table: TableName) -> bool:
        with self._read() as connection:
            return bool(requested_tables(connection, {str(table)}))

    def publication_blockers(
        self, job: str, sources_as_of_ms: int | None = None
    ) -> tuple[PublicationBlocker, ...]:
        with self._read() as connection:
            done = select(func.max(_C.number)).join(t.checkpoint_jobs, _P.checkpoint == _C.number)
            done = done.where(_P.job == job, _P.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
            number = connection.execute(done).scalar()
            if number is None:
                return ()
            now = self._clock()
            jobs = connection.execute(select(_J.name, _J.state, _J.lease_until_ms))
            alive = {row.name for row in jobs if is_alive(row.state, row.lease_until_ms, now)}
            blockers = list(unfinished_parts(connection, job, number, alive))
            if not blockers and sources_as_of_ms is not None:
                blockers += unobserved_sources(connection, job, number, alive, sources_as_of_ms)
            return tuple(sorted(blockers, key=lambda blocker: blocker.job))
