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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import IngestError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import CHANGE_LOG_LIMITS, LogBatch, RateLimits
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.changed_tables import definitions_outdated
from tautochrone.sources.capture.chunks import chunks_for_tasks
from tautochrone.sources.capture.copied_rows import completed_rows
from tautochrone.sources.capture.copy_job import connection_lost, copy_by_tasks
from tautochrone.sources.capture.log_schema import ARROW_SCHEMA, SPARK_SCHEMA
from tautochrone.sources.capture.new_tables import NewTables
from tautochrone.sources.mysql.binlog import dump, point_of
from tautochrone.sources.mysql.bulk import CHUNK_BYTES, ChunkReader, chunks_of, copy_chunk
from tautochrone.sources.mysql.connection import Address, connect, explained, fetch
from tautochrone.sources.mysql.flavors import flavor_of
from tautochrone.sources.mysql.foreign_keys import Cascade, cascades_by_parent, unlogged_foreign_keys
from tautochrone.sources.mysql.reader import LogReader, table_changed
from tautochrone.sources.mysql.rows import truncate_row
from tautochrone.sources.mysql.server import (
    check_server,
    examine,
    ignores_case,
    log_end,
    thread_ages,
)
from tautochrone.sources.mysql.tables import CapturedTable, read_tables, require_logged

__all__ = ["Capture", "MySQLChangeLog"]

T = TypeVar("T")
IDLE_BYTES = 16 * 1024 * 1024
"""So far the log may run ahead without changes of captured tables until the table's position follows. Each
such move is a commit of the log table."""
_FILE, _GTID = "file", "gtid"
_OFFSET = 0xFFFFFFFF
_LAST = 2**63 - 1
"""A sequence behind all rows of a transaction."""
_OTHER_SERVER = "this is another server: its server_id or server_uuid differs"
_AGAIN = "copy the database again: --full-refresh of the log table and of the captured tables"


@dataclass(frozen=True, slots=True)
class Capture:
    """A server and the tables that are taken from it.

    Attributes:
        follows_changes: a new table, or one that a statement changes, is copied; otherwise refused.
        follows_cascades: a table that a foreign key may have changed without a trace is copied again.
        copy_tasks: so many tasks of Spark copy at once, each by a connection; 0: the driver copies.
        server: `MariaDB` or `MySQL`.
        patterns, exclude: what the names of its tables match.
    """

    name: str
    address: Address
    tables: tuple[CapturedTable, ...]
    follows_changes: bool = True
    follows_cascades: bool = False
    copy_tasks: int = 8
    server: str = "MariaDB"
    patterns: Sequence[str] = ()
    exclude: Sequence[str] = ()


class MySQLChangeLog:
    """One captured server. It connects when it is first asked for something."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._tables = {table.name: table for table in capture.tables}
        self._connection: Any = None
        self._new_tables = NewTables(self._tables, capture.patterns, capture.exclude)
        self._is_verified = False
        self._cascades: Mapping[str, Sequence[Cascade]] | None = None
        self._idle: tuple[int, int] | None = None
        """A position and how far the log was when there was nothing to take behind it."""

    @property
    def name(self) -> str:
        return f"{self._capture.server} capture {self._capture.name}"

    def input_ids(self) -> frozenset[str]:
        arguments = self._capture.address.arguments
        return frozenset({f"mariadb {arguments['host']}:{arguments['port']} {self._capture.name}"})

    def rate_limits(self) -> RateLimits:
        return CHANGE_LOG_LIMITS

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def relations(self) -> Sequence[str]:
        return tuple(self._tables)

    def begin(self, reader: str) -> LogPosition:  # noqa: ARG002
        """Nothing is kept at the server, so every reader may begin anywhere."""
        return self._ask(self._begin)

    def _begin(self, connection: Any) -> LogPosition:
        check_server(connection, self._capture.name)
        file, offset = _committed_end(connection)
        flavor = flavor_of(connection)
        transactions = flavor.transactions_before(connection, file, offset)
        if transactions is None:
            raise self._lost(f"the binary log {file} is gone")
        tables = self._unchanged_tables(connection)
        point = point_of(file, offset)
        return LogPosition(
            log=flavor.log_name(connection),
            point=point,
            marker={
                _FILE: file,
                _GTID: _gtid_text(transactions),
                **{table.name: _entry(table, point) for table in tables},
            },
            bulk=BulkProgress(pending={table.name: self._chunks(connection, table) for table in tables}),
        )

    def _unchanged_tables(self, connection: Any) -> list[CapturedTable]:
        """The captured tables as they are now, with the columns and keys that the definition found.

        Raises:
            IngestError: `CAPTURED_TABLE_CHANGED`.
        """
        existing = read_tables(connection)
        for name, table in self._tables.items():
            now = existing.get(name)
            if now is None or now.fingerprint != table.fingerprint:
                change = "was dropped" if now is None else "was changed"
                raise (definitions_outdated if self._capture.follows_changes else table_changed)(name, change)
        return [existing[name] for name in self._tables]

    def resume(self, position: LogPosition, anew: Collection[str] = ()) -> LogPosition:
        return self._ask(lambda connection: self._resume(connection, position, anew))

    def _resume(self, connection: Any, position: LogPosition, anew: Collection[str]) -> LogPosition:
        """New tables and those with other columns are copied."""
        tables = self._unchanged_tables(connection)
        new = [table.name for table in tables if table.name not in position.marker]
        changed = [
            table.name
            for table in tables
            if table.name not in new and _fingerprint(position, table.name) != table.fingerprint
        ]
        copied = {*new, *changed, *(self._tables.keys() & {*anew})}
        if not copied and position.marker.keys() <= {_FILE, _GTID, *self._tables}:
            return position
        if (new or changed) and not self._capture.follows_changes:
            raise table_changed((new or changed)[0], "was added" if new else "was changed")
        return self._planned_again(connection, position, copied)

    def _planned_again(self, connection: Any, position: LogPosition, copied: Collection[str]) -> LogPosition:
        """The position from which some of the tables are copied from their beginning.

        Raises:
            IngestError: `CAPTURED_TABLE_CHANGED`.
            DefinitionError: `CAPTURED_TABLE_NOT_LOGGED`.
        """
        # Columns are read behind this place: a statement that changes them later is in the log behind it.
        since = point_of(*_committed_end(connection))
        self._cascades = None
        tables = {table.name: table for table in self._unchanged_tables(connection)}
        for name in copied:
            require_logged(connection, tables[name], self._capture.name, self._followed())
        kept = {name: text for name, text in position.marker.items() if name in {_FILE, _GTID, *tables}}
        return replace(
            position,
            marker=kept | {name: _entry(tables[name], since) for name in copied},
            bulk=position.bulk.copied_again(
                tables.keys() - set(copied),
                {name: self._chunks(connection, tables[name]) for name in copied},
            ),
        )

    def read(self, after: LogPosition, max_events: int) -> LogBatch:
        return self._ask(lambda connection: self._read(connection, after, max_events))

    def _read(self, connection: Any, after: LogPosition, max_events: int) -> LogBatch:
        file, offset = log_end(connection)
        end = point_of(file, offset)
        nothing = LogBatch(rows=ARROW_SCHEMA.empty_table(), position=after, caught_up=True)
        if (after.point, end) == self._idle:
            return nothing
        self._verify(connection, after, end)
        if after.point == end:
            return nothing
        reader = self._read_log(connection, after, max_events)
        if reader.has_new_tables and self._capture.follows_changes:
            new = self._new_tables.take(name for name, table in read_tables(connection).items() if table.keys)
            if new is not None:
                raise definitions_outdated(new, "was created")
        if reader.changed and reader.point == after.point:
            if not reader.by_cascade and not self._capture.follows_changes:
                raise table_changed(reader.changed[0], "was changed by a statement")
            position = self._planned_again(connection, after, reader.changed)
            return replace(nothing, position=position, caught_up=False)
        rows, caught_up = reader.table(), reader.is_at_end
        # All that the log had when its end was asked for is read, also what is no transaction.
        if caught_up and reader.point < end <= max(reader.reached, after.point):
            reader.file, reader.point = file, end
        if caught_up and not rows.num_rows and not after.bulk.pass_at:
            is_near = reader.file == after.marker[_FILE] and reader.point - after.point < IDLE_BYTES
            if is_near:
                self._idle = (after.point, end)
                return nothing
        marker = {**after.marker, _FILE: reader.file, _GTID: _gtid_text(reader.gtid)}
        return LogBatch(
            rows=rows,
            position=replace(after, point=reader.point, marker=marker),
            caught_up=caught_up,
            source_ms=None if reader.committed_s is None else reader.committed_s * 1000,
        )

    def _read_log(self, connection: Any, after: LogPosition, max_events: int) -> LogReader:
        """By a connection of its own, which the server closes after it."""
        flavor = flavor_of(connection)
        reader = LogReader(
            tables={name: (table, _since(after, name)) for name, table in self._tables.items()},
            file=after.marker[_FILE],
            point=after.point,
            flavor=flavor,
            gtid=flavor.transactions_of(after.marker[_GTID]),
            ignores_case=ignores_case(connection),
            cascades=self._cascades_by_parent(connection),
        )
        log = connect(self._capture.address)
        try:
            # The address may lead to another server since `connection` was opened.
            if flavor.log_name(log) != after.log:
                raise self._lost(_OTHER_SERVER)
            reader.read(dump(log, reader.file, after.point & _OFFSET), max_events)
        finally:
            log._force_close()  # noqa: SLF001
        return reader

    def _followed(self) -> Collection[str]:
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

    def _verify(self, connection: Any, after: LogPosition, end: int) -> None:
        """Is it the log that the table was filled from, and is everything there that follows?

        Raises:
            IngestError: `SOURCE_LOG_LOST`; `CAPTURE_SERVER_NOT_USABLE`.
        """
        if end < after.point:
            raise self._lost("the server's log ends before: it was restored, or its log was reset")
        if self._is_verified:
            return
        check_server(connection, self._capture.name)
        flavor = flavor_of(connection)
        if flavor.log_name(connection) != after.log:
            raise self._lost(_OTHER_SERVER)
        file = after.marker[_FILE]
        difference = flavor.difference(
            connection,
            lambda: connect(self._capture.address),
            file,
            after.point & _OFFSET,
            flavor.transactions_of(after.marker[_GTID]),
        )
        if difference:
            raise self._lost(difference)
        # A server that crashes goes on in a new file, and may have lost the end of the one before.
        sizes = _log_sizes(connection)
        for point in after.bulk.pass_at.values():
            if sizes.get(point >> 32, 0) < point & _OFFSET:
                raise self._lost("the server crashed and lost transactions whose rows were copied")
        self._is_verified = True

    def _lost(self, reason: str) -> IngestError:
        return IngestError(
            "SOURCE_LOG_LOST",
            f"{self.name} cannot go on: {reason}",
            hint=f"{_AGAIN}; binlog_expire_logs_seconds says how long the server keeps its log",
        )

    def read_chunk(self, relation: str, chunk: str) -> tuple[pa.Table, int]:
        return self._ask(lambda connection: copy_chunk(connection, self._tables[relation], chunk))

    def _chunks(self, connection: Any, table: CapturedTable) -> tuple[str, ...]:
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
        opened, server = self._ask(
            lambda connection: (connection, flavor_of(connection).log_name(connection))
        )
        staged = copy_by_tasks(
            session,
            self._capture.name,
            len(tables),
            self._capture.copy_tasks,
            ChunkReader(self._capture.name, self._capture.address, tables, server),
            stage,
            lambda: self._ask(lambda connection: self._check_readable(connection, tables)),
            "mysql",
        )
        return staged, self._ask(lambda connection: self._end_of_copy(connection, opened))

    def _end_of_copy(self, connection: Any, opened: Any) -> int:
        """A connection ends when the server crashes, so what was read while it was open is not lost."""
        if connection is not opened:
            raise connection_lost(self.name)
        return point_of(*log_end(connection))

    def _check_readable(self, connection: Any, chunks: Sequence[tuple[CapturedTable, str]]) -> None:
        """Raises what is wrong with the database, its tables or rights."""
        self._unchanged_tables(connection)
        for table, _chunk in chunks:
            fetch(connection, f"SELECT 1 FROM {table.identifier} LIMIT 1")

    def completed_rows(self, relations: Sequence[str], position: LogPosition) -> pa.Table:
        """Rows that a table had before its copy was planned are those of a table that it was once."""
        removals = [truncate_row(name, _since(position, name), None, _LAST) for name in relations]
        return pa.concat_tables([*removals, completed_rows(relations, position.point)])

    def acknowledge(self, position: LogPosition) -> None:
        """The server forgets by age, not by what was read."""

    def open_transactions(self) -> Sequence[Reason]:
        with explained(self._capture.name):
            connection = connect(self._capture.address)
            try:
                owned = flavor_of(connection).owned_transactions(connection)
                ages = thread_ages(connection) if owned else {}
            finally:
                connection.close()
        return [
            Reason.of(
                ReasonCode.COPY_WAITS_FOR_TRANSACTION,
                transaction=gtid,
                session=f"thread {thread}",
                seconds=ages.get(thread),
            )
            for gtid, thread in owned
        ]

    def lag(self, position: LogPosition) -> Mapping[str, int]:
        return self._ask(lambda connection: {"bytes": _behind(connection, position)})

    def examine(self) -> str:
        return self._ask(
            lambda connection: examine(connection, self._capture.name, self._unchanged_tables(connection))
        )

    def close(self) -> None:
        # The next one may lead to another server.
        self._is_verified, self._idle, self._cascades = False, None, None
        if self._connection is not None:
            self._connection._force_close()  # noqa: SLF001
            self._connection = None

    def _ask(self, question: Callable[[Any], T]) -> T:
        """After an error the connection is not used again."""
        try:
            with explained(self._capture.name):
                if self._connection is None:
                    self._connection = connect(self._capture.address)
                return question(self._connection)
        except Exception:
            self.close()
            raise


def _committed_end(connection: Any) -> tuple[str, int]:
    """A place of which everything before is visible to all snapshots from now on."""
    try:
        return flavor_of(connection).snapshot(connection)
    finally:
        connection.query("ROLLBACK")


def _entry(table: CapturedTable, since: int) -> str:
    return f"{table.fingerprint}@{since}"


def _fingerprint(position: LogPosition, table: str) -> str:
    return position.marker[table].partition("@")[0]


def _since(position: LogPosition, table: str) -> int:
    return int(position.marker[table].partition("@")[2])


def _gtid_text(gtids: Mapping[str, str]) -> str:
    return ",".join(sorted(gtids.values()))


def _behind(connection: Any, position: LogPosition) -> int:
    number, offset = position.point >> 32, position.point & _OFFSET
    return sum(size for file, size in _log_sizes(connection).items() if file >= number) - offset


def _log_sizes(connection: Any) -> dict[int, int]:
    """By number of the file."""
    return {point_of(row[0], 0) >> 32: int(row[1]) for row in fetch(connection, "SHOW BINARY LOGS")}
