"""What the adapters share: each step of a transaction, and the comparison of contents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tautochrone.errors import SinkContentError, SinkError, SinkFencedError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.sink import (
    Digest,
    Intent,
    Operation,
    Recovered,
    RowDifference,
    SentChunk,
    TransactionId,
    TransactionState,
    next_state,
)

__all__ = [
    "TransactionSteps",
    "differing_rows",
    "require_fence",
    "require_same_content",
    "require_visible",
    "signed_frames",
    "total_digest",
]


class TransactionSteps(ABC):
    """The part of a sink that decides whether an operation is allowed, and what follows from it."""

    name: str

    @abstractmethod
    def _require_newest_fence(self, fence: Fence) -> None:
        """Refuse an owner that is not the newest.

        Raises:
            SinkFencedError
        """

    @abstractmethod
    def _state(self, transaction: TransactionId) -> TransactionState:
        """Where a transaction is."""

    def _next_state(self, operation: Operation, transaction: TransactionId, fence: Fence) -> TransactionState:
        self._require_newest_fence(fence)
        return next_state(operation, self._state(transaction), transaction)

    def _recovered(self, intents: Sequence[Intent]) -> list[Recovered]:
        """The ends of transactions, in a sink where none of them is open any more."""
        committed = TransactionState.COMMITTED
        return [
            Recovered(
                intent.transaction,
                committed if self._state(intent.transaction) is committed else TransactionState.ABORTED,
            )
            for intent in intents
        ]


def require_fence(sink: str, fence: Fence, highest: Fence) -> None:
    """Refuse an owner that is not the newest.

    Raises:
        SinkFencedError
    """
    if fence < highest:
        raise SinkFencedError(
            "SINK_FENCED",
            f"Sink {sink} is delivered to by a newer owner: fence {fence} is below {highest}",
            parameters={"sink": sink, "fence": str(fence), "highest": str(highest)},
        )


def require_visible(sink: str, visible: CheckpointNumber | None, checkpoint: CheckpointNumber) -> None:
    """Refuse to audit a checkpoint that readers do not see.

    Raises:
        SinkError: `SINK_CHECKPOINT_GONE`.
    """
    if visible != checkpoint:
        shown = "nothing" if visible is None else f"checkpoint {visible}"
        raise SinkError("SINK_CHECKPOINT_GONE", f"Sink {sink} shows {shown}, not {checkpoint}")


def require_same_content(
    sink: str, chunks: Iterable[SentChunk], arrived: Mapping[tuple[TableName, int], Digest]
) -> None:
    """Compare each chunk with what was sent.

    Raises:
        SinkContentError: they differ.
    """
    sent = {(chunk.table, chunk.number): chunk.digest for chunk in chunks}
    for key in sorted(sent.keys() | arrived.keys()):
        if sent.get(key) != arrived.get(key):
            table, number = key
            raise SinkContentError(
                "SINK_CONTENT_DIFFERS",
                f"Sink {sink}, chunk {number} of {table}: sent {sent.get(key)}, arrived {arrived.get(key)}",
                parameters={"sink": sink, "table": str(table)},
            )


def signed_frames(change: RowChange) -> list[tuple[Rows, int]]:
    """The rows that went (-1) and those that came (1)."""
    return [(frame, sign) for frame, sign in ((change.removed, -1), (change.added, 1)) if frame is not None]


def total_digest(numbers: Iterable[tuple[int, int]]) -> dict[str, Digest]:
    """The digest of rows in any order, by the hash of each and its sign; nothing for no rows."""
    count = total = 0
    for number, sign in numbers:
        count += sign
        total += number * sign
    return {"": Digest(count, f"{total % 2**64:016x}")} if count or total % 2**64 else {}


def differing_rows(in_sink: Counter[str], in_lake: Counter[str], limit: int) -> list[RowDifference]:
    """The texts of rows with different numbers of copies."""
    texts = sorted(text for text in in_sink.keys() | in_lake.keys() if in_sink[text] != in_lake[text])
    return [RowDifference(row=text, in_sink=in_sink[text], in_lake=in_lake[text]) for text in texts[:limit]]
