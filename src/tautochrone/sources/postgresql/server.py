"""What the server says of itself, of the replication slot and of the publication.

`check_prerequisites` is what `taut doctor` says of a capture: all that a run needs in the database. It
changes nothing.

`Alarms` say what fills its disk before the disk is full.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from tautochrone.errors import DefinitionError, IngestError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import KeptLog
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.capture.set_aside import outdated_if_refused
from tautochrone.sources.postgresql.connection import (
    checked_url,
    connect,
    lsn_number,
    lsn_text,
    translated_errors,
)
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = [
    "Alarms",
    "ServerState",
    "add_to_publication",
    "await_running_transactions",
    "bytes_since",
    "check_prerequisites",
    "check_publication",
    "check_server",
    "create_slot",
    "one_row",
    "open_transactions",
    "require_readable",
    "require_rights",
    "server_state",
    "slot_of",
    "slots_of",
]

TRANSACTIONS_WAIT_S = 30.0
_MEGABYTE = 1_000_000
_ANSWER_S = 2
"""So long who only asks waits for a connection."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """
    Attributes:
        log: identifies server, database and slot.
        flushed: the log is readable up to here.
        confirmed: what the slot has been told to forget; None: there is no slot.
        is_lost: the server removed log that the slot needs.
        timeline: counts promotions of standbys, and recoveries from backups.
    """

    log: str
    slot: str
    flushed: int
    confirmed: int | None
    is_lost: bool
    timeline: int

    def reason_of_loss(self, log: str, point: int) -> str | None:
        """Why the log has not all that follows a point of a log; None: it has."""
        if self.log != log:
            parts = zip(("server", "database", "slot"), log.split("/"), self.log.split("/"), strict=False)
            others = [name for name, before, now in parts if before != now]
            return f"this is another {others[0] if others else 'log'}"
        if self.confirmed is None:
            return (
                f"the replication slot {self.slot} is gone: it was dropped, or a standby without it was "
                f"promoted, or the server was restored"
            )
        if self.is_lost:
            return f"the server invalidated the replication slot {self.slot} and removed its log"
        if self.confirmed > point:
            return (
                f"the replication slot {self.slot} is ahead, at {lsn_text(self.confirmed)}: "
                f"it was made anew, or somebody else reads it"
            )
        if self.flushed < point:
            return f"the server's log ends before, at {lsn_text(self.flushed)}: it was restored from a backup"
        return None


def server_state(connection: psycopg.Connection, slot: str) -> ServerState:
    """
    Raises:
        IngestError: `CAPTURE_SLOT_NOT_USABLE`.
    """
    row = one_row(
        connection,
        "SELECT c.system_identifier::text, d.oid::text, "
        "CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn()::text END, s.plugin, "
        "s.database, d.datname, s.slot_name, s.confirmed_flush_lsn::text, s.wal_status, "
        # The control file has another timeline only some time after a promotion.
        "CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END "
        "FROM pg_control_system() c JOIN pg_database d ON d.datname = current_database() "
        "LEFT JOIN pg_replication_slots s ON s.slot_name = %s",
        (slot,),
    )
    system, database_oid, flushed, plugin, slot_database, database, slot_name, confirmed, wal_status = row[:9]
    if flushed is None:
        raise IngestError(
            "CAPTURE_SERVER_NOT_USABLE",
            f"The server of the replication slot {slot} is a standby",
            hint="capture the primary; with several hosts and target_session_attrs=read-write in the url the "
            "connection finds it",
            sqlstate="55000",
            retryable=True,
        )
    if slot_name is not None and (plugin != "pgoutput" or slot_database != database):
        raise IngestError(
            "CAPTURE_SLOT_NOT_USABLE",
            f"The replication slot {slot} exists already, and is not one of pgoutput in {database}",
            hint=f"if nobody needs it, drop it: SELECT pg_drop_replication_slot('{slot}'); otherwise give "
            "the capture another one: capture(…, slot=…). What was captured before is copied again: "
            "--full-refresh of the log table and of the captured tables",
        )
    return ServerState(
        log=f"{system}/{database_oid}/{slot}",
        slot=slot,
        flushed=lsn_number(flushed),
        confirmed=None if confirmed is None else lsn_number(confirmed),
        is_lost=wal_status == "lost",
        timeline=int(row[9], 16),
    )


def bytes_since(url: str, capture: str, position: LogPosition) -> int | str:
    """How many bytes of the server's log are behind a position, also of tables that are not captured, by a
    connection of its own; or why that is not known.

    Raises:
        SettingsError: `CAPTURE_URL_INVALID`.
        IngestError: as `translated_errors`, and `server_state`.
    """
    url = make_conninfo(checked_url(url, capture), connect_timeout=_ANSWER_S)
    with translated_errors(capture), connect(url) as connection:
        state = server_state(connection, slot_of(position))
    loss = state.reason_of_loss(position.log, position.point)
    return state.flushed - position.point if loss is None else f"of the capture {capture}: {loss}"


def slot_of(position: LogPosition) -> str:
    """The slot from which a position's log is read: see `ServerState.log`."""
    return position.log.rsplit("/", 1)[1]


def _pattern_of_slots(prefix: str) -> str:
    """A regular expression of the names of a capture's slots, in all lakes: behind the prefix each has digits
    of the table that reads it.

    >>> import re
    >>> [bool(re.search(_pattern_of_slots("shop"), name)) for name in ("shop_0123abcd", "shop_eu_0123abcd")]
    [True, False]
    """
    return f"^{prefix}(_[^_]+)?$"


def slots_of(connection: psycopg.Connection, prefix: str, own: str | None) -> list[KeptLog]:
    """The slots of a capture, in all lakes: their names begin alike."""
    rows = connection.execute(
        "SELECT slot_name, (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::bigint, "
        "(pg_current_wal_lsn() - restart_lsn)::bigint, coalesce(wal_status = 'lost', false), "
        # This column came with PostgreSQL 17.
        "to_jsonb(s) ->> 'inactive_since' "
        "FROM pg_replication_slots s WHERE database = current_database() "
        "AND slot_name ~ %s ORDER BY slot_name",
        (_pattern_of_slots(prefix),),
    ).fetchall()
    return [
        KeptLog(
            name=name,
            is_own=None if own is None else name == own,
            distance_bytes=distance,
            kept_bytes=kept,
            is_lost=is_lost,
            last_read=inactive_since,
            drop=f"SELECT pg_drop_replication_slot('{name}')",
        )
        for name, distance, kept, is_lost, inactive_since in rows
    ]


def check_server(connection: psycopg.Connection, capture: str) -> None:
    """
    Raises:
        IngestError: `CAPTURE_SERVER_NOT_USABLE`.
    """
    query = (
        "SELECT current_setting('wal_level'), pg_is_in_recovery(), "
        "current_setting('server_version_num')::int, current_setting('server_encoding')"
    )
    wal_level, is_standby, version, encoding = one_row(connection, query)
    problem = hint = ""
    if version < 140000:
        problem, hint = f"it is PostgreSQL {version // 10000}", "captures need PostgreSQL 14 or newer"
    elif is_standby:
        problem, hint = "it is a standby", "capture the primary"
    elif wal_level != "logical":
        problem = f"its wal_level is {wal_level}"
        hint = "ALTER SYSTEM SET wal_level = logical, then restart the server"
    elif encoding == "SQL_ASCII":
        problem, hint = (
            "its encoding is SQL_ASCII",
            "the texts in it have no known encoding; convert it first",
        )
    if problem:
        raise IngestError(
            "CAPTURE_SERVER_NOT_USABLE",
            f"The database of the capture {capture} cannot be captured: {problem}",
            hint=hint,
            sqlstate="55000",
        )


def create_slot(connection: psycopg.Connection, slot: str, *, replace: bool) -> int:
    """Where the slot begins. The server waits for all transactions that write right now: the log has
    everything of all later ones."""
    if replace:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    # Standbys that synchronise slots keep it, so that a promoted one goes on with it.
    more = ", failover => true" if connection.info.server_version >= 170000 else ""
    query = f"SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput'{more})"
    (lsn,) = one_row(connection, query, (slot,))
    return lsn_number(lsn)


def await_running_transactions(connection: psycopg.Connection, wait_s: float | None) -> int:
    """Wait until all transactions that run now have ended. What they wrote is in the log only as the
    publication was when they began, and they may be in the log before others see them.

    Args:
        wait_s: at most; None: as long as it takes.

    Returns:
        The number of a transaction that no snapshot has seen before, and that all have from now on.

    Raises:
        IngestError: `CAPTURE_WAITS_FOR_TRANSACTIONS`: one runs for longer. Retryable.
    """
    (newest,) = one_row(connection, "SELECT pg_current_xact_id()::text::bigint")
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        (lowest,) = one_row(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        if lowest > newest:
            return int(newest)
        if deadline is not None and time.monotonic() > deadline:
            raise IngestError(
                "CAPTURE_WAITS_FOR_TRANSACTIONS",
                f"A table can only be copied when the transactions that ran before have ended, and number "
                f"{lowest} runs for more than {wait_s:.0f} s",
                hint="SELECT pid, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL shows it; the "
                "flow tries again",
                sqlstate="55006",
            )
        time.sleep(0.1)


def add_to_publication(
    connection: psycopg.Connection, publication: str, tables: Sequence[CapturedTable]
) -> None:
    """Create the publication, or add the tables that it lacks.

    Raises:
        IngestError: `CAPTURE_PUBLICATION_INCOMPLETE`; `CAPTURE_RIGHTS_MISSING`, with the statement.
    """
    statement = _publication_statement(connection, publication, tables)
    if statement is None:
        return
    try:
        connection.execute(statement)
    except errors.InsufficientPrivilege as error:
        raise IngestError(
            "CAPTURE_RIGHTS_MISSING",
            f"The role of the capture may not change the publication {publication}: "
            f"{error.diag.message_primary}",
            hint=f"by an owner of the database's tables: {statement.as_string(connection)}",
            sqlstate=error.sqlstate,
        ) from error


def _publication_statement(
    connection: psycopg.Connection, publication: str, tables: Sequence[CapturedTable]
) -> sql.Composed | None:
    """What makes the publication have all of these tables; None if it has them.

    Raises:
        IngestError: `CAPTURE_PUBLICATION_INCOMPLETE`.
    """
    name = sql.Identifier(publication)
    query = "SELECT puballtables FROM pg_publication WHERE pubname = %s"
    existing = connection.execute(query, (publication,)).fetchone()
    if existing is None:
        names = sql.SQL(", ").join(table.rows_of_its_own for table in tables)
        options = sql.SQL("WITH (publish_via_partition_root = true)")
        return sql.SQL("CREATE PUBLICATION {} FOR TABLE {} {}").format(name, names, options)
    # Without `publish_via_partition_root` it names partitions, and what is added is there already.
    check_publication(connection, publication)
    published = connection.execute(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (publication,)
    ).fetchall()
    missing = [table.rows_of_its_own for table in tables if (table.schema, table.table) not in published]
    (publishes_all,) = existing
    if publishes_all or not missing:
        return None
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, sql.SQL(", ").join(missing))


def check_publication(connection: psycopg.Connection, publication: str) -> None:
    """Does it have all changes, of whole rows?

    Raises:
        IngestError: `CAPTURE_PUBLICATION_MISSING`; `CAPTURE_PUBLICATION_INCOMPLETE`.
    """
    query = (
        "SELECT array_remove(ARRAY[CASE WHEN NOT pubinsert THEN 'insert' END, "
        "CASE WHEN NOT pubupdate THEN 'update' END, CASE WHEN NOT pubdelete THEN 'delete' END, "
        "CASE WHEN NOT pubtruncate THEN 'truncate' END], NULL), pubviaroot, ARRAY("
        "SELECT prrelid::regclass::text FROM pg_publication_rel r WHERE r.prpubid = p.oid "
        # These columns came with PostgreSQL 15.
        "AND (to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL)), "
        # This one came with PostgreSQL 18.
        "coalesce(to_jsonb(p) ->> 'pubgencols', 'n') <> 'n' "
        "FROM pg_publication p WHERE pubname = %s"
    )
    row = connection.execute(query, (publication,)).fetchone()
    if row is None:
        raise IngestError(
            "CAPTURE_PUBLICATION_MISSING",
            f"The publication {publication} is gone",
            hint="changes that are written without it are not in the log; copy the database again with "
            "--full-refresh of the log table, which makes the publication anew",
        )
    left_out, is_by_root, filtered, has_generated_columns = row
    if has_generated_columns:
        raise IngestError(
            "CAPTURE_PUBLICATION_INCOMPLETE",
            f"The publication {publication} has generated columns, which a capture leaves out",
            hint=f"ALTER PUBLICATION {publication} SET (publish_generated_columns = none)",
        )
    problems = [f"it has no {operation}" for operation in left_out]
    problems += [] if is_by_root else ["publish_via_partition_root is false"]
    problems += [f"it filters {table}" for table in filtered]
    if problems:
        raise IngestError(
            "CAPTURE_PUBLICATION_INCOMPLETE",
            f"The publication {publication} leaves out some changes: {', '.join(problems)}",
            hint=f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate', "
            f"publish_via_partition_root = true), no row filters, no column lists; what was captured before "
            f"is copied again with --full-refresh of the log table",
        )


def one_row(connection: psycopg.Connection, query: str, arguments: Sequence[object] = ()) -> tuple[Any, ...]:
    """The row of a query that always has one."""
    row = connection.execute(query, arguments or None).fetchone()
    assert row is not None
    return row


LOG_BYTES = 4_000_000_000
"""So much log may a slot keep that has no bound. With a bound, `max_slot_wal_keep_size`, half of it."""
TRANSACTION_S = 300.0
"""So long may a transaction be open."""


class Alarms:
    """Looks at the slots of a capture and at the oldest transaction that writes."""

    def __init__(self) -> None:
        self._oldest: tuple[int, float] | None = None
        """The number of the oldest transaction, and since when it is known: roles without
        `pg_read_all_stats` do not see when others began."""

    def reasons(self, connection: psycopg.Connection, prefix: str, own: str) -> list[Reason]:
        return [*_alarms_of_slots(connection, prefix), *self._alarms_of_transactions(connection, own)]

    def _alarms_of_transactions(self, connection: psycopg.Connection, own: str) -> Iterator[Reason]:
        query = (
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
            # The end of a snapshot is behind the last transaction that ended, not behind those that run.
            "pg_snapshot_xmin(pg_current_snapshot()) < pg_snapshot_xmax(pg_current_snapshot()) OR EXISTS ("
            "SELECT FROM pg_locks WHERE locktype = 'transactionid' "
            "AND transactionid = pg_snapshot_xmin(pg_current_snapshot())::xid), "
            "(SELECT extract(epoch FROM max(now() - xact_start))::float FROM pg_stat_activity "
            "WHERE backend_xid = pg_snapshot_xmin(pg_current_snapshot())::xid), "
            "(SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots "
            "WHERE slot_name = %s)"
        )
        oldest, is_open, open_s, kept = one_row(connection, query, (own,))
        now = time.monotonic()
        if not is_open:
            self._oldest = None
            return
        if self._oldest is None or self._oldest[0] != oldest:
            self._oldest = (oldest, now)
        seconds = max(open_s or 0.0, now - self._oldest[1])
        if seconds >= TRANSACTION_S:
            yield Reason.of(
                ReasonCode.TRANSACTION_OPEN_AT_SOURCE,
                transaction=oldest,
                seconds=int(seconds),
                kept_mb=int((kept or 0) // 1_000_000),
            )


def _alarms_of_slots(connection: psycopg.Connection, prefix: str) -> Iterator[Reason]:
    query = (
        "SELECT slot_name, wal_status, (pg_current_wal_lsn() - restart_lsn)::bigint, "
        "pg_size_bytes(current_setting('max_slot_wal_keep_size')) FROM pg_replication_slots "
        "WHERE database = current_database() AND slot_name ~ %s ORDER BY slot_name"
    )
    for name, status, kept, bound in connection.execute(query, (_pattern_of_slots(prefix),)).fetchall():
        limit = bound // 2 if bound > 0 else LOG_BYTES
        if status == "unreserved" or (kept is not None and kept > limit):
            yield Reason.of(
                ReasonCode.LOG_KEPT_AT_SOURCE,
                slot=name,
                kept_mb=int((kept or 0) // 1_000_000),
                bound_mb=int(bound // 1_000_000) if bound > 0 else None,
            )


def open_transactions(connection: psycopg.Connection) -> Sequence[Reason]:
    """Those that write, of all databases of the server: it waits for each of them before a slot begins."""
    query = (
        "SELECT backend_xid::text, 'process ' || pid, extract(epoch FROM now() - xact_start)::bigint "
        "FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
        "UNION ALL SELECT transaction::text, 'the prepared transaction ' || gid, "
        "extract(epoch FROM now() - prepared)::bigint FROM pg_prepared_xacts "
        "ORDER BY 3 DESC NULLS LAST LIMIT 5"
    )
    return [
        Reason.of(
            ReasonCode.COPY_WAITS_FOR_TRANSACTION,
            transaction=f"transaction {transaction}",
            session=session,
            seconds=seconds,
        )
        for transaction, session, seconds in connection.execute(query).fetchall()
    ]


def check_prerequisites(
    connection: psycopg.Connection,
    capture: str,
    slot: str,
    publication: str,
    tables: list[CapturedTable],
) -> str:
    """
    Raises:
        IngestError: what is missing, with the SQL that mends it.
    """
    check_server(connection, capture)
    _check_role(connection, capture, tables)
    names = ", ".join(table.identifier.as_string(connection) for table in tables)
    published = _check_publication(connection, capture, publication, tables)
    return f"{len(tables)} tables ({names}); {published}; {_slots_text(connection, slot)}"


def _check_role(connection: psycopg.Connection, capture: str, tables: list[CapturedTable]) -> None:
    query = (
        "SELECT rolname, rolsuper OR rolreplication OR EXISTS (SELECT 1 FROM pg_roles g "
        # Managed servers grant it by a role of their own.
        "WHERE g.rolname LIKE '%%replication%%' AND pg_has_role(r.oid, g.oid, 'member')) "
        "FROM pg_roles r WHERE rolname = current_user"
    )
    role, may_replicate = one_row(connection, query)
    missing = []
    identifier = sql.Identifier(role).as_string(connection)
    if not may_replicate:
        missing.append(f"ALTER ROLE {identifier} REPLICATION")
    for schema in sorted({table.schema for table in tables}):
        (may_use,) = one_row(connection, "SELECT has_schema_privilege(%s, 'USAGE')", (schema,))
        if not may_use:
            name = sql.Identifier(schema).as_string(connection)
            missing.append(f"GRANT USAGE ON SCHEMA {name} TO {identifier}")
    for table in tables:
        (may_read,) = one_row(connection, "SELECT has_table_privilege(%s::oid, 'SELECT')", (table.oid,))
        if not may_read:
            missing.append(f"GRANT SELECT ON {table.identifier.as_string(connection)} TO {identifier}")
    for table in tables:
        (is_filtered,) = one_row(connection, "SELECT row_security_active(%s::oid)", (table.oid,))
        if is_filtered:
            missing.append(f"ALTER ROLE {identifier} BYPASSRLS")
            break
    _require_no(missing, capture, f"The role {role} of the capture {capture} lacks rights")


def require_rights(
    connection: psycopg.Connection, publication: str, table: CapturedTable, capture: str
) -> None:
    """
    Raises:
        DefinitionError: `CAPTURE_RIGHTS_MISSING`: the role may not read a table, or not publish it.
    """
    if table.has_rights:
        return
    name = table.identifier.as_string(connection)
    role, may_use, may_read, is_filtered = one_row(
        connection,
        "SELECT quote_ident(current_user), has_schema_privilege(%s, 'USAGE'), "
        "has_table_privilege(%s::oid, 'SELECT'), row_security_active(%s::oid)",
        (table.schema, table.oid, table.oid),
    )
    schema = sql.Identifier(table.schema).as_string(connection)
    statements = [] if may_use else [f"GRANT USAGE ON SCHEMA {schema} TO {role}"]
    statements += [] if may_read else [f"GRANT SELECT ON {name} TO {role}"]
    # Row security would leave out rows of a copy.
    statements += [f"ALTER ROLE {role} BYPASSRLS"] if is_filtered else []
    added = _publication_statement(connection, publication, [table])
    statements += [] if added is None else [added.as_string(connection)]
    raise DefinitionError(
        "CAPTURE_RIGHTS_MISSING",
        f"The role {role} of the capture {capture} may not read {table.name}, or not publish it",
        hint=f"by an owner of the table and of the publication: {'; '.join(statements)}; or leave the table "
        f"out with exclude=[{table.name!r}]",
        sqlstate="42501",
    )


def require_readable(
    connection: psycopg.Connection, publication: str, tables: Iterable[CapturedTable], capture: str
) -> None:
    """Why tables could not be copied.

    Raises:
        DefinitionsOutdatedError: the role may not read one, which is set aside once definitions are loaded
            anew.
        psycopg.Error: another reason.
    """
    for table in tables:
        with outdated_if_refused():
            require_rights(connection, publication, table, capture)
        connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(table.identifier))


def _check_publication(
    connection: psycopg.Connection, capture: str, publication: str, tables: list[CapturedTable]
) -> str:
    """
    Raises:
        IngestError: `CAPTURE_PUBLICATION_INCOMPLETE`; `CAPTURE_RIGHTS_MISSING`: it lacks tables, and the role
            may not add them.
    """
    statement = _publication_statement(connection, publication, tables)
    if statement is None:
        return f"publication {publication}"
    owner = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
    existing = connection.execute(owner, (publication,)).fetchone()
    query = "SELECT has_database_privilege(current_database(), 'CREATE')"
    (may_publish,) = existing or one_row(connection, query)
    owned = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s"
    owns_all = all(one_row(connection, owned, (table.oid,))[0] for table in tables)
    sentence = f"The capture {capture} has no publication of all its tables, and its role may not make it"
    _require_no([] if may_publish and owns_all else [statement.as_string(connection)], capture, sentence)
    return f"publication {publication}, {'extended by the next' if existing else 'made by the first'} run"


def _require_no(statements: list[str], capture: str, sentence: str) -> None:
    if statements:
        raise IngestError(
            "CAPTURE_RIGHTS_MISSING",
            sentence,
            hint=f"by an owner of the database's tables: {'; '.join(statements)}",
            sqlstate="42501",
            parameters={"capture": capture},
        )


def _slots_text(connection: psycopg.Connection, prefix: str) -> str:
    """The slots of this capture: those of other lakes that capture the database have the same prefix.

    Raises:
        IngestError: `CAPTURE_SLOT_NOT_USABLE`, `SOURCE_LOG_LOST`.
    """
    slots = connection.execute(
        "SELECT slot_name, active, wal_status = 'lost', pg_current_wal_flush_lsn() - confirmed_flush_lsn, "
        "pg_current_wal_lsn() - restart_lsn, current_setting('max_slot_wal_keep_size') "
        "FROM pg_replication_slots WHERE database = current_database() "
        "AND slot_name ~ %s ORDER BY slot_name",
        (_pattern_of_slots(prefix),),
    ).fetchall()
    if not slots:
        query = "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
        used, available = one_row(connection, query)
        if used >= available:
            raise IngestError(
                "CAPTURE_SLOT_NOT_USABLE",
                f"All {available} replication slots of the server are in use",
                hint="ALTER SYSTEM SET max_replication_slots, then restart the server; or drop one that "
                "nobody reads",
            )
        return f"slot {prefix}_…, made by the first run"
    lost = [name for name, _, is_lost, *_ in slots if is_lost]
    if len(lost) == len(slots):
        raise IngestError(
            "SOURCE_LOG_LOST",
            f"The server invalidated the replication slot {', '.join(lost)} and removed its log",
            hint="copy the database again with --full-refresh-all; max_slot_wal_keep_size says how much "
            "log a slot may keep",
        )
    texts = [_slot_text(*slot) for slot in slots]
    if len(slots) > 1:
        drop = "SELECT pg_drop_replication_slot('...')"
        texts.append(f"each keeps log for one lake: drop those that nobody reads any more with {drop}")
    return "; ".join(texts)


def _slot_text(name: str, active: bool, is_lost: bool, behind: int, kept: int, bound: str) -> str:
    if is_lost:
        return f"slot {name} has lost its log"
    limit = "without a bound" if bound == "-1" else f"at most {bound}"
    use = ", read right now" if active else ""
    return (
        f"slot {name} is {behind / _MEGABYTE:,.1f} MB behind and keeps {kept / _MEGABYTE:,.1f} MB of log, "
        f"{limit}{use}"
    )
