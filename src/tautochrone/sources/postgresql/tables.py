"""Which tables of the database are captured, with their columns, keys and partitions.

The log says nothing of partitions that are attached, detached, dropped or truncated by themselves: their rows
come and go without an event. So the tree of partitions is part of a table's fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import sql

from tautochrone.errors import DefinitionError
from tautochrone.model.reason import Reason
from tautochrone.sources.capture.definitions import matches_any, require_own_names
from tautochrone.sources.capture.set_aside import absent_tables, require_capturable
from tautochrone.sources.postgresql.messages import Relation, RelationColumn

__all__ = [
    "Capture",
    "CapturedTable",
    "Partition",
    "attached_partitions",
    "captured_tables",
    "has_lost_rows",
    "read_tables",
    "require_logged",
]

_PARTITIONS_SQL = """
       (SELECT json_agg(json_build_array(
                   t.relid::oid::bigint, t.parentrelid::oid::bigint, h.xmin::text, m.relfilenode::bigint,
                   t.isleaf,
                   -- ATTACH PARTITION updates all columns, which CREATE TABLE made together with the type.
                   y.xmin = h.xmin AND EXISTS (
                       SELECT FROM pg_attribute a WHERE a.attrelid = t.relid AND a.attnum > 0
                       AND a.xmin = y.xmin AND a.cmin = y.cmin),
                   -- A table's first file has its number.
                   m.relfilenode = m.oid OR m.xmin = h.xmin,
                   CASE WHEN %(with_sizes)s THEN s.nspname ELSE '' END,
                   CASE WHEN %(with_sizes)s THEN m.relname ELSE '' END,
                   CASE WHEN %(with_sizes)s AND t.isleaf THEN pg_table_size(t.relid) ELSE 0 END,
                   %(with_sizes)s AND has_table_privilege(t.relid, 'SELECT')
                       AND has_schema_privilege(m.relnamespace, 'USAGE'))
               ORDER BY t.relid)
        FROM pg_partition_tree(c.oid) t
        JOIN pg_class m ON m.oid = t.relid
        JOIN pg_namespace s ON s.oid = m.relnamespace
        JOIN pg_type y ON y.oid = m.reltype
        JOIN pg_inherits h ON h.inhrelid = t.relid
        WHERE t.level > 0)
"""
_HASH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Partition:
    """
    Attributes:
        parent: number of the table that it is directly a partition of.
        attached_by: number of the transaction that made it a partition.
        file: of its rows; another one after TRUNCATE, VACUUM FULL and some forms of ALTER TABLE.
        is_leaf: it has rows itself.
        is_created: it was empty when it became a partition, so that the log has all its rows.
        has_kept_rows: its rows were not truncated since then, so that it has all that the log has. False also
            where that cannot be told.
        schema, table, size_bytes, may_read: only where sizes were asked for.
    """

    oid: int
    parent: int
    attached_by: str
    file: int
    is_leaf: bool
    is_created: bool
    has_kept_rows: bool = True
    schema: str = ""
    table: str = ""
    size_bytes: int = 0
    may_read: bool = False

    @property
    def digest(self) -> bytes:
        text = f"{self.oid} {self.parent} {self.attached_by} {self.file}"
        return hashlib.sha256(text.encode()).digest()[:_HASH_BYTES]


def _encoded_partitions(partitions: Sequence[Partition] | None) -> str:
    """As a part of a fingerprint: a few bytes for each partition, since each commit has it."""
    if partitions is None:
        return ""
    digests = b"".join(sorted(partition.digest for partition in partitions))
    return f"p{base64.urlsafe_b64encode(digests).decode()}"


def _digests(text: str) -> set[bytes]:
    data = base64.urlsafe_b64decode(text[1:])
    return {data[start : start + _HASH_BYTES] for start in range(0, len(data), _HASH_BYTES)}


def has_lost_rows(before: str, partitions: Sequence[Partition]) -> bool:
    """Whether some that were there are gone, were emptied, or were something else meanwhile; or some that
    came may have been emptied."""
    known = _digests(before)
    came = [partition for partition in partitions if partition.digest not in known and partition.is_leaf]
    return not known <= {partition.digest for partition in partitions} or not all(
        partition.has_kept_rows for partition in came
    )


def attached_partitions(before: str, partitions: Sequence[Partition]) -> list[Partition]:
    """Those with rows that may have had rows before they came into the tree."""
    known = _digests(before)
    came = {partition.oid: partition for partition in partitions if partition.digest not in known}

    def is_created(partition: Partition | None) -> bool:
        # A partition of one that was attached had its rows before.
        return partition is None or (partition.is_created and is_created(came.get(partition.parent)))

    return [partition for partition in came.values() if partition.is_leaf and not is_created(partition)]


_QUERY = """
SELECT n.nspname, c.relname, c.oid,
       CASE WHEN %(with_sizes)s
            THEN coalesce((SELECT sum(pg_table_size(relid)) FROM pg_partition_tree(c.oid)),
                          pg_table_size(c.oid))::bigint ELSE 0 END,
       coalesce((SELECT r.oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                 WHERE r.prrelid = c.oid AND p.pubname = %(publication)s), 0),
       CASE WHEN c.relkind = 'p'
            THEN (SELECT bool_and(m.relreplident = 'f') FROM pg_partition_tree(c.oid) t
                  JOIN pg_class m ON m.oid = t.relid)
            ELSE c.relreplident = 'f' END,
       -- Differs after the table was written anew: by ALTER TABLE, but also by VACUUM FULL or TRUNCATE.
       coalesce((SELECT string_agg(m.relfilenode::text, ',' ORDER BY m.oid) FROM pg_partition_tree(c.oid) t
                 JOIN pg_class m ON m.oid = t.relid), c.relfilenode::text),
       -- Differs after an ALTER TABLE of columns.
       concat(c.relam, ':', (SELECT string_agg(a.xmin::text, ',' ORDER BY a.attnum) FROM pg_attribute a
                             WHERE a.attrelid = c.oid AND a.attnum > 0)),
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                                         -- The type below domains, whose checks are not for us.
                                         format_type(CASE WHEN a.atttypid < 16384 THEN a.atttypid ELSE (
                                             WITH RECURSIVE below (type) AS (
                                                 SELECT a.atttypid UNION ALL
                                                 SELECT t.typbasetype FROM below
                                                 JOIN pg_type t ON t.oid = below.type AND t.typtype = 'd')
                                             SELECT below.type FROM below
                                             JOIN pg_type t ON t.oid = below.type AND t.typtype <> 'd')
                                         END, -1),
                                         a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]),
                                         a.attnum)
                        ORDER BY a.attnum)
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''),
       -- Differs after ALTER PUBLICATION ... SET, also when it was taken back.
       (SELECT concat(p.oid, ' ', p.xmin, {schema_membership}) FROM pg_publication p
        WHERE p.pubname = %(publication)s),
       c.relnatts,
       -- Numbers of columns that were dropped, or that rows have which were written before the column came.
       (SELECT json_agg(a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND (a.attisdropped OR a.atthasmissing)),
       -- Whether the role may read it, and it is published, or the role may publish it.
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
           AND NOT row_security_active(c.oid)
           AND coalesce((SELECT p.puballtables OR coalesce({schema_membership}, '') <> ''
                                OR EXISTS (SELECT FROM pg_publication_rel r
                                           WHERE r.prrelid = c.oid AND r.prpubid = p.oid)
                                OR pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')
                         FROM pg_publication p WHERE p.pubname = %(publication)s), false),
       c.relkind = 'p',
       CASE WHEN c.relkind = 'p' THEN {partitions} END,
       -- Partitions of which the log has nothing: UNLOGGED, or foreign tables.
       (SELECT string_agg(m.oid::regclass::text, ', ' ORDER BY m.oid) FROM pg_partition_tree(c.oid) t
        JOIN pg_class m ON m.oid = t.relid
        WHERE m.relpersistence <> 'p' OR m.relkind NOT IN ('r', 'p'))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
    -- The log does not have generated columns: an index with one does not identify its rows.
    AND NOT EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = c.oid AND g.attgenerated <> ''
                    AND g.attnum = ANY (i.indkey::int2[]))
    -- A partition's changes are logged with its own REPLICA IDENTITY, which must have the key too.
    AND NOT (c.relkind = 'p' AND EXISTS (
        SELECT FROM pg_partition_tree(c.oid) t JOIN pg_class m ON m.oid = t.relid
        JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        -- With NOTHING there can be no updates.
        WHERE t.isleaf AND m.relreplident NOT IN ('f', 'n') AND NOT EXISTS (
            SELECT FROM pg_index j JOIN pg_attribute l ON l.attrelid = j.indrelid AND l.attname = k.attname
            WHERE j.indrelid = m.oid AND j.indisvalid
              AND CASE m.relreplident WHEN 'i' THEN j.indisreplident ELSE j.indisprimary END
              AND l.attnum = ANY ((j.indkey::int2[])[0:j.indnkeyatts - 1]))))
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
ORDER BY n.nspname, c.relname
"""
# This table came with PostgreSQL 15.
_SCHEMA_MEMBERSHIP = (
    "(SELECT concat(' ', s.oid) FROM pg_publication_namespace s "
    "WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"
)


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """
    Attributes:
        columns: without generated ones, which the log does not have. `is_key`: part of the key.
        type_names: PostgreSQL's name for the type of each column, such as `bigint`; of that below a domain.
        bytes: roughly, as stored; 0 where sizes were not asked for.
        has_full_identity: the log has all columns of a row that is updated or deleted.
        membership: identifies its membership in the publication; 0: it is none of its tables by name.
        numbers: those of the columns; a column that is dropped and added again gets another one.
        files: names the files of its rows, which are others when the table was written anew.
        attributes: differs after each ALTER TABLE of a column, also where no column is another one then.
        publication: differs when the publication is another one, or has other options or schemas.
        last_number: the highest number that a column ever had.
        filled_numbers: numbers of columns that were dropped, or that came with a value for the rows that were
            there already.
        has_rights: the role may read it, and it is in the publication or the role may add it.
        partitions: of a partitioned table, below each other too; None: it is no such table.
        taken: names in lower case of the columns that the lake's table takes; None: of all.
        ignored: names of the other columns that it has.
        shares_name: the `name` of another table is the same.
        unlogged: names of partitions of which the log has no changes.
    """

    schema: str
    table: str
    oid: int
    columns: tuple[RelationColumn, ...]
    type_names: tuple[str, ...]
    bytes: int = 0
    membership: int = 0
    has_full_identity: bool = False
    numbers: tuple[int, ...] = ()
    files: str = ""
    attributes: str = ""
    publication: str = ""
    last_number: int = 0
    filled_numbers: tuple[int, ...] = ()
    has_rights: bool = True
    partitions: tuple[Partition, ...] | None = None
    taken: frozenset[str] | None = None
    ignored: frozenset[str] = frozenset()
    shares_name: bool = False
    unlogged: str = ""

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    @property
    def rows_of_its_own(self) -> sql.Composable:
        """For statements that must leave out tables that inherit from it: the log has their rows as those of
        other tables."""
        only = sql.SQL("ONLY {}") if self.partitions is None else sql.SQL("{}")
        return only.format(self.identifier)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_key)

    @property
    def identifying_columns(self) -> tuple[str, ...]:
        """The columns by which the log identifies a row: all of them without a key."""
        return self.keys or tuple(column.name for column in self.columns)

    @property
    def has_identity(self) -> bool:
        """Whether the log says which row an update or delete means."""
        return bool(self.keys) or (self.has_full_identity and bool(self.columns))

    @property
    def is_capturable(self) -> bool:
        """Whether a run could capture it as it is."""
        return self.has_identity and self.has_rights and not self.unlogged

    @property
    def fingerprint(self) -> str:
        """Differs when rows in the log before and behind mean different things, or some may be missing.

        `copy_again` compares its parts: identity, columns, files, attributes, key, publication,
        partitions, the highest number of a column.
        """
        identity = (self.oid, self.membership, self.keys)
        parts = (
            _digest(identity),
            self.digest_of_columns(self.last_number),
            _digest(self.files),
            _digest(self.attributes),
            _digest(self.keys),
            _digest((self.publication, self.oid, self.membership)),
            _encoded_partitions(self.partitions),
            str(self.last_number),
        )
        return "/".join(parts)

    def digest_of_columns(self, up_to_number: int) -> str:
        """Of the columns with numbers up to this one."""
        count = self.count_of_columns(up_to_number)
        return _digest((self.columns[:count], self.numbers[:count]))

    def with_columns(self, taken: Collection[str]) -> CapturedTable:
        """Without the columns whose names in lower case are others."""
        kept = [number for number, column in enumerate(self.columns) if column.name.lower() in taken]
        ignored = {column.name for column in self.columns if column.name.lower() not in taken}
        return replace(
            self,
            columns=tuple(self.columns[number] for number in kept),
            type_names=tuple(self.type_names[number] for number in kept),
            numbers=tuple(self.numbers[number] for number in kept),
            taken=frozenset(taken),
            ignored=self.ignored | ignored,
        )

    def count_of_columns(self, up_to_number: int) -> int:
        return sum(number <= up_to_number for number in self.numbers)

    def matches(self, relation: Relation, fewest: int | None = None) -> bool:
        """Whether a relation of the log has these columns, or at least the first `fewest` of them. Its flags
        say more than the key with REPLICA IDENTITY FULL."""
        logged = [
            (column.name, column.type_id, column.modifier)
            for column in relation.columns
            if self.taken is None or column.name.lower() in self.taken
        ]
        if not self.keys and not all(column.is_key for column in relation.columns):
            # For a while it had another REPLICA IDENTITY.
            return False
        columns = [(column.name, column.type_id, column.modifier) for column in self.columns]
        return logged == columns or (
            fewest is not None and fewest <= len(logged) and columns[: len(logged)] == logged
        )


@dataclass(frozen=True, slots=True)
class Capture:
    """A database and the tables that are taken from it.

    Attributes:
        url: connection string, with its password; `given_url`: as the definition gives it.
        slot: with what the name of the replication slot begins.
        publication: name of the publication.
        follows_columns: a table that gets other columns, or a new table, is copied; otherwise refused.
        copy_tasks: so many tasks of Spark copy at once, each by a connection; 0: the driver copies.
        patterns, exclude: what the names of its tables match.
        aside: by name, tables that are not captured as they are now, and why.
    """

    name: str
    url: str = field(repr=False)
    tables: tuple[CapturedTable, ...]
    slot: str
    publication: str
    follows_columns: bool = True
    copy_tasks: int = 8
    patterns: Sequence[str] = ()
    exclude: Sequence[str] = ()
    aside: Mapping[str, Reason] = field(default_factory=dict)
    given_url: str = field(default="", repr=False)


def _digest(part: object) -> str:
    return hashlib.sha256(repr(part).encode()).hexdigest()[:16]


def read_tables(
    connection: psycopg.Connection, publication: str, *, with_sizes: bool = False
) -> dict[str, CapturedTable]:
    """All tables of the database that could be captured, by name. Their sizes cost more than all the rest."""
    tables: dict[str, CapturedTable] = {}
    query = _QUERY.replace("{partitions}", _PARTITIONS_SQL)
    has_schemas = connection.info.server_version >= 150000
    query = query.replace("{schema_membership}", _SCHEMA_MEMBERSHIP if has_schemas else "''")
    arguments = {"publication": publication, "with_sizes": with_sizes}
    rows = connection.execute(query.encode(), arguments).fetchall()
    for (
        schema,
        table,
        oid,
        size,
        membership,
        has_full_identity,
        files,
        attributes,
        columns,
        published,
        last_number,
        filled_numbers,
        has_rights,
        is_partitioned,
        partitions,
        unlogged,
    ) in rows:
        captured = CapturedTable(
            schema=schema,
            table=table,
            oid=oid,
            columns=tuple(
                RelationColumn(name, type_id, modifier, bool(is_key))
                for name, type_id, modifier, _type_name, is_key, _number in columns or []
            ),
            type_names=tuple(column[3] for column in columns or []),
            bytes=size,
            membership=membership,
            has_full_identity=has_full_identity,
            numbers=tuple(column[5] for column in columns or []),
            files=files,
            attributes=attributes,
            publication=published or "",
            last_number=last_number,
            filled_numbers=tuple(filled_numbers or ()),
            has_rights=has_rights,
            partitions=tuple(Partition(*partition) for partition in partitions or ())
            if is_partitioned
            else None,
            unlogged=unlogged or "",
        )
        tables[captured.name] = replace(captured, shares_name=captured.name in tables)
    return tables


def captured_tables(
    tables: Mapping[str, CapturedTable],
    patterns: Sequence[str],
    exclude: Sequence[str],
    capture: str,
    *,
    aside: dict[str, Reason] | None = None,
    check: Callable[[CapturedTable], None] = lambda _: None,
) -> tuple[CapturedTable, ...]:
    """The tables that a pattern matches, such as `public.*` or `*.orders`.

    Args:
        aside: gets why some are left out, if others can be captured, see `capture.set_aside`.
        check: raises why a table cannot be captured, besides what is looked at here.

    Raises:
        DefinitionError: `CAPTURED_TABLE_NAME_TAKEN`; and, without `aside` or if no table can be captured,
            `CAPTURE_WITHOUT_TABLES`: a pattern matches none; `CAPTURED_TABLE_WITHOUT_KEY`;
            `CAPTURED_TABLE_NOT_LOGGED`, and what `check` raises.
    """
    matching = tuple(
        table
        for name, table in tables.items()
        if matches_any(name, patterns) and not matches_any(name, exclude)
    )
    require_own_names(capture, [table.name for table in matching if table.shares_name])

    def require(table: CapturedTable) -> None:
        if not table.has_identity:
            raise DefinitionError(
                "CAPTURED_TABLE_WITHOUT_KEY",
                f"The capture {capture} includes tables that have no key: {table.name}",
                hint="give it a primary key, or a unique index and REPLICA IDENTITY USING INDEX, which all "
                "partitions must have too; or take equal rows as they are: "
                f"ALTER TABLE {table.name} REPLICA IDENTITY FULL; or leave it out with exclude=[…]",
            )
        require_logged(table)
        check(table)

    rights = "USAGE of its schema; views, foreign and unlogged tables are none"
    return require_capturable(matching, require, absent_tables(capture, patterns, tables, rights), aside)


def require_logged(table: CapturedTable) -> None:
    """
    Raises:
        DefinitionError: `CAPTURED_TABLE_NOT_LOGGED`.
    """
    if table.unlogged:
        raise DefinitionError(
            "CAPTURED_TABLE_NOT_LOGGED",
            f"The table {table.name} has partitions whose changes no log has: {table.unlogged}",
            hint="make them log with ALTER TABLE … SET LOGGED, or detach them, as foreign tables must be; or "
            "leave the table out with exclude=[…]",
            sqlstate="55000",
        )
