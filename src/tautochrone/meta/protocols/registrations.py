"""`store.registrations`. Jobs that are not pipelines: they register the tables that they read and write."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from tautochrone.meta.protocols.marks import writes
from tautochrone.model.jobs import Claim
from tautochrone.model.names import Fence, TableName

__all__ = ["REGISTERED", "Registrations", "TableRole"]


REGISTERED = "(registered)"
"""The pipeline of jobs that register themselves. No spec can have this name, so that neither can replace
the topology of the other."""


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
        """The job runs now: what it announced becomes its topology. Older owners of it are refused.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not end it.
            MetaError: `JOB_NOT_FOUND`, nothing was announced; or what `register` raises.
        """

    @writes
    def unregister(self, job: str, fence: Fence | None = None) -> None:
        """The job ended: its relations are deleted, its open target is aborted, its fence rises.

        With `fence` a late word about an older run of the job changes nothing about the newer one.

        Raises:
            MetaError: `JOB_NOT_FOUND`.
            FencedError: `fence` is outdated.
        """
