"""The tables of a sink: Primary Key tables. What each of them mirrors is in the table `taut_tables`.

StarRocks has no transaction over statements that create tables. So what a table shall be is written first,
and what lacks is created then, again if the process died in between.

A table with other columns or another key is filled beside the older one by the transaction of all tables, and
exchanges its name with it by one statement afterwards. Between the two readers see the older rows of this
table. A process that dies there leaves a row of `taut_tables`, by which the next owner exchanges them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason
from tautochrone.sinks.common.errors import name_taken_error, number_unsupported_error
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
from tautochrone.sinks.common.pointer_sink import Content, TableRecord
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.sinks.starrocks.database import SqlDatabase
from tautochrone.sinks.starrocks.options import StarrocksOptions, starrocks_options

__all__ = [
    "OPERATION",
    "MirroredTable",
    "SpooledRow",
    "StarRocksTables",
    "check_table",
    "create_primary_key_table",
]

OPERATION = "__op"
"""StarRocks's name for what a loaded row does."""
_NEXT = "taut_next_"
_NAMES = NameRules(longest=64, refused=r"^[0-9]|[^A-Za-z0-9_]")
_TEXT = "VARCHAR(1048576)"
_TYPES: dict[type, str] = {
    spark.BooleanType: "BOOLEAN",
    spark.ByteType: "TINYINT",
    spark.ShortType: "SMALLINT",
    spark.IntegerType: "INT",
    spark.LongType: "BIGINT",
    spark.FloatType: "DOUBLE",
    spark.DoubleType: "DOUBLE",
    spark.DateType: "DATE",
    spark.TimestampType: "DATETIME",
    spark.TimestampNTZType: "DATETIME",
}
_FLOATS = (spark.FloatType, spark.DoubleType)
_INSTANTS = (spark.TimestampType, spark.TimestampNTZType)


def _sql_type(spark_type: Any) -> str:
    return sql_type(spark_type, _TYPES, "DECIMAL", "JSON", _TEXT)


def create_primary_key_table(
    database: SqlDatabase, options: StarrocksOptions, name: str, columns: str, key: Sequence[str]
) -> None:
    """Create a Primary Key table if it is missing; the columns of the key come first."""
    keys = ", ".join(map(quoted, key))
    copies = options.replication_num
    properties = "" if copies is None else f' PROPERTIES ("replication_num" = "{copies}")'
    database.execute(
        f"CREATE TABLE IF NOT EXISTS {quoted(options.database, name)} ({columns}) PRIMARY KEY ({keys}) "
        f"DISTRIBUTED BY HASH ({keys}){properties}"
    )


@dataclass(frozen=True, slots=True)
class SpooledRow:
    """A row that came (`sign` 1) or went (-1), as StarRocks's JSON loader takes it.

    Attributes:
        key: the hash of the columns of the key; that of the row in a table without one.
        hash: of the row.
    """

    sign: int
    key: str
    hash: str
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A table as the sink knows it.

    Attributes:
        plain_name: of StarRocks's table, without its database.
        name: the same as SQL, with its database.
        rebuild: why it takes the place of another after the commit; None: it does not.
    """

    sink: str
    table: TableName
    plain_name: str
    name: str
    schema: Any
    rows: JsonRows
    rebuild: Reason | None = None

    @property
    def is_keyed(self) -> bool:
        return bool(self.rows.key)

    @property
    def definitions(self) -> str:
        own = ", ".join(map(self.definition_of, self.schema.names))
        return f"{quoted(KEY)} VARCHAR(64) NOT NULL, {own}, {quoted(HASH)} VARCHAR(32) NULL"

    def definition_of(self, column: str) -> str:
        return f"{quoted(column)} {_sql_type(self.schema[column].dataType)} NULL"

    def spooled(self, row: Mapping[str, Any], sign: int) -> SpooledRow:
        """A row in JSON values as the loader takes it."""
        hashed = row_hash(row)
        key = self.rows.key_of(row)
        identity = hashed if key is None else key_hash(key)
        columns = {
            field.name: self._value(field.name, field.dataType, row[field.name])
            for field in self.schema.fields
        }
        return SpooledRow(sign, identity, hashed, columns)

    def read(self, values: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """Rows that StarRocks answered, in JSON values."""
        for listed in values:
            yield {
                field.name: self._json(field.name, field.dataType, value)
                for field, value in zip(self.schema.fields, listed, strict=True)
            }

    def _json(self, name: str, spark_type: Any, value: Any) -> Any:
        if isinstance(spark_type, COMPOSITES):
            return from_json(None if value is None else json.loads(value), spark_type)
        # Binary values are stored as the base64 text that they have in JSON.
        return value if isinstance(spark_type, spark.BinaryType) else self.rows.value(name, value)

    def _value(self, name: str, spark_type: Any, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(spark_type, _INSTANTS):
            return database_time(value)
        if isinstance(spark_type, _FLOATS) and isinstance(value, str):
            raise number_unsupported_error(self.sink, self.table, name, value, "JSON")
        return value


class StarRocksTables:
    """Creates mirrored tables and finds them again."""

    def __init__(self, sink: str, options: StarrocksOptions, database: SqlDatabase) -> None:
        self._sink = sink
        self._options = options
        self._database = database
        self._registry = quoted(options.database, "taut_tables")

    def create_registry(self) -> None:
        create_primary_key_table(
            self._database,
            self._options,
            "taut_tables",
            f"`name` VARCHAR(64) NOT NULL, `sink` VARCHAR(190), `mirrors` {_TEXT}, `key_columns` {_TEXT}, "
            f"`schema_json` {_TEXT}, `is_created` BOOLEAN",
            ["name"],
        )

    def ensure(self, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        """Write what the table shall be, then create it or add the columns that it lacks.

        Raises:
            SinkError: `SINK_COLUMNS_CHANGED`, somebody else altered it; `SINK_COLUMN_NAME_RESERVED`,
                `SINK_TYPE_UNSUPPORTED`, `SINK_COLUMN_MISSING`, `SINK_NAME_TAKEN`.
        """
        mirrored = self._mirrored(table, schema, key)
        _refuse_columns(self._sink, table, schema)
        columns = self._existing_columns(mirrored.plain_name)
        stored = self._stored(table)
        if stored is None:
            if columns:
                raise self._name_taken_error(table, mirrored.plain_name)
        else:
            stored_schema, stored_key, _ = stored
            name = f"{self._options.database}.{mirrored.plain_name}"
            # A table that was dropped is created as it shall be now.
            if columns:
                if not {HASH, KEY} <= columns:
                    raise altered_columns_error(self._sink, table, [HASH, KEY], name)
                reason = columns_changed(stored_schema, schema) or key_changed(stored_key, mirrored.rows.key)
                if reason is not None:
                    return self._create_beside(table, mirrored, reason)
        is_complete = all(name.lower() in columns for name in schema.names) and bool(columns)
        if stored is None or not is_complete or stored[0] != schema or not stored[2]:
            self._register(table, mirrored, is_created=stored is not None and stored[2])
            self._create_or_add_columns(mirrored, columns)
            self._register(table, mirrored, is_created=True)
        return mirrored

    def next_name(self, table: TableName) -> str:
        """Of the table that takes the place of a mirrored one."""
        digest = hashlib.md5(self._plain_name(table).encode(), usedforsecurity=False).hexdigest()
        return f"{_NEXT}{digest}"

    def _create_beside(self, table: TableName, mirrored: MirroredTable, reason: Reason) -> MirroredTable:
        plain = self.next_name(table)
        name = quoted(self._options.database, plain)
        following = replace(mirrored, plain_name=plain, name=name, rebuild=reason)
        self._database.execute(f"DROP TABLE IF EXISTS {name}")
        self._register(table, following, is_created=False)
        create_primary_key_table(self._database, self._options, plain, following.definitions, [KEY])
        return following

    def waiting(self) -> list[TableName]:
        """The mirrored tables of which another one is to take the place, or was."""
        rows = self._database.query(
            f"SELECT `name`, `mirrors` FROM {self._registry} WHERE `sink` = %s", (self._sink,)
        )
        return [TableName.parse(mirrors) for name, mirrors in rows if str(name).startswith(_NEXT)]

    def settle(self, table: TableName, record: TableRecord | None) -> None:
        """Exchange a table with the next one if that is what the pointer stands for, and drop the other one.
        Repeatable.

        Args:
            record: of the pointer.
        """
        plain = self.next_name(table)
        stored = self._stored(table, plain)
        if stored is None:
            return
        schema, key, is_decided = stored
        mirrored, following = self._mirrored(table, schema, key), quoted(self._options.database, plain)
        is_shown = record is not None and record.identity == self.identity(table, plain)
        if is_shown or is_decided:
            # Here `is_created` says that it is decided: after the exchange nothing else tells.
            self._register(table, replace(mirrored, plain_name=plain), is_created=True)
            if is_shown:
                self._database.execute(f"ALTER TABLE {mirrored.name} SWAP WITH {quoted(plain)}")
            self._register(table, mirrored, is_created=True)
        self._database.execute(f"DROP TABLE IF EXISTS {following}")
        self._database.execute(f"DELETE FROM {self._registry} WHERE `name` = %s", (plain,))

    def load(self, table: TableName) -> MirroredTable | None:
        """A table that the sink has, or None."""
        stored = self._stored(table)
        return None if stored is None else self._mirrored(table, stored[0], stored[1])

    def identity(self, table: TableName, name: str | None = None) -> str | None:
        """StarRocks's number of a table, and its columns; None if there is no table.

        Args:
            name: of another table than the mirrored one, without its database.
        """
        where = "WHERE table_schema = %s AND table_name = %s"
        of_table = (self._options.database, name or self._plain_name(table))
        columns = self._database.query(
            f"SELECT column_name, column_type FROM information_schema.columns {where} ORDER BY column_name",
            of_table,
        )
        if not columns:
            return None
        numbers = self._database.query(
            f"SELECT table_id FROM information_schema.tables_config {where}", of_table
        )
        text = repr([tuple(map(str, column)) for column in columns])
        digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        return f"{numbers[0][0] if numbers else ''} {digest}"

    def content(self, mirrored: MirroredTable, columns: Sequence[str]) -> Content | None:
        """The rows of a table; None if it lacks one of these columns, or the hashes."""
        if not {HASH, KEY, *map(str.lower, columns)} <= self._existing_columns(mirrored.plain_name):
            return None
        ((rows, total),) = self._database.query(
            f"SELECT COUNT(*), SUM(CAST(CONV(SUBSTR({quoted(HASH)}, 1, 8), 16, 10) AS BIGINT)) "
            f"FROM {mirrored.name}"
        )
        return Content(int(rows), int(total or 0))

    def is_empty(self, mirrored: MirroredTable) -> bool:
        return not self._database.query(f"SELECT 1 FROM {mirrored.name} LIMIT 1")

    def _register(self, table: TableName, mirrored: MirroredTable, *, is_created: bool) -> None:
        # An INSERT into a Primary Key table replaces the row with this key.
        self._database.execute(
            f"INSERT INTO {self._registry} (`name`, `sink`, `mirrors`, `key_columns`, `schema_json`, "
            "`is_created`) VALUES (%s, %s, %s, %s, %s, %s)",
            (
                mirrored.plain_name,
                self._sink,
                str(table),
                json.dumps(mirrored.rows.key),
                mirrored.schema.json(),
                is_created,
            ),
        )

    def _create_or_add_columns(self, mirrored: MirroredTable, existing_columns: set[str]) -> None:
        if not existing_columns:
            create_primary_key_table(
                self._database, self._options, mirrored.plain_name, mirrored.definitions, [KEY]
            )
            return
        for column in mirrored.schema.names:
            if column.lower() not in existing_columns:
                self._database.execute(
                    f"ALTER TABLE {mirrored.name} ADD COLUMN {mirrored.definition_of(column)}"
                )
                self._await_column(mirrored, column)

    def _await_column(self, mirrored: MirroredTable, column: str) -> None:
        """A column may be added in the background, and a second one is refused before that is done."""
        deadline = time.monotonic() + self._options.visible_wait_s
        while column.lower() not in self._existing_columns(mirrored.plain_name):
            if time.monotonic() > deadline:
                raise SinkError(
                    "SINK_BUSY",
                    f"Sink {self._sink}: StarRocks still adds the column {column} to {mirrored.plain_name}",
                    hint=f"SHOW ALTER TABLE COLUMN FROM {quoted(self._options.database)} shows its progress.",
                    retryable=True,
                )
            time.sleep(self._options.pause_s)

    def _mirrored(self, table: TableName, schema: Any, key: Sequence[str]) -> MirroredTable:
        rows = JsonRows(self._sink, table, schema, key)
        plain_name = self._plain_name(table)
        name = quoted(self._options.database, plain_name)
        return MirroredTable(self._sink, table, plain_name, name, schema, rows)

    def _plain_name(self, table: TableName) -> str:
        return mirror_name(table, _NAMES)

    def _existing_columns(self, name: str) -> set[str]:
        rows = self._database.query(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            (self._options.database, name),
        )
        return {str(column).lower() for (column,) in rows}

    def _stored(self, table: TableName, name: str | None = None) -> tuple[Any, list[str], bool] | None:
        name = name or self._plain_name(table)
        rows = self._database.query(
            f"SELECT `sink`, `mirrors`, `key_columns`, `schema_json`, `is_created` FROM {self._registry} "
            "WHERE `name` = %s",
            (name,),
        )
        if not rows:
            return None
        sink, mirrors, key, schema, is_created = rows[0]
        if (sink, mirrors) != (self._sink, str(table)):
            raise self._name_taken_error(table, name)
        return spark.StructType.fromJson(json.loads(schema)), json.loads(key), bool(is_created)

    def _name_taken_error(self, table: TableName, name: str) -> SinkError:
        return name_taken_error(self._sink, table, name, "database", self._options.database)


def _refuse_columns(sink: str, table: TableName, schema: Any) -> None:
    refuse_reserved_columns(sink, table, schema)
    refuse_columns_of_other_case(sink, table, schema)
    if OPERATION in map(str.lower, schema.names):
        raise SinkError(
            "SINK_COLUMN_NAME_RESERVED",
            f"Sink {sink}: {table} has a column {OPERATION}, a name that StarRocks itself uses",
            hint="Rename the column in the query of the dataset.",
            sqlstate="42939",
        )


def check_table(
    name: str, options: Mapping[str, str], table: TableName, schema: Any, key: Sequence[str]
) -> str:
    """What a table is called in a sink of these options; see `adapters.check_mirrored_table`.

    Raises:
        SinkError: as `StarRocksTables.ensure`, as far as it needs no server.
    """
    JsonRows(name, table, schema, key)
    _refuse_columns(name, table, schema)
    return f"{starrocks_options(name, options).database}.{mirror_name(table, _NAMES)}"
