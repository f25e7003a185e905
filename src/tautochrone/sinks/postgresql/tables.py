"""The tables of a sink. Each mirrored table has one more column, `_taut_hash`: the hash of the row."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason
from tautochrone.sinks.common.errors import name_taken_error, schema_unsupported_error
from tautochrone.sinks.common.existing import ExistingTable, TableToCompare, compared_tables
from tautochrone.sinks.common.mirrored import (
    COMPOSITES,
    HASH,
    NameRules,
    altered_columns_error,
    columns_changed,
    from_json,
    mirror_name,
    refuse_reserved_columns,
    row_hash,
    sql_type,
)
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.sinks.postgresql.database import PostgreSQLDatabase
from tautochrone.sinks.postgresql.options import PostgresqlOptions, postgresql_options

__all__ = ["MirroredTable", "PostgreSQLTables", "check_table", "compare_tables"]

_MAX_NAME_BYTES = 63
"""PostgreSQL cuts longer names: two could become the same one."""
_NAMES = NameRules(longest=_MAX_NAME_BYTES, in_bytes=True)
_TYPES: dict[type, str] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "smallint",
    spark.ShortType: "smallint",
    spark.IntegerType: "integer",
    spark.LongType: "bigint",
    spark.FloatType: "real",
    spark.DoubleType: "double precision",
    spark.StringType: "text",
    spark.BinaryType: "bytea",
    spark.DateType: "date",
    spark.TimestampType: "timestamp with time zone",
    spark.TimestampNTZType: "timestamp without time zone",
}

_WRITERS = (
    "SELECT name FROM (SELECT tgrelid AS of_table, 'trigger ' || tgname AS name FROM pg_trigger "
    "WHERE NOT tgisinternal AND tgenabled <> 'D' "
    "UNION ALL SELECT ev_class, 'rule ' || rulename FROM pg_rewrite WHERE ev_enabled <> 'D' "
    "UNION ALL SELECT oid, 'row level security' FROM pg_class "
    "WHERE relkind IN ('r', 'p') AND relrowsecurity AND row_security_active(oid) "
    "UNION ALL SELECT inhparent, 'child ' || inhrelid::regclass::text FROM pg_inherits "
    "UNION ALL SELECT conrelid, 'foreign key ' || conname FROM pg_constraint "
    "WHERE contype = 'f' AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))) AS writers"
)
"""What may write, hide or remove other rows than those that are sent: triggers, rules, policies, tables that
inherit, and foreign keys that change rows when others are changed."""


def _sql_type(spark_type: Any) -> str:
    return sql_type(spark_type, _TYPES, "numeric", "jsonb", "text")


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A table as the sink knows it.

    Attributes:
        name: of PostgreSQL's table, with its schema.
        older_schema: the columns that PostgreSQL's table has until a commit alters them; None: it has these.
        rebuild: why they are altered.
    """

    name: sql.Identifier
    schema: Any
    rows: JsonRows
    older_schema: Any = None
    rebuild: Reason | None = None

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    @property
    def column_list(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, [*self.columns, HASH]))

    @property
    def definitions(self) -> sql.Composed:
        """The columns as `CREATE TABLE` takes them."""
        own = [(field.name, _sql_type(field.dataType)) for field in self.schema.fields]
        return sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in [*own, (HASH, "uuid")]
        )

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """A row in JSON values as `COPY` takes it, with its hash."""
        values = []
        for field in self.schema.fields:
            value = row[field.name]
            if value is not None and isinstance(field.dataType, COMPOSITES):
                value = json.dumps(value, ensure_ascii=False)
            elif value is not None and isinstance(field.dataType, spark.BinaryType):
                value = f"\\x{base64.b64decode(value).hex()}"
            values.append(value)
        return [*values, row_hash(row)]

    def read(self, values: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """Rows that PostgreSQL answered, in JSON values."""
        for listed in values:
            yield {
                field.name: from_json(value, field.dataType)
                if isinstance(field.dataType, COMPOSITES)
                else self.rows.value(field.name, value)
                for field, value in zip(self.schema.fields, listed, strict=True)
            }


class PostgreSQLTables:
    """Creates mirrored tables and finds them again. `cursor` is one of an open transaction."""

    def __init__(self, sink: str, options: PostgresqlOptions) -> None:
        self._sink = sink
        self._options = options

    def ensure(self, cursor: Any, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        """Create the table, or add the columns that it lacks. A table whose columns changed stays as it is:
        `alter` belongs to the transaction that replaces its rows.

        Raises:
            SinkError: `SINK_COLUMNS_CHANGED`, somebody else altered the table; `SINK_COLUMN_NAME_RESERVED`,
                `SINK_TYPE_UNSUPPORTED`, `SINK_COLUMN_MISSING`, `SINK_NAME_TAKEN`, `SINK_SCHEMA_UNSUPPORTED`.
        """
        mirrored = self.checked(table, schema, key)
        existing, reason = self._existing(cursor, table, mirrored)
        if reason is not None:
            return replace(mirrored, older_schema=existing, rebuild=reason)
        if existing is None:
            self._create(cursor, table, mirrored)
        else:
            self._renew_key_index(cursor, table, mirrored)
        stored = () if existing is None else existing.names
        for field in schema.fields:
            if field.name not in stored:
                self._add_column(cursor, mirrored, field)
        if existing is None:
            self._create_index(cursor, mirrored, None, [HASH])
            self._create_index(cursor, mirrored, self._key_index(table), mirrored.rows.key)
        return mirrored

    def _existing(
        self, cursor: Any, table: TableName, mirrored: MirroredTable
    ) -> tuple[Any | None, Reason | None]:
        """The columns that there are, None without a table; and why the table cannot go on with them."""
        existing = self._stored_schema(cursor, table)
        if existing is None:
            return None, None
        altered = self.altered(cursor, mirrored, existing)
        if altered:
            raise altered_columns_error(self._sink, table, altered, self.full_name(table))
        return existing, columns_changed(existing, mirrored.schema)

    def compare(self, cursor: Any, target: TableToCompare) -> ExistingTable:
        """What there is of a table. Nothing is written.

        Raises:
            SinkError: as of `ensure`.
        """
        mirrored = self.checked(target.table, target.schema, target.key)
        existing, reason = self._existing(cursor, target.table, mirrored)
        present = () if existing is None else existing.names
        return ExistingTable(
            table=target.table,
            name=self.full_name(target.table),
            is_absent=existing is None,
            lacks=[name for name in target.schema.names if name not in present],
            rebuild=reason,
        )

    def checked(self, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        """What a table shall be, unless PostgreSQL cannot have it."""
        mirrored = self._mirrored(table, schema, key)
        refuse_reserved_columns(self._sink, table, schema)
        self._refuse_names(table, schema)
        return mirrored

    def full_name(self, table: TableName) -> str:
        """For people: the name with its schema."""
        return f"{self._options.schema}.{self._plain_name(table)}"

    def alter(self, cursor: Any, table: TableName, mirrored: MirroredTable) -> None:
        """Give an emptied table the columns that it shall have, in the transaction that fills it. The table
        keeps its rights, its indexes, and the views over its other columns."""
        older = {field.name: field.dataType for field in mirrored.older_schema.fields}
        name_sql = mirrored.name
        had_index = bool(self._indexed_columns(cursor, table))
        for name in older.keys() - set(mirrored.columns):
            cursor.execute(sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(name_sql, sql.Identifier(name)))
        for field in mirrored.schema.fields:
            if field.name not in older:
                self._add_column(cursor, mirrored, field)
            elif older[field.name] != field.dataType:
                column, kind = sql.Identifier(field.name), sql.SQL(_sql_type(field.dataType))
                statement = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING NULL::{}")
                cursor.execute(statement.format(name_sql, column, kind, kind))
                self._comment_column(cursor, mirrored, field)
        self._renew_key_index(cursor, table, mirrored, creates=had_index)

    def load(self, cursor: Any, table: TableName) -> MirroredTable | None:
        """A table that the sink has, or None."""
        schema = self._stored_schema(cursor, table)
        return None if schema is None else self._mirrored(table, schema, ())

    def identity(self, cursor: Any, table: TableName) -> str | None:
        """The numbers of a table and of its file, its columns and its indexes; None if there is no table. A
        TRUNCATE, and whatever else writes a table anew, gives it another file."""
        return self.identities(cursor, [table])[table]

    def identities(self, cursor: Any, tables: Sequence[TableName]) -> dict[TableName, str | None]:
        """`identity` of several tables, in one statement."""
        names = {table: self._plain_name(table) for table in tables}
        cursor.execute(
            "SELECT c.relname, c.oid::bigint, pg_relation_filenode(c.oid)::bigint, "
            "(SELECT md5(string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnotnull, "
            "col_description(a.attrelid, a.attnum)), ',' ORDER BY a.attnum)) FROM pg_attribute a "
            "WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), "
            "(SELECT md5(string_agg(concat_ws(' ', i.indexrelid, i.indkey, i.indisvalid), ',' "
            "ORDER BY i.indexrelid)) FROM pg_index i WHERE i.indrelid = c.oid), "
            "(SELECT md5(string_agg(w.name, ',' ORDER BY w.name)) "
            f"FROM ({_WRITERS} WHERE of_table = c.oid) AS w) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = ANY(%s) AND c.relkind IN ('r', 'p')",
            (self._options.schema, [*names.values()]),
        )
        present = {str(name): " ".join(map(str, parts)) for name, *parts in cursor.fetchall()}
        return {table: present.get(name) for table, name in names.items()}

    def altered(self, cursor: Any, mirrored: MirroredTable, existing: Any) -> list[str]:
        """The columns, that of the hashes too, that are computed, gone, or of another type than the sink gave
        them, and what may change, hide or remove what is written.

        Args:
            existing: the columns with a comment of the sink.
        """
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) || attgenerated::text FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (mirrored.name.as_string(None),),
        )
        types = {name: kind.replace(" ", "") for name, kind in cursor.fetchall()}
        expected = {field.name: _sql_type(field.dataType) for field in existing.fields} | {HASH: "uuid"}
        altered = [name for name, kind in expected.items() if types.get(name) != kind.replace(" ", "")]
        # Columns of the lake's table that somebody else added: the sink cannot add them.
        altered += [name for name in mirrored.columns if name in types and name not in expected]
        cursor.execute(f"{_WRITERS} WHERE of_table = %s::regclass", (mirrored.name.as_string(None),))
        return [*altered, *(str(name) for (name,) in cursor.fetchall())]

    def _mirrored(self, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        rows = JsonRows(self._sink, table, schema, key)
        return MirroredTable(sql.Identifier(self._options.schema, self._plain_name(table)), schema, rows)

    def _plain_name(self, table: TableName) -> str:
        return mirror_name(table, _NAMES)

    def _comment(self, table: TableName) -> str:
        return f"mirrored by tautochrone, sink {self._sink}, from {table}"

    def _create(self, cursor: Any, table: TableName, mirrored: MirroredTable) -> None:
        statement = sql.SQL("CREATE TABLE {} ({} uuid NOT NULL)")
        cursor.execute(statement.format(mirrored.name, sql.Identifier(HASH)))
        comment = sql.SQL("COMMENT ON TABLE {} IS {}")
        cursor.execute(comment.format(mirrored.name, sql.Literal(self._comment(table))))

    def rename(self, cursor: Any, old: TableName, new: TableName) -> None:
        """Let a table go on as that of another table of the lake. Its identity stays.

        Raises:
            SinkError: `SINK_NAME_TAKEN`.
        """
        if self._stored_schema(cursor, new) is not None:
            schema, name = self._options.schema, self._plain_name(new)
            raise name_taken_error(self._sink, new, name, "schema", schema)
        renamed = sql.Identifier(self._options.schema, self._plain_name(new))
        of_key = sql.Identifier(self._options.schema, self._key_index(old))
        cursor.execute(
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                sql.Identifier(self._options.schema, self._plain_name(old)),
                sql.Identifier(self._plain_name(new)),
            )
        )
        comment = sql.SQL("COMMENT ON TABLE {} IS {}")
        cursor.execute(comment.format(renamed, sql.Literal(self._comment(new))))
        rename_index = sql.SQL("ALTER INDEX IF EXISTS {} RENAME TO {}")
        cursor.execute(rename_index.format(of_key, sql.Identifier(self._key_index(new))))

    def _create_index(
        self, cursor: Any, mirrored: MirroredTable, name: str | None, columns: Sequence[str]
    ) -> None:
        if columns:
            listed = sql.SQL(", ").join(map(sql.Identifier, columns))
            named = sql.SQL("") if name is None else sql.Identifier(name)
            cursor.execute(sql.SQL("CREATE INDEX {} ON {} ({})").format(named, mirrored.name, listed))

    def _renew_key_index(
        self, cursor: Any, table: TableName, mirrored: MirroredTable, *, creates: bool = False
    ) -> None:
        """Give the index of the key the columns that the key has now.

        Args:
            creates: also where there is no index. A table without one may have had keys that no index takes.
        """
        indexed = self._indexed_columns(cursor, table)
        if indexed == list(mirrored.rows.key) or not (indexed or creates):
            return
        self.drop_key_index(cursor, table)
        try:
            with cursor.connection.transaction():
                self._create_index(cursor, mirrored, self._key_index(table), mirrored.rows.key)
        except psycopg.errors.ProgramLimitExceeded:
            # The index is for readers only.
            return

    def _indexed_columns(self, cursor: Any, table: TableName) -> list[str]:
        """The columns of the index of the key; none if there is no index."""
        cursor.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS k (number, n) "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number "
            "WHERE n.nspname = %s AND c.relname = %s ORDER BY k.n",
            (self._options.schema, self._key_index(table)),
        )
        return [str(name) for (name,) in cursor.fetchall()]

    def _key_index(self, table: TableName) -> str:
        name = self._plain_name(table)
        return f"taut_key_{hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()}"

    def drop_key_index(self, cursor: Any, table: TableName) -> bool:
        """Drop the index of the key, if there is one; whether there was."""
        name = self._key_index(table)
        cursor.execute(
            "SELECT 1 FROM pg_indexes WHERE schemaname = %s AND indexname = %s", (self._options.schema, name)
        )
        exists = cursor.fetchone() is not None
        if exists:
            cursor.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(self._options.schema, name)))
        return exists

    def _refuse_names(self, table: TableName, schema: Any) -> None:
        """PostgreSQL cuts longer names of columns, and tells nobody. The driver cuts them at a NUL."""
        for name in schema.names:
            if "\x00" in name:
                raise schema_unsupported_error(
                    self._sink, table, f"the name of the column {name!r} has a NUL"
                )
            if len(name.encode()) > _MAX_NAME_BYTES:
                problem = f"the name of the column {name} has more than {_MAX_NAME_BYTES} bytes"
                raise schema_unsupported_error(self._sink, table, problem)

    def _add_column(self, cursor: Any, mirrored: MirroredTable, field: Any) -> None:
        column = sql.Identifier(field.name)
        kind = sql.SQL(_sql_type(field.dataType))
        cursor.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(mirrored.name, column, kind))
        self._comment_column(cursor, mirrored, field)

    def _comment_column(self, cursor: Any, mirrored: MirroredTable, field: Any) -> None:
        column = sql.Identifier(field.name)
        text = sql.Literal(json.dumps(field.dataType.jsonValue()))
        cursor.execute(sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(mirrored.name, column, text))

    def _stored_schema(self, cursor: Any, table: TableName) -> Any | None:
        """The columns of the lake's table; their Spark types are the comments of PostgreSQL's columns."""
        plain = self._plain_name(table)
        cursor.execute(
            "SELECT c.oid::bigint, coalesce(obj_description(c.oid, 'pg_class'), '') FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            (self._options.schema, plain),
        )
        described = cursor.fetchone()
        if described is None:
            return None
        oid, comment = described
        if comment != self._comment(table):
            raise name_taken_error(self._sink, table, plain, "schema", self._options.schema)
        cursor.execute(
            "SELECT attname, col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (oid,),
        )
        fields = [
            {"name": name, "type": json.loads(text), "nullable": True, "metadata": {}}
            for name, text in cursor.fetchall()
            if name != HASH and text is not None
        ]
        return spark.StructType.fromJson({"type": "struct", "fields": fields})


def compare_tables(
    name: str, options: Mapping[str, str], tables: Sequence[TableToCompare]
) -> Iterator[ExistingTable | SinkError]:
    """See `adapters.compare_mirrored_tables`.

    Raises:
        SinkError: as `open_postgresql_sink`.
    """
    parsed = postgresql_options(name, options)
    mirrored, database = PostgreSQLTables(name, parsed), PostgreSQLDatabase(name, parsed)

    def compare(target: TableToCompare) -> ExistingTable:
        with database.transaction() as cursor:
            return mirrored.compare(cursor, target)

    try:
        yield from compared_tables(tables, compare)
    finally:
        database.close()


def check_table(
    name: str, options: Mapping[str, str], table: TableName, schema: Any, key: Sequence[str]
) -> str:
    """What a table is called in a sink of these options; see `adapters.check_mirrored_table`.

    Raises:
        SinkError: as `PostgreSQLTables.ensure`, as far as it needs no server.
    """
    tables = PostgreSQLTables(name, postgresql_options(name, options))
    tables.checked(table, schema, key)
    return tables.full_name(table)
