"""From a cut to a published checkpoint, as in the sequence diagram of docs/architecture.md.

    1. finish the open checkpoint, if there is one     4. refresh the derived tables to it
    2. cut: the last reported version of every root    5. check the invariants
    3. open checkpoint n, if anything changed          6. publish n

Without a change there is no number, no commit and no Spark job. Jobs that share tables work on one checkpoint
at a time, so the loop returns when other jobs must go first, and is called again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta.protocols.checkpoints import Checkpoints, DonePart, NewCheckpoint
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.checkpoint import BrokenInvariant, Checkpoint
from tautochrone.model.jobs import Part
from tautochrone.model.lake import NO_VERSION, ChangeKind
from tautochrone.model.names import NOW, TableName, Version, is_file_table, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import WorkPhase
from tautochrone.runtime.delivery.deliveries import Deliveries
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.ownership import Heartbeat
from tautochrone.runtime.loop.alignment import Aligner
from tautochrone.runtime.loop.cut import Cut, changed_roots, missing_tables, tag_cut, take_cut
from tautochrone.runtime.loop.file_tables import FileTables
from tautochrone.runtime.loop.invariants import Checked
from tautochrone.runtime.loop.publication import Publication
from tautochrone.runtime.loop.refresh_checkpoint import (
    CheckpointRefresher,
    RefreshProgress,
    last_complete_versions,
    poll_upstream_jobs,
)
from tautochrone.runtime.loop.shadow_tables import ShadowTables
from tautochrone.runtime.streams.ingestion import Ingestion
from tautochrone.runtime.streams.streams import Streams
from tautochrone.spark.session.cpu_usage import cpu_ms

__all__ = ["CheckpointLoop", "Outcome"]

_CHECKED_AGAIN = Backoff(first_s=10.0, longest_s=600.0)
"""An invariant over the time, or over what has no versions, may hold later with the same rows. Each check
takes a checkpoint."""

_POLL_S = 0.05


class Outcome(Enum):
    """What a call of the loop did about a checkpoint."""

    DONE = auto()
    """The job's part of it is done, or it was given up."""
    WAIT = auto()
    """Other jobs or a sink go first: call again soon."""
    NOTHING_NEW = auto()
    """Nothing changed since the last one."""


class CheckpointLoop:
    """Makes the checkpoints of one run.

    Args:
        job: taken over before the first call.
        full: datasets that are rebuilt, each once.
    """

    def __init__(
        self,
        job: Job,
        ingestion: Ingestion,
        streams: Streams,
        publication: Publication,
        heartbeat: Heartbeat,
        deliveries: Deliveries,
        full: frozenset[TableName],
    ) -> None:
        self._job = job
        self._ingestion = ingestion
        self._publication = publication
        self._heartbeat = heartbeat
        self._deliveries = deliveries
        self._aligner = Aligner(job)
        self._file_tables = FileTables(job, full)
        self._shadow_tables = ShadowTables(job)
        self._refresher = CheckpointRefresher(job, streams, full, self._file_tables.unfollowed)
        self._changes = _ChangeDetector(job, self._refresher)
        self._failed: dict[TableName, Reason] = {}
        self._waiting_for_bulk = frozenset[TableName]()
        self._broken: dict[str, str] = {}
        self._rejected_roots: dict[TableName, Version] | None = None
        self._rejected_until = math.inf
        self._rejections = 0
        self._last_report: events.Event | None = None
        self._number: int | None = None
        self._started_at, self._started_cpu_ms = 0.0, 0

    @property
    def problems(self) -> dict[str, str]:
        """Errors of the last checkpoint, by dataset or invariant."""
        return {str(table): str(failure) for table, failure in self._failed.items()} | self._broken

    @property
    def full_refreshes_left(self) -> frozenset[TableName]:
        """The datasets that are to be computed anew and were not yet."""
        return self._refresher.full_refreshes_left

    @property
    def breaks_invariants(self) -> bool:
        """Whether the last checkpoint was aborted because of an invariant."""
        return bool(self._broken)

    @property
    def outdated_datasets(self) -> frozenset[str]:
        """Those of `problems` that end once definitions can be loaded anew."""
        return frozenset(map(str, self._refresher.outdated_tables))

    def take_outdated(self) -> TautochroneError | None:
        """The last failure that loading definitions anew ends. It is returned once."""
        return self._refresher.take_outdated()

    def begin(self) -> None:
        """Report which roots are aligned. Call it once, after the takeover."""
        self._aligner.begin()

    def advance_and_wait(self, *, for_absent_jobs: bool = False) -> None:
        """Make the last checkpoint of a run, and wait for other jobs for at most `run.patience`.

        Args:
            for_absent_jobs: wait for jobs that do not run as well: they may be about to start.
        """
        until = time.monotonic() + self._job.settings.patience_ms / 1000
        while self.advance() is Outcome.WAIT:
            absent = self._absent_job()
            if (absent and not for_absent_jobs) or time.monotonic() >= until:
                reason = (
                    Reason.of(ReasonCode.JOB_AWAY, job=absent)
                    if absent
                    else Reason.of(ReasonCode.PATIENCE_USED_UP)
                )
                self._publication.give_up(reason, jobs=[absent] if absent else [])
                return
            time.sleep(_POLL_S)

    def advance(self) -> Outcome:
        """Finish the open checkpoint; then cut, open, refresh and publish one more if anything changed."""
        # A sink may have to take each checkpoint before the next one is made.
        sinks = self._deliveries.holding_back
        for name, error in sinks.items():
            reason = Reason.of(ReasonCode.SINK_LACKS_CHECKPOINT, sink=name, cause=error)
            self._report_once(events.HeldBack(checkpoint=None, jobs=[], reason=reason))
        return Outcome.WAIT if sinks else self._advance()

    def _advance(self) -> Outcome:
        job, started = self._job, time.monotonic()
        checkpoint = job.journal.begin_next()
        if checkpoint is not None and self._finish_open(checkpoint) is Outcome.WAIT:
            return Outcome.WAIT
        done = job.store.checkpoints.last_done(job.name)
        last = {} if done is None else dict(done.versions)
        self._file_tables.synchronize()
        self._shadow_tables.synchronize()
        cut = self._aligner.align(self._take_cut(), last)
        is_rejected = self._is_rejected(cut)
        if not is_rejected:
            self._rejections = 0
        if is_rejected and time.monotonic() < self._rejected_until:
            # The same rows would break the same invariant again.
            return Outcome.NOTHING_NEW
        if not is_rejected and not self._changes.need_checkpoint(
            cut, last, done, {*self._failed, *self._waiting_for_bulk}
        ):
            number = None if done is None else done.checkpoint.number
            duration_ms = round((time.monotonic() - started) * 1000)
            job.emit(events.NoNews(checkpoint=number, duration_ms=duration_ms))
            self._heartbeat.report_no_news(cut.observed_ms, cut.observations, number)
            return Outcome.NOTHING_NEW
        checkpoint = self._open(cut)
        if checkpoint is None:
            return Outcome.WAIT
        return self._refresh_and_publish(checkpoint, cut.missing, last)

    def _is_rejected(self, cut: Cut) -> bool:
        """Whether a checkpoint of the same rows was aborted because of an invariant."""
        rejected = self._rejected_roots
        return rejected is not None and not changed_roots(self._job.input_table, cut, rejected)

    def _take_cut(self) -> Cut:
        observed_ms = self._job.store.now_ms()
        self._ingestion.observe(observed_ms)
        ingested = self._ingestion.committed_up_to_ms()
        return take_cut(
            self._job, observed_ms, ingested, self._file_tables.unfollowed, self._shadow_tables.unreadable
        )

    # -- open -------------------------------------------------------------------------------------

    def _finish_open(self, checkpoint: Checkpoint) -> Outcome:
        """Finish a checkpoint of an earlier run or another job."""
        job, topology = self._job, self._job.topology
        # Files without a version in the cut are read themselves.
        external_tables = {name for name in job.external_tables() if not is_file_table(name)}
        external_tables -= checkpoint.roots.keys()
        unreadable = missing_tables(job, external_tables, self._shadow_tables.unreadable)
        needed = [*topology.root_tables, *sorted(topology.clocks), *sorted(external_tables)]
        missing = [name for name in needed if name not in checkpoint.roots and name not in unreadable]
        if missing:
            # The definitions changed since the cut was taken.
            self._abort(checkpoint, Reason.of(ReasonCode.ROOT_NOT_IN_CUT, table=str(missing[0])))
            return Outcome.DONE
        replaced = next((name for name in topology.root_tables if self._is_replaced(checkpoint, name)), None)
        if replaced is not None:
            # What was cleared with the root must not be built from the rows that the root had before.
            self._abort(checkpoint, Reason.of(ReasonCode.ROOT_REPLACED, table=str(replaced)))
            return Outcome.DONE
        done = job.store.checkpoints.last_done(job.name)
        return self._refresh_and_publish(checkpoint, unreadable, {} if done is None else done.versions)

    def _is_replaced(self, checkpoint: Checkpoint, root: TableName) -> bool:
        """Whether a root was emptied after the cut, before this process began with the checkpoint."""
        version = checkpoint.roots[root] if self._number != checkpoint.number else NO_VERSION
        if version == NO_VERSION:
            return False
        table = self._job.tables[root]
        change = table.change_between(version, table.current_version())
        return change.kind is ChangeKind.UNKNOWN and not change.appended

    def _open(self, cut: Cut) -> Checkpoint | None:
        """Open the next checkpoint; None when jobs that share tables still work on an older one."""
        job = self._job
        holders = job.store.checkpoints.busy_jobs(job.name, job.settings.patience_ms)
        if holders:
            self._report_once(
                events.HeldBack(
                    checkpoint=int(holders[0].checkpoint),
                    jobs=[holder.job for holder in holders],
                    reason=Reason.of(ReasonCode.JOBS_AT_WORK),
                )
            )
            return None
        if job.settings.tag_external_tables:
            # Our maintenance keeps the versions of tables of files, and of shadow tables, that are needed.
            external = {
                name: cut.roots[name]
                for name in job.external_tables() & cut.roots.keys()
                if not is_file_table(name) and not is_shadow_table(name)
            }
            tag_cut(job.lake_table, external, job.settings.external_table_tags_kept, job.emit)
        try:
            return job.journal.open(
                NewCheckpoint(
                    cut.roots,
                    cut.taken_at_us // 1000,
                    missing=frozenset(cut.missing),
                    observed_ms=cut.observed_ms,
                    observations=cut.observations,
                    patience_ms=job.settings.patience_ms,
                    align_ms=job.settings.align_ms,
                )
            )
        except MetaError as error:
            if error.error_class not in ("CHECKPOINT_HELD_BACK", "CHECKPOINT_ALREADY_OPEN"):
                raise
            # Another job opened one meanwhile; this job takes part in it at the next call.
            reason = Reason.of(
                ReasonCode.CHECKPOINT_OPENED_BY_OTHERS, error_class=error.error_class, text=str(error)
            )
            self._report_once(events.HeldBack(checkpoint=None, jobs=[], reason=reason))
            return None

    def _absent_job(self) -> str | None:
        """A job that does not run and whose tables this job waits for."""
        job = self._job
        checkpoint = job.store.checkpoints.next_for(job.name)
        if checkpoint is None:
            return None
        alive = {status.name for status in job.store.jobs.states() if status.alive}
        waiting = poll_upstream_jobs(job.store, job.tables_of_other_jobs(), checkpoint.number).waiting
        return next((owner or str(table) for table, owner in waiting.items() if owner not in alive), None)

    # -- refresh and publish ----------------------------------------------------------------------

    def _refresh_and_publish(
        self,
        checkpoint: Checkpoint,
        unreadable: Mapping[TableName, Reason],
        last: Mapping[TableName, Version],
    ) -> Outcome:
        """Do the job's part of an open checkpoint.

        Args:
            unreadable: external tables that could not be read, with the reason.
            last: the versions at the last checkpoint of which the job did its part.
        """
        try:
            return self._do_part(checkpoint, unreadable, last)
        except MetaError as error:
            if error.error_class != "CHECKPOINT_NOT_WRITABLE" or self._is_pending(checkpoint):
                raise
            # A revision revoked it, or other jobs went on without this one after its lease ended.
            reason = Reason.of(
                ReasonCode.GIVEN_UP_BY_OTHERS, error_class=error.error_class, text=error.message
            )
            self._job.emit(events.CheckpointAborted(checkpoint=checkpoint.number, reason=reason))
            self._job.monitor.works(None)
            return Outcome.WAIT

    def _is_pending(self, checkpoint: Checkpoint) -> bool:
        parts = self._job.store.checkpoints.progress(checkpoint.number)
        return any(part.job == self._job.name and part.part is Part.PENDING for part in parts)

    def _do_part(
        self,
        checkpoint: Checkpoint,
        unreadable: Mapping[TableName, Reason],
        last: Mapping[TableName, Version],
    ) -> Outcome:
        if self._number != checkpoint.number:
            self._number = checkpoint.number
            self._started_at, self._started_cpu_ms = time.monotonic(), cpu_ms()
        before = last_complete_versions(self._job, last)
        progress = self._refresher.refresh_to(checkpoint, before, unreadable)
        if progress.lost is not None:
            self._abort(checkpoint, Reason.of(ReasonCode.JOB_TAKES_NO_PART, job=progress.lost))
            return Outcome.DONE
        if progress.waiting:
            self._job.monitor.works(None)
            self._wait_for_job(checkpoint, progress)
            return Outcome.WAIT
        self._failed = dict(progress.failed)
        self._waiting_for_bulk = progress.waiting_for_bulk
        self._job.monitor.works(WorkPhase.CHECKING, int(checkpoint.number))
        checked = self._refresher.check_invariants()
        self._job.monitor.works(WorkPhase.PUBLISHING, int(checkpoint.number))
        for name, reason in checked.skipped.items():
            self._job.emit(
                events.InvariantSkipped(invariant=name, checkpoint=checkpoint.number, reason=reason)
            )
        if checked.broken:
            self._reject(checkpoint, checked.broken)
        else:
            self._publish(checkpoint, checked)
        # Other jobs may keep it open for long.
        self._job.monitor.works(None)
        return Outcome.DONE

    def _publish(self, checkpoint: Checkpoint, checked: Checked) -> None:
        """Publish the checkpoint, or record that the job's part is done while other jobs work on theirs."""
        job = self._job
        self._broken, self._rejected_roots = {}, None
        spent_ms = max(0, cpu_ms() - self._started_cpu_ms)
        state = job.journal.record(
            Checkpoints.publish,
            checkpoint.number,
            round(time.time() * 1000),
            cpu_ms=spent_ms,
            passed_invariants=checked.satisfied,
        )
        self._refresher.complete_builds(checkpoint.number, state)
        self._last_report = None
        self._deliveries.wake_workers()
        self._publication.report_part(
            checkpoint.number,
            state,
            failed=sorted(str(table) for table in self._failed),
            duration_ms=round((time.monotonic() - self._started_at) * 1000),
            cpu_ms=spent_ms,
        )

    def _reject(self, checkpoint: Checkpoint, broken: Sequence[BrokenInvariant]) -> None:
        """Abort a checkpoint that breaks invariants. Readers never see its commits."""
        job, number = self._job, int(checkpoint.number)
        for invariant in broken:
            job.emit(
                events.InvariantBroken(
                    invariant=invariant.name,
                    checkpoint=number,
                    location=invariant.location,
                    rows=invariant.rows,
                    at_least=invariant.at_least,
                    sample=list(invariant.sample),
                    error=invariant.error,
                )
            )
        job.journal.abort(checkpoint.number, broken)
        self._broken = {f"invariant {invariant.name}": invariant.error for invariant in broken}
        self._rejections += 1
        self._rejected_roots, self._last_report = dict(checkpoint.roots), None
        names = {invariant.name for invariant in broken}
        may_hold_later = any(
            NOW in invariant.tables or invariant.query.inputs.unversioned
            for invariant in job.graph.invariants
            if invariant.name in names
        )
        wait_s = _CHECKED_AGAIN.wait_s(self._rejections) if may_hold_later else math.inf
        self._rejected_until = time.monotonic() + wait_s
        job.emit(events.CheckpointAborted(checkpoint=number, reason=Reason.of(ReasonCode.BREAKS_INVARIANTS)))

    def _abort(self, checkpoint: Checkpoint, reason: Reason) -> None:
        self._job.journal.abort(checkpoint.number)
        self._job.emit(events.CheckpointAborted(checkpoint=checkpoint.number, reason=reason))

    def _wait_for_job(self, checkpoint: Checkpoint, progress: RefreshProgress) -> None:
        job = self._job
        table, owner = min(progress.waiting.items())
        job.store.checkpoints.record_wait(job.name, job.journal.fence, checkpoint.number, owner)
        self._report_once(
            events.WaitingForJob(
                checkpoint=checkpoint.number,
                job=owner or None,
                dataset=str(table),
                reason=Reason.of(ReasonCode.WAITS_FOR_VERSION),
            )
        )

    def _report_once(self, event: events.Event) -> None:
        """Emit an event unless the last call emitted the same."""
        if event != self._last_report:
            self._last_report = event
            self._job.emit(event)


class _ChangeDetector:
    """Compares a cut, the datasets and the invariants with the job's last checkpoint. One per run."""

    def __init__(self, job: Job, refresher: CheckpointRefresher) -> None:
        self._job = job
        self._refresher = refresher
        self._invariants_compared = False

    def need_checkpoint(
        self,
        cut: Cut,
        last: dict[TableName, Version],
        done: DonePart | None,
        failed: Collection[TableName],
    ) -> bool:
        """Whether a root moved, a dataset is not up to date, or an invariant was never checked.

        Args:
            cut: see `changed_roots`.
            last: the versions at the last checkpoint.
            done: the last checkpoint of which the job did its part.
            failed: datasets that failed at the last checkpoint, or had to wait for a source.
        """
        if changed_roots(self._job.input_table, cut, last) or done is None:
            return True
        if done.is_followed_by_revoked:
            # Readers that saw a revoked checkpoint wait for a higher number.
            return True
        if self._has_new_invariant():
            return True
        return any(self._is_outdated(table, last, failed) for table in self._job.topology.derived_tables)

    def _has_new_invariant(self) -> bool:
        """Whether an invariant is new or was redefined. Compared once per run."""
        if self._invariants_compared:
            return False
        self._invariants_compared = True
        invariants = self._job.graph.invariants
        if not invariants:
            return False
        checked = self._job.store.invariants.last_check(self._job.name)
        fingerprints = {} if checked is None else checked.definitions
        return any(
            fingerprints.get(invariant.name) != invariant.query.fingerprint for invariant in invariants
        )

    def _is_outdated(
        self, table: TableName, last: dict[TableName, Version], failed: Collection[TableName]
    ) -> bool:
        if table not in last:
            # Never built, or failed at the last checkpoint. The same input would fail again.
            return table not in failed or self._refresher.reads_other_files(table)
        return self._refresher.needs_refresh(table, last[table])
