"""What `taut doctor` says of a capture: all that a run needs in the database. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import sql

from tautochrone.errors import DefinitionError, IngestError
from tautochrone.sources.capture.set_aside import outdated_if_refused
from tautochrone.sources.postgresql.server import (
    check_server,
    one_row,
    pattern_of_slots,
    publication_statement,
)
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = ["examine", "require_readable", "require_rights"]

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
    published = _publication(connection, capture, publication, tables)
    return f"{len(tables)} tables ({names}); {published}; {_slots(connection, slot)}"


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
    added = publication_statement(connection, publication, [table])
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


def _publication(
    connection: psycopg.Connection, capture: str, publication: str, tables: list[CapturedTable]
) -> str:
    """
    Raises:
        IngestError: `CAPTURE_PUBLICATION_INCOMPLETE`; `CAPTURE_RIGHTS_MISSING`: it lacks tables, and the role
            may not add them.
    """
    statement = publication_statement(connection, publication, tables)
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


def _slots(connection: psycopg.Connection, prefix: str) -> str:
    """The slots of this capture: those of other lakes that capture the database have the same prefix.

    Raises:
        IngestError: `CAPTURE_SLOT_NOT_USABLE`, `SOURCE_LOG_LOST`.
    """
    slots = connection.execute(
        "SELECT slot_name, active, wal_status = 'lost', pg_current_wal_flush_lsn() - confirmed_flush_lsn, "
        "pg_current_wal_lsn() - restart_lsn, current_setting('max_slot_wal_keep_size') "
        "FROM pg_replication_slots WHERE database = current_database() "
        "AND slot_name ~ %s ORDER BY slot_name",
        (pattern_of_slots(prefix),),
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
    texts = [_described(*slot) for slot in slots]
    if len(slots) > 1:
        drop = "SELECT pg_drop_replication_slot('...')"
        texts.append(f"each keeps log for one lake: drop those that nobody reads any more with {drop}")
    return "; ".join(texts)


def _described(name: str, active: bool, is_lost: bool, behind: int, kept: int, bound: str) -> str:
    if is_lost:
        return f"slot {name} has lost its log"
    limit = "without a bound" if bound == "-1" else f"at most {bound}"
    use = ", read right now" if active else ""
    return (
        f"slot {name} is {behind / _MEGABYTE:,.1f} MB behind and keeps {kept / _MEGABYTE:,.1f} MB of log, "
        f"{limit}{use}"
    )
