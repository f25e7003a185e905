"""The state of a run as the live display shows it, from its events alone. It must never draw anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tautochrone.cli.events import short

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

    def take(self, event: str, fields: Mapping[str, Any]) -> None:
        """Update the state from an event; unknown events change nothing."""
        handler = getattr(self, f"_on_{event}", None)
        if handler is not None:
            handler(fields)

    def _line(self, dataset: str) -> DatasetLine:
        return self.lines.setdefault(dataset, DatasetLine(short(dataset)))

    def _on_starting(self, f: Mapping[str, Any]) -> None:
        self.pipeline = str(f["pipeline"])

    def _on_graph(self, f: Mapping[str, Any]) -> None:
        for entry in f["datasets"]:
            self._line(entry["dataset"]).kind = entry["kind"]
        self.phase = "taking the job over"

    def _on_waiting_for_run(self, f: Mapping[str, Any]) -> None:
        self.phase = f"waiting: {f['reason']}"

    def _on_catalog(self, f: Mapping[str, Any]) -> None:
        self.uri = str(f["uri"])

    def _on_takeover(self, _f: Mapping[str, Any]) -> None:
        self.phase = "running"

    def _on_batch(self, f: Mapping[str, Any]) -> None:
        line = self._line(f["dataset"])
        line.mode, line.note = "INGEST", f"batch {f['batch']}"
        line.inserted += int(f["rows"])
        line.failed_flows.discard(f["flow"])

    def _on_flow_failed(self, f: Mapping[str, Any]) -> None:
        line = self._line(f["dataset"])
        line.failed_flows.add(f["flow"])
        line.note = str(f["error"])

    def _on_flow_restarted(self, f: Mapping[str, Any]) -> None:
        # It counts as failed until it has made progress.
        self._line(f["dataset"]).note = f"started again, attempt {f['attempt']}: {f['reason']}"

    def _on_flow_recovered(self, f: Mapping[str, Any]) -> None:
        line = self._line(f["dataset"])
        line.failed_flows.discard(f["flow"])
        line.note = "recovered"

    def _on_refresh(self, f: Mapping[str, Any]) -> None:
        line = self._line(f["dataset"])
        line.mode, line.note, line.failed = f["mode"].upper(), str(f["reason"]), False
        line.inserted += f["rows_inserted"]
        line.deleted += f["rows_deleted"]
        line.took_s = f["duration_ms"] / 1000

    def _on_refresh_failed(self, f: Mapping[str, Any]) -> None:
        line = self._line(f["dataset"])
        line.failed, line.note = True, str(f["error"])

    def _on_checkpoint(self, f: Mapping[str, Any]) -> None:
        cut_s = self._clock() - f["duration_ms"] / 1000
        for dataset, line in self.lines.items():
            line.failed = dataset in f["failed"]
        if f.get("state", "published") == "published":
            self._mark_published(f["checkpoint"], cut_s)
        else:
            # Only this job's part is done: readers see the checkpoint when all jobs have done their part.
            self._parts[f["checkpoint"]] = cut_s
            blockers = [*f.get("waits_for", ()), *f.get("skipped_by", ()), *f.get("invariants", ())]
            self.phase = f"part of checkpoint {f['checkpoint']} done, waiting for {', '.join(blockers)}"

    def _on_checkpoint_published(self, f: Mapping[str, Any]) -> None:
        self.phase = "running"
        self._mark_published(f["checkpoint"], self._parts.pop(f["checkpoint"], self._clock()))

    def _on_checkpoint_held(self, f: Mapping[str, Any]) -> None:
        self._parts.pop(f["checkpoint"], None)
        self.phase = f"checkpoint {f['checkpoint']} not shown: {f['reason']}"

    def _mark_published(self, checkpoint: int, cut_s: float) -> None:
        self.checkpoint = checkpoint
        for line in self.lines.values():
            if not line.broken:
                line.fresh_s = cut_s

    def _on_no_news(self, f: Mapping[str, Any]) -> None:
        self.checkpoint = f["checkpoint"]
        now = self._clock()
        for line in self.lines.values():
            if not line.broken:
                line.fresh_s = now

    def _on_stopping(self, _f: Mapping[str, Any]) -> None:
        self.phase = "stopping after what is under way (Ctrl-C again: at once)"

    def _on_run(self, f: Mapping[str, Any]) -> None:
        self.phase = str(f["state"])
        self.ended_s = self._clock()
