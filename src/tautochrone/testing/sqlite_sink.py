"""A sink over one SQLite file: the port's smallest complete adapter, and the one that the tests deliver to.

Tables are SQLite tables (see `sinks.common.mirrored`), read by any SQLite client. Beside them are
`taut_pointer` (what is published), `taut_transactions` and `taut_staged`. Importing this module registers the
format `toy-sqlite`, with the option `path`.

`Mishap`s let tests interrupt an operation in the middle: lose its answer, leave it half done.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from tautochrone.errors import SinkContentError, SinkError, SinkFencedError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    Capabilities,
    Digest,
    Intent,
    Operation,
    Published,
    Recovered,
    SentChunk,
    TransactionId,
    TransactionState,
    next_state,
    require_base,
)
from tautochrone.sinks import register_sink
from tautochrone.sinks.common.errors import database_taken_error, object_missing_error, table_changed_error
from tautochrone.sinks.common.mirrored import NameRules, mirror_name
from tautochrone.sinks.common.pointer_sink import Content, Pointer, TableRecord, change_of

__all__ = ["FORMAT", "ListRows", "Mishap", "MishapError", "SqliteSink", "open_toy_sink"]

FORMAT = "toy-sqlite"
_ADDED, _REMOVED, _WHOLE = "added", "removed", "whole"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS taut_pointer (id INTEGER PRIMARY KEY CHECK (id = 1), fence INTEGER NOT NULL,
    sink TEXT, lake TEXT, published TEXT);
CREATE TABLE IF NOT EXISTS taut_transactions (id TEXT PRIMARY KEY, fence INTEGER NOT NULL,
    state TEXT NOT NULL, intent TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS taut_rebuilds (name TEXT PRIMARY KEY, columns TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS taut_staged (tx TEXT NOT NULL, name TEXT NOT NULL, chunk INTEGER NOT NULL,
    sign TEXT NOT NULL, row TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS taut_staged_by_transaction ON taut_staged (tx, name);
INSERT OR IGNORE INTO taut_pointer (id, fence) VALUES (1, 0);
"""


class Mishap(StrEnum):
    """What goes wrong once, at the next moment that it can."""

    HALF_WRITTEN = "half written"
    ROW_LOST = "row lost"
    HALF_COMMITTED = "half committed"
    HALF_ABORTED = "half aborted"
    ANSWER_LOST = "answer lost"


class MishapError(Exception):
    """The connection broke: the caller cannot know what happened."""


@dataclass(frozen=True)
class ListRows:
    """Rows without Spark: what an adapter that writes from the driver uses of a DataFrame."""

    columns: list[str]
    rows: Sequence[tuple[Any, ...]]

    def toLocalIterator(self) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        return iter(self.rows)


class SqliteSink:
    """See the module docstring.

    Args:
        path: the SQLite file; created with its folder.
        chunk_rows: rows of a chunk at most.
        only_looks: nothing is created or written.
    """

    mishaps: ClassVar[dict[str, list[Mishap]]] = {}
    """By path of the file: what shall go wrong next in this process."""

    def __init__(
        self,
        name: str,
        path: str,
        *,
        chunk_rows: int = 1000,
        capabilities: Capabilities | None = None,
        only_looks: bool = False,
    ) -> None:
        self.name = name
        self.path = path
        self._chunk_rows = chunk_rows
        self._capabilities = capabilities or Capabilities()
        if only_looks:
            address = f"{Path(path).absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.executescript(_SCHEMA)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def published(self) -> Published | None:
        return self._pointer().published

    def _pointer(self) -> Pointer:
        with self._missing_tables():
            row = self._connection.execute("SELECT published FROM taut_pointer").fetchone()
        return Pointer.parse(None if row is None else row[0])

    def claim(self, lake: str) -> None:
        with self._write(self.highest_fence()) as connection:
            owner = connection.execute(
                "SELECT sink, lake FROM taut_pointer WHERE sink IS NOT NULL"
            ).fetchone()
            if owner is not None and owner != (self.name, lake):
                raise database_taken_error(self.name, lake, f"the file {self.path}", [owner])
            connection.execute("UPDATE taut_pointer SET sink = ?, lake = ?", (self.name, lake))

    def mirror_of(self, table: TableName) -> str | None:
        name = _mirror_table_name(table)
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
        return None if self._connection.execute(query, (name,)).fetchone() is None else name

    def drop_mirror(self, table: TableName) -> None:
        with self._write(self.highest_fence()) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {_sql_name(table)}")

    def rename_mirror(self, old: TableName, new: TableName) -> None:
        if self.mirror_of(old) is None:
            return
        with self._write(self.highest_fence()) as connection:
            connection.execute(f"ALTER TABLE {_sql_name(old)} RENAME TO {_sql_name(new)}")
            pointer = self._pointer()
            if pointer.intent is not None:
                renamed = pointer.renamed(old, new).text()
                connection.execute("UPDATE taut_pointer SET published = ?", (renamed,))

    def changed_tables(
        self,
        tables: Sequence[TableName],
        max_rows: int | None,  # noqa: ARG002
    ) -> Mapping[TableName, Reason]:
        changes = {table: self._change(table) for table in tables}
        return {table: change for table, change in changes.items() if change is not None}

    def _change(self, table: TableName) -> Reason | None:
        record = self._pointer().records.get(table)
        content = self._content(table)
        identity = None if content is None else ""
        is_whole = record is not None and set(record.columns) <= set(self._columns(table))
        return change_of(
            record, identity, None, lambda: content == Content(), lambda: content if is_whole else None
        )

    def _content(self, table: TableName) -> Content | None:
        """The rows of a table; None: there is no such table. All of them are read, whatever their number."""
        columns = self._columns(table)
        if not columns:
            return None
        total = Content()
        for row in self._connection.execute(f"SELECT * FROM {_sql_name(table)}"):
            # A column that came to the table is NULL in older rows.
            named = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
            total += Content(1, int(_row_digest([json.dumps(named, sort_keys=True)]).hash, 16))
        return total

    def highest_fence(self) -> Fence:
        row = self._connection.execute("SELECT fence FROM taut_pointer").fetchone()
        return Fence(0 if row is None else row[0])

    def fence(self, fence: Fence) -> None:
        with self._write(fence) as connection:
            connection.execute("INSERT OR IGNORE INTO taut_pointer (id, fence) VALUES (1, 0)")
            connection.execute("UPDATE taut_pointer SET fence = ?", (int(fence),))

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Reason | None:  # noqa: ARG002
        # Columns carry no type: SQLite keeps each value as it comes.
        columns = [str(name) for name in schema.fieldNames()]
        with self._write(fence) as connection:
            existing_columns = self._columns(table)
            gone = [name for name in existing_columns if name not in columns]
            connection.execute("DELETE FROM taut_rebuilds WHERE name = ?", (str(table),))
            if gone:
                # The commit that replaces all rows does it.
                row = (str(table), json.dumps(columns))
                connection.execute("INSERT INTO taut_rebuilds VALUES (?, ?)", row)
                return Reason.of(ReasonCode.SINK_TABLE_REBUILT, columns=", ".join(gone))
            if not existing_columns:
                listed = ", ".join(map(_quoted, columns))
                connection.execute(f"CREATE TABLE {_sql_name(table)} ({listed})")
            for column in columns if existing_columns else ():
                if column not in existing_columns:
                    connection.execute(f"ALTER TABLE {_sql_name(table)} ADD COLUMN {_quoted(column)}")
        return None

    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        with self._write(transaction.fence) as connection:
            state = next_state(Operation.BEGIN, self._state(transaction), transaction)
            require_base(intent, self.published())
            row = (str(transaction), int(transaction.fence), state, json.dumps(intent.as_json()))
            connection.execute("INSERT OR REPLACE INTO taut_transactions VALUES (?, ?, ?, ?)", row)
        self._answer()
        return state

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[SentChunk]:
        return self._stage(transaction, table, {_ADDED: change.added, _REMOVED: change.removed})

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[SentChunk]:
        return self._stage(transaction, table, {_WHOLE: rows})

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        with self._write(transaction.fence) as connection:
            state = next_state(Operation.PREPARE, self._state(transaction), transaction)
            self._compare(transaction, chunks)
            connection.execute(
                "UPDATE taut_transactions SET state = ? WHERE id = ?", (state, str(transaction))
            )
        self._answer()

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        with self._write(fence):
            state = self._state(transaction)
            next_state(Operation.COMMIT, state, transaction)
            if state is TransactionState.PREPARED:
                self._require_content(self._intent(transaction))
            if state is not TransactionState.COMMITTED:
                self._set_state(transaction, TransactionState.COMMITTING)
        if state is not TransactionState.COMMITTED:
            if self._happens(Mishap.HALF_COMMITTED):
                raise MishapError("broken between the decision and the pointer")
            with self._write(fence):
                self._apply(transaction)
                self._set_state(transaction, TransactionState.COMMITTED)
        self._answer()

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        with self._write(fence) as connection:
            state = self._state(transaction)
            next_state(Operation.ABORT, state, transaction)
            if state is TransactionState.UNKNOWN:
                row = (str(transaction), int(fence), TransactionState.ABORTED, "null")
                connection.execute("INSERT INTO taut_transactions VALUES (?, ?, ?, ?)", row)
            elif state is not TransactionState.ABORTED:
                self._set_state(transaction, TransactionState.ABORTING)
        if self._happens(Mishap.HALF_ABORTED):
            raise MishapError("broken between the decision and the cleaning")
        with self._write(fence) as connection:
            connection.execute("DELETE FROM taut_staged WHERE tx = ?", (str(transaction),))
            self._set_state(transaction, TransactionState.ABORTED)
        self._answer()

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        intent_by_name = {str(intent.transaction): intent for intent in intents}
        with self._missing_tables():
            listed = self._connection.execute("SELECT id, intent FROM taut_transactions").fetchall()
        stored = {name: Intent.from_json(json.loads(text)) for name, text in listed if text != "null"}
        final: dict[str, TransactionState] = {}
        for name, intent in (stored | intent_by_name).items():
            transaction = intent.transaction
            state = self._state(transaction)
            is_whole = (
                state is TransactionState.PREPARED
                and name in intent_by_name
                and self._is_whole(intent_by_name[name])
            )
            if is_whole or state in (TransactionState.COMMITTING, TransactionState.COMMITTED):
                self.commit(transaction, fence)
            elif state is not TransactionState.ABORTED:
                self.abort(transaction, fence)
            final[name] = self._state(transaction)
        with self._write(fence) as connection:
            ended = (TransactionState.COMMITTED, TransactionState.ABORTED)
            rows = "DELETE FROM taut_transactions WHERE fence < ? AND state IN (?, ?)"
            connection.execute(rows, (int(fence), *ended))
        published = self.published()
        return [
            Recovered(
                intent.transaction,
                # What is forgotten was committed if the pointer is at it.
                TransactionState.COMMITTED
                if published is not None and published.transaction == intent.transaction
                else final[str(intent.transaction)],
            )
            for intent in intents
        ]

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:  # noqa: ARG002
        return {"": _row_digest(_encoded(rows.columns, row) for row in rows.toLocalIterator())}

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        published = self.published()
        if published is None or published.checkpoint != checkpoint:
            visible = "nothing" if published is None else f"checkpoint {published.checkpoint}"
            raise SinkError("SINK_CHECKPOINT_GONE", f"Sink {self.name} shows {visible}, not {checkpoint}")
        columns = self._columns(table)
        rows = self._connection.execute(f"SELECT * FROM {_sql_name(table)}") if columns else []
        return {
            "": _row_digest(json.dumps(dict(zip(columns, row, strict=True)), sort_keys=True) for row in rows)
        }

    def close(self) -> None:
        self._connection.close()

    def rows(self, table: TableName) -> list[tuple[Any, ...]]:
        """What a reader sees of a table, in no order; for tests."""
        if not self._columns(table):
            return []
        return list(self._connection.execute(f"SELECT * FROM {_sql_name(table)}"))

    # -- inside -----------------------------------------------------------------------------------

    @contextmanager
    def _missing_tables(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise object_missing_error(self.name, "SQLite", str(error), f"the file {self.path}") from error

    @contextmanager
    def _write(self, fence: Fence) -> Iterator[sqlite3.Connection]:
        """One transaction of SQLite: the fence is compared under its lock, so a check cannot go stale."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            highest = self.highest_fence()
            if fence < highest:
                raise SinkFencedError(
                    "SINK_FENCED",
                    f"Sink {self.name} is delivered to by a newer owner: fence {fence} is below {highest}",
                    parameters={"sink": self.name, "fence": str(fence), "highest": str(highest)},
                )
            with self._missing_tables():
                yield connection
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _state(self, transaction: TransactionId) -> TransactionState:
        query = "SELECT state FROM taut_transactions WHERE id = ?"
        row = self._connection.execute(query, (str(transaction),)).fetchone()
        if row is not None:
            return TransactionState(row[0])
        published = self.published()
        is_published = published is not None and published.transaction == transaction
        return TransactionState.COMMITTED if is_published else TransactionState.UNKNOWN

    def _set_state(self, transaction: TransactionId, state: TransactionState) -> None:
        self._connection.execute(
            "UPDATE taut_transactions SET state = ? WHERE id = ?", (state, str(transaction))
        )

    def _stage(
        self, transaction: TransactionId, table: TableName, frames: Mapping[str, Rows | None]
    ) -> list[SentChunk]:
        chunks: list[SentChunk] = []
        with self._write(transaction.fence) as connection:
            next_state(Operation.WRITE, self._state(transaction), transaction)
            connection.execute(
                "DELETE FROM taut_staged WHERE tx = ? AND name = ?", (str(transaction), str(table))
            )
            staged = [
                (sign, _encoded(frame.columns, row))
                for sign, frame in frames.items()
                if frame is not None
                for row in frame.toLocalIterator()
            ]
            if _WHOLE in frames and not staged:
                # All rows of an empty table are a content too: the commit must empty what is there.
                staged = [(_WHOLE, "null")]
            for start in range(0, len(staged), self._chunk_rows):
                part = staged[start : start + self._chunk_rows]
                number = len(chunks)
                chunks.append(
                    SentChunk(table=table, number=number, digest=_row_digest(f"{s}{r}" for s, r in part))
                )
                if self._happens(Mishap.ROW_LOST):
                    part = part[:-1]
                connection.executemany(
                    "INSERT INTO taut_staged VALUES (?, ?, ?, ?, ?)",
                    [(str(transaction), str(table), number, sign, row) for sign, row in part],
                )
        if self._happens(Mishap.HALF_WRITTEN):
            with self._write(transaction.fence) as connection:
                last = "SELECT max(rowid) FROM taut_staged WHERE tx = ?"
                connection.execute(f"DELETE FROM taut_staged WHERE rowid IN ({last})", (str(transaction),))
            raise MishapError("broken in the middle of a write")
        self._answer()
        return chunks

    def _compare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        rows = self._connection.execute(
            "SELECT name, chunk, sign, row FROM taut_staged WHERE tx = ?", (str(transaction),)
        )
        arrived: dict[tuple[str, int], list[str]] = {}
        for name, number, sign, row in rows:
            arrived.setdefault((name, number), []).append(f"{sign}{row}")
        sent = {(str(chunk.table), chunk.number): chunk.digest for chunk in chunks}
        stored = {key: _row_digest(texts) for key, texts in arrived.items()}
        for key in sorted(sent.keys() | stored.keys()):
            if sent.get(key) != stored.get(key):
                raise SinkContentError(
                    "SINK_CONTENT_DIFFERS",
                    f"Sink {self.name}, chunk {key[1]} of {key[0]}: sent {sent.get(key)}, "
                    f"arrived {stored.get(key)}",
                    parameters={"sink": self.name, "table": key[0]},
                )

    def _is_whole(self, intent: Intent) -> bool:
        if intent.chunks is None:
            return False
        try:
            self._compare(intent.transaction, intent.chunks)
            self._require_content(intent)
        except SinkError:
            return False
        return True

    def _intent(self, transaction: TransactionId) -> Intent:
        query = "SELECT intent FROM taut_transactions WHERE id = ?"
        return Intent.from_json(
            json.loads(self._connection.execute(query, (str(transaction),)).fetchone()[0])
        )

    def _require_content(self, intent: Intent) -> None:
        """The sink shows what the deltas start from."""
        require_base(intent, self.published())
        known = self._pointer().records
        for table in intent.versions:
            if table not in intent.replaced and table in known and self._change(table) is not None:
                raise table_changed_error(self.name, table)

    def _apply(self, transaction: TransactionId) -> None:
        connection, name = self._connection, str(transaction)
        intent = self._intent(transaction)
        for replaced in intent.replaced:
            self._rebuild(replaced)
        staged = connection.execute(
            "SELECT name, sign, row FROM taut_staged WHERE tx = ? ORDER BY sign", (name,)
        )
        emptied: set[str] = set()
        # "removed" sorts behind "added": a delta is consolidated, so the order does not matter.
        for table, sign, text in staged.fetchall():
            target = _sql_name(TableName.parse(table))
            if sign == _WHOLE and table not in emptied:
                connection.execute(f"DELETE FROM {target}")
                emptied.add(table)
            row = json.loads(text)
            if row is None:
                continue
            columns = ", ".join(map(_quoted, row))
            if sign == _REMOVED:
                same = " AND ".join(f"{_quoted(column)} IS ?" for column in row)
                row_query = f"SELECT rowid FROM {target} WHERE {same} LIMIT 1"
                done = connection.execute(
                    f"DELETE FROM {target} WHERE rowid IN ({row_query})", tuple(row.values())
                )
                if done.rowcount != 1:
                    sentence = f"Sink {self.name}: {table} has no row {text} to remove"
                    raise SinkContentError("SINK_ROW_MISSING", sentence, retryable=False)
            else:
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {target} ({columns}) VALUES ({marks})", tuple(row.values()))
        connection.execute("DELETE FROM taut_staged WHERE tx = ?", (name,))
        contents = {table: self._content(table) for table in intent.versions}
        records = {
            table: TableRecord("", content, tuple(self._columns(table)))
            for table, content in contents.items()
            if content is not None
        }
        connection.execute("UPDATE taut_pointer SET published = ?", (Pointer(intent, records).text(),))

    def _rebuild(self, table: TableName) -> None:
        """Create the table anew if it gets other columns."""
        query = "SELECT columns FROM taut_rebuilds WHERE name = ?"
        row = self._connection.execute(query, (str(table),)).fetchone()
        if row is not None:
            self._connection.execute(f"DROP TABLE {_sql_name(table)}")
            listed = ", ".join(map(_quoted, json.loads(row[0])))
            self._connection.execute(f"CREATE TABLE {_sql_name(table)} ({listed})")
            self._connection.execute("DELETE FROM taut_rebuilds WHERE name = ?", (str(table),))

    def _columns(self, table: TableName) -> list[str]:
        name = _sql_text(_mirror_table_name(table))
        rows = self._connection.execute(f"SELECT name FROM pragma_table_info({name})")
        return [name for (name,) in rows]

    def _happens(self, mishap: Mishap) -> bool:
        planned = self.mishaps.get(self.path, [])
        if mishap not in planned:
            return False
        planned.remove(mishap)
        return True

    def _answer(self) -> None:
        if self._happens(Mishap.ANSWER_LOST):
            raise MishapError("the answer was lost")


def _mirror_table_name(table: TableName) -> str:
    return mirror_name(table, NameRules(longest=1000, folds_case=True))


def _sql_name(table: TableName) -> str:
    return _quoted(_mirror_table_name(table))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _encoded(columns: Sequence[str], row: Iterable[Any]) -> str:
    values = [_plain(value) for value in row]
    return json.dumps(dict(zip(columns, values, strict=True)), sort_keys=True)


def _plain(value: Any) -> Any:
    """A value as SQLite keeps it."""
    if value is None or (isinstance(value, int | float | str) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _row_digest(rows: Iterable[str]) -> Digest:
    count = total = 0
    for row in rows:
        count += 1
        total += int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big")
    return Digest(count, f"{total % 2**64:016x}")


def open_toy_sink(name: str, options: Mapping[str, str]) -> SqliteSink:
    """The factory of the format.

    Raises:
        SinkError: `SINK_OPTION_MISSING`.
    """
    if "path" not in options:
        raise SinkError("SINK_OPTION_MISSING", f"Sink {name}: {FORMAT} needs the option path")
    append_only = options.get("append_only", "false") == "true"
    capabilities = Capabilities(retractions=not append_only, replaces=not append_only)
    return SqliteSink(name, options["path"], capabilities=capabilities)


def _observe_toy_sink(name: str, options: Mapping[str, str]) -> SqliteSink:
    """See `adapters.observe_sink`."""
    path = options["path"]
    if not Path(path).exists():
        raise object_missing_error(name, "SQLite", f"there is no file {path}", f"the file {path}")
    return SqliteSink(name, path, only_looks=True)


open_toy_sink.observe = _observe_toy_sink  # type: ignore[attr-defined]
register_sink(FORMAT, open_toy_sink)
