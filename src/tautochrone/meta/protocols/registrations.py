"""`store.registrations`. Jobs that are not pipelines: they register the tables that they read and write."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from tautochrone.meta.protocols.marks import writes
from tautochrone.model.jobs import Claim
from tautochrone.model.names import Fence, TableName

__all__ = ["REGISTERED", "Registrations", "TableRole"]


REGISTERED = "(registered)"
"""The pipeline of jobs that register themselves. No spec can have this name, so a pipeline's job and a
registered one cannot replace each other's topology."""


class TableRole(StrEnum):
    """What a job does with a table."""

    SOURCE = "source"
    SINK = "sink"


class Registrations(Protocol):
    """Jobs that are not pipelines: they register the tables that they read and write."""

    @writes
    def register(self, job: str, table: TableName, role: TableRole) -> None:
        """Announce that `job` will read or write `table`.

        Raises:
            MetaError: `JOB_NAME_TAKEN` by a pipeline, `DATASET_OWNED_BY_ANOTHER_JOB`, `TOPOLOGY_CYCLE`.
        """

    @writes
    def start(self, job: str, claim: Claim | None = None) -> Fence:
        """Start a registered job: the tables that it announced become its topology, older owners are fenced.

        Args:
            claim: the run that starts the job; None: any other run of it is fenced off.

        Returns:
            The job's new fence.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not replace it;
                `JOB_NOT_FOUND`, nothing was announced; or what `register` raises.
        """

    @writes
    def unregister(self, job: str, fence: Fence | None = None) -> None:
        """The job ended: its registrations are deleted, its open checkpoint is aborted, its fence is raised.

        Args:
            fence: the fence of the run that ended, so that the end of an older run does not end a newer one;
                None: whichever run is the newest.

        Raises:
            MetaError: `JOB_NOT_FOUND`.
            FencedError: `fence` is outdated.
        """
