"""Which of two runs may own a job, and to which lake and which pipeline the job belongs.

A claim is checked in the transaction that takes the job, with its row locked: of two runs that start at the
same moment exactly one gets it. It must never know how to check that a process has ended.

People copy and rename projects, so a job's name alone says nothing: a copy of a project has the same. So each
job remembers the lake that its tables are in, and a run over another lake is refused before it takes anything
over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.meta.queries.coordinator import is_alive, pending
from tautochrone.meta.queries.read_models import unrecorded_datasets
from tautochrone.model.jobs import Claim, JobState

__all__ = ["TABLES_BY_JOB", "bind_lake", "has_history", "ownership_columns", "require_free"]


TABLES_BY_JOB = (
    t.datasets,
    t.invariants,
    t.invariants_broken,
    t.reports,
    t.checkpoints,
    t.checkpoint_jobs,
    t.versions,
    t.registrations,
)
"""Tables whose rows name a job under `job`."""

_J, _D = t.jobs.c, t.datasets.c


def require_free(connection: Connection, job: str, claim: Claim, now: int, *, lock: bool = False) -> None:
    """See `Jobs.require_free`; with `lock` the job's row is locked until the transaction ends."""
    query = select(t.jobs).where(_J.name == job)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None or claim.takeover or not is_alive(row.state, row.lease_until_ms, now):
        return
    process = row.process or {}
    # The run that owns the job repeats its call, or the owner has ended.
    if process and process["run"] in (claim.process.run, claim.ended_run):
        return
    raise _job_running_error(connection, row, process, now)


def ownership_columns(claim: Claim, now: int, lease_ms: int) -> dict[str, Any]:
    """The columns of `jobs` by which the run of `claim` owns the job from now on."""
    process = claim.process
    return {
        "state": JobState.RUNNING.value,
        "owner": process.host if process.pid is None else f"{process.host}:{process.pid}",
        "process": asdict(process),
        "started_ms": now,
        "heartbeat_ms": now,
        "lease_until_ms": now + lease_ms,
    }


def _job_running_error(
    connection: Connection, row: Row[Any], process: Mapping[str, Any], now: int
) -> MetaError:
    job = row.name
    open_checkpoints = pending(connection, job)
    count = select(func.count()).where(_D.job == job, _D.retired.is_(False), _D.kind.in_(VERSIONED_KINDS))
    datasets = connection.execute(count).scalar_one()
    parameters = {"job": job, "owner": row.owner or "", "datasets": str(datasets)}
    parameters |= {key: str(process[key]) for key in ("host", "pid") if process.get(key) is not None}
    parameters["since_ms"] = "" if row.started_ms is None else str(row.started_ms)
    left_ms = row.lease_until_ms - now
    parameters["lease_left_ms"] = str(left_ms)
    if open_checkpoints:
        done = datasets - len(unrecorded_datasets(connection, job, open_checkpoints[0]))
        parameters |= {"checkpoint": str(open_checkpoints[0]), "done": str(done)}
        progress = f"checkpoint {open_checkpoints[0]} is open, with {done} of {datasets} datasets done"
    else:
        progress = "no checkpoint of it is open"
    owner = "a process that did not say who it is" if row.owner is None else f"process {row.owner}"
    if process.get("pid") is not None:
        owner = f"process {process['pid']} on host {process['host']}"
    since_start = "" if row.started_ms is None else f" since {_iso_time(row.started_ms)}"
    return MetaError(
        "JOB_RUNNING",
        f"Job {job} is run by {owner}{since_start}; {progress}",
        hint="--wait waits until it has ended, --takeover fences it off; should it be dead and not of this "
        f"machine, its lease ends in {left_ms / 1000:.0f} s",
        retryable=True,
        sqlstate="55006",
        parameters=parameters,
    )


def _iso_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def bind_lake(connection: Connection, job: str, known: str | None, lake: str | None) -> None:
    """Let the job belong to `lake`; nothing happens for a caller that knows none.

    Raises:
        MetaError: `JOB_OF_ANOTHER_LAKE`.
    """
    if lake is None or lake == known:
        return
    if known is not None:
        raise MetaError(
            "JOB_OF_ANOTHER_LAKE",
            f"Job {job} of this store writes the tables of {known}, not those of {lake}",
            hint="a copy of a project needs a store of its own ([meta] url), or another name in its spec; "
            "if it is the same project whose lake was moved: `taut relocate --moved`",
            sqlstate="42P07",
            parameters={"job": job, "lake": lake, "known": known},
        )
    connection.execute(update(t.jobs).where(_J.name == job).values(lake=lake))


def has_history(connection: Connection, job: str) -> bool:
    """Whether a job wrote anything that readers could have seen."""
    p = t.versions.c
    return bool(connection.execute(select(func.count()).where(p.job == job)).scalar())
