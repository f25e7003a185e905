"""The port of a sink, the states of a delivery's transaction, and deliveries as values.

Beside the port an adapter may offer audits of rows, history and reports.

A sink mirrors tables of the lake outside of it. It gets one transaction per delivered checkpoint, over all
of its tables, and never shows half of one:

1. `begin(intent)` opens the transaction. Its id is made by the caller, so that whoever comes back after a
   crash can name it.
2. `write` stages what changed in one table (`replace` stages all rows of one). Nothing of it can be read yet.
3. `prepare` compares what is staged with what was sent, by content. From now on the transaction can be
   committed without its source.
4. `commit` makes all tables show it. The pointer to the published checkpoint is written last.

Every operation may be repeated in every state: `TRANSITIONS` says what each answers. An owner is told apart
by its fence; a sink refuses every fence below the highest one that it has seen. What became of a transaction
whose answer was lost is asked of the sink by `recover`, never guessed.

A commit is a compare-and-set on what the sink shows. A delta is right on top of one content only, so:

- `claim` binds a sink's database to one sink of one lake, by an identity that is written in it.
- `changed_tables` compares what each table holds with what the pointer stands for. A table that differs is
  sent whole. What a table must hold (which object it is, how many rows, a sum over their hashes) is recorded
  with the pointer, so that an older copy of the pointer brings its own record back.
- `Intent.base` is the pointer from which the deltas start. `begin` and `commit` refuse another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange, Rows, VersionFiles
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason

__all__ = [
    "PUBLICATIONS",
    "TRANSITIONS",
    "Capabilities",
    "CheckpointHistory",
    "Delivered",
    "DeliveryPolicy",
    "DeliveryState",
    "Digest",
    "DropsMirrors",
    "FoldedTable",
    "Intent",
    "Operation",
    "Published",
    "PublishedAs",
    "Recovered",
    "RenamesMirrors",
    "Repairable",
    "ReportsComparison",
    "ReportsWaits",
    "RowAudit",
    "RowDifference",
    "SentChunk",
    "Sink",
    "SinkDeclaration",
    "SinkFlow",
    "SinkMaintenance",
    "SinkStatus",
    "TakesFiles",
    "TransactionId",
    "TransactionState",
    "next_state",
    "require_base",
]


PublishedAs = Mapping[str, Mapping[str, str]]
"""By format the version of each published table at a checkpoint, by the table's name."""

PUBLICATIONS: Mapping[str, str] = MappingProxyType(
    {name: f"{name}-publication" for name in ("delta", "hudi", "paimon")}
)
"""The formats in which tables can be published, and the sink of each: its name, which is also its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sink can do. The delivery asks before it sends anything, and refuses what does not fit.

    Attributes:
        several_tables: one transaction spans several tables, which readers see change at once.
        retractions: it takes rows that went. Without it only insert-only deltas can be delivered.
        replaces: it can take all rows of a table instead of a delta, which a rebuild needs.
        keyed: it needs to know which columns identify a row.
        audits: it can tell what it holds, by content.
        resumable: another process can go on with a transaction. Without it a transaction ends with the
            process that began it, and only whether it was committed is known afterwards.
    """

    several_tables: bool = True
    retractions: bool = True
    replaces: bool = True
    keyed: bool = False
    audits: bool = True
    resumable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionId:
    """Names one try to deliver one checkpoint to one sink. The same try has the same id in every process.

    Attributes:
        incarnation: of the store that numbered the checkpoint; a number alone identifies nothing.
        attempt: counts the tries of one owner, from 1: an aborted transaction is never opened again.
    """

    incarnation: str
    sink: str
    checkpoint: CheckpointNumber
    fence: Fence
    attempt: int = 1

    def __str__(self) -> str:
        """Letters, digits and underscores only, at most 64: usable as a name in most systems."""
        origin = hashlib.sha256(f"{self.incarnation}\n{self.sink}".encode()).hexdigest()[:12]
        return f"taut_{origin}_{self.checkpoint}_{self.fence}_{self.attempt}"

    def as_json(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "sink": self.sink,
            "checkpoint": int(self.checkpoint),
            "fence": int(self.fence),
            "attempt": self.attempt,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TransactionId:
        """The inverse of `as_json`."""
        return cls(
            incarnation=value["incarnation"],
            sink=value["sink"],
            checkpoint=CheckpointNumber(value["checkpoint"]),
            fence=Fence(value["fence"]),
            attempt=value["attempt"],
        )


@dataclass(frozen=True, slots=True)
class Digest:
    """The content of a set of rows: their number, and a hash that does not depend on their order.

    How the hash is computed is the adapter's own; it only compares digests of its own making.
    """

    rows: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentChunk:
    """A part of a transaction that was sent in one piece.

    Attributes:
        number: counts the chunks of one table in one transaction, from 0.
        digest: of what was sent. `prepare` compares it with what arrived.
        partition: of the sink's table, in the sink's spelling.
        server: which of several servers took it.
    """

    table: TableName
    number: int
    digest: Digest
    partition: str = ""
    server: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "number": self.number,
            "rows": self.digest.rows,
            "hash": self.digest.hash,
            "partition": self.partition,
            "server": self.server,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SentChunk:
        """The inverse of `as_json`."""
        return cls(
            table=TableName.parse(value["table"]),
            number=value["number"],
            digest=Digest(value["rows"], value["hash"]),
            partition=value["partition"],
            server=value["server"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a transaction is about to do. The store has it before the sink hears of the transaction.

    Attributes:
        versions: of the delivered tables at the checkpoint; the sink keeps them beside its pointer.
        base: the transaction that the sink shows, from which the deltas start; None when it shows nothing.
        replaced: tables of which all rows are sent, instead of those that changed.
        chunks: what was sent, once it is prepared; None before.
    """

    transaction: TransactionId
    versions: Mapping[TableName, Version]
    base: TransactionId | None = None
    replaced: tuple[TableName, ...] = ()
    chunks: tuple[SentChunk, ...] | None = None

    @property
    def checkpoint(self) -> CheckpointNumber:
        return self.transaction.checkpoint

    def as_json(self) -> dict[str, Any]:
        return {
            "transaction": self.transaction.as_json(),
            "versions": {str(table): version for table, version in self.versions.items()},
            "base": None if self.base is None else self.base.as_json(),
            "replaced": [str(table) for table in self.replaced],
            "chunks": None if self.chunks is None else [chunk.as_json() for chunk in self.chunks],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Intent:
        """The inverse of `as_json`."""
        chunks = value["chunks"]
        return cls(
            transaction=TransactionId.from_json(value["transaction"]),
            versions={TableName.parse(name): Version(text) for name, text in value["versions"].items()},
            base=None if value["base"] is None else TransactionId.from_json(value["base"]),
            replaced=tuple(map(TableName.parse, value["replaced"])),
            chunks=None if chunks is None else tuple(SentChunk.from_json(chunk) for chunk in chunks),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The pointer of a sink: the transaction that its readers see, and which versions of the lake's tables
    it stands for. The versions prove whose mirror it is, also to a store that never heard of it."""

    transaction: TransactionId
    versions: Mapping[TableName, Version] = field(default_factory=dict)

    @property
    def checkpoint(self) -> CheckpointNumber:
        return self.transaction.checkpoint


class TransactionState(StrEnum):
    """Where a transaction is. `COMMITTING` and `ABORTING` are decided and not finished: only the same
    operation may follow."""

    UNKNOWN = "unknown"
    INITIALIZED = "initialized"
    PREPARED = "prepared"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a transaction: `COMMITTED`, or `ABORTED` (nothing of it is left in the sink)."""

    transaction: TransactionId
    state: TransactionState


class Operation(StrEnum):
    """What can be done to a transaction. `WRITE` stands for `Sink.replace` too."""

    BEGIN = "begin"
    WRITE = "write"
    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"


_S = TransactionState
TRANSITIONS: Mapping[Operation, Mapping[TransactionState, TransactionState]] = MappingProxyType(
    {
        Operation.BEGIN: {_S.UNKNOWN: _S.INITIALIZED, _S.INITIALIZED: _S.INITIALIZED},
        Operation.WRITE: {_S.INITIALIZED: _S.INITIALIZED},
        Operation.PREPARE: {_S.INITIALIZED: _S.PREPARED, _S.PREPARED: _S.PREPARED},
        Operation.COMMIT: {
            _S.PREPARED: _S.COMMITTED,
            _S.COMMITTING: _S.COMMITTED,
            _S.COMMITTED: _S.COMMITTED,
        },
        Operation.ABORT: {
            _S.UNKNOWN: _S.ABORTED,
            _S.INITIALIZED: _S.ABORTED,
            _S.PREPARED: _S.ABORTED,
            _S.ABORTING: _S.ABORTED,
            _S.ABORTED: _S.ABORTED,
        },
    }
)
"""For each operation and each state the state that follows; what is missing is refused."""


def next_state(operation: Operation, state: TransactionState, transaction: TransactionId) -> TransactionState:
    """The state that follows, or the error that every adapter raises.

    Raises:
        SinkError: `SINK_TRANSACTION_STATE`, the operation is refused in this state.

    Example:
        >>> transaction = TransactionId(incarnation="i", sink="s", checkpoint=1, fence=1)
        >>> next_state(Operation.BEGIN, TransactionState.UNKNOWN, transaction)
        <TransactionState.INITIALIZED: 'initialized'>
    """
    following = TRANSITIONS[operation].get(state)
    if following is None:
        raise SinkError(
            "SINK_TRANSACTION_STATE",
            f"Sink {transaction.sink}: {operation} is refused, transaction {transaction} is {state}",
            # The next try asks the sink first what became of the transaction.
            retryable=True,
            parameters={"sink": transaction.sink, "operation": operation, "state": state},
        )
    return following


def require_base(intent: Intent, shown: Published | None) -> None:
    """Refuse a transaction whose deltas start from something else than what the sink shows.

    Raises:
        SinkError: `SINK_BASE_CHANGED`. Trying again begins with what the sink shows then.
    """
    transaction = None if shown is None else shown.transaction
    if transaction != intent.base:
        sink = intent.transaction.sink
        raise SinkError(
            "SINK_BASE_CHANGED",
            f"Sink {sink} shows {transaction or 'nothing'}, and the changes of {intent.transaction} start "
            f"from {intent.base or 'nothing'}",
            hint="Somebody restored, emptied or wrote the sink meanwhile. The next try starts from what it "
            "shows then.",
            parameters={"sink": sink},
            retryable=True,
            sqlstate="40001",
        )


class Sink(Protocol):
    """One sink, opened by its adapter. Used by one thread at a time.

    Whatever fails raises `SinkError`; `SinkFencedError` when a newer owner is seen. An error of any other
    kind, or no answer, means that the outcome is unknown: the delivery goes on with `recover`.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the sink can do. Asked before anything is sent."""

    def published(self) -> Published | None:
        """What its readers see now; None while nothing was ever committed."""

    def claim(self, lake: str) -> None:
        """Write into the sink's database whose it is, if it is nobody's. Called before anything is written.
        Repeatable.

        Args:
            lake: the identity of the lake, which a copy of it does not have; with the sink's name it says
                whose mirror this is.

        Raises:
            SinkError: `SINK_DATABASE_TAKEN`, it belongs to another sink, or to a sink of another lake.
        """

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> Mapping[TableName, Reason]:
        """Which of these tables do not hold what the pointer stands for, and why: they were dropped, renamed,
        created again, emptied, restored or changed by somebody else. They must be sent whole, or refused.

        Asked before `ensure`, of tables in `published().versions`. What the sink can tell without reading
        rows (which object it is, whether it is empty) is compared always; if that differs, the rows decide.

        Args:
            max_rows: rows are compared in tables with so many of them at most; None: in all tables.
        """

    def highest_fence(self) -> Fence:
        """The highest fence that the sink has seen; 0 for a new one."""

    def fence(self, fence: Fence) -> None:
        """Refuse everything with a lower fence from now on. Repeatable.

        Raises:
            SinkFencedError: the sink has seen a higher one.
        """

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Reason | None:
        """Create what stands for a table, or add the columns that it lacks. Repeatable.

        Args:
            schema: a pyspark StructType.
            key: the columns that identify a row; empty when none are known.

        Returns:
            Why all rows must be sent, by `replace` in a transaction of this process: columns have another
            type or went, or the key is another one. The commit of that transaction puts the new table in the
            place of the older one, which readers see until then. None: the table takes deltas.

        Raises:
            SinkError: `SINK_SCHEMA_UNSUPPORTED`, the sink cannot hold such a table: a name, a type, a number
                of columns. Nothing was written.
        """

    def begin(self, intent: Intent) -> TransactionState:
        """Open the transaction. On an open one it answers `INITIALIZED` again.

        Raises:
            SinkError: `SINK_BASE_CHANGED`, the sink does not show `Intent.base`.
        """

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[SentChunk]:
        """Stage a consolidated delta: no row is in both of its signs. Writing a table again replaces what
        the transaction staged for it, so a lost answer doubles nothing.

        Raises:
            SinkError: `SINK_VALUE_UNSUPPORTED`, the sink cannot hold a value, with its table, column and key.
        """

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[SentChunk]:
        """Stage all rows of a table, which the commit puts in the place of what is there."""

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        """Compare what is staged with what was sent.

        Raises:
            SinkContentError: they differ. The transaction must be aborted.
        """

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        """Show the transaction to readers, the pointer last. Repeatable.

        `fence` is that of the caller, who may be a newer owner than the one that prepared it.

        Raises:
            SinkError: `SINK_BASE_CHANGED`, the sink does not show `Intent.base` any more, or a table that
                gets a delta is not the one that `changed_tables` compared. The transaction must be aborted.
        """

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        """Drop what is staged. Repeatable."""

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        """After `fence`: finish or drop all transactions of the past, those of `intents` and any other.

        A transaction that is committing is committed, a prepared one whose content is still right may be;
        everything else is aborted. Answers one value for each intent, in their order. Repeatable.
        """

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:
        """What `audit` would answer if the sink held exactly these rows. Changes nothing."""

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        """What the sink shows of a table at a checkpoint, by partition.

        Raises:
            SinkError: `SINK_CHECKPOINT_GONE`, it does not show this checkpoint (any more).
        """

    def close(self) -> None:
        """Give connections back. Repeatable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row of which the sink and the lake have different numbers of copies; `row` is for people to read."""

    row: str
    in_sink: int
    in_lake: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedTable:
    """A table of a sink of which older history was given up.

    Attributes:
        rows_before: of the parts of the table that were rewritten, in the sink's storage.
        rows_after: of the same parts.
        oldest: the oldest checkpoint that can still be read, as the sink numbers it.
    """

    table: TableName
    rows_before: int
    rows_after: int
    oldest: int


@runtime_checkable
class RowAudit(Protocol):
    """What a sink may offer beside `Sink.audit`."""

    def differences(
        self, table: TableName, checkpoint: CheckpointNumber, rows: Rows, limit: int
    ) -> Sequence[RowDifference]:
        """The rows that differ from those of the lake, `limit` at most."""


@runtime_checkable
class CheckpointHistory(Protocol):
    """What a sink may offer that can show older checkpoints than its readers see, beside `Sink.audit`."""

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        """The newest transaction of this number, with its versions; None: the sink knows none (any more)."""

    def unknown_parts(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Reason]:
        """Parts of `Sink.audit` that the sink cannot tell for this checkpoint, and why."""


@runtime_checkable
class TakesFiles(Protocol):
    """What a publication offers: a sink whose tables are made of the lake's own data files.

    It gets `write_files` of each table instead of `Sink.write` and `Sink.replace`, and each published
    checkpoint by itself instead of the net change of several.
    """

    def write_files(
        self, transaction: TransactionId, files: VersionFiles, *, moves_rows: bool
    ) -> Sequence[SentChunk]:
        """Stage a version of a table: the difference to the files that the table has now is computed here.

        Args:
            moves_rows: whether the rows may be others than at the delivered version; a compaction moves none.

        Raises:
            SinkError: `SINK_SCHEMA_UNSUPPORTED`, the format cannot have such a table. Nothing was written.
        """

    def digest_files(self, files: VersionFiles) -> Mapping[str, Digest]:
        """What `Sink.audit` would answer if the sink showed exactly these files. Changes nothing."""


@runtime_checkable
class Repairable(Protocol):
    """What a sink may offer whose tables others can damage."""

    def damage(self, table: TableName, files: VersionFiles | None) -> Reason | None:
        """What is wrong with a table that the sink shows; None: nothing, or it is gone and begins anew with
        the next delivery. Changes nothing.

        Args:
            files: what it should have; None: that is not known any more.
        """

    def set_aside(self, table: TableName, fence: Fence) -> str:
        """Move a table with all that is in it to where nobody looks for it; the next delivery begins it anew.

        Returns:
            Where it is; empty if it is not there.

        Raises:
            SinkFencedError: a newer owner delivers.
        """


@runtime_checkable
class ReportsComparison(Protocol):
    """What a sink may offer that does not always compare staged rows in the same way."""

    def comparison_reasons(self) -> Mapping[TableName, Reason]:
        """By table how `prepare` compared the rows of the last transaction, or will, and why."""


@runtime_checkable
class ReportsWaits(Protocol):
    """What a sink may offer that waits for its servers while an operation runs."""

    def on_wait(self, report: Callable[[Reason], None]) -> None:
        """Call `report` from now on when a wait begins, and again every few seconds while it lasts."""


@runtime_checkable
class DropsMirrors(Protocol):
    """What a sink may offer for tables that left the project. It is claimed before."""

    def mirror_of(self, table: TableName) -> str | None:
        """Where the sink keeps what it has of a table, for people; None: it has nothing of it."""

    def drop_mirror(self, table: TableName) -> None:
        """Remove it. Readers of the sink lose the table at once. Repeatable."""


@runtime_checkable
class RenamesMirrors(DropsMirrors, Protocol):
    """A sink that may also let a table go on under another name."""

    def rename_mirror(self, old: TableName, new: TableName) -> None:
        """What the sink has of `old` is of `new` from here on, the pointer included. Repeatable, and nothing
        without a mirror of `old`.

        Raises:
            SinkError: `SINK_NAME_TAKEN`, it has something of `new` already.
        """


@runtime_checkable
class SinkMaintenance(Protocol):
    """What a sink may offer that keeps history."""

    def maintain(self, fence: Fence) -> Sequence[FoldedTable]:
        """After a commit: give up history that nobody needs any more, if it is time for that. Repeatable.

        Raises:
            SinkError: it did not work; what is published is as it was.
        """


class DeliveryPolicy(StrEnum):
    """What a failed delivery means for the checkpoints after it.

    `RETRY`: they are published; the delivery is tried again, and the run counts as failed until it succeeds.
    `SKIP_WITH_ALARM`: the same, but after some tries in a row the run no longer counts as failed; an event
    tells of each skipped checkpoint. `HOLD_BACK`: the next checkpoint is not published before the sink has
    the last one.
    """

    RETRY = "retry"
    SKIP_WITH_ALARM = "skip_with_alarm"
    HOLD_BACK = "hold_back"


class DeliveryState(StrEnum):
    """`NEW`: nothing was delivered yet. `ACTIVE`: the last delivery succeeded. `FAILING`: it is tried again.
    `NEEDS_ATTENTION`: trying again cannot help. `RETIRED`: its job no longer declares it."""

    NEW = "new"
    ACTIVE = "active"
    FAILING = "failing"
    NEEDS_ATTENTION = "needs_attention"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDeclaration:
    """A sink that a project declares, and the tables that it mirrors.

    Attributes:
        options: of the adapter; they may hold secrets.
        key: the columns that identify a row, for sinks that need to know.
        keys: those of tables that have a key of their own.
        insert_only: tables of which only new rows are delivered: the sources of append flows.
        attempts: failed tries in a row after which the policy `SKIP_WITH_ALARM` skips.
        catch_up_ms: so long retention keeps what is not delivered; later the mirror is rebuilt.
    """

    name: str
    format: str
    tables: tuple[TableName, ...]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: tuple[str, ...] = ()
    keys: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    insert_only: frozenset[TableName] = frozenset()
    policy: DeliveryPolicy = DeliveryPolicy.RETRY
    attempts: int = 3
    catch_up_ms: int = 7 * 24 * 3_600_000
    location: str = ""

    def key_of(self, table: TableName) -> tuple[str, ...]:
        """The columns that identify a row of a table; empty when none are known."""
        return self.keys.get(table, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What a sink shows, as far as the store knows; `delivered_at_ms` is epoch milliseconds of the store."""

    incarnation: str
    checkpoint: CheckpointNumber
    versions: Mapping[TableName, Version]
    delivered_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFlow:
    """How far a flow has come into a sink that Spark writes.

    Attributes:
        batch: the number of the last batch, from 0.
        rows: of all batches since its first one, those that ran twice counted twice.
        at_ms: when the last batch was reported, epoch milliseconds of the store.
    """

    batch: int
    rows: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """One sink as the store remembers it. Times are epoch milliseconds of the store.

    Attributes:
        fence: grows with every process that begins to deliver to it.
        intent: a transaction whose end is not known yet.
        failures: failed tries since the last success.
        skipped: how often its policy gave up waiting for it, ever.
        newest: the newest published checkpoint of its job.
        behind_since_ms: when the oldest checkpoint that it lacks was published; None when it lacks none.
        flows: by name the flows of a sink that Spark writes; empty for a sink with an adapter.
    """

    name: str
    job: str
    format: str
    tables: tuple[TableName, ...]
    policy: DeliveryPolicy
    state: DeliveryState
    fence: Fence
    catch_up_ms: int
    delivered: Delivered | None = None
    intent: Intent | None = None
    failures: int = 0
    skipped: int = 0
    error: str | None = None
    failed_at_ms: int | None = None
    newest: CheckpointNumber | None = None
    behind_since_ms: int | None = None
    flows: Mapping[str, SinkFlow] = field(default_factory=dict)

    def work(self, *, is_running: bool) -> str | None:
        """What its delivery does now, for people; None: nothing.

        Args:
            is_running: the sink's job runs.
        """
        if self.intent is None:
            return None
        phase = "writing" if self.intent.chunks is None else "committing"
        return f"{phase if is_running else 'unfinished:'} checkpoint {self.intent.checkpoint}"
