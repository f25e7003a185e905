"""The port of a source: what the engine asks of whatever delivers rows, and what becomes of records and files
that a flow does not take in.

Two kinds stand behind it. Sources that Spark's Structured Streaming reads itself (Kafka, files, Python data
sources) are leaves of a query's plan: `spark.sources.registry` finds them. Change logs of databases are read
by us, transaction by transaction: `ChangeLog`, run by `ingest.log_flow`.

What a source cannot do it answers as `Unsupported`, with a reason for people. Only the file of a source knows
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

from tautochrone.model.log_table import NetRows
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import BulkProgress, LogPosition

__all__ = [
    "CHANGE_LOG_LIMITS",
    "MALFORMED_DROPPED",
    "MALFORMED_WRITTEN",
    "MAX_REPORTED_PATHS",
    "QUARANTINE_SCHEMA",
    "AwaitsTransactions",
    "BadRecords",
    "BulkOnExecutors",
    "ChangeLog",
    "KeepsLogs",
    "KeptLog",
    "LogBatch",
    "NetsChanges",
    "RaisesAlarms",
    "RateLimitOptions",
    "RecreatedTopic",
    "SetsTablesAside",
    "SkipReason",
    "SkippedFiles",
    "SkipsUnusedColumns",
    "Source",
    "SourceRows",
    "Unsupported",
    "quarantine_of",
]


T = TypeVar("T")
SourceRows = Any
"""A pyarrow Table. The model must not import Arrow, so the port cannot name the type."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A source cannot do what it was asked for. `reason` is a part of a sentence about the source."""

    reason: str


@dataclass(frozen=True, slots=True)
class RateLimitOptions:
    """Options that bound how much one batch takes. Of these a source accepts one at a time."""

    options: tuple[str, ...]


CHANGE_LOG_LIMITS = RateLimitOptions(("maxEventsPerTrigger",))
"""What every change log accepts: the bound that `ChangeLog.read` gets."""


class Source(Protocol):
    """What every source answers."""

    @property
    def name(self) -> str:
        """For people."""

    def input_ids(self) -> frozenset[str]:
        """Names of what is read, such as a topic of a broker: two flows that share a name read the same
        input. Empty: each reader gets rows of its own."""

    def supported_limits(self) -> RateLimitOptions | Unsupported:
        """The options that bound its batches; why none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """What was read of a change log at once: whole transactions.

    Attributes:
        rows: the events, with the columns of `ChangeLog.schema`, in the order of the log.
        position: behind the last of them, at the end of a transaction.
        caught_up: whether this was all that the log held when it was read.
        source_ms: when the newest transaction in it was committed, by the source's clock; None where it
            does not say.
        copied_again: relations whose rows changed in a way that the log does not show, and why they must be
            copied: `ChangeLog.resume` with the position plans it. The batch has no rows then.
        ignored: changes of columns up to the position that are not followed, by relation.
        moved: why the log is read from another server from here on.
    """

    rows: SourceRows
    position: LogPosition
    caught_up: bool
    source_ms: int | None = None
    copied_again: Mapping[str, Reason] = field(default_factory=dict)
    ignored: Mapping[str, Reason] = field(default_factory=dict)
    moved: Reason | None = None


class ChangeLog(Source, Protocol):
    """A database whose committed transactions can be read in order.

    `begin → read … → commit of the table → acknowledge`. Each call is repeatable: whoever crashed between
    two of them calls them again with the position that its table has.

    A position that was acknowledged allows the source to forget everything up to it. So only the owner of
    the table acknowledges, and only what its table holds durably.
    """

    def schema(self) -> Any:
        """The columns of the log table, as a pyspark StructType."""

    def begin(self, reader: str) -> LogPosition:
        """Let the source keep its log from now on, and answer where to read from. Durable at the source.
        Repeated before anything was acknowledged, it answers a position that loses nothing.

        `reader` identifies the table that takes the log: what the source keeps for another one is left
        alone, and the position names what it keeps for this one.

        The position's `bulk.pending` lists the chunks of the bulk; empty for a source without one.

        Raises:
            IngestError: the log cannot be read: rights, settings of the database.
        """

    def resume(self, position: LogPosition, anew: Collection[str] = ()) -> LogPosition:
        """The position of a table from which a run goes on, with what must be copied since definitions or
        relations changed: relations that came, or got other columns, are `bulk.pending` again, and those
        that are to be copied `anew`. Repeatable; it counts once the table holds it.

        Raises:
            IngestError: a relation changed so that a copy of it is not enough.
        """

    def read(self, after: LogPosition, max_events: int) -> LogBatch:
        """The transactions behind `after`, whole ones, until there are at least `max_events` events or the
        log ends. A transaction that is bigger than the bound comes alone and whole. Without new transactions
        the batch has no rows; its position may still move on. Relations that must be copied again from here
        are `bulk.pending` in it.

        Raises:
            IngestError: `SOURCE_LOG_LOST`: what follows `after` is no longer there, or it is another log.
        """

    def read_chunk(self, relation: str, chunk: str) -> tuple[SourceRows, int]:
        """Copy a chunk of a relation, for sources with a bulk.

        Returns:
            Its rows with the columns of `schema`, each with what its snapshot shows: an event of the log
            counts for it exactly when its transaction was not visible to the copy. And a point read
            afterwards, which the log must pass before the copied rows together with the log are a state that
            the database had.
        """

    def completed_rows(self, relations: Sequence[str], position: LogPosition) -> SourceRows:
        """One row for each relation of which the bulk is complete as of `position`, with the columns of
        `schema`. It gives the log table a version from which tables over these relations can be built.
        Others may say that rows from before the bulk count no more."""

    def acknowledge(self, position: LogPosition) -> None:
        """The table holds everything up to `position`; the source may forget it. Repeatable; a position
        before the one that was acknowledged last changes nothing."""

    def lag(self, position: LogPosition) -> Mapping[str, int]:
        """How far the log is ahead of `position`, by unit (`bytes`, `transactions`, …)."""

    def relations(self) -> Sequence[str]:
        """The tables whose events the log has."""

    def check_prerequisites(self) -> str:
        """Check everything that a run needs in the database, without changing anything; what there is, for
        people.

        Raises:
            IngestError: what is missing, with a hint that mends it.
        """

    def close(self) -> None:
        """Let go of connections; repeatable."""


@runtime_checkable
class NetsChanges(Protocol):
    """A change log whose events can be written as rows of the tables that they change."""

    def net_rows(self, events: SourceRows, schema: Any, keys: Sequence[str]) -> NetRows | Reason:
        """What the keys of events have after them; or why only the log table takes these events.

        Args:
            events: rows of one relation, with the columns of `ChangeLog.schema`, in the order of the log.
            schema: of the table, as a pyarrow Schema.
            keys: its columns that identify a row.
        """


@runtime_checkable
class BulkOnExecutors(Protocol):
    """A change log whose chunks Spark's executors can read, instead of `ChangeLog.read_chunk`."""

    def next_chunks(self, bulk: BulkProgress) -> Sequence[tuple[str, str]]:
        """The relations and chunks that are copied together next; none: the driver reads one by one."""

    def copy_chunks(
        self, session: Any, chunks: Sequence[tuple[str, str]], stage: Callable[[Any], T]
    ) -> tuple[T, int]:
        """Copy chunks, each a relation and one of its chunks.

        Args:
            session: a SparkSession.
            stage: gets a DataFrame of rows as `ChangeLog.read_chunk` answers them, and writes it. A
                `TaskStage` gets what its writer makes of them in the tasks.

        Returns:
            What `stage` answered, and a point read after that, as `ChangeLog.read_chunk` does.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLog:
    """Log that a database keeps for one reader of a capture.

    Attributes:
        name: such as that of a replication slot.
        is_own: it belongs to the position that was asked for; others are of other lakes, or of none. None:
            the table has no position yet, so it may be what a copy that begins has made.
        distance_bytes: how far the log is ahead of what was acknowledged.
        kept_bytes: how much of it is on the database's disk; None where it does not say.
        is_lost: the database removed log that the reader needs.
        last_read: since when nobody reads it; None: somebody does, or the database does not say.
        drop: SQL that gives it up.
        expires_ms: from when on the database may remove log that the reader needs and does not take by then,
            in epoch milliseconds; None: it removes none by age.
        expires_after_ms: how long the database keeps log that is complete.
    """

    name: str
    is_own: bool | None
    distance_bytes: int | None
    kept_bytes: int | None
    is_lost: bool
    last_read: str | None
    drop: str
    expires_ms: int | None = None
    expires_after_ms: int | None = None


@runtime_checkable
class KeepsLogs(Protocol):
    """A change log whose database says what it keeps: for each reader, or by age."""

    def kept_logs(self, position: LogPosition | None) -> Sequence[KeptLog]:
        """All that is kept for readers of this capture; `position` is that of this lake's table."""


@runtime_checkable
class RaisesAlarms(Protocol):
    """A change log that can say what fills its database's disk, while there is time."""

    def alarms(self, position: LogPosition) -> Sequence[Reason]:
        """What somebody should look at; empty: nothing."""


@runtime_checkable
class AwaitsTransactions(Protocol):
    """A change log that can begin, or copy tables, only when transactions that are open have ended."""

    def open_transactions(self) -> Sequence[Reason]:
        """Those that a copy which begins now waits for, the oldest first. By a connection of its own, so it
        can be asked while another thread waits."""


@runtime_checkable
class SetsTablesAside(Protocol):
    """A change log that goes on without tables which it cannot capture as they are."""

    def set_aside(self) -> Mapping[str, Reason]:
        """By relation, why, and what ends it."""


@runtime_checkable
class SkipsUnusedColumns(Protocol):
    """A change log that may pass over columns which the tables of the lake do not take."""

    def set_lake_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        """The columns that the lake's tables have, by relation, whether the database still has them or not.
        Of a relation that is missing here it is not known."""


MAX_REPORTED_PATHS = 20
"""At most this many paths are named in an event and in the store; the count is of all files."""


class RecreatedTopic(StrEnum):
    """What a flow does when a Kafka topic was deleted and created again."""

    FAIL = "fail"
    EARLIEST = "earliest"


class SkipReason(StrEnum):
    """Why a file's content is not in the table, nor will be."""

    REPLACED = "REPLACED_IN_PLACE"
    """Its path was taken in before with another modification time."""
    TOO_OLD = "OLDER_THAN_MAX_FILE_AGE"
    """The reader's own option `maxFileAge` leaves it out."""
    SAME_NAME = "SAME_FILE_NAME"
    """The reader's own option `fileNameOnly` takes it for another file of that name."""
    MISSING = "MISSING_AT_READ"
    """It went away between plan and read, and `ignoreMissingFiles` is set."""


@dataclass(frozen=True, slots=True)
class SkippedFiles:
    """Files of one flow that were skipped for one reason. `paths` are some of the `count`, URL-encoded."""

    flow: str
    reason: SkipReason
    count: int
    paths: tuple[str, ...]


MALFORMED_WRITTEN = "tautochrone.malformed-records"
"""Under this name a table counts the records of files that did not parse, and whose rows it has."""
MALFORMED_DROPPED = "tautochrone.malformed-records-dropped"
"""Likewise those that the reader's mode DROPMALFORMED left out."""

QUARANTINE_SCHEMA = """
    topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>, file STRING,
    error_class STRING, reason STRING, flow STRING, batch BIGINT, line BIGINT
"""
"""A record as the topic or the file holds it, why it is bad, and which batch of which flow met it."""


class BadRecords(StrEnum):
    """What a flow does with a batch that holds a bad record."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


def quarantine_of(table: TableName) -> TableName:
    """The quarantine table of `table`.

    >>> str(quarantine_of(TableName.parse("lake.default.events")))
    'lake.default.events__quarantine'
    """
    return replace(table, table=f"{table.table}__quarantine")
