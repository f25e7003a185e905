"""What a run says of itself with its heartbeats, and how it says that it ended.

The store keeps the newest report of each job, also after its process is gone: its last lines are the last
words of a process that was killed. Whoever looks at the store needs nothing of the machine of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tautochrone.errors import TautochroneError
from tautochrone.model.alarms import AlarmLimits
from tautochrone.model.durations import duration
from tautochrone.model.reason import Reason
from tautochrone.model.source import KeptLog
from tautochrone.redaction import redacted

__all__ = [
    "CaptureReport",
    "DiskSpace",
    "FlowFailure",
    "FlowSource",
    "Quarantine",
    "RunEnd",
    "RunReport",
    "SourceKind",
    "Work",
    "WorkPhase",
]

_WORK_SHOWN = 3
"""So many refreshes are named, those that began first."""


class SourceKind(StrEnum):
    """What a flow reads outside of the lake."""

    TOPIC = "topic"
    FILES = "files"
    DATABASE = "database"
    OTHER = "other source"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSource:
    """A source of a flow. Flows that read the same have the same `kind` and `name`.

    `name` has no secrets: `orders of kafka:9092`, `/data/in`, `PostgreSQL capture shop`.
    """

    flow: str
    dataset: str
    kind: SourceKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFailure:
    """A flow that failed and has made no progress since; `attempts` in a row, the first at `since_ms`."""

    dataset: str
    error: str
    since_ms: int
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What the database of a capture keeps for it, as its flow last asked.

    Attributes:
        source: the capture's name.
        phase: of the copy, see `model.source_position.LogPosition.phase`.
        lag: how far the log is ahead of the table, by unit.
        lag_ms: by at most so much the table is behind in time; None: not known.
        warnings: what fills the database's disk.
        problem: why the database did not say what it keeps.
        at_ms: when it was asked, in epoch milliseconds of the run's clock.
    """

    source: str
    dataset: str
    phase: str
    lag: Mapping[str, int] = field(default_factory=dict)
    lag_ms: int | None = None
    kept: tuple[KeptLog, ...] = ()
    warnings: tuple[Reason, ...] = ()
    problem: str | None = None
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Bad records that runs of the job set aside.

    Attributes:
        table: has them.
        records: how many they are.
        reason: why the first one of the last batch is bad.
        last_ms: when the last batch was reported.
        first: where the first one of the last batch is, for people; None: the table says it.
    """

    table: str
    records: int
    reason: Reason
    last_ms: int
    first: str | None = None

    @property
    def text(self) -> str:
        """Of the first one of the last batch: where it is and why it is bad."""
        return str(self.reason) if self.first is None else f"{self.first}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The file system of the pipeline's storage."""

    path: str
    free_bytes: int
    total_bytes: int


class WorkPhase(StrEnum):
    """What a run does now."""

    INGESTING = "ingesting"
    REFRESHING = "refreshing"
    CHECKING = "checking invariants"
    PUBLISHING = "publishing"
    DELIVERING = "delivering to sinks"
    MAINTAINING = "maintaining tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run has been doing for more than a moment.

    Attributes:
        since_ms: when the phase began.
        checkpoint: that is refreshed, checked or published.
        done, total: derived datasets of the job that have their outcome for it, and all of them.
        refreshing: by dataset when its refresh began.
    """

    phase: WorkPhase
    since_ms: int
    checkpoint: int | None = None
    done: int = 0
    total: int = 0
    refreshing: Mapping[str, int] = field(default_factory=dict)

    def text(self, now_ms: int) -> str:
        """For people; `now_ms` in epoch milliseconds.

        >>> refreshing = {"lake.db.a": 50_000}
        >>> work = Work(phase=WorkPhase.REFRESHING, since_ms=0, done=3, total=7, refreshing=refreshing)
        >>> work.text(54_000)
        'refreshing for 54 s: 3 of 7 refreshed, now lake.db.a (4 s)'
        """
        subject = "" if self.checkpoint is None else f" checkpoint {self.checkpoint}"
        text = f"{self.phase}{subject} for {duration(max(0, now_ms - self.since_ms))}"
        if self.phase is not WorkPhase.REFRESHING:
            return text
        oldest = sorted(self.refreshing.items(), key=lambda entry: entry[1])
        shown = [f"{name} ({duration(max(0, now_ms - since_ms))})" for name, since_ms in oldest[:_WORK_SHOWN]]
        more = f" and {len(oldest) - len(shown)} more" if len(oldest) > len(shown) else ""
        now = f", now {', '.join(shown)}{more}" if shown else ""
        return f"{text}: {self.done} of {self.total} refreshed{now}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The newest word of a run. Times are epoch milliseconds of the run's clock.

    Attributes:
        lines: the last lines that it wrote, without secrets.
        interval_ms: between checkpoints of a continuous run; None: it runs once.
        flows: by name those that fail.
        captures: by the log table.
        sources: what flows read outside of the lake, in the order of the flows.
        quarantines: by the table whose records are bad.
        disk: None where the storage is not on a disk of the run's machine.
        limits: of the alarms, as the project sets them.
        work: what it does now; None: nothing that takes more than a moment.
    """

    lines: tuple[str, ...] = ()
    interval_ms: int | None = None
    flows: Mapping[str, FlowFailure] = field(default_factory=dict)
    captures: Mapping[str, CaptureReport] = field(default_factory=dict)
    sources: tuple[FlowSource, ...] = ()
    quarantines: Mapping[str, Quarantine] = field(default_factory=dict)
    disk: DiskSpace | None = None
    limits: AlarmLimits = field(default_factory=AlarmLimits)
    work: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended, by its own word.

    Attributes:
        at_ms: by the store's clock; set by the store.
        error: why it could not go on; None: it ended in order, whatever its datasets are.
        hint: what to do about it.
        before_takeover: it never owned the job, such as when its definitions do not load.
    """

    at_ms: int = 0
    error: str | None = None
    hint: str | None = None
    before_takeover: bool = False

    @classmethod
    def by(cls, error: BaseException) -> RunEnd:
        """The end of a run by an error, without secrets."""
        known = error if isinstance(error, TautochroneError) else None
        text = f"{type(error).__name__}: {error}" if known is None else str(error)
        hint = None if known is None or known.hint is None else redacted(known.hint)
        return cls(error=redacted(text), hint=hint)
