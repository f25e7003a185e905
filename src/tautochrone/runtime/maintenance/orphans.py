"""Looking for files that nothing refers to: once in a while in a run, at once by `taut maintain`.

What killed writers left behind is in nobody's way, and to find it costs a listing of each table's folder
and a read of all its manifests: so seldom.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tautochrone.errors import FencedError, LakeError
from tautochrone.model.lake import LakeTable
from tautochrone.model.maintenance import Orphans
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.job import Job

__all__ = ["OrphanSearch"]


@dataclass(slots=True)
class OrphanSearch:
    """Which of a job's tables have yet to be searched, and what was found in those that were.

    Time is divided into periods of `orphans_every_ms`. A run looks once in a period; what an earlier process
    did in the same period is told by its checkpoints, so that a job of many short runs does not look at each.

    Args:
        now_ms: epoch milliseconds.
    """

    job: Job
    now_ms: Callable[[], int]
    found: list[Orphans] = field(default_factory=list)
    _waiting: set[TableName] = field(default_factory=set)
    _period: int | None = None
    _folders: Mapping[TableName, str] | None = None

    def due(self) -> bool:
        """Whether a new period began; true once for each."""
        every_ms = self.job.settings.maintenance.orphans_every_ms
        if not every_ms:
            return False
        if self._period is None:
            before = self.job.store.standing(self.job.name)[:-1]
            self._period = before[-1].at_ms // every_ms if before else -1
        now = self.now_ms() // every_ms
        new, self._period = now != self._period, now
        return new

    def begin(self, tables: Iterable[TableName], *, anew: bool) -> None:
        """Before a look at `tables`: all of them are to be searched when `anew`, else those of which the last
        look ran out of time."""
        self.found.clear()
        self._folders = None
        self._waiting = set(tables) if anew else self._waiting & set(tables)

    def search(self, table: LakeTable, fence: Fence, *, dry_run: bool) -> None:
        """Search one table, if it is its turn. What cannot be searched is told and left alone.

        Raises:
            FencedError: a newer owner exists.
        """
        if table.name not in self._waiting:
            return
        self._waiting.remove(table.name)
        job, started = self.job, time.monotonic()
        age_ms = job.settings.maintenance.orphans_ms
        try:
            self._require_mine(table)
            if self._folders is None:
                self._folders = job.lake.folders()
            found = table.remove_orphans(self.now_ms() - age_ms, fence, self._folders, dry_run=dry_run)
        except FencedError:
            raise
        except LakeError as error:
            job.emit("orphans_skipped", dataset=str(table.name), reason=str(error))
            return
        self.found.append(found)
        if found.files:
            job.emit(
                "orphans_removed",
                dataset=str(table.name),
                count=len(found.files),
                bytes=found.bytes,
                files=list(found.files) if dry_run else [],
                dry_run=dry_run,
                reason=f"nothing refers to them, and they are older than {age_ms / 3_600_000:g} h",
                duration_ms=round((time.monotonic() - started) * 1000),
            )

    def _require_mine(self, table: LakeTable) -> None:
        """A dataset's name does not make a table ours: somebody else may have made it."""
        commit_metadata = table.fork().commit_metadata
        if commit_metadata is None or commit_metadata.pipeline != self.job.spec.name:
            raise LakeError("ORPHANS_UNKNOWN", f"{table.name} was not written by this pipeline")
