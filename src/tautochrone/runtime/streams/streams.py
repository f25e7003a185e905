"""The streaming flows of a job: from resolved flows to queries bound to tables and folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from tautochrone.ingest.checkpoint_folder import CheckpointFolder, Files, FlowCheckpointFolders
from tautochrone.ingest.committer import TableCommitter
from tautochrone.ingest.flow import FlowQuery, spark_position
from tautochrone.ingest.log_flow import DEFAULT_MAX_EVENTS, LogFlow
from tautochrone.ingest.running_flow import RunningFlow
from tautochrone.ingest.sink_query import SinkQuery
from tautochrone.ingest.snapshot_flow import SnapshotFlow
from tautochrone.ingest.source_checks import KafkaTopics, RowsLeftOut, SourceChecks, SourceOrder
from tautochrone.ingest.source_files import SkippedFilesCheck
from tautochrone.ingest.spark_query import StreamingFlow
from tautochrone.meta.protocols.checkpoints import Roots
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.model.auto_cdc import column_named
from tautochrone.model.catalog import FullSnapshotRead, Streamed, job_read_point
from tautochrone.model.definitions import ExpectationCount
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.run_report import FlowSource, SourceKind
from tautochrone.model.source import BadRecords, RecreatedTopic, SkipsUnusedColumns
from tautochrone.project.definitions import Definitions, Snapshots
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.sinks import StreamSink
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.sessions import session_at
from tautochrone.runtime.streams.change_logs import (
    change_log_of,
    kept_columns,
    relations_to_copy,
    tables_of_change_files,
    tables_of_copied_files,
)
from tautochrone.runtime.streams.flow_settings import LimitedFlow
from tautochrone.spark.sources.registry import kind_and_name

__all__ = ["Streams", "folders_of_streams"]

_CHECKPOINTS, _POSITIONS = "_checkpoints", "_positions"
_START_FILES = "_beginnings"
"""The folder of metadata files that a flow reads while it begins with all rows of a version."""


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """A flow that creates its views again at each evaluation, because a view keeps the tables it was made
    of.

    Rows that expectations drop are there: who writes the flow's rows counts and drops them.
    """

    definitions: Definitions
    flow: ResolvedFlow

    @property
    def name(self) -> str:
        return self.flow.flow.name

    def evaluate(self, session: SparkSession) -> DataFrame:
        self.definitions.prepare(session, self.flow.views)
        return self.flow.flow.evaluate(session, with_dropped=True)

    def with_flags(self, rows: DataFrame) -> DataFrame:
        return self.flow.flow.with_flags(rows)


class Streams:
    """Makes and remembers the job's stream queries, one per flow."""

    def __init__(self, job: Job, full: frozenset[TableName] = frozenset()) -> None:
        """`full`: the tables that are rebuilt, and the sinks to which all rows are sent again."""
        self._job = job
        self._full = full
        self._files = Files(job.base)
        self._committers: dict[TableName, TableCommitter] = {}
        self._queries: dict[str, FlowQuery] = {}
        self._logs: dict[str, LogFlow] = {}
        self._snapshot_flows: dict[str, SnapshotFlow] = {}
        self._full_reads: dict[str, tuple[FullSnapshotRead, ...]] = {}
        # A store and its copy may give two processes the same fence; the token keeps their folders apart.
        self._token = uuid4().hex[:8]

    def query(self, table: TableName, flow: ResolvedFlow) -> FlowQuery:
        """The flow's query. The first call reads the table's position."""
        name = flow.flow.name
        if name not in self._queries:
            commit_metadata = self._job.tables[table].fork().commit_metadata
            bad_records = self._job.settings.bad_records.get(name)
            evaluated = _Evaluated(self._job.definitions, flow)
            folders = self.folders(table, name)
            self._queries[name] = FlowQuery(
                flow=self._limited(evaluated),
                stateful=flow.stateful,
                schema=self._job.graph.schemas[table],
                committer=self._committer(table),
                folder=folders.own,
                folders=folders,
                require_fence=self._job.journal.require,
                effects=self._job.effects,
                emit=self._job.emit,
                position=spark_position(commit_metadata, name, table),
                begin=partial(self._rows_and_initial_offsets, table, evaluated)
                if flow.inputs.stream
                else None,
                expectations=flow.flow.expectations,
                report_expectations=partial(self._record_root_expectations, table),
                bad_records=BadRecords.FAIL if bad_records is None else bad_records.policy,
                checks=self._checks(table, name) if flow.inputs.external_streams else SourceChecks(),
            )
        return self._queries[name]

    def running_flow(self, table: TableName, flow: ResolvedFlow) -> RunningFlow:
        """What runs a flow over a source: Spark, or this program where the source is a change log or a
        function that returns snapshots.

        Raises:
            DefinitionError: `CHANGE_LOG_QUERY`, the flow does more than read a change log.
        """
        name = flow.flow.name
        if flow.flow.snapshots is not None:
            return self._snapshot_flow(table, flow, flow.flow.snapshots)
        if name not in self._logs:
            log = change_log_of(self._job.graph, flow)
            if log is None:
                return self.query(table, flow)
            if isinstance(log, SkipsUnusedColumns):
                log.set_lake_columns(kept_columns(self._job, table))
            limits = self._job.settings.limits.get(name)
            max_events = DEFAULT_MAX_EVENTS if limits is None else limits.options["maxEventsPerTrigger"]
            self._logs[name] = LogFlow(
                max_events=max_events,
                name=name,
                log=log,
                schema=self._job.graph.schemas[table],
                committer=self._committer(table),
                effects=self._job.effects,
                emit=self._job.emit,
                require_fence=self._job.journal.require,
                to_copy=partial(relations_to_copy, self._job, table),
                tables_of_copied_files=partial(tables_of_copied_files, self._job, table),
                tables_of_change_files=partial(tables_of_change_files, self._job, table),
            )
        return self._logs[name]

    @property
    def flows(self) -> frozenset[str]:
        """The names of the flows that were made here."""
        return frozenset(self._queries.keys() | self._logs.keys() | self._snapshot_flows.keys())

    def sources(self) -> Iterator[FlowSource]:
        """What the flows that were made here read outside of the lake."""
        made_here = self.flows
        for table in self._job.graph.order:
            for flow in self._job.topology.ingestion_flows(table):
                name = flow.flow.name
                if name not in made_here:
                    continue
                if name in self._logs:
                    kinds = [(SourceKind.DATABASE, self._logs[name].log.name)]
                else:
                    kinds = [kind_and_name(source) for source in sorted(flow.sources)]
                if not kinds and (flow.inputs.external_streams or flow.flow.snapshots is not None):
                    kinds = [(SourceKind.OTHER, f"what {name} reads")]
                for kind, source in kinds:
                    yield FlowSource(flow=name, dataset=str(table), kind=kind, name=source)

    def _snapshot_flow(self, table: TableName, flow: ResolvedFlow, snapshots: Snapshots) -> SnapshotFlow:
        name = flow.flow.name
        if name not in self._snapshot_flows:
            schema, location = self._job.graph.schemas[table], str(flow.flow.location)
            self._snapshot_flows[name] = SnapshotFlow(
                name=name,
                next_snapshot=snapshots.next_snapshot,
                keys=[column_named(key, schema.names, location) for key in snapshots.keys],
                columns=snapshots.data_columns,
                schema=schema,
                committer=self._committer(table),
                base=self._job.base,
                emit=self._job.emit,
                require_fence=self._job.journal.require,
            )
        return self._snapshot_flows[name]

    def sink_query(self, sink: StreamSink, flow: ResolvedFlow) -> SinkQuery:
        """A query that writes a flow's rows into a sink."""
        name = flow.flow.name
        evaluated = _Evaluated(self._job.definitions, flow)
        return SinkQuery(
            flow=self._limited(evaluated),
            sink=sink.name,
            format=sink.format,
            options=sink.options,
            files=self._files,
            folders=self.folders(sink.target, name),
            effects=self._job.effects,
            emit=self._job.emit,
            begin=partial(self._rows_and_initial_offsets, sink.target, evaluated)
            if flow.inputs.stream
            else None,
            require_fence=self._job.journal.require,
        )

    def _limited(self, flow: _Evaluated) -> StreamingFlow:
        limits = self._job.settings.limits.get(flow.name)
        return flow if limits is None else LimitedFlow(flow, limits.options)

    def stop(self) -> None:
        """End all flows that were made here, whatever became of them."""
        flows: list[RunningFlow] = [
            *self._queries.values(),
            *self._logs.values(),
            *self._snapshot_flows.values(),
        ]
        for flow in flows:
            flow.stop()

    def _record_root_expectations(self, table: TableName, counts: Sequence[ExpectationCount]) -> None:
        # Derived tables tell of them with their refresh.
        if table in self._job.topology.root_tables:
            self._job.journal.record(Datasets.record_expectations, table, counts)

    def _checks(self, table: TableName, flow: str) -> SourceChecks:
        job = self._job
        setting = job.settings.recreated_topics.get(flow)
        return SourceChecks(
            (
                SkippedFilesCheck(
                    flow=flow,
                    dataset=str(table),
                    emit=job.emit,
                    stored=lambda: [
                        files for files in job.store.datasets.skipped_files(table) if files.flow == flow
                    ],
                    store=lambda skipped: job.journal.record(
                        Datasets.record_skipped_files, table, flow, skipped
                    ),
                ),
                RowsLeftOut(flow, str(table), job.emit),
                SourceOrder(flow),
                KafkaTopics(
                    flow=flow,
                    dataset=str(table),
                    policy=RecreatedTopic.FAIL if setting is None else setting.policy,
                    emit=job.emit,
                ),
            )
        )

    def streamed(self, table: TableName, flow: str, version: Version | str) -> Streamed:
        """A version of an input as a flow into `table` reads it as a stream."""
        return Streamed(version, self._full_reads.get(flow, ()), self._start_files(table, flow))

    def exclusive(self, table: TableName) -> AbstractContextManager[object]:
        """Keeps the table's flows from committing while it is entered."""
        # Batches and bad records of a table have one committer.
        dataset = self._job.definitions.datasets.get(table)
        owner = None if dataset is None else dataset.bad_records_of
        committer = self._committers.get(owner or table)
        return nullcontext() if committer is None else committer.exclusive

    def session(self, flow: ResolvedFlow) -> SparkSession:
        """Where an ingestion flow is evaluated: datasets that it joins with are read at the newest
        published checkpoint."""
        job, query = self._job, flow.flow
        read_point, catalog = job_read_point("published", job.name), job.settings.catalog.name
        return session_at(
            job.base, job.read_points, read_point, catalog, query.scope.namespace[0], query.conf
        )

    def spark_folder(self, table: TableName, flow: ResolvedFlow) -> tuple[CheckpointFolder, bool]:
        """The folder in which Spark's own pipelines ran the flow, and whether it is the one that we use.

        Spark's pipelines name the folder by the last part of the flow's name. Our name also has the database
        when it is not the pipeline's. The archive of either folder is in ours.
        """
        ours = self.folders(table, flow.flow.name).without_owner
        name = flow.flow.name.rsplit(".", 1)[-1]
        if name == flow.flow.name:
            return ours, True
        root = self._root(_CHECKPOINTS, table, name)
        number = max((int(n) for n in self._files.names(root) if n.isdigit()), default=0)
        return CheckpointFolder(self._files, f"{root}/{number}", ours.archive), False

    def _rows_and_initial_offsets(
        self,
        table: TableName,
        flow: _Evaluated,
        session: SparkSession,
        initial_offsets: Mapping[int, str],
        current_offsets: Mapping[int, str],
    ) -> tuple[DataFrame, Mapping[int, str]]:
        """See `ingest.spark_query.Begin`. The current tables decide how they are shown to the flow."""
        before = self._full_reads.pop(flow.name, None)
        if before is None:
            # An earlier process may have left files; the needed ones are written again.
            self._delete_start_files(table, flow.name)
        rows = flow.evaluate(session)
        beginning = self._job.lake.beginning(rows, initial_offsets, current_offsets, before or ())
        self._full_reads[flow.name] = beginning.whole
        if before and _has_files(before) and not _has_files(beginning.whole):
            self._delete_start_files(table, flow.name)
        return flow.evaluate(session) if beginning.whole else rows, beginning.offsets

    def _start_files(self, table: TableName, flow: str) -> str:
        """The folder of this owner's metadata files for the flow; an older owner cannot delete it."""
        return f"{self._root(_START_FILES, table, flow)}/{self._job.journal.fence}-{self._token}"

    def _delete_start_files(self, table: TableName, flow: str) -> None:
        """Delete the files of this owner and of older ones."""
        root, own_fence = self._root(_START_FILES, table, flow), self._job.journal.fence
        folders = []
        for name in self._files.names(root):
            fence, _, token = name.partition("-")
            if fence.isdigit() and (int(fence) < own_fence or token == self._token):
                folders.append(f"{root}/{name}")
        if folders:
            self._job.journal.require()
            self._job.effects.perform(Step.INGEST_CLEAN, str(table), lambda: self._delete(folders))

    def _delete(self, folders: list[str]) -> None:
        for folder in folders:
            self._files.delete(folder)

    def _committer(self, table: TableName) -> TableCommitter:
        if table not in self._committers:
            quarantine = self._job.topology.quarantine_table(table)
            self._committers[table] = TableCommitter(
                table=self._job.tables[table],
                commit_metadata=self._job.commit_metadata(),
                report=lambda versions: self._job.journal.record(Roots.report, versions),
                emit=self._job.emit,
                quarantine_table=None if quarantine is None else self._job.tables[quarantine],
            )
        return self._committers[table]

    def folders(self, table: TableName, flow: str) -> FlowCheckpointFolders:
        """Where the flow's queries run. A full refresh starts in a folder of its own, as Spark's does."""
        return FlowCheckpointFolders(
            self._files,
            self._root(_CHECKPOINTS, table, flow),
            self._root(_POSITIONS, table, flow),
            fence=int(self._job.journal.fence),
            token=self._token,
            fresh=table in self._full,
        )

    def highest_fence(self) -> Fence:
        """Of all owners that left a folder of one of the job's flows: the next one must be above it."""
        topology = self._job.topology
        targets = [table for table in topology.graph.order if not topology.is_view(table)]
        folders = (
            self.folders(target, flow.flow.name)
            for target in (*targets, *topology.definitions.sinks)
            for flow in topology.flows(target)
        )
        return Fence(max((folder.highest_fence() for folder in folders), default=0))

    def _root(self, kind: str, table: TableName, flow: str) -> str:
        return f"{_folder(self._job.settings.storage_root, kind, table)}/{flow}"


def folders_of_streams(storage_root: str, table: TableName) -> list[str]:
    """Where the streams into a table, or a sink, keep what they need: each flow has a folder in each of them.

    >>> folders_of_streams("file:/s", TableName("lake", ("shop",), "orders"))[0]
    'file:/s/_checkpoints/lake/shop/orders'
    """
    return [_folder(storage_root, kind, table) for kind in (_CHECKPOINTS, _POSITIONS, _START_FILES)]


def _folder(storage_root: str, kind: str, table: TableName) -> str:
    return "/".join((storage_root, kind, table.catalog, *table.namespace, table.table))


def _has_files(full_reads: tuple[FullSnapshotRead, ...]) -> bool:
    return any(read.manifests is not None for read in full_reads)
