"""The port of sinks over PostgreSQL: a checkpoint is shown by one transaction, together with its pointer.

1. `write` copies the changed rows into a temporary table of the connection. Nobody else sees it.
2. `prepare` compares what is there with what was sent, by content.
3. `commit` locks the row of the sink, compares the fence, applies the temporary tables, writes the pointer,
   and commits, all in one transaction.
4. A new owner raises the fence in the same row: it waits for a commit that is under way, and each later one
   of the older owner is refused. A commit of which the answer was lost arrived if the pointer is there.

Temporary tables end with their connection. A transaction that loses it is aborted, unless the pointer says
that it was committed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from psycopg import sql

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.sink import (
    Capabilities,
    Chunk,
    Digest,
    Intent,
    Operation,
    Published,
    Recovered,
    RowDifference,
    TransactionId,
    TransactionState,
)
from tautochrone.sinks.common.steps import (
    TransactionSteps,
    differing_rows,
    require_fence,
    require_visible,
    same_content,
    signed_frames,
    total_digest,
)
from tautochrone.sinks.json_rows import comparable, row_number
from tautochrone.sinks.postgresql.database import Database
from tautochrone.sinks.postgresql.options import PostgresqlOptions
from tautochrone.sinks.postgresql.tables import HASH, MirroredTable, Tables

__all__ = ["PostgresqlSink"]

_S = TransactionState
_OPEN = (_S.INITIALIZED, _S.PREPARED)


class PostgresqlSink(TransactionSteps):
    """See the module docstring."""

    def __init__(self, name: str, options: PostgresqlOptions) -> None:
        self.name = name
        self._options = options
        self._database = Database(name, options)
        self._tables = Tables(name, options)
        self._row = sql.Identifier(options.schema, "taut_sinks")
        self._mirrored: dict[TableName, MirroredTable] = {}
        self._states: dict[TransactionId, TransactionState] = {}
        self._generations: dict[TransactionId, int] = {}
        self._intents: dict[TransactionId, Intent] = {}
        self._staged: dict[TransactionId, dict[TableName, str]] = {}
        with self._database.transaction() as cursor:
            cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (options.schema,))
            if cursor.fetchone() is None:
                cursor.execute(
                    sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(options.schema))
                )
            cursor.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, fence bigint NOT NULL, "
                    "published text, published_at timestamptz)"
                ).format(self._row)
            )
            cursor.execute(
                sql.SQL("INSERT INTO {} VALUES (%s, 0, NULL, NULL) ON CONFLICT DO NOTHING").format(self._row),
                (name,),
            )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(resumable=False)

    def published(self) -> Published | None:
        with self._database.transaction() as cursor:
            return self._read(cursor)[1]

    def highest_fence(self) -> Fence:
        with self._database.transaction() as cursor:
            return self._read(cursor)[0]

    def fence(self, fence: Fence) -> None:
        with self._database.transaction() as cursor:
            self._lock(cursor, fence)
            statement = sql.SQL("UPDATE {} SET fence = %s WHERE name = %s").format(self._row)
            cursor.execute(statement, (int(fence), self.name))

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> None:
        with self._database.transaction() as cursor:
            self._lock(cursor, fence)
            self._mirrored[table] = self._tables.ensure(cursor, table, schema, key)

    # -- one transaction --------------------------------------------------------------------------

    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        state = self._next(Operation.BEGIN, transaction, transaction.fence)
        self._states = {key: old for key, old in self._states.items() if old in _OPEN}
        self._states[transaction] = state
        self._generations[transaction] = self._database.generation
        self._intents[transaction] = intent
        self._staged.setdefault(transaction, {})
        return state

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[Chunk]:
        known_rows = None if change.carried else change.rows
        return self._stage(transaction, table, signed_frames(change), known_rows)

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[Chunk]:
        return self._stage(transaction, table, [(rows, 1)], None)

    def prepare(self, transaction: TransactionId, chunks: Sequence[Chunk]) -> None:
        state = self._next(Operation.PREPARE, transaction, transaction.fence)
        with self._database.transaction() as cursor:
            arrived = {
                (table, int(number)): Digest(int(rows), str(total))
                for table, staging in self._staged[transaction].items()
                for number, rows, total in self._digests(cursor, staging)
            }
        same_content(self.name, chunks, arrived)
        self._states[transaction] = state

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        state = self._next(Operation.COMMIT, transaction, fence)
        if self._state(transaction) is _S.COMMITTED:
            return
        intent = self._intents[transaction]
        with self._database.transaction() as cursor:
            self._lock(cursor, fence)
            for table, staging in self._staged[transaction].items():
                self._apply(cursor, table, staging, is_replaced=table in intent.replaced)
            cursor.execute(
                sql.SQL("UPDATE {} SET published = %s, published_at = now() WHERE name = %s").format(
                    self._row
                ),
                (json.dumps(intent.as_json()), self.name),
            )
        self._states[transaction] = state
        self._drop(transaction)

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        self._states[transaction] = self._next(Operation.ABORT, transaction, fence)
        self._drop(transaction)

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._require(fence)
        for transaction in [key for key in self._states if self._state(key) in _OPEN]:
            self.abort(transaction, fence)
        return self._recovered(intents)

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

    def close(self) -> None:
        self._database.close()

    # -- the row of the sink ----------------------------------------------------------------------

    def _read(self, cursor: Any, suffix: str = "") -> tuple[Fence, Published | None]:
        statement = sql.SQL("SELECT fence, published FROM {} WHERE name = %s " + suffix).format(self._row)
        cursor.execute(statement, (self.name,))
        fence, text = cursor.fetchone() or (0, None)
        if text is None:
            return Fence(fence), None
        intent = Intent.from_json(json.loads(text))
        return Fence(fence), Published(transaction=intent.transaction, versions=intent.versions)

    def _lock(self, cursor: Any, fence: Fence) -> Published | None:
        """Refuse a lower fence; until the end of the transaction nobody can raise it."""
        highest, published = self._read(cursor, "FOR UPDATE")
        require_fence(self.name, fence, highest)
        return published

    def _require(self, fence: Fence) -> None:
        with self._database.transaction() as cursor:
            self._lock(cursor, fence)

    def _state(self, transaction: TransactionId) -> TransactionState:
        published = self.published()
        if published is not None and published.transaction == transaction:
            return _S.COMMITTED
        state = self._states.get(transaction, _S.UNKNOWN)
        if state in _OPEN and self._generations[transaction] != self._database.generation:
            # The connection was lost, and what was staged with it.
            state = self._states[transaction] = _S.ABORTED
        return state

    # -- rows -------------------------------------------------------------------------------------

    def _table(self, cursor: Any, table: TableName) -> MirroredTable:
        mirrored = self._mirrored.get(table) or self._tables.load(cursor, table)
        if mirrored is None:
            raise SinkError(
                "SINK_ROW_MISSING",
                f"Sink {self.name} has no table for {table}",
                hint=f"`taut sinks --forget {self.name}`: the next run delivers all rows.",
                parameters={"sink": self.name, "table": str(table)},
            )
        self._mirrored[table] = mirrored
        return mirrored

    def _stage(
        self,
        transaction: TransactionId,
        table: TableName,
        signed_rows: Sequence[tuple[Rows, int]],
        known_rows: int | None,
    ) -> list[Chunk]:
        self._next(Operation.WRITE, transaction, transaction.fence)
        chunk_rows = self._options.chunk_rows
        encoder = self._encoder(table)
        # Computed before the database's transaction begins: it must not be idle in it for long.
        staging = self._new_staging(transaction, table)
        chunks: list[Chunk] = []
        for rows, sign in signed_rows:
            batch: list[list[Any]] = []
            for row in encoder.rows.rows(rows, chunk_rows, known_rows):
                batch.append(encoder.values(row))
                if len(batch) == chunk_rows:
                    chunks.append(self._copy(table, staging, encoder, batch, sign, len(chunks)))
                    batch = []
            if batch:
                chunks.append(self._copy(table, staging, encoder, batch, sign, len(chunks)))
        return chunks

    def _encoder(self, table: TableName) -> MirroredTable:
        with self._database.transaction() as cursor:
            return self._table(cursor, table)

    def _new_staging(self, transaction: TransactionId, table: TableName) -> str:
        staged = self._staged[transaction]
        name = staged.get(table) or f"{transaction}_{len(staged)}"
        with self._database.transaction() as cursor:
            mirrored = self._table(cursor, table)
            staging = sql.Identifier("pg_temp", name)
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging))
            cursor.execute(
                sql.SQL(
                    "CREATE TEMPORARY TABLE {} AS SELECT {}, 1::int AS _taut_sign, 0::int AS _taut_chunk "
                    "FROM {} WITH NO DATA"
                ).format(sql.Identifier(name), mirrored.column_list, mirrored.name)
            )
        staged[table] = name
        return name

    def _copy(
        self,
        table: TableName,
        staging: str,
        mirrored: MirroredTable,
        batch: Sequence[list[Any]],
        sign: int,
        number: int,
    ) -> Chunk:
        statement = sql.SQL("COPY {} ({}, _taut_sign, _taut_chunk) FROM STDIN").format(
            sql.Identifier("pg_temp", staging), mirrored.column_list
        )
        with self._database.transaction() as cursor, cursor.copy(statement) as copy:
            self._write_rows(copy, [[*values, sign, number] for values in batch])
        total = sum(sign * int(values[-1][:8], 16) for values in batch)
        return Chunk(table=table, number=number, digest=Digest(len(batch), str(total)))

    def _write_rows(self, copy: Any, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            copy.write_row(row)

    def _digests(self, cursor: Any, staging: str) -> list[tuple[Any, ...]]:
        statement = sql.SQL(
            "SELECT _taut_chunk, count(*), "
            "sum(_taut_sign * ('x' || left({}::text, 8))::bit(32)::bigint) FROM {} GROUP BY _taut_chunk"
        ).format(sql.Identifier(HASH), sql.Identifier("pg_temp", staging))
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def _apply(self, cursor: Any, table: TableName, staging: str, *, is_replaced: bool) -> None:
        mirrored = self._table(cursor, table)
        names = {
            "table": mirrored.name,
            "staging": sql.Identifier("pg_temp", staging),
            "columns": mirrored.column_list,
        }
        cursor.execute(sql.SQL("ANALYZE {staging}").format(**names))
        if is_replaced:
            cursor.execute(sql.SQL("DELETE FROM {table}").format(**names))
        cursor.execute(sql.SQL("SELECT count(*) FROM {staging} WHERE _taut_sign = -1").format(**names))
        (removed,) = cursor.fetchone()
        if removed:
            cursor.execute(
                sql.SQL(
                    "DELETE FROM {table} AS t USING ("
                    "SELECT s.ctid, row_number() OVER (PARTITION BY s._taut_hash) AS n, r.copies "
                    "FROM {table} AS s JOIN (SELECT _taut_hash, count(*) AS copies FROM {staging} "
                    "WHERE _taut_sign = -1 GROUP BY _taut_hash) AS r ON r._taut_hash = s._taut_hash"
                    ") AS d WHERE t.ctid = d.ctid AND d.n <= d.copies"
                ).format(**names)
            )
            if cursor.rowcount != removed:
                lacking = removed - cursor.rowcount
                raise SinkContentError(
                    "SINK_ROW_MISSING",
                    f"Sink {self.name}: {table} lacks {lacking} of {removed} rows to remove",
                    hint="Somebody else changed the table. Drop the schema of the sink and run "
                    f"`taut sinks --forget {self.name}`: the next run delivers all rows.",
                    parameters={"sink": self.name, "table": str(table)},
                )
        cursor.execute(
            sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE _taut_sign = 1"
            ).format(**names)
        )

    def _drop(self, transaction: TransactionId) -> None:
        self._intents.pop(transaction, None)
        generation = self._generations.pop(transaction, 0)
        staged = self._staged.pop(transaction, {})
        if staged and generation == self._database.generation:
            with self._database.transaction() as cursor:
                for name in staged.values():
                    statement = sql.SQL("DROP TABLE IF EXISTS {}")
                    cursor.execute(statement.format(sql.Identifier("pg_temp", name)))

    # -- texts of rows ----------------------------------------------------------------------------

    def _lake_texts(self, table: TableName, rows: Rows) -> Iterator[str]:
        encoder = self._encoder(table).rows
        return (comparable(row) for row in encoder.rows(rows, self._options.chunk_rows))

    def _sink_texts(self, table: TableName, checkpoint: CheckpointNumber) -> Iterator[str]:
        """The rows of a table, read from its columns, at the checkpoint that the same snapshot shows."""
        with self._database.transaction("REPEATABLE READ") as cursor:
            _, published = self._read(cursor)
            require_visible(self.name, None if published is None else published.checkpoint, checkpoint)
            mirrored = self._tables.load(cursor, table)
            if mirrored is None:
                return
            columns = sql.SQL(", ").join(map(sql.Identifier, mirrored.columns))
            with self._database.cursor("taut_audit") as rows:
                rows.itersize = self._options.chunk_rows
                rows.execute(sql.SQL("SELECT {} FROM {}").format(columns, mirrored.name))
                for row in mirrored.read(rows):
                    yield comparable(row)
