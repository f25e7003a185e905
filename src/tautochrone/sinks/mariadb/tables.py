"""The tables of a sink. What each of them mirrors is in the table `taut_tables`.

MariaDB ends a transaction at each statement that creates or alters a table. So what a table shall be is
written first, and what lacks is created then, again if the process died in between.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.constants import ER
from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason
from tautochrone.sinks.common.errors import (
    name_taken_error,
    number_unsupported_error,
    schema_unsupported_error,
    table_changed_error,
)
from tautochrone.sinks.common.existing import ExistingTable, TableToCompare, compared_tables
from tautochrone.sinks.common.mirrored import (
    COMPOSITES,
    HASH,
    KEY,
    NameRules,
    altered_columns_error,
    columns_changed,
    database_time,
    from_json,
    key_changed,
    key_hash,
    mirror_name,
    quoted,
    refuse_columns_of_other_case,
    refuse_reserved_columns,
    row_hash,
    sql_type,
)
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.sinks.mariadb.database import MariaDBDatabase
from tautochrone.sinks.mariadb.options import MariadbOptions, mariadb_options
from tautochrone.sinks.mariadb.swaps import Swap, Swaps, all_columns

__all__ = ["MariaDBTables", "MirroredTable", "check_table", "compare_tables"]

_MAX_NAME = 64
_MAX_NAME_BEYOND_ASCII = 48
"""A table is a file: other characters take up to five bytes of its name, which has 255 at most."""
_REFUSED = r"[\x00-\x1f/\\.#]|[^\x00-\uffff]|\s$"
_INDEXED_CHARACTERS = 190
_TEXT = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_TYPES: dict[type, str] = {
    spark.BooleanType: "BOOLEAN",
    spark.ByteType: "TINYINT",
    spark.ShortType: "SMALLINT",
    spark.IntegerType: "INT",
    spark.LongType: "BIGINT",
    # FLOAT would be read with six digits.
    spark.FloatType: "DOUBLE",
    spark.DoubleType: "DOUBLE",
    spark.StringType: _TEXT,
    spark.BinaryType: "LONGBLOB",
    spark.DateType: "DATE",
    # TIMESTAMP ends in 2038.
    spark.TimestampType: "DATETIME(6)",
    spark.TimestampNTZType: "DATETIME(6)",
}
_FLOATS = (spark.FloatType, spark.DoubleType)
_INSTANTS = (spark.TimestampType, spark.TimestampNTZType)


def _plain_type(text: str) -> str:
    """A type without what servers write differently."""
    kind = re.sub(r" character set.*", "", text.lower().replace(", ", ","))
    kind = {"boolean": "tinyint", "json": "longtext"}.get(kind, kind)
    return re.sub(r"^(tinyint|smallint|int|bigint)\(\d+\)", r"\1", kind)


def _sql_type(spark_type: Any) -> str:
    return sql_type(spark_type, _TYPES, "DECIMAL", "JSON", _TEXT)


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A table as the sink knows it.

    Attributes:
        name: of MariaDB's table as SQL, with its database.
        rebuild: why it is one that takes the place of another at the commit; None: it does not.
        swap: how it does.
    """

    sink: str
    table: TableName
    name: str
    schema: Any
    rows: JsonRows
    rebuild: Reason | None = None
    swap: Swap | None = None

    @property
    def is_keyed(self) -> bool:
        return bool(self.rows.key)

    @property
    def columns(self) -> list[str]:
        """Of the lake's table, then those of the sink."""
        return [*self.schema.names, *([KEY] if self.is_keyed else []), HASH]

    @property
    def column_list(self) -> str:
        return ", ".join(map(quoted, self.columns))

    @property
    def definitions(self) -> str:
        """The columns as `CREATE TABLE` takes them, without keys."""
        own = [f"{quoted(name)} {_sql_type(field.dataType)} NULL" for name, field in self._fields()]
        hashes = [f"{quoted(name)} BINARY(16) NOT NULL" for name in self.columns[len(own) :]]
        return ", ".join([*own, *hashes])

    def definition_of(self, column: str) -> str:
        return f"{quoted(column)} {_sql_type(self.schema[column].dataType)} NULL"

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """A row in JSON values as an `INSERT` takes it, with its hashes in hexadecimal digits."""
        values = [self._value(name, field.dataType, row[name]) for name, field in self._fields()]
        if self.is_keyed:
            key = self.rows.key_of(row)
            assert key is not None
            values.append(key_hash(key))
        return [*values, row_hash(row)]

    def read(self, values: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """Rows that MariaDB answered, in JSON values."""
        for listed in values:
            yield {
                name: from_json(None if value is None else json.loads(value), field.dataType)
                if isinstance(field.dataType, COMPOSITES)
                else self.rows.value(name, value)
                for (name, field), value in zip(self._fields(), listed, strict=True)
            }

    def _fields(self) -> list[tuple[str, Any]]:
        return [(field.name, field) for field in self.schema.fields]

    def _value(self, name: str, spark_type: Any, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(spark_type, COMPOSITES):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(spark_type, spark.BinaryType):
            return base64.b64decode(value)
        if isinstance(spark_type, _INSTANTS):
            return database_time(value)
        if isinstance(spark_type, _FLOATS) and isinstance(value, str):
            raise number_unsupported_error(self.sink, self.table, name, value, "MariaDB")
        return value


class MariaDBTables:
    """Creates mirrored tables and finds them again."""

    def __init__(self, sink: str, options: MariadbOptions) -> None:
        self._sink = sink
        self._options = options
        self._registry = quoted(options.database, "taut_tables")
        self.swaps = Swaps(options.database)
        self.folds_case = False
        """Whether the server takes names of tables that differ in case only for the same."""

    def create_registry(self, cursor: Any) -> None:
        self.swaps.create_registry(cursor)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._registry} (name VARCHAR(64) CHARACTER SET utf8mb4 "
            "COLLATE utf8mb4_bin PRIMARY KEY, sink TEXT NOT NULL, mirrors TEXT NOT NULL, "
            "key_columns LONGTEXT NOT NULL, schema_json LONGTEXT NOT NULL) "
            "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
        )

    def register(
        self, cursor: Any, table: TableName, schema: Any, key: Sequence[str], fence: Fence
    ) -> MirroredTable:
        """Write what the table shall be, in the open transaction of `cursor`. Nothing is written of one that
        takes the place of another.

        Raises:
            SinkError: `SINK_COLUMNS_CHANGED`, somebody else altered it; `SINK_COLUMN_NAME_RESERVED`,
                `SINK_TYPE_UNSUPPORTED`, `SINK_COLUMN_MISSING`, `SINK_NAME_TAKEN`.
        """
        name = self._plain_name(table)
        rows_name = self.swaps.rows_of(cursor, name)
        mirrored = replace(self.checked(table, schema, key), name=quoted(self._options.database, rows_name))
        reason = self._existing(cursor, mirrored, rows_name)[1]
        if reason is not None:
            swap = Swap(name, fence)
            following = quoted(self._options.database, swap.next)
            return replace(mirrored, name=following, rebuild=reason, swap=swap)
        self._write(cursor, mirrored)
        return mirrored

    def _existing(
        self, cursor: Any, mirrored: MirroredTable, rows_name: str
    ) -> tuple[set[str], Reason | None]:
        """The columns that there are, none without a table; and why the table cannot go on with them."""
        table = mirrored.table
        columns, stored = self._existing_columns(cursor, rows_name), self._stored(cursor, table)
        if not columns:
            # A table that was dropped in the database is created anew, so its earlier schema does not count.
            return columns, None
        if stored is None:
            raise self._name_taken_error(table, self._plain_name(table))
        stored_schema, stored_key = stored
        # What could not be added before may have been taken out of the query.
        fields = [field for field in stored_schema.fields if field.name.lower() in columns]
        stored_schema = spark.StructType(fields)
        altered = self.altered(cursor, self._mirrored(table, stored_schema, stored_key))
        if altered:
            raise altered_columns_error(self._sink, table, altered, self.full_name(table))
        reason = columns_changed(stored_schema, mirrored.schema)
        return columns, reason or key_changed(stored_key, mirrored.rows.key)

    def compare(self, cursor: Any, target: TableToCompare) -> ExistingTable:
        """What there is of a table. Nothing is written.

        Raises:
            SinkError: as of `register`.
        """
        cursor.execute("SELECT @@lower_case_table_names")
        self.folds_case = int(cursor.fetchone()[0]) != 0
        mirrored = self.checked(target.table, target.schema, target.key)
        plain_name = self._plain_name(target.table)
        columns, reason = set[str](), None
        if self._existing_columns(cursor, "taut_tables"):
            columns, reason = self._existing(cursor, mirrored, self.swaps.rows_of(cursor, plain_name))
        elif self._existing_columns(cursor, plain_name):
            raise self._name_taken_error(target.table, plain_name)
        return ExistingTable(
            table=target.table,
            name=self.full_name(target.table),
            is_absent=not columns,
            lacks=[name for name in target.schema.names if name.lower() not in columns],
            rebuild=reason,
        )

    def _write(self, cursor: Any, mirrored: MirroredTable) -> None:
        """Write what a table is into the registry."""
        cursor.execute(
            f"INSERT INTO {self._registry} VALUES (%s, %s, %s, %s, %s) "
            "ON DUPLICATE KEY UPDATE key_columns = VALUES(key_columns), schema_json = VALUES(schema_json)",
            (
                self._plain_name(mirrored.table),
                self._sink,
                str(mirrored.table),
                json.dumps(mirrored.rows.key),
                mirrored.schema.json(),
            ),
        )

    def checked(self, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        """What a table shall be, unless MariaDB cannot have it."""
        mirrored = self._mirrored(table, schema, key)
        refuse_reserved_columns(self._sink, table, schema)
        refuse_columns_of_other_case(self._sink, table, schema)
        for column in schema.names:
            if len(column) > _MAX_NAME:
                problem = f"the name of the column {column} has more than {_MAX_NAME} characters"
                raise schema_unsupported_error(self._sink, table, problem)
        return mirrored

    def full_name(self, table: TableName) -> str:
        """For people: the name with its database."""
        return f"{self._options.database}.{self._plain_name(table)}"

    def create(self, cursor: Any, table: TableName, mirrored: MirroredTable) -> None:
        """Create the table, or add the columns that it lacks. Each statement is a transaction."""
        if mirrored.swap is not None:
            self.swaps.begin(cursor, mirrored.swap, table)
        columns = self._existing_columns(cursor, self.rows_name(cursor, table))
        if mirrored.swap is not None or not columns:
            keys = f"PRIMARY KEY ({quoted(KEY)})"
            row_number = ""
            if not mirrored.is_keyed:
                keys = f"PRIMARY KEY (`_taut_row`), INDEX ({quoted(HASH)})"
                row_number = "`_taut_row` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, "
            indexed = [self._indexed(mirrored.schema[column]) for column in mirrored.rows.key]
            if all(indexed) and indexed:
                keys += f", INDEX ({', '.join(map(str, indexed))})"
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {mirrored.name} ({row_number}{mirrored.definitions}, {keys}) "
                "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
            )
            return
        lacking = [column for column in mirrored.schema.names if column.lower() not in columns]
        if lacking:
            self._add_columns(cursor, mirrored, lacking)

    def _add_columns(self, cursor: Any, mirrored: MirroredTable, columns: Sequence[str]) -> None:
        # A table may get more columns than one of that size could be created with, and then takes no rows.
        probe = quoted(self._options.database, "taut_probe")
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {probe}")
        cursor.execute(f"CREATE TEMPORARY TABLE {probe} ({mirrored.definitions}) ENGINE = InnoDB")
        cursor.execute(f"DROP TEMPORARY TABLE {probe}")
        # One statement adds all of them, or none.
        added = ", ".join(f"ADD COLUMN {mirrored.definition_of(column)}" for column in columns)
        try:
            cursor.execute(f"ALTER TABLE {mirrored.name} {added}")
        except pymysql.Error as error:
            # The statement of a process that died may still have run.
            is_known = error.args[0] == ER.DUP_FIELDNAME
            if not is_known or self.lacks(cursor, mirrored, columns):
                raise

    def rows_name(self, cursor: Any, table: TableName) -> str:
        """The name of the table with the rows, which is not the mirrored one while readers keep a swap from
        its end."""
        return self.swaps.rows_of(cursor, self._plain_name(table))

    def shown_name(self, table: TableName) -> str:
        """The name of the table or view that people read, as SQL."""
        return quoted(self._options.database, self._plain_name(table))

    def put_view(self, cursor: Any, mirrored: MirroredTable) -> None:
        """Before the commit of a table that takes the place of another."""
        assert mirrored.swap is not None
        stored = self._stored(cursor, mirrored.table)
        if stored is None:
            raise table_changed_error(self._sink, mirrored.table)
        existing = self._existing_columns(cursor, self.rows_name(cursor, mirrored.table))
        before = [column for column in all_columns(*stored) if column.lower() in existing]
        self.swaps.put_view(cursor, mirrored.swap, before, all_columns(mirrored.schema, mirrored.rows.key))

    def decide(self, cursor: Any, mirrored: MirroredTable) -> None:
        """In the transaction that fills a table which takes the place of another.

        Raises:
            SinkError: `SINK_BASE_CHANGED`, the view that shows it is gone.
        """
        assert mirrored.swap is not None
        if not self.swaps.decide(cursor, mirrored.swap):
            raise table_changed_error(self._sink, mirrored.table)
        self._write(cursor, mirrored)

    def has_swap(self, cursor: Any, table: TableName) -> bool:
        """Whether the swap of a table is not over."""
        return self.swaps.is_unfinished(cursor, self._plain_name(table))

    def settle(self, cursor: Any, table: TableName) -> bool:
        """Finish the swap of a table, or take it back; whether it is over."""
        return self.swaps.settle(cursor, self._plain_name(table))

    def load(self, cursor: Any, table: TableName) -> MirroredTable | None:
        """A table that the sink has, or None."""
        stored = self._stored(cursor, table)
        if stored is None:
            return None
        rows = quoted(self._options.database, self.rows_name(cursor, table))
        return replace(self._mirrored(table, stored[0], stored[1]), name=rows)

    def identity(self, cursor: Any, table: TableName, name: str | None = None) -> str | None:
        """When a table was created, its columns and its indexes; None if there is no table. MariaDB tells
        the number of a table only to administrators.

        Args:
            name: of another table than the mirrored one, without its database.
        """
        where = "WHERE table_schema = %s AND table_name = %s"
        of_table = (self._options.database, name or self.rows_name(cursor, table))
        cursor.execute(f"SELECT create_time, engine FROM information_schema.tables {where}", of_table)
        created = cursor.fetchone()
        if created is None:
            return None
        cursor.execute(
            "SELECT column_name, column_type, collation_name, is_nullable, extra "
            f"FROM information_schema.columns {where} ORDER BY ordinal_position",
            of_table,
        )
        columns = cursor.fetchall()
        cursor.execute(
            "SELECT index_name, seq_in_index, column_name, sub_part, non_unique "
            f"FROM information_schema.statistics {where} ORDER BY index_name, seq_in_index",
            of_table,
        )
        indexes = cursor.fetchall()
        text = repr((columns, indexes, self._writers(cursor, of_table)))
        return f"{created[0]} {created[1]} {hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}"

    def altered(self, cursor: Any, mirrored: MirroredTable) -> list[str]:
        """The columns that have another type than the sink gave them, are computed or, of the
        sink itself, gone, the primary key if it is another one, without which a key could have two rows, and
        what may change or remove what is written. MariaDB shows triggers only to users with the right
        TRIGGER."""
        where = "WHERE table_schema = %s AND table_name = %s"
        of_table = (self._options.database, self.rows_name(cursor, mirrored.table))
        cursor.execute(
            "SELECT column_name, CONCAT(column_type, IF(extra LIKE '%%GENERATED%%', ' generated', '')), "
            f"column_key FROM information_schema.columns {where}",
            of_table,
        )
        existing = {str(name).lower(): (_plain_type(kind), key) for name, kind, key in cursor.fetchall()}
        expected = {field.name: _plain_type(_sql_type(field.dataType)) for field in mirrored.schema.fields}
        hashes = dict.fromkeys(mirrored.columns[len(expected) :], "binary(16)")
        own = hashes if mirrored.is_keyed else hashes | {"_taut_row": "bigint unsigned"}
        # Columns of the lake's table that are gone are added again.
        present = {name: kind for name, kind in expected.items() if name.lower() in existing}
        altered = [
            name for name, kind in (present | own).items() if existing.get(name.lower(), ("", ""))[0] != kind
        ]
        primary = KEY if mirrored.is_keyed else "_taut_row"
        if existing.get(primary, ("", ""))[1] != "PRI" and primary not in altered:
            altered.append(primary)
        cursor.execute(
            f"SELECT DISTINCT index_name FROM information_schema.statistics {where} AND non_unique = 0 "
            "AND index_name <> 'PRIMARY' ORDER BY index_name",
            of_table,
        )
        # INSERT … ON DUPLICATE KEY UPDATE would write over the row of another key.
        altered += [f"unique index {name}" for (name,) in cursor.fetchall()]
        return [*altered, *self._writers(cursor, of_table)]

    def _writers(self, cursor: Any, of_table: tuple[str, str]) -> list[str]:
        """Triggers, and foreign keys that change rows when others are changed."""
        cursor.execute(
            "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = %s "
            "AND event_object_table = %s ORDER BY trigger_name",
            of_table,
        )
        triggers = [f"trigger {name}" for (name,) in cursor.fetchall()]
        actions = "('CASCADE', 'SET NULL', 'SET DEFAULT')"
        cursor.execute(
            "SELECT constraint_name FROM information_schema.referential_constraints "
            "WHERE constraint_schema = %s AND table_name = %s "
            f"AND (delete_rule IN {actions} OR update_rule IN {actions}) ORDER BY constraint_name",
            of_table,
        )
        return [*triggers, *(f"foreign key {name}" for (name,) in cursor.fetchall())]

    def lacks(self, cursor: Any, mirrored: MirroredTable, columns: Sequence[str]) -> bool:
        existing = self._existing_columns(cursor, self.rows_name(cursor, mirrored.table))
        return any(column.lower() not in existing for column in columns)

    def _indexed(self, field: Any) -> str | None:
        kind = _sql_type(field.dataType)
        if kind == "JSON":
            return None
        length = f"({_INDEXED_CHARACTERS})" if kind.startswith("LONG") else ""
        return f"{quoted(field.name)}{length}"

    def _mirrored(self, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        rows = JsonRows(self._sink, table, schema, key)
        name = quoted(self._options.database, self._plain_name(table))
        return MirroredTable(self._sink, table, name, schema, rows)

    def _plain_name(self, table: TableName) -> str:
        is_ascii = table.table.isascii() and all(map(str.isascii, table.namespace))
        longest = _MAX_NAME if is_ascii else _MAX_NAME_BEYOND_ASCII
        return mirror_name(table, NameRules(longest=longest, refused=_REFUSED, folds_case=self.folds_case))

    def unregister(self, cursor: Any, table: TableName) -> None:
        """Forget a table that was dropped."""
        statement = f"DELETE FROM {self._registry} WHERE sink = %s AND mirrors = %s"
        cursor.execute(statement, (self._sink, str(table)))

    def _existing_columns(self, cursor: Any, name: str) -> set[str]:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            (self._options.database, name),
        )
        return {str(column).lower() for (column,) in cursor.fetchall()}

    def _stored(self, cursor: Any, table: TableName) -> tuple[Any, list[str]] | None:
        name = self._plain_name(table)
        cursor.execute(
            f"SELECT sink, mirrors, key_columns, schema_json FROM {self._registry} WHERE name = %s",
            (name,),
        )
        row = cursor.fetchone()
        if row is None:
            return None
        sink, mirrors, key, schema = row
        if (sink, mirrors) != (self._sink, str(table)):
            raise self._name_taken_error(table, name)
        return spark.StructType.fromJson(json.loads(schema)), json.loads(key)

    def _name_taken_error(self, table: TableName, name: str) -> SinkError:
        return name_taken_error(self._sink, table, name, "database", self._options.database)


def compare_tables(
    name: str, options: Mapping[str, str], tables: Sequence[TableToCompare]
) -> Iterator[ExistingTable | SinkError]:
    """See `adapters.compare_mirrored_tables`.

    Raises:
        SinkError: as `open_mariadb_sink`.
    """
    parsed = mariadb_options(name, options)
    mirrored, database = MariaDBTables(name, parsed), MariaDBDatabase(name, parsed)

    def compare(target: TableToCompare) -> ExistingTable:
        with database.autocommit() as cursor:
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
        SinkError: as `MariaDBTables.register`, as far as it needs no server.
    """
    tables = MariaDBTables(name, mariadb_options(name, options))
    tables.checked(table, schema, key)
    return tables.full_name(table)
