"""What differs between MariaDB and MySQL: how a snapshot gets its position, and how a log is recognised."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Protocol

from tautochrone.errors import IngestError
from tautochrone.sources.mysql.binlog import Event, Kind, MariaDBGtid, dump_events, identity_of
from tautochrone.sources.mysql.connection import BINLOG_NOT_READABLE, fetch, fetch_one
from tautochrone.sources.mysql.histories import History, MariaDBHistory, MySQLHistory

__all__ = [
    "LAST",
    "Flavor",
    "MariaDB",
    "MySQL",
    "TransactionMark",
    "file_identity",
    "flavor_of",
    "last_mark",
]

Transactions = dict[str, str]
"""Marks of transactions that the log has before a position, by what they are counted in."""

LAST = "last"
"""Counts the last transaction that was read, as a `TransactionMark`."""
_FIRST_OFFSET = 4
_MARKED_EVENTS = 8
_MAX_SCANNED_BYTES = 64 * 1024 * 1024
_OWNED_GTIDS_TIMEOUT_S = 600.0
_OWNED_GTIDS_PAUSE_S = 0.002


class Flavor(Protocol):
    """One of the two servers.

    Attributes:
        name: of the product.
        rights: global ones that a capture needs, besides SELECT.
        expiry_sql: for how many seconds the server keeps its log; 0: without a bound.
        counts_domains: transactions are counted in several domains at a time.
        history: how its transactions are numbered.
    """

    @property
    def name(self) -> str: ...
    @property
    def rights(self) -> tuple[str, ...]: ...
    @property
    def expiry_sql(self) -> str: ...
    @property
    def counts_domains(self) -> bool: ...
    @property
    def history(self) -> type[History]: ...

    def problem(self, connection: Any) -> tuple[str, str]:
        """Why the server cannot be captured, and what mends it; empty: it can."""

    def log_name(self, connection: Any) -> str:
        """Which server's log it is."""

    def log_status(self, connection: Any) -> tuple[str, int, bool]:
        """The file that is written to, its length, and whether databases are left out of it."""

    def snapshot(self, connection: Any) -> tuple[str, int]:
        """Begin a transaction that sees one state, and a position of the log of which it sees everything
        before."""

    def awaited_by_snapshot(self, connection: Any) -> Sequence[tuple[str, int]]:
        """Those that a snapshot waits for, each with its thread."""

    def transactions_before(
        self, connection: Any, connect: Callable[[], Any], file: str, offset: int
    ) -> Transactions | None:
        """None: the log does not have the position."""

    def history_now(self, connection: Any, marks: Mapping[str, str]) -> History | None:
        """At least what was before a position with these marks; None: it has numbers that are not
        understood."""

    def marks_of(self, history: History) -> str:
        """For a marker: those of a position before which are these transactions."""

    def logs_cascades(self, connection: Any) -> bool:
        """Whether the log has what foreign keys with CASCADE or SET NULL change."""

    def transactions_of(self, text: str) -> Transactions:
        """From a marker, which has them separated by commas."""

    def transaction_of(self, event: Event) -> tuple[str, str, bool | None]:
        """Of the event that begins a transaction: what it is counted in, its mark, and whether it is one
        statement without an end of its own (None: its first statement says so)."""

    def is_prepared(self, event: Event) -> bool:
        """Whether that event says that the transaction is committed by another one later."""

    def takes_effect(self, event: Event | None) -> bool:
        """False: it is a part of a two-part ALTER TABLE (MariaDB) that only begins it, or says that it
        failed."""

    def difference(
        self, connection: Any, connect: Callable[[], Any], file: str, offset: int, marks: Mapping[str, str]
    ) -> str:
        """Why the log is not the one that these transactions were read from; empty: it is."""


class MariaDB:
    name = "MariaDB"
    rights = ("REPLICATION SLAVE", "BINLOG MONITOR")
    expiry_sql = "SELECT @@expire_logs_days * 86400"
    counts_domains = True
    history = MariaDBHistory
    _MIN_VERSION: ClassVar = (10, 5)

    def problem(self, connection: Any) -> tuple[str, str]:
        if _version(connection) < self._MIN_VERSION:
            return f"it is MariaDB {connection.get_server_info()}", "captures need MariaDB 10.5 or newer"
        return "", ""

    def log_name(self, connection: Any) -> str:
        (server,) = fetch_one(connection, "SELECT @@server_id")
        return f"mariadb/{server}"

    def log_status(self, connection: Any) -> tuple[str, int, bool]:
        file, offset, *filters = fetch_one(connection, "SHOW MASTER STATUS")
        return file, int(offset), any(filters)

    def snapshot(self, connection: Any) -> tuple[str, int]:
        connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = dict(fetch(connection, "SHOW STATUS LIKE 'Binlog_snapshot_%'"))
        return status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"])

    def awaited_by_snapshot(self, connection: Any) -> Sequence[tuple[str, int]]:  # noqa: ARG002
        """A snapshot has a position by itself."""
        return ()

    def transactions_before(
        self, connection: Any, connect: Callable[[], Any], file: str, offset: int
    ) -> Transactions | None:
        (text,) = fetch_one(connection, f"SELECT BINLOG_GTID_POS(%s, {offset})", [file])
        if text is not None:
            return self.transactions_of(text)
        # NULL also where an event before the position is longer than the session's max_allowed_packet.
        return (
            self._read_transactions(connect, file, offset)
            if _has_position(connection, file, offset)
            else None
        )

    def _read_transactions(self, connect: Callable[[], Any], file: str, offset: int) -> Transactions | None:
        """As `transactions_before`, by reading the file."""
        log, history = connect(), None
        try:
            for event in dump_events(log, file, _FIRST_OFFSET):
                if event.file != file or event.end > offset:
                    break
                if history is None:
                    history = self.history.at_start(event)
                else:
                    history.take(event)
        finally:
            log._force_close()  # noqa: SLF001
        return None if history is None else self.transactions_of(self.marks_of(history))

    def history_now(self, connection: Any, marks: Mapping[str, str]) -> History | None:
        (text,) = fetch_one(connection, "SELECT @@GLOBAL.gtid_binlog_state")
        history = self.history.read(text)
        for mark in marks.values():
            source, _, number = mark.rpartition("-")
            # `gtid_binlog_state` does not say which server wrote last in a domain. The marks do, so their
            # servers are added last.
            history.add(source, max(int(number), history.ranges.get(source, [(1, 0)])[0][1]))
        return history

    def marks_of(self, history: History) -> str:
        last = {s.partition("-")[0]: f"{s}-{ranges[-1][1]}" for s, ranges in history.ranges.items()}
        return ",".join(sorted(last.values()))

    def logs_cascades(self, connection: Any) -> bool:  # noqa: ARG002
        return False

    def transactions_of(self, text: str) -> Transactions:
        """The last GTID of each domain, and the last transaction of all."""
        return {LAST if "@" in mark else mark.split("-")[0]: mark for mark in text.split(",") if mark}

    def transaction_of(self, event: Event) -> tuple[str, str, bool | None]:
        gtid = MariaDBGtid.read(event.body, event.server)
        return gtid.domain, gtid.gtid, gtid.is_single

    def is_prepared(self, event: Event) -> bool:
        return MariaDBGtid.read(event.body, event.server).is_prepared

    def takes_effect(self, event: Event | None) -> bool:
        return event is None or MariaDBGtid.read(event.body, event.server).takes_effect

    def difference(
        self,
        connection: Any,
        connect: Callable[[], Any],
        file: str,
        offset: int,
        marks: Mapping[str, str],
    ) -> str:
        # The server reads the file from its beginning for this.
        now = self.transactions_before(connection, connect, file, offset)
        if now is None:
            return f"the server removed the binary log {file}"
        if now != {counter: mark for counter, mark in marks.items() if counter != LAST}:
            return _other_transactions(file, offset)
        return _other_last_transaction(connection, connect, file, offset, marks)


class MySQL:
    """MySQL has no position of a snapshot. A transaction owns its GTID from before it is written to the log
    until its rows are visible. So all that was logged before a position is visible as soon as the GTIDs that
    were owned then are owned no more."""

    name = "MySQL"
    rights = ("REPLICATION SLAVE", "REPLICATION CLIENT")
    expiry_sql = "SELECT @@binlog_expire_logs_seconds"
    counts_domains = False
    history = MySQLHistory
    _MIN_VERSION: ClassVar = (8, 0)
    _EXECUTED: ClassVar = "executed"
    """Counts the set of all GTIDs at the first position, before which the reader saw no transaction."""

    def problem(self, connection: Any) -> tuple[str, str]:
        if _version(connection) < self._MIN_VERSION:
            return f"it is MySQL {connection.get_server_info()}", "captures need MySQL 8.0 or newer"
        mode, partial = fetch_one(connection, "SELECT @@gtid_mode, @@binlog_row_value_options")
        if mode != "ON":
            return (
                f"its gtid_mode is {mode}, without which no position of the log belongs to a snapshot",
                "enforce_gtid_consistency = ON and gtid_mode = ON in the server's configuration, then "
                "restart it; or online by steps: SET GLOBAL enforce_gtid_consistency = ON, SET GLOBAL "
                "gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE, ON",
            )
        if partial:
            return f"its binlog_row_value_options is {partial}", "SET GLOBAL binlog_row_value_options = ''"
        return "", ""

    def log_name(self, connection: Any) -> str:
        (server,) = fetch_one(connection, "SELECT @@server_uuid")
        return f"mysql/{server}"

    def log_status(self, connection: Any) -> tuple[str, int, bool]:
        status = "BINARY LOG STATUS" if _version(connection) >= (8, 2) else "MASTER STATUS"
        file, offset, included, excluded, *_executed = fetch_one(connection, f"SHOW {status}")
        return file, int(offset), bool(included or excluded)

    def snapshot(self, connection: Any) -> tuple[str, int]:
        file, offset, _has_filters = self.log_status(connection)
        self._wait_for_committing_transactions(connection)
        connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return file, offset

    def awaited_by_snapshot(self, connection: Any) -> Sequence[tuple[str, int]]:
        return sorted(_owned_gtids(connection).items())

    def _wait_for_committing_transactions(self, connection: Any) -> None:
        """
        Raises:
            IngestError: `CAPTURE_SNAPSHOT_NOT_REACHED`.
        """
        owned = set(_owned_gtids(connection))
        deadline = time.monotonic() + _OWNED_GTIDS_TIMEOUT_S
        while owned:
            owned &= _owned_gtids(connection).keys()
            if owned and time.monotonic() > deadline:
                raise IngestError(
                    "CAPTURE_SNAPSHOT_NOT_REACHED",
                    f"Transactions that began to commit were not visible after "
                    f"{_OWNED_GTIDS_TIMEOUT_S:g} s: {', '.join(sorted(owned))}",
                    hint="SELECT @@GLOBAL.gtid_owned shows them and their threads; a replica owns the GTID "
                    "of a transaction for as long as it applies it",
                    retryable=True,
                )
            time.sleep(_OWNED_GTIDS_PAUSE_S)

    def transactions_before(
        self,
        connection: Any,
        connect: Callable[[], Any],  # noqa: ARG002
        file: str,
        offset: int,
    ) -> Transactions | None:
        if not _has_position(connection, file, offset):
            return None
        (executed,) = fetch_one(connection, "SELECT @@GLOBAL.gtid_executed")
        return {self._EXECUTED: "".join(executed.split()).replace(",", ";")}

    def history_now(self, connection: Any, marks: Mapping[str, str]) -> History | None:  # noqa: ARG002
        (text,) = fetch_one(connection, "SELECT @@GLOBAL.gtid_executed")
        return self.history.read(text)

    def marks_of(self, history: History) -> str:
        return history.text.partition("|")[2].replace(",", ";")

    def logs_cascades(self, connection: Any) -> bool:
        """Since 9.6, where a setting gives them back to InnoDB, which logs nothing of them."""
        native = dict(fetch(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'"))
        return native == {"innodb_native_foreign_keys": "OFF"}

    def transactions_of(self, text: str) -> Transactions:
        return {LAST if "@" in mark else self._EXECUTED: mark for mark in text.split(",") if mark}

    def transaction_of(self, event: Event) -> tuple[str, str, bool | None]:  # noqa: ARG002
        return LAST, "", None  # its mark has its rows, too

    def is_prepared(self, event: Event) -> bool:  # noqa: ARG002
        """The first statement of the transaction says it."""
        return False

    def takes_effect(self, event: Event | None) -> bool:  # noqa: ARG002
        return True

    def difference(
        self,
        connection: Any,
        connect: Callable[[], Any],
        file: str,
        offset: int,
        marks: Mapping[str, str],
    ) -> str:
        if not _has_position(connection, file, offset):
            return f"the server does not have {offset} of the binary log {file}"
        executed = marks.get(self._EXECUTED)
        if executed:
            (is_subset,) = fetch_one(
                connection, "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", [executed.replace(";", ",")]
            )
            if is_subset != "1":
                return _other_transactions(file, offset)
        return _other_last_transaction(connection, connect, file, offset, marks)


def flavor_of(connection: Any) -> Flavor:
    """
    >>> from types import SimpleNamespace
    >>> flavor_of(SimpleNamespace(get_server_info=lambda: "10.11.19-MariaDB-log")).name
    'MariaDB'
    """
    return MariaDB() if "mariadb" in connection.get_server_info().lower() else MySQL()


def _version(connection: Any) -> tuple[int, ...]:
    """
    >>> from types import SimpleNamespace
    >>> _version(SimpleNamespace(get_server_info=lambda: "5.5.5-10.11.19-MariaDB-log"))
    (10, 11)
    """
    # Old MariaDB says 5.5.5 before its version, for replicas that know no version above 5.
    text = connection.get_server_info().removeprefix("5.5.5-")
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _owned_gtids(connection: Any) -> dict[str, int]:
    """GTIDs of the transactions that are being committed now, and the threads that do it."""
    (text,) = fetch_one(connection, "SELECT @@GLOBAL.gtid_owned")
    return _owned_gtids_of(text)


def _owned_gtids_of(text: str) -> dict[str, int]:
    """From `uuid:5#12:7#13,uuid:tag:9#14`, where behind `#` is a thread.

    >>> _owned_gtids_of("a:5#12:7#13,\\nb:tag:9#14#15")
    {'a:5': 12, 'a:7': 13, 'b:tag:9': 14}
    """
    gtids: dict[str, int] = {}
    for source in "".join(text.split()).split(","):
        parts = source.split(":")
        prefix = ":".join(part for part in parts if "#" not in part)
        numbers = [part.split("#") for part in parts if "#" in part]
        gtids |= {f"{prefix}:{number}": int(thread) for number, thread, *_others in numbers}
    return gtids


def _has_position(connection: Any, file: str, offset: int) -> bool:
    sizes = {row[0]: int(row[1]) for row in fetch(connection, "SHOW BINARY LOGS")}
    return offset <= sizes.get(file, -1)


@dataclass(slots=True)
class TransactionMark:
    """Where a transaction is in the log, and a hash of its first events. Two servers of one number may give
    other rows the same GTID in the same second, which is all that MariaDB's first event has.

    Args:
        file: of the log.
        start: the offset of its first event.

    Attributes:
        events: so many are in the hash.
    """

    file: str
    start: int
    events: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def take(self, event: Event) -> None:
        """The next event of the transaction."""
        if self.events < _MARKED_EVENTS:
            self._hash.update(b"%d %d %d %d " % (event.kind, event.timestamp, event.server, len(event.body)))
            self._hash.update(event.body)
            self.events += 1

    def __str__(self) -> str:
        return f"{self.file}@{self.start}@{self.events}-{self._hash.hexdigest()[:16]}"


def _other_last_transaction(
    connection: Any, connect: Callable[[], Any], file: str, offset: int, marks: Mapping[str, str]
) -> str:
    """Whether the last transaction is another one there; empty: it is the same, or is not known."""
    if LAST not in marks:
        return ""
    last_file, start, hashed = marks[LAST].split("@")
    # Without the file of the last transaction, what follows it is there.
    if not _has_position(connection, last_file, 0):
        return ""
    if _mark_at(connect, last_file, int(start), int(hashed.partition("-")[0])) == marks[LAST]:
        return ""
    return _other_transactions(file, offset)


def _mark_at(connect: Callable[[], Any], file: str, start: int, events: int) -> str | None:
    mark = TransactionMark(file, start)
    for event in _first_events(connect, file, start, events):
        mark.take(event)
        if event.file != file or (mark.events == 1 and event.start != start):
            return None
    return str(mark)


def file_identity(connect: Callable[[], Any], file: str) -> str | None:
    """See `binlog.identity_of`; None: the server does not have the file."""
    for event in _first_events(connect, file, _FIRST_OFFSET, 1, with_files=True):
        return identity_of(event)
    return None


def file_begun_ms(connect: Callable[[], Any], file: str) -> int | None:
    """When the server began a file, in epoch milliseconds; None: it does not have the file."""
    for event in _first_events(connect, file, _FIRST_OFFSET, 1, with_files=True):
        return event.timestamp * 1000
    return None


def last_mark(connect: Callable[[], Any], file: str, offset: int) -> Transactions:
    """Of the last transaction of a file before an offset; empty: it has none, or is too long to look."""
    if offset > _MAX_SCANNED_BYTES:
        return {}
    log, last = connect(), None
    try:
        for event in dump_events(log, file, _FIRST_OFFSET):
            if event.file != file or event.end > offset:
                break
            if event.kind in Kind.GTID:
                last = TransactionMark(file, event.start)
            if last is not None:
                last.take(event)
    finally:
        log._force_close()  # noqa: SLF001
    return {} if last is None else {LAST: str(last)}


def _first_events(
    connect: Callable[[], Any], file: str, start: int, count: int, *, with_files: bool = False
) -> list[Event]:
    """By a connection of its own; empty: the server has no event there."""
    log = connect()
    try:
        return list(islice(dump_events(log, file, start, with_files=with_files), count))
    except Exception as error:
        if error.args and error.args[0] == BINLOG_NOT_READABLE:
            return []
        raise
    finally:
        log._force_close()  # noqa: SLF001


def _other_transactions(file: str, offset: int) -> str:
    return (
        f"there are other transactions before {offset} of {file} than before: the server was restored, its "
        f"log was reset, or it is another one"
    )
