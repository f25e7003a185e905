"""One job: a pipeline's project bound to its lake, its store and its fence.

Everything else in `runtime` takes a `Job` and does one thing with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from tautochrone.meta.coordinator import PATIENCE_MS
from tautochrone.meta.repository import compare_fence
from tautochrone.meta.store import MetaStore
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.clock import is_clock
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.details import DatasetDetails
from tautochrone.model.effects import Effects, Step
from tautochrone.model.events import Emit
from tautochrone.model.invariants import BrokenInvariant
from tautochrone.model.lake import CommitNote, LakeTable, ReadableTable, TableDefinition
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.read_points import ReadPointServer
from tautochrone.model.refresh import Refresh, RefreshMode
from tautochrone.model.sources import SkippedFiles
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.redaction import redacted
from tautochrone.runtime.job.clock_table import ClockTable
from tautochrone.runtime.job.running_job import Ownership

__all__ = ["Job", "Journal"]


@dataclass(slots=True)
class Journal:
    """The store, seen by the owner of a job: every write carries its fence and is a named step."""

    store: MetaStore
    name: str
    effects: Effects
    fence: Fence = field(default_factory=lambda: Fence(0))
    incarnation: str | None = None
    """The store that gave the fence; None before the takeover."""
    newest: int = 0
    """The highest checkpoint number that the store gave this owner."""

    def require(self) -> None:
        """Ask the store whether the fence is still the newest, before a step that it does not see.

        Raises:
            FencedError: a newer owner exists.
            MetaError: the fence was not given by this store.
        """
        compare_fence(self.name, self.fence, self.store.fence(self.name))

    def report(self, versions: Mapping[TableName, Version]) -> None:
        """One unit: a cut takes all of it or nothing."""
        self.effects.perform(
            Step.META_REPORT,
            str(next(iter(versions))),
            lambda: self.store.report(self.name, self.fence, versions),
        )

    def describe(self, details: Sequence[DatasetDetails]) -> None:
        self.effects.perform(
            Step.META_DESCRIBE, self.name, lambda: self.store.describe(self.name, self.fence, details)
        )

    def skipped_files(self, table: TableName, flow: str, skipped: Sequence[SkippedFiles]) -> None:
        """All that is known now of files that the flow did not take in."""
        self.effects.perform(
            Step.META_SKIPPED_FILES,
            str(table),
            lambda: self.store.note_skipped_files(self.name, self.fence, table, flow, skipped),
        )

    def observe(self, table: TableName, before: Version | None, now: Version) -> Version:
        """Somebody else's table moved; answers the version that counts."""
        return self.effects.perform(
            Step.META_OBSERVE,
            str(table),
            lambda: self.store.observe(self.name, self.fence, table, before, now),
        )

    def open(
        self,
        roots: Mapping[TableName, Version],
        cut_at_ms: int,
        at_least: int = 0,
        *,
        looked_ms: int | None = None,
        looks: Mapping[TableName, int] | None = None,
        patience_ms: int = PATIENCE_MS,
        align_ms: int | None = None,
    ) -> Checkpoint:
        opened = self.effects.perform(
            Step.META_OPEN,
            self.name,
            lambda: self.store.open_checkpoint(
                self.name,
                self.fence,
                roots,
                cut_at_ms,
                at_least=at_least,
                looked_ms=looked_ms,
                looks=looks,
                patience_ms=patience_ms,
                align_ms=align_ms,
                store=self.incarnation,
                after=self.newest,
            ),
        )
        self.newest = max(self.newest, opened.number)
        return opened

    def take(self) -> Checkpoint | None:
        """The checkpoint that the job has to do, if there is one; it begins with it."""
        if self.store.open_target(self.name) is None:
            return None
        taken = self.effects.perform(
            Step.META_TAKE, self.name, lambda: self.store.take_target(self.name, self.fence)
        )
        self.newest = max(self.newest, 0 if taken is None else taken.number)
        return taken

    def version(self, number: CheckpointNumber, table: TableName, version: Version, refresh: Refresh) -> None:
        # Reasons may quote expressions, and a definition may have read a secret into one.
        nodes = tuple(replace(node, reason=redacted(node.reason)) for node in refresh.nodes)
        told = replace(refresh, reason=redacted(refresh.reason), nodes=nodes)
        self.effects.perform(
            Step.META_VERSION,
            str(table),
            lambda: self.store.record_version(self.name, self.fence, number, table, version, told),
        )

    def failure(
        self, number: CheckpointNumber, table: TableName, error: str, mode: RefreshMode | None = None
    ) -> None:
        self.effects.perform(
            Step.META_FAILURE,
            str(table),
            lambda: self.store.record_failure(self.name, self.fence, number, table, redacted(error), mode),
        )

    def abort(self, number: CheckpointNumber, broken: Sequence[BrokenInvariant] = ()) -> None:
        # The rows that break one are whatever the lake holds.
        told = [
            replace(
                one,
                sample=tuple(map(redacted, one.sample)),
                problem=None if one.problem is None else redacted(one.problem),
            )
            for one in broken
        ]
        self.effects.perform(
            Step.META_ABORT,
            self.name,
            lambda: self.store.abort(self.name, self.fence, number, broken=told),
        )

    def publish(
        self,
        number: CheckpointNumber,
        at_ms: int,
        cpu_ms: int | None = None,
        held: Mapping[str, str] | None = None,
    ) -> None:
        self.effects.perform(
            Step.META_PUBLISH,
            self.name,
            lambda: self.store.publish(self.name, self.fence, number, at_ms, cpu_ms=cpu_ms, held=held),
        )


@dataclass(slots=True, kw_only=True)
class Job:
    """See the module docstring. `tables` is filled by the takeover.

    `graph` is the whole project's; its order has the job's own tables only. `elsewhere` are those that other
    jobs of the project bring up to date.
    """

    spec: PipelineSpec
    settings: Settings
    base: SparkSession
    lake: LakeCatalog
    journal: Journal
    read_points: ReadPointServer
    effects: Effects
    emit: Emit
    definitions: Definitions
    graph: Graph
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
    """The time of whoever takes cuts, in microseconds since 1970."""
    tables: dict[TableName, LakeTable] = field(default_factory=dict)
    elsewhere: frozenset[TableName] = frozenset()
    ownership: Ownership = field(default_factory=Ownership)
    lake_id: str | None = None
    """Tells this lake from others, copies of it included; None where nobody asks."""

    @property
    def name(self) -> str:
        return self.settings.job

    @property
    def store(self) -> MetaStore:
        return self.journal.store

    @property
    def incarnation(self) -> str:
        """The store that the job was taken over in, whatever stands in its place by now."""
        return self.journal.incarnation or self.store.incarnation

    def note(self, **fields: object) -> CommitNote:
        """A note of this run; `fields` are those of `CommitNote`."""
        return CommitNote(
            pipeline=self.spec.name,
            job=self.name,
            fence=self.journal.fence,
            store=self.incarnation,
            **fields,  # type: ignore[arg-type]
        )

    def definition(self, name: TableName) -> TableDefinition:
        """What the job's table `name` is created as."""
        dataset = self.definitions.datasets[name]
        return TableDefinition(
            name=name,
            schema=self.graph.schemas[name],
            comment=dataset.comment,
            partition_columns=dataset.partition_columns,
            cluster_columns=dataset.cluster_columns,
            properties=dataset.properties,
        )

    def lake_table(self, name: TableName) -> LakeTable:
        """A table of the job's own, or somebody else's, fresh from the catalog.

        Raises:
            TableMissingError: it is not there.
        """
        return self.tables.get(name) or self.lake.load(name)

    def input_table(self, name: TableName) -> ReadableTable:
        """What a view reads under a name: a clock, or a lake table as `lake_table` finds it.

        Raises:
            TableMissingError: it is not there.
        """
        return ClockTable(name, self.base) if is_clock(name) else self.lake_table(name)

    def flows(self, table: TableName) -> tuple[ResolvedFlow, ...]:
        return self.graph.flows_of(table)

    def is_view(self, table: TableName) -> bool:
        return self.definitions.datasets[table].kind is DatasetKind.MATERIALIZED_VIEW

    def outside_flows(self, table: TableName) -> list[ResolvedFlow]:
        """Flows that read from outside the lake: ingestion."""
        if self.is_view(table):
            return []
        return [flow for flow in self.flows(table) if not flow.inputs.stream]

    def derived_flows(self, table: TableName) -> list[ResolvedFlow]:
        """Flows that read a stream of lake tables: brought to each cut."""
        return [flow for flow in self.flows(table) if not self.is_view(table) and flow.inputs.stream]

    def quarantine_table(self, table: TableName) -> TableName | None:
        """The table that takes the bad records of a table's flows, if one does."""
        found = (
            name for name, dataset in self.definitions.datasets.items() if dataset.bad_records_of == table
        )
        return next(found, None)

    @property
    def root_tables(self) -> list[TableName]:
        """Datasets that only ingestion writes: their version at a cut is what was reported."""
        return [t for t in self.graph.order if not self.is_view(t) and not self.derived_flows(t)]

    @property
    def derived_tables(self) -> list[TableName]:
        """Datasets that are brought to each cut, in topological order."""
        roots = set(self.root_tables)
        return [table for table in self.graph.order if table not in roots]

    def inputs(self, table: TableName) -> frozenset[TableName]:
        """Lake tables and clocks that a dataset's flows read."""
        read = self.graph.inputs(table)
        return (read.tables | read.clocks) - {table}

    def foreign(self) -> dict[TableName, str]:
        """The tables that the job reads and another job of this store writes, with that job's name, which
        is empty while it never ran. At a checkpoint they are what their own job recorded for it."""
        known = self.store.foreign(self.name)
        read = {name for name in self._read_only if not is_clock(name)}
        return {name: known.get(name, "") for name in read & (known.keys() | self.elsewhere)}

    def external_tables(self) -> frozenset[TableName]:
        """Lake tables that the job reads (its invariants too) and no job of this store writes."""
        read = frozenset(name for name in self._read_only if not is_clock(name))
        return read - self.foreign().keys() if read else read

    @property
    def clocks(self) -> frozenset[TableName]:
        """The clocks that the job reads."""
        return frozenset(filter(is_clock, self._read_only))

    @property
    def _read_only(self) -> frozenset[TableName]:
        read = frozenset[TableName]().union(
            *(self.inputs(table) for table in self.graph.order),
            *(one.tables for one in self.graph.invariants),
        )
        return read - set(self.graph.order)

    def fingerprint(self, table: TableName) -> str:
        """Of all flows of a dataset together."""
        return "+".join(sorted(flow.fingerprint for flow in self.flows(table)))
