"""Removes orphaned files: files in a table's folder that no version refers to.

Killed writers leave them behind. They do no harm, and a search lists the table's folder and reads all its
manifests, so a run searches seldom; `taut maintain` searches at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tautochrone.errors import FencedError, LakeError
from tautochrone.model import events
from tautochrone.model.lake import LakeTable, Orphans
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.streams.change_logs import orphans_end

__all__ = ["OrphanRemoval"]


@dataclass(slots=True)
class OrphanRemoval:
    """Remembers which of a job's tables are still to be searched, and what was removed from the others.

    Time is divided into periods of `orphans_every_ms`. A run searches once per period. A checkpoint of an
    earlier run in the same period counts as a search, so that a job of many short runs searches seldom.

    Args:
        now_ms: epoch milliseconds.
    """

    job: Job
    now_ms: Callable[[], int]
    results: list[Orphans] = field(default_factory=list)
    _waiting: set[TableName] = field(default_factory=set)
    _period: int | None = None
    _folders: Mapping[TableName, str] | None = None

    def due(self) -> bool:
        """Whether a new period began; true once per period."""
        every_ms = self.job.settings.maintenance.orphans_every_ms
        if not every_ms:
            return False
        if self._period is None:
            before = self.job.store.checkpoints.unexpired(self.job.name)[:-1]
            self._period = before[-1].at_ms // every_ms if before else -1
        now = self.now_ms() // every_ms
        is_new, self._period = now != self._period, now
        return is_new

    def begin(self, tables: Iterable[TableName], *, anew: bool) -> None:
        """Start a search: of all `tables` if `anew`, else of those that the last one had no time for."""
        self.results.clear()
        self._folders = None
        self._waiting = set(tables) if anew else self._waiting & set(tables)

    def remove_orphans(self, table: LakeTable, fence: Fence, *, dry_run: bool) -> None:
        """Remove the orphans of one table if it is still to be searched. `dry_run` only lists them.

        A table that cannot be searched is reported.

        Raises:
            FencedError: a newer owner exists.
        """
        if table.name not in self._waiting:
            return
        self._waiting.remove(table.name)
        job, started = self.job, time.monotonic()
        now_ms = self.now_ms()
        try:
            before_ms = orphans_end(job, table, now_ms - job.settings.maintenance.orphans_ms)
            if isinstance(before_ms, Reason):
                job.emit(events.OrphansSkipped(dataset=str(table.name), reason=before_ms))
                return
            self._require_own_table(table)
            if self._folders is None:
                self._folders = job.lake.folders()
            orphans = table.remove_orphans(before_ms, fence, self._folders, dry_run=dry_run)
        except FencedError:
            raise
        except LakeError as error:
            reason = Reason.of(
                ReasonCode.ORPHAN_SEARCH_FAILED, error_class=error.error_class, text=str(error)
            )
            job.emit(events.OrphansSkipped(dataset=str(table.name), reason=reason))
            return
        self.results.append(orphans)
        if orphans.files:
            job.emit(
                events.OrphansRemoved(
                    dataset=str(table.name),
                    count=len(orphans.files),
                    bytes=orphans.bytes,
                    files=list(orphans.files) if dry_run else [],
                    dry_run=dry_run,
                    reason=Reason.of(ReasonCode.FILES_UNREFERENCED, older_than_ms=now_ms - before_ms),
                    duration_ms=round((time.monotonic() - started) * 1000),
                )
            )

    def _require_own_table(self, table: LakeTable) -> None:
        """Refuse a table that another pipeline or another program wrote under a dataset's name."""
        commit_metadata = table.fork().commit_metadata
        if commit_metadata is None or commit_metadata.pipeline != self.job.spec.name:
            raise LakeError("ORPHANS_UNKNOWN", f"{table.name} was not written by this pipeline")
