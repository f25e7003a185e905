"""Pins (leases of readers) and expiry, which must never take what a live pin holds.

Both sides lock the checkpoint's row: a reader that pins and a maintenance that expires at the same
moment come one after the other, and the second sees the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from tautochrone.errors import AccessError, CheckpointUnavailableError, MetaError, QueryError
from tautochrone.meta import tables as t
from tautochrone.meta.read_models import checkpoint_row, require_readable, set_state
from tautochrone.meta.repository import STANDING, Repository, parse
from tautochrone.model.checkpoint import CheckpointState, Pin
from tautochrone.model.clock import is_clock
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["MOST_PINS", "Pins", "add_pin"]

MOST_PINS = 1_000
"""Live pins of one holder."""

_C, _P, _V = t.checkpoints.c, t.pins.c, t.versions.c


def add_pin(
    connection: Connection,
    checkpoint: int | None,
    versions: Mapping[str, str],
    owner: str,
    expires_at_ms: int,
    *,
    holder: str | None,
    now_ms: int,
) -> str:
    """Write a pin in the caller's transaction and return its id.

    Raises:
        QueryError: `TOO_MANY_PINS`, the holder has `MOST_PINS` that are alive.
    """
    if holder is not None:
        mine = select(func.count()).where(_P.holder == holder, _P.expires_at_ms > now_ms)
        if (connection.execute(mine).scalar() or 0) >= MOST_PINS:
            raise QueryError(
                "TOO_MANY_PINS",
                f"Whoever asks holds {MOST_PINS} pins already",
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
            holder=holder,
        )
    )
    return pin


def _require_holder(connection: Connection, pin: str, holder: str | None) -> None:
    """Refuse who is not the pin's holder. None: an operator, or a process that has the database."""
    if holder is None:
        return
    row = connection.execute(select(_P.holder).where(_P.id == pin)).first()
    if row is not None and row.holder != holder:
        raise AccessError(
            "PIN_NOT_YOURS",
            "Somebody else holds this pin",
            hint="its holder and the role operate may renew and release it",
        )


class Pins(Repository):
    """Renewing, releasing and respecting pins."""

    def renew_pin(
        self, pin: str, lease_ms: int, *, if_within_ms: int | None = None, holder: str | None = None
    ) -> None:
        """Extend a lease to `lease_ms` from now.

        With `if_within_ms` nothing is written while more than that is left of it. With `holder` the pin
        must be that holder's.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
            CheckpointUnavailableError: `PIN_EXPIRED`; what it held may be gone, resolve again.
                `CHECKPOINT_REVOKED`; what it held is there until the lease ends, and wrong.
        """
        now = self._clock()
        if if_within_ms is not None:
            with self._read() as connection:
                _require_holder(connection, pin, holder)
                query = select(_P.expires_at_ms).where(_P.id == pin)
                left = connection.execute(query).scalar()
            if left is not None and left - now > if_within_ms:
                return
        with self._write(durable=False) as connection:
            _require_holder(connection, pin, holder)
            revoked = select(_C.number).where(_C.state == CheckpointState.REVOKED.value)
            held = select(_P.checkpoint).where(_P.id == pin, _P.checkpoint.in_(revoked))
            number = connection.execute(held).scalar()
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

    def release_pin(self, pin: str, *, holder: str | None = None) -> None:
        """Let go. Unknown and expired pins are fine. With `holder` the pin must be that holder's.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
        """
        with self._write(durable=False) as connection:
            _require_holder(connection, pin, holder)
            connection.execute(delete(t.pins).where(_P.id == pin))

    def pins(self) -> tuple[Pin, ...]:
        """The live pins, those that end first coming first."""
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
        """Checkpoints that live pins hold."""
        now = self._clock() if now_ms is None else now_ms
        query = select(_P.checkpoint).where(_P.expires_at_ms > now, _P.checkpoint.is_not(None))
        with self._read() as connection:
            return frozenset(CheckpointNumber(n) for n in connection.execute(query).scalars() if n)

    def expire(self, number: int) -> None:
        """Mark a checkpoint expired; from here on nobody can resolve it. Repeatable.

        Snapshots are deleted only afterwards, by what `retained_versions` leaves out.

        Raises:
            MetaError: `CHECKPOINT_PINNED` by a reader, or `CHECKPOINT_NEEDED`: it is the newest
                one that shows some dataset.
        """
        with self._write() as connection:
            row = checkpoint_row(connection, number, lock=True)
            if row.state == CheckpointState.EXPIRED:
                return
            if row.state == CheckpointState.OPEN:
                raise MetaError("CHECKPOINT_NEEDED", f"Checkpoint {number} is still being built")
            if row.state == CheckpointState.ABORTED:
                return
            now = self._clock()
            connection.execute(delete(t.pins).where(_P.expires_at_ms <= now))
            holder = connection.execute(select(_P.owner).where(_P.checkpoint == number).limit(1)).scalar()
            if holder is not None:
                raise MetaError(
                    "CHECKPOINT_PINNED",
                    f"Checkpoint {number} is being read by {holder}",
                    retryable=True,
                )
            if row.state in STANDING and _is_needed(connection, number):
                raise MetaError(
                    "CHECKPOINT_NEEDED",
                    f"Checkpoint {number} is the newest that shows one of the datasets",
                )
            set_state(connection, number, CheckpointState.EXPIRED)
            _prune(connection, number)

    def retained_versions(
        self, without: Collection[CheckpointNumber] = ()
    ) -> dict[TableName, frozenset[Version]]:
        """Versions that must stay readable: of live checkpoints, the newest of each, the pinned.

        What isn't in it (and is older than the newest version) may be deleted from the lake. `without`
        asks what would be left if these checkpoints were expired.
        """
        with self._read() as connection:
            found: dict[str, set[str]] = {}
            for row in connection.execute(
                select(_V.table_name, _V.version).where(or_(_live(without), ~_has_newer()))
            ):
                found.setdefault(row.table_name, set()).add(row.version)
            for row in connection.execute(select(t.reports.c.table_name, t.reports.c.version)):
                found.setdefault(row.table_name, set()).add(row.version)
            query = select(_P.versions).where(_P.expires_at_ms > self._clock())
            for versions in connection.execute(query).scalars():
                for name, version in versions.items():
                    found.setdefault(name, set()).add(version)
        return {
            parse(name): frozenset(Version(version) for version in versions)
            for name, versions in found.items()
            if not is_clock(parse(name))
        }


def _live(without: Collection[int] = ()) -> ColumnElement[bool]:
    states = (*STANDING, CheckpointState.REVOKED.value)
    inside = (_C.number >= _V.from_checkpoint) & (_C.number <= _V.to_checkpoint)
    if without:
        inside &= _C.number.not_in(without)
    held = select(_C.number).where(inside, _C.state.in_(states)).correlate(t.versions).exists()
    return or_(_V.to_checkpoint.is_(None), held)


def _has_newer() -> ColumnElement[bool]:
    later = t.versions.alias()
    return (
        select(later.c.id)
        .where(
            later.c.job == _V.job,
            later.c.table_name == _V.table_name,
            later.c.from_checkpoint > _V.from_checkpoint,
        )
        .correlate(t.versions)
        .exists()
    )


def _is_needed(connection: Connection, number: int) -> bool:
    """Whether no later checkpoint shows what this one is the last to show, of any job that did its part."""
    p = t.checkpoint_jobs.c
    parts = select(p.job).where(p.checkpoint == number, p.state == Part.DONE.value)
    return any(_is_needed_by(connection, number, job) for job in connection.execute(parts).scalars().all())


def _is_needed_by(connection: Connection, number: int, job: str) -> bool:
    p = t.checkpoint_jobs.c
    later = (
        select(func.min(p.checkpoint))
        .join(t.checkpoints, _C.number == p.checkpoint)
        .where(p.job == job, p.state == Part.DONE.value, p.checkpoint > number, _C.state.in_(STANDING))
    )
    following = connection.execute(later).scalar()
    if following is None:
        return True
    d = t.datasets.c
    alive = select(d.name).where(d.job == job, d.retired.is_(False))
    return (
        connection.execute(
            select(_V.id)
            .where(_V.job == job, _V.table_name.in_(alive), _V.from_checkpoint <= number)
            .where(_V.to_checkpoint >= number, _V.to_checkpoint < following, ~_has_newer())
            .limit(1)
        ).first()
        is not None
    )


def _prune(connection: Connection, number: int) -> None:
    """Drop intervals around the expired checkpoint that serve no other and aren't the newest."""
    around = (_V.from_checkpoint <= number) & (_V.to_checkpoint >= number)
    ids = select(_V.id).where(around, ~_live(), _has_newer())
    doomed = connection.execute(ids).scalars().all()
    if doomed:
        connection.execute(delete(t.versions).where(_V.id.in_(doomed)))
