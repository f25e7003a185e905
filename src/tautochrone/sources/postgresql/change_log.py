"""PostgreSQL behind the port `model.source.ChangeLog`.

The log is read through SQL: `pg_logical_slot_peek_binary_changes` up to what is flushed, and
`pg_replication_slot_advance` to acknowledge. A peek can be repeated, an advance cannot be taken back; so a
slot that is ahead of the table means that changes are lost.

Each table that takes the log has a slot of its own, whose name ends with a number of the table. So two lakes
with the same capture do not take each other's log. The position says which slot it is.

A position's point is an LSN: every transaction whose commit record ends there or before is in the table. Its
marker has the fingerprint that each captured table (columns, membership in the publication) had when the copy
began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import IngestError
from tautochrone.model.kept_log import KeptLog
from tautochrone.model.source import CHANGE_LOG_LIMITS, LogBatch, RateLimits
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.chunks import chunks_for_tasks
from tautochrone.sources.capture.copied_rows import completed_rows
from tautochrone.sources.capture.copy_job import connection_lost, copy_by_tasks
from tautochrone.sources.capture.log_schema import ARROW_SCHEMA, SPARK_SCHEMA
from tautochrone.sources.postgresql.bulk import (
    CHUNK_BYTES,
    ChunkReader,
    chunks_of,
    copy_chunk,
    durable_log_end,
    flush_log,
    log_end,
)
from tautochrone.sources.postgresql.connection import connect, explained, lsn_text
from tautochrone.sources.postgresql.examine import examine
from tautochrone.sources.postgresql.messages import DecodedBatch, decode
from tautochrone.sources.postgresql.server import (
    ServerState,
    add_to_publication,
    await_running_transactions,
    check_publication,
    check_server,
    create_slot,
    one_row,
    server_state,
    slots_of,
)
from tautochrone.sources.postgresql.tables import (
    CapturedTable,
    has_same_rows,
    is_same_table,
    read_tables,
)

__all__ = ["Capture", "PostgreSQLChangeLog", "slot_of"]

T = TypeVar("T")
IDLE_BYTES = 16 * 1024 * 1024
"""So far the log may run ahead without changes of captured tables until the table's position follows. Each
such move is a commit of the log table."""
_READER_LENGTH = 8
"""Digits of a reader in the name of its slot, which may have 63 characters."""
_AGAIN = "copy the database again: --full-refresh of the log table and of the captured tables"


@dataclass(frozen=True, slots=True)
class Capture:
    """A database and the tables that are taken from it.

    Attributes:
        url: connection string, with its password.
        slot: with what the name of the replication slot begins.
        publication: name of the publication.
        follows_columns: a table that gets other columns, or a new table, is copied; otherwise refused.
        copy_tasks: so many tasks of Spark copy at once, each by a connection; 0: the driver copies.
    """

    name: str
    url: str = field(repr=False)
    tables: tuple[CapturedTable, ...]
    slot: str
    publication: str
    follows_columns: bool = True
    copy_tasks: int = 8


class PostgreSQLChangeLog:
    """One captured database. It connects when it is first asked for something."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._tables = {table.name: table for table in capture.tables}
        self._keys = {table.name: table.identity for table in capture.tables}
        self._connection: psycopg.Connection | None = None
        self._idle: tuple[int, int] | None = None
        """A position and how far the log was when there was nothing to take behind it: until the log is
        further, nothing can have changed."""

    @property
    def name(self) -> str:
        return f"PostgreSQL capture {self._capture.name}"

    def input_ids(self) -> frozenset[str]:
        return frozenset({f"postgresql slot {self._capture.slot}"})

    def rate_limits(self) -> RateLimits:
        return CHANGE_LOG_LIMITS

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def relations(self) -> Sequence[str]:
        return tuple(self._tables)

    def begin(self, reader: str) -> LogPosition:
        """First the publication, then the slot: what the slot keeps is decoded with the publication as it was
        when it was written."""
        slot = f"{self._capture.slot}_{reader[:_READER_LENGTH]}"
        return self._ask(lambda connection: self._begin(connection, slot))

    def _begin(self, connection: psycopg.Connection, slot: str) -> LogPosition:
        check_server(connection, self._capture.name)
        add_to_publication(connection, self._capture.publication, self._unchanged_tables(connection))
        check_publication(connection, self._capture.publication)
        tables = self._unchanged_tables(connection, with_sizes=True)
        state = server_state(connection, slot)
        # A slot of this table is of a begin that crashed, or of before it was copied again.
        point = create_slot(connection, slot, replace=state.confirmed is not None)
        return LogPosition(
            log=state.log,
            point=point,
            marker={table.name: table.fingerprint for table in tables},
            bulk=BulkProgress(pending={table.name: self._chunks(connection, table) for table in tables}),
        )

    def _unchanged_tables(
        self, connection: psycopg.Connection, *, with_sizes: bool = False
    ) -> list[CapturedTable]:
        """The captured tables as they are now, with the columns and keys that the definition found.

        Raises:
            IngestError: `CAPTURED_TABLE_CHANGED`.
        """
        existing = read_tables(connection, self._capture.publication, with_sizes=with_sizes)
        for name, table in self._tables.items():
            now = existing.get(name)
            if now is None or now.columns != table.columns or now.oid != table.oid:
                raise _table_changed(name, "dropped" if now is None else "changed")
        return [existing[name] for name in self._tables]

    def resume(self, position: LogPosition) -> LogPosition:
        return self._ask(lambda connection: self._resume(connection, position))

    def _resume(self, connection: psycopg.Connection, position: LogPosition) -> LogPosition:
        if server_state(connection, slot_of(position)).loss(position.log, position.point) is not None:
            # `read` says it.
            return position
        tables = self._unchanged_tables(connection)
        new = [table for table in tables if table.name not in position.marker]
        changed = [
            table
            for table in tables
            if table.name in position.marker
            and not has_same_rows(position.marker[table.name], table.fingerprint)
        ]
        for table in changed:
            if not is_same_table(position.marker[table.name], table.fingerprint):
                raise _table_changed(
                    table.name, "dropped and made anew, got another key, or left the publication,"
                )
        if (new or changed) and not self._capture.follows_columns:
            raise _table_changed((new or changed)[0].name, "added" if new else "changed")
        if new:
            # Before the copy: what is written from now on is in the log.
            add_to_publication(connection, self._capture.publication, tables)
        if new or changed:
            await_running_transactions(connection)
        before = {table.name: table.fingerprint for table in tables}
        tables = self._unchanged_tables(connection, with_sizes=True)
        copied = {table.name for table in (*new, *changed)}
        for table in tables:
            if table.name not in copied and not has_same_rows(before[table.name], table.fingerprint):
                raise _table_changed(table.name, "changed")
        kept = {table.name for table in tables} - copied
        chunks = {table.name: self._chunks(connection, table) for table in tables if table.name in copied}
        return replace(
            position,
            marker={table.name: table.fingerprint for table in tables},
            bulk=position.bulk.copied_again(kept, chunks),
        )

    def read(self, after: LogPosition, max_events: int) -> LogBatch:
        return self._ask(lambda connection: self._read(connection, after, max_events))

    def _read(self, connection: psycopg.Connection, after: LogPosition, max_events: int) -> LogBatch:
        slot = slot_of(after)
        state = server_state(connection, slot)
        if (after.point, state.flushed) == self._idle:
            return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=True)
        self._check(connection, state, after)
        pass_at = max(after.bulk.pass_at.values(), default=0)
        if pass_at > state.flushed:
            # An idle database may never write the last page of its log to disk: a commit makes it do so.
            flush_log(connection)
            state = server_state(connection, slot)
            self._check(connection, state, after)
        if state.flushed <= after.point:
            return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=True)
        batch, caught_up = self._peek(connection, after, state.flushed, max_events)
        self._check_relations(batch, after)
        point = batch.end_point or 0
        if caught_up:
            point = max(point, state.flushed)
            if not batch.rows.num_rows and not pass_at and point - after.point < IDLE_BYTES:
                point = after.point
                self._idle = (after.point, state.flushed)
        return LogBatch(
            rows=_with_long_xids(connection, batch.rows),
            position=replace(after, point=point),
            caught_up=caught_up,
            source_ms=batch.committed_ms if batch.rows.num_rows else None,
        )

    def _peek(
        self, connection: psycopg.Connection, after: LogPosition, end: int, max_events: int
    ) -> tuple[DecodedBatch, bool]:
        """The transactions behind `after`, and whether these are all up to `end`."""
        while True:
            messages = self._messages(connection, slot_of(after), end, max_events)
            caught_up = len(messages) < max_events
            batch = decode(messages, self._keys)
            new = pc.greater(batch.rows["point"], after.point)
            batch = replace(batch, rows=batch.rows.filter(new))
            if caught_up or (batch.end_point or 0) > after.point:
                return batch, caught_up
            # The slot is behind the table, and all that was read is in the table.
            max_events *= 2

    def _messages(
        self, connection: psycopg.Connection, slot: str, end: int, max_messages: int
    ) -> list[bytes]:
        """Messages of whole transactions. The server adds a transaction as a whole before it looks at the
        bounds.

        Raises:
            IngestError: `CAPTURE_PUBLICATION_MISSING`.
        """
        query = (
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s::int, "
            "'proto_version', '1', 'publication_names', %s)"
        )
        publication = sql.Identifier(self._capture.publication).as_string(connection)
        arguments = (slot, lsn_text(end), max_messages, publication)
        warnings: list[str] = []

        def warned(notice: psycopg.errors.Diagnostic) -> None:
            if notice.severity_nonlocalized == "WARNING":
                warnings.append(str(notice.message_primary))

        connection.add_notice_handler(warned)
        try:
            with connection.cursor(binary=True) as cursor:
                cursor.execute(query, arguments)
                messages = [data for (data,) in cursor]
        except psycopg.errors.UndefinedObject as error:
            raise self._publication_missing(str(error)) from error
        finally:
            connection.remove_notice_handler(warned)
        if warnings:
            # PostgreSQL 18 leaves out changes of a missing publication, and only warns.
            raise self._publication_missing(warnings[0])
        return messages

    def _publication_missing(self, message: str) -> IngestError:
        return IngestError(
            "CAPTURE_PUBLICATION_MISSING",
            f"The publication {self._capture.publication} of {self.name} was not there when changes were "
            f"written: {' '.join(message.split())}",
            hint=f"the log lacks these changes; {_AGAIN}, which makes the publication anew",
        )

    def _check_relations(self, batch: DecodedBatch, after: LogPosition) -> None:
        for relation in batch.relations:
            table = self._tables.get(relation.name)
            # Rows from before a change of columns are followed by a copy of the table, which saw them.
            if table is not None and not table.matches(relation) and table.name not in after.bulk.waiting:
                raise _table_changed(relation.name, "changed")

    def _check(self, connection: psycopg.Connection, state: ServerState, after: LogPosition) -> None:
        """Is everything there that follows a position?

        Raises:
            IngestError: `SOURCE_LOG_LOST`; `CAPTURED_TABLE_CHANGED`; of the publication.
        """
        loss = state.loss(after.log, after.point)
        if loss is not None:
            raise IngestError(
                "SOURCE_LOG_LOST",
                f"{self.name} cannot go on from {lsn_text(after.point)}: {loss}",
                hint=_AGAIN,
            )
        check_publication(connection, self._capture.publication)
        for table in self._unchanged_tables(connection):
            if not has_same_rows(after.marker.get(table.name, ""), table.fingerprint):
                raise _table_changed(table.name, "changed, or left the publication,")

    def read_chunk(self, relation: str, chunk: str) -> tuple[pa.Table, int]:
        return self._ask(lambda connection: copy_chunk(connection, self._tables[relation], chunk))

    def _chunks(self, connection: psycopg.Connection, table: CapturedTable) -> tuple[str, ...]:
        return chunks_of(connection, table, self._capture.copy_tasks)

    def next_chunks(self, bulk: BulkProgress) -> Sequence[tuple[str, str]]:
        tasks = self._capture.copy_tasks
        return chunks_for_tasks(bulk, tasks, tasks * CHUNK_BYTES)

    def copy_chunks(
        self, session: SparkSession, chunks: Sequence[tuple[str, str]], stage: Callable[[DataFrame], T]
    ) -> tuple[T, int]:
        """See `BulkOnExecutors`.

        Raises:
            IngestError: `CAPTURE_COPY_FAILED`; and what `_ask` and `_unchanged_tables` raise.
        """
        tables = tuple((self._tables[relation], chunk) for relation, chunk in chunks)
        opened, point = self._ask(lambda connection: (connection, log_end(connection)))
        relations = {relation for relation, _ in chunks}
        staged = copy_by_tasks(
            session,
            self._capture.name,
            len(tables),
            self._capture.copy_tasks,
            ChunkReader(self._capture.name, self._capture.url, tables, point),
            stage,
            lambda: self._ask(lambda connection: self._check_readable(connection, relations)),
            "postgres",
        )
        return staged, self._ask(lambda connection: self._end_of_copy(connection, opened))

    def _end_of_copy(self, connection: psycopg.Connection, opened: psycopg.Connection) -> int:
        """A connection ends when the server crashes, so what was read while it was open is not lost."""
        if connection is not opened:
            raise connection_lost(self.name)
        return durable_log_end(connection)

    def _check_readable(self, connection: psycopg.Connection, relations: AbstractSet[str]) -> None:
        """Raises what is wrong with the database, its tables or rights."""
        for table in self._unchanged_tables(connection):
            if table.name in relations:
                connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(table.identifier))

    def completed_rows(self, relations: Sequence[str], position: LogPosition) -> pa.Table:
        return completed_rows(relations, position.point)

    def acknowledge(self, position: LogPosition) -> None:
        self._ask(lambda connection: self._acknowledge(connection, position))

    def _acknowledge(self, connection: psycopg.Connection, position: LogPosition) -> None:
        slot = slot_of(position)
        state = server_state(connection, slot)
        # Whatever is wrong with the log, `read` says it.
        if state.loss(position.log, position.point) is None and state.confirmed != position.point:
            query = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
            connection.execute(query, (slot, lsn_text(position.point)))

    def lag(self, position: LogPosition) -> Mapping[str, int]:
        return self._ask(
            lambda connection: {"bytes": server_state(connection, slot_of(position)).flushed - position.point}
        )

    def examine(self) -> str:
        return self._ask(
            lambda connection: examine(
                connection,
                self._capture.name,
                self._capture.slot,
                self._capture.publication,
                self._unchanged_tables(connection),
            )
        )

    def kept_logs(self, position: LogPosition | None) -> Sequence[KeptLog]:
        """The replication slots of this capture."""
        own = None if position is None else slot_of(position)
        return self._ask(lambda connection: slots_of(connection, self._capture.slot, own))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, question: Callable[[psycopg.Connection], T]) -> T:
        """After an error the connection is not used again."""
        try:
            with explained(self._capture.name):
                if self._connection is None:
                    self._connection = connect(self._capture.url)
                return question(self._connection)
        except Exception:
            self.close()
            raise


def slot_of(position: LogPosition) -> str:
    """The slot from which a position's log is read: see `ServerState.log`."""
    return position.log.rsplit("/", 1)[1]


def _table_changed(name: str, change: str) -> IngestError:
    return IngestError(
        "CAPTURED_TABLE_CHANGED",
        f"The table {name} was {change} since it is captured",
        hint=f"run again: a table that got other columns is copied; if it is refused again, {_AGAIN}",
    )


def _with_long_xids(connection: psycopg.Connection, rows: pa.Table) -> pa.Table:
    """The log has the lower 32 bits of a transaction's number. The full number is the one that is nearest to
    those of today; rows of the log are less than 2³¹ transactions old, or the server would have stopped."""
    (newest,) = one_row(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    short = rows["transaction"].to_numpy()
    distance = ((short - newest + 2**31) & 0xFFFFFFFF) - 2**31
    index = rows.schema.get_field_index("transaction")
    return rows.set_column(index, rows.schema.field(index), pa.array(np.asarray(newest + distance, np.int64)))
