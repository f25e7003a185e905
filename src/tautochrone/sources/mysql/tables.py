"""Which tables of the server are captured, and their columns, keys and foreign keys.

Some foreign keys change rows by themselves. Servers that leave this to InnoDB log nothing of it: only the
deleted or updated row of the other table is in the log.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tautochrone.errors import DefinitionError
from tautochrone.model.reason import Reason
from tautochrone.sources.capture.definitions import matches_any, require_own_names
from tautochrone.sources.capture.set_aside import absent_tables, require_capturable
from tautochrone.sources.mysql.connection import Address, fetch
from tautochrone.sources.mysql.flavors import flavor_of

__all__ = [
    "Capture",
    "CapturedTable",
    "Cascade",
    "ForeignKey",
    "TableColumn",
    "captured_tables",
    "cascades_by_parent",
    "has_same_key_and_columns",
    "quoted_name",
    "read_tables",
    "require_logged",
    "unlogged_foreign_keys",
    "without_last_columns",
]


_NAME = r"`((?:[^`]|``)+)`"
_NAMES = r"\((`(?:[^`]|``)+`(?:,\s*`(?:[^`]|``)+`)*)\)"
_FOREIGN_KEY = re.compile(
    rf"^\s*CONSTRAINT {_NAME} FOREIGN KEY {_NAMES} REFERENCES (?:{_NAME}\.)?{_NAME} {_NAMES}(.*)$",
    re.MULTILINE,
)
"""In what SHOW CREATE TABLE prints. The catalog of foreign keys hides them from users who may only read."""
_CHANGES = r"(?:CASCADE|SET NULL|SET DEFAULT)"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One that changes rows of `child`.

    Attributes:
        child, parent: `schema.table`.
        columns: of the parent, which it refers to.
        on_delete, on_update: it changes rows when a row of the parent is deleted, or gets other values there.
    """

    name: str
    child: str
    parent: str
    columns: tuple[str, ...]
    on_delete: bool
    on_update: bool


@dataclass(frozen=True, slots=True)
class Cascade:
    """What a deleted or updated row of a table changes elsewhere.

    Attributes:
        tables: whose rows change, those that follow from others included.
        columns: an update counts when these change.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    on_delete: bool
    on_update: bool


def unlogged_foreign_keys(connection: Any, schema: str, identifier: str, child: str) -> list[ForeignKey]:
    """Those of a table that change its rows.

    Args:
        schema: of the table, which references without a schema mean.
        identifier: the table's name, quoted.
        child: `schema.table`.
    """
    _name, definition, *_rest = fetch(connection, f"SHOW CREATE TABLE {identifier}")[0]
    keys = []
    for name, _columns, other_schema, parent, columns, actions in _FOREIGN_KEY.findall(definition):
        on_delete = re.search(rf"ON DELETE {_CHANGES}", actions) is not None
        on_update = re.search(rf"ON UPDATE {_CHANGES}", actions) is not None
        if on_delete or on_update:
            parent_name = f"{_unquoted(other_schema or schema)}.{_unquoted(parent)}"
            referenced = tuple(map(_unquoted, re.findall(_NAME, columns)))
            keys.append(ForeignKey(_unquoted(name), child, parent_name, referenced, on_delete, on_update))
    return keys


def _unquoted(name: str) -> str:
    return name.replace("``", "`")


def cascades_by_parent(keys: Collection[ForeignKey]) -> Mapping[str, Sequence[Cascade]]:
    """
    >>> first = ForeignKey("a", "s.lines", "s.orders", ("id",), True, False)
    >>> second = ForeignKey("b", "s.notes", "s.lines", ("id",), True, False)
    >>> cascades_by_parent([first, second])["s.orders"][0].tables
    ('s.lines', 's.notes')
    """
    cascades: dict[str, list[Cascade]] = {}
    for key in keys:
        tables = tuple(sorted(_changed_with(key.child, keys)))
        cascades.setdefault(key.parent, []).append(Cascade(tables, key.columns, key.on_delete, key.on_update))
    return cascades


def _changed_with(table: str, keys: Collection[ForeignKey]) -> set[str]:
    """The table and those whose rows may change because its rows do."""
    tables, added = {table}, {table}
    while added:
        added = {key.child for key in keys if key.parent in added} - tables
        tables |= added
    return tables


_TRIES = 3
_OWN_SCHEMAS = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_TABLES = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, IFNULL(DATA_LENGTH, 0), IFNULL(TABLE_ROWS, 0),
       TABLE_TYPE = 'SYSTEM VERSIONED'
FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN {_OWN_SCHEMAS} ORDER BY 1, 2
"""
_COLUMNS = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME,
       IFNULL(CHARACTER_OCTET_LENGTH, 0), IFNULL(NUMERIC_PRECISION, 0), IFNULL(NUMERIC_SCALE, 0),
       EXTRA LIKE '%GENERATED%' AND EXTRA NOT LIKE 'DEFAULT%'
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA NOT IN {_OWN_SCHEMAS} ORDER BY 1, 2, ORDINAL_POSITION
"""
_KEYS = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA NOT IN {_OWN_SCHEMAS} ORDER BY 1, 2, SEQ_IN_INDEX
"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """As `information_schema.COLUMNS` has it.

    Attributes:
        data_type: such as `int`.
        column_type: such as `int(10) unsigned`.
        charset: of texts; None for other types.
        octets: of texts and binaries, at most.
        is_generated: computed from other columns. The log has these too.
    """

    name: str
    data_type: str
    column_type: str
    charset: str | None = None
    octets: int = 0
    precision: int = 0
    scale: int = 0
    is_generated: bool = False

    @property
    def is_unsigned(self) -> bool:
        return "unsigned" in self.column_type


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """
    Attributes:
        logged: all columns, as the log has them.
        engine: of storage.
        bytes, rows: roughly.
        is_versioned: it keeps what its rows were, `WITH SYSTEM VERSIONING` of MariaDB.
        shares_name: the `name` of another table is the same.
    """

    schema: str
    table: str
    logged: tuple[TableColumn, ...]
    keys: tuple[str, ...]
    engine: str = "InnoDB"
    bytes: int = 0
    rows: int = 0
    is_versioned: bool = False
    shares_name: bool = False

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def identifier(self) -> str:
        return f"{quoted_name(self.schema)}.{quoted_name(self.table)}"

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """Those that the lake's table gets: without generated ones, unless they are part of the key."""
        return tuple(column for column in self.logged if not column.is_generated or column.name in self.keys)

    @property
    def fingerprint(self) -> str:
        """Differs when rows in the log before and behind mean different things."""
        return hashlib.sha256(repr((self.logged, self.keys)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Capture:
    """A server and the tables that are taken from it.

    Attributes:
        follows_changes: a new table, or one that a statement changes, is copied; otherwise refused.
        keeps_columns: a table that gets other columns keeps those that it has.
        follows_cascades: a table that a foreign key may have changed without a trace is copied again.
        copy_tasks: so many tasks of Spark copy at once, each by a connection; 0: the driver copies.
        server: `MariaDB` or `MySQL`.
        patterns, exclude: what the names of its tables match.
        aside: by name, tables that are not captured as they are now, and why.
        given_url: as the definition gives it, with its password.
    """

    name: str
    address: Address
    tables: tuple[CapturedTable, ...]
    follows_changes: bool = True
    keeps_columns: bool = False
    follows_cascades: bool = False
    copy_tasks: int = 8
    server: str = "MariaDB"
    patterns: Sequence[str] = ()
    exclude: Sequence[str] = ()
    aside: Mapping[str, Reason] = field(default_factory=dict)
    given_url: str = field(default="", repr=False)


def quoted_name(name: str) -> str:
    """
    >>> quoted_name("a`b")
    '`a``b`'
    """
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def read_tables(connection: Any) -> dict[str, CapturedTable]:
    """All tables that the user may see, by `schema.table`."""
    columns: dict[tuple[str, str], list[TableColumn]] = {}
    for schema, table, name, data_type, column_type, charset, octets, *numbers, generated in fetch(
        connection, _COLUMNS
    ):
        precision, scale = map(int, numbers)
        columns.setdefault((schema, table), []).append(
            TableColumn(
                name,
                data_type.lower(),
                column_type,
                charset,
                int(octets),
                precision,
                scale,
                str(generated) == "1",
            )
        )
    keys: dict[tuple[str, str], list[str]] = {}
    for schema, table, name in fetch(connection, _KEYS):
        keys.setdefault((schema, table), []).append(name)
    tables: dict[str, CapturedTable] = {}
    for schema, table, engine, size, rows, versioned in fetch(connection, _TABLES):
        captured = CapturedTable(
            schema,
            table,
            tuple(columns.get((schema, table), ())),
            tuple(keys.get((schema, table), ())),
            engine or "",
            int(size),
            int(rows),
            str(versioned) == "1",
        )
        tables[captured.name] = replace(captured, shares_name=captured.name in tables)
    return tables


def captured_tables(
    connection: Any,
    patterns: Sequence[str],
    exclude: Sequence[str],
    capture: str,
    *,
    follows_cascades: bool = False,
    aside: dict[str, Reason] | None = None,
    check: Callable[[CapturedTable], None] = lambda _: None,
) -> tuple[CapturedTable, ...]:
    """The tables that a pattern matches, such as `shop.*`, and whose log says everything.

    Args:
        follows_cascades: tables may have foreign keys whose changes are not logged, see `require_logged`.
        aside: gets why some are left out, if others can be captured, see `capture.set_aside`.
        check: raises why a table cannot be captured, besides what is looked at here.

    Raises:
        DefinitionError: `CAPTURED_TABLE_NAME_TAKEN`; and, without `aside` or if no table can be captured,
            `CAPTURE_WITHOUT_TABLES`: a pattern matches none; `CAPTURED_TABLE_WITHOUT_KEY`;
            `CAPTURED_TABLE_NOT_LOGGED`, and what `check` raises.
    """
    for _ in range(_TRIES):
        tables = read_tables(connection)
        matching = tuple(
            table
            for name, table in tables.items()
            if matches_any(name, patterns) and not matches_any(name, exclude)
        )
        without_key = [table.name for table in matching if not table.keys or not table.logged]
        # A table that is dropped and made anew while it is read may look as if it had none.
        if not without_key:
            break
    require_own_names(capture, [table.name for table in matching if table.shares_name])
    capturable = {table.name for table in matching if table.keys}
    followed = capturable if follows_cascades else set()

    def require(table: CapturedTable) -> None:
        if not table.keys or not table.logged:
            raise DefinitionError(
                "CAPTURED_TABLE_WITHOUT_KEY",
                f"The capture {capture} includes tables that have no key: {table.name}",
                hint=f"give it a primary key, or leave it out with exclude=[{table.name!r}]",
            )
        require_logged(connection, table, capture, followed)
        check(table)

    absent = absent_tables(capture, patterns, tables, "GRANT SELECT ON schema.* TO user")
    return require_capturable(matching, require, absent, aside)


def without_last_columns(table: CapturedTable, fingerprint: str) -> CapturedTable | None:
    """The table without those of its last columns that a fingerprint does not have; None: others differ."""
    for count in range(len(table.logged), 0, -1):
        shorter = replace(table, logged=table.logged[:count])
        if shorter.fingerprint == fingerprint:
            return shorter
    return None


def has_same_key_and_columns(
    table: CapturedTable, before: CapturedTable, needed: Callable[[str], bool]
) -> bool:
    """Whether a table has the key that it had, and columns as they were.

    Args:
        needed: of columns that came; others may have come, and all but those of the key may be gone.
    """
    columns = {column.name: column for column in before.logged}
    return table.keys == before.keys and all(
        columns[column.name] == column if column.name in columns else not needed(column.name)
        for column in table.logged
    )


def require_logged(
    connection: Any, table: CapturedTable, capture: str, followed: Collection[str] = ()
) -> None:
    """
    Args:
        followed: tables whose deleted and updated rows are read, so that it is known when foreign keys change
            rows of others.

    Raises:
        DefinitionError: `CAPTURED_TABLE_NOT_LOGGED`: the server does not log all changes of its rows.
    """
    problem, hint = _reason_not_logged(connection, table, followed)
    if problem:
        raise DefinitionError(
            "CAPTURED_TABLE_NOT_LOGGED",
            f"The capture {capture} includes {table.name}, whose log is not complete: {problem}",
            hint=hint,
        )


def _reason_not_logged(connection: Any, table: CapturedTable, followed: Collection[str]) -> tuple[str, str]:
    if table.engine != "InnoDB":
        return (
            f"its engine is {table.engine}, which has no snapshots",
            "ALTER TABLE … ENGINE = InnoDB, or leave the table out with exclude=[…]",
        )
    if table.is_versioned:
        return (
            "it is system-versioned, and the log has rows of its history among the others",
            "ALTER TABLE … DROP SYSTEM VERSIONING, or leave the table out with exclude=[…]",
        )
    if flavor_of(connection).logs_cascades(connection):
        return "", ""
    keys = unlogged_foreign_keys(connection, table.schema, table.identifier, table.name)
    unseen = [key for key in keys if key.parent not in followed]
    if not unseen:
        return "", ""
    parents = ", ".join(sorted({key.parent for key in unseen}))
    return (
        f"the foreign keys {', '.join(key.name for key in unseen)} change its rows by CASCADE or SET NULL, "
        f"and the server does not log these changes",
        f"cascades='copy' copies it again when they may have changed it, where {parents} is captured too; or "
        f"use RESTRICT, or MySQL 9.6 or newer, which logs them, or leave the table out with exclude=[…]",
    )
