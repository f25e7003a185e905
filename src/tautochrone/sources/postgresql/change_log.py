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

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TypeVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from tautochrone.errors import IngestError
from tautochrone.model.reason import Reason
from tautochrone.model.source import KeptLog, LogBatch
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.captured_log import IDLE_BYTES, CapturedLog, ignored_column_reasons
from tautochrone.sources.capture.copied_rows import completed_rows
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.capture.set_aside import (
    aside_reason,
    definitions_outdated_error,
    outdated_if_refused,
)
from tautochrone.sources.postgresql.bulk import (
    TABLE_TOO_LARGE,
    TEXT_FORMAT,
    ChunkReader,
    chunks_of,
    copy_chunk,
    durable_log_end,
    flush_log,
    has_marks,
    log_end,
    marks_due,
    marks_missing,
    split_marks,
)
from tautochrone.sources.postgresql.connection import connect, lsn_text, translated_errors
from tautochrone.sources.postgresql.continuity import (
    OTHER_HISTORY,
    SlotNotContinuousError,
    first_marker,
    has_last_transaction,
    last_transaction_point,
    log_lost_error,
    marker_after_batch,
    peeked_messages,
    position_on_timeline,
    with_long_xids,
)
from tautochrone.sources.postgresql.copy_again import (
    batch_of_copies_again,
    copied_up_to,
    differences,
    relations_unlike_tables,
    restart_rows,
    resumed_position,
    table_changed_error,
)
from tautochrone.sources.postgresql.messages import DecodedBatch, decode
from tautochrone.sources.postgresql.server import (
    Alarms,
    ServerState,
    add_to_publication,
    await_running_transactions,
    check_prerequisites,
    check_publication,
    check_server,
    create_slot,
    open_transactions,
    require_readable,
    server_state,
    slot_of,
    slots_of,
)
from tautochrone.sources.postgresql.tables import Capture, CapturedTable, read_tables, require_logged

__all__ = ["Capture", "PostgreSQLChangeLog"]

T = TypeVar("T")
_READER_LENGTH = 8
"""Digits of a reader in the name of its slot, which may have 63 characters."""


class PostgreSQLChangeLog(CapturedLog[Capture, CapturedTable]):
    """One captured database."""

    text_format = TEXT_FORMAT
    extra = "postgres"

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture, capture.tables)
        self._keys = {table.name: table.identifying_columns for table in capture.tables}
        self._alarms = Alarms()
        self._is_verified = False
        """Whether this connection has seen that the log has what the table took last."""
        self._idle: tuple[LogPosition, int] | None = None
        """A position and how far the log was when there was nothing to take behind it: until the log is
        further, nothing can have changed."""

    @property
    def name(self) -> str:
        return f"PostgreSQL capture {self._capture.name}"

    def input_ids(self) -> frozenset[str]:
        return frozenset({f"postgresql slot {self._capture.slot}"})

    def set_lake_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        super().set_lake_columns(columns)
        taken = self._lake_columns
        self._tables |= {name: self._tables[name].with_columns(names) for name, names in taken.items()}

    def begin(self, reader: str) -> LogPosition:
        """First the publication, then the slot: what the slot keeps is decoded with the publication as it was
        when it was written."""
        slot = f"{self._capture.slot}_{reader[:_READER_LENGTH]}"
        return self._without_large(lambda connection: self._begin_position(connection, slot))

    def _begin_position(self, connection: psycopg.Connection, slot: str) -> LogPosition:
        check_server(connection, self._capture.name)
        add_to_publication(connection, self._capture.publication, self._unchanged_tables(connection))
        check_publication(connection, self._capture.publication)
        tables = self._unchanged_tables(connection, with_sizes=True)
        state = server_state(connection, slot)
        # If the slot exists, it is of a `begin` that crashed, or of before this table was copied again.
        point = create_slot(connection, slot, replace=state.confirmed is not None)
        # A transaction that committed just before the slot's start can be in the log before snapshots see it.
        # A copy must not miss its rows, so it waits until all transactions that run now have ended.
        await_running_transactions(connection, None)
        return LogPosition(
            log=state.log,
            point=point,
            marker={
                **first_marker(state),
                **{table.name: table.fingerprint for table in tables},
            },
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
        refused = definitions_outdated_error if self._capture.follows_columns else table_changed_error
        new = self._new_tables.take(name for name, table in existing.items() if table.is_capturable)
        if new is not None and self._capture.follows_columns:
            raise definitions_outdated_error(new, "came")
        for name, table in self._tables.items():
            now = existing.get(name)
            if now is not None and name in self._lake_columns:
                now = existing[name] = now.with_columns(self._lake_columns[name])
            if now is None or now.columns != table.columns or now.oid != table.oid:
                raise refused(name, "was dropped or renamed" if now is None else "was changed")
            with outdated_if_refused():
                require_logged(now)
        return [existing[name] for name in self._tables]

    def resume(self, position: LogPosition, anew: Collection[str] = ()) -> LogPosition:
        return self._without_large(lambda connection: self._resume(connection, position, anew))

    def _without_large(self, question: Callable[[psycopg.Connection], T]) -> T:
        """Tables that are too large to be copied are set aside, if there are others."""
        while True:
            try:
                return self._on_connection(question)
            except IngestError as error:
                if error.error_class != TABLE_TOO_LARGE or len(self._tables) == 1:
                    raise
                name = str(error.parameters["relation"])
                del self._tables[name], self._keys[name]
                self._aside[name] = aside_reason(name, error)

    def _resume(
        self, connection: psycopg.Connection, position: LogPosition, anew: Collection[str]
    ) -> LogPosition:
        state = server_state(connection, slot_of(position))
        position = self._position_on_timeline(state, position)
        if state.reason_of_loss(position.log, position.point) is not None:
            # `read` says it.
            return position
        # Before another chunk is copied, whose mark would hide that this one is not there.
        if not has_marks(
            position, lambda limit: self._messages(connection, state.slot, state.flushed, limit, True)
        ):
            raise self._log_lost_error(position, f"{OTHER_HISTORY} while tables were copied")
        return resumed_position(
            connection,
            self._capture.publication,
            position,
            lambda with_sizes: self._unchanged_tables(connection, with_sizes=with_sizes),
            follows=self._capture.follows_columns,
            tasks=self._capture.copy_tasks,
            anew=anew,
        )

    def read(self, after: LogPosition, max_events: int) -> LogBatch:
        return self._on_connection(lambda connection: self._read(connection, after, max_events))

    def _read(self, connection: psycopg.Connection, after: LogPosition, max_events: int) -> LogBatch:
        state = server_state(connection, slot_of(after))
        if (after, state.flushed) == self._idle:
            return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=True)
        position = self._position_on_timeline(state, after)
        if position.point != after.point:
            return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=position, caught_up=False)
        after = position
        tables = self._require_continuity(connection, state, after)
        changes = differences(after, tables)
        if changes:
            return batch_of_copies_again(
                self._capture.follows_columns,
                after,
                {name: change.change for name, change in changes.items()},
            )
        # Partitions that were created have all their rows in the log.
        after = replace(after, marker={**after.marker, **{table.name: table.fingerprint for table in tables}})
        pass_at = max(after.bulk.pass_at.values(), default=0)
        if pass_at > state.flushed:
            # An idle database may never write the last page of its log to disk: a commit makes it do so.
            flush_log(connection)
            state = server_state(connection, slot_of(after))
            self._require_continuity(connection, state, after)
        # A restored server's log may be as long as the one that the table took: that is compared once.
        if state.flushed <= after.point and self._is_verified:
            return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=True)
        batch, caught_up = self._peek(connection, after, state, max_events)
        if batch.rows.num_rows and tables != self._unchanged_tables(connection):
            # Looked at once more: what changed them may be in the log before others see it.
            return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=False)
        unlike = relations_unlike_tables(batch, tables, after)
        if unlike:
            marker = {**after.marker, **dict.fromkeys(unlike, "")}
            return batch_of_copies_again(self._capture.follows_columns, replace(after, marker=marker), unlike)
        point = batch.end_point or 0
        marker = marker_after_batch(after, batch, after.bulk.pass_at)
        if caught_up:
            point = max(point, state.flushed)
            if not batch.rows.num_rows and not pass_at and point - after.point < IDLE_BYTES:
                point = after.point
                self._idle = (replace(after, marker=marker), state.flushed)
        return LogBatch(
            rows=with_long_xids(connection, batch.rows),
            position=replace(after, point=max(point, after.point), marker=marker),
            caught_up=caught_up,
            source_ms=batch.committed_ms if batch.rows.num_rows else None,
            ignored=self._newly_ignored(tables, after.point),
        )

    def _newly_ignored(self, tables: Sequence[CapturedTable], point: int) -> dict[str, Reason]:
        """Tables that got columns, since this was asked last, which the lake's tables do not take."""
        new = [table for table in tables if table.ignored != self._tables[table.name].ignored]
        self._tables |= {table.name: table for table in new}
        return ignored_column_reasons(dict.fromkeys((table.name for table in new), lsn_text(point)))

    def _position_on_timeline(self, state: ServerState, position: LogPosition) -> LogPosition:
        """See `continuity.position_on_timeline`.

        Raises:
            IngestError: `SOURCE_LOG_LOST`.
        """
        try:
            return position_on_timeline(self._capture.url, state, position)
        except SlotNotContinuousError as error:
            raise self._log_lost_error(position, str(error)) from error

    def _log_lost_error(
        self, position: LogPosition, reason: str, *, may_be_shared: bool = False
    ) -> IngestError:
        return log_lost_error(self.name, position, reason, may_be_shared=may_be_shared)

    def _peek(
        self, connection: psycopg.Connection, after: LogPosition, state: ServerState, max_events: int
    ) -> tuple[DecodedBatch, bool]:
        """The transactions behind `after`, and whether these are all up to the end of the log.

        Raises:
            IngestError: `SOURCE_LOG_LOST`.
        """
        copied, due = copied_up_to(after, self._tables), marks_due(after)
        while True:
            messages = self._messages(connection, state.slot, state.flushed, max_events, bool(due))
            caught_up = len(messages) < max_events
            marks, messages = split_marks(messages)
            batch = decode(messages, self._keys, copied, self._lake_columns)
            end = state.flushed if caught_up else batch.end_point or 0
            lacks_mark = marks_missing(due, end, marks)
            if caught_up or (end > after.point and not lacks_mark):
                break
            # The slot is behind the table, and all that was read is in the table.
            max_events *= 2
        # Somebody else may have moved the slot, or made it anew, since it was looked at.
        begun_at = server_state(connection, state.slot).confirmed
        if begun_at is None or begun_at > after.point:
            reason = f"somebody else reads the replication slot {state.slot}, or made it anew"
            raise self._log_lost_error(after, reason, may_be_shared=True)
        # The batch begins where the slot is. It must have what the table took behind that.
        if (state.confirmed or 0) < (last_transaction_point(after) or 0) and not has_last_transaction(
            batch, after
        ):
            raise self._log_lost_error(after, f"{OTHER_HISTORY} before it")
        if lacks_mark:
            raise self._log_lost_error(after, f"{OTHER_HISTORY} while tables were copied")
        taken = last_transaction_point(after)
        new = batch.rows.filter(pc.greater(batch.rows["point"], after.point if taken is None else taken))
        if new.num_rows and new["point"][0].as_py() <= after.point:
            raise self._log_lost_error(after, f"{OTHER_HISTORY} behind it")
        self._is_verified = True
        return replace(batch, rows=new), caught_up

    def _messages(
        self, connection: psycopg.Connection, slot: str, end: int, limit: int | None, with_marks: bool = False
    ) -> list[bytes]:
        names = {"publication": self._capture.publication, "log_name": self.name}
        return peeked_messages(connection, slot, end, limit, **names, with_marks=with_marks)

    def _require_continuity(
        self, connection: psycopg.Connection, state: ServerState, after: LogPosition
    ) -> list[CapturedTable]:
        """Is everything there that follows a position? The captured tables as they are now.

        Raises:
            IngestError: `SOURCE_LOG_LOST`; `CAPTURED_TABLE_CHANGED`; of the publication.
        """
        loss = state.reason_of_loss(after.log, after.point)
        if loss is not None:
            raise self._log_lost_error(after, loss, may_be_shared=(state.confirmed or 0) > after.point)
        check_publication(connection, self._capture.publication)
        return self._unchanged_tables(connection)

    def _read_chunk(
        self, connection: psycopg.Connection, table: CapturedTable, chunk: str
    ) -> tuple[pa.Table, int]:
        return copy_chunk(connection, table, chunk, lambda: self._check_readable(connection, {table.name}))

    def _chunks(self, connection: psycopg.Connection, table: CapturedTable) -> tuple[str, ...]:
        return chunks_of(connection, table, self._capture.copy_tasks)

    def _chunk_reader(
        self, connection: psycopg.Connection, chunks: tuple[tuple[CapturedTable, str], ...]
    ) -> ChunkReader:
        return ChunkReader(self._capture.name, self._capture.url, chunks, log_end(connection))

    def _log_end(self, connection: psycopg.Connection) -> int:
        return durable_log_end(connection)

    def _check_readable(self, connection: psycopg.Connection, relations: Collection[str]) -> None:
        tables = [table for table in self._unchanged_tables(connection) if table.name in relations]
        require_readable(connection, self._capture.publication, tables, self._capture.name)

    def completed_rows(self, relations: Sequence[str], position: LogPosition) -> pa.Table:
        completed = completed_rows(relations, position.point)
        restarting = restart_rows([name for name in relations if self._tables[name].keys], position)
        if not restarting:
            return completed
        return pa.concat_tables([pa.Table.from_pylist(restarting, ARROW_SCHEMA), completed])

    def acknowledge(self, position: LogPosition) -> None:
        self._on_connection(lambda connection: self._acknowledge(connection, position))

    def _acknowledge(self, connection: psycopg.Connection, position: LogPosition) -> None:
        slot = slot_of(position)
        state = server_state(connection, slot)
        # Whatever is wrong with the log, `read` says it.
        if (
            state.reason_of_loss(position.log, position.point) is None
            and state.confirmed != position.point
            and self._is_same_history(connection, state, position)
        ):
            query = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
            with suppress(psycopg.errors.UndefinedFile):
                connection.execute(query, (slot, lsn_text(position.point)))

    def _is_same_history(
        self, connection: psycopg.Connection, state: ServerState, position: LogPosition
    ) -> bool:
        """Before the slot forgets what would show that this is another server's log."""
        try:
            if position_on_timeline(self._capture.url, state, position).point != position.point:
                return False
        except SlotNotContinuousError:
            return False
        taken, confirmed = last_transaction_point(position), state.confirmed or 0
        if self._is_verified or taken is None or confirmed >= position.point:
            return True
        messages = self._messages(connection, state.slot, position.point, None)
        known = {name: keys for name, keys in self._keys.items() if name in position.marker}
        batch = decode(messages, known, dict.fromkeys(known, position.point), self._lake_columns)
        between = pc.and_(
            pc.greater(batch.rows["point"], taken), pc.less_equal(batch.rows["point"], position.point)
        )
        is_known = confirmed >= taken or has_last_transaction(batch, position)
        return is_known and not pc.any(between, min_count=0).as_py()

    def alarms(self, position: LogPosition) -> Sequence[Reason]:
        return self._on_connection(
            lambda connection: self._alarms.reasons(connection, self._capture.slot, slot_of(position))
        )

    def open_transactions(self) -> Sequence[Reason]:
        with self._translated_errors(), self._connect() as connection:
            return open_transactions(connection)

    def lag(self, position: LogPosition) -> Mapping[str, int]:
        return self._on_connection(
            lambda connection: {"bytes": server_state(connection, slot_of(position)).flushed - position.point}
        )

    def check_prerequisites(self) -> str:
        names = (self._capture.name, self._capture.slot, self._capture.publication)
        return self._on_connection(
            lambda connection: check_prerequisites(connection, *names, self._unchanged_tables(connection))
        )

    def kept_logs(self, position: LogPosition | None) -> Sequence[KeptLog]:
        """The replication slots of this capture."""
        own = None if position is None else slot_of(position)
        return self._on_connection(lambda connection: slots_of(connection, self._capture.slot, own))

    def _connect(self) -> psycopg.Connection:
        return connect(self._capture.url)

    def _translated_errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._capture.name)

    def _forget_server(self) -> None:
        self._is_verified, self._idle = False, None

    def _disconnect(self, connection: psycopg.Connection) -> None:
        connection.close()
