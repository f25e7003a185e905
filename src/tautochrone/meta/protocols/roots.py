"""`store.roots`. Versions of roots that a cut takes: those that jobs report, those of external tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.alignment import Alignment, SourceTime
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["Report", "Roots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The last unit that a job reported for a table."""

    table: TableName
    job: str
    at_ms: int


class Roots(Protocol):
    """Versions of roots that a cut takes: those that jobs report, those of external tables."""

    @writes
    def report(self, job: str, fence: Fence, versions: Mapping[TableName, Version]) -> None:
        """Record one unit: versions that one flow or one source transaction committed together.

        A cut takes all of a unit or nothing of it, because it is one transaction here.
        """

    @reads
    def reported(self, job: str) -> dict[TableName, Version]:
        """The newest reported version of each table of the job."""

    @reads
    def reports(self) -> tuple[Report, ...]:
        """The newest report of each table, by table."""

    @writes(wire="observe")
    def observe_external_table(
        self, job: str, fence: Fence, table: TableName, before: Version | None, now: Version
    ) -> Version:
        """Somebody else's table moved from `before` to `now`; answers what counts.

        Jobs look at different moments. The report of one that looked earlier and comes later must not
        turn the table back, so it counts only on top of what its reporter knew.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads(wire="observed")
    def external_versions(self) -> dict[TableName, Version]:
        """What was last observed of the tables that no job writes."""

    @reads(wire="foreign")
    def tables_of_other_jobs(self, job: str) -> dict[TableName, str]:
        """The datasets that other jobs write, with the job of each."""

    @reads
    def shared_clocks(self, job: str) -> frozenset[TableName]:
        """The clocks that the jobs read which share checkpoints with `job`."""

    @writes(wire="tell_times")
    def report_source_times(
        self, job: str, fence: Fence, times: Mapping[TableName, tuple[SourceTime, ...]]
    ) -> None:
        """The versions of the job's roots that a cut may take, from the last cut's to the newest. Roots that
        are not named take no part in alignment. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads(wire="aligned", wire_arguments={"max_skew_ms": "bound_ms"})
    def aligned_cut(self, job: str, roots: Mapping[TableName, Version], max_skew_ms: int) -> Alignment:
        """What a cut would take now, of the roots given and of all that the topology of `job` reports.

        Args:
            roots: as of `checkpoints.open`.
            max_skew_ms: how far one root may be ahead of another in source time.
        """
