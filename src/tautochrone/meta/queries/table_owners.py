"""To which lake and which pipeline jobs belong, and how that changes when people copy or rename a project.

A job's name alone says nothing: a copy of a project has the same. So each job remembers the lake that its
tables are in, and a run over another lake is refused before it takes anything over.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t

__all__ = ["TABLES_BY_JOB", "bind_lake", "has_history"]

_J = t.jobs.c
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
