"""`store.builds` in SQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository
from tautochrone.meta.queries.checkpoints import is_alive
from tautochrone.meta.sql.jobs import job_running_error
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import Fence, TableName
from tautochrone.model.project_build import (
    BuildState,
    ProjectBuild,
    is_build_id,
    require_checked,
    revoked_base_error,
    unfinished_error,
    unknown_error,
)

__all__ = ["SqlBuilds", "is_created_by_build"]

_B, _J = t.builds.c, t.jobs.c
_OVER = tuple(state.value for state in BuildState if state.is_over)
_REMEMBERED = 20
"""So many builds of a job that are applied or dropped are kept to be looked at."""


class SqlBuilds(Repository):
    """`protocols.builds.Builds` in SQL."""

    def begin(self, build: ProjectBuild) -> None:
        with self._write() as connection:
            known = connection.execute(select(t.builds).where(_B.id == build.id)).first()
            begun = replace(build, created_at_ms=known.created_at_ms if known else self._clock())
            if known is None:
                row = {
                    "id": begun.id,
                    "job": begun.job,
                    "state": begun.state.value,
                    "created_at_ms": begun.created_at_ms,
                    "content": begun.as_json(),
                }
                connection.execute(insert(t.builds).values(row))
            elif _as_build(known) != begun:
                raise MetaError(
                    "BUILD_ID_TAKEN",
                    f"There is another built plan {build.id} in this store, of job {known.job}",
                    hint="build again: the id is drawn at random",
                )

    def finish(self, build: ProjectBuild) -> None:
        with self._write() as connection:
            _build(connection, build.id, build.job)
            connection.execute(
                update(t.builds)
                .where(_B.id == build.id, _B.job == build.job, _B.state != BuildState.DECIDED.value)
                .values(state=BuildState.BUILT.value, content=build.as_json())
            )

    def decide(self, job: str, fence: Fence, build: str) -> None:
        with self._fenced(job, fence) as connection:
            _decide(connection, _build(connection, build, job))

    def approve(self, build: str) -> None:
        with self._write() as connection:
            approved = _build(connection, build)
            if approved.state is BuildState.DECIDED:
                return
            require_checked(approved)
            # Locked, so that a run either sees the decision or is seen.
            query = select(t.jobs).where(_J.name == approved.job).with_for_update()
            owner, now = connection.execute(query).first(), self._clock()
            if owner is not None and is_alive(owner.state, owner.lease_until_ms, now):
                running = job_running_error(connection, owner, owner.process or {}, now)
                # Its own hint is for commands that can wait for the run or fence it off.
                running.hint = f"end the run and decide again, or use `taut apply {build} --takeover`"
                raise running
            _decide(connection, approved)

    def complete(self, job: str, fence: Fence, build: str) -> None:
        with self._fenced(job, fence) as connection:
            self._end(connection, job, build, BuildState.APPLIED)

    def remove(self, job: str, build: str) -> None:
        with self._write() as connection:
            self._end(connection, job, build, BuildState.DROPPED)

    def _end(self, connection: Connection, job: str, build: str, state: BuildState) -> None:
        """Only remember a build from now on, and forget those of the job that ended long ago."""
        of_job = select(t.builds).where(_B.job == job)
        row = connection.execute(of_job.where(_B.id == build, _B.state.not_in(_OVER))).first()
        if row is None:
            return
        # Rows of a plan that is over are of no use, and may be confidential.
        ended_build = _as_build(row).without_samples()
        content = {**ended_build.as_json(), "ended_at_ms": self._clock()}
        connection.execute(update(t.builds).where(_B.id == build).values(state=state.value, content=content))
        ended = sorted(
            map(_listed, connection.execute(of_job.where(_B.state.in_(_OVER)))),
            key=lambda each: (each.ended_at_ms or 0, each.created_at_ms, each.id),
        )
        forgotten = [each.id for each in ended[:-_REMEMBERED]]
        if forgotten:
            connection.execute(delete(t.builds).where(_B.id.in_(forgotten)))

    def get(self, build: str) -> ProjectBuild:
        with self._read() as connection:
            return _build(connection, build)

    def look_up(self, build: str) -> ProjectBuild:
        with self._read() as connection:
            return _build(connection, build, over=True)

    def of_job(self, job: str) -> tuple[ProjectBuild, ...]:
        query = select(t.builds).where(_B.job == job, _B.state.not_in(_OVER))
        with self._read() as connection:
            return tuple(map(_listed, connection.execute(query.order_by(_B.created_at_ms, _B.id))))

    def remembered(self) -> tuple[ProjectBuild, ...]:
        query = select(t.builds).order_by(_B.created_at_ms.desc(), _B.id)
        with self._read() as connection:
            return tuple(map(_listed, connection.execute(query)))


def is_created_by_build(connection: Connection, table: TableName) -> bool:
    """Whether a build made the table: there is nothing to read in it yet."""
    rows = connection.execute(select(t.builds).where(_B.state.not_in(_OVER)))
    return any(str(table) in row.content["created"] for row in rows)


def _decide(connection: Connection, build: ProjectBuild) -> None:
    if build.state is BuildState.BUILDING:
        raise unfinished_error(build.id)
    states = select(t.checkpoints.c.state).where(t.checkpoints.c.number == build.base)
    if connection.execute(states).scalar() == CheckpointState.REVOKED.value:
        raise revoked_base_error(build.id, build.base)
    values = {"state": BuildState.DECIDED.value}
    connection.execute(update(t.builds).where(_B.id == build.id, _B.job == build.job).values(values))


def _build(connection: Connection, build: str, job: str | None = None, *, over: bool = False) -> ProjectBuild:
    """The build of an id, of this job if one is given; `over`: also one that is only remembered."""
    # What somebody typed is not sent to a database, which may not take any text.
    row = connection.execute(select(t.builds).where(_B.id == build)).first() if is_build_id(build) else None
    if row is None or job not in (None, row.job) or (row.state in _OVER and not over):
        query = select(_B.id).where(_B.state.not_in(_OVER)).order_by(_B.created_at_ms, _B.id)
        known = connection.execute(query).scalars().all()
        raise unknown_error(build, known)
    return _as_build(row)


def _listed(row: Row[Any]) -> ProjectBuild:
    """A build in a list: its samples are not even read."""
    views = [
        view if view["comparison"] is None else {**view, "comparison": {**view["comparison"], "samples": []}}
        for view in row.content.get("views", ())
    ]
    content = {**row.content, "views": views}
    return ProjectBuild.from_json(row.id, row.job, row.state, row.created_at_ms, content)


def _as_build(row: Row[Any]) -> ProjectBuild:
    return ProjectBuild.from_json(row.id, row.job, row.state, row.created_at_ms, row.content)
