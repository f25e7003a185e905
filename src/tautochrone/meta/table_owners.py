"""To which lake and which pipeline jobs belong, and how that changes when people copy or rename a project.

A job's name alone says nothing: a copy of a project has the same. So each job remembers the lake that its
tables are in, and a run over another lake is refused before it takes anything over.
"""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Connection, delete, func, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta.repository import Repository
from tautochrone.model.jobs import JobState

__all__ = ["Belonging", "bind_lake"]

_J = t.jobs.c
_BY_JOB = (
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


class Belonging(Repository):
    """See the module docstring. Every call may be repeated."""

    def become_copy(self, lake: str) -> str:
        """This store was copied together with its lake, which is `lake` now: it gets an incarnation of its
        own, no job of it is running, and nobody reads by it. Answers the incarnation."""
        found = str(uuid4())
        with self._write() as connection:
            connection.execute(update(t.stores).values(incarnation=found))
            connection.execute(update(t.jobs).where(_J.lake.is_not(None)).values(lake=lake))
            # The commit metadata of the lake that was copied with it name the original, up to these fences.
            connection.execute(update(t.jobs).values(lake_fence=_J.fence))
            running = _J.state == JobState.RUNNING.value
            ended = {"state": JobState.ENDED.value, "lease_until_ms": None}
            connection.execute(update(t.jobs).where(running).values(ended))
            connection.execute(delete(t.pins))
        return found

    def move_lake(self, pipeline: str, lake: str) -> int:
        """The lake of the pipeline's jobs is reached by another name now; answers how many jobs it has."""
        with self._write() as connection:
            mine = update(t.jobs).where(_J.pipeline == pipeline).values(lake=lake)
            return connection.execute(mine).rowcount

    def rename_pipeline(self, before: str, after: str) -> int:
        """All jobs of pipeline `before` belong to `after`; the one that is called like the pipeline is called
        like `after`, with everything that was recorded of it. Answers how many jobs moved: none when it was
        done before.

        Raises:
            MetaError: `JOB_RUNNING`, a job of it is at work; `JOB_NAME_TAKEN`, `after` is a job of another
                pipeline, or has a history of its own.
        """
        with self._write() as connection:
            connection.execute(select(t.stores.c.last_number).with_for_update())
            now = self._clock()
            rows = connection.execute(select(t.jobs).where(_J.pipeline == before).with_for_update()).all()
            for row in rows:
                if row.state == JobState.RUNNING.value and (row.lease_until_ms or 0) > now:
                    raise MetaError(
                        "JOB_RUNNING",
                        f"Job {row.name} of pipeline {before} is running",
                        hint="end it first; a job that was killed counts as running until its lease is over",
                        sqlstate="55006",
                    )
            taken = connection.execute(select(t.jobs).where(_J.name == after)).first()
            if taken is not None and (
                taken.pipeline not in (before, after) or any(row.name == before for row in rows)
            ):
                if taken.pipeline != after or _has_history(connection, after):
                    raise MetaError(
                        "JOB_NAME_TAKEN",
                        f"There is a job {after} of pipeline {taken.pipeline} already",
                        hint="Give the pipeline another name.",
                    )
                connection.execute(delete(t.jobs).where(_J.name == after))
                for table in (t.invariants, t.registrations):
                    connection.execute(delete(table).where(table.c.job == after))
            # The fence rises: what a process under the old name still wants to write is refused.
            moved = update(t.jobs).where(_J.pipeline == before)
            connection.execute(moved.values(pipeline=after, fence=_J.fence + 1))
            connection.execute(
                update(t.jobs).where(_J.name == before, _J.pipeline == after).values(name=after)
            )
            if any(row.name == before for row in rows):
                for table in _BY_JOB:
                    connection.execute(update(table).where(table.c.job == before).values(job=after))
                waits = t.checkpoint_jobs.c.waits_for
                connection.execute(update(t.checkpoint_jobs).where(waits == before).values(waits_for=after))
            return len(rows)


def _has_history(connection: Connection, job: str) -> bool:
    """Whether a job wrote anything that readers could have seen."""
    p = t.versions.c
    return bool(connection.execute(select(func.count()).where(p.job == job)).scalar())
