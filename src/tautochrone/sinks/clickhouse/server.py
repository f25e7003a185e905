"""The steps of a transaction in one server of a sink. ClickHouse has no transactions.

1. `open_staging` creates a staging table of this transaction, table and owner, and checks the fence. It is
   filled with rows, or `open_task_staging` lets Spark's tasks fill it: see `staging`.
2. `prepare` compares each chunk with what was sent, by content or by the number of its rows (see
   `comparison`), and records what each partition holds.
3. `commit` checks the fence, records that it is decided, moves each partition (`MOVE PARTITION`) into the
   table of rows, compares what arrived, and writes the pointer last. Readers see no row before.
4. A new owner raises the fence, then `take_over` renames the staging tables of older owners and waits for
   statements that use them: whatever an older owner still sends finds no table. Only then the new one looks
   at what arrived.

A partition that is already in the table of rows, because an answer was lost, is recognised by what it holds
and not moved again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    Digest,
    Intent,
    Operation,
    Published,
    SentChunk,
    TransactionId,
    TransactionState,
    next_state,
)
from tautochrone.sinks.clickhouse.comparison import (
    AuditedServer,
    ChunkCheck,
    ComparisonPolicy,
    Partitions,
    move_partitions,
    staged_content,
)
from tautochrone.sinks.clickhouse.engines import Engine, running_statements
from tautochrone.sinks.clickhouse.folding import Folding
from tautochrone.sinks.clickhouse.ledger import Begun, BegunTransactions, Entry, Ledger
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.records import Records
from tautochrone.sinks.clickhouse.rows import COUNTED
from tautochrone.sinks.clickhouse.staging import OpenStaging, Staging
from tautochrone.sinks.clickhouse.tables import FOLDING_PREFIX, ClickHouseTables
from tautochrone.sinks.clickhouse.types import MirroredColumn
from tautochrone.sinks.common.steps import require_fence

__all__ = ["Server", "Waits"]

_QUIET_S = 60.0
"""How long a statement of which the answer was lost may still run."""
_MERGES_S = 60.0
"""How long a delivery waits for merges before it counts as failed and is tried again."""
_REPORT_EVERY_S = 10.0


class Waits:
    """What a delivery waits for. Set `report` to be told when a wait begins, and while it lasts."""

    def __init__(
        self, name: str, engine: Engine, tables: ClickHouseTables, options: ClickHouseOptions
    ) -> None:
        self.report: Callable[[Reason], None] = lambda _reason: None
        self._name = name
        self._engine = engine
        self._tables = tables
        self._options = options
        self._spare_chunks = 0
        self._spare_tables: set[TableName] = set()

    def await_quiet(self, stagings: Sequence[str]) -> None:
        """Wait until no statement uses these tables: one whose answer was lost may still run.

        Raises:
            SinkError: `SINK_BUSY`.
        """
        if not stagings:
            return
        server = self._options.address

        def running() -> Reason | None:
            count = running_statements(self._engine, stagings)
            if not count:
                return None
            return Reason.of(ReasonCode.SINK_STATEMENTS_RUNNING, statements=count, server=server)

        reason = self._until_none(running, _QUIET_S, 0.05)
        if reason is not None:
            raise SinkError(
                "SINK_BUSY",
                f"Sink {self._name}: {reason.params['statements']} statements of an earlier try still run",
                hint="See system.processes of the server.",
                retryable=True,
            )

    def await_merges(self, tables: Sequence[TableName]) -> None:
        """Wait until the server has merged enough: it slows down inserts with many parts, but not moves.

        Raises:
            SinkError: `SINK_TOO_MANY_PARTS`.
        """
        if not tables or (self._spare_chunks > 0 and self._spare_tables.issuperset(tables)):
            return
        limit, server = self._options.max_parts, self._options.address

        def unmerged() -> Reason | None:
            parts, table = self._tables.most_parts(tables)
            # A chunk adds a part to each partition, or two if it is large.
            self._spare_chunks, self._spare_tables = (limit - parts) // 2, set(tables)
            if parts <= limit:
                return None
            return Reason.of(
                ReasonCode.SINK_PARTS_UNMERGED, table=table, server=server, parts=parts, limit=limit
            )

        reason = self._until_none(unmerged, _MERGES_S, 0.2)
        if reason is not None:
            parts, table = reason.params["parts"], reason.params["table"]
            raise SinkError(
                "SINK_TOO_MANY_PARTS",
                f"Sink {self._name}: a partition of {table} in {server} has {parts} unmerged parts, more "
                f"than {limit}; deliveries wait until some are merged",
                hint="Deliver less often, use fewer partitions (partition_by), or look at "
                "system.merges of the server.",
                parameters={"sink": self._name, "parts": str(parts)},
                retryable=True,
            )

    def count_chunks(self, chunks: int) -> None:
        """So many chunks were staged: with enough of them the server is asked for its parts again."""
        self._spare_chunks -= chunks

    def _until_none(
        self, obstacle: Callable[[], Reason | None], limit_s: float, pause_s: float
    ) -> Reason | None:
        """Wait until there is no obstacle; the one that is left when the time is up."""
        started = time.monotonic()
        next_report = started
        while True:
            reason = obstacle()
            now = time.monotonic()
            if reason is None or now - started > limit_s:
                return reason
            if now >= next_report:
                self.report(reason)
                next_report = now + _REPORT_EVERY_S
            time.sleep(pause_s)


_S = TransactionState


class Server:
    """See the module docstring.

    Args:
        position: which one of how many servers of the sink it is.
    """

    def __init__(self, name: str, engine: Engine, options: ClickHouseOptions, position: str = "1/1") -> None:
        self._name = name
        self._engine = engine
        self.options = options
        self._ledger = Ledger(name, engine, options.database)
        self._tables = ClickHouseTables(name, engine, options)
        self._records = Records(name, engine, options.database, self._ledger, self._tables)
        self.folding = Folding(name, engine, options, self._ledger, self._tables)
        self._waits = Waits(name, engine, self._tables, options)
        self._begun = BegunTransactions(name, self._ledger)
        self._comparison = ComparisonPolicy(name, options)
        self._comparison_reasons: dict[TableName, Reason] = {}
        self._position = position
        self._fence: Fence | None = None
        """Of this owner; None: whoever opened the sink is none."""
        self._require_position()

    @property
    def address(self) -> str:
        """Tells the servers of a sink apart."""
        return self.options.address

    def require_answer(self) -> None:
        """Nothing is begun or recovered before the server answers.

        Raises:
            SinkError: `SINK_NOT_REACHABLE`.
        """
        try:
            self._engine.rows("SELECT 1")
        except Exception as error:
            raise SinkError(
                "SINK_NOT_REACHABLE",
                f"Sink {self._name}: server {self.address} does not answer; deliveries wait for it: {error}",
                parameters={"sink": self._name, "server": self.address},
                retryable=True,
            ) from error

    def published(self) -> Published | None:
        self._engine.renew_settings()
        self._ledger.restore()
        if not self._is_only:
            # Somebody may have dropped the layout, without which the next process refuses the database.
            self._require_position()
        newest = self._ledger.newest()
        return None if newest is None else newest[1]

    def claim(self, lake: str) -> None:
        """See `model.sink.Sink`."""
        self._ledger.claim(lake)

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> Mapping[TableName, Reason]:
        return self._records.changed_tables(tables, max_rows, self._fence)

    def highest_fence(self) -> Fence:
        return self._ledger.highest_fence()

    def fence(self, fence: Fence) -> None:
        self._ledger.raise_to(fence)
        self._fence = fence

    def ensure(self, table: TableName, schema: Any, fence: Fence) -> Reason | None:
        self._ledger.require(fence)
        reason = self._tables.ensure(table, schema, fence)
        if not self._is_only:
            columns = ",".join(self._tables.shard_key(table))
            self._ledger.require_layout(f"shard_by {table}", columns, unset="")
        return reason

    def columns(self, table: TableName) -> Sequence[MirroredColumn]:
        return self._tables.columns(table)

    def shard_key(self, table: TableName) -> Sequence[str]:
        """The columns whose hash says to which server a row goes; empty for all of them."""
        return self._tables.shard_key(table)

    def on_wait(self, report: Callable[[Reason], None]) -> None:
        """See `model.sink.ReportsWaits`."""
        self._waits.report = report

    def comparison_reasons(self) -> Mapping[TableName, Reason]:
        """See `model.sink.ReportsComparison`."""
        return dict(self._comparison_reasons)

    # -- one transaction --------------------------------------------------------------------------

    def highest_publication(self, intent: Intent) -> int:
        """Of the rows in tables that are sent whole."""
        return self._records.highest_publication(intent)

    def state(self, transaction: TransactionId) -> TransactionState:
        return self._ledger.state(transaction)

    def require_allowed(self, operation: Operation, transaction: TransactionId, fence: Fence) -> None:
        """Raise what the operation would raise of the state of the transaction."""
        self._begun.require_allowed(operation, transaction, fence)

    def begin(self, intent: Intent, above: int) -> TransactionState:
        """`above`: the highest publication of any server's rows in tables that are sent whole."""
        transaction = intent.transaction
        self._begun.clear()
        self._comparison_reasons.clear()
        status = self._ledger.status(transaction)
        self._comparison.observe_run(status.run)
        require_fence(self._name, transaction.fence, status.fence)
        state = next_state(Operation.BEGIN, status.state, transaction)
        self._waits.await_merges(list(intent.versions))
        self._records.require_base(intent)
        publication = max(status.next_publication(intent.checkpoint), above + 1)
        self._ledger.record(intent, transaction.fence, state, publication)
        is_new = status.state is _S.UNKNOWN
        self._begun.add(Entry(state, publication, intent, {}), is_new=is_new)
        return state

    def open_staging(self, transaction: TransactionId, table: TableName) -> Staging:
        """An empty staging table, in the place of the one that the transaction may have."""
        self._require_writable(transaction)
        with self._begun.continued_transaction(transaction) as begun:
            staging = self._tables.staging_name(transaction, table, transaction.fence)
            check = self._chunk_check(begun, table, staging)
            self._tables.create_staging(staging, table, is_new=begun.is_new_name(staging))
            # A newer owner that raised its fence before this check may not have seen the staging table.
            self._ledger.require(transaction.fence)
            begun.record_stagings(staging)
            publication = begun.entry.publication
            return Staging(self._tables, staging, table, publication, self._chunk_server, check)

    def open_task_staging(self, transaction: TransactionId, table: TableName) -> OpenStaging:
        """A staging table into which tasks insert."""
        self._require_writable(transaction)
        with self._begun.continued_transaction(transaction) as begun:
            name = self._tables.staging_name(transaction, table, transaction.fence)
            staging = OpenStaging(
                self._tables,
                self.options,
                name,
                table,
                begun.entry.publication,
                self._chunk_server,
                self._chunk_check(begun, table, name),
                self._waits.await_quiet,
            )
            staging.create()
            self._ledger.require(transaction.fence)
            begun.record_stagings(name, staging.open_name)
            return staging

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        fence = transaction.fence
        state = next_state(
            Operation.PREPARE,
            self._begun.require_allowed(Operation.PREPARE, transaction, fence, checked=False),
            transaction,
        )
        with self._begun.continued_transaction(transaction) as begun:
            entry = begun.entry
            try:
                content = self._staged_content(entry.intent, chunks, fence, begun.stagings)
            except SinkError:
                # A newer owner may have renamed the staging tables.
                self._ledger.require(fence)
                raise
            self._ledger.record(entry.intent, fence, state, entry.publication, content, is_fenced=True)
            self._waits.count_chunks(len(chunks))
            for table in {chunk.table for chunk in chunks if chunk.digest.hash != COUNTED}:
                self._comparison.record_proven(table, self.columns(table))
            begun.entry = replace(entry, state=state, content=content)

    def require_base(self, transaction: TransactionId) -> None:
        """Raise what `commit` would raise of the transaction's base, before it is decided."""
        with self._begun.continued_transaction(transaction) as begun:
            self._records.require_base(begun.entry.intent)

    def decide(self, transaction: TransactionId, fence: Fence) -> None:
        """From now on the transaction is committed, whatever happens. Repeatable."""
        if self._begun.require_allowed(Operation.COMMIT, transaction, fence, checked=False) is _S.PREPARED:
            with self._begun.continued_transaction(transaction) as begun:
                entry = begun.entry
                self._records.require_base(entry.intent)
                self._ledger.record(entry.intent, fence, _S.COMMITTING, entry.publication, is_fenced=True)
                begun.entry = replace(entry, state=_S.COMMITTING)

    def commit(self, transaction: TransactionId, fence: Fence, *, is_decided: bool = False) -> None:
        """`is_decided`: another server of the sink has recorded that it is committed."""
        state = self._begun.require_allowed(Operation.COMMIT, transaction, fence, checked=False)
        if state is _S.COMMITTED:
            return
        # Rows of a commit that somebody else began, or this object before an error, may have arrived.
        may_have_moved = state is _S.COMMITTING and transaction not in self._begun
        with self._begun.continued_transaction(transaction) as begun:
            entry = begun.entry
            self._tables.attach(entry.intent)
            if may_have_moved:
                self._waits.await_quiet(self._tables.staging_tables(transaction))
            elif state is not _S.COMMITTING:
                if not is_decided:
                    self._records.require_base(entry.intent)
                self._ledger.record(entry.intent, fence, _S.COMMITTING, entry.publication, is_fenced=True)
            if entry.intent.replaced or may_have_moved:
                self._ledger.require(fence)
            for table in entry.intent.replaced:
                self._ledger.hide_rows_before(str(table), entry.publication)
                self._tables.show_from(table, entry.publication)
            # Without a further check: a newer owner renamed the staging tables before it looked at the state,
            # finishes what is decided, and the pointer of an older one never counts.
            self._move(entry, fence, may_have_moved=may_have_moved)
            self._ledger.publish(entry, fence, self._records.text(entry))
            self._drop_staging(transaction, begun.stagings)
            begun.entry = replace(entry, state=_S.COMMITTED)
        self._tables.settle_all(entry.intent.replaced, fence)

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        self._begun.clear()
        self._tables.release()
        self._begun.require_allowed(Operation.ABORT, transaction, fence)
        intent = Intent(transaction=transaction, versions={})
        self._ledger.record(intent, fence, _S.ABORTING, 0)
        self._drop_staging(transaction)
        self._ledger.record(intent, fence, _S.ABORTED, 0)

    # -- after a crash ----------------------------------------------------------------------------

    def take_over(self, fence: Fence) -> None:
        """Nothing that older owners still send has an effect afterwards."""
        self._begun.clear()
        self._tables.release()
        self._comparison.forget()
        self._ledger.require(fence)
        self._fence = fence
        self._take_over_staging(fence)

    def unfinished(self) -> list[Intent]:
        """The transactions that are neither committed nor aborted."""
        return self._ledger.unfinished()

    def is_whole(self, intent: Intent) -> bool:
        """Whether the staged rows are those that were sent. Of rows that were only counted nobody but their
        writer knows."""
        if intent.chunks is None or any(chunk.digest.hash == COUNTED for chunk in intent.chunks):
            return False
        self._tables.attach(intent)
        try:
            self._staged_content(intent, intent.chunks, self._ledger.highest_fence())
        except SinkContentError:
            return False
        return True

    def drop_leftovers(self, fence: Fence) -> None:
        """All transactions have ended: drop what is left of them."""
        for staging in self._tables.staging_tables():
            self._tables.drop(staging)
        self._tables.release()
        newest = self._ledger.newest()
        self._tables.settle_all([] if newest is None else list(newest[1].versions), fence)
        self._ledger.forget_finished(fence)

    def _take_over_staging(self, fence: Fence) -> None:
        stagings = self._tables.staging_tables()
        foldings = [name for name in stagings if name.startswith(FOLDING_PREFIX)]
        for folding in foldings:
            # A folding that comes late would bring back what the partition was before the next commit.
            self._tables.drop(folding)
        self._waits.await_quiet(foldings)
        for staging in stagings:
            if staging in foldings:
                continue
            stem, _, owner = staging.rpartition("__")
            if int(owner) < fence:
                self._tables.rename(staging, f"{stem}__{fence}")
        self._waits.await_quiet(stagings)

    # -- audit ------------------------------------------------------------------------------------

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        return self._tables.audit(table, self._publication_of(table, checkpoint))

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        """See `model.sink.CheckpointHistory`."""
        return self._ledger.published_at(checkpoint)

    def audited_server(self, table: TableName, checkpoint: CheckpointNumber) -> AuditedServer:
        return AuditedServer(self._engine, self._tables, self._publication_of(table, checkpoint))

    def _publication_of(self, table: TableName, checkpoint: CheckpointNumber) -> int:
        """See `Ledger.publication_of`; a table that was built anew has nothing from before."""
        publication = self._ledger.publication_of(checkpoint)
        if publication < self._tables.since(table):
            raise SinkError(
                "SINK_CHECKPOINT_GONE",
                f"Sink {self._name}: {table} got other columns after checkpoint {checkpoint}",
            )
        return publication

    def close(self) -> None:
        self._engine.close()

    # -- inside -----------------------------------------------------------------------------------

    def _chunk_check(self, begun: Begun, table: TableName, staging: str) -> ChunkCheck:
        is_new = begun.is_new_name(staging)
        check, reason = self._comparison.of(table, self.columns(table), is_new=is_new)
        self._comparison_reasons[table] = reason
        return check

    def _require_writable(self, transaction: TransactionId) -> None:
        # The fence is checked once the staging table is there.
        self._begun.require_allowed(Operation.WRITE, transaction, transaction.fence, checked=False)

    @property
    def _is_only(self) -> bool:
        return self._position == "1/1"

    def _require_position(self) -> None:
        """Refuse a database whose rows are of another server of the sink, or of other servers.

        Raises:
            SinkError: `SINK_SERVERS_CHANGED`.
        """
        self._ledger.require_layout("server", self._position, unset="1/1")

    @property
    def _chunk_server(self) -> str:
        """What chunks are said to be in; one of one server needs no name."""
        return "" if self._is_only else self.address

    def _staged_content(
        self,
        intent: Intent,
        chunks: Sequence[SentChunk],
        highest: Fence,
        opened: Collection[str] | None = None,
    ) -> dict[str, Partitions]:
        """See `staged_content`.

        Args:
            highest: the fence of the newest owner, after which it may have renamed staging tables.
            opened: the staging tables, if they are known.
        """
        existing = self._tables.staging_tables(intent.transaction) if opened is None else opened
        stagings = {}
        for table in dict.fromkeys((*intent.versions, *(chunk.table for chunk in chunks))):
            names = self._staging_names(intent.transaction, table, highest)
            staging = next((name for name in existing if name in names), None)
            if staging is not None:
                stagings[table] = staging
        return staged_content(self._name, self._tables, stagings, chunks, self._comparison)

    def _staging_names(self, transaction: TransactionId, table: TableName, highest: Fence) -> list[str]:
        """What the staging table of a table may be called: after the writer's fence or a newer owner's."""
        return [
            self._tables.staging_name(transaction, table, fence) for fence in {transaction.fence, highest}
        ]

    def _move(self, entry: Entry, fence: Fence, *, may_have_moved: bool) -> None:
        transaction = entry.intent.transaction
        for name, partitions in entry.content.items():
            table = TableName.parse(name)
            staging = self._tables.staging_name(transaction, table, fence)
            move_partitions(
                self._name,
                self._tables,
                table,
                staging,
                partitions,
                entry.publication,
                may_have_moved=may_have_moved,
            )

    def _drop_staging(self, transaction: TransactionId, opened: Collection[str] | None = None) -> None:
        for staging in self._tables.staging_tables(transaction) if opened is None else opened:
            self._tables.drop(staging)
