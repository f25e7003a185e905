"""`store.roots`. Versions of roots that a cut takes: those that jobs report, those of external tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import Alignment, SourceTime
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["ReportTime", "Roots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTime:
    """When a job last reported a version of a table, in epoch milliseconds."""

    table: TableName
    job: str
    at_ms: int


class Roots(Protocol):
    """Versions of roots that a cut takes: those that jobs report, those of external tables."""

    @writes
    def report(self, job: str, fence: Fence, versions: Mapping[TableName, Version]) -> None:
        """Record versions that one flow or one source transaction committed together.

        This is one transaction, so a cut takes all of these versions or none.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def reported(self, job: str) -> dict[TableName, Version]:
        """The newest reported version of each table of the job."""

    @reads
    def report_times(self) -> tuple[ReportTime, ...]:
        """The time of the newest report of each table, by table."""

    @writes
    def observe_external_table(
        self, job: str, fence: Fence, table: TableName, before: Version | None, now: Version
    ) -> Version:
        """The job observed that an external table moved from `before` to `now`.

        Jobs observe at different moments. An older observation that arrives later must not move the table
        back, so it counts only if `before` is the version that the store has.

        Returns:
            The version that cuts take from now on.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def external_versions(self) -> dict[TableName, Version]:
        """The last observed version of each external table."""

    @reads
    def tables_of_other_jobs(self, job: str) -> dict[TableName, str]:
        """The datasets that other jobs write, with the job of each."""

    @reads
    def shared_clocks(self, job: str) -> frozenset[TableName]:
        """The clocks that are read by jobs which share checkpoints with `job`."""

    @writes
    def report_source_times(
        self, job: str, fence: Fence, times: Mapping[TableName, tuple[SourceTime, ...]]
    ) -> None:
        """Report the source times of the job's roots. Roots that are not named are not aligned. Repeatable.

        Args:
            times: by root the versions that a cut may take, from the last cut's to the newest, each with its
                source time in epoch milliseconds.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def aligned_cut(self, job: str, roots: Mapping[TableName, Version], max_skew_ms: int) -> Alignment:
        """What a cut would take now, of the roots given and of all that the topology of `job` reports.

        Args:
            roots: as of `checkpoints.open`.
            max_skew_ms: how far one root may be ahead of another in source time.
        """
