"""The port of sinks over one ClickHouse server or several, each with its own part of the rows of every table.

Every server has a ledger and tables, and takes part in one transaction over all (see `server`). The *first
server* decides: a transaction is committed when the first server says that it is committing.

1. `write` sends each row to the server that the hash of its key names, so a row goes where it came to.
2. `prepare` compares what each server has, the first server last: it is prepared only when all are.
3. `commit` records the decision on the first server, then every other server shows its rows, the first one
   last. Who reads the pointer of the first server finds the publication on all others.
4. `recover` asks all servers, so it waits until all of them answer. What the first server decided is finished
   on the others, everything else is dropped everywhere.
5. `maintain` folds history up to a floor that all servers have: see `folding`.

The layout (how many servers, which one, by which columns) is stored in each server and cannot change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    Capabilities,
    Digest,
    FoldedTable,
    Intent,
    Operation,
    Published,
    Recovered,
    RowDifference,
    SentChunk,
    Sink,
    TransactionId,
    TransactionState,
)
from tautochrone.sinks.clickhouse.comparison import row_differences
from tautochrone.sinks.clickhouse.engines import Engine, HttpEngine, ReadingEngine, open_engine
from tautochrone.sinks.clickhouse.ledger import Ledger
from tautochrone.sinks.clickhouse.options import ClickHouseOptions, server_options
from tautochrone.sinks.clickhouse.rows import batches, digests
from tautochrone.sinks.clickhouse.server import Server
from tautochrone.sinks.clickhouse.staging import is_for_tasks, stage_by_tasks
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.common.errors import not_observed_error
from tautochrone.sinks.common.existing import ExistingTable, TableToCompare, compared_tables
from tautochrone.sinks.common.steps import signed_frames

__all__ = [
    "ClickHouseSink",
    "compare_clickhouse_tables",
    "examine_clickhouse_sink",
    "observe_clickhouse_sink",
    "open_clickhouse_sink",
    "require_version",
]

_S = TransactionState
_MAINTAINED_EVERY = 20
"""After so many commits history is looked at; each look reads two columns of every table."""


class ClickHouseSink:
    """See the module docstring. `servers` is in the order of the sink's urls."""

    def __init__(self, name: str, servers: Sequence[Server]) -> None:
        self.name = name
        self._servers = list(servers)
        self._first, *self._others = servers
        self._commits_until_maintenance = 1

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def published(self) -> Published | None:
        """See `model.sink.Sink`.

        Raises:
            SinkError: `SINK_SERVERS_DIFFER`, unless a transaction that has not ended is the reason.
        """
        pointers = [server.published() for server in self._servers]
        transactions = {pointer and pointer.transaction for pointer in pointers}
        if len(transactions) > 1 and not any(server.unfinished() for server in self._servers):
            raise self._servers_differ_error(pointers)
        return pointers[0]

    def claim(self, lake: str) -> None:
        """See `model.sink.Sink`."""
        for server in self._servers:
            server.claim(lake)

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> Mapping[TableName, Reason]:
        changed: dict[TableName, Reason] = {}
        for server in self._servers:
            changed = {**server.changed_tables(tables, max_rows), **changed}
        return changed

    def highest_fence(self) -> Fence:
        return max(server.highest_fence() for server in self._servers)

    def fence(self, fence: Fence) -> None:
        for server in self._servers:
            server.fence(fence)

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Reason | None:  # noqa: ARG002
        reasons = [server.ensure(table, schema, fence) for server in self._servers]
        return next((reason for reason in reasons if reason is not None), None)

    def on_wait(self, report: Callable[[Reason], None]) -> None:
        """See `model.sink.ReportsWaits`."""
        for server in self._servers:
            server.on_wait(report)

    def comparison_reasons(self) -> Mapping[TableName, Reason]:
        """See `model.sink.ReportsComparison`. Where servers differ, that of the one that compares more."""
        reasons: dict[TableName, Reason] = {}
        for server in self._servers:
            for table, reason in server.comparison_reasons().items():
                if reasons.get(table, reason).code is ReasonCode.SINK_ROWS_COUNTED:
                    reasons[table] = reason
                reasons.setdefault(table, reason)
        return reasons

    # -- one transaction --------------------------------------------------------------------------

    def begin(self, intent: Intent) -> TransactionState:
        """See `model.sink.Sink`."""
        if self._others:
            self._require_answers()
        above = max(server.highest_publication(intent) for server in self._servers)
        for server in self._servers:
            state = server.begin(intent, above)
        return state

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[SentChunk]:
        return self._stage(transaction, table, signed_frames(change), change.rows)

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[SentChunk]:
        return self._stage(transaction, table, [(rows, 1)], None)

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        if self._others:
            self._first.require_allowed(Operation.PREPARE, transaction, transaction.fence)
        for server in (*self._others, self._first):
            server.prepare(transaction, self._chunks_of(server, chunks))

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        if self._others:
            self._decide(transaction, fence)
        for server in (*self._others, self._first):
            server.commit(transaction, fence, is_decided=bool(self._others))

    def _decide(self, transaction: TransactionId, fence: Fence) -> None:
        """From now on the transaction is committed. One server alone decides by its own commit."""
        if self._first.state(transaction) is _S.PREPARED:
            for server in self._servers:
                server.require_base(transaction)
        self._first.decide(transaction, fence)

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        for server in self._servers:
            server.abort(transaction, fence)

    # -- after a crash ----------------------------------------------------------------------------

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._require_answers()
        for server in self._servers:
            server.take_over(fence)
        unfinished = [intent for server in self._servers for intent in server.unfinished()]
        named = {str(intent.transaction) for intent in intents}
        known = {str(intent.transaction): intent for intent in (*unfinished, *intents)}
        ends = {
            name: self._end_recovered(intent, fence, is_named=name in named) for name, intent in known.items()
        }
        for server in self._servers:
            server.drop_leftovers(fence)
        # Refuses servers that show different checkpoints, now that all transactions have ended.
        self.published()
        return [Recovered(intent.transaction, ends[str(intent.transaction)]) for intent in intents]

    def _end_recovered(self, intent: Intent, fence: Fence, *, is_named: bool) -> TransactionState:
        transaction = intent.transaction
        state = self._first.state(transaction)
        may_commit = state is _S.PREPARED and is_named and self._is_whole(intent)
        if state is _S.COMMITTED or state is _S.COMMITTING or may_commit:
            self.commit(transaction, fence)
            return _S.COMMITTED
        for server in self._servers:
            if server.state(transaction) is not _S.ABORTED:
                server.abort(transaction, fence)
        return _S.ABORTED

    def _is_whole(self, intent: Intent) -> bool:
        if intent.chunks is None:
            return False
        return all(
            server.state(intent.transaction) is _S.PREPARED
            and server.is_whole(replace(intent, chunks=tuple(self._chunks_of(server, intent.chunks))))
            for server in self._servers
        )

    def _require_answers(self) -> None:
        """Nothing is begun or recovered before all servers answer.

        Raises:
            SinkError: `SINK_NOT_REACHABLE`.
        """
        for server in self._servers:
            server.require_answer()

    def _servers_differ_error(self, pointers: Sequence[Published | None]) -> SinkError:
        shown = ", ".join(
            f"{server.address} {'nothing' if pointer is None else f'checkpoint {pointer.checkpoint}'}"
            for server, pointer in zip(self._servers, pointers, strict=True)
        )
        return SinkError(
            "SINK_SERVERS_DIFFER",
            f"Sink {self.name}: its servers do not belong together: they show {shown}",
            hint="A server lost its database, or has an older copy of it. Drop the database on all "
            f"servers and run `taut sinks --forget {self.name}`: the next run delivers all rows.",
            parameters={"sink": self.name},
            sqlstate="55000",
        )

    # -- history and audit ------------------------------------------------------------------------

    def maintain(self, fence: Fence) -> Sequence[FoldedTable]:
        """See `model.sink.SinkMaintenance`; called after each commit. All servers have the same floor."""
        self._commits_until_maintenance -= 1
        if self._commits_until_maintenance > 0:
            return []
        self._commits_until_maintenance = _MAINTAINED_EVERY
        floor = min(server.folding.floor() for server in self._servers)
        for server in self._servers:
            server.folding.raise_floor(floor, fence)
        if any(server.folding.is_pinned_below(floor) for server in self._servers):
            return []
        return [table for server in self._servers for table in server.folding.fold(floor, fence)]

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:
        return digests(batches(rows, self._first.columns(table), self._first.options.chunk_rows))

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        totals: dict[str, Digest] = {}
        for server in self._servers:
            for part, digest in server.audit(table, checkpoint).items():
                before = totals.get(part, Digest(0, "0"))
                total = (int(before.hash, 16) + int(digest.hash, 16)) % 2**64
                totals[part] = Digest(before.rows + digest.rows, f"{total:016x}")
        return {part: digest for part, digest in totals.items() if digest != Digest(0, f"{0:016x}")}

    def differences(
        self, table: TableName, checkpoint: CheckpointNumber, rows: Rows, limit: int
    ) -> Sequence[RowDifference]:
        shards = [server.audited_server(table, checkpoint) for server in self._servers]
        return row_differences(shards, table, rows, self._first.options.chunk_rows, limit)

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        """See `model.sink.CheckpointHistory`."""
        return self._first.published_at(checkpoint)

    def unknown_parts(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Reason]:  # noqa: ARG002
        """None: what is kept is kept whole."""
        return {}

    def close(self) -> None:
        for server in self._servers:
            server.close()

    # -- inside -----------------------------------------------------------------------------------

    def _stage(
        self,
        transaction: TransactionId,
        table: TableName,
        signed_rows: Sequence[tuple[Rows, int]],
        known_rows: int | None,
    ) -> list[SentChunk]:
        key, options = self._first.shard_key(table), self._first.options
        if signed_rows and all(is_for_tasks(options, rows, known_rows) for rows, _ in signed_rows):
            open_stagings = [server.open_task_staging(transaction, table) for server in self._servers]
            return stage_by_tasks(self.name, open_stagings, signed_rows, key, options)
        columns = self._first.columns(table)
        with ExitStack() as opened:
            stagings = [
                opened.enter_context(server.open_staging(transaction, table)) for server in self._servers
            ]
            for rows, sign in signed_rows:
                for batch in batches(rows, columns, options.chunk_rows, known_rows):
                    for staging, part in zip(stagings, batch.split(len(stagings), key), strict=True):
                        if len(part):
                            staging.add(part, sign)
        return [chunk for staging in stagings for chunk in staging.chunks]

    def _chunks_of(self, server: Server, chunks: Sequence[SentChunk]) -> list[SentChunk]:
        """Those that the server took. The first one is also asked for chunks of unknown servers."""
        not_its_own = {other.address for other in self._servers if other is not server}
        if server is self._first:
            return [chunk for chunk in chunks if chunk.server not in not_its_own]
        return [chunk for chunk in chunks if chunk.server == server.address]


_OLDEST = (23, 1)
"""The first version with views that take parameters."""


def open_clickhouse_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server or folder, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_NOT_REACHABLE`, `SINK_SERVER_TOO_OLD`, or
            `SINK_SERVERS_SAME`.
    """
    return _opened(name, server_options(name, options), open_engine)


def observe_clickhouse_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink only to look at it: no statement is sent that writes.

    Raises:
        SinkError: as `open_clickhouse_sink`; `SINK_OBJECT_MISSING`, where something of the sink is missing;
            `SINK_NOT_OBSERVED`, an embedded engine writes into its folder when it is opened.
    """
    parsed = server_options(name, options)
    if any(server.folder for server in parsed):
        raise not_observed_error(name, "the folder of an embedded engine")
    return _opened(name, parsed, _reading_engine)


def _reading_engine(name: str, server: ClickHouseOptions) -> Engine:
    return ReadingEngine(name, open_engine(name, server), server.database)


def _opened(
    name: str,
    parsed: Sequence[ClickHouseOptions],
    connect: Callable[[str, ClickHouseOptions], Engine],
) -> ClickHouseSink:
    engines: list[Engine] = []
    servers: list[Server] = []
    identities: dict[str, ClickHouseOptions] = {}
    try:
        for server in parsed:
            engine = connect(name, server)
            engines.append(engine)
            require_version(name, engine)
            identity = Ledger(name, engine, server.database).identity
            if identity in identities:
                raise _same_database_error(name, identities[identity], server)
            identities[identity] = server
        for number, (engine, server) in enumerate(zip(engines, parsed, strict=True), 1):
            servers.append(Server(name, engine, server, f"{number}/{len(parsed)}"))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return ClickHouseSink(name, servers)


def examine_clickhouse_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in to each server, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_clickhouse_sink`, and `SINK_LOGIN_REFUSED`.
    """
    answers = []
    for server in server_options(name, options):
        if server.folder:
            answers.append(f"the embedded engine in {server.folder}")
            continue
        engine = HttpEngine(name, server)
        try:
            require_version(name, engine)
            ((version, user),) = engine.rows("SELECT version(), currentUser()")
        finally:
            engine.close()
        answers.append(f"ClickHouse {version} at {server.host}:{server.port} lets {user} in")
    return ", ".join(answers)


def compare_clickhouse_tables(
    name: str, options: Mapping[str, str], tables: Sequence[TableToCompare]
) -> Iterator[ExistingTable | SinkError]:
    """See `adapters.compare_mirrored_tables`. An engine in a folder is not opened: only one process can.

    Raises:
        SinkError: as `open_clickhouse_sink`.
    """
    for server in server_options(name, options):
        if server.folder:
            continue
        engine = HttpEngine(name, server)
        try:
            yield from compared_tables(tables, ClickHouseTables(name, engine, server).compare)
        finally:
            engine.close()


def _same_database_error(name: str, first: ClickHouseOptions, second: ClickHouseOptions) -> SinkError:
    return SinkError(
        "SINK_SERVERS_SAME",
        f"Sink {name}: {first.address} and {second.address} are the same database: one server under two "
        "names, or replicas of one",
        hint="Each url must be a server with a part of the rows. Name one replica of each shard.",
        parameters={"sink": name},
        sqlstate="22023",
    )


def require_version(name: str, engine: Engine) -> None:
    """Refuse a server that lacks what the sink needs, before anything is created in it.

    Raises:
        SinkError: `SINK_SERVER_TOO_OLD`.
    """
    ((version,),) = engine.rows("SELECT version()")
    major, minor = map(int, str(version).split(".")[:2])
    if (major, minor) < _OLDEST:
        raise SinkError(
            "SINK_SERVER_TOO_OLD",
            f"Sink {name}: ClickHouse {version} has no views with parameters",
            hint=f"Use ClickHouse {_OLDEST[0]}.{_OLDEST[1]} or newer.",
            sqlstate="0A000",
        )
