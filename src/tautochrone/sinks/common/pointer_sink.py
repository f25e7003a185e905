"""Sinks whose tables hold the rows of one checkpoint. A row of their database, the pointer, says which one.

The pointer also has a record of what each table must hold. So it changes in the transaction that changes the
tables, and an older copy of the pointer brings the older record back. A table is the recorded one if it has
the same identity (the database's own number of it, its columns and its indexes). Its rows are those that were
delivered if their number and the sum over their hashes are the recorded ones. A delta is only committed to
such a table.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.reason import Reason, ReasonCode
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
from tautochrone.sinks.common.errors import table_changed_error, table_missing_error
from tautochrone.sinks.common.steps import (
    TransactionSteps,
    differing_rows,
    require_visible,
    signed_frames,
    total_digest,
)
from tautochrone.sinks.json_rows import JsonRows, comparable, row_number

__all__ = ["OPEN", "Content", "Pointer", "PointerSink", "TableRecord", "change_of"]


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of a table: their number, and the sum over the first 32 bits of their hashes."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.rows + other.rows, self.total + other.total)


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What a table must be. `identity` is the adapter's own text, `columns` are those of the lake's table."""

    identity: str
    content: Content
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pointer:
    """What the row of a sink's pointer says. Without an intent the sink shows nothing."""

    intent: Intent | None = None
    records: Mapping[TableName, TableRecord] = field(default_factory=dict)

    @property
    def published(self) -> Published | None:
        if self.intent is None:
            return None
        return Published(transaction=self.intent.transaction, versions=self.intent.versions)

    def text(self) -> str:
        assert self.intent is not None
        value = {
            **self.intent.as_json(),
            "tables": {
                str(table): [record.identity, record.content.rows, record.content.total, record.columns]
                for table, record in self.records.items()
            },
        }
        return json.dumps(value, separators=(",", ":"))

    def renamed(self, old: TableName, new: TableName) -> Pointer:
        """The same with another name of a table."""
        if self.intent is None:
            return self
        names = {str(old): str(new)}
        value = self.intent.as_json()
        value["versions"] = {names.get(name, name): version for name, version in value["versions"].items()}
        value["replaced"] = [names.get(name, name) for name in value["replaced"]]
        for chunk in value["chunks"] or ():
            chunk["table"] = names.get(chunk["table"], chunk["table"])
        records = {new if table == old else table: record for table, record in self.records.items()}
        return Pointer(Intent.from_json(value), records)

    @classmethod
    def parse(cls, text: str | None) -> Pointer:
        """The inverse of `text`."""
        if text is None:
            return cls()
        value: dict[str, Any] = json.loads(text)
        records = {
            TableName.parse(name): TableRecord(identity, Content(rows, total), tuple(columns))
            for name, (identity, rows, total, columns) in value["tables"].items()
        }
        return cls(Intent.from_json(value), records)


class Identities:
    """What a process knows of tables that have another identity than the recorded one, and the recorded rows:
    it compared the rows, or it altered the table itself."""

    def __init__(self) -> None:
        self._same: dict[tuple[TableName, str], str] = {}

    def record_compared(self, table: TableName, record: TableRecord | None, identity: str | None) -> None:
        """The table of this identity has the recorded rows."""
        if record is not None and identity is not None:
            self._same[table, record.identity] = identity

    def record_altered(
        self, table: TableName, record: TableRecord | None, before: str | None, after: str | None
    ) -> None:
        """This process altered a table: if it was the recorded one, it still is."""
        if record is not None and self.is_same(table, record, before):
            self.record_compared(table, record, after)

    def is_same(self, table: TableName, record: TableRecord, identity: str | None) -> bool:
        known = self._same.get((table, record.identity), record.identity)
        return identity is not None and identity in (record.identity, known)


def change_of(
    record: TableRecord | None,
    identity: str | None,
    max_rows: int | None,
    is_empty: Callable[[], bool],
    content: Callable[[], Content | None],
) -> Reason | None:
    """Why a table does not hold what was delivered; None if it does, as far as was looked.

    Args:
        identity: of the table; None: there is none.
        max_rows: see `Sink.changed_tables`.
        content: reads all rows; None if the altered table does not allow it.
    """
    if identity is None:
        return Reason.of(ReasonCode.SINK_TABLE_MISSING)
    if record is None:
        return Reason.of(ReasonCode.SINK_TABLE_UNRECORDED)
    recorded = record.content
    is_large = max_rows is not None and recorded.rows > max_rows
    if is_large and identity == record.identity and not is_empty():
        return None
    present = content()
    if present is None:
        return Reason.of(ReasonCode.SINK_TABLE_ALTERED)
    if present != recorded:
        return Reason.of(ReasonCode.SINK_ROWS_DIFFER, rows=present.rows, recorded=recorded.rows)
    return None


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

    def _identities_of(self, cursor: Any, tables: Sequence[TableName]) -> Mapping[TableName, str | None]:
        """`_identity` of several tables. A database that tells them in one statement does so."""
        return {table: self._identity(cursor, table) for table in tables}

    @abstractmethod
    def _content(self, cursor: Any, mirrored: _Mirrored, columns: Sequence[str]) -> Content | None:
        """The rows of a table; None if it lacks one of these columns, or was altered so that it may hold
        other values than those that are sent."""

    @abstractmethod
    def _is_empty(self, cursor: Any, mirrored: _Mirrored) -> bool:
        """Whether a table has no rows."""

    @abstractmethod
    def _begin_transaction(self, intent: Intent) -> None:
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
        if not tables:
            return changed
        with self._reading() as cursor:
            records, identities = self._pointer(cursor).records, self._identities_of(cursor, tables)
        for table in tables:
            with self._reading() as cursor:
                reason = self._change(cursor, table, records.get(table), identities[table], max_rows)
            if reason is not None:
                changed[table] = reason
                self._mirrored.pop(table, None)
        return changed

    def _change(
        self,
        cursor: Any,
        table: TableName,
        record: TableRecord | None,
        identity: str | None,
        max_rows: int | None,
    ) -> Reason | None:
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
            self._identities.record_compared(table, record, identity)
        return reason

    def _required_content(
        self,
        cursor: Any,
        table: TableName,
        mirrored: _Mirrored,
        record: TableRecord | None,
        identity: str | None,
    ) -> Content:
        """What a table holds that gets a delta: what it was compared with, and nothing if it is new.

        Args:
            identity: of the table now.

        Raises:
            SinkError: `SINK_BASE_CHANGED`.
        """
        content = Content() if record is None else record.content
        if record is not None and not self._identities.is_same(table, record, identity):
            raise table_changed_error(self.name, table)
        if (content.rows > 0) is self._is_empty(cursor, mirrored):
            raise table_changed_error(self.name, table)
        return content

    def _table(self, cursor: Any, table: TableName) -> _Mirrored:
        mirrored = self._mirrored.get(table) or self._load(cursor, table)
        if mirrored is None:
            raise table_missing_error(self.name, table)
        self._mirrored[table] = mirrored
        return mirrored

    def _encoder(self, table: TableName) -> _Mirrored:
        with self._reading() as cursor:
            return self._table(cursor, table)

    # -- one transaction --------------------------------------------------------------------------

    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        state = self._next_state(Operation.BEGIN, transaction, transaction.fence)
        require_base(intent, self.published())
        self._states = {key: old for key, old in self._states.items() if old in OPEN}
        self._states[transaction] = state
        self._begin_transaction(intent)
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
