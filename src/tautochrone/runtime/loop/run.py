"""One execution of a job.

    take over → ingest ‖ checkpoint → maintain → checkpoint → …

Ingestion runs in Spark's streaming threads and never waits for a checkpoint. What happens in a checkpoint is
in `checkpoint_loop`. When Spark's Java process dies, the run ends with one event instead of many secondary
errors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from pyspark.sql import SparkSession

from tautochrone.errors import FencedError, SparkDiedError, TautochroneError
from tautochrone.ingest.running_flow import RunningFlow
from tautochrone.model import events
from tautochrone.model.catalog import NEWEST, job_read_point
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import WorkPhase
from tautochrone.runtime.delivery.deliveries import Deliveries
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.ownership import Heartbeat
from tautochrone.runtime.job.topology import Selection
from tautochrone.runtime.loop.checkpoint_loop import CheckpointLoop, Outcome
from tautochrone.runtime.loop.publication import Publication
from tautochrone.runtime.loop.takeover import clear_table, take_over
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.streams.ingestion import Ingestion
from tautochrone.runtime.streams.streams import Streams
from tautochrone.spark.session.jvm_liveness import jvm_error
from tautochrone.traces import trace_of

__all__ = ["Run", "RunState", "wait_while_alive"]

_POLL_S = 0.05
_CHECK_S = 1.0
"""How often a waiting run asks whether Spark is alive."""
_FIRST_BATCHES_S = 30.0
"""How long the first checkpoint of a job waits for rows: without any, every view is built for nothing."""


class RunState(StrEnum):
    """How a run ended, in SDP's words."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Run:
    """One execution of a job: call `once` or `continuously`.

    Args:
        definitions_load: whether the definitions can be loaded as their sources are now, asked after such a
            failure. A continuous run then ends when a source changed, or lets its user in again with a new
            password, so that the next run loads them; without it the run goes on, and the flow of that
            source fails.
        before_checkpoints: called once the job is taken over, before its first checkpoint.

    Attributes:
        died: why Spark is gone, if it died during the run.
        outdated: why the run ended so that definitions are loaded anew.
    """

    def __init__(
        self,
        job: Job,
        selection: Selection | None = None,
        definitions_load: Callable[[TautochroneError], bool] | None = None,
        before_checkpoints: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_checkpoints = before_checkpoints
        self._job = job
        self._definitions_load = definitions_load
        self._selection = selection or Selection()
        self._stopping = threading.Event()
        self._streams = Streams(job, self._selection.full | self._selection.full_sinks)
        self._ingestion = Ingestion(job.emit, on_progress=job.monitor.made_progress)
        self._heartbeat = Heartbeat(job.journal, job.settings.lease_ms, job.emit, job.monitor)
        self._publication = Publication(job.store, job.settings, job.emit, self._stopping)
        self._deliveries = Deliveries(job, self._streams, self._selection)
        self._checkpoints = CheckpointLoop(
            job,
            self._ingestion,
            self._streams,
            self._publication,
            self._heartbeat,
            self._deliveries,
            self._selection.full,
        )
        self._cleared: set[TableName] = set()
        self._maintenance = Maintenance(job, exclusive=self._streams.exclusive)
        self.died: SparkDiedError | None = None
        self.outdated: TautochroneError | None = None
        job.read_points.show(job_read_point("published", job.name), self._published_version)

    def stop(self) -> None:
        """Ask for an orderly end: the running batch and the open checkpoint are finished first."""
        self._stopping.set()
        self._job.ownership.cancelled.set()

    @property
    def problems(self) -> dict[str, str]:
        """Current errors by flow, dataset or invariant, and checkpoints that the run leaves unpublished."""
        unreadable = self._publication.unreadable
        return self._ingestion.problems | self._checkpoints.problems | unreadable | self._deliveries.problems

    @property
    def full_refreshes_left(self) -> frozenset[TableName]:
        """Tables and sinks of the selection whose full refresh has not happened: a streaming table is not
        cleared, a view not computed anew, a sink's flows did not all begin anew."""
        tables = self._selection.full - self._cleared
        views = {table for table in tables if self._job.topology.is_view(table)}
        done = views - self._checkpoints.full_refreshes_left
        return (tables - done) | self._deliveries.full_refreshes_left

    def once(self) -> RunState:
        """Ingest what is available now, publish it, end."""
        try:
            self._begin_run(availableNow=True)
            self._job.monitor.works(WorkPhase.INGESTING)
            self._ingestion.wait(self._stopping)
            self._ingestion.stop()
            self._checkpoints.advance_and_wait(for_absent_jobs=True)
            if not self._checkpoints.breaks_invariants:
                self._publication.wait(partial(self._checkpoints.advance_and_wait, for_absent_jobs=True))
            self._job.monitor.works(WorkPhase.DELIVERING)
            self._deliveries.finish()
            self._job.monitor.works(WorkPhase.MAINTAINING)
            self._maintenance.between_checkpoints()
            return self._finish(RunState.CANCELED if self._stopping.is_set() else RunState.COMPLETED)
        except Exception as error:
            self._heartbeat.failed(error)
            self.died = _report_spark_death(self._job.name, self._job.emit, error)
            self._heartbeat.failed(self.died)
            return RunState.FAILED
        finally:
            self._deliveries.stop()
            self._heartbeat.close()

    def again(self) -> None:
        """Make one more checkpoint after `once`, without ingestion, in the same sessions."""
        self._checkpoints.advance_and_wait()
        self._maintenance.between_checkpoints()

    def continuously(self, interval_ms: int) -> RunState:
        """Ingest, and publish a checkpoint at most every `interval_ms`, until `stop`."""
        try:
            self._begin_run(interval_ms, processingTime=f"{interval_ms} milliseconds")
            try:
                self._wait_for_first_batches()
                while not self._stopping.is_set():
                    started = time.monotonic()
                    self._ingestion.watch()
                    outdated = self._ingestion.take_outdated() or self._checkpoints.take_outdated()
                    if outdated and self._definitions_load is not None and self._definitions_load(outdated):
                        self.outdated = outdated
                        break
                    self._ingestion.report_deferred()
                    self._deliveries.require_alive()
                    outcome = self._checkpoints.advance()
                    self._publication.report_outcome()
                    is_waiting = outcome is Outcome.WAIT
                    if not is_waiting:
                        self._job.monitor.works(WorkPhase.MAINTAINING)
                    self._maintenance.between_checkpoints()
                    if not is_waiting:
                        self._job.monitor.works(None)
                    remaining_s = interval_ms / 1000 - (time.monotonic() - started)
                    wait_while_alive(self._stopping, _POLL_S if is_waiting else remaining_s)
            finally:
                self._ingestion.stop()
                if self.outdated is None:
                    self._ingestion.report_deferred()
            self._checkpoints.advance_and_wait()
            self._job.monitor.works(WorkPhase.DELIVERING)
            self._deliveries.finish()
            return self._finish()
        except Exception as error:
            self._heartbeat.failed(error)
            self.died = _report_spark_death(self._job.name, self._job.emit, error)
            self._heartbeat.failed(self.died)
            return RunState.FAILED
        finally:
            self._deliveries.stop()
            self._heartbeat.close()

    def _begin_run(self, interval_ms: int | None = None, **trigger: object) -> None:
        """Take the job over, empty the tables that are rebuilt, start ingestion."""
        job = self._job
        flows = [flow.flow.name for table in job.graph.order for flow in job.topology.ingestion_flows(table)]
        job.monitor.begin(job.store.jobs.report(job.name), flows, job.graph.order)
        job.monitor.runs_every(interval_ms)
        self._publication.begin()
        take_over(self._job, self._selection.full, self._heartbeat.start)
        self._before_checkpoints()
        for table in self._job.graph.order:
            if table in self._selection.full:
                clear_table(self._job, table)
                if not self._job.topology.is_view(table):
                    self._cleared.add(table)
        self._deliveries.begin(interval_ms)
        self._checkpoints.begin()
        ingested = self._ingestion_flows()
        self._job.monitor.reads(self._streams.flows, self._streams.sources())
        self._ingestion.start(ingested, self._job.store.now_ms(), **trigger)

    def _wait_for_first_batches(self) -> None:
        """Before a job's first checkpoint, until each flow read its source once or failed; not for long."""
        if self._job.store.checkpoints.latest_done(self._job.name) is not None:
            return
        until = time.monotonic() + _FIRST_BATCHES_S
        reported = False
        while (flows := self._ingestion.flows_before_first_batch) and time.monotonic() < until:
            if self._stopping.is_set():
                return
            if not reported:
                reported = True
                reason = Reason.of(ReasonCode.FIRST_BATCHES, flows=", ".join(flows), wait_s=_FIRST_BATCHES_S)
                self._job.emit(events.HeldBack(checkpoint=None, jobs=[], reason=reason))
            wait_while_alive(self._stopping, _POLL_S)
            self._ingestion.watch()

    def _ingestion_flows(self) -> list[tuple[RunningFlow, Callable[[], SparkSession]]]:
        """The selected flows that read from outside, in the order of the graph."""
        selected = self._selection.ingest
        return [
            (self._streams.running_flow(table, flow), partial(self._streams.session, flow))
            for table in self._job.graph.order
            if selected is None or table in selected
            for flow in self._job.topology.ingestion_flows(table)
        ]

    def _published_version(self, table: TableName) -> Version | str | None:
        """The version of a table that an ingestion flow reads while it joins with datasets."""
        latest = self._job.store.checkpoints.latest_published(self._job.name)
        if latest is None:
            return None if table in self._job.tables else NEWEST
        return self._job.store.checkpoints.versions_at(latest.number).get(table, NEWEST)

    def _finish(self, state: RunState = RunState.COMPLETED) -> RunState:
        self._job.monitor.works(None)
        problems = set(self.problems)
        if self.outdated is not None:
            # What lacks new definitions works again once these are loaded; other problems stay.
            problems -= self._ingestion.outdated_flows | self._checkpoints.outdated_datasets
        state = RunState.FAILED if problems else state
        self._job.emit(events.Run(state=str(state), problems=sorted(problems)))
        return state


def wait_while_alive(stopping: threading.Event, seconds: float) -> None:
    """Wait for `seconds`, or until `stopping` is set.

    Raises:
        SparkDiedError: Spark's process ended meanwhile.
    """
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0 and not stopping.wait(min(remaining, _CHECK_S)):
        failure = jvm_error()
        if failure is not None:
            raise failure


def _report_spark_death(job: str, emit: events.Emit, error: Exception) -> SparkDiedError:
    """Report the death of Spark as the cause of `error`.

    Raises:
        Exception: `error` itself, if Spark is alive.
    """
    died = error if isinstance(error, SparkDiedError) else None
    if died is None and not isinstance(error, FencedError):
        died = jvm_error(ask=True)
    if died is None:
        raise error
    details = {"the last lines of Spark's Java process": died.parameters.get("last_lines", "")}
    trace = trace_of(error, f"run of job {job}: {died.error_class}", details)
    emit(events.SparkDied(error_class=died.error_class, error=f"{died} ({trace})", hint=died.hint))
    emit(events.Run(state="FAILED", problems=[died.error_class]))
    return died
