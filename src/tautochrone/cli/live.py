"""The live display of `taut run` on a terminal: a line per dataset, redrawn in place.

What people may read later (failures, warnings, prints of user code) scrolls above it. Import this
only after the first line is printed: it imports rich.
"""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tautochrone.cli.progress import DatasetLine, Progress
from tautochrone.model import events

__all__ = ["LiveDisplay"]

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
_MODE_STYLES = {"FULL": "yellow", "DIFF": "yellow", "NO_DATA": "dim"}
_FRAME_ROWS = 4  # title, header of the table, the line with the number of omitted datasets, the cursor's
_REFRESHES_PER_SECOND = 4


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


_STATE_STYLES = {"COMPLETED": "bold green", "FAILED": "bold red", "CANCELED": "bold yellow"}


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
