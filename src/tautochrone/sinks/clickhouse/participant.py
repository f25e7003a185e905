"""Carries decisions out for transactions that other programs drive, in a database on each of some servers.

A program stages each chunk in a table of its own, called `staged_name`, made like the table of the chunk.

1. `prepare` renames each staged table, waits for statements that still use the old name, and compares rows
   and hash. What the program sends late finds no table.
2. `commit` renames the tables again, so that another service that is at the same cannot go on, moves their
   partitions (`MOVE PARTITION`), records the id in `taut_committed`, and drops them.
3. `rollback` drops them.

With several servers each chunk is on the one that it names, and each server does these steps with its own
chunks. The store of the service decides for all of them: `prepare` asks every server, and `commit` is called
until every one has done it.

An id in `taut_committed` is neither committed again nor rolled back, also when the store of the service is
an older copy that does not know it.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from tautochrone.errors import SinkError
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CoordinatedTransaction, Staged, TransactionChunk
from tautochrone.sinks.clickhouse.engines import Engine, HttpEngine, running_statements
from tautochrone.sinks.clickhouse.options import ClickHouseOptions, participant_options
from tautochrone.sinks.clickhouse.statements import name_sql, text_sql

__all__ = [
    "ClickHouseParticipant",
    "ShardedClickHouseParticipant",
    "open_clickhouse_participant",
    "staged_name",
]

_COMMITTED = "taut_committed"
_STAGED, _TAKEN, _MOVING = "taut_staged_", "taut_taken_", "taut_moving_"
_STAGED_NAME = re.compile(rf"(?:{_STAGED}|{_TAKEN})(?P<key>[0-9a-f]{{32}})_")
_CHUNK_ID = re.compile(r"[A-Za-z0-9]{1,64}")
_QUIET_S = 30.0
"""How long a statement of which the answer was lost may still run."""
_HASH = "sum(cityHash64(tuple(*)))"
"""Of rows doubled or exchanged it gives another number, which a bitwise XOR would not."""


class _Content(NamedTuple):
    """Of a staged table; the hash is a sum over its rows, as decimal text."""

    rows: int
    hash: str


def open_clickhouse_participant(
    name: str, options: Mapping[str, str], location: str
) -> ClickHouseParticipant:
    """A participant of these options. Nothing is connected to.

    Raises:
        SettingsError: what is wrong with the options.
    """
    servers = participant_options(name, options, location)
    return (ClickHouseParticipant if len(servers) == 1 else ShardedClickHouseParticipant)(name, servers)


def staged_name(transaction: str, chunk: str) -> str:
    """In which table a program stages a chunk.

    Example:
        >>> staged_name("load-17", "0")
        'taut_staged_fe1cd2a76c29acd0cc5feb8d9889465a_0'
    """
    return f"{_STAGED}{_digest(transaction)}_{chunk}"


class ClickHouseParticipant:
    """See the module docstring. Safe to share between threads: each call has connections of its own.

    Args:
        options: of each server.
    """

    def __init__(self, name: str, options: Sequence[ClickHouseOptions]) -> None:
        self._name = name
        self._options = {f"{each.host}:{each.port}": each for each in options}

    @property
    def description(self) -> str:
        """The servers and their databases, for people."""
        return f"ClickHouse at {', '.join(each.address for each in self._options.values())}"

    def check(self) -> None:
        """Ask the server, and create the table of ids if it is missing.

        Raises:
            SinkError: one does not answer, does not let us in, or has no such database; two are the same
                database.
        """
        with self._connected():
            pass

    def prepare(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        with self._connected() as servers:
            for server in servers.values():
                server.require_not_committed(transaction.id)
            for name, own in self._by_server(chunks).items():
                for chunk in own:
                    servers[name].prepare(transaction.id, chunk)

    def commit(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        with self._connected() as servers:
            for name, own in self._by_server(chunks).items():
                server = servers[name]
                if not server.is_committed(transaction.id):
                    try:
                        server.move(transaction, own)
                    except SinkError:
                        # Another service that was at the same may have finished it.
                        if not server.is_committed(transaction.id):
                            raise
                server.drop_all(transaction.id)

    def rollback(
        self,
        transaction: CoordinatedTransaction,
        chunks: Sequence[TransactionChunk],  # noqa: ARG002
    ) -> None:
        with self._connected() as servers:
            for server in servers.values():
                server.require_not_committed(transaction.id)
            for server in servers.values():
                server.drop_all(transaction.id)

    def key_of(self, transaction: str) -> str:
        return _digest(transaction)

    def staged(self) -> Sequence[Staged]:
        with self._connected() as servers:
            return [each for name, server in servers.items() for each in server.staged(name)]

    def drop(self, transaction: CoordinatedTransaction, staged: Sequence[Staged]) -> Sequence[str]:
        """A commit that somebody confirmed by hand may not have moved its rows: they stay."""
        dropped: list[str] = []
        with self._connected() as servers:
            for each in staged:
                server = servers[each.server]
                if transaction.state is TransactionState.ABORTED or server.is_committed(transaction.id):
                    server.drop(each.name)
                    dropped.append(each.name)
        return dropped

    @contextmanager
    def _connected(self) -> Iterator[Mapping[str, _Server]]:
        """All servers: nothing is begun before each of them answers."""
        with ExitStack() as connections:
            servers, identities = {}, dict[str, str]()
            for name, options in self._options.items():
                engine = HttpEngine(self._name, options, subject=f"Participant {self._name}")
                connections.callback(engine.close)
                servers[name] = _Server(self._name, engine, options.database)
                identity = servers[name].require_database()
                if identity in identities:
                    raise SinkError(
                        "PARTICIPANT_SERVERS_SAME",
                        f"Participant {self._name}: {identities[identity]} and {name} are the same database",
                        hint="Each url must be a server of its own, with a part of the rows.",
                        parameters={"participant": self._name},
                        sqlstate="55000",
                    )
                identities[identity] = name
            yield servers

    def _by_server(self, chunks: Sequence[TransactionChunk]) -> Mapping[str, Sequence[TransactionChunk]]:
        """By server its chunks; none for a server that has no rows of the transaction.

        Raises:
            SinkError: `PARTICIPANT_SERVER_UNKNOWN`.
        """
        parts: dict[str, list[TransactionChunk]] = {name: [] for name in self._options}
        for chunk in chunks:
            # Of a server that is not among them nobody knows whether it has committed.
            server = chunk.server or (next(iter(parts)) if len(parts) == 1 else "")
            if server not in parts:
                raise SinkError(
                    "PARTICIPANT_SERVER_UNKNOWN",
                    f"Participant {self._name}: chunk {chunk.id} is on the server {server or '(not named)'}, "
                    f"and its servers are {', '.join(parts)}",
                    hint="Register chunks with one of them as their server. If the participant's url was "
                    "changed while the transaction ran, set it back until it has ended.",
                    parameters={"participant": self._name},
                    sqlstate="55000",
                )
            parts[server].append(chunk)
        return parts


class ShardedClickHouseParticipant(ClickHouseParticipant):
    """With several servers: a chunk has to name one of them."""

    def server_of(self, transaction: CoordinatedTransaction, chunk: TransactionChunk) -> str:
        """The server that the chunk names; for one that names none of them, always the same one."""
        names = list(self._options)
        if chunk.server in names:
            return chunk.server
        return names[int(_digest(f"{transaction.id} {chunk.id}"), 16) % len(names)]


class _Server:
    """The statements of one call."""

    def __init__(self, name: str, engine: Engine, database: str) -> None:
        self._name = name
        self._engine = engine
        self._database = database

    def require_database(self) -> str:
        """Create the table of ids, in a database in which tables can be renamed while they are used.

        Returns:
            Which database it is, under whatever name its server is reached.

        Raises:
            SinkError: `PARTICIPANT_DATABASE_UNFIT`.
        """
        engines = self._engine.rows(
            f"SELECT engine, toString(uuid) FROM system.databases WHERE name = {text_sql(self._database)}"
        )
        if not engines or engines[0][0] != "Atomic":
            problem = f"has the engine {engines[0][0]}" if engines else "does not exist"
            raise SinkError(
                "PARTICIPANT_DATABASE_UNFIT",
                f"Participant {self._name}: the database {self._database} {problem}",
                hint="Name a database of the engine Atomic on one server, in the url or the option database.",
                parameters={"participant": self._name},
                sqlstate="55000",
            )
        self._engine.run(
            f"CREATE TABLE IF NOT EXISTS {self._qualified(_COMMITTED)} "
            "(id String, owner String, committed_at DateTime('UTC') DEFAULT now()) "
            "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 0"
        )
        return str(engines[0][1])

    # -- ids --------------------------------------------------------------------------------------

    def is_committed(self, transaction: str) -> bool:
        return bool(self._committed_by(transaction))

    def require_not_committed(self, transaction: str) -> None:
        """Refuse an id whose rows readers see, or may see soon.

        Raises:
            SinkError: `PARTICIPANT_ID_COMMITTED`.
        """
        owners = self._committed_by(transaction)
        if owners or self._tables(_MOVING, transaction):
            by = f" by {owners[0]}" if owners else ""
            raise SinkError(
                "PARTICIPANT_ID_COMMITTED",
                f"Participant {self._name}: transaction {transaction} was committed{by}, with its rows",
                hint="An older copy of the service's store was put back, or the id was used before. Take "
                "another id for new rows.",
                parameters={"participant": self._name},
                sqlstate="55000",
            )

    def _committed_by(self, transaction: str) -> list[str]:
        rows = self._engine.rows(
            f"SELECT owner FROM {self._qualified(_COMMITTED)} WHERE id = {text_sql(transaction)} LIMIT 1"
        )
        return [str(owner) for (owner,) in rows]

    # -- the steps --------------------------------------------------------------------------------

    def prepare(self, transaction: str, chunk: TransactionChunk) -> None:
        """Take the staged table of a chunk away from the program, and compare it.

        Raises:
            SinkError: `PARTICIPANT_CHUNK_UNFIT`, `PARTICIPANT_CHUNK_MISSING`, `PARTICIPANT_CHUNK_DIFFERS`.
        """
        self._require_target(chunk)
        staged = staged_name(transaction, chunk.id)
        is_staged = staged in self._tables(_STAGED, transaction)
        taken = self._of_chunk(_TAKEN, transaction, chunk)
        # After a lost answer the program may have staged the same rows again.
        is_whole = [table for table in taken if self._content(table) == (chunk.rows, chunk.hash)]
        if is_whole:
            self._require_same_structure(is_whole[0], chunk)
            unneeded = [table for table in taken if table != is_whole[0]]
            for table in [*unneeded, *([staged] if is_staged else [])]:
                self.drop(table)
            return
        if not is_staged:
            if taken:
                raise self._content_differs_error(chunk, self._content(taken[0]))
            raise SinkError(
                "PARTICIPANT_CHUNK_MISSING",
                f"Participant {self._name}: chunk {chunk.id} is not staged: there is no table {staged}",
                hint="The table's name is taut_staged_ID_CHUNK, where ID is the MD5 hash of the "
                "transaction's id in hexadecimal digits.",
                parameters={"participant": self._name},
                sqlstate="55000",
            )
        for table in taken:
            self.drop(table)
        own = self._renamed(staged, _TAKEN, transaction, chunk)
        self._require_same_structure(own, chunk)
        content = self._content(own)
        if content != (chunk.rows, chunk.hash):
            raise self._content_differs_error(chunk, content)

    def move(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        """Show what is staged to readers, and record that. Repeatable: what was moved is not staged any more.

        Raises:
            SinkError: `PARTICIPANT_CHUNK_LOST`.
        """
        tables = {chunk.id: self._table_to_move(transaction.id, chunk) for chunk in chunks}
        for chunk in chunks:
            table = tables[chunk.id]
            partitions = self._engine.rows(f"SELECT DISTINCT _partition_id FROM {self._qualified(table)}")
            for (partition,) in partitions:
                self._engine.run(
                    f"ALTER TABLE {self._qualified(table)} MOVE PARTITION ID {text_sql(str(partition))} "
                    f"TO TABLE {self._qualified(chunk.table)}"
                )
        self._engine.run(
            f"INSERT INTO {self._qualified(_COMMITTED)} (id, owner) "
            f"VALUES ({text_sql(transaction.id)}, {text_sql(transaction.owner)})"
        )

    def staged(self, server: str) -> list[Staged]:
        """The staged and the taken tables of all transactions, of whatever service."""
        rows = self._engine.rows(
            "SELECT name, toString(greatest(0, dateDiff('second', metadata_modification_time, now()))) "
            f"FROM system.tables WHERE database = {text_sql(self._database)} "
            f"AND (startsWith(name, {text_sql(_STAGED)}) OR startsWith(name, {text_sql(_TAKEN)})) "
            "ORDER BY name"
        )
        tables = ((_STAGED_NAME.match(str(name)), str(name), int(age_s)) for name, age_s in rows)
        return [
            Staged(key=match["key"], name=name, server=server, age_ms=age_s * 1000)
            for match, name, age_s in tables
            if match is not None
        ]

    def drop_all(self, transaction: str) -> None:
        """Drop all tables of a transaction, also those of chunks that were never registered."""
        for prefix in (_STAGED, _TAKEN, _MOVING):
            for table in self._tables(prefix, transaction):
                self.drop(table)

    def drop(self, table: str) -> None:
        # Without SYNC, which would wait for an insert that does not end.
        self._engine.run(f"DROP TABLE IF EXISTS {self._qualified(table)}")

    def _table_to_move(self, transaction: str, chunk: TransactionChunk) -> str:
        """The table of a prepared chunk, under a name that no other service knows."""
        tables = [*self._of_chunk(_MOVING, transaction, chunk), *self._of_chunk(_TAKEN, transaction, chunk)]
        if len(tables) != 1:
            present = f"there are {len(tables)}: {', '.join(tables)}" if tables else "there is none"
            by_hand = f"{_TAKEN}{_digest(transaction)}_{chunk.id}__00000000"
            raise SinkError(
                "PARTICIPANT_CHUNK_LOST",
                f"Participant {self._name}: one table must hold the rows of chunk {chunk.id} of "
                f"{chunk.table}, and {present}",
                hint="Somebody else changed the participant's tables. Keep one of them, or put the chunk's "
                f"rows into a table {by_hand}, then run `taut transactions commit {transaction}`.",
                parameters={"participant": self._name},
                sqlstate="55000",
            )
        return self._renamed(tables[0], _MOVING, transaction, chunk)

    # -- tables -----------------------------------------------------------------------------------

    def _renamed(self, table: str, prefix: str, transaction: str, chunk: TransactionChunk) -> str:
        """Rename a table, and wait for statements that use the old name. The new name is a random one."""
        own = f"{prefix}{_digest(transaction)}_{chunk.id}__{uuid.uuid4().hex[:8]}"
        self._engine.run(f"RENAME TABLE {self._qualified(table)} TO {self._qualified(own)}")
        until = time.monotonic() + _QUIET_S
        while running := running_statements(self._engine, [table]):
            if time.monotonic() > until:
                raise SinkError(
                    "PARTICIPANT_BUSY",
                    f"Participant {self._name}: {running} statements still use the table {table}",
                    hint="See system.processes of the server.",
                    parameters={"participant": self._name},
                    retryable=True,
                )
            time.sleep(0.05)
        return own

    def _tables(self, prefix: str, transaction: str) -> list[str]:
        names = self._engine.rows(
            f"SELECT name FROM system.tables WHERE database = {text_sql(self._database)} "
            f"AND startsWith(name, {text_sql(prefix + _digest(transaction) + '_')}) ORDER BY name"
        )
        return [str(name) for (name,) in names]

    def _of_chunk(self, prefix: str, transaction: str, chunk: TransactionChunk) -> list[str]:
        stem = f"{prefix}{_digest(transaction)}_{chunk.id}__"
        return [table for table in self._tables(prefix, transaction) if table.startswith(stem)]

    def _content(self, table: str) -> _Content:
        ((rows, content_hash),) = self._engine.rows(
            f"SELECT toString(count()), toString({_HASH}) FROM {self._qualified(table)}"
        )
        return _Content(int(rows), str(content_hash))

    def _content_differs_error(self, chunk: TransactionChunk, content: _Content) -> SinkError:
        return SinkError(
            "PARTICIPANT_CHUNK_DIFFERS",
            f"Participant {self._name}: chunk {chunk.id} of {chunk.table} was registered with {chunk.rows} "
            f"rows and the hash {chunk.hash}; staged are {content.rows} rows with the hash {content.hash}",
            hint=f"Rows and hash are what SELECT count(), {_HASH} of the staged table answers. Stage the "
            "rows again in a new table of the same name, or roll back.",
            parameters={"participant": self._name},
            sqlstate="55000",
        )

    def _require_target(self, chunk: TransactionChunk) -> None:
        """Refuse a chunk that could not be moved.

        Raises:
            SinkError: `PARTICIPANT_CHUNK_UNFIT`.
        """
        if not _CHUNK_ID.fullmatch(chunk.id):
            raise self._target_error(chunk, "its id is not of 1 to 64 letters and digits")
        if chunk.table.startswith("taut_"):
            raise self._target_error(chunk, f"{chunk.table} is a name that Tautochrone itself uses")
        engines = self._engine.rows(
            f"SELECT engine FROM system.tables WHERE database = {text_sql(self._database)} "
            f"AND name = {text_sql(chunk.table)}"
        )
        if not engines:
            raise self._target_error(chunk, f"the database {self._database} has no table {chunk.table}")
        engine = str(engines[0][0])
        if not engine.endswith("MergeTree") or engine.startswith(("Replicated", "Shared")):
            raise self._target_error(
                chunk, f"{chunk.table} has the engine {engine}, not one of MergeTree's family"
            )

    def _require_same_structure(self, table: str, chunk: TransactionChunk) -> None:
        staged, target = self._structure(table), self._structure(chunk.table)
        if staged != target:
            differing = ", ".join(name for name in staged if staged[name] != target[name])
            raise self._target_error(chunk, f"its table and {chunk.table} differ in: {differing}")

    def _structure(self, table: str) -> dict[str, object]:
        """What must be the same in two tables between which partitions are moved."""
        columns = self._engine.rows(
            f"SELECT name, type FROM system.columns WHERE database = {text_sql(self._database)} "
            f"AND table = {text_sql(table)} ORDER BY position"
        )
        names = ("engine", "partition_key", "sorting_key", "primary_key", "storage_policy")
        (values,) = self._engine.rows(
            f"SELECT {', '.join(names)} FROM system.tables WHERE database = {text_sql(self._database)} "
            f"AND name = {text_sql(table)}"
        )
        return {"columns": columns, **dict(zip(names, values, strict=True))}

    def _target_error(self, chunk: TransactionChunk, problem: str) -> SinkError:
        return SinkError(
            "PARTICIPANT_CHUNK_UNFIT",
            f"Participant {self._name}: chunk {chunk.id} cannot be committed: {problem}",
            hint="Stage into a table made with CREATE TABLE … AS the chunk's table. That is a table of "
            "MergeTree's family in the participant's database, named without its database.",
            parameters={"participant": self._name},
            sqlstate="55000",
        )

    def _qualified(self, table: str) -> str:
        return f"{name_sql(self._database)}.{name_sql(table)}"


def _digest(transaction: str) -> str:
    return hashlib.md5(transaction.encode(), usedforsecurity=False).hexdigest()
