"""`store.history`. Refreshes that took place, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.marks import reads
from tautochrone.model.checkpoint import CheckpointState, RefreshRecord
from tautochrone.model.names import CheckpointNumber, TableName

__all__ = ["CheckpointLine", "Delay", "EdgeDelay", "History"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDelay:
    """From the moment when `input` was ready at the checkpoint until the dataset was, in milliseconds.

    An input that was refreshed for the checkpoint is ready when that ended; every other one (a root, or
    a table that did not change) at the cut.
    """

    input: TableName
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """How long the newest refresh of a dataset that changed something let its readers wait.

    `end_to_end_ms` counts from the cut of `checkpoint` until the dataset had its version for it,
    `refresh_ms` is the part in which it was computed. How long rows waited in the source before the
    cut is not in it: the store does not know.
    """

    dataset: TableName
    checkpoint: CheckpointNumber
    end_to_end_ms: int
    refresh_ms: int
    edges: tuple[EdgeDelay, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """One checkpoint without its versions. `recorded` counts its refreshes in the history, `failed` those
    datasets that have no version for it. Times are epoch milliseconds."""

    number: CheckpointNumber
    job: str
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    recorded: int
    failed: int


class History(Protocol):
    """Refreshes that took place, and how long they took."""

    @reads
    def refreshes(self, dataset: TableName, limit: int = 50) -> tuple[RefreshRecord, ...]:
        """The newest `limit` refreshes and failures of a dataset, newest first, without mode `no_data`."""

    @reads
    def refreshes_at(self, number: int) -> tuple[RefreshRecord, ...]:
        """The refreshes and failures of one checkpoint, oldest first, without refreshes of mode `no_data`."""

    @reads
    def recent_refreshes(self, limit: int = 50) -> tuple[RefreshRecord, ...]:
        """The newest `limit` refreshes and failures of all datasets, newest first."""

    @reads
    def refreshes_after(self, last: int, limit: int) -> tuple[tuple[int, RefreshRecord], ...]:
        """At most `limit` rows of the history after the id `last`, oldest first, each with its id."""

    @reads
    def newest_refresh_id(self) -> int:
        """The id of the newest row of the history; 0 for none."""

    @reads
    def timeline(self, limit: int = 50) -> tuple[CheckpointLine, ...]:
        """The newest `limit` checkpoints in any state, newest first."""

    @reads
    def delays(self) -> tuple[Delay, ...]:
        """The newest known delay of every dataset that was ever refreshed and is not retired, by name."""
