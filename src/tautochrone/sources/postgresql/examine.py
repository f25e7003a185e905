"""What `taut doctor` says of a capture: all that a run needs in the database. Nothing is changed."""

from __future__ import annotations

import psycopg
from psycopg import sql

from tautochrone.errors import IngestError
from tautochrone.sources.postgresql.server import (
    ServerState,
    check_publication,
    check_server,
    one_row,
    server_state,
)
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = ["examine"]

_MEGABYTE = 1_000_000


def examine(
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
    exists = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone()
    if exists:
        check_publication(connection, publication)
        publication_text = f"publication {publication}"
    else:
        _check_may_publish(connection, capture, publication, tables, names)
        publication_text = f"publication {publication}, made by the first run"
    state = server_state(connection, slot)
    return f"{len(tables)} tables ({names}); {publication_text}; {_slot(connection, state)}"


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
    for table in tables:
        (may_read,) = one_row(connection, "SELECT has_table_privilege(%s::oid, 'SELECT')", (table.oid,))
        if not may_read:
            missing.append(f"GRANT SELECT ON {table.identifier.as_string(connection)} TO {identifier}")
    _require_no(missing, capture, f"The role {role} of the capture {capture} lacks rights")


def _check_may_publish(
    connection: psycopg.Connection,
    capture: str,
    publication: str,
    tables: list[CapturedTable],
    names: str,
) -> None:
    query = "SELECT has_database_privilege(current_database(), 'CREATE')"
    (may_create,) = one_row(connection, query)
    owned = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s"
    owns_all = all(one_row(connection, owned, (table.oid,))[0] for table in tables)
    missing = []
    if not may_create or not owns_all:
        name = sql.Identifier(publication).as_string(connection)
        missing.append(
            f"CREATE PUBLICATION {name} FOR TABLE {names} WITH (publish_via_partition_root = true)"
        )
    _require_no(missing, capture, f"The capture {capture} has no publication, and its role may not make it")


def _require_no(statements: list[str], capture: str, sentence: str) -> None:
    if statements:
        raise IngestError(
            "CAPTURE_RIGHTS_MISSING",
            sentence,
            hint=f"by an owner of the database's tables: {'; '.join(statements)}",
            sqlstate="42501",
            parameters={"capture": capture},
        )


def _slot(connection: psycopg.Connection, state: ServerState) -> str:
    if state.confirmed is None:
        query = "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
        used, available = one_row(connection, query)
        if used >= available:
            raise IngestError(
                "CAPTURE_SLOT_NOT_USABLE",
                f"All {available} replication slots of the server are in use",
                hint="ALTER SYSTEM SET max_replication_slots, then restart the server; or drop one that "
                "nobody reads",
            )
        return f"slot {state.slot}, made by the first run"
    if state.is_lost:
        raise IngestError(
            "SOURCE_LOG_LOST",
            f"The server invalidated the replication slot {state.slot} and removed its log",
            hint="copy the database again with --full-refresh-all; max_slot_wal_keep_size says how much "
            "log a slot may keep",
        )
    query = (
        "SELECT pg_current_wal_lsn() - restart_lsn, current_setting('max_slot_wal_keep_size') "
        "FROM pg_replication_slots WHERE slot_name = %s"
    )
    kept, bound = one_row(connection, query, (state.slot,))
    behind = (state.flushed - state.confirmed) / _MEGABYTE
    limit = "without a bound" if bound == "-1" else f"at most {bound}"
    return (
        f"slot {state.slot} is {behind:,.1f} MB behind and keeps {kept / _MEGABYTE:,.1f} MB of log, {limit}"
    )
