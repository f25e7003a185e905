"""The live display of `taut run` on a terminal: a line per dataset, redrawn in place.

`Progress` is the state of the run, from its events alone, and draws nothing. `LiveDisplay` draws it; what
people may read later (failures, warnings, prints of user code) scrolls above it. Import this only after the
first line is printed: it imports rich.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatchmethod
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tautochrone.model import events
from tautochrone.model.events.base import short

__all__ = ["DatasetLine", "LiveDisplay", "Progress"]

_SHOWN_IN_TABLE = (
    events.Starting,
    events.Graph,
    events.Catalog,
    events.Takeover,
    events.Batch,
    events.Refresh,
    events.Checkpoint,
    events.NoNews,
    events.Stopping,
    events.Run,
)
_STATE_STYLES = {"COMPLETED": "bold green", "FAILED": "bold red", "CANCELED": "bold yellow"}
_MODE_STYLES = {"FULL": "yellow", "DIFF": "yellow", "NO_DATA": "dim"}
_FRAME_ROWS = 4  # title, header of the table, the line with the number of omitted datasets, the cursor's
_REFRESHES_PER_SECOND = 4


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


class LiveDisplay:
    """A listener of events that draws. A context manager: the last frame stays on the screen."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._lock = threading.Lock()
        self._spinner = Spinner("dots")
        # Prints of user code and lines of the JVM come through sys.stderr and belong above the table.
        self._live = Live(
            console=console,
            get_renderable=self.picture,
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=True,
        )

    def __call__(self, event: events.Event) -> None:
        with self._lock:
            self._progress.take(event)
        if not isinstance(event, _SHOWN_IN_TABLE):
            text = event.text()
            if text:
                self._console.print(Text(text, style="red" if event.failure else ""))

    def __enter__(self) -> LiveDisplay:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def picture(self) -> RenderableType:
        """The current frame."""
        with self._lock:
            return Group(self._title(), *self._datasets())

    def _title(self) -> RenderableType:
        progress = self._progress
        title = Text.assemble(
            (progress.pipeline, "bold"),
            "  ",
            (progress.phase, _STATE_STYLES.get(progress.phase, "")),
            f"  {_duration(progress.elapsed_s)}",
            no_wrap=True,
            overflow="ellipsis",
        )
        if progress.checkpoint is not None:
            title.append(f"  checkpoint {progress.checkpoint}")
        if progress.uri and progress.ended_s is None:
            title.append(f"  {progress.uri}", style="dim")
        if progress.ended_s is not None:
            return title
        self._spinner.update(text=title)
        return self._spinner

    def _datasets(self) -> list[RenderableType]:
        lines = list(self._progress.lines.values())
        if not lines:
            return []
        max_lines = max(1, self._console.height - _FRAME_ROWS)
        shown = lines
        if len(lines) > max_lines:
            # Broken datasets get the lines first, then the others; the order of the display stays.
            chosen = [*(n for n in lines if n.broken), *(n for n in lines if not n.broken)][:max_lines]
            shown = [line for line in lines if any(line is other for other in chosen)]
        table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
        table.add_column("dataset", no_wrap=True, overflow="ellipsis", min_width=12)
        table.add_column("mode", no_wrap=True, min_width=6)
        table.add_column("rows", no_wrap=True, justify="right")
        table.add_column("lag", no_wrap=True, justify="right")
        table.add_column("took", no_wrap=True, justify="right")
        # Rich may make only this column narrower; its cells still do not wrap.
        table.add_column("why", no_wrap=False, style="dim")
        for line in shown:
            table.add_row(*self._cells(line))
        omitted = len(lines) - len(shown)
        return [table] if omitted == 0 else [table, Text(f"… and {omitted} more", style="dim")]

    def _cells(self, line: DatasetLine) -> tuple[Text, ...]:
        lag = self._progress.lag_s(line)
        mode = "FAILED" if line.broken else line.mode
        style = "bold red" if line.broken else _MODE_STYLES.get(mode, "green")
        return (
            Text(line.name),
            Text(mode or "-", style=style if mode else "dim"),
            Text(_rows(line)),
            Text("-" if lag is None else _duration(lag), style="red" if line.broken else ""),
            Text("-" if line.took_s is None else _duration(line.took_s)),
            Text(
                " ".join(line.note.split()),
                style="red" if line.broken else "",
                no_wrap=True,
                overflow="ellipsis",
            ),
        )


def _rows(line: DatasetLine) -> str:
    added = f"+{line.inserted:,}"
    return f"{added} -{line.deleted:,}" if line.deleted else added


def _duration(seconds: float) -> str:
    """`0.8 s`, `12 s`, `3:07`, `2:14:09`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole_seconds = int(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    hours, rest = divmod(whole_seconds, 3600)
    minutes, remaining_seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{remaining_seconds:02}" if hours else f"{minutes}:{remaining_seconds:02}"
