"""Keeps a job's tables small: checkpoints expire first, then the versions that only they named.

    1. mark checkpoints expired in the store; readers can no longer ask for them
    2. find the versions that are still needed
    3. per table: drop what a log keeps too long and compact small files (the owner only), remove unneeded
       versions and their files; sometimes search for orphaned files
    4. delete the store's rows of checkpoints that expired long ago

A reader that pins a checkpoint before 1 keeps it; after 1 the pin is refused. Every step may be repeated, so
a crash leaves the rest to the next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from tautochrone.errors import FencedError, LakeError, MetaError, TautochroneError
from tautochrone.model import events
from tautochrone.model.effects import Step
from tautochrone.model.lake import NO_VERSION, Expired, LakeTable
from tautochrone.model.log_table import LOG_RETENTION
from tautochrone.model.names import CheckpointNumber, Fence, TableName, is_file_table, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.maintenance.orphans import OrphanRemoval
from tautochrone.runtime.maintenance.retention import Needs, expirable_checkpoints, needs_of, shorten_log
from tautochrone.runtime.refresh.states import states_among
from tautochrone.spark.session.jvm_liveness import require_live_jvm
from tautochrone.traces import is_defect, trace_of

__all__ = ["Maintenance"]


@dataclass(slots=True)
class Maintenance:
    """Maintains the tables of a job while its flows write to them.

    Args:
        exclusive: a lock per table that keeps the job's flows from committing to it.
        now_ms: epoch milliseconds.

    Attributes:
        failed: tables that the last `run` could not maintain; events have the reason.
        orphans: the search for files that nothing refers to.
    """

    job: Job
    exclusive: Callable[[TableName], AbstractContextManager[object]] = lambda _table: nullcontext()
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    failed: list[TableName] = field(default_factory=list)
    orphans: OrphanRemoval = field(init=False)
    _last_ms: int | None = None
    _last_checkpoint: CheckpointNumber | None = None
    _waiting: list[TableName] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.orphans = OrphanRemoval(self.job, lambda: self.now_ms())

    def between_checkpoints(self) -> None:
        """Do what is due, within the time budget. Failures are reported and tried again later.

        Raises:
            FencedError: a newer owner exists.
        """
        rules = self.job.settings.maintenance
        if not rules.enabled or not self._due():
            return
        try:
            self.run(at_least=rules.min_versions, budget_ms=rules.budget_ms, orphans=self.orphans.due())
        except FencedError:
            raise
        except TautochroneError as error:
            self._report_failure(error)

    def run(
        self,
        *,
        at_least: int = 1,
        budget_ms: int | None = None,
        dry_run: bool = False,
        orphans: bool = True,
    ) -> list[Expired]:
        """Maintain all tables: steps 1 to 4 of the module docstring.

        Args:
            at_least: see `LakeTable.expire`.
            budget_ms: start no further table after this time; the next call continues there.
            dry_run: change nothing, report what would be done.
            orphans: search for files that nothing refers to.
        """
        started = time.monotonic()
        self.failed.clear()
        tables = self._tables()
        expired = self._expire_checkpoints(dry_run=dry_run)
        fence = self._fence()
        needs = needs_of(self.job.store, self.job.name, self.job.lake, tables, expired if dry_run else ())
        tables |= self._states(needs, tables)
        self.orphans.begin(tables, anew=orphans)
        after_ms = self.now_ms() - self.job.settings.maintenance.history_ms
        self._waiting = [name for name in self._waiting if name in tables]
        self._waiting += [name for name in tables if name not in self._waiting]
        done: list[Expired] = []
        for name in self._due_tables(started, budget_ms):
            try:
                if not dry_run:
                    self._rewrite(tables[name])
                done.append(self._expire(tables[name], needs, after_ms, fence, at_least, dry_run=dry_run))
                self.orphans.remove_orphans(tables[name], fence, dry_run=dry_run)
            except FencedError:
                raise
            except LakeError as error:
                self.failed.append(name)
                self._report_failure(error, str(name))
        if not dry_run:
            self.job.effects.perform(
                Step.META_EXPIRE,
                self.job.name,
                lambda: self.job.store.checkpoints.forget_expired(self.job.name),
            )
        return done

    def _due_tables(self, started: float, budget_ms: int | None) -> Iterator[TableName]:
        """The tables that wait for maintenance, until the budget is used up."""
        for name in list(self._waiting):
            if budget_ms is not None and (time.monotonic() - started) * 1000 >= budget_ms:
                self.job.emit(
                    events.MaintenanceDeferred(
                        datasets=[str(name) for name in self._waiting],
                        reason=Reason.of(ReasonCode.BUDGET_USED_UP, budget_ms=budget_ms),
                    )
                )
                return
            # Removed first, so that a table that always fails does not starve the others.
            self._waiting.remove(name)
            yield name

    def _report_failure(self, error: TautochroneError, dataset: str | None = None) -> None:
        require_live_jvm()
        text = str(error)
        if is_defect(error):
            text = f"{text} ({trace_of(error, ' '.join(filter(None, ('maintenance', dataset))))})"
        reason = Reason.of(ReasonCode.TRIED_AGAIN_LATER, error_class=error.error_class)
        self.job.emit(events.MaintenanceFailed(dataset=dataset, error=text, reason=reason))

    def _due(self) -> bool:
        now, rules = self.now_ms(), self.job.settings.maintenance
        if self._last_ms is not None and now - self._last_ms < rules.every_ms:
            return False
        latest = self.job.store.checkpoints.latest_done(self.job.name)
        if latest is None:
            return False
        if latest.number < rules.keep_last:
            # The newest `keep_last` checkpoints never expire.
            return False
        if self._last_ms is None:
            # A one-shot run maintains after its checkpoint.
            self._last_ms = now - rules.every_ms
        if latest.number == self._last_checkpoint and not self._waiting:
            return False
        self._last_ms, self._last_checkpoint = now, latest.number
        return True

    def _tables(self) -> dict[TableName, LakeTable]:
        """The job's own tables that exist. External tables are never maintained."""
        loaded = self.job.tables
        return {
            name: loaded.get(name) or self.job.lake.load(name)
            for name in self.job.graph.order
            if name in loaded or self.job.lake.exists(name)
        }

    def _states(self, needs: Needs, tables: Mapping[TableName, LakeTable]) -> dict[TableName, LakeTable]:
        """State tables of the job's views that are still needed, and the tables of files and the shadow
        tables that they read."""
        own = states_among(needs.followed, tables)
        upstream = sorted(self.job.topology.upstream_tables)
        own += [name for name in upstream if is_file_table(name) or is_shadow_table(name)]
        return {name: self.job.lake.load(name) for name in own if self.job.lake.exists(name)}

    def _fence(self) -> Fence:
        """The job's fence; without a takeover that of the current owner, which may be running."""
        return self.job.journal.fence or self.job.store.jobs.newest_fence(self.job.name)

    def _expire_checkpoints(self, *, dry_run: bool) -> list[CheckpointNumber]:
        job = self.job
        started = time.monotonic()
        now, rules = self.now_ms(), job.settings.maintenance
        candidates = expirable_checkpoints(job.store.checkpoints.unexpired(job.name), now, rules)
        pinned = job.store.pins.pinned_checkpoints()
        expired: list[CheckpointNumber] = []
        needed: dict[str, str] = {}
        for number in candidates:
            if number in pinned:
                needed[str(number)] = "CHECKPOINT_PINNED"
                continue
            try:
                if not dry_run:
                    self._mark_expired(number)
            except MetaError as error:
                # A reader or a refresh needs the checkpoint: no failure.
                if error.error_class not in ("CHECKPOINT_PINNED", "CHECKPOINT_NEEDED"):
                    raise
                needed[str(number)] = error.error_class
                continue
            expired.append(number)
        if expired:
            job.emit(
                events.CheckpointsExpired(
                    count=len(expired),
                    first=int(expired[0]),
                    last=int(expired[-1]),
                    needed=needed,
                    dry_run=dry_run,
                    reason=Reason.of(
                        ReasonCode.CHECKPOINT_RETENTION,
                        keep_ms=rules.keep_ms,
                        spacing_ms=rules.spacing_ms,
                        keep_last=rules.keep_last,
                    ),
                    duration_ms=round((time.monotonic() - started) * 1000),
                )
            )
        return expired

    def _mark_expired(self, number: CheckpointNumber) -> None:
        self.job.effects.perform(
            Step.META_EXPIRE, self.job.name, lambda: self.job.store.checkpoints.expire(number)
        )

    def _rewrite(self, table: LakeTable) -> None:
        """Shorten and compact a table, for its owner only: nobody else may move main."""
        if table.name in self.job.tables or (is_file_table(table.name) and self.job.tables):
            self._shorten(table)
            self._compact(table)

    def _shorten(self, table: LakeTable) -> None:
        """Drop rows that a log table keeps longer than its retention."""
        started = time.monotonic()
        try:
            done = shorten_log(self.job, table, self.now_ms(), self.exclusive(table.name))
        except FencedError:
            raise
        except LakeError as error:
            require_live_jvm()
            reason = Reason.of(ReasonCode.TRIED_AGAIN_LATER, error_class=error.error_class)
            self.job.emit(events.LogNotShortened(dataset=str(table.name), reason=reason))
            return
        if isinstance(done, Reason):
            self.job.emit(events.LogNotShortened(dataset=str(table.name), reason=done))
        elif done is not None:
            retention = self.job.definitions.datasets[table.name].properties[LOG_RETENTION]
            self.job.emit(
                events.LogShortened(
                    dataset=str(table.name),
                    files=done.files,
                    rows=done.rows,
                    reason=Reason.of(ReasonCode.LOG_RETENTION, retention=retention),
                    duration_ms=round((time.monotonic() - started) * 1000),
                )
            )

    def _compact(self, table: LakeTable) -> None:
        """Compact small files.

        Of a root only those of the newest checkpoint: a file that also took younger rows would be old rows
        and new ones at once in the next checkpoint. A compaction that conflicts with another commit is
        skipped and tried again later.
        """
        rules = self.job.settings.maintenance
        if not rules.min_files:
            return
        latest = self.job.store.checkpoints.latest_done(self.job.name)
        fork = table.fork()
        cut = None if latest is None else latest.roots.get(table.name)
        if cut == NO_VERSION:
            return
        started = time.monotonic()
        try:
            done = table.compact(
                fork if cut is None else replace(fork, version=cut),
                self.job.file_table_metadata() if is_file_table(table.name) else self.job.commit_metadata(),
                min_files=rules.min_files,
                max_files=rules.max_files,
                exclusive=self.exclusive(table.name),
            )
        except FencedError:
            raise
        except LakeError as error:
            require_live_jvm()
            reason = Reason.of(ReasonCode.COMPACTION_FAILED, error_class=error.error_class, text=str(error))
            self.job.emit(events.CompactionSkipped(dataset=str(table.name), reason=reason))
            return
        if done.version is not None:
            self.job.emit(
                events.Compacted(
                    dataset=str(table.name),
                    files_before=done.files_before,
                    files_after=done.files_after,
                    bytes=done.bytes,
                    reason=Reason.of(ReasonCode.SMALL_FILES, min_files=rules.min_files),
                    duration_ms=round((time.monotonic() - started) * 1000),
                )
            )

    def _expire(
        self,
        table: LakeTable,
        needs: Needs,
        after_ms: int,
        fence: Fence,
        at_least: int,
        *,
        dry_run: bool,
    ) -> Expired:
        started = time.monotonic()
        expired = table.expire(needs.of(table.name, after_ms), fence, at_least=at_least, dry_run=dry_run)
        if expired.versions:
            self.job.emit(
                events.VersionsExpired(
                    dataset=str(table.name),
                    versions=expired.versions,
                    files=expired.files,
                    kept=expired.kept,
                    dry_run=dry_run,
                    reason=Reason.of(ReasonCode.VERSIONS_NOT_NEEDED),
                    duration_ms=round((time.monotonic() - started) * 1000),
                )
            )
        return expired
