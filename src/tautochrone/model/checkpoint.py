"""Checkpoints as values: what the MetaService records and hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tautochrone.model.invariants import BrokenInvariant
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.refresh import Refresh

__all__ = ["Checkpoint", "CheckpointState", "Consistency", "Pin", "RefreshRecord", "Resolution"]


class Consistency(StrEnum):
    """`STRONG`: several tables at one checkpoint. `WEAK`: the newest version of each."""

    STRONG = "strong"
    WEAK = "weak"


class CheckpointState(StrEnum):
    """Where a checkpoint stands. `OPEN` is a target; it ends as `PUBLISHED`, `PARTIAL` or `ABORTED`.

    `PARTIAL`: some job went on to a newer one without it; it shows the tables of the others only.
    """

    OPEN = "open"
    PUBLISHED = "published"
    PARTIAL = "partial"
    ABORTED = "aborted"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One recorded cut. Times are epoch milliseconds; `roots` are the versions of the cut itself.

    `broken` are the invariants for which it, or some job's part of it, was given up.
    """

    number: CheckpointNumber
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    roots: Mapping[TableName, Version]
    broken: tuple[BrokenInvariant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRecord:
    """One refresh as history keeps it.

    If it failed, `error` is set instead of a version: the text of `failure`.
    """

    checkpoint: CheckpointNumber
    dataset: TableName
    version: Version | None
    refresh: Refresh | None
    error: str | None
    finished_at_ms: int
    failure: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A read's answer: the checkpoint (None for weak reads) and the version of each table.

    `pin` identifies the lease that keeps these versions, empty when none was asked for; `behind` explains
    tables that are older than the newest checkpoint and why.
    """

    checkpoint: CheckpointNumber | None
    versions: Mapping[TableName, Version]
    pin: str
    behind: Mapping[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A reader's lease: these versions stay until it ends (epoch milliseconds)."""

    id: str
    checkpoint: CheckpointNumber | None
    owner: str
    expires_at_ms: int
    versions: Mapping[TableName, Version]
