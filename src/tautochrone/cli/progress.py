"""The state of a run as the live display shows it, from its events alone. It must never draw anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatchmethod

from tautochrone.model import events
from tautochrone.model.events.base import short

__all__ = ["DatasetLine", "Progress"]


@dataclass(slots=True)
class DatasetLine:
    """One dataset. Rows are those of this run; times are seconds of the progress's clock."""

    name: str
    kind: str = ""
    mode: str = ""
    inserted: int = 0
    deleted: int = 0
    took_s: float | None = None
    note: str = ""
    """Why the mode, or what failed."""
    fresh_s: float | None = None
    """The time up to which readers see its data: the cut of its last checkpoint."""
    failed: bool = False
    failed_flows: set[str] = field(default_factory=set)
    """Its flows that failed and have not started again."""

    @property
    def broken(self) -> bool:
        return self.failed or bool(self.failed_flows)


class Progress:
    """Follows the events of one run.

    The lag of a dataset is the age of what readers see: it starts at the cut of a checkpoint that the
    dataset is part of, or at an observation without news, and grows until the next one. The lag of a dataset
    that failed keeps growing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.started_s = clock()
        self.ended_s: float | None = None
        self.lines: dict[str, DatasetLine] = {}
        self.pipeline = ""
        self.phase = "starting Spark"
        self.checkpoint: int | None = None
        self.uri = ""
        self._parts: dict[int, float] = {}

    @property
    def elapsed_s(self) -> float:
        return (self.ended_s or self._clock()) - self.started_s

    def lag_s(self, line: DatasetLine) -> float | None:
        """Seconds, None while nothing of it is readable in this run."""
        return None if line.fresh_s is None else max(0.0, (self.ended_s or self._clock()) - line.fresh_s)

    @singledispatchmethod
    def take(self, event: events.Event) -> None:
        """Update the state from an event; those without a method below change nothing."""

    @take.register
    def _starting(self, event: events.Starting) -> None:
        self.pipeline = event.pipeline

    @take.register
    def _graph(self, event: events.Graph) -> None:
        for entry in event.datasets:
            self._line(entry.dataset).kind = entry.kind
        self.phase = "taking the job over"

    @take.register
    def _waiting_for_run(self, event: events.WaitingForRun) -> None:
        self.phase = event.text()

    @take.register
    def _catalog(self, event: events.Catalog) -> None:
        self.uri = event.uri

    @take.register
    def _takeover(self, _event: events.Takeover) -> None:
        self.phase = "running"

    @take.register
    def _batch(self, event: events.Batch) -> None:
        line = self._line(event.dataset)
        line.mode, line.note = "INGEST", f"batch {event.batch}"
        line.inserted += event.rows
        line.failed_flows.discard(event.flow)

    @take.register
    def _flow_failed(self, event: events.FlowFailed) -> None:
        line = self._line(event.dataset)
        line.failed_flows.add(event.flow)
        line.note = event.error

    @take.register
    def _flow_restarted(self, event: events.FlowRestarted) -> None:
        # It counts as failed until it has made progress.
        self._line(event.dataset).note = f"started again, attempt {event.attempt}: {event.reason}"

    @take.register
    def _flow_recovered(self, event: events.FlowRecovered) -> None:
        line = self._line(event.dataset)
        line.failed_flows.discard(event.flow)
        line.note = "recovered"

    @take.register
    def _refresh(self, event: events.Refresh) -> None:
        line = self._line(event.dataset)
        line.mode, line.note, line.failed = event.mode.upper(), str(event.reason), False
        line.inserted += event.rows_inserted
        line.deleted += event.rows_deleted
        line.took_s = event.duration_ms / 1000

    @take.register
    def _refresh_failed(self, event: events.RefreshFailed) -> None:
        line = self._line(event.dataset)
        line.failed, line.note = True, str(event.error)

    @take.register
    def _checkpoint(self, event: events.Checkpoint) -> None:
        cut_s = self._clock() - event.duration_ms / 1000
        for dataset, line in self.lines.items():
            line.failed = dataset in event.failed
        if event.published:
            self._mark_published(event.checkpoint, cut_s)
        else:
            # Only this job's part is done: readers see the checkpoint when all jobs have done their part.
            self._parts[event.checkpoint] = cut_s
            blockers = [*event.waits_for, *event.skipped_by, *event.invariants]
            self.phase = f"part of checkpoint {event.checkpoint} done, waiting for {', '.join(blockers)}"

    @take.register
    def _checkpoint_published(self, event: events.CheckpointPublished) -> None:
        self.phase = "running"
        self._mark_published(event.checkpoint, self._parts.pop(event.checkpoint, self._clock()))

    @take.register
    def _checkpoint_held(self, event: events.CheckpointHeld) -> None:
        self._parts.pop(event.checkpoint, None)
        self.phase = f"checkpoint {event.checkpoint} not shown: {event.reason}"

    @take.register
    def _no_news(self, event: events.NoNews) -> None:
        self.checkpoint = event.checkpoint
        self._mark_fresh(self._clock())

    @take.register
    def _stopping(self, event: events.Stopping) -> None:
        self.phase = event.text()

    @take.register
    def _run(self, event: events.Run) -> None:
        self.phase = event.state
        self.ended_s = self._clock()

    def _line(self, dataset: str) -> DatasetLine:
        return self.lines.setdefault(dataset, DatasetLine(short(dataset)))

    def _mark_published(self, checkpoint: int, cut_s: float) -> None:
        self.checkpoint = checkpoint
        self._mark_fresh(cut_s)

    def _mark_fresh(self, fresh_s: float) -> None:
        for line in self.lines.values():
            if not line.broken:
                line.fresh_s = fresh_s
