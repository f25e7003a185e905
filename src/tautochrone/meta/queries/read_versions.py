"""Resolving a read: which checkpoint, which versions, and the pin, all in one transaction.

A strong read takes the newest checkpoint at which every requested table is complete, and all versions from
that one. It must never know who reads or how.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, func, or_, select

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS, VISIBLE_STATES
from tautochrone.meta.queries.invariant_checks import visibility_limits
from tautochrone.meta.queries.topology import EXTERNAL, read_topology
from tautochrone.meta.queries.version_intervals import cut_at
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import JobState, Part

__all__ = [
    "incomplete_error",
    "missing_reason",
    "missing_reasons",
    "needed_tables",
    "newest_readable",
    "newest_versions",
    "requested_tables",
    "strong_versions",
]


_C, _V, _D = t.checkpoints.c, t.versions.c, t.datasets.c
_REVOKED = CheckpointState.REVOKED.value

_NEWEST_VISIBLE = select(_C.number).where(_C.state.in_(VISIBLE_STATES)).order_by(_C.number.desc()).limit(1)
_KNOWN = select(_D.name).where(_D.name.in_(bindparam("names", expanding=True)), _D.kind.in_(VERSIONED_KINDS))


def newest_readable(connection: Connection, tables: set[str], needed: set[str]) -> int | None:
    """The checkpoint that a strong read of the tables would take now; None when there is none.

    Args:
        needed: the tables, and all that were ever built and share a root or an invariant with one of them.
    """
    try:
        return strong_versions(connection, tables, tables, needed, 0, lock=False, explain=False)[0]
    except CheckpointUnavailableError:
        return None


def requested_tables(connection: Connection, requested: set[str] | None) -> set[str]:
    """The requested tables that the store knows, or all datasets."""
    if requested is None:
        alive = select(_D.name).where(_D.kind.in_(VERSIONED_KINDS), _D.retired.is_(False))
        return set(connection.execute(alive).scalars())
    known = set(connection.execute(_KNOWN, {"names": list(requested)}).scalars())
    return known | _ever_built(connection, requested - known)


def missing_reasons(connection: Connection, number: int, tables: set[str]) -> dict[str, str]:
    """Why each of the tables has no version at a checkpoint. It takes some queries for each table."""
    return {name: missing_reason(connection, name, number) for name in tables}


def strong_versions(
    connection: Connection,
    requested: set[str] | None,
    requested_names: set[str],
    needed: set[str],
    at_least: int,
    *,
    lock: bool,
    explain: bool = True,
) -> tuple[int, Mapping[str, str], dict[str, str]]:
    """The checkpoint of a strong read, its versions, and which tables are behind, each with its reason.

    Args:
        explain: otherwise no reason is looked for, which takes some queries for each table.
    """
    number: int | None = None
    behind: dict[str, str] | None = None
    while True:
        query = _NEWEST_VISIBLE if number is None else _NEWEST_VISIBLE.where(_C.number <= number)
        candidate = connection.execute(query.with_for_update() if lock else query).scalar()
        if candidate is None:
            hidden = needed - (requested or set()) - _tables_in_visible_checkpoints(connection, needed)
            if not hidden:
                raise _no_checkpoint_error(behind)
            # No visible checkpoint shows these tables, so they cannot be read and hold nothing back.
            needed, number = needed - hidden, None
            continue
        cut = cut_at(connection, candidate, only=None if requested is None else needed, done_only=True)
        incomplete = needed - cut.versions.keys()
        # The reasons are those of the newest checkpoint, and read only once.
        if behind is None:
            behind = missing_reasons(connection, candidate, incomplete) if explain else {}
        # Skip checkpoints of which no job did its part.
        if not incomplete and Part.DONE in cut.parts.values():
            if candidate < at_least:
                _require_not_revoked(connection, at_least, candidate)
                raise _behind_session_error(candidate, at_least, behind)
            shown = (
                cut.versions
                if requested is None
                else {n: v for n, v in cut.versions.items() if n in requested}
            )
            if explain:
                behind |= missing_reasons(connection, candidate, requested_names - cut.versions.keys())
            return candidate, shown, behind
        number = _last_complete_checkpoint(connection, incomplete, candidate) if incomplete else candidate - 1


def needed_tables(
    connection: Connection, requested: set[str] | None, *, only_named: bool
) -> tuple[set[str], set[str]]:
    """The tables of a strong read (see `requested_tables`), and the datasets that must be complete for it."""
    requested_names = requested_tables(connection, requested)
    if requested is None:
        return requested_names, _ever_built(connection, requested_names)
    if only_named:
        return requested_names, requested_names
    # A requested table must be complete even if it was never built; a related one only if it was.
    relatives = read_topology(connection).related(requested_names) - requested_names
    return requested_names, requested_names | _ever_built(connection, relatives)


def _ever_built(connection: Connection, names: set[str]) -> set[str]:
    """The tables of which a version was ever recorded."""
    if not names:
        return set()
    seen = select(_V.table_name).where(_V.table_name.in_(names)).distinct()
    return set(connection.execute(seen).scalars())


def _tables_in_visible_checkpoints(connection: Connection, names: set[str]) -> set[str]:
    """The tables that a visible checkpoint shows."""
    p = t.checkpoint_jobs.c
    query = (
        select(_V.table_name)
        .join(t.checkpoint_jobs, (p.job == _V.job) & (p.checkpoint >= _V.from_checkpoint))
        .join(t.checkpoints, _C.number == p.checkpoint)
        .where(_V.table_name.in_(names), p.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
        .where(or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= p.checkpoint))
        .distinct()
    )
    return set(connection.execute(query).scalars())


def _require_not_revoked(connection: Connection, read: int, newest: int) -> None:
    """Tell a session that it read a revoked checkpoint, rather than that some table is late."""
    if connection.execute(select(_C.state).where(_C.number == read)).scalar() == _REVOKED:
        raise CheckpointUnavailableError(
            "CHECKPOINT_REVOKED",
            f"Checkpoint {read}, which this session has read, was revoked; the newest now is {newest}",
            hint="what replaces it is published by the next run; until then open a new session to go back",
            retryable=True,
        )


def _last_complete_checkpoint(connection: Connection, tables: set[str], below: int) -> int:
    """An upper bound of the checkpoints below at which all `tables` are complete.

    This saves trying every number: a table that is missing at `below` is also missing back to the end of its
    previous interval, and back to the last checkpoint of which its job did its part.
    """
    p = t.checkpoint_jobs.c
    earlier = select(_V.table_name, _V.job, _V.to_checkpoint).where(
        _V.table_name.in_(tables), _V.from_checkpoint < below
    )
    ends: dict[str, int] = dict.fromkeys(tables, 0)
    jobs: dict[str, set[str]] = {}
    for row in connection.execute(earlier):
        end = below - 1 if row.to_checkpoint is None else row.to_checkpoint
        ends[row.table_name] = max(ends[row.table_name], end)
        if row.job != EXTERNAL:
            jobs.setdefault(row.table_name, set()).add(row.job)
    did = select(p.job, func.max(p.checkpoint).label("last")).where(
        p.job.in_(set[str]().union(*jobs.values())), p.state == Part.DONE.value, p.checkpoint < below
    )
    last: dict[str, int] = {row.job: row.last for row in connection.execute(did.group_by(p.job))}
    shown = [min(ends[name], max(last.get(job, 0) for job in some)) for name, some in jobs.items()]
    return min([below - 1, *shown, *(ends[name] for name in tables - jobs.keys())])


def newest_versions(connection: Connection, requested: set[str] | None) -> dict[str, str]:
    """The newest version of each table: the reported one, else the one recorded last. Tables under an
    invariant show no version newer than the last one that was checked."""
    versions: dict[str, str] = {}
    bounds = visibility_limits(connection)
    inside = (_C.number >= _V.from_checkpoint) & (_C.number <= _V.to_checkpoint)
    not_shown = (_REVOKED, CheckpointState.ABORTED.value)
    shown = select(_C.number).where(inside, _C.state.not_in(not_shown)).correlate(t.versions).exists()
    taken_back = select(_C.number).where(inside, _C.state == _REVOKED).correlate(t.versions).exists()
    # The table no longer has a version that only revoked checkpoints show.
    valid = _V.to_checkpoint.is_(None) | shown | ~taken_back
    for bound in {*bounds.values()}:
        names = [name for name, limit in bounds.items() if limit == bound]
        valid &= _V.table_name.not_in(names) | (_V.from_checkpoint <= bound)
    newest = select(func.max(_V.from_checkpoint)).where(valid).group_by(_V.job, _V.table_name)
    query = select(_V.table_name, _V.version).where(_V.from_checkpoint.in_(newest), valid)
    if requested is not None:
        query = query.where(_V.table_name.in_(requested))
    for row in connection.execute(query.order_by(_V.from_checkpoint)):
        versions[row.table_name] = row.version
    for row in connection.execute(select(t.reports.c.table_name, t.reports.c.version)):
        if row.table_name not in bounds and (requested is None or row.table_name in requested):
            versions[row.table_name] = row.version
    return versions


def missing_reason(connection: Connection, name: str, number: int | None) -> str:
    of_table = _V.table_name == name
    if connection.execute(select(_V.id).where(of_table).limit(1)).first() is None:
        return "never built" + _newest_failure(connection, name, number)
    if number is None:
        return "no version yet"
    waiting = _job_reason(connection, name, number)
    if waiting is not None:
        return waiting
    return f"not complete at checkpoint {number}" + _newest_failure(connection, name, number)


def _job_reason(connection: Connection, name: str, number: int) -> str | None:
    """Why the table's job has not done its part, when that is the reason."""
    p, d, j = t.checkpoint_jobs.c, t.datasets.c, t.jobs.c
    query = (
        select(p.job, p.state, p.checkpoint, j.state.label("job_state"))
        .join(t.datasets, d.job == p.job)
        .join(t.jobs, j.name == p.job)
        .where(d.name == name, p.checkpoint <= number, p.state != Part.DONE.value)
        .order_by(p.checkpoint.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None or (row.state == Part.SKIPPED and row.checkpoint != number):
        return None
    if row.state == Part.SKIPPED:
        return f"its job {row.job} skipped checkpoint {number}"
    running = "is at work on" if row.job_state == JobState.RUNNING else "isn't running and has still to do"
    return f"its job {row.job} {running} checkpoint {row.checkpoint}"


def _newest_failure(connection: Connection, name: str, number: int | None) -> str:
    f = t.failures.c
    query = select(f.error).where(f.dataset == name).order_by(f.checkpoint.desc()).limit(1)
    if number is not None:
        query = query.where(f.checkpoint <= number)
    error = connection.execute(query).scalar()
    return f": {error}" if error else ""


def _listed(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in sorted(missing.items()))


def incomplete_error(number: int, missing: Mapping[str, str]) -> CheckpointUnavailableError:
    return CheckpointUnavailableError(
        "CHECKPOINT_NOT_FOUND",
        f"Checkpoint {number} has no version of every table asked for ({_listed(missing)})",
        hint="Ask without a checkpoint to get the newest one that has them all.",
    )


def _no_checkpoint_error(behind: Mapping[str, str] | None) -> CheckpointUnavailableError:
    which = "of every table asked for" if behind else "yet"
    return CheckpointUnavailableError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no published checkpoint {which}" + (f" ({_listed(behind)})" if behind else ""),
        hint="`taut run` publishes one; `taut status` shows what is missing.",
    )


def _behind_session_error(
    newest: int, at_least: int, behind: Mapping[str, str]
) -> CheckpointUnavailableError:
    return CheckpointUnavailableError(
        "CHECKPOINT_BEHIND_SESSION",
        f"This session already read checkpoint {at_least}, but these tables are complete only up "
        f"to {newest} ({_listed(behind)})",
        hint=f"Open a new session, or ask for checkpoint {newest} explicitly.",
    )
