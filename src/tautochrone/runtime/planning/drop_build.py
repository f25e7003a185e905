"""Drops a build: the branches of its tables, the tables that only it made, then its record."""

from __future__ import annotations

from tautochrone.errors import LakeError, MetaError
from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName
from tautochrone.model.project_build import BRANCH_PREFIX, BuildState, ProjectBuild, require_of_job
from tautochrone.runtime.refresh.states import states_among

__all__ = ["drop_build", "drop_unknown_builds", "require_droppable"]


def require_droppable(store: Store, build: ProjectBuild, job: str) -> None:
    """Check that a build is one of this job, whose lake has its branches, and that no process is giving
    readers its rows.

    Raises:
        MetaError: `BUILD_OF_ANOTHER_JOB`; `BUILD_BEING_APPLIED`.
    """
    require_of_job(build, job)
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
        if name in build.created and _is_unused(store, lake, build.job, name, build):
            _drop_table(lake, name)
    for name in states_among(lake.tables(), tables):
        lake.buildable(name).drop_build(build.branch)
        _drop_unused_state(store, lake, build.job, name)
    effects.perform(Step.META_DROP_BUILD, build.id, lambda: store.builds.remove(build.job, build.id))


def drop_unknown_builds(store: Store, lake: LakeCatalog, job: str) -> list[str]:
    """Delete what is left of builds that the store does not know, because it was lost and rebuilt: branches,
    and tables that nobody but a build made.

    A build is recorded before it writes anything, so none that is at work is meant.

    Returns:
        Their ids.
    """
    entries = {entry.name for entry in store.datasets.registered(job)}
    namespaces = {(name.catalog, name.namespace) for name in entries}
    pipelines = {status.pipeline for status in store.jobs.states() if status.name == job}
    # Other projects, with stores of their own, may use the same catalog.
    others = [name for name in lake.tables() if (name.catalog, name.namespace) in namespaces]
    tables = {name for name in entries if lake.exists(name)}
    tables |= {
        name for name in others if name not in entries and _is_of_job(store, lake, name, pipelines, job)
    }
    dropped, states = set[str](), {*states_among(lake.tables(), tables)}
    for name in sorted(tables | states):
        table = lake.buildable(name)
        branches = table.build_branches()
        known = {build.branch for build in store.builds.of_job(job)} if branches else set()
        unknown = [branch for branch in branches if branch not in known]
        for branch in unknown:
            table.drop_build(branch)
        if unknown and name in states:
            _drop_unused_state(store, lake, job, name)
        elif unknown and unknown == branches and _is_unused(store, lake, job, name):
            _drop_table(lake, name)
        dropped |= {branch.removeprefix(BRANCH_PREFIX) for branch in unknown}
    return sorted(dropped)


def _drop_unused_state(store: Store, lake: LakeCatalog, job: str, name: TableName) -> None:
    if not lake.buildable(name).build_branches() and _is_unused(store, lake, job, name):
        _drop_table(lake, name)


def _is_of_job(store: Store, lake: LakeCatalog, name: TableName, pipelines: set[str], job: str) -> bool:
    """Whether the job has a table that is not registered."""
    if store.datasets.job_of(name) is not None:
        return False
    try:
        metadata = lake.load(name).fork().commit_metadata
    except LakeError:
        # What cannot be loaded, as a table of another target, is none of the job's.
        return False
    return metadata is not None and metadata.job == job and metadata.pipeline in pipelines


def _drop_table(lake: LakeCatalog, name: TableName) -> None:
    stored = lake.stored_table(name)
    lake.drop(stored)
    lake.delete_files(stored)


def _is_unused(
    store: Store, lake: LakeCatalog, job: str, name: TableName, build: ProjectBuild | None = None
) -> bool:
    """Whether nobody else has the table: no run registered it or gave it rows, no other build needs it."""
    others = [other for other in store.builds.of_job(job) if build is None or other.id != build.id]
    if any(name in other.created for other in others) or store.datasets.job_of(name) is not None:
        return False
    metadata = lake.load(name).fork().commit_metadata
    return metadata is not None and metadata.job == job and metadata.definition is None
