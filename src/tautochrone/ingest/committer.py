"""One committer per streaming table: several flows stage, one snapshot takes what waits.

The flow that gets the commit lock first commits everything that is staged by then. The others find
their batch committed when they get the lock. A table with one flow has no extra cost.

Bad records go into the quarantine table, so that either both tables have a batch or none:

    1. the quarantine table prepares them      2. the table's commit names their version: it decides
    3. the quarantine table is committed       4. both versions are reported in one row
    A batch of bad records only has a version of the table too, without rows: a revision goes back to it with
    the positions. After a crash: what the table names is committed, anything else that it prepared is dropped
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from tautochrone.errors import ConflictError, FencedError, TautochroneError
from tautochrone.model import events
from tautochrone.model.lake import CommitMetadata, Committed, LakeTable, Prepared, Staged
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import MALFORMED_DROPPED, MALFORMED_WRITTEN
from tautochrone.model.source_position import SourcePosition

__all__ = ["TableCommitter", "settle_quarantine"]


def settle_quarantine(table: LakeTable, quarantine_table: LakeTable, fence: Fence, emit: events.Emit) -> None:
    """Commit what the quarantine table prepared if the main table names it; drop it if not.

    The table must be settled itself, and out of an older owner's reach.

    Raises:
        FencedError: a newer owner prepared something.
    """
    commit_metadata = table.fork().commit_metadata
    named = None if commit_metadata is None else commit_metadata.companions.get(str(quarantine_table.name))
    for prepared in quarantine_table.prepared():
        if prepared.commit_metadata.fence > fence:
            # Not named yet, perhaps: its owner may be about to commit the table.
            raise FencedError(
                "JOB_FENCED",
                f"{quarantine_table.name} is written by fence {prepared.commit_metadata.fence}; "
                f"this writer holds {fence}",
                hint="another process took the job over; this one stops",
            )
        if prepared.version == named:
            quarantine_table.commit(prepared, fence)
            emit(
                events.Recommit(
                    dataset=str(quarantine_table.name),
                    rows=prepared.rows,
                    fence=int(prepared.commit_metadata.fence),
                )
            )
        else:
            quarantine_table.abort(prepared)
            reason = Reason.of(ReasonCode.BATCH_NOT_IN_TABLE, table=str(table.name))
            emit(events.Abort(dataset=str(quarantine_table.name), rows=prepared.rows, reason=reason))


@dataclass(slots=True, eq=False)
class _Part:
    flow: str
    staged: Staged
    position: SourcePosition
    bad: Staged | None
    violations: Mapping[str, int]
    commit_metadata: CommitMetadata
    done: Committed | None = None
    error: Exception | None = None


@dataclass(slots=True)
class TableCommitter:
    """Commits batches of the flows into one table.

    Args:
        table: the target.
        commit_metadata: pipeline, job, fence and store of this run.
        report: called after each commit with the new versions (the *reported unit*).
        emit: who hears of files that could not be deleted (`cleanup_failed`).
        quarantine_table: takes the bad records, for a table with flows that quarantine them.
    """

    table: LakeTable
    commit_metadata: CommitMetadata
    report: Callable[[Mapping[TableName, Version]], None]
    emit: events.Emit
    quarantine_table: LakeTable | None = None
    _unsettled: bool = False
    _waiting: list[_Part] = field(default_factory=list)
    _queue: threading.Lock = field(default_factory=threading.Lock)
    _commit_lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(
        self,
        flow: str,
        staged: Staged,
        position: SourcePosition,
        bad: Staged | None = None,
        violations: Mapping[str, int] | None = None,
        commit_metadata: CommitMetadata | None = None,
    ) -> Committed:
        """Commit one staged batch, together with whatever else waits. Blocks until it is committed.

        Args:
            bad: its records that are quarantined.
            violations: how many of its rows violate each of the table's expectations.
            commit_metadata: what the commit says besides positions and violations; the same for all batches
                that may wait at one time. None: what all commits of this run say.

        Raises:
            ConflictError: main moved; the batch's files are deleted, the source is unharmed.
            CommitOutcomeUnknownError: the next start reads the table to find out.
            MetaError: the batch is committed, only its report failed; the next start reports it.
        """
        part = _Part(flow, staged, position, bad, violations or {}, commit_metadata or self.commit_metadata)
        with self._queue:
            self._waiting.append(part)
        with self._commit_lock:
            if part.done is None and part.error is None:
                with self._queue:
                    group, self._waiting = self._waiting, []
                self._commit(group)
        if part.error is not None:
            raise part.error
        assert part.done is not None
        return part.done

    @property
    def exclusive(self) -> AbstractContextManager[object]:
        """While it is entered no batch is between reading main and moving it; batches wait meanwhile."""
        return self._commit_lock

    def _commit(self, group: list[_Part]) -> None:
        commit_metadata = replace(
            group[0].commit_metadata,
            positions={part.flow: part.position for part in group},
            violations=self._violations(group),
        )
        try:
            bad = [part.bad for part in group if part.bad is not None]
            done = self._write([part.staged for part in group if part.staged.rows], bad, commit_metadata)
        except Exception as error:
            # Every waiting flow gets the error, of whatever class it is.
            for part in group:
                part.error = error
            return
        for part in group:
            part.done = done

    def _violations(self, group: Sequence[_Part]) -> Mapping[str, int]:
        """The table's counts with those of the batches; nothing where none is counted."""
        batches = [part.violations for part in group]
        names = dict.fromkeys(name for batch in batches for name in batch)
        if not names:
            return {}
        commit_metadata = self.table.fork().commit_metadata
        before = {} if commit_metadata is None else commit_metadata.violations
        # A batch without such records does not name them.
        names |= {name: None for name in (MALFORMED_WRITTEN, MALFORMED_DROPPED) if name in before}
        return {name: before.get(name, 0) + sum(batch.get(name, 0) for batch in batches) for name in names}

    def settle_quarantine_table(self) -> None:
        """Finish what an error left half done between the table and its quarantine table. Repeatable."""
        with self._commit_lock:
            self._settle()

    def _settle(self) -> None:
        if not self._unsettled or self.quarantine_table is None:
            return
        settle_quarantine(self.table, self.quarantine_table, self.commit_metadata.fence, self.emit)
        self.report({each.name: each.current_version() for each in (self.table, self.quarantine_table)})
        self._unsettled = False

    def _write(self, staged: list[Staged], bad: list[Staged], commit_metadata: CommitMetadata) -> Committed:
        self._settle()
        if bad:
            return self._write_both(staged, bad, commit_metadata)
        done = self._write_rows(staged, commit_metadata)
        if staged:
            # From here on the files belong to main: an error must never delete them.
            self.report({done.table: done.version})
        return done

    def _write_both(
        self, staged: list[Staged], bad: list[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        assert self.quarantine_table is not None
        self._unsettled = True
        prepared = self._prepare(self.quarantine_table, bad, commit_metadata, waiting=staged)
        named = {str(prepared.table): str(prepared.version)}
        deciding = replace(commit_metadata, companions=named)
        if staged:
            done = self._write_rows(staged, deciding)
        else:
            done = self.table.raise_fence(self.table.fork(), deciding)
        quarantined = self.quarantine_table.commit(prepared, commit_metadata.fence)
        self.report({done.table: done.version, quarantined.table: quarantined.version})
        self._unsettled = False
        return done

    def _write_rows(self, staged: list[Staged], commit_metadata: CommitMetadata) -> Committed:
        if not staged:
            # Offsets moved past rows that the flow's query dropped: no version, only positions.
            return self.table.commit_metadata_only(self.table.fork(), commit_metadata)
        return self._commit_prepared(self._prepare(self.table, staged, commit_metadata), commit_metadata)

    def _prepare(
        self,
        table: LakeTable,
        staged: list[Staged],
        commit_metadata: CommitMetadata,
        waiting: Sequence[Staged] = (),
    ) -> Prepared:
        """`waiting` is what the main table would have got afterwards."""
        try:
            return table.prepare(table.fork(), staged, commit_metadata)
        except ConflictError:
            for part in staged:
                self._clean(partial(table.discard, part))
            for part in waiting:
                self._clean(partial(self.table.discard, part))
            raise

    def _commit_prepared(self, prepared: Prepared, commit_metadata: CommitMetadata) -> Committed:
        try:
            return self.table.commit(prepared, commit_metadata.fence)
        except ConflictError:
            # Not `discard`: a new owner may be committing the branch at this moment, `abort` asks.
            self._clean(partial(self.table.abort, prepared))
            raise

    def _clean(self, action: Callable[[], None]) -> None:
        """Files of a refused batch are useless. It is reported when they cannot be deleted."""
        try:
            action()
        except TautochroneError as error:
            self.emit(events.CleanupFailed(dataset=str(self.table.name), error=str(error)))
