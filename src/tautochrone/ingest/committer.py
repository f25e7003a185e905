"""One committer per streaming table: several flows stage, one snapshot takes what waits.

Whoever finds the door free becomes the leader and commits everything that is staged by then; the
others find their batch committed when they get the door. One flow alone pays nothing for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from tautochrone.errors import ConflictError, TautochroneError
from tautochrone.model.events import Emit
from tautochrone.model.lake import CommitNote, Committed, FlowPosition, LakeTable, Prepared, Staged
from tautochrone.model.names import TableName, Version

__all__ = ["TableCommitter"]


@dataclass(slots=True, eq=False)
class _Part:
    flow: str
    staged: Staged
    position: FlowPosition
    done: Committed | None = None
    error: Exception | None = None


@dataclass(slots=True)
class TableCommitter:
    """Commits batches of the flows into one table.

    Args:
        table: the target.
        note: pipeline, job, fence and store of this run; positions are added per commit.
        report: called after each commit with the table's new version (the *reported unit*).
        emit: who hears of files that could not be deleted (`cleanup_failed`).
    """

    table: LakeTable
    note: CommitNote
    report: Callable[[TableName, Version], None]
    emit: Emit
    _waiting: list[_Part] = field(default_factory=list)
    _queue: threading.Lock = field(default_factory=threading.Lock)
    _door: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, flow: str, staged: Staged, position: FlowPosition) -> Committed:
        """Commit one staged batch, together with whatever else waits. Blocks until it is committed.

        Raises:
            ConflictError: main moved; the batch's files are deleted, the source is unharmed.
            CommitOutcomeUnknownError: the next start reads the table to find out.
            MetaError: the batch is committed, only its report failed; the next start reports it.
        """
        part = _Part(flow, staged, position)
        with self._queue:
            self._waiting.append(part)
        with self._door:
            if part.done is None and part.error is None:
                with self._queue:
                    group, self._waiting = self._waiting, []
                self._commit(group)
        if part.error is not None:
            raise part.error
        assert part.done is not None
        return part.done

    @property
    def alone(self) -> AbstractContextManager[object]:
        """While it is entered no batch is between reading main and moving it; batches wait meanwhile."""
        return self._door

    def _commit(self, group: list[_Part]) -> None:
        note = replace(self.note, positions={part.flow: part.position for part in group})
        try:
            done = self._write([part.staged for part in group if part.staged.rows], note)
        except Exception as error:
            # Whatever it was: those who wait must hear of it.
            for part in group:
                part.error = error
            return
        for part in group:
            part.done = done

    def _write(self, staged: list[Staged], note: CommitNote) -> Committed:
        if not staged:
            # Offsets moved past rows that the flow's query dropped: no version, only positions.
            return self.table.note_only(self.table.fork(), note)
        done = self._commit_prepared(self._prepare(staged, note), note)
        # From here on the files belong to main: an error must never delete them.
        self.report(done.table, done.version)
        return done

    def _prepare(self, staged: list[Staged], note: CommitNote) -> Prepared:
        try:
            return self.table.prepare(self.table.fork(), staged, note)
        except ConflictError:
            for part in staged:
                self._clean(partial(self.table.discard, part))
            raise

    def _commit_prepared(self, prepared: Prepared, note: CommitNote) -> Committed:
        try:
            return self.table.commit(prepared, note.fence)
        except ConflictError:
            # Not `discard`: a new owner may be committing the branch at this moment, `abort` asks.
            self._clean(partial(self.table.abort, prepared))
            raise

    def _clean(self, action: Callable[[], None]) -> None:
        """Files of a batch that lost are garbage: that they stay is told, but the conflict is the news."""
        try:
            action()
        except TautochroneError as error:
            self.emit("cleanup_failed", dataset=str(self.table.name), error=str(error))
