"""The port of sinks over MariaDB: rows in temporary tables, and one transaction over all tables.

A table with a key has one row of each: what came is written by `INSERT … ON DUPLICATE KEY UPDATE`, and keys
that went are deleted. A table without a key may have equal rows, which are told apart by a number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason
from tautochrone.model.sink import Intent, Recovered, TransactionId, TransactionState
from tautochrone.sinks.common.errors import table_busy_error, table_changed_error, value_unsupported_error
from tautochrone.sinks.common.mirrored import HASH, KEY, quoted
from tautochrone.sinks.common.pointer_sink import Content
from tautochrone.sinks.common.relational import RelationalSink
from tautochrone.sinks.common.steps import require_fence
from tautochrone.sinks.mariadb.database import MariaDBDatabase
from tautochrone.sinks.mariadb.options import MariadbOptions
from tautochrone.sinks.mariadb.tables import MariaDBTables, MirroredTable

__all__ = ["MariadbSink"]

_LARGE = 100_000
"""Characters of a value from which on the server's limit is asked."""
_SETTLED_EVERY_S = 60
"""So often it is tried to finish what readers keep from its end: others wait behind each try."""


class MariadbSink(RelationalSink[MirroredTable]):
    """See the module docstring, and that of `RelationalSink`.

    Args:
        only_looks: nothing is created, and the server refuses what would write.
    """

    def __init__(self, name: str, options: MariadbOptions, *, only_looks: bool = False) -> None:
        self._options = options
        self._database = MariaDBDatabase(name, options, only_reads=only_looks)
        self._settle_at: float | None = None
        """When unfinished swaps are tried again; None: there are none."""
        super().__init__(name, self._database, options.chunk_rows, f"the database {options.database}")
        self._tables = MariaDBTables(name, options)
        with self._database.autocommit() as cursor:
            cursor.execute("SELECT @@lower_case_table_names")
            self._tables.folds_case = int(cursor.fetchone()[0]) != 0
            if not only_looks:
                self._create_own_tables(cursor)
        if only_looks:
            self._database.use_database()

    def _create_own_tables(self, cursor: Any) -> None:
        database = self._options.database
        cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (database,))
        if cursor.fetchone() is None:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)} CHARACTER SET utf8mb4")
        self._database.use_database()
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s "
            "AND table_name IN ('taut_sinks', 'taut_swaps', 'taut_tables')",
            (database,),
        )
        if cursor.fetchone() != (3,):
            cursor.execute(
                self._statement(
                    "CREATE TABLE IF NOT EXISTS {sinks} (name VARCHAR(190) CHARACTER SET utf8mb4 "
                    "COLLATE utf8mb4_bin PRIMARY KEY, lake TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin "
                    "NOT NULL, fence BIGINT NOT NULL, published LONGTEXT, "
                    "published_at DATETIME(6)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
                )
            )
            self._tables.create_registry(cursor)

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Reason | None:
        with self._altering(fence) as cursor:
            # What is left of a try before.
            is_settled = self._settle_table(cursor, table)
        with self._database.transaction() as cursor:
            record = self._lock(cursor, fence).records.get(table)
            before = self._identity(cursor, table)
            mirrored = self._tables.register(cursor, table, schema, key, fence)
        if mirrored.rebuild is not None and not is_settled:
            name = self._tables.full_name(table)
            raise table_busy_error(self.name, "MariaDB", f"an earlier rebuild of {name} is not finished")
        with self._schema_errors(table), self._altering(fence) as cursor:
            self._tables.create(cursor, table, mirrored)
            if mirrored.rebuild is None:
                self._identities.record_altered(table, record, before, self._identity(cursor, table))
        self._mirrored[table] = mirrored
        return mirrored.rebuild

    @contextmanager
    def _altering(self, fence: Fence) -> Iterator[Any]:
        """A cursor for statements that create, alter and rename tables; an older owner gets none."""
        with self._database.altering() as cursor:
            require_fence(self.name, fence, self._read(cursor)[0])
            yield cursor

    def mirror_of(self, table: TableName) -> str | None:
        with self._database.transaction() as cursor:
            mirrored = self._load(cursor, table)
            return None if mirrored is None else self._tables.shown_name(table)

    def drop_mirror(self, table: TableName) -> None:
        with self._database.altering() as cursor:
            if self._load(cursor, table) is not None:
                if not self._tables.settle(cursor, table):
                    name = self._tables.full_name(table)
                    raise table_busy_error(self.name, "MariaDB", f"a rebuild of {name} is not finished")
                cursor.execute(f"DROP TABLE IF EXISTS {self._tables.shown_name(table)}")
        with self._database.transaction() as cursor:
            self._tables.unregister(cursor, table)
        self._mirrored.pop(table, None)

    def _statement(self, template: str) -> str:
        return template.format(sinks=quoted(self._options.database, "taut_sinks"))

    def _load(self, cursor: Any, table: TableName) -> MirroredTable | None:
        return self._tables.load(cursor, table)

    def _lock_owners(self, cursor: Any) -> None:
        cursor.execute(self._statement("SELECT name FROM {sinks} FOR UPDATE"))

    def _lock_table(self, cursor: Any, mirrored: MirroredTable) -> None:
        # LOCK TABLES would commit. The first row that is read keeps others from dropping the table.
        cursor.execute(f"SELECT 1 FROM {mirrored.name} LIMIT 1")
        cursor.fetchall()

    def _identity(self, cursor: Any, table: TableName) -> str | None:
        mirrored = self._mirrored.get(table)
        if mirrored is not None and mirrored.swap is not None:
            return self._tables.identity(cursor, table, mirrored.swap.next)
        return self._tables.identity(cursor, table)

    def _content(self, cursor: Any, mirrored: MirroredTable, columns: Sequence[str]) -> Content | None:
        if self._tables.lacks(cursor, mirrored, columns) or self._tables.altered(cursor, mirrored):
            return None
        cursor.execute(
            f"SELECT COUNT(*), SUM(CAST(CONV(LEFT(HEX({quoted(HASH)}), 8), 16, 10) AS UNSIGNED)) "
            f"FROM {mirrored.name}"
        )
        rows, total = cursor.fetchone()
        return Content(int(rows), int(total or 0))

    def _is_empty(self, cursor: Any, mirrored: MirroredTable) -> bool:
        cursor.execute(f"SELECT 1 FROM {mirrored.name} LIMIT 1")
        return cursor.fetchone() is None

    # -- staging ----------------------------------------------------------------------------------

    def _removed_and_added_tables(self, name: str) -> tuple[str, str]:
        """The temporary tables of rows that went, and of those that came: MySQL cannot use one twice."""
        database = self._options.database
        return quoted(database, f"{name}_r"), quoted(database, f"{name}_a")

    def _create_staging(self, name: str, mirrored: MirroredTable) -> None:
        identity = KEY if mirrored.is_keyed else HASH
        with self._database.autocommit() as cursor:
            self._drop_staging(cursor, name)
            for staging in self._removed_and_added_tables(name):
                cursor.execute(
                    f"CREATE TEMPORARY TABLE {staging} ({mirrored.definitions}, "
                    f"`_taut_chunk` INT NOT NULL, INDEX ({quoted(identity)})) "
                    "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
                )

    def _drop_staging(self, cursor: Any, name: str) -> None:
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {', '.join(self._removed_and_added_tables(name))}")

    def _send(
        self, staging: str, mirrored: MirroredTable, rows: list[list[Any]], sign: int, chunk: int
    ) -> None:
        removed, added = self._removed_and_added_tables(staging)
        hashes = 2 if mirrored.is_keyed else 1
        marks = ", ".join(["%s"] * (len(mirrored.columns) + 1))
        # A % in a name is doubled: the driver fills marks in.
        columns = mirrored.column_list.replace("%", "%%")
        statement = (
            f"INSERT INTO {added if sign > 0 else removed} ({columns}, `_taut_chunk`) VALUES ({marks})"
        )
        encoded = [[*values[:-hashes], *map(bytes.fromhex, values[-hashes:]), chunk] for values in rows]
        with self._database.transaction() as cursor:
            self._require_packets(cursor, mirrored, statement, encoded)
            self._insert(cursor, statement, encoded)

    def _require_packets(
        self, cursor: Any, mirrored: MirroredTable, statement: str, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Refuse rows of which the server would cut the connection, and which would be tried for ever."""
        large = [row for row in rows if any(isinstance(v, (str, bytes)) and len(v) > _LARGE for v in row)]
        if not large:
            return
        cursor.execute("SELECT @@max_allowed_packet")
        longest = int(cursor.fetchone()[0])
        for row in large:
            sizes = [len(cursor.mogrify("%s", (value,)).encode("utf8", "surrogateescape")) for value in row]
            if len(statement.encode()) + sum(sizes) + 2 * len(sizes) >= longest:
                column = mirrored.columns[sizes.index(max(sizes))]
                problem = f"the row has more than max_allowed_packet, which is {longest} bytes in the server"
                raise value_unsupported_error(self.name, mirrored.table, problem, column)

    def _insert(self, cursor: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            cursor.executemany(statement, rows)

    def _staged_digests(self, cursor: Any, staging: str) -> list[tuple[Any, ...]]:
        digests: list[tuple[Any, ...]] = []
        for table, sign in zip(self._removed_and_added_tables(staging), (-1, 1), strict=True):
            cursor.execute(
                f"SELECT `_taut_chunk`, COUNT(*), {sign} * "
                f"SUM(CAST(CONV(LEFT(HEX({quoted(HASH)}), 8), 16, 10) AS UNSIGNED)) "
                f"FROM {table} GROUP BY `_taut_chunk`"
            )
            digests += cursor.fetchall()
        return digests

    # -- the commit -------------------------------------------------------------------------------

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        rebuilt = {t: mirrored for t, mirrored in self._mirrored.items() if mirrored.rebuild is not None}
        if rebuilt and self._state(transaction) is TransactionState.PREPARED:
            with self._altering(fence) as cursor:
                for table in self._intents[transaction].replaced:
                    if table in rebuilt:
                        self._tables.put_view(cursor, rebuilt[table])
        super().commit(transaction, fence)
        if rebuilt or self._is_time_to_settle():
            self._settle(fence)

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        super().abort(transaction, fence)
        self._forget_rebuilt()

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        recovered = super().recover(intents, fence)
        self._settle(fence)
        return recovered

    def _settle(self, fence: Fence) -> None:
        """Swaps that are decided are finished, others taken back, as far as readers let them."""
        self._forget_rebuilt()
        with self._altering(fence) as cursor:
            settled = [self._settle_table(cursor, table) for table in self._tables.swaps.tables(cursor)]
        self._settle_at = None if all(settled) else time.monotonic() + _SETTLED_EVERY_S

    def _settle_table(self, cursor: Any, table: TableName) -> bool:
        if not self._tables.has_swap(cursor, table):
            return True
        self._mirrored.pop(table, None)
        # The rename gives a table another time of creation.
        record = self._pointer(cursor).records.get(table)
        before = self._identity(cursor, table)
        is_settled = self._tables.settle(cursor, table)
        self._identities.record_altered(table, record, before, self._identity(cursor, table))
        return is_settled

    def _is_time_to_settle(self) -> bool:
        return self._settle_at is not None and time.monotonic() >= self._settle_at

    def _forget_rebuilt(self) -> None:
        self._mirrored = {t: mirrored for t, mirrored in self._mirrored.items() if mirrored.rebuild is None}

    def _apply(
        self, cursor: Any, table: TableName, mirrored: MirroredTable, staging: str, *, is_replaced: bool
    ) -> None:
        removed, _ = self._removed_and_added_tables(staging)
        if is_replaced:
            cursor.execute(f"DELETE FROM {mirrored.name}")
        if mirrored.rebuild is not None:
            if not is_replaced:
                raise table_changed_error(self.name, table)
            self._tables.decide(cursor, mirrored)
        cursor.execute(f"SELECT COUNT(*) FROM {removed}")
        (rows,) = cursor.fetchone()
        if mirrored.is_keyed:
            self._apply_by_key(cursor, table, mirrored, staging, rows)
        else:
            self._apply_copies(cursor, table, mirrored, staging, rows)

    def _apply_by_key(
        self, cursor: Any, table: TableName, mirrored: MirroredTable, staging: str, removed_rows: int
    ) -> None:
        removed, added = self._removed_and_added_tables(staging)
        if removed_rows:
            cursor.execute(
                f"SELECT COUNT(DISTINCT r.`_taut_key`) FROM {removed} AS r JOIN {mirrored.name} AS t "
                "ON t.`_taut_key` = r.`_taut_key` AND t.`_taut_hash` = r.`_taut_hash`"
            )
            self._require_removed(table, removed_rows, cursor.fetchone()[0])
        cursor.execute(
            f"SELECT COUNT(*) FROM {added} AS a JOIN {mirrored.name} AS t ON t.`_taut_key` = a.`_taut_key` "
            f"WHERE NOT EXISTS (SELECT 1 FROM {removed} AS r WHERE r.`_taut_key` = a.`_taut_key`)"
        )
        (present,) = cursor.fetchone()
        cursor.execute(f"SELECT COUNT(*) - COUNT(DISTINCT `_taut_key`) FROM {added}")
        (equal,) = cursor.fetchone()
        if present or equal:
            raise SinkError(
                "SINK_KEY_NOT_UNIQUE",
                f"Sink {self.name}: {present + equal} rows of {table} have the key of another row: "
                f"{', '.join(mirrored.rows.key)}",
                hint=f"Name columns that identify a row in [sinks.{self.name}] key, or leave key out.",
                parameters={"sink": self.name, "table": str(table)},
                sqlstate="23505",
                # A later checkpoint may have one row for each key.
                retryable=True,
            )
        if removed_rows:
            cursor.execute(
                f"DELETE t FROM {mirrored.name} AS t JOIN {removed} AS r ON r.`_taut_key` = t.`_taut_key` "
                f"WHERE NOT EXISTS (SELECT 1 FROM {added} AS a WHERE a.`_taut_key` = r.`_taut_key`)"
            )
        updates = ", ".join(
            f"{quoted(column)} = VALUES({quoted(column)})" for column in mirrored.columns if column != KEY
        )
        cursor.execute(
            f"INSERT INTO {mirrored.name} ({mirrored.column_list}) SELECT {mirrored.column_list} "
            f"FROM {added} ON DUPLICATE KEY UPDATE {updates}"
        )

    def _apply_copies(
        self, cursor: Any, table: TableName, mirrored: MirroredTable, staging: str, removed_rows: int
    ) -> None:
        removed, added = self._removed_and_added_tables(staging)
        if removed_rows:
            cursor.execute(
                f"DELETE t FROM {mirrored.name} AS t JOIN ("
                "SELECT s.`_taut_row`, r.copies, "
                "ROW_NUMBER() OVER (PARTITION BY s.`_taut_hash` ORDER BY s.`_taut_row`) AS n "
                f"FROM {mirrored.name} AS s JOIN (SELECT `_taut_hash`, COUNT(*) AS copies "
                f"FROM {removed} GROUP BY `_taut_hash`) AS r ON r.`_taut_hash` = s.`_taut_hash`"
                ") AS d ON d.`_taut_row` = t.`_taut_row` WHERE d.n <= d.copies"
            )
            self._require_removed(table, removed_rows, cursor.rowcount)
        cursor.execute(
            f"INSERT INTO {mirrored.name} ({mirrored.column_list}) SELECT {mirrored.column_list} FROM {added}"
        )

    def _stored_rows(self, mirrored: MirroredTable) -> Iterator[Mapping[str, Any]]:
        columns = ", ".join(map(quoted, mirrored.schema.names))
        yield from mirrored.read(self._database.stream(f"SELECT {columns} FROM {mirrored.name}"))
