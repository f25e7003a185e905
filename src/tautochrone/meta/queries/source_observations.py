"""Source times and source observations: aligned cuts, and whether a checkpoint shows what was written.

It must never know how a source is read or observed.

Jobs report the *source times* of their roots, by which the versions of a cut of the whole topology are
chosen.

An *observation* of a table is a time by the store's clock: all that the table's source held at that time is
in the version that was reported before. So it tells whether a checkpoint shows all that was written before a
write token. A version may contain more than its observation says, never less. A checkpoint keeps the
observations of its cut. They advance as long as the job finds nothing new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

from sqlalchemy import Connection, func, select, update

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES
from tautochrone.meta.queries.topology import Topology, read_topology
from tautochrone.model.checkpoint import Alignment, SourceTime, align
from tautochrone.model.jobs import JobState, Part
from tautochrone.model.names import TableName, Version, is_clock

__all__ = [
    "aligned_cut",
    "latest_observations",
    "mark_source_times_unknown",
    "observations_of_cut",
    "observed_up_to",
    "record_observations",
    "record_shown",
    "require_observed",
    "reset_observations",
    "unobserved_roots",
]


_C, _J, _P = t.checkpoints.c, t.jobs.c, t.checkpoint_jobs.c
_R, _V = t.reports.c, t.versions.c


def mark_source_times_unknown(connection: Connection, job: str) -> None:
    """For a new owner: its tables may have been reverted, so the reported times may be wrong. Until it
    reports again, cuts keep the versions of its aligned roots and of all roots that must not run ahead of
    them."""
    known = (_R.job == job) & _R.times.is_not(None)
    connection.execute(update(t.reports).where(known).values(times=[]))


def _source_time(version: str, at_ms: int, complete_until_ms: int | None = None) -> SourceTime:
    return SourceTime(version=Version(version), at_ms=at_ms, complete_until_ms=complete_until_ms)


def aligned_cut(
    connection: Connection, jobs: Collection[str], cut: Mapping[str, str], max_skew_ms: int
) -> Alignment:
    """See `model.checkpoint.align`, for the roots of a cut of these jobs."""
    reported_times = connection.execute(
        select(_R.table_name, _R.times).where(_R.job.in_(jobs), _R.times.is_not(None))
    ).all()
    times = {row.table_name: [_source_time(*values) for values in row.times] for row in reported_times}
    current = select(_V.table_name, _V.version).where(
        _V.table_name.in_(list(times)), _V.is_root.is_(True), _V.to_checkpoint.is_(None)
    )
    last = {row.table_name: row.version for row in connection.execute(current)}
    return align(cut, times, last, max_skew_ms)


def reset_observations(connection: Connection, job: str, ingests: Iterable[str] | None) -> None:
    """Discard the observations of a job with a new owner: its tables may have been rolled back or emptied.

    Args:
        ingests: the tables of the job that have a source outside; None: those that had observations before.
    """
    names = _observations_of_job(connection, job) if ingests is None else ingests
    connection.execute(update(t.jobs).where(_J.name == job).values(observations=dict.fromkeys(names, 0)))


def record_observations(connection: Connection, job: str, observations: Mapping[str, int]) -> None:
    """Record observations of a job."""
    latest = latest_observations(connection, job, observations)
    connection.execute(update(t.jobs).where(_J.name == job).values(observations=latest))


def latest_observations(connection: Connection, job: str, observations: Mapping[str, int]) -> dict[str, int]:
    """The observations of a job with some new ones: an observation never goes back."""
    return _latest_of(_observations_of_job(connection, job), observations)


def record_shown(connection: Connection, number: int, observations: Mapping[str, int]) -> None:
    """Record that a checkpoint shows what the observations cover."""
    is_checkpoint = _C.number == number
    known = connection.execute(select(_C.observations).where(is_checkpoint).with_for_update()).scalar() or {}
    connection.execute(
        update(t.checkpoints).where(is_checkpoint).values(observations=_latest_of(known, observations))
    )


def observations_of_cut(
    connection: Connection,
    observations: Mapping[str, int],
    own: Collection[str],
    cut: Collection[str],
    topology: Topology,
) -> dict[str, int]:
    """The observations that hold for the versions of a cut.

    Args:
        observations: those of the job that takes the cut, for its own tables (`own`).
        cut: all tables of the cut. For tables of other jobs it takes the reported versions, and with them the
            observations of the job that writes the table; for external tables those of every job.
    """
    kept = {name: at_ms for name, at_ms in observations.items() if name in own}
    for row in connection.execute(select(_J.name, _J.observations)):
        observed = {
            name: at_ms
            for name, at_ms in (row.observations or {}).items()
            if name in cut and name not in own and topology.owner.get(name, row.name) == row.name
        }
        kept = _latest_of(kept, observed)
    return kept


def require_observed(connection: Connection, number: int, tables: Iterable[str], after_ms: int) -> None:
    """Refuse a checkpoint for which some root of the tables was not observed after `after_ms`.

    The observations of a job are kept with the last checkpoint of which it did its part: later checkpoints,
    of unrelated jobs, show the same versions.

    Raises:
        CheckpointUnavailableError: `READ_NOT_YET` (retryable), names the table and the job.
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
    """The roots of the tables that were not observed after `after_ms` for this checkpoint, by name, each with
    the jobs that observe it."""
    topology = read_topology(connection)
    parts = _last_parts(connection, [number])[number]
    observed = select(_C.number, _C.observations).where(_C.number.in_({*parts.values()}))
    observations = {row.number: row.observations or {} for row in connection.execute(observed)}
    ingesting = {
        name for row in connection.execute(select(_J.observations)) for name in row.observations or ()
    }
    for name in sorted(_with_upstream(topology, tables)):
        is_source = name in topology.roots or name in ingesting or name not in topology.owner
        observers = _observers(topology, name)
        part = max((parts[job] for job in observers if job in parts), default=number)
        if is_source and observations.get(part, {}).get(name, 0) <= after_ms:
            yield name, observers


def observed_up_to(connection: Connection, topology: Topology, seen: Mapping[str, int]) -> dict[str, int]:
    """By table the time up to which all that its sources held is in it, in epoch milliseconds of the store:
    the oldest observation among its sources. Sources that were never observed do not count; a table without
    any other is left out.

    Args:
        seen: by table the checkpoint at which it is looked at.
    """
    ingesting = {
        name for row in connection.execute(select(_J.observations)) for name in row.observations or ()
    }
    parts = _last_parts(connection, {*seen.values()})
    numbers = {part for last in parts.values() for part in last.values()} | parts.keys()
    rows = connection.execute(select(_C.number, _C.observations).where(_C.number.in_(numbers)))
    observations = {row.number: row.observations or {} for row in rows}
    order = list(TopologicalSorter(topology.inputs).static_order())
    order += sorted(topology.owner.keys() - {*order})
    result: dict[str, int] = {}
    for number, last in parts.items():
        oldest: dict[str, int] = {}
        for name in order:
            times = [oldest[source] for source in topology.inputs.get(name, ()) if source in oldest]
            if name in topology.roots or name in ingesting or name not in topology.owner:
                observers = _observers(topology, name)
                part = max((last[job] for job in observers if job in last), default=number)
                times += [at_ms] if (at_ms := observations.get(part, {}).get(name, 0)) else []
            if times:
                oldest[name] = min(times)
        result |= {name: oldest[name] for name, at in seen.items() if at == number and name in oldest}
    return result


def _last_parts(connection: Connection, numbers: Collection[int]) -> dict[int, dict[str, int]]:
    """For each of the checkpoints, by job the last one up to it of which the job did its part."""
    shown = t.checkpoints.alias("shown")
    query = (
        select(shown.c.number, _P.job, func.max(_P.checkpoint).label("last"))
        .join(t.checkpoint_jobs, _P.checkpoint <= shown.c.number)
        .join(t.checkpoints, _C.number == _P.checkpoint)
        .where(shown.c.number.in_(numbers), _P.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
        .group_by(shown.c.number, _P.job)
    )
    result: dict[int, dict[str, int]] = {number: {} for number in numbers}
    for row in connection.execute(query):
        result[row.number][row.job] = row.last
    return result


def _observations_of_job(connection: Connection, job: str) -> dict[str, int]:
    return connection.execute(select(_J.observations).where(_J.name == job)).scalar() or {}


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


def _observers(topology: Topology, name: str) -> list[str]:
    """The job that writes a table, or else those that read it."""
    if name in topology.owner:
        return [topology.owner[name]]
    readers = {topology.owner.get(dataset) for dataset, inputs in topology.inputs.items() if name in inputs}
    return sorted(job for job in readers if job is not None)
