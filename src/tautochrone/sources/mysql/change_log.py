"""MariaDB or MySQL behind the port `model.source.ChangeLog`.

The server sends its binary log from a place in it, and keeps it for as long as its settings say, whoever has
read it: there is nothing to acknowledge.

A position's point is a file's number and an offset in it. Its marker has the file, marks of the last
transactions before the point, and for each captured table the fingerprint of its columns and the point behind
which its rows count.

A table that a statement changes (other columns, rows that the log does not show) is copied again. Its rows in
the log count from the place on at which the copy was planned, and all rows that it had before go: the binary
log has neither names of columns nor what the statement did to rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from tautochrone.errors import SourceUnreachableError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import KeptLog, LogBatch
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.captured_log import IDLE_BYTES, CapturedLog, ignored_column_reasons
from tautochrone.sources.capture.copied_rows import completed_rows
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.capture.set_aside import definitions_outdated_error, outdated_if_refused
from tautochrone.sources.mysql.binlog import dump_events, events_from, point_of
from tautochrone.sources.mysql.bulk import TEXT_FORMAT, ChunkReader, chunks_of, copy_chunk
from tautochrone.sources.mysql.charsets import Charsets
from tautochrone.sources.mysql.connection import connect, fetch, translated_errors
from tautochrone.sources.mysql.continuity import SameLog, log_lost_error, table_changed_error
from tautochrone.sources.mysql.flavors import file_identity, flavor_of, last_mark
from tautochrone.sources.mysql.markers import (
    FILE,
    FILE_ID,
    GTID,
    columns_of,
    entry_of,
    fingerprint_at,
    gtid_text,
    history_at,
    history_entry,
    prepared_at,
    prepared_entry,
    relations_of,
    server_of,
    since_when,
    without_history,
)
from tautochrone.sources.mysql.reader import LogReader
from tautochrone.sources.mysql.rows import LAST_SEQUENCE, truncate_row
from tautochrone.sources.mysql.server import (
    FileTimes,
    awaited_transactions,
    check_prerequisites,
    check_server,
    committed_end,
    ignores_case,
    instance_of,
    kept_log,
    lag_behind,
    log_end,
)
from tautochrone.sources.mysql.tables import (
    Capture,
    CapturedTable,
    Cascade,
    cascades_by_parent,
    has_same_key_and_columns,
    read_tables,
    require_logged,
    unlogged_foreign_keys,
    without_last_columns,
)
from tautochrone.sources.mysql.types import require_known_types

__all__ = ["Capture", "MySQLChangeLog"]

_OFFSET = 0xFFFFFFFF
_BY_STATEMENT = "was changed by a statement"
_TRIES = 10


class MySQLChangeLog(CapturedLog[Capture, CapturedTable]):
    """One captured server. It knows tables as the log has them behind the position, perhaps without the last
    columns that they have now."""

    text_format = TEXT_FORMAT
    extra = "mysql"

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture, capture.tables)
        # Tasks get it: a method of this object would send them its connection.
        self._charsets = Charsets(partial(connect, capture.address))
        self._same_log = SameLog(self._connect, capture.name, self.name)
        self._file_times = FileTimes(self._connect)
        self._cascades: Mapping[str, Sequence[Cascade]] | None = None
        self._idle: tuple[int, int] | None = None
        """A position and how far the log was when there was nothing to take behind it."""

    @property
    def name(self) -> str:
        return f"{self._capture.server} capture {self._capture.name}"

    def input_ids(self) -> frozenset[str]:
        arguments = self._capture.address.arguments
        return frozenset({f"mariadb {arguments['host']}:{arguments['port']} {self._capture.name}"})

    def _may_be_lake_column(self, table: str, column: str) -> bool:
        """Whether the lake's table has a column, or may have it."""
        return table not in self._lake_columns or column.lower() in self._lake_columns[table]

    def _marker_entry(self, table: CapturedTable, since: int) -> str:
        lacks_columns = self._capture.keeps_columns and not all(
            self._may_be_lake_column(table.name, column.name) for column in table.columns
        )
        return entry_of(table, since, lacks_columns=lacks_columns)

    def begin(self, reader: str) -> LogPosition:  # noqa: ARG002
        """Nothing is kept at the server, so every reader may begin anywhere."""
        return self._on_connection(self._begin_position)

    def _begin_position(self, connection: Any) -> LogPosition:
        check_server(connection, self._capture.name)
        file, offset = committed_end(connection)
        flavor = flavor_of(connection)
        transactions = flavor.transactions_before(connection, self._connect, file, offset)
        file_id = file_identity(self._connect, file)
        if transactions is None or file_id is None:
            raise log_lost_error(self.name, f"the binary log {file} is gone")
        tables = self._unchanged_tables(connection, exactly=True)
        self._tables = {table.name: table for table in tables}
        point = point_of(file, offset)
        position = LogPosition(
            log=flavor.log_name(connection),
            point=point,
            marker={
                FILE: file,
                FILE_ID: file_id,
                GTID: gtid_text(transactions | last_mark(self._connect, file, offset)),
                **history_entry(flavor.history_now(connection, transactions)),
                **{table.name: self._marker_entry(table, point) for table in tables},
            },
            bulk=BulkProgress(pending={table.name: self._chunks(connection, table) for table in tables}),
        )
        self._same_log.record_verified_position(position)
        return position

    def _unchanged_tables(self, connection: Any, *, exactly: bool = False) -> list[CapturedTable]:
        """The captured tables as they are now, with the columns and keys that the definition found.

        Args:
            exactly: otherwise, with `keeps_columns`, columns may have come that the lake's table does not
                take, or gone.

        Raises:
            IngestError: `CAPTURED_TABLE_CHANGED`.
        """
        existing = read_tables(connection)
        tables = []
        for table in self._capture.tables:
            now = existing.get(table.name)
            fits = now is not None and (
                has_same_key_and_columns(now, table, partial(self._may_be_lake_column, table.name))
                if self._capture.keeps_columns and not exactly
                else now.fingerprint == table.fingerprint
            )
            if now is None or not fits:
                outdated = (
                    definitions_outdated_error if self._capture.follows_changes else table_changed_error
                )
                raise outdated(table.name, "was dropped" if now is None else "was changed")
            tables.append(now)
        return tables

    def resume(self, position: LogPosition, anew: Collection[str] = ()) -> LogPosition:
        return self._on_connection(lambda connection: self._resume(connection, position, anew))

    def _resume(self, connection: Any, position: LogPosition, anew: Collection[str]) -> LogPosition:
        """New tables and those with other columns are copied, unless these are ignored behind the others."""
        position = self._same_log.verified_position(connection, position)
        tables = self._unchanged_tables(connection)
        new = [table.name for table in tables if table.name not in position.marker]
        changed = []
        for table in tables:
            if table.name in new:
                continue
            captured = self._table_at_position(table, position)
            self._tables[table.name] = captured or table
            if captured is None:
                changed.append(table.name)
        copied = {*new, *changed, *(self._tables.keys() & {*anew})}
        if not copied and relations_of(position) <= self._tables.keys():
            return position
        if (new or changed) and not self._capture.follows_changes:
            raise table_changed_error((new or changed)[0], "was added" if new else "was changed")
        return self._position_with_copies(connection, position, copied)

    def _table_at_position(self, table: CapturedTable, position: LogPosition) -> CapturedTable | None:
        """The table with the columns that the log has behind the position; None: it must be copied."""
        known = fingerprint_at(position, table.name)
        if not self._capture.keeps_columns:
            return table if table.fingerprint == known else None
        captured = without_last_columns(table, columns_of(known))
        if captured is None:
            before = self._tables[table.name]
            is_unread = before.fingerprint == columns_of(known) and table.name not in position.bulk.pending
            # The statement that changed it is not read yet, and is reported when it is.
            return before if is_unread else None
        others = table.logged[len(captured.logged) :]
        return (
            None if any(self._may_be_lake_column(table.name, column.name) for column in others) else captured
        )

    def _ignored_columns(self) -> dict[str, Collection[str]]:
        if not self._capture.keeps_columns:
            return {}
        return {
            name: self._lake_columns[name] - {column.name.lower() for column in table.logged}
            for name, table in self._tables.items()
            if name in self._lake_columns
        }

    def _position_with_copies(
        self, connection: Any, position: LogPosition, copied: Collection[str]
    ) -> LogPosition:
        """The position from which some of the tables are copied from their beginning.

        Raises:
            IngestError: `CAPTURED_TABLE_CHANGED`.
            DefinitionError: `CAPTURED_TABLE_NOT_LOGGED`.
        """
        # Columns are read behind this place: a statement that changes them later is in the log behind it.
        tables: dict[str, CapturedTable] = {}
        for _ in range(_TRIES):
            before = [table.fingerprint for table in self._unchanged_tables(connection)]
            since = point_of(*committed_end(connection)) + self._same_log.shift
            tables = {table.name: table for table in self._unchanged_tables(connection)}
            if [table.fingerprint for table in tables.values()] == before:
                break
        else:
            raise table_changed_error(next(iter(copied)), "changed again and again")
        self._cascades = None
        for name in copied:
            with outdated_if_refused():
                require_known_types(tables[name], self._capture.name)
                require_logged(connection, tables[name], self._capture.name, self._tables_with_cascades())
        # The log has these columns behind the place; of tables that are not copied, as before.
        self._tables |= {name: tables[name] for name in copied}
        gone = relations_of(position) - tables.keys()
        kept = {name: text for name, text in position.marker.items() if name not in gone}
        return replace(
            position,
            marker=kept | {name: self._marker_entry(tables[name], since) for name in copied},
            bulk=position.bulk.copied_again(
                tables.keys() - set(copied),
                {name: self._chunks(connection, tables[name]) for name in copied},
            ),
        )

    def read(self, after: LogPosition, max_events: int) -> LogBatch:
        batch = self._on_connection(lambda connection: self._read(connection, after, max_events))
        return replace(batch, moved=self._same_log.take_move())

    def _read(self, connection: Any, after: LogPosition, max_events: int) -> LogBatch:
        after = self._same_log.verified_position(connection, after)
        file, offset = log_end(connection)
        end = point_of(file, offset) + self._same_log.shift
        nothing = LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=True)
        if (after.point, end) == self._idle:
            return nothing
        if end < after.point:
            self._same_log.require(connection, after)
        if after.point == end:
            return nothing
        reader = self._read_log(connection, after, max_events)
        if reader.has_new_tables and self._capture.follows_changes:
            new = self._new_tables.take(name for name, table in read_tables(connection).items() if table.keys)
            if new is not None:
                raise definitions_outdated_error(new, "was created")
        if reader.changed and reader.point == after.point:
            return self._batch_of_copies_again(connection, after, reader)
        rows, caught_up = reader.table(), reader.is_at_end
        # All that the log had when its end was asked for is read, also what is no transaction.
        if caught_up and reader.point < end <= max(reader.reached, after.point):
            reader.file, reader.point = file, end
        if caught_up and not rows.num_rows and not after.bulk.pass_at:
            is_near = (
                not reader.ignored
                and reader.file == after.marker[FILE]
                and reader.point - after.point < IDLE_BYTES
            )
            if is_near:
                self._idle = (after.point, end)
                return nothing
        marker = {
            **without_history(after.marker),
            FILE: reader.file,
            FILE_ID: reader.file_ids[reader.file],
            GTID: gtid_text(reader.gtid),
            **history_entry(reader.history),
            **prepared_entry(reader.prepared),
        }
        return LogBatch(
            rows=rows,
            position=replace(after, point=reader.point, marker=marker),
            caught_up=caught_up,
            source_ms=None if reader.committed_s is None else reader.committed_s * 1000,
            ignored=ignored_column_reasons(reader.ignored),
        )

    def _batch_of_copies_again(self, connection: Any, after: LogPosition, reader: LogReader) -> LogBatch:
        """What comes next in the log changes tables in a way that it does not show."""
        if not reader.how and not self._capture.follows_changes:
            raise table_changed_error(reader.changed[0], _BY_STATEMENT)
        before = {name: self._tables[name].fingerprint for name in reader.changed}
        position = self._position_with_copies(connection, after, reader.changed)
        stopped_at = f"{reader.file} {reader.point & _OFFSET}"
        others = {
            name: stopped_at for name, known in before.items() if self._tables[name].fingerprint != known
        }
        code = ReasonCode.ROWS_CHANGED_WITHOUT_LOG
        return LogBatch(
            rows=ARROW_SCHEMA.empty_table(),
            position=position,
            caught_up=False,
            copied_again={
                name: Reason.of(code, relation=name, change=reader.how or _BY_STATEMENT)
                for name in reader.changed
            },
            ignored=ignored_column_reasons(others),
        )

    def _read_log(self, connection: Any, after: LogPosition, max_events: int) -> LogReader:
        """By a connection of its own, which the server closes after it."""
        flavor = flavor_of(connection)
        reader = LogReader(
            charsets=self._charsets,
            tables={name: (table, since_when(after, name)) for name, table in self._tables.items()},
            file=after.marker[FILE],
            file_ids={after.marker[FILE]: after.marker[FILE_ID]},
            point=after.point,
            flavor=flavor,
            gtid=flavor.transactions_of(after.marker[GTID]),
            history=history_at(after, flavor.history),
            shift=self._same_log.shift,
            ignores_case=ignores_case(connection),
            cascades=self._cascades_by_parent(connection),
            passes_over=self._ignored_columns(),
            earlier=partial(events_from, self._connect),
            prepared=prepared_at(after),
        )
        log = self._connect()
        try:
            # The address may lead to another server since `connection` was opened.
            if flavor.log_name(log) != server_of(after):
                raise SourceUnreachableError(
                    "CAPTURE_SERVER_SWITCHED",
                    f"The url of {self.name} leads to another server than a moment ago",
                    hint="it is looked at again",
                    sqlstate="08006",
                    retryable=True,
                )
            reader.read(dump_events(log, reader.file, after.point & _OFFSET, with_files=True), max_events)
        finally:
            self._disconnect(log)
        return reader

    def _tables_with_cascades(self) -> Collection[str]:
        return self._tables if self._capture.follows_cascades else ()

    def _cascades_by_parent(self, connection: Any) -> Mapping[str, Sequence[Cascade]]:
        """They are asked for once: a statement that changes them is in the log, and its table is copied."""
        if not self._capture.follows_cascades:
            return {}
        if self._cascades is None:
            logs_cascades = flavor_of(connection).logs_cascades(connection)
            self._cascades = cascades_by_parent(
                [
                    key
                    for table in ([] if logs_cascades else self._tables.values())
                    for key in unlogged_foreign_keys(connection, table.schema, table.identifier, table.name)
                ]
            )
        return self._cascades

    def _read_chunk(self, connection: Any, table: CapturedTable, chunk: str) -> tuple[pa.Table, int]:
        shift = self._same_log.shift
        return copy_chunk(self._same_log.checked_connection(connection), self._charsets, table, chunk, shift)

    def _chunks(self, connection: Any, table: CapturedTable) -> tuple[str, ...]:
        return chunks_of(connection, table, self._capture.copy_tasks)

    def _chunk_reader(self, connection: Any, chunks: tuple[tuple[CapturedTable, str], ...]) -> ChunkReader:
        server = instance_of(self._same_log.checked_connection(connection))
        return ChunkReader(self._capture.name, self._charsets, chunks, server, self._same_log.shift)

    def _log_end(self, connection: Any) -> int:
        return point_of(*log_end(connection)) + self._same_log.shift

    def _check_readable(self, connection: Any, relations: Collection[str]) -> None:
        self._unchanged_tables(connection)
        for relation in relations:
            fetch(connection, f"SELECT 1 FROM {self._tables[relation].identifier} LIMIT 1")

    def completed_rows(self, relations: Sequence[str], position: LogPosition) -> pa.Table:
        """Rows that a table had before its copy was planned are those of a table that it was once."""
        removals = [truncate_row(name, since_when(position, name), None, LAST_SEQUENCE) for name in relations]
        return pa.concat_tables([*removals, completed_rows(relations, position.point)])

    def acknowledge(self, position: LogPosition) -> None:
        """The server forgets by age, not by what was read."""

    def open_transactions(self) -> Sequence[Reason]:
        with self._translated_errors(), closing(self._connect()) as connection:
            return awaited_transactions(connection)

    def lag(self, position: LogPosition) -> Mapping[str, int]:
        return self._on_connection(lambda connection: lag_behind(connection, position))

    def kept_logs(self, position: LogPosition | None) -> Sequence[KeptLog]:
        """The file of the log from which a position goes on."""
        if position is None:
            return ()
        kept = self._on_connection(lambda connection: kept_log(connection, self._file_times, position))
        return () if kept is None else (kept,)

    def check_prerequisites(self) -> str:
        return self._on_connection(
            lambda connection: check_prerequisites(
                connection, self._capture.name, self._unchanged_tables(connection)
            )
        )

    def _connect(self) -> Any:
        return connect(self._capture.address)

    def _translated_errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._capture.name)

    def _forget_server(self) -> None:
        self._same_log.forget()
        self._file_times = FileTimes(self._connect)
        self._idle = self._cascades = None

    def _disconnect(self, connection: Any) -> None:
        connection._force_close()  # noqa: SLF001
