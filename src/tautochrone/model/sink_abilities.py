"""What a sink may offer beside its port, `model.sink.Sink`: audits of rows, history, reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tautochrone.model.lake import Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason
from tautochrone.model.sink import Published

__all__ = [
    "CheckpointHistory",
    "FoldedTable",
    "ReportsComparison",
    "ReportsWaits",
    "RowAudit",
    "RowDifference",
    "SinkMaintenance",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row of which the sink and the lake have different numbers of copies; `row` is for people to read."""

    row: str
    in_sink: int
    in_lake: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedTable:
    """A table of a sink of which older history was given up.

    Attributes:
        rows_before: of the parts of the table that were rewritten, in the sink's storage.
        rows_after: of the same parts.
        oldest: the oldest checkpoint that can still be read, as the sink numbers it.
    """

    table: TableName
    rows_before: int
    rows_after: int
    oldest: int


@runtime_checkable
class RowAudit(Protocol):
    """What a sink may offer beside `Sink.audit`."""

    def differences(
        self, table: TableName, checkpoint: CheckpointNumber, rows: Rows, limit: int
    ) -> Sequence[RowDifference]:
        """The rows that differ from those of the lake, `limit` at most."""


@runtime_checkable
class CheckpointHistory(Protocol):
    """What a sink may offer that can show older checkpoints than its readers see, beside `Sink.audit`."""

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        """The newest transaction of this number, with its versions; None: the sink knows none (any more)."""

    def unknown_parts(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Reason]:
        """Parts of `Sink.audit` that the sink cannot tell for this checkpoint, and why."""


@runtime_checkable
class ReportsComparison(Protocol):
    """What a sink may offer that does not always compare staged rows in the same way."""

    def compared_by(self) -> Mapping[TableName, Reason]:
        """By table how `prepare` compared the rows of the last transaction, or will, and why."""


@runtime_checkable
class ReportsWaits(Protocol):
    """What a sink may offer that waits for its servers while an operation runs."""

    def on_wait(self, report: Callable[[Reason], None]) -> None:
        """Call `report` from now on when a wait begins, and again every few seconds while it lasts."""


@runtime_checkable
class SinkMaintenance(Protocol):
    """What a sink may offer that keeps history."""

    def maintain(self, fence: Fence) -> Sequence[FoldedTable]:
        """After a commit: give up history that nobody needs any more, if it is time for that. Repeatable.

        Raises:
            SinkError: it did not work; what is published is as it was.
        """
