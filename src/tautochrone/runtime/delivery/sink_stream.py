"""The flows of one sink that Spark writes, as streaming queries in a thread of their own.

A flow over datasets runs to its end for each published checkpoint and reads that checkpoint's versions. A
flow over outside sources alone runs to its end in a one-shot run, and without an end in a continuous one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from tautochrone.errors import FencedError, SinkFencedError
from tautochrone.iceberg.changes.streams import waits_for_first_version
from tautochrone.ingest.sink_query import SinkQuery
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.model.catalog import NEWEST, Streamed, job_read_point
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import SinkDeclaration, SinkFlow
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.sinks import StreamSink
from tautochrone.runtime.delivery.check_sinks import sink_input_error
from tautochrone.runtime.delivery.worker import SinkWorker
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import DeliveryJournal
from tautochrone.runtime.job.topology import project_tables
from tautochrone.runtime.refresh.sessions import session_at
from tautochrone.runtime.streams.stream_refresher import changes_rows, has_no_rows
from tautochrone.runtime.streams.streams import Streams
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["SinkStream"]

_FIRST_PAUSE_S = 1.0
_POLL_S = 1.0


@dataclass(slots=True)
class _Flow:
    """A flow, its query, and the versions that its session shows.

    Attributes:
        tables: of the project, that it reads.
        checkpoint: of which it took all rows in this run.
        has_started: its query has started in this run.
        has_ended: it reads no dataset, and took in a one-shot run what its sources had.
    """

    resolved: ResolvedFlow
    query: SinkQuery
    tables: frozenset[TableName]
    session: SparkSession | None = None
    versions: dict[TableName, Version] = field(default_factory=dict)
    empty: frozenset[TableName] = frozenset()
    checkpoint: CheckpointNumber | None = None
    has_started: bool = False
    has_ended: bool = False


class SinkStream(SinkWorker):
    """Writes one sink by streaming queries. See `SinkWorker`.

    Args:
        is_fresh: all rows are sent again.
        interval_ms: between the batches of a continuous run; None: the run is one-shot.
    """

    def __init__(
        self, job: Job, streams: Streams, sink: StreamSink, *, is_fresh: bool, interval_ms: int | None
    ) -> None:
        poll_s = None if interval_ms is None else _POLL_S
        super().__init__(job, sink.name, poll_s=poll_s, first_pause_s=_FIRST_PAUSE_S)
        self.target = sink.target
        self._sink = sink
        self._streams = streams
        self._interval_ms = interval_ms
        self._tables = project_tables(job.topology)
        self._journal = DeliveryJournal(job.journal, sink.name)
        self._is_fresh = is_fresh
        self._last_versions: Mapping[TableName, Version] = {}
        self._sent: dict[str, SinkFlow] = {}
        self._recorded: object = None
        self._flows: list[_Flow] = []

    @property
    def is_full_refresh_left(self) -> bool:
        """Whether all rows shall be sent again, and a flow has not begun to yet."""
        return self._is_fresh

    def wait_until_settled(self) -> None:
        # Another job may have completed a checkpoint.
        self.wake()
        super().wait_until_settled()

    # -- the thread -------------------------------------------------------------------------------

    def _close(self) -> None:
        try:
            for flow in self._flows:
                flow.query.stop()
            if self.fatal is None and self._flows:
                self._report()
        except Exception as error:
            self.fatal = self.fatal or error

    def _claim(self) -> None:
        sink = self._sink
        status = self._journal.status()
        self._journal.claim(
            SinkDeclaration(
                name=sink.name,
                format=sink.format,
                tables=tuple(sorted(sink.inputs & self._tables)),
                location=sink.location,
            ),
            Fence(0),
        )
        if status is not None and not self._is_fresh:
            self._sent = dict(status.flows)
            if status.delivered is not None:
                self._last_versions = status.delivered.versions
        self._flows = [
            _Flow(flow, self._streams.sink_query(sink, flow), flow.inputs.tables & self._tables)
            for flow in sink.flows
        ]

    def _work(self) -> None:
        if not self._flows:
            self._claim()
        self._advance_all(self._job.store.checkpoints.latest_published(self._job.name))
        if self._stopping.is_set():
            # What was interrupted did not succeed.
            return
        if self.error is None or all(_is_sound(flow.query) for flow in self._flows):
            self._failures, self.error = 0, None
        self._report()
        self._settle()

    def _advance_all(self, checkpoint: Checkpoint | None) -> None:
        """Advance each flow, whatever becomes of the others, and raise the first error."""
        errors: list[Exception] = []
        for flow in self._flows:
            try:
                self._advance(flow, checkpoint)
            except (FencedError, SinkFencedError):
                raise
            except Exception as error:
                require_live_jvm()
                errors.append(error)
        if errors:
            raise errors[0]

    def _advance(self, flow: _Flow, checkpoint: Checkpoint | None) -> None:
        if flow.tables:
            if checkpoint is not None and self._has_news(flow, checkpoint):
                self._read_checkpoint(flow, checkpoint)
        elif self._interval_ms is None:
            if not flow.has_ended:
                self._run_to_end(flow)
                flow.has_ended = not self._stopping.is_set()
        else:
            self._keep_running(flow, self._interval_ms)

    def _has_news(self, flow: _Flow, checkpoint: Checkpoint) -> bool:
        # Outside sources may have news without a checkpoint.
        return flow.checkpoint != checkpoint.number or flow.resolved.inputs.external_streams

    def _read_checkpoint(self, flow: _Flow, checkpoint: Checkpoint) -> None:
        versions = dict(self._job.store.checkpoints.versions_at(checkpoint.number))
        if not flow.tables <= versions.keys():
            # A table that could not be built yet; its own failure is reported.
            return
        flow.query.move_checkpoint_folder_from_last_owner()
        if flow.query.offsets() is not None:
            self._require_appends(flow, versions)
        elif self._is_rebuilt_since(flow, versions):
            # A full refresh of the table: its old rows must not be sent before the new ones.
            return
        flow.versions = versions
        flow.empty = self._empty_tables(flow)
        self._run_to_end(flow)
        if not self._stopping.is_set():
            flow.checkpoint = checkpoint.number

    def _run_to_end(self, flow: _Flow) -> None:
        """Run the flow until it has read what there is, or until the run stops."""
        self._start(flow, availableNow=True)
        cancelled = self._job.ownership.cancelled
        while flow.query.active and not self._stopping.wait(0.05):
            flow.query.collect()
            if cancelled.is_set() and not flow.tables:
                break
        flow.query.stop()
        flow.query.collect()
        failure = flow.query.failure()
        if failure is not None:
            raise failure

    def _keep_running(self, flow: _Flow, interval_ms: int) -> None:
        flow.query.collect()
        failure = flow.query.take_failure()
        if failure is not None:
            # The next try, after a pause, starts it again.
            raise failure
        if not flow.query.active:
            self._start(flow, processingTime=f"{interval_ms} milliseconds")

    def _start(self, flow: _Flow, **trigger: Any) -> None:
        flow.query.start(self._session(flow), **trigger)
        flow.has_started = True
        if self._is_fresh and all(flow.has_started for flow in self._flows):
            # The new queries did not read the versions that the store remembers of the old ones.
            status = self._journal.status()
            if status is not None and status.delivered is not None:
                self._journal.record(Deliveries.record_streamed, {}, status.delivered.checkpoint, {})
            self._is_fresh = False

    # -- what the flows read ----------------------------------------------------------------------

    def _require_appends(self, flow: _Flow, versions: Mapping[TableName, Version]) -> None:
        for name in sorted(flow.resolved.inputs.stream & flow.tables):
            last = self._last_versions.get(name) if not flow.versions else flow.versions.get(name)
            if last is None:
                continue
            change = self._job.lake_table(name).change_between(last, versions[name])
            if changes_rows(change):
                raise sink_input_error(self.name, name, change.reason)

    def _is_rebuilt_since(self, flow: _Flow, versions: Mapping[TableName, Version]) -> bool:
        """Whether the rows of an input changed after these versions, so that a later checkpoint follows."""
        tables = map(self._job.lake_table, flow.resolved.inputs.stream & flow.tables)
        return any(
            changes_rows(table.change_between(versions[table.name], table.current_version()))
            for table in tables
        )

    def _empty_tables(self, flow: _Flow) -> frozenset[TableName]:
        """Tables that are shown as tables without versions; see `has_no_rows`."""
        offsets = flow.query.offsets()
        if offsets is not None and not waits_for_first_version(offsets):
            return frozenset()
        streamed = flow.resolved.inputs.stream & flow.tables
        return frozenset(
            name for name in streamed if has_no_rows(self._job.lake_table(name), flow.versions[name])
        )

    def _session(self, flow: _Flow) -> SparkSession:
        if flow.session is None:
            job, query = self._job, flow.resolved.flow
            read_point = job_read_point(f"sink-{job.journal.fence}-{id(flow)}", job.name)

            def lookup(table: TableName) -> Version | str | Streamed | None:
                version = NO_VERSION if table in flow.empty else flow.versions.get(table)
                if version is None and table in self._tables:
                    return None
                shown = NEWEST if version is None else version
                return self._streams.streamed(self._sink.target, query.name, shown)

            job.read_points.show(read_point, lookup)
            catalog, database = job.settings.catalog.name, query.scope.namespace[0]
            flow.session = session_at(job.base, job.read_points, read_point, catalog, database, query.conf)
        return flow.session

    # -- what people see --------------------------------------------------------------------------

    def _report(self) -> None:
        """Store how far the flows have come, if that changed."""
        for flow in self._flows:
            flow.query.collect()
        flows = self._progress()
        done = {flow.checkpoint for flow in self._flows if flow.tables}
        checkpoint = next(iter(done)) if len(done) == 1 else None
        state = flows, checkpoint, self.error
        if self.error is not None or state == self._recorded:
            return
        versions: dict[TableName, Version] = {}
        if checkpoint is not None:
            for flow in self._flows:
                versions |= {name: flow.versions[name] for name in flow.tables}
        self._journal.record(Deliveries.record_streamed, flows, checkpoint, versions)
        self._recorded = state

    def _progress(self) -> dict[str, SinkFlow]:
        flows: dict[str, SinkFlow] = {}
        for flow in self._flows:
            name = flow.resolved.flow.name
            before = self._sent.get(name)
            if flow.query.batch is not None:
                rows = flow.query.rows + (0 if before is None else before.rows)
                flows[name] = SinkFlow(batch=flow.query.batch, rows=rows)
            elif before is not None:
                flows[name] = before
        return flows

    def _on_failure(self, error: Exception) -> None:
        require_live_jvm()
        is_last = self._interval_ms is None
        text = self._failure_text(error)
        if self._journal.fence:
            self._journal.record_failure(text, failures=self._failures, skips=False, attention=False)
        self._recorded = None
        self._report_failure(error, text, is_last=is_last)
        self._settle()
        if not is_last:
            self._pause()


def _is_sound(query: SinkQuery) -> bool:
    """Whether a query runs and has succeeded since its start, or ended without a failure."""
    return (query.has_completed_once or not query.active) and query.failure() is None
