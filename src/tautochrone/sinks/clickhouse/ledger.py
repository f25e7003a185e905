"""What a sink stores of itself in its database: fences, transactions, publications.

All tables only get new rows, one at a time, because ClickHouse inserts one row atomically and offers no
compare-and-set. What counts is told by their highest values:

- `taut_fences`: the highest fence.
- `taut_transactions`: the furthest state of a transaction that is not published; one that is published is
  committed. An owner that is paused between its check of the fence and its row can only add a state that the
  next owner has already gone past. If the next owner has forgotten the transaction by then, that row stands
  alone: a transaction is only committing if it was prepared.
- `taut_published`: the row with the highest fence, and of these with the highest publication. A pointer that
  an older owner writes late never counts.
- `taut_replaced`: from which publication on the rows of a table count.
- `taut_folded`: the highest floor: publications below it cannot be read any more (see `folding`).
- `taut_layout`: whose the database is, and how rows are spread over servers; written once.
- `taut_pins`: written by readers: a publication that must stay readable until a time.

Rows that no longer count are deleted once nobody can need them.

The number of a publication (`_ck` in the rows) is that of the checkpoint, or the next free one where a new
store counts checkpoints from 1 again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Intent, Operation, Published, TransactionId, TransactionState, next_state
from tautochrone.sinks.clickhouse.engines import SERVER_RUN_SQL, Engine, ServerRun
from tautochrone.sinks.clickhouse.statements import name_sql, text_sql
from tautochrone.sinks.common.errors import database_taken_error
from tautochrone.sinks.common.steps import require_fence

__all__ = ["Begun", "BegunTransactions", "Content", "Entry", "Ledger", "TransactionStatus"]


Content = Mapping[str, Mapping[str, tuple[int, str]]]
"""By table, as text, and partition of ClickHouse: rows and hash."""

_S = TransactionState
_RANKS = {
    state: rank
    for rank, state in enumerate(
        (_S.UNKNOWN, _S.INITIALIZED, _S.PREPARED, _S.COMMITTING, _S.COMMITTED, _S.ABORTING, _S.ABORTED)
    )
}
_LEDGER = (
    ("taut_fences", "fence UInt64", "fence"),
    (
        "taut_transactions",
        "id String, fence UInt64, rank UInt8, publication UInt64, intent String, content String",
        "(id, rank)",
    ),
    (
        "taut_published",
        "fence UInt64, publication UInt64, checkpoint UInt64, incarnation String, id String, "
        "intent String, tables String, published_at DateTime64(3, 'UTC') DEFAULT now64(3)",
        "(publication, fence)",
    ),
    ("taut_replaced", "name String, publication UInt64", "(name, publication)"),
    ("taut_layout", "name String, value String", "name"),
    ("taut_folded", "publication UInt64", "publication"),
    ("taut_pins", "publication UInt64, until DateTime('UTC'), reader String DEFAULT ''", "publication"),
)
"""Tables with their columns and sorting keys."""
_NO_PIN = 2**63
_MOST_TEXT = 100_000
_MERGE_TREE = "ENGINE = MergeTree ORDER BY {order} SETTINGS non_replicated_deduplication_window = 0"


@dataclass(frozen=True, slots=True)
class Entry:
    """A transaction as the sink knows it.

    Attributes:
        publication: the number that its rows carry.
        content: of its staging tables, once it is prepared.
    """

    state: TransactionState
    publication: int
    intent: Intent
    content: Content


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """The state of a transaction, and what it depends on.

    Attributes:
        fence: the highest one.
        publication: that readers see; 0 for none.
        run: of the server.
    """

    fence: Fence
    state: TransactionState
    publication: int
    run: ServerRun

    def next_publication(self, checkpoint: CheckpointNumber) -> int:
        """The number that the rows of a new transaction carry."""
        return max(int(checkpoint), self.publication + 1)


class Ledger:
    """See the module docstring."""

    def __init__(self, name: str, engine: Engine, database: str) -> None:
        self._name = name
        self._engine = engine
        self._database = name_sql(database)
        self._plain_database = database
        self._require_plain_database()
        self.restore()

    def restore(self) -> None:
        """Create the tables of the ledger that are not there, or not any more."""
        ((tables,),) = self._engine.rows(
            "SELECT toUInt32(count()) FROM system.tables "
            f"WHERE database = {text_sql(self._plain_database)} "
            f"AND name IN ({', '.join(text_sql(table) for table, _, _ in _LEDGER)})"
        )
        if tables < len(_LEDGER):
            self._create()

    def claim(self, lake: str) -> None:
        """See `model.sink.Sink`. Of two claims at once the first in order counts, for both."""
        table = self._table("taut_layout")
        owner = json.dumps([self._name, lake])
        query = f"SELECT value FROM {table} WHERE name = 'owner' ORDER BY value LIMIT 1"
        rows = self._engine.rows(query)
        if not rows:
            self._engine.run(f"INSERT INTO {table} VALUES ('owner', {text_sql(owner)})")
            rows = self._engine.rows(query)
        if rows[0][0] != owner:
            sink, other = json.loads(rows[0][0])
            raise database_taken_error(
                self._name, lake, f"the database {self._plain_database}", [(sink, other)]
            )

    @property
    def identity(self) -> str:
        """Tells databases apart. It is the same in all replicas of a database."""
        ((identity,),) = self._engine.rows(
            "SELECT toString(uuid) FROM system.tables "
            f"WHERE database = {text_sql(self._plain_database)} AND name = 'taut_fences'"
        )
        return str(identity)

    def _require_plain_database(self) -> None:
        """Refuse a database that several servers share: rows of ours would be in one of them only, and
        statements of an older owner that run in another could not be seen.

        Raises:
            SinkError: `SINK_DATABASE_REPLICATED`.
        """
        database = self._plain_database
        engines = self._engine.rows(f"SELECT engine FROM system.databases WHERE name = {text_sql(database)}")
        if engines and engines[0][0] in ("Replicated", "Shared"):
            raise SinkError(
                "SINK_DATABASE_REPLICATED",
                f"Sink {self._name}: the database {database} has the engine {engines[0][0]}, and the sink "
                "writes tables that are not replicated",
                hint="Give the sink a database of the engine Atomic, on one server of each shard.",
                parameters={"sink": self._name},
                sqlstate="0A000",
            )

    def _create(self) -> None:
        self._engine.run(f"CREATE DATABASE IF NOT EXISTS {self._database} ENGINE = Atomic")
        for table, columns, order in _LEDGER:
            self._engine.run(
                f"CREATE TABLE IF NOT EXISTS {self._table(table)} ({columns}) "
                + _MERGE_TREE.format(order=order)
            )

    def require_layout(self, name: str, value: str, unset: str) -> None:
        """Remember how rows are spread over servers, and refuse another way later.

        Args:
            unset: what holds in a database with publications that remembers nothing.

        Raises:
            SinkError: `SINK_SERVERS_CHANGED`.
        """
        table = self._table("taut_layout")
        rows = self._engine.rows(f"SELECT value FROM {table} WHERE name = {text_sql(name)} LIMIT 1")
        stored = rows[0][0] if rows else None
        if stored is None and value != unset and self.newest() is not None:
            stored = unset
        if stored is None:
            self._engine.run(f"INSERT INTO {table} VALUES ({text_sql(name)}, {text_sql(value)})")
        elif stored != value:
            raise SinkError(
                "SINK_SERVERS_CHANGED",
                f"Sink {self._name}: rows are spread over its servers by "
                f"{name} = {stored or 'all columns'}, and its options now say {value or 'all columns'}",
                hint="Give the option url the same servers in the same order, and shard_by as before. To "
                "change them, drop the sink's database on all servers and run "
                f"`taut sinks --forget {self._name}`: the next run delivers all rows.",
                parameters={"sink": self._name},
                sqlstate="55000",
            )

    # -- fences -----------------------------------------------------------------------------------

    def highest_fence(self) -> Fence:
        ((fence,),) = self._engine.rows(f"SELECT toString(max(fence)) FROM {self._table('taut_fences')}")
        return Fence(int(fence))

    def require(self, fence: Fence) -> None:
        """Refuse an owner that is not the newest.

        Raises:
            SinkFencedError
        """
        require_fence(self._name, fence, self.highest_fence())

    def raise_to(self, fence: Fence) -> None:
        self.require(fence)
        if fence > self.highest_fence():
            self._engine.run(f"INSERT INTO {self._table('taut_fences')} VALUES ({int(fence)})")

    # -- the pointer ------------------------------------------------------------------------------

    def newest(self) -> tuple[int, Published] | None:
        """The publication that readers see, and what it stands for."""
        newest = self.newest_with_tables()
        return None if newest is None else newest[:2]

    def newest_with_tables(self) -> tuple[int, Published, str] | None:
        """The same, and what the pointer records of the tables: see `records`."""
        rows = self._engine.rows(
            f"SELECT toString(publication), intent, tables FROM {self._table('taut_published')} "
            "ORDER BY fence DESC, publication DESC LIMIT 1"
        )
        return None if not rows else (int(rows[0][0]), _published(rows[0][1]), str(rows[0][2]))

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        """What the newest publication of a checkpoint stands for: a store that was restored gives numbers
        again."""
        rows = self._engine.rows(
            f"SELECT intent FROM {self._table('taut_published')} WHERE checkpoint = {int(checkpoint)} "
            "ORDER BY publication DESC LIMIT 1"
        )
        return None if not rows else _published(rows[0][0])

    def publication_of(self, checkpoint: CheckpointNumber) -> int:
        """The newest publication of a checkpoint.

        Raises:
            SinkError: `SINK_CHECKPOINT_GONE`.
        """
        ((publication, count, floor),) = self._engine.rows(
            f"SELECT toString(max(publication)), toString(count()), toString(({self._floor_sql()})) "
            f"FROM {self._table('taut_published')} WHERE checkpoint = {int(checkpoint)}"
        )
        if count == "0" or int(publication) < int(floor):
            newest = self.newest()
            shown = "nothing" if newest is None else f"checkpoint {newest[1].checkpoint}"
            raise SinkError(
                "SINK_CHECKPOINT_GONE",
                f"Sink {self._name} shows {shown}, not {checkpoint}",
                hint="See the options keep_checkpoints and keep_minutes of the sink."
                if int(checkpoint) < int(floor)
                else None,
            )
        return int(publication)

    def publish(self, entry: Entry, fence: Fence, tables: str) -> None:
        """Write the pointer."""
        transaction = entry.intent.transaction
        values = (
            f"{int(fence)}, {entry.publication}, {int(entry.intent.checkpoint)}, "
            f"{text_sql(transaction.incarnation)}, {text_sql(str(transaction))}, "
            f"{_json_sql(entry.intent.as_json())}, {text_sql(tables)}"
        )
        self._engine.run(
            f"INSERT INTO {self._table('taut_published')} "
            f"(fence, publication, checkpoint, incarnation, id, intent, tables) VALUES ({values})"
        )

    def hide_rows_before(self, table: str, publication: int) -> None:
        """Rows of a table from before this publication no longer count in it and later ones."""
        self._engine.run(
            f"INSERT INTO {self._table('taut_replaced')} VALUES ({text_sql(table)}, {publication})"
        )

    # -- history ----------------------------------------------------------------------------------

    def floor(self) -> int:
        """Publications below it cannot be read any more."""
        ((floor,),) = self._engine.rows(f"SELECT toString(({self._floor_sql()}))")
        return int(floor)

    def oldest_needed(self, keep_checkpoints: int, keep_minutes: int) -> int:
        """The oldest publication that must stay readable: of the newest ones, of those that readers saw
        in the last minutes, and of those that are pinned. 0 when nothing is published."""
        newest = self.newest()
        if newest is None:
            return 0
        published = f"{self._table('taut_published')} WHERE publication <= {newest[0]}"
        ((by_number, by_time),) = self._engine.rows(
            f"SELECT toString((SELECT min(publication) FROM (SELECT DISTINCT publication FROM {published} "
            f"ORDER BY publication DESC LIMIT {keep_checkpoints}))), "
            f"toString((SELECT max(publication) FROM {published} "
            f"AND published_at <= now64(3) - toIntervalMinute({keep_minutes})))"
        )
        return min(int(by_number), int(by_time), self.oldest_pinned())

    def oldest_pinned(self) -> int:
        ((pinned,),) = self._engine.rows(
            f"SELECT toString(min(publication)) FROM {self._table('taut_pins')} WHERE until > now() "
            "HAVING count() > 0"
        ) or [[_NO_PIN]]
        return int(pinned)

    def raise_floor(self, floor: int) -> None:
        if floor > self.floor():
            self._engine.run(f"INSERT INTO {self._table('taut_folded')} VALUES ({floor})")

    def forget_below(self, floor: int, fence: Fence) -> None:
        """Delete rows that only publications below the floor, older owners and ended transactions needed."""
        newest = self.newest()
        if newest is None:
            return
        current = text_sql(str(newest[1].transaction))
        transactions, replaced = self._table("taut_transactions"), self._table("taut_replaced")
        # Before the pointers: a transaction that lost its pointer would count as being committed.
        self._delete(
            "taut_transactions",
            f"id != {current} AND fence <= {int(fence)} AND ({self._has_ended_sql()} OR id IN "
            f"(SELECT id FROM {transactions} GROUP BY id HAVING max(publication) < {floor}))",
        )
        self._delete("taut_published", f"publication < {floor} AND publication < {newest[0]}")
        self._delete(
            "taut_replaced",
            f"(name, publication) NOT IN (SELECT name, max(publication) FROM {replaced} "
            f"WHERE publication <= {floor} GROUP BY name) AND publication <= {floor}",
        )
        self._delete("taut_folded", f"publication < {floor}")
        self._delete("taut_fences", f"fence < {int(fence)}")
        self._delete("taut_pins", "until < now() - toIntervalDay(1)")

    def _delete(self, table: str, condition: str) -> None:
        qualified = self._table(table)
        if self._engine.rows(f"SELECT 1 FROM {qualified} WHERE {condition} LIMIT 1"):
            self._engine.run(f"ALTER TABLE {qualified} DELETE WHERE {condition} SETTINGS mutations_sync = 2")

    def _floor_sql(self) -> str:
        return f"SELECT max(publication) FROM {self._table('taut_folded')}"

    # -- transactions -----------------------------------------------------------------------------

    def state(self, transaction: TransactionId) -> TransactionState:
        return self.status(transaction).state

    def status(self, transaction: TransactionId) -> TransactionStatus:
        """What an operation on a transaction must know, by one statement."""
        identifier = text_sql(str(transaction))
        no_pointer = "(toUInt64(0), toUInt64(0)) AS pointer"
        # One query over all three is a third cheaper for the server than three subqueries.
        ((fence, is_published, rank, is_prepared, publication, *run),) = self._engine.rows(
            "SELECT toString(max(fence)), max(is_published), max(rank), "
            f"max(rank = {_RANKS[_S.PREPARED]}), toString(max(pointer).2), {SERVER_RUN_SQL} FROM ("
            f"SELECT fence, 0 AS is_published, 0 AS rank, {no_pointer} FROM {self._table('taut_fences')} "
            f"UNION ALL SELECT 0, id = {identifier}, 0, (fence, publication) "
            f"FROM {self._table('taut_published')} "
            f"UNION ALL SELECT 0, 0, rank, {no_pointer} FROM {self._table('taut_transactions')} "
            f"WHERE id = {identifier})"
        )
        state = list(_RANKS)[rank]
        if is_published:
            state = TransactionState.COMMITTED
        elif state is TransactionState.COMMITTING and not is_prepared:
            state = TransactionState.UNKNOWN
        return TransactionStatus(Fence(int(fence)), state, int(publication), ServerRun(*map(int, run)))

    def entry(self, transaction: TransactionId) -> Entry:
        """A transaction that was begun."""
        entry = self._entry(str(transaction))
        assert entry is not None
        return entry

    def unfinished(self) -> list[Intent]:
        """The transactions that are neither committed nor aborted.

        A late row of an older owner does not reopen one that ended: it has a number below the floor, or is
        committing without having been prepared.
        """
        rows = self._engine.rows(
            f"SELECT id FROM {self._table('taut_transactions')} WHERE NOT {self._has_ended_sql()} "
            f"GROUP BY id HAVING max(publication) >= ({self._floor_sql()}) "
            f"AND (max(rank) != {_RANKS[_S.COMMITTING]} OR countIf(rank = {_RANKS[_S.PREPARED]}) > 0)"
        )
        entries = [self._entry(identifier) for (identifier,) in rows]
        return [entry.intent for entry in entries if entry is not None]

    def record(
        self,
        intent: Intent,
        fence: Fence,
        state: TransactionState,
        publication: int,
        content: Content | None = None,
        *,
        is_fenced: bool = False,
    ) -> None:
        """A transaction has come to a state.

        Args:
            is_fenced: only if the owner is the newest. It is one statement with the check.

        Raises:
            SinkFencedError
        """
        table = self._table("taut_transactions")
        texts = f"{_json_sql(intent.as_json())}, {_json_sql(content or {})}"
        identifier, numbers = text_sql(str(intent.transaction)), f"{_RANKS[state]}, {publication}"
        # The server takes rows of any size, and other text up to 256 KiB.
        if is_fenced and len(texts) > _MOST_TEXT:
            self.require(fence)
            is_fenced = False
        if not is_fenced:
            self._engine.run(f"INSERT INTO {table} VALUES ({identifier}, {int(fence)}, {numbers}, {texts})")
            return
        is_older = f"(SELECT max(fence) FROM {self._table('taut_fences')}) > {int(fence)}"
        try:
            self._engine.run(
                f"INSERT INTO {table} SELECT {identifier}, {int(fence)} + throwIf({is_older}), {numbers}, "
                + texts
            )
        except SinkError:
            self.require(fence)
            raise

    def forget_finished(self, fence: Fence) -> None:
        """Drop what older owners stored of transactions that ended."""
        older = f"SELECT id FROM {self._table('taut_transactions')} WHERE fence < {int(fence)}"
        self._delete("taut_transactions", f"id IN ({older}) AND {self._has_ended_sql()}")

    def _has_ended_sql(self) -> str:
        """The condition on rows of transactions that are committed or aborted."""
        return (
            f"(id IN (SELECT id FROM {self._table('taut_published')}) OR id IN (SELECT id "
            f"FROM {self._table('taut_transactions')} WHERE rank = {_RANKS[_S.ABORTED]}))"
        )

    def _entry(self, identifier: str) -> Entry | None:
        rows = self._engine.rows(
            f"SELECT rank, toString(publication), intent, content FROM {self._table('taut_transactions')} "
            f"WHERE id = {text_sql(identifier)} ORDER BY rank"
        )
        if not rows:
            return None
        contents = [json.loads(content) for *_, content in rows if content != "{}"]
        content: dict[str, Any] = contents[-1] if contents else {}
        rank, publication, intent, _ = rows[-1]
        return Entry(
            list(_RANKS)[rank],
            int(publication),
            Intent.from_json(json.loads(intent)),
            {
                table: {partition: (rows, text) for partition, (rows, text) in parts.items()}
                for table, parts in content.items()
            },
        )

    def _table(self, name: str) -> str:
        return f"{self._database}.{name}"


def _published(intent_text: str) -> Published:
    intent = Intent.from_json(json.loads(intent_text))
    return Published(transaction=intent.transaction, versions=intent.versions)


def _json_sql(value: object) -> str:
    return text_sql(json.dumps(value))


@dataclass(slots=True)
class Begun:
    """A transaction as far as this object knows it.

    Attributes:
        stagings: the tables that it opened for it; None for a transaction that another object began.
        is_new: nobody began it before this object did.
    """

    entry: Entry
    stagings: set[str] | None
    is_new: bool = False

    def record_stagings(self, *stagings: str) -> None:
        if self.stagings is not None:
            self.stagings.update(stagings)

    def is_new_name(self, staging: str) -> bool:
        """Whether nobody opened a staging table of this name before. Otherwise a statement on it may still
        come."""
        return self.is_new and self.stagings is not None and staging not in self.stagings


class BegunTransactions:
    """The transactions that this object began and that had no error since: it need not ask the server of them
    again."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self._name = name
        self._ledger = ledger
        self._begun: dict[TransactionId, Begun] = {}

    def __contains__(self, transaction: TransactionId) -> bool:
        return transaction in self._begun

    def clear(self) -> None:
        self._begun.clear()

    def add(self, entry: Entry, *, is_new: bool) -> None:
        self._begun[entry.intent.transaction] = Begun(entry, set(), is_new)

    def require_allowed(
        self, operation: Operation, transaction: TransactionId, fence: Fence, *, checked: bool = True
    ) -> TransactionState:
        """Where a transaction is, to which the operation may be done.

        Args:
            checked: false if the operation itself checks the fence of a transaction that is not decided.

        Raises:
            SinkFencedError: somebody else is the owner.
            SinkError: `SINK_TRANSACTION_STATE`.
        """
        begun = self._begun.get(transaction)
        if begun is None:
            status = self._ledger.status(transaction)
            highest, state = status.fence, status.state
        else:
            # Only the owner changes a transaction, and a newer one raises its fence first.
            state = begun.entry.state
            is_checked = checked or state not in (_S.INITIALIZED, _S.PREPARED)
            highest = self._ledger.highest_fence() if is_checked else fence
        require_fence(self._name, fence, highest)
        next_state(operation, state, transaction)
        return state

    @contextmanager
    def continued_transaction(self, transaction: TransactionId) -> Iterator[Begun]:
        """The transaction, to go on with it. After an error it is read from the server again."""
        begun = self._begun.pop(transaction, None) or Begun(self._ledger.entry(transaction), None)
        is_own = begun.stagings is not None
        yield begun
        if is_own:
            self._begun[transaction] = begun
