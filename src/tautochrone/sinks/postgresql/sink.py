"""The port of sinks over PostgreSQL: `COPY` into temporary tables, and one transaction over all tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason
from tautochrone.model.sink import TransactionId
from tautochrone.sinks.common.errors import columns_used_error, table_changed_error
from tautochrone.sinks.common.mirrored import HASH
from tautochrone.sinks.common.pointer_sink import Content
from tautochrone.sinks.common.relational import RelationalSink
from tautochrone.sinks.postgresql.database import PostgreSQLDatabase
from tautochrone.sinks.postgresql.options import PostgresqlOptions
from tautochrone.sinks.postgresql.tables import MirroredTable, PostgreSQLTables

__all__ = ["PostgresqlSink"]

_COLUMNS_USED = (
    psycopg.errors.DependentObjectsStillExist,
    psycopg.errors.FeatureNotSupported,
    # An index, a default or a CHECK that the column's other type does not have.
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.InvalidTextRepresentation,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
)
"""How PostgreSQL says that something of somebody else uses a column."""


class PostgresqlSink(RelationalSink[MirroredTable]):
    """See the module docstring, and that of `RelationalSink`.

    Args:
        only_looks: nothing is created, and the server refuses what would write.
    """

    def __init__(self, name: str, options: PostgresqlOptions, *, only_looks: bool = False) -> None:
        self._database = PostgreSQLDatabase(name, options, only_reads=only_looks)
        super().__init__(name, self._database, options.chunk_rows, f"the schema {options.schema}")
        self._tables = PostgreSQLTables(name, options)
        self._sinks = sql.Identifier(options.schema, "taut_sinks")
        if not only_looks:
            self._create_own_table(options)

    def _create_own_table(self, options: PostgresqlOptions) -> None:
        with self._database.transaction() as cursor:
            cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (options.schema,))
            if cursor.fetchone() is None:
                cursor.execute(
                    sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(options.schema))
                )
            cursor.execute(
                self._statement(
                    "CREATE TABLE IF NOT EXISTS {sinks} (name text PRIMARY KEY, lake text NOT NULL, "
                    "fence bigint NOT NULL, published text, published_at timestamptz)"
                )
            )

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Reason | None:
        with self._schema_errors(table), self._database.transaction() as cursor:
            record = self._lock(cursor, fence).records.get(table)
            before = self._identity(cursor, table)
            with self._database.altering(cursor):
                mirrored = self._mirrored[table] = self._tables.ensure(cursor, table, schema, key)
            self._identities.record_altered(table, record, before, self._identity(cursor, table))
        return mirrored.rebuild

    def mirror_of(self, table: TableName) -> str | None:
        with self._database.transaction() as cursor:
            mirrored = self._load(cursor, table)
            return None if mirrored is None else mirrored.name.as_string(None)

    def drop_mirror(self, table: TableName) -> None:
        with self._database.transaction() as cursor:
            mirrored = self._load(cursor, table)
            if mirrored is not None:
                cursor.execute(sql.SQL("DROP TABLE {}").format(mirrored.name))
        self._mirrored.pop(table, None)

    def rename_mirror(self, old: TableName, new: TableName) -> None:
        with self._database.transaction() as cursor:
            pointer = self._read(cursor, "FOR UPDATE")[1]
            if self._load(cursor, old) is None:
                return
            self._tables.rename(cursor, old, new)
            if pointer.intent is not None:
                statement = self._statement("UPDATE {sinks} SET published = %s WHERE name = %s")
                cursor.execute(statement, (pointer.renamed(old, new).text(), self.name))
        self._mirrored.pop(old, None)

    def _statement(self, template: str) -> sql.Composed:
        return sql.SQL(template).format(sinks=self._sinks)

    def _load(self, cursor: Any, table: TableName) -> MirroredTable | None:
        return self._tables.load(cursor, table)

    def _lock_owners(self, cursor: Any) -> None:
        cursor.execute(self._statement("LOCK TABLE {sinks} IN SHARE ROW EXCLUSIVE MODE"))

    def _lock_table(self, cursor: Any, mirrored: MirroredTable) -> None:
        cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(mirrored.name))

    def _identity(self, cursor: Any, table: TableName) -> str | None:
        return self._tables.identity(cursor, table)

    def _identities_of(self, cursor: Any, tables: Sequence[TableName]) -> Mapping[TableName, str | None]:
        return self._tables.identities(cursor, tables)

    def _content(self, cursor: Any, mirrored: MirroredTable, columns: Sequence[str]) -> Content | None:
        if not set(columns) <= set(mirrored.columns) or self._tables.altered(
            cursor, mirrored, mirrored.schema
        ):
            return None
        cursor.execute(
            sql.SQL(
                "SELECT count(*), coalesce(sum(('x' || left({}::text, 8))::bit(32)::bigint), 0) FROM {}"
            ).format(sql.Identifier(HASH), mirrored.name)
        )
        rows, total = cursor.fetchone()
        return Content(int(rows), int(total))

    def _is_empty(self, cursor: Any, mirrored: MirroredTable) -> bool:
        cursor.execute(sql.SQL("SELECT NOT EXISTS (SELECT 1 FROM {})").format(mirrored.name))
        return bool(cursor.fetchone()[0])

    # -- staging ----------------------------------------------------------------------------------

    def _create_staging(self, name: str, mirrored: MirroredTable) -> None:
        with self._database.transaction() as cursor:
            self._drop_staging(cursor, name)
            cursor.execute(
                sql.SQL(
                    "CREATE TEMPORARY TABLE {} ({}, _taut_sign int NOT NULL, _taut_chunk int NOT NULL)"
                ).format(sql.Identifier(name), mirrored.definitions)
            )

    def _drop_staging(self, cursor: Any, name: str) -> None:
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("pg_temp", name)))

    def _send(
        self, staging: str, mirrored: MirroredTable, rows: list[list[Any]], sign: int, chunk: int
    ) -> None:
        statement = sql.SQL("COPY {} ({}, _taut_sign, _taut_chunk) FROM STDIN").format(
            sql.Identifier("pg_temp", staging), mirrored.column_list
        )
        with self._database.transaction() as cursor, cursor.copy(statement) as copy:
            self._write_rows(copy, [[*values, sign, chunk] for values in rows])

    def _write_rows(self, copy: Any, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            copy.write_row(row)

    def _staged_digests(self, cursor: Any, staging: str) -> list[tuple[Any, ...]]:
        statement = sql.SQL(
            "SELECT _taut_chunk, count(*), "
            "sum(_taut_sign * ('x' || left({}::text, 8))::bit(32)::bigint) FROM {} GROUP BY _taut_chunk"
        ).format(sql.Identifier(HASH), sql.Identifier("pg_temp", staging))
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    # -- the commit -------------------------------------------------------------------------------

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        super().commit(transaction, fence)
        # What was altered is altered now.
        self._mirrored = {
            table: replace(mirrored, older_schema=None, rebuild=None)
            for table, mirrored in self._mirrored.items()
        }

    def _apply(
        self, cursor: Any, table: TableName, mirrored: MirroredTable, staging: str, *, is_replaced: bool
    ) -> None:
        names = {
            "table": mirrored.name,
            "staging": sql.Identifier("pg_temp", staging),
            "columns": mirrored.column_list,
        }
        cursor.execute(sql.SQL("ANALYZE {staging}").format(**names))
        if is_replaced:
            cursor.execute(sql.SQL("DELETE FROM {table}").format(**names))
        if mirrored.older_schema is not None:
            if not is_replaced:
                raise table_changed_error(self.name, table)
            self._alter(cursor, table, mirrored)
        cursor.execute(sql.SQL("SELECT count(*) FROM {staging} WHERE _taut_sign = -1").format(**names))
        (removed,) = cursor.fetchone()
        if removed:
            cursor.execute(
                sql.SQL(
                    "DELETE FROM {table} AS t USING ("
                    "SELECT s.ctid, row_number() OVER (PARTITION BY s._taut_hash) AS n, r.copies "
                    "FROM {table} AS s JOIN (SELECT _taut_hash, count(*) AS copies FROM {staging} "
                    "WHERE _taut_sign = -1 GROUP BY _taut_hash) AS r ON r._taut_hash = s._taut_hash"
                    ") AS d WHERE t.ctid = d.ctid AND d.n <= d.copies"
                ).format(**names)
            )
            self._require_removed(table, removed, cursor.rowcount)
        cursor.execute(sql.SQL("SELECT count(*) FROM {staging} WHERE _taut_sign = 1").format(**names))
        (added,) = cursor.fetchone()
        insert = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE _taut_sign = 1"
        ).format(**names)
        try:
            with cursor.connection.transaction():
                cursor.execute(insert)
        except psycopg.errors.ProgramLimitExceeded:
            # A key may be longer than an entry of an index can be. The index is for readers only.
            if not self._tables.drop_key_index(cursor, table):
                raise
            cursor.execute(insert)
        self._require_inserted(table, added, cursor.rowcount)

    def _alter(self, cursor: Any, table: TableName, mirrored: MirroredTable) -> None:
        try:
            with self._database.altering(cursor):
                self._tables.alter(cursor, table, mirrored)
        except _COLUMNS_USED as error:
            raise columns_used_error(self.name, table, str(mirrored.rebuild), error) from error

    def _stored_rows(self, mirrored: MirroredTable) -> Iterator[Mapping[str, Any]]:
        columns = sql.SQL(", ").join(map(sql.Identifier, mirrored.columns))
        with self._database.cursor("taut_audit") as rows:
            rows.itersize = self._chunk_rows
            rows.execute(sql.SQL("SELECT {} FROM {}").format(columns, mirrored.name))
            yield from mirrored.read(rows)
