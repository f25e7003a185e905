"""`store.builds`. Builds of plans: begun, built, then dropped, or decided and taken over by a checkpoint."""

from __future__ import annotations

from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence
from tautochrone.model.project_build import ProjectBuild

__all__ = ["Builds"]


class Builds(Protocol):
    """Builds of plans: begun, built, then dropped, or decided and taken over by a checkpoint."""

    @writes
    def begin(self, build: ProjectBuild) -> None:
        """Record a build before anything of it is in the lake, so that it can be dropped. Repeatable.

        Args:
            build: with a new id, and the tables that it will create.

        Raises:
            MetaError: `BUILD_ID_TAKEN`, another build has the id.
        """

    @writes
    def finish(self, build: ProjectBuild) -> None:
        """Record what was built. Repeatable.

        Raises:
            MetaError: `BUILD_NOT_FOUND`, it was dropped meanwhile.
        """

    @writes(step=Step.META_APPLY_BUILD, subject="build")
    def decide(self, job: str, fence: Fence, build: str) -> None:
        """Record that the next checkpoint of the job takes the build over. Repeatable.

        Raises:
            MetaError: `BUILD_NOT_FOUND`; `BUILD_UNFINISHED`, it is not complete.
            CheckpointUnavailableError: `CHECKPOINT_REVOKED`, that at which it was computed.
        """

    @writes
    def approve(self, build: str) -> None:
        """Record the same while nobody runs the job: its next run, with the definitions of the build, takes
        the build over. Repeatable.

        Raises:
            MetaError: `BUILD_NOT_FOUND`; `BUILD_UNFINISHED`; `BUILD_CHECKS_FAILED`; `JOB_RUNNING`.
            CheckpointUnavailableError: `CHECKPOINT_REVOKED`, that at which it was computed.
        """

    @writes(step=Step.META_BUILD_APPLIED, subject="build")
    def complete(self, job: str, fence: Fence, build: str) -> None:
        """Record that a checkpoint took a build over: it is only remembered. Repeatable."""

    @writes
    def remove(self, job: str, build: str) -> None:
        """Record that nothing of a build is left in the lake: it is only remembered. Repeatable."""

    @reads
    def get(self, build: str) -> ProjectBuild:
        """One build that is neither dropped nor taken over.

        Raises:
            MetaError: `BUILD_NOT_FOUND`.
        """

    @reads
    def look_up(self, build: str) -> ProjectBuild:
        """One build, also one that is only remembered.

        Raises:
            MetaError: `BUILD_NOT_FOUND`.
        """

    @reads
    def of_job(self, job: str) -> tuple[ProjectBuild, ...]:
        """The builds of a job that are neither dropped nor taken over, oldest first, without samples of
        rows."""

    @reads
    def remembered(self) -> tuple[ProjectBuild, ...]:
        """The builds of all jobs, newest first, without samples of rows; of those that were dropped or taken
        over the last ones of each job."""
