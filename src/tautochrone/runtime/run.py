"""The checkpoint loop.

ingest (never waits)  ‖  cut → open n → refresh derived datasets → publish n → maintain → cut → …

No news: no number, no commit, no Spark job. One target at a time: an open target of an earlier
run is finished before anything new is cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from pyspark.sql import SparkSession

from tautochrone.ingest.flow import FlowQuery
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.instants import NEWEST
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.cut import Cut, take_cut, what_changed
from tautochrone.runtime.ingestion import Ingestion
from tautochrone.runtime.job import Job
from tautochrone.runtime.maintain import Maintenance
from tautochrone.runtime.outsiders import tag_cut
from tautochrone.runtime.selection import Selection
from tautochrone.runtime.streams import Streams
from tautochrone.runtime.takeover import clear, take_over
from tautochrone.runtime.target import Target

__all__ = ["Run", "RunState"]


_POLL_S = 0.05


class RunState(StrEnum):
    """How a run ended, in SDP's words."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Run:
    """One execution of a job. Make it, call `once` or `continuously`, ask `state`."""

    def __init__(self, job: Job, selection: Selection | None = None) -> None:
        self._job = job
        self._selection = selection or Selection()
        self._streams = Streams(job, self._selection.full)
        self._stopping = threading.Event()
        self._ingestion = Ingestion(job.emit)
        self._maintenance = Maintenance(job, alone=self._streams.alone)
        self._failed: dict[TableName, str] = {}
        job.instants.show(f"published-{job.name}", self._published)

    def stop(self) -> None:
        """Ask for an orderly end: the running batch and the open checkpoint are finished first."""
        self._stopping.set()

    @property
    def problems(self) -> dict[str, str]:
        """What is broken now: flow or dataset → error."""
        return self._ingestion.problems | {str(table): text for table, text in self._failed.items()}

    def once(self) -> RunState:
        """Take what is available now, publish it, end."""
        self._begin(availableNow=True)
        while self._ingestion.active and not self._stopping.wait(_POLL_S):
            pass
        self._ingestion.stop()
        self._checkpoint()
        self._maintenance.between_checkpoints()
        return self._finish(RunState.CANCELED if self._stopping.is_set() else RunState.COMPLETED)

    def continuously(self, interval_ms: int) -> RunState:
        """Until `stop`: ingest, and publish a checkpoint at most every `interval_ms`."""
        self._begin(processingTime=f"{interval_ms} milliseconds")
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                self._ingestion.watch()
                self._checkpoint()
                self._maintenance.between_checkpoints()
                rest = interval_ms / 1000 - (time.monotonic() - started)
                self._stopping.wait(max(0.0, rest))
        finally:
            self._ingestion.stop()
        self._checkpoint()
        return self._finish()

    def _begin(self, **trigger: object) -> None:
        take_over(self._job, self._selection.full)
        for table in self._job.graph.order:
            if table in self._selection.full:
                clear(self._job, table)
        for name, sink in self._job.definitions.sinks.items():
            self._job.emit(
                "sink_not_served",
                sink=name.table,
                format=sink.format,
                reason="sinks are recorded, not written yet; the datasets that feed it are published",
            )
        self._target = Target(self._job, self._streams, self._selection.full)
        self._ingestion.start(self._flows(), **trigger)

    def _flows(self) -> list[tuple[FlowQuery, Callable[[], SparkSession]]]:
        """What reads from outside, in the order of the graph."""
        wanted = self._selection.ingest
        return [
            (self._streams.query(table, flow), partial(self._streams.session, flow))
            for table in self._job.graph.order
            if wanted is None or table in wanted
            for flow in self._job.outside_flows(table)
        ]

    # -- checkpoints ------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Finish an open target, then cut and publish a new one if there is news."""
        job, started = self._job, time.monotonic()
        open_target = job.store.open_target(job.name)
        if open_target is not None:
            needed = [*job.root_tables, *sorted(job.clocks)]
            unknown = [table for table in needed if table not in open_target.roots]
            if unknown:
                # The project changed since the cut: it can no longer be completed.
                job.journal.abort(open_target.number)
                job.emit(
                    "checkpoint_aborted",
                    checkpoint=int(open_target.number),
                    reason=f"its cut has no version of {unknown[0]}, which the project has now",
                )
            else:
                self._bring(open_target, {})
        latest = job.store.latest_published(job.name)
        last = {} if latest is None else dict(job.store.versions_at(latest.number))
        cut = take_cut(job)
        if not self._news(cut, last, latest):
            job.emit(
                "no_news",
                checkpoint=None if latest is None else int(latest.number),
                duration_ms=round((time.monotonic() - started) * 1000),
            )
            return
        if job.settings.tag_outsiders:
            tag_cut(job, cut)
        checkpoint = job.journal.open(cut.roots, cut.micros // 1000)
        self._bring(checkpoint, cut.missing)

    def _news(self, cut: Cut, last: dict[TableName, Version], latest: Checkpoint | None) -> bool:
        """Roots moved, or a dataset is not where it should be: new, redefined, failed, unversioned."""
        moved = what_changed(self._job, cut, last)
        if moved or latest is None:
            return True
        return any(self._unsettled(table, last) for table in self._job.derived_tables)

    def _unsettled(self, table: TableName, last: dict[TableName, Version]) -> bool:
        if table not in last:
            # Failed at the newest checkpoint, or never built. In a loop, trying again without news
            # would fail the same way.
            return table not in self._failed
        return self._target.wants_comparison(table) or self._redefined(table)

    def _redefined(self, table: TableName) -> bool:
        if not self._job.is_view(table) or table in self._target.settled:
            return False
        note = self._job.tables[table].fork().note
        self._target.settled.add(table)
        return note is not None and note.definition != self._job.fingerprint(table)

    def _bring(self, checkpoint: Checkpoint, missing: dict[TableName, str]) -> None:
        job = self._job
        started = time.monotonic()
        failures = self._target.bring(checkpoint, self._last_complete(), missing)
        self._failed = dict(failures)
        job.journal.publish(checkpoint.number, round(time.time() * 1000))
        job.emit(
            "checkpoint",
            checkpoint=int(checkpoint.number),
            state="published",
            failed=sorted(str(table) for table in failures),
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    def _last_complete(self) -> dict[TableName, dict[TableName, Version]]:
        """For each dataset the versions of all tables at its last complete checkpoint."""
        store = self._job.store
        at: dict[int, dict[TableName, Version]] = {}
        found: dict[TableName, dict[TableName, Version]] = {}
        for status in store.status():
            if status.checkpoint is not None:
                if status.checkpoint not in at:
                    at[status.checkpoint] = store.versions_at(status.checkpoint)
                found[status.dataset] = at[status.checkpoint]
        return found

    def _published(self, table: TableName) -> Version | str | None:
        latest = self._job.store.latest_published(self._job.name)
        if latest is None:
            return None if table in self._job.tables else NEWEST
        return self._job.store.versions_at(latest.number).get(table, NEWEST)

    def _finish(self, state: RunState = RunState.COMPLETED) -> RunState:
        state = RunState.FAILED if self.problems else state
        self._job.emit("run", state=str(state), problems=sorted(self.problems))
        return state
