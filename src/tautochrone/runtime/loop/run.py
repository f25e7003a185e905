"""The checkpoint loop.

ingest (never waits)  ‖  cut → open n → refresh derived datasets → publish n → maintain → cut → …

No news: no number, no commit, no Spark job. One target at a time: an open one, of an earlier run or
of another job, is finished before anything new is cut. Where other jobs must go first, the loop looks
again shortly and goes on with what it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from pyspark.sql import SparkSession

from tautochrone.errors import MetaError, SparkDiedError
from tautochrone.ingest.running_flow import RunningFlow
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.events import Field
from tautochrone.model.invariants import BrokenInvariant
from tautochrone.model.jobs import Part
from tautochrone.model.names import TableName, Version
from tautochrone.model.read_points import NEWEST
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.selection import Selection
from tautochrone.runtime.loop.alignment import Aligner
from tautochrone.runtime.loop.cut import Cut, take_cut, what_changed
from tautochrone.runtime.loop.external_tables import tag_cut
from tautochrone.runtime.loop.heartbeat import Heartbeat
from tautochrone.runtime.loop.readers import Readers
from tautochrone.runtime.loop.spark_death import report_spark_death, wait_while_alive
from tautochrone.runtime.loop.takeover import clear, take_over
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.refresh.refresh_checkpoint import CheckpointRefresher
from tautochrone.runtime.refresh.upstream_jobs import poll_upstream_jobs
from tautochrone.runtime.streams.ingestion import Ingestion
from tautochrone.runtime.streams.streams import Streams
from tautochrone.spark.session.cpu_usage import cpu_ms

__all__ = ["Run", "RunState"]


_POLL_S = 0.05


class RunState(StrEnum):
    """How a run ended, in SDP's words."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Run:
    """One execution of a job. Make it, call `once` or `continuously`; `died` says that Spark was gone."""

    def __init__(self, job: Job, selection: Selection | None = None) -> None:
        self._job = job
        self._selection = selection or Selection()
        self._streams = Streams(job, self._selection.full)
        self._stopping = threading.Event()
        self._ingestion = Ingestion(job.emit)
        self._maintenance = Maintenance(job, exclusive=self._streams.exclusive)
        self._failed: dict[TableName, str] = {}
        self._broken: dict[str, str] = {}
        self._refused: dict[TableName, Version] | None = None
        self._unchecked = True
        self._heartbeat = Heartbeat(job)
        self._aligner = Aligner(job)
        self._told: str | None = None
        self.died: SparkDiedError | None = None
        self._begun: int | None = None
        self._readers = Readers(job, self._stopping)
        self._began_at, self._cpu_ms = time.monotonic(), 0
        job.read_points.show(f"published-{job.name}", self._published)

    def stop(self) -> None:
        """Ask for an orderly end: the running batch and the open checkpoint are finished first."""
        self._stopping.set()
        self._job.ownership.cancelled.set()

    @property
    def problems(self) -> dict[str, str]:
        """What is broken now: flow, dataset or invariant → error; and what this run leaves unreadable."""
        failed = {str(table): text for table, text in self._failed.items()}
        return self._ingestion.problems | failed | self._broken | self._readers.missing

    def once(self) -> RunState:
        """Take what is available now, publish it, end."""
        try:
            self._begin(availableNow=True)
            while self._ingestion.active and not self._stopping.wait(_POLL_S):
                pass
            self._ingestion.stop()
            self._checkpoint_and_wait(also_away=True)
            if not self._broken:
                self._readers.wait(partial(self._checkpoint_and_wait, also_away=True))
            self._maintenance.between_checkpoints()
            return self._finish(RunState.CANCELED if self._stopping.is_set() else RunState.COMPLETED)
        except Exception as error:
            self.died = report_spark_death(self._job, error)
            return RunState.FAILED
        finally:
            self._heartbeat.close()

    def again(self) -> None:
        """One more checkpoint after `once`, as `continuously` makes them: with sessions and plans that are
        there already. Nothing is ingested."""
        self._checkpoint_and_wait()
        self._maintenance.between_checkpoints()

    def continuously(self, interval_ms: int) -> RunState:
        """Until `stop`: ingest, and publish a checkpoint at most every `interval_ms`."""
        try:
            self._begin(processingTime=f"{interval_ms} milliseconds")
            try:
                while not self._stopping.is_set():
                    started = time.monotonic()
                    self._ingestion.watch()
                    waits = self._checkpoint()
                    self._readers.follow()
                    self._maintenance.between_checkpoints()
                    left = interval_ms / 1000 - (time.monotonic() - started)
                    wait_while_alive(self._stopping, _POLL_S if waits else left)
            finally:
                self._ingestion.stop()
            self._checkpoint_and_wait()
            return self._finish()
        except Exception as error:
            self.died = report_spark_death(self._job, error)
            return RunState.FAILED
        finally:
            self._heartbeat.close()

    def _begin(self, **trigger: object) -> None:
        self._readers.begin()
        take_over(self._job, self._selection.full, self._heartbeat.start)
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
        self._aligner.begin()
        self._refresher = CheckpointRefresher(self._job, self._streams, self._selection.full)
        self._ingestion.start(self._flows(), self._job.store.now_ms(), **trigger)

    def _flows(self) -> list[tuple[RunningFlow, Callable[[], SparkSession]]]:
        """What reads from outside, in the order of the graph."""
        wanted = self._selection.ingest
        return [
            (self._streams.running_flow(table, flow), partial(self._streams.session, flow))
            for table in self._job.graph.order
            if wanted is None or table in wanted
            for flow in self._job.topology.ingestion_flows(table)
        ]

    # -- checkpoints ------------------------------------------------------------------------------

    def _checkpoint_and_wait(self, *, also_away: bool = False) -> None:
        """The last checkpoint of a run: other jobs that are alive are waited for, within our patience;
        `also_away`: and those that may be about to start."""
        until = time.monotonic() + self._job.settings.patience_ms / 1000
        while self._checkpoint():
            away = self._away()
            if (away and not also_away) or time.monotonic() >= until:
                reason = f"job {away} isn't running" if away else "the others take longer than our patience"
                self._readers.leave(reason, jobs=[away] if away else [])
                return
            time.sleep(_POLL_S)

    def _away(self) -> str | None:
        """A job that isn't alive and for whose tables this one waits."""
        target = self._job.store.open_target(self._job.name)
        if target is None:
            return None
        alive = {status.name for status in self._job.store.job_states() if status.alive}
        waiting = poll_upstream_jobs(self._job.store, self._job.tables_of_other_jobs(), target.number).waiting
        return next((owner or str(table) for table, owner in waiting.items() if owner not in alive), None)

    def _checkpoint(self) -> bool:
        """Finish an open target, then cut and publish a new one if there is news.

        Returns:
            Whether something is left to do that waits for other jobs.
        """
        job, started = self._job, time.monotonic()
        target = job.journal.take()
        if target is not None:
            needed = [*job.topology.root_tables, *sorted(job.topology.clocks)]
            unknown = [table for table in needed if table not in target.roots]
            if unknown:
                # The project changed since the cut: it can no longer be completed.
                self._give_up(target, f"its cut has no version of {unknown[0]}, which the project has now")
            elif not self._bring(target, {}):
                return True
        latest = job.store.latest_done(job.name)
        last = {} if latest is None else dict(job.store.versions_at(latest.number))
        cut = self._aligner.align(take_cut(job, self._ingestion), last)
        if self._refused is not None and not what_changed(job, cut, self._refused):
            # The same rows would break the same invariant. That was told; the lag of what readers see grows.
            return False
        if not self._news(cut, last, latest):
            job.emit(
                "no_news",
                checkpoint=None if latest is None else int(latest.number),
                duration_ms=round((time.monotonic() - started) * 1000),
            )
            self._heartbeat.looked(cut, None if latest is None else latest.number)
            return False
        holders = job.store.held_back_by(job.name, job.settings.patience_ms)
        if holders:
            self._tell_once(
                "held_back",
                checkpoint=int(holders[0].checkpoint),
                jobs=[holder.job for holder in holders],
                reason="they are at work on it; a topology has one target at a time",
            )
            return True
        if job.settings.tag_external_tables:
            tag_cut(job, cut)
        try:
            checkpoint = job.journal.open(
                cut.roots,
                cut.taken_at_us // 1000,
                looked_ms=cut.looked_ms,
                looks=cut.looks,
                patience_ms=job.settings.patience_ms,
                align_ms=job.settings.align_ms,
            )
        except MetaError as error:
            if error.error_class not in ("CHECKPOINT_HELD_BACK", "CHECKPOINT_ALREADY_OPEN"):
                raise
            # Another job opened one in between, and we take part in it.
            self._tell_once("held_back", checkpoint=None, jobs=[], reason=str(error))
            return True
        return not self._bring(checkpoint, cut.missing)

    def _give_up(self, checkpoint: Checkpoint, reason: str) -> None:
        self._job.journal.abort(checkpoint.number)
        self._job.emit("checkpoint_aborted", checkpoint=int(checkpoint.number), reason=reason)

    def _tell_once(self, event: str, /, **fields: Field) -> None:
        """What lasts is told when it begins, not at every look."""
        text = f"{event} {fields}"
        if text != self._told:
            self._told = text
            self._job.emit(event, **fields)

    def _news(self, cut: Cut, last: dict[TableName, Version], latest: Checkpoint | None) -> bool:
        """Roots moved, or a dataset is not where it should be: new, redefined, failed, unversioned; or an
        invariant was not checked yet."""
        moved = what_changed(self._job, cut, last)
        if moved or latest is None:
            return True
        if self._job.store.revoked_after(self._job.name, latest.number):
            # Readers who saw what was taken back wait for a number above it, whatever it shows.
            return True
        return self._has_unchecked() or any(
            self._unsettled(table, last) for table in self._job.topology.derived_tables
        )

    def _has_unchecked(self) -> bool:
        """Whether an invariant is new, or another one; asked once per run."""
        mine, self._unchecked = self._unchecked, False
        if not mine or not self._job.graph.invariants:
            return False
        held = self._job.store.held(self._job.name)
        known = {} if held is None else held.definitions
        return any(known.get(one.name) != one.query.fingerprint for one in self._job.graph.invariants)

    def _unsettled(self, table: TableName, last: dict[TableName, Version]) -> bool:
        if table not in last:
            # Failed at the newest checkpoint, or never built. In a loop, trying again without news
            # would fail the same way.
            return table not in self._failed
        return self._refresher.needs_refresh(table)

    def _bring(self, checkpoint: Checkpoint, missing: dict[TableName, str]) -> bool:
        """Do the job's part; False when it has to wait for other jobs, or to look again."""
        try:
            return self._do_part(checkpoint, missing)
        except MetaError as error:
            if error.error_class != "CHECKPOINT_NOT_WRITABLE" or self._is_to_do(checkpoint):
                raise
            self._job.emit("checkpoint_aborted", checkpoint=int(checkpoint.number), reason=error.message)
            return False

    def _is_to_do(self, checkpoint: Checkpoint) -> bool:
        """Whether nobody else gave the job's part up: a revision does, and others when a lease ran out."""
        parts = self._job.store.progress(checkpoint.number)
        return any(one.job == self._job.name and one.part is Part.PENDING for one in parts)

    def _do_part(self, checkpoint: Checkpoint, missing: dict[TableName, str]) -> bool:
        job = self._job
        if self._begun != checkpoint.number:
            self._begun = checkpoint.number
            self._began_at, self._cpu_ms = time.monotonic(), cpu_ms()
        progress = self._refresher.refresh_to(checkpoint, self._last_complete(), missing)
        if progress.lost is not None:
            self._give_up(checkpoint, f"job {progress.lost}, of which we read tables, takes no part in it")
            return True
        if progress.waiting:
            table, owner = next(iter(sorted(progress.waiting.items())))
            job.store.wait(job.name, job.journal.fence, checkpoint.number, owner)
            self._tell_once(
                "waiting_for_job",
                checkpoint=int(checkpoint.number),
                job=owner or None,
                dataset=str(table),
                reason="it has no version for this checkpoint yet",
            )
            return False
        self._failed = dict(progress.failed)
        checked = self._refresher.check()
        for name, reason in checked.skipped.items():
            job.emit("invariant_skipped", invariant=name, checkpoint=int(checkpoint.number), reason=reason)
        if checked.broken:
            self._keep_back(checkpoint, checked.broken)
            return True
        self._broken, self._refused = {}, None
        spent_ms = max(0, cpu_ms() - self._cpu_ms)
        job.journal.publish(checkpoint.number, round(time.time() * 1000), spent_ms, checked.held)
        self._told = None
        state = job.store.checkpoint(checkpoint.number).state
        job.emit(
            "checkpoint",
            checkpoint=int(checkpoint.number),
            state=str(state),
            **self._readers.done(checkpoint.number, state),
            failed=sorted(str(table) for table in progress.failed),
            duration_ms=round((time.monotonic() - self._began_at) * 1000),
            cpu_ms=spent_ms,
        )
        return True

    def _keep_back(self, checkpoint: Checkpoint, broken: tuple[BrokenInvariant, ...]) -> None:
        """Give a checkpoint up that breaks invariants. What was committed for it stays in the lake, unseen:
        the next checkpoint goes on from there."""
        job, number = self._job, int(checkpoint.number)
        for one in broken:
            job.emit(
                "invariant_broken",
                invariant=one.name,
                checkpoint=number,
                location=one.location,
                rows=one.rows,
                at_least=one.at_least,
                sample=list(one.sample),
                error=one.error,
            )
        job.journal.abort(checkpoint.number, broken)
        self._broken = {f"invariant {one.name}": one.error for one in broken}
        self._refused, self._told = dict(checkpoint.roots), None
        job.emit(
            "checkpoint_aborted",
            checkpoint=number,
            reason="it breaks invariants; what readers see stays as it is until the data changes",
        )

    def _last_complete(self) -> dict[TableName, dict[TableName, Version]]:
        """For each dataset the versions of all tables at its last complete checkpoint."""
        store = self._job.store
        at: dict[int, dict[TableName, Version]] = {}
        found: dict[TableName, dict[TableName, Version]] = {}
        for status in store.status():
            if status.checkpoint is not None and status.dataset in self._job.tables:
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
