"""The port of sinks over StarRocks: one stream load transaction over all tables, and the pointer in it.

1. `write` puts the changed rows into a file of this process.
2. `prepare` compares what is there with what was sent, by content, and turns it into upserts and deletes. It
   writes the label of the transaction into `taut_fences`, looks at the fence, then begins the transaction,
   loads the rows and the row of the pointer, and prepares it.
3. `commit` looks at the fence and commits. All tables and the pointer are rows of the same transaction. What
   became of it when the answer is lost, the state of its label and the pointer say.
4. A new owner first writes its fence, then rolls back every label that an older owner wrote.

StarRocks has no comparison and change in one step, and does not need one here. An older owner that commits
looked at the fence before it was raised. Its transaction had begun and its label was written by then, so the
new owner reads the label after it raised the fence, and rolls the transaction back or waits until readers see
it. Each owner writes only the row of its own fence, so an older one lowers nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason
from tautochrone.model.sink import (
    Intent,
    Operation,
    Recovered,
    SentChunk,
    TransactionId,
    TransactionState,
    require_base,
)
from tautochrone.sinks.common.errors import database_taken_error, table_changed_error
from tautochrone.sinks.common.mirrored import quoted
from tautochrone.sinks.common.pointer_sink import Content, Pointer, PointerSink, TableRecord
from tautochrone.sinks.common.steps import require_fence, require_same_content
from tautochrone.sinks.json_rows import comparable, to_text
from tautochrone.sinks.starrocks.changes import Spool, batch_digest, load_bodies, operations
from tautochrone.sinks.starrocks.client import LabelState, TransactionClient
from tautochrone.sinks.starrocks.database import SqlDatabase
from tautochrone.sinks.starrocks.options import StarrocksOptions
from tautochrone.sinks.starrocks.tables import (
    OPERATION,
    MirroredTable,
    SpooledRow,
    StarRocksTables,
    create_primary_key_table,
)

__all__ = ["StarrocksSink"]

_S = TransactionState
_TEXT = "VARCHAR(1048576)"
_OLDEST_MAJOR_VERSION = 4


@dataclass(slots=True)
class _Staged:
    """An unfinished transaction of this process.

    Attributes:
        label: of the transaction of StarRocks; None before `prepare`.
    """

    intent: Intent
    spools: dict[TableName, Spool] = field(default_factory=dict)
    label: str | None = None


class StarrocksSink(PointerSink[MirroredTable]):
    """See the module docstring, and that of `PointerSink`."""

    def __init__(
        self, name: str, options: StarrocksOptions, database: SqlDatabase, client: TransactionClient
    ) -> None:
        super().__init__(name, options.chunk_rows, f"the database {options.database}")
        self._options = options
        self._database = database
        self._client = client
        self._tables = StarRocksTables(name, options, database)
        self._sinks = quoted(options.database, "taut_sinks")
        self._fences = quoted(options.database, "taut_fences")
        self._staged: dict[TransactionId, _Staged] = {}
        self._labels = 0
        self._refuse_old_server()
        self._create_own_tables()

    def _refuse_old_server(self) -> None:
        ((version,),) = self._database.query("SELECT current_version()")
        number = re.match(r"(\d+)\.", str(version))
        if number is not None and int(number[1]) < _OLDEST_MAJOR_VERSION:
            raise SinkError(
                "SINK_SERVER_TOO_OLD",
                f"Sink {self.name}: StarRocks {version} has no transactions over several tables",
                hint=f"Use StarRocks {_OLDEST_MAJOR_VERSION}.0 or newer.",
                sqlstate="0A000",
            )

    def _create_own_tables(self) -> None:
        database, options = self._database, self._options
        statement = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
        if not database.query(statement, (options.database,)):
            database.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(options.database)}")
        self._tables.create_registry()
        columns = (
            f"`name` VARCHAR(190) NOT NULL, `lake` {_TEXT}, `published` {_TEXT}, `published_at` DATETIME"
        )
        create_primary_key_table(database, options, "taut_sinks", columns, ["name"])
        columns = f"`sink` VARCHAR(190) NOT NULL, `fence` BIGINT NOT NULL, `labels` {_TEXT}"
        create_primary_key_table(database, options, "taut_fences", columns, ["sink", "fence"])

    # -- owners and the pointer -------------------------------------------------------------------

    def _reading(self) -> AbstractContextManager[SqlDatabase]:
        return nullcontext(self._database)

    def _pointer(self, cursor: SqlDatabase) -> Pointer:
        rows = cursor.query(f"SELECT `published` FROM {self._sinks} WHERE `name` = %s", (self.name,))
        return Pointer.parse(rows[0][0] if rows else None)

    def claim(self, lake: str) -> None:
        self._lake = lake
        owners = self._owners()
        if not owners:
            statement = f"INSERT INTO {self._sinks} (`name`, `lake`) VALUES (%s, %s)"
            self._database.execute(statement, (self.name, lake))
            # Another sink may have written its row meanwhile. Then both are refused, the next run is not.
            owners = self._owners()
            if len(owners) > 1:
                statement = f"DELETE FROM {self._sinks} WHERE `name` = %s"
                self._database.execute(statement, (self.name,))
        others = [owner for owner in owners if owner != (self.name, lake)]
        if others:
            raise database_taken_error(self.name, lake, self._container, others)

    def _owners(self) -> list[tuple[str, str]]:
        rows = self._database.query(f"SELECT `name`, `lake` FROM {self._sinks}")
        return [(str(name), str(lake)) for name, lake in rows]

    def highest_fence(self) -> Fence:
        statement = f"SELECT MAX(`fence`) FROM {self._fences} WHERE `sink` = %s"
        ((highest,),) = self._database.query(statement, (self.name,))
        return Fence(highest or 0)

    def fence(self, fence: Fence) -> None:
        self._require_newest_fence(fence)
        if self.highest_fence() < fence:
            self._write_labels(fence, [])
            # A newer owner may have come between the first look and the row.
            self._require_newest_fence(fence)

    def _require_newest_fence(self, fence: Fence) -> None:
        require_fence(self.name, fence, self.highest_fence())

    def _write_labels(self, fence: Fence, labels: Sequence[str]) -> None:
        # An INSERT into a Primary Key table replaces the row with this key.
        self._database.execute(
            f"INSERT INTO {self._fences} (`sink`, `fence`, `labels`) VALUES (%s, %s, %s)",
            (self.name, int(fence), json.dumps(list(labels))),
        )
        # The statement may be answered before readers see the row.
        query = f"SELECT `labels` FROM {self._fences} WHERE `sink` = %s AND `fence` = %s"
        deadline = time.monotonic() + self._options.visible_wait_s
        while self._database.query(query, (self.name, int(fence))) != [(json.dumps(list(labels)),)]:
            self._sleep_or_raise_busy(f"that writes fence {fence}", LabelState.COMMITTED, deadline)

    # -- tables -----------------------------------------------------------------------------------

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Reason | None:
        self._require_newest_fence(fence)
        record = self._pointer(self._database).records.get(table)
        # What is left of a try before.
        self._tables.settle(table, record)
        before = self._tables.identity(table)
        mirrored = self._mirrored[table] = self._tables.ensure(table, schema, key)
        if mirrored.rebuild is None:
            self._identities.record_altered(table, record, before, self._tables.identity(table))
        return mirrored.rebuild

    def _load(self, cursor: SqlDatabase, table: TableName) -> MirroredTable | None:  # noqa: ARG002
        return self._tables.load(table)

    def _identity(self, cursor: SqlDatabase, table: TableName) -> str | None:  # noqa: ARG002
        mirrored = self._mirrored.get(table)
        is_next = mirrored is not None and mirrored.rebuild is not None
        return self._tables.identity(table, self._tables.next_name(table) if is_next else None)

    def _content(
        self,
        cursor: SqlDatabase,  # noqa: ARG002
        mirrored: MirroredTable,
        columns: Sequence[str],
    ) -> Content | None:
        return self._tables.content(mirrored, columns)

    def _is_empty(self, cursor: SqlDatabase, mirrored: MirroredTable) -> bool:  # noqa: ARG002
        return self._tables.is_empty(mirrored)

    # -- one transaction --------------------------------------------------------------------------

    def _begin_transaction(self, intent: Intent) -> None:
        self._staged.setdefault(intent.transaction, _Staged(intent))

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        following = self._next_state(Operation.PREPARE, transaction, transaction.fence)
        if self._state(transaction) is following:
            return
        staged = self._staged[transaction]
        arrived = {
            (table, number): batch_digest(rows)
            for table, spool in staged.spools.items()
            for number, rows in enumerate(spool.chunks())
        }
        require_same_content(self.name, chunks, arrived)
        records = self._new_records(staged)
        changes = [
            (self._encoder(table), operations(self._database, self._encoder(table), spool))
            for table, spool in staged.spools.items()
        ]
        label = self._begin_with_label(transaction, staged)
        try:
            for mirrored, rows in changes:
                for body in load_bodies(rows, self._chunk_rows):
                    self._client.load(label, mirrored.plain_name, body)
            self._client.load(label, "taut_sinks", self._pointer_row(Pointer(staged.intent, records)))
            self._client.prepare(label)
        except BaseException:
            # The next try has a label of its own, so it does not depend on this rollback.
            with suppress(SinkError):
                self._client.rollback(label)
            raise
        self._states[transaction] = following

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        self._next_state(Operation.COMMIT, transaction, fence)
        state = self._state(transaction)
        if state is not _S.COMMITTED:
            if state is _S.PREPARED:
                self._new_records(self._staged[transaction])
            self._states[transaction] = _S.COMMITTING
            self._commit(transaction, fence)
        self._states[transaction] = _S.COMMITTED
        self._unstage(transaction)
        if self._forget_rebuilt():
            self._settle()

    def _settle(self) -> None:
        """Tables that take the place of others get their names, those of aborted transactions go."""
        for table in self._tables.waiting():
            self._tables.settle(table, self._pointer(self._database).records.get(table))

    def _forget_rebuilt(self) -> bool:
        """Tables are loaded anew by their names; whether there were any to take the place of others."""
        lasting = {t: mirrored for t, mirrored in self._mirrored.items() if mirrored.rebuild is None}
        has_changed, self._mirrored = len(lasting) < len(self._mirrored), lasting
        return has_changed

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        state = self._next_state(Operation.ABORT, transaction, fence)
        staged = self._staged.get(transaction)
        if staged is not None and staged.label is not None:
            self._states[transaction] = _S.ABORTING
            self._end_transaction(staged.label)
        self._states[transaction] = state
        self._unstage(transaction)
        self._forget_rebuilt()

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._require_newest_fence(fence)
        statement = f"SELECT `labels` FROM {self._fences} WHERE `sink` = %s AND `fence` <= %s"
        for (labels,) in self._database.query(statement, (self.name, int(fence))):
            for label in json.loads(labels):
                self._end_transaction(label)
        for transaction in list(self._staged):
            self._states[transaction] = _S.ABORTED
            self._unstage(transaction)
        self._forget_rebuilt()
        self._settle()
        statement = f"DELETE FROM {self._fences} WHERE `sink` = %s AND `fence` < %s"
        self._database.execute(statement, (self.name, int(fence)))
        return self._recovered(intents)

    def _begin_with_label(self, transaction: TransactionId, staged: _Staged) -> str:
        """Begin a transaction of StarRocks, after its label can be read by the next owner."""
        self._labels += 1
        staged.label = label = f"{transaction}_{self._labels}"
        labels = [other.label for other in self._staged.values() if other.label is not None]
        self._write_labels(transaction.fence, labels)
        self._require_newest_fence(transaction.fence)
        self._client.begin(label, "taut_sinks")
        return label

    def _new_records(self, staged: _Staged) -> dict[TableName, TableRecord]:
        """What the tables must hold after this transaction.

        Raises:
            SinkError: `SINK_BASE_CHANGED`.
        """
        pointer, intent = self._pointer(self._database), staged.intent
        require_base(intent, pointer.published)
        new_records: dict[TableName, TableRecord] = {}
        for table in dict.fromkeys((*intent.versions, *staged.spools)):
            mirrored, content = self._encoder(table), Content()
            identity = self._identity(self._database, table)
            is_misplaced = mirrored.rebuild is not None and table not in intent.replaced
            if identity is None or is_misplaced:
                raise table_changed_error(self.name, table)
            if table not in intent.replaced:
                record = pointer.records.get(table)
                content = self._required_content(self._database, table, mirrored, record, identity)
            spool = staged.spools.get(table)
            if spool is not None:
                for rows in spool.chunks():
                    for row in rows:
                        content += Content(row.sign, row.sign * int(row.hash[:8], 16))
            new_records[table] = TableRecord(identity, content, tuple(mirrored.rows.columns))
        return new_records

    def _pointer_row(self, pointer: Pointer) -> bytes:
        row = {
            "name": self.name,
            "lake": self._lake,
            "published": pointer.text(),
            "published_at": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
            OPERATION: 0,
        }
        return to_text([row]).encode()

    def _commit(self, transaction: TransactionId, fence: Fence) -> None:
        label = self._staged[transaction].label
        assert label is not None
        deadline = time.monotonic() + self._options.visible_wait_s
        failure: SinkError | None = None
        state = LabelState.PREPARED
        while True:
            if state in (LabelState.PREPARE, LabelState.PREPARED):
                self._require_newest_fence(fence)
                failure = None
                try:
                    self._client.commit(label)
                except SinkError as error:
                    failure = error
            state = self._client.state(label)
            # Read after the state: a label that is visible has its pointer.
            if self._is_shown(transaction):
                return
            if state in (LabelState.ABORTED, LabelState.UNKNOWN):
                self._states[transaction] = _S.ABORTED
                raise SinkError(
                    "STARROCKS_TRANSACTION_ABORTED",
                    f"Sink {self.name}: StarRocks ended the transaction {label} before its commit "
                    f"({failure or state})",
                    hint="The next try sends it again. A transaction may take as many seconds as the option "
                    "transaction_timeout says; a frontend that starts again ends all that are open.",
                    retryable=True,
                    parameters={"sink": self.name},
                ) from failure
            self._sleep_or_raise_busy(label, state, deadline, failure)

    def _end_transaction(self, label: str) -> None:
        """Roll a transaction back, or wait until readers see it if it is committed."""
        deadline = time.monotonic() + self._options.visible_wait_s
        while True:
            # StarRocks may answer before it is done, so only the state counts.
            with suppress(SinkError):
                self._client.rollback(label)
            state = self._client.state(label)
            if state in (LabelState.ABORTED, LabelState.UNKNOWN, LabelState.VISIBLE):
                return
            self._sleep_or_raise_busy(label, state, deadline)

    def _sleep_or_raise_busy(
        self, label: str, state: LabelState, deadline: float, failure: SinkError | None = None
    ) -> None:
        if time.monotonic() > deadline:
            raise SinkError(
                "SINK_BUSY",
                f"Sink {self.name}: the transaction {label} of StarRocks is {state} since "
                f"{self._options.visible_wait_s:.0f} seconds{f' ({failure})' if failure else ''}",
                hint="Are all backends up? The next try goes on with it.",
                retryable=True,
            ) from failure
        time.sleep(self._options.pause_s)

    # -- audit ------------------------------------------------------------------------------------

    def close(self) -> None:
        for transaction in list(self._staged):
            self._unstage(transaction)
        self._client.close()
        self._database.close()

    def _sink_texts(self, table: TableName, checkpoint: CheckpointNumber) -> Iterator[str]:
        """The checkpoint is shown before and after the rows are read."""
        self._require_visible(self._database, checkpoint)
        mirrored = self._encoder(table)
        columns = ", ".join(map(quoted, mirrored.schema.names))
        for row in mirrored.read(self._database.stream(f"SELECT {columns} FROM {mirrored.name}")):
            yield comparable(row)
        self._require_visible(self._database, checkpoint)

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
        intent, spools = self._staged[transaction].intent, self._staged[transaction].spools
        if table in spools:
            spools.pop(table).close()
        spool = spools[table] = Spool(is_replacement=table in intent.replaced)
        chunks: list[SentChunk] = []
        for rows, sign in signed_rows:
            for batch in self._batches(mirrored, rows, sign, known_rows):
                self._keep(spool, batch)
                chunks.append(SentChunk(table=table, number=len(chunks), digest=batch_digest(batch)))
        return chunks

    def _keep(self, spool: Spool, batch: Sequence[SpooledRow]) -> None:
        spool.append(batch)

    def _batches(
        self, mirrored: MirroredTable, rows: Rows, sign: int, known_rows: int | None
    ) -> Iterator[list[SpooledRow]]:
        batch: list[SpooledRow] = []
        for row in mirrored.rows.rows(rows, self._chunk_rows, known_rows):
            batch.append(mirrored.spooled(row, sign))
            if len(batch) == self._chunk_rows:
                yield batch
                batch = []
        if batch:
            yield batch

    def _unstage(self, transaction: TransactionId) -> None:
        staged = self._staged.pop(transaction, None)
        for spool in staged.spools.values() if staged is not None else ():
            spool.close()
