"""Applies a build: the next checkpoint has its rows.

    1. check that it is what was looked at: the definitions, the deployed rows, the built versions
    2. take the job over, and check again
    3. decide, in one transaction of the store
    4. one run without ingestion: each view's main gets its built rows in one commit, without reading one, and
       follows what came to its inputs since; then the checkpoint is published, and the build is only
       remembered, as applied

Before 3 nothing happened. After 3 the next run with the same definitions does 4. A run with the definitions
that were deployed before leaves the build alone: it computes what main has got of it again, and the old
pipeline stands.
"""

from __future__ import annotations

from tautochrone.errors import ConflictError
from tautochrone.meta.protocols.builds import Builds
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.project_build import (
    BuildState,
    ProjectBuild,
    gone_error,
    require_checked,
    require_of_job,
    require_same_base,
    revoked_base_error,
)
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import Selection
from tautochrone.runtime.loop.run import Run, RunState
from tautochrone.runtime.views.built_rows import is_taken_over

__all__ = ["apply_build", "require_applicable"]


def apply_build(job: Job, build: ProjectBuild) -> RunState:
    """Apply a build, or complete one that was decided.

    Returns:
        How the run ended. The build is over, thus not one of `Builds.of_job`, if a checkpoint shows it.

    Raises:
        LakeError, MetaError, CheckpointUnavailableError: as of `require_applicable`; nothing was changed.
        MetaError: `JOB_RUNNING`, another process runs the job; nothing was changed.
    """
    require_applicable(job, build)

    def decide() -> None:
        require_applicable(job, build)
        job.journal.record(Builds.decide, build.id)

    state = Run(job, Selection(ingest=frozenset()), before_checkpoints=decide).once()
    is_known = any(other.id == build.id for other in job.store.builds.of_job(job.name))
    if is_known and is_taken_over(job.lake, build) and _is_shown(job, build):
        # The process that applied it died after the checkpoint was published.
        job.journal.record(Builds.complete, build.id)
    return state


def _is_shown(job: Job, build: ProjectBuild) -> bool:
    """Whether the newest published checkpoint has the built rows, or what came of them."""
    latest = job.store.checkpoints.latest_published(job.name)
    shown = {} if latest is None else job.store.checkpoints.versions_at(latest.number)
    for built in build.tables:
        past = job.lake.load(built.table).versions()
        from_builds = [commit.commit_metadata and commit.commit_metadata.built for commit in past]
        first = from_builds.index(built.version) if built.version in from_builds else 0
        if shown.get(built.table) not in {commit.version for commit in past[first:]}:
            return False
    return True


def require_applicable(job: Job, build: ProjectBuild) -> None:
    """Refuse a build that is not what was looked at any more.

    New checkpoints over the deployed definitions are no reason: what came since is followed.

    Raises:
        MetaError: `BUILD_OF_ANOTHER_JOB`; `BUILD_UNFINISHED`; `BUILD_CHECKS_FAILED`.
        ConflictError: `BUILD_DEFINITIONS_CHANGED`, the project's; `BUILD_BASE_CHANGED`, the deployed ones.
        LakeError: `BUILD_GONE`.
        CheckpointUnavailableError: `CHECKPOINT_REVOKED`, that at which it was built.
    """
    require_of_job(build, job.name)
    require_checked(build)
    _require_same_definitions(job, build)
    if job.store.checkpoints.get(build.base).state is CheckpointState.REVOKED:
        raise revoked_base_error(build.id, build.base)
    if build.state is BuildState.BUILT:
        _require_same_tables(job, build)


def _require_same_definitions(job: Job, build: ProjectBuild) -> None:
    now = job.topology.fingerprints
    changed = sorted(
        name for name in {*now, *build.definitions} if now.get(name) != build.definitions.get(name)
    )
    if changed:
        raise ConflictError(
            "BUILD_DEFINITIONS_CHANGED",
            f"The project is another than plan {build.id} was built from: {', '.join(changed)}",
            hint="put the definitions back, or build again with `taut plan --build`",
        )


def _require_same_tables(job: Job, build: ProjectBuild) -> None:
    for built in build.tables:
        is_there = job.lake.exists(built.table)
        if not is_there or job.lake.buildable(built.table).built_version(build.branch) != built.version:
            raise gone_error(build.id, built.table)
        require_same_base(build, built, job.lake.load(built.table).fork().commit_metadata)
