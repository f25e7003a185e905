"""Maintenance: what expires, is rewritten or deleted, and what was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tautochrone.model.counts import counted
from tautochrone.model.events.base import Event, dataset_line, done_or_planned, seconds
from tautochrone.model.reason import Reason

__all__ = [
    "CheckpointsExpired",
    "Compacted",
    "CompactionSkipped",
    "LogNotShortened",
    "LogShortened",
    "Maintained",
    "MaintenanceDeferred",
    "MaintenanceFailed",
    "OrphansRemoved",
    "OrphansSkipped",
    "VersionsExpired",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsExpired(Event):
    """Checkpoints cannot be read any more."""

    count: int
    first: int
    last: int
    needed: Mapping[str, str] = field(metadata={"json": "held"})
    """those that are kept all the same, and the class of the error that says why"""
    dry_run: bool
    duration_ms: int
    reason: Reason

    def text(self) -> str:
        expired = done_or_planned("expired", dry_run=self.dry_run)
        checkpoints = counted(self.count, "checkpoint")
        return f"maintenance: {checkpoints} {expired} ({self.first} to {self.last}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsExpired(Event):
    """Versions and their files were removed."""

    dataset: str
    versions: int
    kept: int
    files: int
    dry_run: bool
    duration_ms: int
    reason: Reason

    def text(self) -> str:
        removed = done_or_planned("removed", dry_run=self.dry_run)
        return dataset_line(
            self.dataset,
            f"{counted(self.versions, 'version')} {removed}, {self.kept} kept, "
            f"{counted(self.files, 'file')} deleted  {seconds(self.duration_ms)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
    """Small files were rewritten."""

    dataset: str
    files_before: int
    files_after: int
    bytes: int
    duration_ms: int
    reason: Reason

    def text(self) -> str:
        rewritten = f"{counted(self.files_before, 'file')} rewritten as {self.files_after}"
        return dataset_line(self.dataset, f"{rewritten}  {seconds(self.duration_ms)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSkipped(Event):
    """A table was not compacted."""

    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"compaction skipped: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShortened(Event):
    """Old rows of a log table were dropped."""

    dataset: str
    files: int
    rows: int
    duration_ms: int
    reason: Reason

    def text(self) -> str:
        dropped = f"{counted(self.rows, 'row')} in {counted(self.files, 'file')} dropped: {self.reason}"
        return dataset_line(self.dataset, f"{dropped}  {seconds(self.duration_ms)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNotShortened(Event):
    """A log table has rows older than its retention and keeps them."""

    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"log not shortened: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansRemoved(Event):
    """Files that nothing refers to were deleted."""

    dataset: str
    count: int
    bytes: int
    files: Sequence[str]
    """of a dry run"""
    dry_run: bool
    duration_ms: int
    reason: Reason

    def text(self) -> str:
        deleted = done_or_planned("deleted", dry_run=self.dry_run)
        line = dataset_line(
            self.dataset,
            f"{counted(self.count, 'file')} that nothing refers to ({counted(self.bytes, 'byte')}) "
            f"{deleted}  {seconds(self.duration_ms)}",
        )
        return "\n".join([line, *(f"    {file}" for file in self.files)])


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansSkipped(Event):
    """A table's folder was not searched."""

    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"orphans skipped: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceDeferred(Event):
    """The time for maintenance was used up."""

    datasets: Sequence[str]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceFailed(Event):
    """Maintenance of a table failed, or with no `dataset` what belongs to all tables."""

    failure: ClassVar[bool] = True

    dataset: str | None = None
    error: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained(Event):
    """`taut maintain` has ended."""

    tables: int
    versions: int
    files: int
    orphans: int
    dry_run: bool
