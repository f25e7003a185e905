"""Sinks whose tables hold the rows of one checkpoint. A row of their database, the pointer, says which one.

The pointer also has what each table must hold (see `contents`). A delta is only committed to a table that
holds what the pointer says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.reason import Reason
from tautochrone.model.sink import (
    Capabilities,
    Digest,
    Intent,
    Operation,
    Published,
    RowDifference,
    SentChunk,
    TransactionId,
    TransactionState,
    require_base,
)
from tautochrone.sinks.common.contents import (
    Content,
    Identities,
    Pointer,
    TableRecord,
    change_of,
    table_changed,
)
from tautochrone.sinks.common.mirrored import table_missing
from tautochrone.sinks.common.steps import (
    TransactionSteps,
    differing_rows,
    require_visible,
    signed_frames,
    total_digest,
)
from tautochrone.sinks.json_rows import JsonRows, comparable, row_number

__all__ = ["OPEN", "PointerSink"]

_S = TransactionState
OPEN = (_S.INITIALIZED, _S.PREPARED, _S.COMMITTING, _S.ABORTING)
"""States of transactions that have not ended."""


class _MirroredTable(Protocol):
    @property
    def rows(self) -> JsonRows: ...


_Mirrored = TypeVar("_Mirrored", bound=_MirroredTable)


class PointerSink(TransactionSteps, Generic[_Mirrored]):
    """See the module docstring. A cursor is whatever the database's own part queries with."""

    def __init__(self, name: str, chunk_rows: int, container: str) -> None:
        self.name = name
        self._chunk_rows = chunk_rows
        self._container = container
        self._lake = ""
        self._mirrored: dict[TableName, _Mirrored] = {}
        self._states: dict[TransactionId, TransactionState] = {}
        self._identities = Identities()

    # -- the database's own part ------------------------------------------------------------------

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Any]:
        """A cursor for some queries."""

    @abstractmethod
    def _pointer(self, cursor: Any) -> Pointer:
        """What the row of the pointer says."""

    @abstractmethod
    def _load(self, cursor: Any, table: TableName) -> _Mirrored | None:
        """A table that the sink has, or None."""

    @abstractmethod
    def _identity(self, cursor: Any, table: TableName) -> str | None:
        """Which object of the database stands for a table, with its columns and indexes; None if there is
        none."""

    @abstractmethod
    def _content(self, cursor: Any, mirrored: _Mirrored, columns: Sequence[str]) -> Content | None:
        """The rows of a table; None if it lacks one of these columns, or was altered so that it may hold
        other values than those that are sent."""

    @abstractmethod
    def _is_empty(self, cursor: Any, mirrored: _Mirrored) -> bool:
        """Whether a table has no rows."""

    @abstractmethod
    def _take(self, intent: Intent) -> None:
        """A transaction begins. It may have begun before."""

    @abstractmethod
    def _stage(
        self,
        transaction: TransactionId,
        table: TableName,
        signed_rows: Sequence[tuple[Rows, int]],
        known_rows: int | None,
    ) -> list[SentChunk]:
        """Hold the changed rows of a table until the commit."""

    @abstractmethod
    def _sink_texts(self, table: TableName, checkpoint: CheckpointNumber) -> Iterator[str]:
        """The rows of a table, read from its columns, at a checkpoint that is shown meanwhile."""

    # -- the pointer ------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(resumable=False)

    def published(self) -> Published | None:
        with self._reading() as cursor:
            return self._pointer(cursor).published

    def _state(self, transaction: TransactionId) -> TransactionState:
        return _S.COMMITTED if self._is_shown(transaction) else self._states.get(transaction, _S.UNKNOWN)

    def _is_shown(self, transaction: TransactionId) -> bool:
        published = self.published()
        return published is not None and published.transaction == transaction

    def _require_visible(self, cursor: Any, checkpoint: CheckpointNumber) -> None:
        published = self._pointer(cursor).published
        require_visible(self.name, None if published is None else published.checkpoint, checkpoint)

    # -- what the tables hold ---------------------------------------------------------------------

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> Mapping[TableName, Reason]:
        changed: dict[TableName, Reason] = {}
        for table in tables:
            with self._reading() as cursor:
                reason = self._change(cursor, table, max_rows)
            if reason is not None:
                changed[table] = reason
                self._mirrored.pop(table, None)
        return changed

    def _change(self, cursor: Any, table: TableName, max_rows: int | None) -> Reason | None:
        record = self._pointer(cursor).records.get(table)
        identity = self._identity(cursor, table)
        mirrored = None if identity is None else self._load(cursor, table)
        if mirrored is None:
            identity = None
        reason = change_of(
            record,
            identity,
            max_rows,
            lambda: mirrored is not None and self._is_empty(cursor, mirrored),
            lambda: (
                None
                if mirrored is None or record is None
                else self._content(cursor, mirrored, record.columns)
            ),
        )
        if reason is None:
            self._identities.compared(table, record, identity)
        return reason

    def _required_content(
        self, cursor: Any, table: TableName, mirrored: _Mirrored, record: TableRecord | None
    ) -> Content:
        """What a table holds that gets a delta: what it was compared with, and nothing if it is new.

        Raises:
            SinkError: `SINK_BASE_CHANGED`.
        """
        content = Content() if record is None else record.content
        if record is not None and not self._identities.is_same(table, record, self._identity(cursor, table)):
            raise table_changed(self.name, table)
        if (content.rows > 0) is self._is_empty(cursor, mirrored):
            raise table_changed(self.name, table)
        return content

    def _table(self, cursor: Any, table: TableName) -> _Mirrored:
        mirrored = self._mirrored.get(table) or self._load(cursor, table)
        if mirrored is None:
            raise table_missing(self.name, table)
        self._mirrored[table] = mirrored
        return mirrored

    def _encoder(self, table: TableName) -> _Mirrored:
        with self._reading() as cursor:
            return self._table(cursor, table)

    # -- one transaction --------------------------------------------------------------------------

    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        state = self._next(Operation.BEGIN, transaction, transaction.fence)
        require_base(intent, self.published())
        self._states = {key: old for key, old in self._states.items() if old in OPEN}
        self._states[transaction] = state
        self._take(intent)
        return state

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[SentChunk]:
        known_rows = None if change.carried else change.rows
        return self._stage(transaction, table, signed_frames(change), known_rows)

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[SentChunk]:
        return self._stage(transaction, table, [(rows, 1)], None)

    # -- audit ------------------------------------------------------------------------------------

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:
        return total_digest((row_number(text), 1) for text in self._lake_texts(table, rows))

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        return total_digest((row_number(text), 1) for text in self._sink_texts(table, checkpoint))

    def differences(
        self, table: TableName, checkpoint: CheckpointNumber, rows: Rows, limit: int
    ) -> Sequence[RowDifference]:
        in_sink = Counter(self._sink_texts(table, checkpoint))
        return differing_rows(in_sink, Counter(self._lake_texts(table, rows)), limit)

    def _lake_texts(self, table: TableName, rows: Rows) -> Iterator[str]:
        encoder = self._encoder(table).rows
        return (comparable(row) for row in encoder.rows(rows, self._chunk_rows))
