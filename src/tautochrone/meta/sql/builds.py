"""`store.builds` in SQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import Fence, TableName
from tautochrone.model.project_build import (
    BuildState,
    ProjectBuild,
    revoked_base_error,
    unfinished_error,
)

__all__ = ["SqlBuilds", "is_created_by_build"]

_B = t.builds.c


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
            decided = _build(connection, build, job)
            if decided.state is BuildState.BUILDING:
                raise unfinished_error(build)
            states = select(t.checkpoints.c.state).where(t.checkpoints.c.number == decided.base)
            if connection.execute(states).scalar() == CheckpointState.REVOKED.value:
                raise revoked_base_error(build, decided.base)
            values = {"state": BuildState.DECIDED.value}
            connection.execute(update(t.builds).where(_B.id == build, _B.job == job).values(values))

    def complete(self, job: str, fence: Fence, build: str) -> None:
        with self._fenced(job, fence) as connection:
            connection.execute(delete(t.builds).where(_B.id == build, _B.job == job))

    def remove(self, job: str, build: str) -> None:
        with self._write() as connection:
            connection.execute(delete(t.builds).where(_B.id == build, _B.job == job))

    def get(self, build: str) -> ProjectBuild:
        with self._read() as connection:
            return _build(connection, build)

    def of_job(self, job: str) -> tuple[ProjectBuild, ...]:
        with self._read() as connection:
            rows = connection.execute(select(t.builds).where(_B.job == job).order_by(_B.created_at_ms, _B.id))
            return tuple(map(_as_build, rows))


def is_created_by_build(connection: Connection, table: TableName) -> bool:
    """Whether a build made the table: there is nothing to read in it yet."""
    rows = connection.execute(select(t.builds))
    return any(table in _as_build(row).created for row in rows)


def _build(connection: Connection, build: str, job: str | None = None) -> ProjectBuild:
    """The build of an id, of this job if one is given."""
    row = connection.execute(select(t.builds).where(_B.id == build)).first()
    if row is None or job not in (None, row.job):
        known = connection.execute(select(_B.id).order_by(_B.created_at_ms, _B.id)).scalars().all()
        raise MetaError(
            "BUILD_NOT_FOUND",
            f"There is no built plan {build} in this store: it was dropped or applied, or never built",
            hint="`taut plan --build` builds one and says its id; there are: " + (", ".join(known) or "none"),
        )
    return _as_build(row)


def _as_build(row: Row[Any]) -> ProjectBuild:
    return ProjectBuild.from_json(row.id, row.job, row.state, row.created_at_ms, row.content)
