"""One job: a pipeline's project bound to its lake, its store and its fence; its clocks are tables as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog, ReadPointServer
from tautochrone.model.effects import Effects
from tautochrone.model.events import Emit
from tautochrone.model.lake import (
    ChangeKind,
    CommitMetadata,
    LakeTable,
    ReadableTable,
    RowChange,
    TableChange,
)
from tautochrone.model.names import NOW, Fence, TableName, Version, describe_clock, is_clock, time_zone_of
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.monitor import RunMonitor
from tautochrone.runtime.job.ownership import Ownership
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.spark.analysis.current_time import clock_row, date_in_zone

__all__ = ["ClockTable", "Job"]


@dataclass(slots=True, kw_only=True)
class Job:
    """A job as the process that runs it sees it.

    Pass it to what needs many of its fields; pass the `topology`, the `journal` or single values otherwise.

    Attributes:
        topology: the job's tables and what they read.
        tables: the job's tables in the lake; filled by the takeover.
        set_aside: captured tables that stay as they are, and why: the lake's table cannot take their new
            columns; filled by the takeover.
        clock_us: the time of cuts, in microseconds since 1970.
        lake_id: tells this lake from others, copies of it included; None where nobody compares lakes.
        observed_tables: external tables as the last cut observed them.
        monitor: listens to `emit` and collects what the run says of itself.
        on_owned: called by the takeover once this run owns the job, before it reads external tables.
    """

    spec: PipelineSpec
    settings: Settings
    base: SparkSession
    lake: LakeCatalog
    journal: Journal
    read_points: ReadPointServer
    effects: Effects
    emit: Emit
    topology: JobTopology
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
    tables: dict[TableName, LakeTable] = field(default_factory=dict)
    set_aside: dict[TableName, Reason] = field(default_factory=dict)
    ownership: Ownership = field(default_factory=Ownership)
    lake_id: str | None = None
    observed_tables: dict[TableName, LakeTable] = field(default_factory=dict)
    monitor: RunMonitor = field(default_factory=RunMonitor)
    on_owned: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return self.settings.job

    @property
    def store(self) -> Store:
        return self.journal.store

    @property
    def definitions(self) -> Definitions:
        return self.topology.definitions

    @property
    def graph(self) -> Graph:
        return self.topology.graph

    @property
    def incarnation(self) -> str:
        """Of the store that the job was taken over in, even if another store stands in its place now."""
        return self.journal.incarnation or self.store.incarnation

    def commit_metadata(self, **fields: object) -> CommitMetadata:
        """Commit metadata of this run; `fields` are those of `CommitMetadata`."""
        return CommitMetadata(
            pipeline=self.spec.name,
            job=self.name,
            fence=self.journal.fence,
            store=self.incarnation,
            **fields,  # type: ignore[arg-type]
        )

    def file_table_metadata(self) -> CommitMetadata:
        """Of a commit to a table of files. Several jobs may write it, so its fence never rises: each commit
        only follows the version that it was made from."""
        return CommitMetadata(pipeline=self.spec.name, job=self.name, fence=Fence(1), store=self.incarnation)

    def lake_table(self, name: TableName) -> LakeTable:
        """A table of the job, an external one as the last cut observed it, or any other, which is loaded.

        Raises:
            TableMissingError: it does not exist.
        """
        return self.tables.get(name) or self.observed_tables.get(name) or self.lake.load(name)

    def input_table(self, name: TableName) -> ReadableTable:
        """What a flow reads by this name: a clock or a lake table.

        Raises:
            TableMissingError: it does not exist.
        """
        return ClockTable(name, self.base) if is_clock(name) else self.lake_table(name)

    def tables_of_other_jobs(self) -> dict[TableName, str]:
        """Tables that the job reads and another job of this store writes, with that job's name.

        The name is empty for a job that never ran. At a checkpoint such a table has the version that its
        own job recorded.
        """
        writers = self.store.roots.tables_of_other_jobs(self.name)
        names = self.topology.upstream_tables & (writers.keys() | self.topology.sibling_tables)
        return {name: writers.get(name, "") for name in names}

    def external_tables(self) -> frozenset[TableName]:
        """Lake tables that the job's flows and invariants read and no job of this store writes."""
        upstream = self.topology.upstream_tables
        return upstream - self.tables_of_other_jobs().keys() if upstream else upstream


@dataclass(frozen=True, slots=True)
class ClockTable:
    """A clock of `model.names` as a `ReadableTable` of one row."""

    name: TableName
    session: SparkSession

    def version_at(self, now_us: int) -> Version:
        """The clock's version at an instant, in microseconds since 1970."""
        if self.name == NOW:
            return Version(str(now_us))
        return Version(str(date_in_zone(self.session, time_zone_of(self.name), now_us)))

    def change_between(self, old: Version, new: Version) -> TableChange:
        kind = ChangeKind.NONE if old == new else ChangeKind.CHANGED
        return TableChange(
            kind=kind, reason=Reason.of(ReasonCode.TIME_MOVED, clock=describe_clock(self.name))
        )

    def changed_rows(self, session: SparkSession, old: Version, new: Version) -> RowChange:
        added, removed = clock_row(session, self.name, new), clock_row(session, self.name, old)
        return RowChange(added=added, removed=removed, rows=2)

    def row_count(self, version: Version) -> int:  # noqa: ARG002
        return 1

    def read(self, session: SparkSession, version: Version) -> DataFrame:
        return clock_row(session, self.name, version)
