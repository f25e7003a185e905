"""What the server says of itself and of its log, and what `taut doctor` says of a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from tautochrone.errors import IngestError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import KeptLog
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import OFFSET_BITS, point_of
from tautochrone.sources.mysql.connection import address_of, connect, fetch, fetch_one, translated_errors
from tautochrone.sources.mysql.flavors import file_begun_ms, flavor_of
from tautochrone.sources.mysql.markers import FILE, server_of, shift_of
from tautochrone.sources.mysql.tables import CapturedTable

__all__ = [
    "FileTimes",
    "awaited_transactions",
    "bytes_since",
    "check_prerequisites",
    "check_server",
    "committed_end",
    "ignores_case",
    "instance_of",
    "kept_log",
    "lag_behind",
    "log_end",
    "log_sizes",
]

_ANSWER_S = 2
"""So long who only asks waits for a connection."""
_QUERY = """
SELECT @@log_bin, @@binlog_format, @@binlog_row_image
"""


def check_server(connection: Any, capture: str) -> None:
    """
    Raises:
        IngestError: `CAPTURE_SERVER_NOT_USABLE`.
    """
    log_bin, binlog_format, row_image = fetch_one(connection, _QUERY)
    flavor = flavor_of(connection)
    problem, hint = flavor.problem(connection)
    if problem:
        pass
    elif log_bin != "1":
        problem, hint = "it writes no binary log", "log_bin in the server's configuration, then restart it"
    elif binlog_format != "ROW":
        problem = f"its binlog_format is {binlog_format}"
        hint = "SET GLOBAL binlog_format = 'ROW', and in the configuration; open sessions keep theirs"
    elif row_image != "FULL":
        problem = f"its binlog_row_image is {row_image}"
        hint = "SET GLOBAL binlog_row_image = 'FULL', and in the configuration; open sessions keep theirs"
    else:
        _file, _offset, has_filters = flavor.log_status(connection)
        if has_filters:
            problem = "its binary log leaves out databases (binlog_do_db, binlog_ignore_db)"
            hint = "remove these settings from the server's configuration"
    if problem:
        raise IngestError(
            "CAPTURE_SERVER_NOT_USABLE",
            f"The database of the capture {capture} cannot be captured: {problem}",
            hint=hint,
            sqlstate="55000",
        )


def ignores_case(connection: Any) -> bool:
    """Whether upper and lower case of tables' names are the same."""
    (setting,) = fetch_one(connection, "SELECT @@lower_case_table_names")
    return bool(setting != "0")


def instance_of(connection: Any) -> str:
    """The same for all connections to one server: its log's name, and by what it differs from other servers
    with that name."""
    flavor = flavor_of(connection)
    names = "'hostname', 'port', 'socket', 'datadir', 'server_id', 'server_uuid', 'server_uid'"
    rows = fetch(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    return " ".join([flavor.log_name(connection), *(f"{name}={value}" for name, value in sorted(rows))])


def log_end(connection: Any) -> tuple[str, int]:
    """The file that is written to, and its length."""
    file, offset, _has_filters = flavor_of(connection).log_status(connection)
    return file, offset


def committed_end(connection: Any) -> tuple[str, int]:
    """A place of which everything before is visible to all snapshots from now on."""
    try:
        return flavor_of(connection).snapshot(connection)
    finally:
        connection.query("ROLLBACK")


def log_sizes(connection: Any) -> dict[int, int]:
    """Bytes of the log's files by their number."""
    return {point_of(row[0], 0) >> OFFSET_BITS: int(row[1]) for row in fetch(connection, "SHOW BINARY LOGS")}


def lag_behind(connection: Any, position: LogPosition) -> dict[str, int]:
    """How many bytes of the log are behind a position; empty: it is in the log of another server, or in a
    file that the server has no more."""
    if flavor_of(connection).log_name(connection) != server_of(position):
        return {}
    number, read = divmod(position.point - shift_of(position), 1 << OFFSET_BITS)
    sizes = log_sizes(connection)
    if number not in sizes:
        return {}
    return {"bytes": sum(size for file, size in sizes.items() if file >= number) - read}


def bytes_since(url: str, capture: str, position: LogPosition) -> int | str:
    """How many bytes of the server's log are behind a position, also of tables that are not captured, by a
    connection of its own; or why that is not known.

    Raises:
        SettingsError: `CAPTURE_URL_INVALID`.
        IngestError: as `translated_errors`.
    """
    address = address_of(url, capture)
    with translated_errors(capture), closing(connect(address, _ANSWER_S)) as connection:
        behind = lag_behind(connection, position).get("bytes", -1)
    if behind < 0:
        return f"the server no longer has the log that the capture {capture} has read"
    return behind


class FileTimes:
    """When the server began files of its log. Asking costs a connection, and the answer never changes.

    Args:
        connect: opens another connection.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        # A log is read at one position, so one file counts at a time.
        self._newest: tuple[str, str, int] | None = None

    def begun_ms(self, log: str, file: str) -> int | None:
        """In epoch milliseconds; None: the server cannot send the file.

        Args:
            log: which server's log it is.
        """
        if self._newest is None or self._newest[:2] != (log, file):
            begun_ms = file_begun_ms(self._connect, file)
            if begun_ms is None:
                return None
            self._newest = log, file, begun_ms
        return self._newest[2]


def kept_log(connection: Any, times: FileTimes, position: LogPosition) -> KeptLog | None:
    """The file that a position needs, and from when on the server may remove it; None: the position is in the
    log of another server.

    A server removes files by age, whoever has read them. The age of a file counts from its last change, which
    is when the next one was begun. The one that is written to is never removed.

    Raises:
        IngestError: `CAPTURE_LOG_FILE_NOT_READABLE`.
    """
    log = flavor_of(connection).log_name(connection)
    if log != server_of(position):
        return None
    file = position.marker[FILE]
    expires_after_ms = _expiry_ms(connection)
    if expires_after_ms is None:
        changed_ms, is_lost = None, file not in _log_files(connection)
    else:
        changed_ms = _changed_ms(connection, times, log, file)
        is_lost = changed_ms is None
    expires_ms = None if changed_ms is None or expires_after_ms is None else changed_ms + expires_after_ms
    return KeptLog(
        name=file,
        is_own=True,
        distance_bytes=None,
        kept_bytes=None,
        is_lost=is_lost,
        last_read=None,
        drop="",
        expires_ms=expires_ms,
        expires_after_ms=expires_after_ms,
    )


def _changed_ms(connection: Any, times: FileTimes, log: str, file: str) -> int | None:
    """When a file was changed last, by the server's clock; None: the server does not have it."""
    unreadable = None
    while True:
        files = _log_files(connection)
        if file not in files:
            return None
        following = next(iter(files[files.index(file) + 1 :]), None)
        if following is None:
            (now_s,) = fetch_one(connection, "SELECT UNIX_TIMESTAMP()")
            return int(now_s) * 1000
        begun_ms = times.begun_ms(log, following)
        if begun_ms is not None:
            return begun_ms
        if following == unreadable:
            raise IngestError(
                "CAPTURE_LOG_FILE_NOT_READABLE",
                f"The server has the file {following} of its binary log, and does not send it",
                hint="SHOW BINLOG EVENTS IN the file, or the server's error log, says why",
            )
        # It may have been removed after it was listed; then a newer list lacks this file too.
        unreadable = following


def _log_files(connection: Any) -> list[str]:
    return [row[0] for row in fetch(connection, "SHOW BINARY LOGS")]


def _expiry_ms(connection: Any) -> int | None:
    """How long the server keeps a file of its log that is complete; None: without a bound."""
    by_hand = fetch(connection, "SHOW GLOBAL VARIABLES LIKE 'binlog_expire_logs_auto_purge'")
    if by_hand and by_hand[0][1] == "OFF":
        return None
    (expiry_s,) = fetch_one(connection, flavor_of(connection).expiry_sql)
    return round(float(expiry_s) * 1000) or None


def awaited_transactions(connection: Any) -> list[Reason]:
    """Those that a copy waits for which begins now."""
    owned = flavor_of(connection).awaited_by_snapshot(connection)
    ages = _thread_ages(connection) if owned else {}
    return [
        Reason.of(
            ReasonCode.COPY_WAITS_FOR_TRANSACTION,
            transaction=gtid,
            session=f"thread {thread}",
            seconds=ages.get(thread),
        )
        for gtid, thread in owned
    ]


def _thread_ages(connection: Any) -> dict[int, int]:
    """For how many seconds threads do what they do now; without PROCESS only the user's own are seen."""
    rows = fetch(connection, "SELECT ID, IFNULL(TIME, 0) FROM information_schema.PROCESSLIST")
    return {int(thread): int(seconds) for thread, seconds in rows}


def check_prerequisites(connection: Any, capture: str, tables: Sequence[CapturedTable]) -> str:
    """All that a run needs in the database. Nothing is changed.

    Raises:
        IngestError: what is missing, with the SQL that mends it.
    """
    check_server(connection, capture)
    (user,) = fetch_one(connection, "SELECT CURRENT_USER()")
    grants = "\n".join(row[0].upper() for row in fetch(connection, "SHOW GRANTS"))
    everything = "GRANT ALL PRIVILEGES ON *.*" in grants
    flavor = flavor_of(connection)
    missing = [right for right in flavor.rights if not everything and right not in grants]
    name, _, host = user.rpartition("@")
    if missing:
        raise IngestError(
            "CAPTURE_RIGHTS_MISSING",
            f"The user {user} of the capture {capture} lacks rights",
            hint=f"GRANT {', '.join(missing)} ON *.* TO '{name}'@'{host}'",
            sqlstate="42501",
            parameters={"capture": capture},
        )
    for table in tables:
        fetch(connection, f"SELECT 1 FROM {table.identifier} LIMIT 0")
    logs = fetch(connection, "SHOW BINARY LOGS")
    expiry_ms = _expiry_ms(connection)
    kept = "without a bound" if expiry_ms is None else f"for {expiry_ms / 86_400_000:g} days"
    size = sum(int(row[1]) for row in logs) / 1_000_000
    names = ", ".join(table.identifier for table in tables)
    return f"{len(tables)} tables ({names}); {len(logs)} binary logs of {size:,.1f} MB, kept {kept}"
