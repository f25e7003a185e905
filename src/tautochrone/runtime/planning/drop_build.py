"""Drops a build: the branches of its tables, the tables that only it made, then its record."""

from __future__ import annotations

from tautochrone.errors import MetaError
from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName
from tautochrone.model.project_build import BRANCH_PREFIX, BuildState, ProjectBuild

__all__ = ["drop_build", "drop_unknown_builds", "require_droppable"]


def require_droppable(store: Store, build: ProjectBuild) -> None:
    """Check that no process is giving readers the rows of a build.

    Raises:
        MetaError: `BUILD_BEING_APPLIED`.
    """
    running = any(status.alive for status in store.jobs.states() if status.name == build.job)
    if running and build.state is BuildState.DECIDED:
        raise MetaError(
            "BUILD_BEING_APPLIED",
            f"Plan {build.id} is decided, and a process that runs job {build.job} may be applying it",
            hint="end it first; a process that was killed counts as running until its lease is over",
            sqlstate="55006",
            retryable=True,
        )


def drop_build(store: Store, lake: LakeCatalog, effects: Effects, build: ProjectBuild) -> None:
    """Delete a build. Repeatable: the record goes last. A run of the job may go on meanwhile."""
    # A build that died has not recorded which tables it wrote, and tables may have got other names since.
    tables = build.datasets | {entry.name for entry in store.datasets.registered(build.job)}
    for name in sorted(name for name in tables if lake.exists(name)):
        lake.buildable(name).drop_build(build.branch)
        if name in build.created and _is_unused(store, lake, build, name):
            stored = lake.stored_table(name)
            lake.drop(stored)
            lake.delete_files(stored)
    effects.perform(Step.META_DROP_BUILD, build.id, lambda: store.builds.remove(build.job, build.id))


def drop_unknown_builds(store: Store, lake: LakeCatalog, job: str) -> list[str]:
    """Delete what is left of builds that the store does not know, because it was lost and rebuilt.

    A build is recorded before it writes anything, so none that is at work is meant.

    Returns:
        Their ids.
    """
    dropped = set[str]()
    for name in sorted(entry.name for entry in store.datasets.registered(job) if lake.exists(entry.name)):
        table = lake.buildable(name)
        branches = table.build_branches()
        known = {build.branch for build in store.builds.of_job(job)} if branches else set()
        for branch in branches:
            if branch not in known:
                table.drop_build(branch)
                dropped.add(branch.removeprefix(BRANCH_PREFIX))
    return sorted(dropped)


def _is_unused(store: Store, lake: LakeCatalog, build: ProjectBuild, name: TableName) -> bool:
    """Whether nobody else has the table: no run registered it or gave it rows, no other build needs it."""
    others = [other for other in store.builds.of_job(build.job) if other.id != build.id]
    if any(name in other.created for other in others) or store.datasets.job_of(name) is not None:
        return False
    metadata = lake.load(name).fork().commit_metadata
    return metadata is not None and metadata.job == build.job and metadata.definition is None
