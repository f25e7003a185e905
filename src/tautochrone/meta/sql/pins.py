"""`store.pins` in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import uuid4

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from tautochrone.errors import AccessError, CheckpointUnavailableError, QueryError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository, parse
from tautochrone.meta.queries.needed_versions import has_newer, is_live
from tautochrone.meta.queries.read_models import checkpoint_row, require_readable
from tautochrone.model.checkpoint import CheckpointState, Pin
from tautochrone.model.inputs import is_clock
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["MAX_PINS_PER_PRINCIPAL", "SqlPins", "add_pin"]


MAX_PINS_PER_PRINCIPAL = 1_000
"""How many live pins the requests of one principal may have."""
_C, _P, _V = t.checkpoints.c, t.pins.c, t.versions.c


class SqlPins(Repository):
    """`protocols.pins.Pins` in SQL."""

    def renew(
        self, pin: str, lease_ms: int, *, if_within_ms: int | None = None, principal: str | None = None
    ) -> None:
        now = self._clock()
        if if_within_ms is not None:
            with self._read() as connection:
                _require_principal(connection, pin, principal)
                query = select(_P.expires_at_ms).where(_P.id == pin)
                left = connection.execute(query).scalar()
            if left is not None and left - now > if_within_ms:
                return
        with self._write(durable=False) as connection:
            _require_principal(connection, pin, principal)
            revoked = select(_C.number).where(_C.state == CheckpointState.REVOKED.value)
            pinned_revoked = select(_P.checkpoint).where(_P.id == pin, _P.checkpoint.in_(revoked))
            number = connection.execute(pinned_revoked).scalar()
            if number is not None:
                require_readable(connection, checkpoint_row(connection, number))
            renewed = connection.execute(
                update(t.pins)
                .where(_P.id == pin, _P.expires_at_ms > now)
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
            connection.execute(delete(t.pins).where(_P.id == pin))

    def live(self) -> tuple[Pin, ...]:
        query = select(t.pins).where(_P.expires_at_ms > self._clock()).order_by(_P.expires_at_ms, _P.id)
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
        query = select(_P.checkpoint).where(_P.expires_at_ms > now, _P.checkpoint.is_not(None))
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
            query = select(_P.versions).where(_P.expires_at_ms > self._clock())
            for versions in connection.execute(query).scalars():
                for name, version in versions.items():
                    versions_by_table.setdefault(name, set()).add(version)
        return {
            parse(name): frozenset(Version(version) for version in versions)
            for name, versions in versions_by_table.items()
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
) -> str:
    """Write a pin in the caller's transaction and return its id.

    Raises:
        QueryError: `TOO_MANY_PINS`, the principal has `MAX_PINS_PER_PRINCIPAL` that are alive.
    """
    if principal is not None:
        live_pins = select(func.count()).where(_P.holder == principal, _P.expires_at_ms > now_ms)
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
        )
    )
    return pin


def _require_principal(connection: Connection, pin: str, principal: str | None) -> None:
    """Refuse a principal for which the pin was not made. None stands for an operator or a process with the
    database."""
    if principal is None:
        return
    row = connection.execute(select(_P.holder).where(_P.id == pin)).first()
    if row is not None and row.holder != principal:
        raise AccessError(
            "PIN_NOT_YOURS",
            "Somebody else holds this pin",
            hint="its holder and the role operate may renew and release it",
        )
