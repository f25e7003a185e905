"""`store.datasets`. The datasets of all jobs: definition, lineage, status, and the files that they lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.details import DatasetDetails
from tautochrone.model.expectations import ExpectationCount
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.refresh import RefreshMode
from tautochrone.model.sources import SkippedFiles

__all__ = ["DatasetEntry", "DatasetStatus", "Datasets", "Lineage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """Where one dataset stands.

    `checkpoint` is the newest checkpoint at which it is complete, `lag_ms` how much older
    that cut is than the job's newest cut (0 when it is up to date, None when it was never built), or what
    readers see of it than the cut that a broken invariant keeps from them.
    `readable` is the newest checkpoint at which strong readers see it, `readable_lag_ms` how much older that
    cut is than its job's newest one: behind `checkpoint` when another job, or a table that belongs to it,
    is.
    `mode` and `reason` are those of its last refresh, `error` is why the newest one gave no version,
    or the broken invariant that keeps readers from it; `failure` is the former with its code.
    `skipped` are source files that it lacks, `expectations` its own with the rows that violate them.
    """

    dataset: TableName
    job: str
    kind: str
    version: Version | None
    checkpoint: CheckpointNumber | None
    mode: RefreshMode | None
    reason: Reason | None
    error: str | None
    lag_ms: int | None
    refreshed_at_ms: int | None
    failure: Reason | None = None
    skipped: tuple[SkippedFiles, ...] = ()
    expectations: tuple[ExpectationCount, ...] = ()
    readable: CheckpointNumber | None = None
    readable_lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """One dataset of a job as the topology records it.

    `kind` is a `DatasetKind` value, `definition` the fingerprint of the definition, `inputs` the
    tables and clocks that its flows read (datasets, external tables, `model.clock`). `is_root`: only
    ingestion writes it, so its version at a cut is what was reported.
    """

    name: TableName
    kind: str
    definition: str
    inputs: frozenset[TableName] = frozenset()
    is_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Who reads what, around one table: direct neighbours, and everything behind them, clocks included."""

    table: TableName
    inputs: frozenset[TableName]
    outputs: frozenset[TableName]
    upstream: frozenset[TableName]
    downstream: frozenset[TableName]


class Datasets(Protocol):
    """The datasets of all jobs: definition, lineage, status, and the files that they lack."""

    @reads(wire="datasets")
    def entries(self, job: str | None = None) -> tuple[DatasetEntry, ...]:
        """The registered datasets that are not retired, of one job or of all."""

    @reads(wire="status")
    def statuses(self) -> tuple[DatasetStatus, ...]:
        """Every dataset that isn't retired, by name."""

    @reads
    def lineage(self, table: TableName) -> Lineage:
        """What `table` is made from and what is made from it, directly and through others."""

    @writes
    def describe(self, job: str, fence: Fence, details: Iterable[DatasetDetails]) -> None:
        """Replace what is known of these datasets. Saying it twice is saying it once.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, one of them is not a dataset of the job.
        """

    @reads
    def details(self, dataset: TableName) -> DatasetDetails | None:
        """What its job told of a dataset; None before that, or when nobody defines it."""

    @reads(wire="described")
    def details_of_job(self, job: str) -> dict[TableName, DatasetDetails]:
        """What is known of all datasets of a job."""

    @writes(wire="note_skipped_files")
    def record_skipped_files(
        self, job: str, fence: Fence, dataset: TableName, flow: str, skipped: Iterable[SkippedFiles]
    ) -> None:
        """Replace what is known of one flow into `dataset`. Saying it twice is saying it once.

        Files that went away before they were read stay known: nobody will meet them again.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, it is not a dataset of the job.
        """

    @writes
    def record_expectations(
        self, job: str, fence: Fence, dataset: TableName, expectations: Iterable[ExpectationCount]
    ) -> None:
        """Replace what is known of the expectations of a dataset. Repeatable.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, it is not a dataset of the job.
        """

    @reads
    def skipped_files(self, dataset: TableName) -> tuple[SkippedFiles, ...]:
        """What is known of all flows into `dataset`; empty for a dataset that nobody has registered."""

    @reads
    def table_ids(self, job: str) -> dict[TableName, str]:
        """What tells each of the job's tables from another one of its name, as far as it was recorded."""

    @writes(wire="identify")
    def record_table_ids(self, job: str, fence: Fence, tables: Mapping[TableName, str]) -> None:
        """Record what tells the job's tables; those that are left out are not known any more. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """
