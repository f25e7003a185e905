"""Resolving a read: which checkpoint, which versions, and the pin, all in one transaction.

Strong reads take the newest published checkpoint at which every asked table is complete; they never
mix. It must never know who reads or how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, select

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta import tables as t
from tautochrone.meta.base import VERSIONED_KINDS, Repository
from tautochrone.meta.pins import add_pin
from tautochrone.meta.rows import as_versions, checkpoint_row, require_published, row_cut
from tautochrone.model.checkpoint import CheckpointState, Consistency, Resolution
from tautochrone.model.clock import is_clock
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["DEFAULT_LEASE_MS", "Reads"]

DEFAULT_LEASE_MS = 600_000

_C, _V, _D = t.checkpoints.c, t.versions.c, t.datasets.c
_PUBLISHED = CheckpointState.PUBLISHED.value


class Reads(Repository):
    """The readers' side of the store."""

    def resolve(
        self,
        consistency: Consistency = Consistency.STRONG,
        tables: Iterable[TableName] | None = None,
        checkpoint: int | None = None,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        owner: str = "reader",
        at_least: int = 0,
    ) -> Resolution:
        """Choose the versions for one read and pin them for `lease_ms`.

        Args:
            consistency: `STRONG` is one checkpoint, `WEAK` the newest version of each table.
            tables: the tables of the read; None for all. Tables that the store never saw are left
                out of the answer: outsiders' tables are read at their newest version.
            checkpoint: an explicit published one, instead of the newest.
            at_least: strong reads must not be older than this (a session never goes backwards).

        With `tables=None` datasets that failed or were never built don't hold the others back; the
        answer names them in `behind`. A named one does: the answer goes back to where it is complete.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`, `_EXPIRED`, `_REVOKED`,
                `_NOT_PUBLISHED`, or `_BEHIND_SESSION` when only older ones would do.
        """
        with self._write(durable=False) as connection:
            asked = None if tables is None else {str(table) for table in tables}
            behind: dict[str, str] = {}
            chosen: int | None = None
            versions: dict[str, str]
            if checkpoint is not None:
                row = checkpoint_row(connection, checkpoint, lock=True)
                require_published(row)
                versions, missing, _ = _at(connection, row, asked)
                if asked is not None and missing:
                    raise _incomplete(row.number, missing)
                chosen, behind = row.number, missing
            elif consistency is Consistency.STRONG:
                chosen, versions, behind = _strong(connection, asked, at_least)
            else:
                versions = _newest(connection, asked)
            pin = add_pin(connection, chosen, versions, owner, self._clock() + lease_ms)
            return Resolution(
                checkpoint=None if chosen is None else CheckpointNumber(chosen),
                versions={
                    name: version for name, version in as_versions(versions).items() if not is_clock(name)
                },
                pin=pin,
                behind={TableName.parse(name): why for name, why in sorted(behind.items())},
            )

    def why_absent(self, table: TableName, number: int | None = None) -> str:
        """A sentence's second half: why a known dataset has no version (at a checkpoint)."""
        with self._read() as connection:
            return _why(connection, str(table), number)

    def published_versions(self, number: int) -> dict[TableName, Version]:
        """All versions at a published checkpoint, without a pin (the caller holds one).

        Raises:
            CheckpointUnavailableError: see `resolve`.
        """
        with self._read() as connection:
            row = checkpoint_row(connection, number)
            require_published(row)
            return as_versions(row_cut(connection, row).versions)

    def newest_versions(self) -> dict[TableName, Version]:
        """The newest version of every table: a weak read of everything, without a pin."""
        with self._read() as connection:
            return as_versions(_newest(connection, None))

    def knows(self, table: TableName) -> bool:
        """Whether some pipeline of this store writes the table or reads it at its cuts."""
        with self._read() as connection:
            return bool(_wanted(connection, {str(table)}))


def _tables() -> Any:
    return _D.kind.in_(VERSIONED_KINDS)


def _wanted(connection: Connection, asked: set[str] | None) -> set[str]:
    """The tables that must be complete: those asked for that the store knows, or all datasets."""
    if asked is None:
        alive = select(_D.name).where(_tables(), _D.retired.is_(False))
        return set(connection.execute(alive).scalars())
    known = set(connection.execute(select(_D.name).where(_D.name.in_(asked), _tables())).scalars())
    seen = select(_V.table_name).where(_V.table_name.in_(asked)).distinct()
    return known | set(connection.execute(seen).scalars())


def _at(
    connection: Connection, row: Row[Any], asked: set[str] | None
) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
    """Versions at a published checkpoint, why each missing one is missing, the undecided ones."""
    wanted = _wanted(connection, asked)
    cut = row_cut(connection, row, None if asked is None else wanted)
    missing = {
        name: "its own job's checkpoint is still being built"
        if name in cut.blocked
        else _why(connection, name, row.number)
        for name in wanted - cut.versions.keys()
    }
    return dict(cut.versions), missing, cut.blocked


def _strong(
    connection: Connection, asked: set[str] | None, at_least: int
) -> tuple[int, dict[str, str], dict[str, str]]:
    number: int | None = None
    behind: dict[str, str] | None = None
    while True:
        query = select(_C.number).where(_C.state == _PUBLISHED)
        if number is not None:
            query = query.where(_C.number <= number)
        found = connection.execute(query.order_by(_C.number.desc()).limit(1)).scalar()
        if found is None:
            raise _nothing(behind)
        row = checkpoint_row(connection, found, lock=True)
        versions, missing, blocked = _at(connection, row, asked)
        behind = missing if behind is None else behind
        holding = missing.keys() if asked is not None else blocked & missing.keys()
        if not holding:
            if found < at_least:
                raise _backwards(found, at_least, behind)
            return found, versions, behind if asked is not None else missing
        number = _last_complete(connection, set(holding), found)


def _last_complete(connection: Connection, tables: set[str], below: int) -> int:
    """An upper bound of the checkpoints below at which all `tables` are complete.

    Instead of trying every number: a table that is missing here is missing back to the end of its
    last interval before.
    """
    bound = below - 1
    for table in tables:
        mine = (_V.table_name == table) & (_V.from_checkpoint < below)
        ends = connection.execute(select(_V.to_checkpoint).where(mine)).scalars().all()
        bound = min(
            bound, max((below - 1 if end is None else min(end, below - 1) for end in ends), default=0)
        )
    return bound


def _newest(connection: Connection, asked: set[str] | None) -> dict[str, str]:
    """The newest version of each table: what was reported, else what was recorded last."""
    found: dict[str, str] = {}
    newest = select(func.max(_V.from_checkpoint)).group_by(_V.job, _V.table_name)
    query = select(_V.table_name, _V.version).where(_V.from_checkpoint.in_(newest))
    if asked is not None:
        query = query.where(_V.table_name.in_(asked))
    for row in connection.execute(query.order_by(_V.from_checkpoint)):
        found[row.table_name] = row.version
    for row in connection.execute(select(t.reports.c.table_name, t.reports.c.version)):
        if asked is None or row.table_name in asked:
            found[row.table_name] = row.version
    return found


def _why(connection: Connection, name: str, number: int | None) -> str:
    mine = _V.table_name == name
    if connection.execute(select(_V.id).where(mine).limit(1)).first() is None:
        return "never built" + _because(connection, name, number)
    if number is None:
        return "no version yet"
    return f"not complete at checkpoint {number}" + _because(connection, name, number)


def _because(connection: Connection, name: str, number: int | None) -> str:
    f = t.failures.c
    query = select(f.error).where(f.dataset == name).order_by(f.checkpoint.desc()).limit(1)
    if number is not None:
        query = query.where(f.checkpoint <= number)
    error = connection.execute(query).scalar()
    return f": {error}" if error else ""


def _listed(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in sorted(missing.items()))


def _incomplete(number: int, missing: Mapping[str, str]) -> CheckpointUnavailableError:
    return CheckpointUnavailableError(
        "CHECKPOINT_NOT_FOUND",
        f"Checkpoint {number} has no version of every table asked for ({_listed(missing)})",
        hint="Ask without a checkpoint to get the newest one that has them all.",
    )


def _nothing(behind: Mapping[str, str] | None) -> CheckpointUnavailableError:
    what = "of every table asked for" if behind else "yet"
    return CheckpointUnavailableError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no published checkpoint {what}" + (f" ({_listed(behind)})" if behind else ""),
        hint="`taut run` publishes one; `taut status` shows what is missing.",
    )


def _backwards(found: int, at_least: int, behind: Mapping[str, str]) -> CheckpointUnavailableError:
    return CheckpointUnavailableError(
        "CHECKPOINT_BEHIND_SESSION",
        f"This session already read checkpoint {at_least}, but these tables are complete only up "
        f"to {found} ({_listed(behind)})",
        hint=f"Open a new session, or ask for checkpoint {found} explicitly.",
    )
