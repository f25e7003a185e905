"""What a sink stores of itself in its database: fences, transactions, publications.

All four tables only get new rows, one at a time, because ClickHouse inserts one row atomically and offers no
compare-and-set. What counts is told by their highest values:

- `taut_fences`: the highest fence.
- `taut_transactions`: the furthest state of a transaction. An owner that is paused between its check of the
  fence and its row can only add a state that the next owner has already gone past.
- `taut_published`: the row with the highest fence, and of these with the highest publication. A pointer that
  an older owner writes late never counts.
- `taut_replaced`: from which publication on the rows of a table count.

The number of a publication (`_ck` in the rows) is that of the checkpoint, or the next free one where a new
store counts checkpoints from 1 again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Intent, Published, TransactionId, TransactionState
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.sql import name_sql, text_sql
from tautochrone.sinks.common.steps import require_fence

__all__ = ["Content", "Entry", "Ledger"]

Content = Mapping[str, Mapping[str, tuple[int, str]]]
"""By table, as text, and partition of ClickHouse: rows and hash."""

_S = TransactionState
_RANKS = {
    state: rank
    for rank, state in enumerate(
        (_S.UNKNOWN, _S.INITIALIZED, _S.PREPARED, _S.COMMITTING, _S.COMMITTED, _S.ABORTING, _S.ABORTED)
    )
}
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


class Ledger:
    """See the module docstring."""

    def __init__(self, name: str, engine: Engine, database: str) -> None:
        self._name = name
        self._engine = engine
        self._database = name_sql(database)
        ((tables,),) = engine.rows(
            f"SELECT toUInt32(count()) FROM system.tables WHERE database = {text_sql(database)} "
            "AND name IN ('taut_fences', 'taut_transactions', 'taut_published', 'taut_replaced')"
        )
        if tables < 4:
            self._create(engine)

    def _create(self, engine: Engine) -> None:
        engine.run(f"CREATE DATABASE IF NOT EXISTS {self._database} ENGINE = Atomic")
        for table, columns, order in (
            ("taut_fences", "fence UInt64", "fence"),
            (
                "taut_transactions",
                "id String, fence UInt64, rank UInt8, publication UInt64, intent String, content String",
                "(id, rank)",
            ),
            (
                "taut_published",
                "fence UInt64, publication UInt64, checkpoint UInt64, incarnation String, id String, "
                "intent String, published_at DateTime64(3, 'UTC') DEFAULT now64(3)",
                "(publication, fence)",
            ),
            ("taut_replaced", "name String, publication UInt64", "(name, publication)"),
        ):
            engine.run(
                f"CREATE TABLE IF NOT EXISTS {self._table(table)} ({columns}) "
                + _MERGE_TREE.format(order=order)
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
        rows = self._engine.rows(
            f"SELECT toString(publication), intent FROM {self._table('taut_published')} "
            "ORDER BY fence DESC, publication DESC LIMIT 1"
        )
        if not rows:
            return None
        ((publication, text),) = rows
        intent = Intent.from_json(json.loads(text))
        return int(publication), Published(transaction=intent.transaction, versions=intent.versions)

    def publication_of(self, checkpoint: CheckpointNumber) -> int:
        """The newest publication of a checkpoint.

        Raises:
            SinkError: `SINK_CHECKPOINT_GONE`.
        """
        ((publication, count),) = self._engine.rows(
            f"SELECT toString(max(publication)), toString(count()) FROM {self._table('taut_published')} "
            f"WHERE checkpoint = {int(checkpoint)}"
        )
        if count == "0":
            newest = self.newest()
            shown = "nothing" if newest is None else f"checkpoint {newest[1].checkpoint}"
            raise SinkError("SINK_CHECKPOINT_GONE", f"Sink {self._name} shows {shown}, not {checkpoint}")
        return int(publication)

    def publish(self, entry: Entry, fence: Fence) -> None:
        """Write the pointer."""
        transaction = entry.intent.transaction
        values = (
            f"{int(fence)}, {entry.publication}, {int(entry.intent.checkpoint)}, "
            f"{text_sql(transaction.incarnation)}, {text_sql(str(transaction))}, "
            f"{_json_sql(entry.intent.as_json())}"
        )
        self._engine.run(
            f"INSERT INTO {self._table('taut_published')} "
            f"(fence, publication, checkpoint, incarnation, id, intent) VALUES ({values})"
        )

    def replaced(self, table: str, publication: int) -> None:
        """Rows of a table from before this publication no longer count in it and later ones."""
        self._engine.run(
            f"INSERT INTO {self._table('taut_replaced')} VALUES ({text_sql(table)}, {publication})"
        )

    # -- transactions -----------------------------------------------------------------------------

    def state(self, transaction: TransactionId) -> TransactionState:
        identifier = text_sql(str(transaction))
        ((published, rank),) = self._engine.rows(
            f"SELECT (SELECT toUInt8(count() > 0) FROM {self._table('taut_published')} "
            f"WHERE id = {identifier}), "
            f"(SELECT max(rank) FROM {self._table('taut_transactions')} WHERE id = {identifier})"
        )
        return TransactionState.COMMITTED if published else list(_RANKS)[rank or 0]

    def entry(self, transaction: TransactionId) -> Entry:
        """A transaction that was begun."""
        entry = self._entry(str(transaction))
        assert entry is not None
        return entry

    def unfinished(self) -> list[Intent]:
        """The transactions that are neither committed nor aborted."""
        final = f"{_RANKS[_S.COMMITTED]}, {_RANKS[_S.ABORTED]}"
        rows = self._engine.rows(
            f"SELECT id FROM {self._table('taut_transactions')} GROUP BY id HAVING max(rank) NOT IN ({final})"
        )
        entries = [self._entry(identifier) for (identifier,) in rows]
        return [entry.intent for entry in entries if entry is not None]

    def next_publication(self, checkpoint: CheckpointNumber) -> int:
        newest = self.newest()
        return max(int(checkpoint), 0 if newest is None else newest[0] + 1)

    def record(
        self,
        intent: Intent,
        fence: Fence,
        state: TransactionState,
        publication: int,
        content: Content | None = None,
    ) -> None:
        """A transaction has come to a state."""
        values = (
            f"{text_sql(str(intent.transaction))}, {int(fence)}, {_RANKS[state]}, {publication}, "
            f"{_json_sql(intent.as_json())}, {_json_sql(content or {})}"
        )
        self._engine.run(f"INSERT INTO {self._table('taut_transactions')} VALUES ({values})")

    def forget_finished(self, fence: Fence) -> None:
        """Drop what older owners stored of transactions that ended."""
        final = f"{_RANKS[_S.COMMITTED]}, {_RANKS[_S.ABORTED]}"
        table = self._table("taut_transactions")
        ended = f"SELECT id FROM {table} WHERE fence < {int(fence)} AND rank IN ({final})"
        if self._engine.rows(f"{ended} LIMIT 1"):
            self._engine.run(f"ALTER TABLE {table} DELETE WHERE id IN ({ended}) SETTINGS mutations_sync = 2")

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


def _json_sql(value: object) -> str:
    return text_sql(json.dumps(value))
