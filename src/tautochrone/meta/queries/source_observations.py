"""When sources were looked at, and whether a checkpoint shows all that was written before a token.

A *look* at a table is a time by the store's clock: whatever its source held then is in the version that is
named with it. A job tells its looks after it has reported the versions, so a look may be too early for a
version, never too late. A checkpoint keeps those of its cut; they grow as long as its job finds no news.
It must never know how a source is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from sqlalchemy import Connection, func, select, update

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES
from tautochrone.meta.queries.topology import Topology, read_topology
from tautochrone.model.clock import is_clock
from tautochrone.model.jobs import JobState, Part
from tautochrone.model.names import TableName

__all__ = [
    "observations_of_cut",
    "record_observations",
    "require_observed",
    "reset_observations",
    "unobserved_roots",
]

_J, _C, _P = t.jobs.c, t.checkpoints.c, t.checkpoint_jobs.c


def reset_observations(connection: Connection, job: str, ingests: Iterable[str] | None) -> None:
    """A new owner: its tables may have been taken back or emptied, so nothing is known of them.

    Args:
        ingests: the job's tables that have a source outside; None: those that are known.
    """
    names = _observations_of_job(connection, job) if ingests is None else ingests
    connection.execute(update(t.jobs).where(_J.name == job).values(looks=dict.fromkeys(names, 0)))


def record_observations(
    connection: Connection, job: str, observations: Mapping[str, int], number: int | None
) -> None:
    """The job looked at its sources; checkpoint `number` shows all that it found."""
    connection.execute(
        update(t.jobs)
        .where(_J.name == job)
        .values(looks=_latest_of(_observations_of_job(connection, job), observations))
    )
    if number is not None:
        is_checkpoint = _C.number == number
        known = connection.execute(select(_C.looks).where(is_checkpoint).with_for_update()).scalar() or {}
        connection.execute(
            update(t.checkpoints).where(is_checkpoint).values(looks=_latest_of(known, observations))
        )


def observations_of_cut(
    connection: Connection,
    observations: Mapping[str, int],
    own: Collection[str],
    cut: Collection[str],
    topology: Topology,
) -> dict[str, int]:
    """The looks that belong to the versions of a cut.

    Args:
        looks: those of whoever takes the cut, at what it brings itself (`own`).
        cut: all tables of the cut. Of the others the versions are what was reported, so what was told of
            them counts: by the job that writes a table, by anybody for a table from outside.
    """
    kept = {name: at_ms for name, at_ms in observations.items() if name in own}
    for row in connection.execute(select(_J.name, _J.looks)):
        observed = {
            name: at_ms
            for name, at_ms in (row.looks or {}).items()
            if name in cut and name not in own and topology.owner.get(name, row.name) == row.name
        }
        kept = _latest_of(kept, observed)
    return kept


def require_observed(connection: Connection, number: int, tables: Iterable[str], after_ms: int) -> None:
    """Every root of the tables was looked at after `after_ms`, for this checkpoint.

    What a job shows here it showed first at the last checkpoint of which it did its part, and there its
    looks are: in between, only jobs that have nothing to do with it had news.

    Raises:
        CheckpointUnavailableError: `READ_NOT_YET` (retryable), with the look that is missing.
    """
    for name, observers in unobserved_roots(connection, number, tables, after_ms):
        states = select(_J.name).where(_J.name.in_(observers), _J.state == JobState.RUNNING.value)
        running = sorted(connection.execute(states).scalars())
        writer = " and ".join(f"job {job}" for job in running or observers) or "no job"
        progress = (
            "has not looked at it since" if running else "isn't running" if observers else "looks at it"
        )
        raise CheckpointUnavailableError(
            "READ_NOT_YET",
            f"Checkpoint {number} may lack what was written to {name} before the token: {writer} {progress}",
            hint="wait longer, or see with `taut jobs` whether the job runs and with `taut status` how it is",
            retryable=True,
        )


def unobserved_roots(
    connection: Connection, number: int, tables: Iterable[str], after_ms: int
) -> Iterator[tuple[str, list[str]]]:
    """The roots of the tables that were not looked at after `after_ms` for this checkpoint, by name, each
    with the jobs that look at it."""
    topology = read_topology(connection)
    parts = _last_parts(connection, number)
    observed = select(_C.number, _C.looks).where(_C.number.in_({*parts.values()}))
    observations = {row.number: row.looks or {} for row in connection.execute(observed)}
    ingesting = {name for row in connection.execute(select(_J.looks)) for name in row.looks or ()}
    for name in sorted(_with_upstream(topology, tables)):
        is_source = name in topology.roots or name in ingesting or name not in topology.owner
        observers = [topology.owner[name]] if name in topology.owner else sorted(_readers(topology, name))
        part = max((parts[job] for job in observers if job in parts), default=number)
        if is_source and observations.get(part, {}).get(name, 0) <= after_ms:
            yield name, observers


def _last_parts(connection: Connection, number: int) -> dict[str, int]:
    """By job the last checkpoint up to `number` of which it did its part."""
    done = select(_P.job, func.max(_P.checkpoint).label("last")).join(
        t.checkpoints, _C.number == _P.checkpoint
    )
    done = done.where(_P.checkpoint <= number, _P.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
    return {row.job: row.last for row in connection.execute(done.group_by(_P.job))}


def _observations_of_job(connection: Connection, job: str) -> dict[str, int]:
    return connection.execute(select(_J.looks).where(_J.name == job)).scalar() or {}


def _latest_of(known: Mapping[str, int], observed: Mapping[str, int]) -> dict[str, int]:
    return {name: max(known.get(name, 0), observed.get(name, 0)) for name in {**known, **observed}}


def _with_upstream(topology: Topology, tables: Iterable[str]) -> set[str]:
    """The tables and all that is upstream of them, without clocks."""
    seen: set[str] = set()
    queue = list(tables)
    while queue:
        name = queue.pop()
        if name not in seen and not is_clock(TableName.parse(name)):
            seen.add(name)
            queue.extend(topology.inputs.get(name, ()))
    return seen


def _readers(topology: Topology, name: str) -> set[str]:
    return {
        topology.owner[dataset]
        for dataset, inputs in topology.inputs.items()
        if name in inputs and dataset in topology.owner
    }
