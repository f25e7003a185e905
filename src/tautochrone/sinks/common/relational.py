"""Sinks over a relational database: a checkpoint is shown by one transaction, together with its pointer.

1. `write` puts the changed rows into temporary tables of the connection. Nobody else sees them.
2. `prepare` compares what is there with what was sent, by content.
3. `commit` locks the row of the sink, compares the fence, applies the temporary tables, writes the pointer,
   and commits, all in one transaction.
4. A new owner raises the fence in the same row: it waits for a commit that is under way, and each later one
   of the older owner is refused. A commit of which the answer was lost arrived if the pointer is there.

`commit` compares the base of the transaction with the pointer, and the identity of each table, under the
lock.

Temporary tables end with their connection. A transaction that loses it is aborted, unless the pointer says
that it was committed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.sink import (
    Digest,
    Intent,
    Operation,
    Recovered,
    SentChunk,
    TransactionId,
    TransactionState,
    next_state,
    require_base,
)
from tautochrone.sinks.common.errors import (
    database_taken_error,
    pointer_missing_error,
    schema_unsupported_error,
    table_changed_error,
)
from tautochrone.sinks.common.mirrored import MirroredRows, row_batches, send_rows
from tautochrone.sinks.common.pointer_sink import OPEN, Content, Pointer, PointerSink, TableRecord
from tautochrone.sinks.common.steps import require_fence, require_same_content
from tautochrone.sinks.json_rows import comparable

__all__ = ["RelationalDatabase", "RelationalSink"]

_S = TransactionState


class RelationalDatabase(Protocol):
    """One connection, opened again when it was lost."""

    @property
    def generation(self) -> int:
        """Counts the connections: temporary tables of an earlier one are gone."""

    def transaction(self, isolation: str = "") -> AbstractContextManager[Any]:
        """A cursor in a transaction of its own."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Staging:
    """Temporary tables of a transaction, and what they add to the content of a table."""

    name: str
    content: Content = field(default_factory=Content)


_Mirrored = TypeVar("_Mirrored", bound=MirroredRows)


class RelationalSink(PointerSink[_Mirrored]):
    """See the module docstring. Its abstract methods are the database's own part."""

    def __init__(self, name: str, database: RelationalDatabase, chunk_rows: int, container: str) -> None:
        super().__init__(name, chunk_rows, container)
        self._connection = database
        self._generations: dict[TransactionId, int] = {}
        self._intents: dict[TransactionId, Intent] = {}
        self._staged: dict[TransactionId, dict[TableName, _Staging]] = {}

    # -- the database's own part ------------------------------------------------------------------

    @abstractmethod
    def _statement(self, template: str) -> Any:
        """A statement over the table of sinks, `{sinks}`."""

    @abstractmethod
    def _lock_owners(self, cursor: Any) -> None:
        """Until the end of the transaction nobody else claims the database."""

    @abstractmethod
    def _lock_table(self, cursor: Any, mirrored: _Mirrored) -> None:
        """Until the end of the transaction nobody else writes, drops or alters the table, as far as the
        database can do that."""

    @abstractmethod
    def _create_staging(self, name: str, mirrored: _Mirrored) -> None:
        """Create the temporary tables of this name, empty."""

    @abstractmethod
    def _drop_staging(self, cursor: Any, name: str) -> None:
        """Drop them, if they are there."""

    @abstractmethod
    def _send(self, staging: str, mirrored: _Mirrored, rows: list[list[Any]], sign: int, chunk: int) -> None:
        """Put rows into a temporary table."""

    @abstractmethod
    def _staged_digests(self, cursor: Any, staging: str) -> list[tuple[Any, ...]]:
        """Of each chunk its number, its rows, and the sum of sign times the first 32 bits of the hash."""

    @abstractmethod
    def _apply(
        self, cursor: Any, table: TableName, mirrored: _Mirrored, staging: str, *, is_replaced: bool
    ) -> None:
        """Make the table what the transaction says."""

    @abstractmethod
    def _stored_rows(self, mirrored: _Mirrored) -> Iterator[Mapping[str, Any]]:
        """All rows of a table in JSON values, inside of a transaction."""

    # -- owners and the pointer -------------------------------------------------------------------

    def _reading(self) -> AbstractContextManager[Any]:
        return self._connection.transaction()

    def _pointer(self, cursor: Any) -> Pointer:
        return self._read(cursor)[1]

    def claim(self, lake: str) -> None:
        self._lake = lake
        with self._connection.transaction() as cursor:
            self._lock_owners(cursor)
            cursor.execute(self._statement("SELECT name, lake FROM {sinks}"))
            owners = [(str(name), str(owner)) for name, owner in cursor.fetchall()]
            others = [owner for owner in owners if owner != (self.name, lake)]
            if others:
                raise database_taken_error(self.name, lake, self._container, others)
            if not owners:
                statement = self._statement("INSERT INTO {sinks} (name, lake, fence) VALUES (%s, %s, 0)")
                cursor.execute(statement, (self.name, lake))

    def highest_fence(self) -> Fence:
        with self._connection.transaction() as cursor:
            return self._read(cursor)[0]

    def fence(self, fence: Fence) -> None:
        with self._connection.transaction() as cursor:
            self._lock(cursor, fence)
            cursor.execute(self._statement("SELECT 1 FROM {sinks} WHERE name = %s"), (self.name,))
            if cursor.fetchone() is None:
                # Somebody deleted it.
                statement = self._statement("INSERT INTO {sinks} (name, lake, fence) VALUES (%s, %s, %s)")
                cursor.execute(statement, (self.name, self._lake, int(fence)))
            statement = self._statement("UPDATE {sinks} SET fence = %s WHERE name = %s")
            cursor.execute(statement, (int(fence), self.name))

    def _read(self, cursor: Any, suffix: str = "") -> tuple[Fence, Pointer]:
        statement = self._statement("SELECT fence, published FROM {sinks} WHERE name = %s " + suffix)
        cursor.execute(statement, (self.name,))
        fence, text = cursor.fetchone() or (0, None)
        return Fence(fence), Pointer.parse(text)

    def _lock(self, cursor: Any, fence: Fence) -> Pointer:
        """Refuse a lower fence; until the end of the transaction nobody can raise it."""
        highest, pointer = self._read(cursor, "FOR UPDATE")
        require_fence(self.name, fence, highest)
        return pointer

    def _require_newest_fence(self, fence: Fence) -> None:
        with self._connection.transaction() as cursor:
            self._lock(cursor, fence)

    def _state(self, transaction: TransactionId) -> TransactionState:
        state = super()._state(transaction)
        if state in OPEN and self._generations[transaction] != self._connection.generation:
            # The connection was lost, and what was staged with it.
            state = self._states[transaction] = _S.ABORTED
        return state

    # -- one transaction --------------------------------------------------------------------------

    def _begin_transaction(self, intent: Intent) -> None:
        transaction = intent.transaction
        self._generations[transaction] = self._connection.generation
        self._intents[transaction] = intent
        self._staged.setdefault(transaction, {})

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        state = self._next_state(Operation.PREPARE, transaction, transaction.fence)
        with self._connection.transaction() as cursor:
            arrived = {
                (table, int(number)): Digest(int(rows), str(int(total)))
                for table, staging in self._staged[transaction].items()
                for number, rows, total in self._staged_digests(cursor, staging.name)
            }
        require_same_content(self.name, chunks, arrived)
        self._states[transaction] = state

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        self._require_newest_fence(fence)
        state = self._state(transaction)
        if next_state(Operation.COMMIT, state, transaction) is state:
            # The answer to an earlier call was lost.
            return
        intent = self._intents[transaction]
        with self._connection.transaction() as cursor:
            pointer = self._lock(cursor, fence)
            require_base(intent, pointer.published)
            records = self._apply_all(cursor, intent, pointer.records)
            cursor.execute(
                self._statement("UPDATE {sinks} SET published = %s, published_at = now() WHERE name = %s"),
                (Pointer(intent, records).text(), self.name),
            )
            if cursor.rowcount != 1:
                raise pointer_missing_error(self.name)
        self._states[transaction] = _S.COMMITTED
        self._drop(transaction)

    def _apply_all(
        self, cursor: Any, intent: Intent, records: Mapping[TableName, TableRecord]
    ) -> dict[TableName, TableRecord]:
        """Change all tables; answers what they must hold from now on."""
        staged = self._staged[intent.transaction]
        tables = dict.fromkeys((*intent.versions, *staged))
        new_records: dict[TableName, TableRecord] = {}
        identities = self._identities_of(cursor, [table for table in tables if table not in staged])
        for table in tables:
            mirrored = self._table(cursor, table)
            is_replaced = table in intent.replaced
            staging, record = staged.get(table), records.get(table)
            content = Content()
            if staging is None:
                identity = identities[table]
                if not is_replaced:
                    content = self._required_content(cursor, table, mirrored, record, identity)
            else:
                self._lock_table(cursor, mirrored)
                if not is_replaced:
                    before = self._identity(cursor, table)
                    content = self._required_content(cursor, table, mirrored, record, before)
                self._apply(cursor, table, mirrored, staging.name, is_replaced=is_replaced)
                content += staging.content
                identity = self._identity(cursor, table)
            if identity is None:
                raise table_changed_error(self.name, table)
            new_records[table] = TableRecord(identity, content, tuple(mirrored.rows.columns))
        return new_records

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        self._states[transaction] = self._next_state(Operation.ABORT, transaction, fence)
        self._drop(transaction)

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._require_newest_fence(fence)
        for transaction in [key for key in self._states if self._state(key) in OPEN]:
            self.abort(transaction, fence)
        return self._recovered(intents)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _schema_errors(self, table: TableName) -> Iterator[None]:
        """What a database has against creating or altering a table."""
        try:
            yield
        except SinkError as error:
            if error.error_class != "SINK_DATABASE_REFUSED" or error.retryable:
                raise
            raise schema_unsupported_error(self.name, table, error.message) from error

    # -- rows -------------------------------------------------------------------------------------

    def _stage(
        self,
        transaction: TransactionId,
        table: TableName,
        signed_rows: Sequence[tuple[Rows, int]],
        known_rows: int | None,
    ) -> list[SentChunk]:
        self._next_state(Operation.WRITE, transaction, transaction.fence)
        mirrored = self._encoder(table)
        staged = self._staged[transaction]
        before = staged.get(table)
        staging = _Staging(f"{transaction}_{len(staged)}" if before is None else before.name)
        self._create_staging(staging.name, mirrored)
        staged[table] = staging
        chunks: list[SentChunk] = []
        for rows, sign in signed_rows:
            # Rows are computed before a database's transaction begins: it must not be idle in it for long.
            for batch in row_batches(self.name, table, mirrored, rows, self._chunk_rows, known_rows):
                number = len(chunks)
                total = sum(sign * int(values[-1][:8], 16) for _, values in batch)
                send = partial(self._send, staging.name, mirrored, sign=sign, chunk=number)
                send_rows(self.name, table, mirrored, batch, send)
                staging.content += Content(sign * len(batch), total)
                digest = Digest(len(batch), str(total))
                chunks.append(SentChunk(table=table, number=number, digest=digest))
        return chunks

    def _require_removed(self, table: TableName, rows: int, present: int) -> None:
        if present != rows:
            raise SinkContentError(
                "SINK_ROW_MISSING",
                f"Sink {self.name}: {table} lacks {rows - present} of {rows} rows to remove",
                hint="Somebody else changed the table. Drop it: the next run creates it, and delivers all "
                "of its rows.",
                retryable=False,
                parameters={"sink": self.name, "table": str(table)},
            )

    def _require_inserted(self, table: TableName, rows: int, present: int) -> None:
        if present != rows:
            raise SinkContentError(
                "SINK_CONTENT_DIFFERS",
                f"Sink {self.name}: the table of {table} took {present} of {rows} new rows",
                hint="A trigger or a rule of the table keeps rows away. Drop it, or the table: the next run "
                "creates the table, and delivers all of its rows.",
                parameters={"sink": self.name, "table": str(table)},
            )

    def _drop(self, transaction: TransactionId) -> None:
        self._intents.pop(transaction, None)
        generation = self._generations.pop(transaction, 0)
        staged = self._staged.pop(transaction, {})
        if staged and generation == self._connection.generation:
            with self._connection.transaction() as cursor:
                for staging in staged.values():
                    self._drop_staging(cursor, staging.name)

    def _sink_texts(self, table: TableName, checkpoint: CheckpointNumber) -> Iterator[str]:
        """The rows of a table, read from its columns, at the checkpoint that the same snapshot shows."""
        with self._connection.transaction("REPEATABLE READ") as cursor:
            self._require_visible(cursor, checkpoint)
            mirrored = self._load(cursor, table)
            if mirrored is not None:
                for row in self._stored_rows(mirrored):
                    yield comparable(row)
