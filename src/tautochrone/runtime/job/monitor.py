"""What this run says of itself, from its own events: its last lines, flows that fail, what databases keep for
its captures, bad records, space on the disk. The heartbeat takes it to the store.

A new run goes on with what the last one said, until it knows better: a flow that failed then fails until it
has made progress, however often the run is started again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from tautochrone.model import events
from tautochrone.model.alarms import AlarmLimits
from tautochrone.model.names import TableName
from tautochrone.model.run_report import (
    CaptureReport,
    DiskSpace,
    FlowFailure,
    FlowSource,
    Quarantine,
    RunReport,
    Work,
    WorkPhase,
)
from tautochrone.redaction import redacted

__all__ = ["RunMonitor"]

_LINES = 12
_LINE_LENGTH = 500
_DISK_EVERY_S = 30.0
_MOMENT_MS = 2_000
"""Work that takes no longer is not reported."""


class RunMonitor:
    """Collects the report of one run. Safe to use from several threads.

    Args:
        storage: the folder of the pipeline; None: not on a disk of this machine.
        limits: of the alarms.
        now_ms: this machine's clock, epoch milliseconds.
    """

    def __init__(
        self,
        storage: str | None = None,
        limits: AlarmLimits | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._report = RunReport(limits=limits or AlarmLimits())
        self._sent: RunReport | None = None
        self._next_disk = 0.0
        self._work: Work | None = None

    def begin(self, earlier: RunReport | None, flows: Collection[str], tables: Collection[TableName]) -> None:
        """Go on with what the last run of the job said about these flows and tables."""
        names = {str(table) for table in tables}
        if earlier is None:
            return
        with self._lock:
            self._report = replace(
                self._report,
                flows={name: failure for name, failure in earlier.flows.items() if name in flows},
                captures={name: each for name, each in earlier.captures.items() if name in names},
                quarantines={name: each for name, each in earlier.quarantines.items() if name in names},
                sources=tuple(each for each in earlier.sources if each.flow in flows),
            )

    def reads(self, flows: Collection[str], sources: Iterable[FlowSource]) -> None:
        """What `flows` read, be it nothing outside of the lake; of other flows it stays as the last run said
        it."""
        new = tuple(replace(source, name=redacted(source.name)) for source in sources)
        with self._lock:
            others = (source for source in self._report.sources if source.flow not in flows)
            known = sorted((*others, *new), key=lambda source: (source.flow, source.kind, source.name))
            self._report = replace(self._report, sources=tuple(known))

    def runs_every(self, interval_ms: int | None) -> None:
        """The time between checkpoints of a continuous run; None: it runs once."""
        with self._lock:
            self._report = replace(self._report, interval_ms=interval_ms)

    def take(self, event: events.Event) -> None:
        """Listen to an event without secrets."""
        text = event.text()
        with self._lock:
            if text:
                moment = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
                self._lines.append(f"{moment:%Y-%m-%d %H:%M:%S} {text}"[:_LINE_LENGTH])
            self._note(event)

    def made_progress(self, flow: str) -> None:
        """The flow took in what its source had, be it nothing."""
        with self._lock:
            self._forget_failure(flow)

    def works(
        self, phase: WorkPhase | None, checkpoint: int | None = None, total: int = 0, done: int = 0
    ) -> None:
        """The run begins a phase of its work; None: it waits for news.

        Args:
            phase: the new one. The one that runs already goes on.
            checkpoint: what it is about.
            total: the derived datasets of the job.
            done: those that have their outcome already.
        """
        with self._lock:
            work = self._work
            if phase is None:
                self._work = None
            elif work is None or (work.phase, work.checkpoint) != (phase, checkpoint):
                self._work = Work(
                    phase=phase, since_ms=self._now_ms(), checkpoint=checkpoint, total=total, done=done
                )

    def refreshes(self, dataset: str) -> None:
        """The refresh of a dataset begins."""
        with self._lock:
            if self._work is not None:
                refreshing = {**self._work.refreshing, dataset: self._now_ms()}
                self._work = replace(self._work, refreshing=refreshing)

    def refreshed(self, dataset: str, done: int) -> None:
        """The refresh of a dataset has ended, be it by an error, or it was skipped; `done` have their outcome
        now."""
        with self._lock:
            if self._work is not None:
                refreshing = {name: ms for name, ms in self._work.refreshing.items() if name != dataset}
                # Of two that end together, the later call may know less.
                self._work = replace(self._work, refreshing=refreshing, done=max(self._work.done, done))

    def _shown_work(self) -> Work | None:
        """What is worth a write: the phases and refreshes of a short checkpoint are over before one reads."""
        work, until_ms = self._work, self._now_ms() - _MOMENT_MS
        if work is None or work.since_ms > until_ms:
            return None
        long = {name: since_ms for name, since_ms in work.refreshing.items() if since_ms <= until_ms}
        return replace(work, refreshing=long)

    def new_report(self) -> RunReport | None:
        """The report; None when the last one says the same."""
        with self._lock:
            self._look_at_disk()
            report = replace(self._report, lines=tuple(self._lines), work=self._shown_work())
            if report == self._sent:
                return None
            self._sent = report
            return report

    def _note(self, event: events.Event) -> None:
        match event:
            case events.FlowFailed():
                known = self._report.flows.get(event.flow)
                failure = FlowFailure(
                    dataset=event.dataset,
                    error=event.error,
                    since_ms=self._now_ms() if known is None else known.since_ms,
                    attempts=1 if known is None else known.attempts + 1,
                )
                self._report = replace(self._report, flows={**self._report.flows, event.flow: failure})
            case events.FlowRecovered() | events.Batch():
                self._forget_failure(event.flow)
            case events.LogKept():
                capture = CaptureReport(
                    source=event.source,
                    dataset=event.dataset,
                    phase=event.phase,
                    lag=event.lag,
                    lag_ms=event.lag_ms,
                    kept=tuple(event.kept),
                    warnings=tuple(event.warnings),
                    problem=event.problem,
                    at_ms=self._now_ms(),
                )
                captures = {**self._report.captures, event.dataset: capture}
                self._report = replace(self._report, captures=captures)
            case events.Quarantined():
                self._note_bad_records(event, event.quarantine_table)
            case events.EventsSetAside():
                self._note_bad_records(event, event.input)
            case _:
                pass

    def _note_bad_records(self, event: events.Quarantined | events.EventsSetAside, table: str) -> None:
        """Bad records were set aside; `table` has them."""
        before = self._report.quarantines.get(event.dataset)
        quarantine = Quarantine(
            table=table,
            records=event.records + (0 if before is None else before.records),
            reason=event.reason,
            last_ms=self._now_ms(),
            first=event.first if isinstance(event, events.Quarantined) else None,
        )
        quarantines = {**self._report.quarantines, event.dataset: quarantine}
        self._report = replace(self._report, quarantines=quarantines)

    def _forget_failure(self, flow: str) -> None:
        if flow in self._report.flows:
            flows = {name: failure for name, failure in self._report.flows.items() if name != flow}
            self._report = replace(self._report, flows=flows)

    def _look_at_disk(self) -> None:
        if self._storage is None or time.monotonic() < self._next_disk:
            return
        self._next_disk = time.monotonic() + _DISK_EVERY_S
        try:
            usage = shutil.disk_usage(self._storage)
        except OSError:
            # The run itself fails by it soon.
            return
        # In steps, so that a report is not new each time.
        step = max(1, usage.total // 1000)
        disk = DiskSpace(path=self._storage, free_bytes=usage.free // step * step, total_bytes=usage.total)
        self._report = replace(self._report, disk=disk)
