"""The progress of open checkpoints, from the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tautochrone.meta import CheckpointLine, Store
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.model.jobs import JobProgress, Part
from tautochrone.model.names import TableName

__all__ = ["Progress", "progress_of"]

_STUCK_MS = 60_000
_STUCK_TIMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An open checkpoint: `done` of `total` datasets have a version for it, `failed` have a failure.

    `waiting` are the others, `parts` the parts of the jobs. `stuck`: it takes ten times as long as the median
    of published ones, and a minute at least.
    """

    line: CheckpointLine
    done: int
    failed: int
    total: int
    waiting: tuple[TableName, ...]
    parts: tuple[JobProgress, ...]
    age_ms: int
    stuck: bool


def progress_of(store: Store, line: CheckpointLine) -> Progress:
    """The progress of an open checkpoint in all jobs that take part in it."""
    parts = store.checkpoints.progress(line.number)
    entries = [
        entry for part in parts if part.part is not Part.SKIPPED for entry in store.datasets.entries(part.job)
    ]
    names = {entry.name for entry in entries if entry.kind in VERSIONED_KINDS}
    done = names & store.checkpoints.versions_at(line.number).keys()
    failed = (names & store.checkpoints.failures_at(line.number).keys()) - done
    age = max(0, time.time_ns() // 1_000_000 - line.cut_at_ms)
    return Progress(
        line=line,
        done=len(done),
        failed=len(failed),
        total=len(names),
        parts=parts,
        waiting=tuple(sorted(names - done - failed)),
        age_ms=age,
        stuck=age > max(_STUCK_MS, _STUCK_TIMES * _median_ms(store, line.job)),
    )


def _median_ms(store: Store, job: str) -> int:
    durations_ms = sorted(
        line.published_at_ms - line.cut_at_ms
        for line in store.history.timeline()
        if line.job == job and line.published_at_ms is not None
    )
    return durations_ms[len(durations_ms) // 2] if durations_ms else 0
