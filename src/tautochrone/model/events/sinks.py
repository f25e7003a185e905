"""Sinks: deliveries, what Spark writes into sinks, and their failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tautochrone.model.counts import counted
from tautochrone.model.events.base import DatasetReason, Event, hint_lines, seconds, short, sink_line
from tautochrone.model.reason import Reason

__all__ = [
    "SinkBatch",
    "SinkCloseFailed",
    "SinkDelivered",
    "SinkFailed",
    "SinkHistoryFolded",
    "SinkLoginAgain",
    "SinkMaintenanceFailed",
    "SinkNotServed",
    "SinkRecovered",
    "SinkRetired",
    "SinkSkipped",
    "SinkTableSetAside",
    "SinkWaiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNotServed(Event):
    """A sink of the project is not written: no flow writes it."""

    sink: str
    format: str
    reason: Reason

    def text(self) -> str:
        return sink_line(self.sink, f"sink not served (format {self.format}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch(Event):
    """A flow wrote a batch into a [sink that Spark writes](sinks.md#sinks-that-spark-writes)."""

    sink: str
    flow: str
    batch: int
    """its number"""
    rows: int

    def text(self) -> str:
        if not self.rows:
            return ""
        return f"  sink {self.sink}: batch {self.batch} of {self.flow}, {counted(self.rows, 'row')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDelivered(Event):
    """A [sink](sinks.md) shows a checkpoint."""

    sink: str
    checkpoint: int
    since: int | None
    """the one that it showed before"""
    rows: int
    replaced: Mapping[str, str]
    """tables of which all rows were sent, and why"""
    replaced_reasons: Sequence[DatasetReason]
    """the same as reasons with codes"""
    left_to_spark: Sequence[DatasetReason]
    """tables whose changed rows Spark read, and why this process did not"""
    compared: Sequence[DatasetReason]
    """tables whose staged rows a sink compares in different ways, and why so"""
    duration_ms: int

    def text(self) -> str:
        delivered = (
            f"  sink {self.sink}: checkpoint {self.checkpoint} delivered, {counted(self.rows, 'row')}  "
            f"{seconds(self.duration_ms)}"
        )
        return "\n".join([delivered, *(f"    {short(table)}: {why}" for table, why in self.replaced.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailed(Event):
    """A delivery failed."""

    failure: ClassVar[bool] = True

    sink: str
    error: str
    error_class: str
    hint: str | None
    failures: int
    """deliveries in a row"""
    retry_in_ms: int | None
    """none when trying again cannot help"""

    def text(self) -> str:
        times = f" {self.failures} times in a row" if self.failures > 1 else ""
        again = (
            "trying again cannot help"
            if self.retry_in_ms is None
            else f"it is tried again in {self.retry_in_ms / 1000:g} s"
        )
        lines = [f"  sink {self.sink} FAILED{times}: {self.error}", *hint_lines(self.hint), f"    {again}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCloseFailed(Event):
    """A sink could not be closed; what it shows is right."""

    failure: ClassVar[bool] = True

    sink: str
    error: str
    error_class: str

    def text(self) -> str:
        return f"  sink {self.sink} was not closed: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkLoginAgain(Event):
    """A server refused the sink's user or password, and a file that an option refers to has changed."""

    sink: str
    reason: Reason

    def text(self) -> str:
        return sink_line(self.sink, f"sink login again: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWaiting(Event):
    """A delivery waits; said when a wait begins, and every 10 s while it lasts."""

    sink: str
    reason: Reason

    def text(self) -> str:
        return sink_line(self.sink, f"sink waiting: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSkipped(Event):
    """A sink with the policy `skip_with_alarm` failed too often."""

    sink: str
    failures: int
    reason: Reason

    def text(self) -> str:
        return sink_line(self.sink, f"sink skipped (failures {self.failures}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRecovered(Event):
    """What became of a transaction without a known end."""

    sink: str
    checkpoint: int
    state: str
    reason: Reason

    def text(self) -> str:
        outcome = f"sink recovered (checkpoint {self.checkpoint}; state {self.state})"
        return sink_line(self.sink, f"{outcome}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkHistoryFolded(Event):
    """A sink gave up rows that only checkpoints needed that it no longer keeps."""

    sink: str
    dataset: str
    rows_before: int
    rows_after: int
    """of the rewritten partitions"""
    oldest: int
    """the oldest checkpoint that can be read"""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMaintenanceFailed(Event):
    """History of a sink could not be folded; what it shows is right, and it is tried again later."""

    failure: ClassVar[bool] = True

    sink: str
    error: str
    error_class: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTableSetAside(Event):
    """`taut publish --repair` moved a damaged table away; it is published anew."""

    sink: str
    dataset: str
    folder: str
    """where it is now; empty if somebody has removed it"""
    reason: Reason

    def text(self) -> str:
        return sink_line(self.sink, f"{self.dataset} is set aside in {self.folder}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRetired(Event):
    """A sink is no longer declared."""

    sink: str
    reason: Reason

    def text(self) -> str:
        return sink_line(self.sink, f"sink retired: {self.reason}")
