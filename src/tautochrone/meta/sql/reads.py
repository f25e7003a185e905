"""`store.reads` and `store.pins` in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import uuid4

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from tautochrone.errors import AccessError, CheckpointUnavailableError, QueryError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES, Repository, parse
from tautochrone.meta.protocols.reads import DEFAULT_LEASE_MS
from tautochrone.meta.queries.checkpoints import (
    as_versions,
    checkpoint_row,
    is_alive,
    require_readable,
    unfinished_parts,
    unobserved_sources,
)
from tautochrone.meta.queries.invariant_checks import held_back
from tautochrone.meta.queries.read_versions import (
    incomplete_error,
    missing_reason,
    missing_reasons,
    needed_tables,
    newest_versions,
    requested_tables,
    strong_versions,
)
from tautochrone.meta.queries.source_observations import require_observed
from tautochrone.meta.queries.version_intervals import cut_at, has_newer, is_live
from tautochrone.meta.sql.builds import is_created_by_build
from tautochrone.model.checkpoint import CheckpointState, Consistency, Pin, Resolution
from tautochrone.model.jobs import Part, PublicationBlocker
from tautochrone.model.names import CheckpointNumber, TableName, Version, is_clock

__all__ = ["MAX_PINS_PER_PRINCIPAL", "SqlPins", "SqlReads", "add_pin"]


MAX_PINS_PER_PRINCIPAL = 1_000
"""How many live pins the requests of one principal may have."""
_C, _PINS, _V = t.checkpoints.c, t.pins.c, t.versions.c


class SqlPins(Repository):
    """`protocols.reads.Pins` in SQL."""

    def renew(
        self, pin: str, lease_ms: int, *, if_within_ms: int | None = None, principal: str | None = None
    ) -> None:
        now = self._clock()
        if if_within_ms is not None:
            with self._read() as connection:
                _require_principal(connection, pin, principal)
                query = select(_PINS.expires_at_ms).where(_PINS.id == pin)
                left = connection.execute(query).scalar()
            if left is not None and left - now > if_within_ms:
                return
        with self._write(durable=False) as connection:
            _require_principal(connection, pin, principal)
            revoked = select(_C.number).where(_C.state == CheckpointState.REVOKED.value)
            pinned_revoked = select(_PINS.checkpoint).where(_PINS.id == pin, _PINS.checkpoint.in_(revoked))
            number = connection.execute(pinned_revoked).scalar()
            if number is not None:
                require_readable(connection, checkpoint_row(connection, number))
            renewed = connection.execute(
                update(t.pins)
                .where(_PINS.id == pin, _PINS.expires_at_ms > now)
                .values(expires_at_ms=now + lease_ms)
            ).rowcount
            if not renewed:
                raise CheckpointUnavailableError(
                    "PIN_EXPIRED",
                    "The lease on these versions ran out or was released",
                    hint="Ask for the versions again.",
                )

    def release(self, pin: str, *, principal: str | None = None) -> None:
        with self._write(durable=False) as connection:
            _require_principal(connection, pin, principal)
            connection.execute(delete(t.pins).where(_PINS.id == pin))

    def live(self) -> tuple[Pin, ...]:
        query = (
            select(t.pins).where(_PINS.expires_at_ms > self._clock()).order_by(_PINS.expires_at_ms, _PINS.id)
        )
        with self._read() as connection:
            return tuple(
                Pin(
                    id=row.id,
                    checkpoint=None if row.checkpoint is None else CheckpointNumber(row.checkpoint),
                    owner=row.owner,
                    expires_at_ms=row.expires_at_ms,
                    versions={parse(name): Version(version) for name, version in row.versions.items()},
                )
                for row in connection.execute(query)
            )

    def pinned_checkpoints(self, now_ms: int | None = None) -> frozenset[CheckpointNumber]:
        now = self._clock() if now_ms is None else now_ms
        query = select(_PINS.checkpoint).where(_PINS.expires_at_ms > now, _PINS.checkpoint.is_not(None))
        with self._read() as connection:
            return frozenset(CheckpointNumber(n) for n in connection.execute(query).scalars() if n)

    def retained_versions(
        self, without: Collection[CheckpointNumber] = ()
    ) -> dict[TableName, frozenset[Version]]:
        with self._read() as connection:
            versions_by_table: dict[str, set[str]] = {}
            for row in connection.execute(
                select(_V.table_name, _V.version).where(or_(is_live(without), ~has_newer()))
            ):
                versions_by_table.setdefault(row.table_name, set()).add(row.version)
            for row in connection.execute(select(t.reports.c.table_name, t.reports.c.version)):
                versions_by_table.setdefault(row.table_name, set()).add(row.version)
            query = select(_PINS.versions).where(_PINS.expires_at_ms > self._clock())
            for versions in connection.execute(query).scalars():
                for name, version in versions.items():
                    versions_by_table.setdefault(name, set()).add(version)
        return {
            parse(name): frozenset(Version(version) for version in versions)
            for name, versions in versions_by_table.items()
            if not is_clock(parse(name))
        }

    def followed_versions(self) -> dict[TableName, frozenset[Version]]:
        query = select(_PINS.versions).where(_PINS.expires_at_ms > self._clock(), _PINS.followed)
        followed: dict[str, set[str]] = {}
        with self._read() as connection:
            for versions in connection.execute(query).scalars():
                for name, version in versions.items():
                    followed.setdefault(name, set()).add(version)
        return {
            parse(name): frozenset(map(Version, versions))
            for name, versions in followed.items()
            if not is_clock(parse(name))
        }


def add_pin(
    connection: Connection,
    checkpoint: int | None,
    versions: Mapping[str, str],
    owner: str,
    expires_at_ms: int,
    *,
    principal: str | None,
    now_ms: int,
    followed: bool,
) -> str:
    """Write a pin in the caller's transaction and return its id.

    Raises:
        QueryError: `TOO_MANY_PINS`, the principal has `MAX_PINS_PER_PRINCIPAL` that are alive.
    """
    if principal is not None:
        live_pins = select(func.count()).where(_PINS.holder == principal, _PINS.expires_at_ms > now_ms)
        if (connection.execute(live_pins).scalar() or 0) >= MAX_PINS_PER_PRINCIPAL:
            raise QueryError(
                "TOO_MANY_PINS",
                f"Whoever asks holds {MAX_PINS_PER_PRINCIPAL} pins already",
                hint="release those that nobody reads any more, or wait until their leases end",
            )
    pin = str(uuid4())
    connection.execute(
        insert(t.pins).values(
            id=pin,
            checkpoint=checkpoint,
            owner=owner,
            expires_at_ms=expires_at_ms,
            versions=dict(versions),
            holder=principal,
            followed=followed,
        )
    )
    return pin


def _require_principal(connection: Connection, pin: str, principal: str | None) -> None:
    """Refuse a principal for which the pin was not made. None stands for an operator or a process with the
    database."""
    if principal is None:
        return
    row = connection.execute(select(_PINS.holder).where(_PINS.id == pin)).first()
    if row is not None and row.holder != principal:
        raise AccessError(
            "PIN_NOT_YOURS",
            "Somebody else holds this pin",
            hint="its holder and the role operate may renew and release it",
        )


_J, _P = t.jobs.c, t.checkpoint_jobs.c


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
        followed: bool = False,
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
            is_pinned = lease_ms > 0
            chosen: int | None = None
            behind: dict[str, str] = {}
            versions: Mapping[str, str]
            if checkpoint is not None:
                chosen, versions, behind = _versions_at(connection, requested, checkpoint, lock=is_pinned)
            elif consistency is Consistency.STRONG:
                requested_names, needed = needed_tables(connection, requested, only_named=only_named)
                # The checkpoint must not expire between its choice and the pin.
                chosen, versions, behind = strong_versions(
                    connection, requested, requested_names, needed, at_least, lock=is_pinned
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
                    connection,
                    chosen,
                    versions,
                    owner,
                    expires_at_ms,
                    principal=principal,
                    now_ms=now,
                    followed=followed,
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
            is_of_job = requested_tables(connection, {str(table)})
            return bool(is_of_job) or is_created_by_build(connection, table)

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


def _versions_at(
    connection: Connection, requested: set[str] | None, checkpoint: int, *, lock: bool
) -> tuple[int, Mapping[str, str], dict[str, str]]:
    """The versions at a checkpoint that the reader names, and why others have none."""
    row = checkpoint_row(connection, checkpoint, lock=lock)
    require_readable(connection, row)
    requested_names = requested_tables(connection, requested)
    only = None if requested is None else requested_names
    cut = cut_at(connection, row.number, only=only, done_only=True)
    behind = missing_reasons(connection, row.number, requested_names - cut.versions.keys())
    if requested is not None and behind:
        raise incomplete_error(row.number, behind)
    return row.number, dict(cut.versions), behind
