"""What names of tables and columns ClickHouse can have, known before the first row is written."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.sql import name_sql
from tautochrone.sinks.common.errors import schema_unsupported
from tautochrone.sinks.common.mirrored import NameRules, mirror_name

__all__ = ["Definitions", "plain_name"]

_LONGEST_FILE = 255
_OF_TABLE = len("taut_rows_") + len("..sql") + 36 + 30
"""What ClickHouse and the sink add to the name of a table in that of a file: a dropped one has its uuid, and
some more for servers that add other endings."""
_OF_COLUMN = 40
"""The same of a column, as in `x.null.cmrk3`."""
_VIRTUAL = ("_block_number", "_block_offset", "_part", "_part_data_version", "_part_index", "_part_offset",
            "_part_uuid", "_partition_id", "_partition_value", "_row_exists", "_sample_factor")  # fmt: skip
"""Older servers do not tell them."""
_UNKNOWN_SETTING = "115"
_CODE = re.compile(r"[Cc]ode: (\d+)")
_UNSUPPORTED = frozenset(
    map(str, (15, 16, 36, 39, 43, 44, 47, 50, 53, 57, 62, 69, 76, 79, 80, 122, 207, 352))
)
"""Codes by which the server says that it cannot have what a statement defines: a name or a type is wrong,
reserved, or there twice, a file's name is too long."""


def plain_name(table: TableName, database: str) -> str:
    """What a mirrored table is called in ClickHouse: no two tables have the same name.

    Example:
        >>> plain_name(TableName("lake", ("shop",), "orders"), "lake")
        'shop__orders'
    """
    room = _LONGEST_FILE - _OF_TABLE - len(_file_name(database))
    is_word = re.fullmatch(r"\w+", "".join((*table.namespace, table.table)), re.ASCII)
    # In the name of a file other characters have three for each byte.
    longest = max(30, room if is_word else room // 3)
    return mirror_name(table, NameRules(longest=longest, in_bytes=True, refused=r"\x00|_at$"))


class Definitions:
    """Runs the statements that define the table of a mirrored table and its views."""

    def __init__(self, name: str, engine: Engine, database: str) -> None:
        self._name = name
        self._engine = engine
        self._database = database
        self._has_long_names: bool | None = None

    def require_names(self, table: TableName, schema: Any) -> None:
        """Refuse columns with names that ClickHouse takes, and that mean something else there.

        Raises:
            SinkError: `SINK_SCHEMA_UNSUPPORTED`.
        """
        virtual = self._virtual_names() if any(name.startswith("_") for name in schema.names) else set()
        for name in schema.names:
            if name in virtual:
                raise schema_unsupported(self._name, table, f"ClickHouse itself has a column {name} in it")
            if not name or "\0" in name:
                raise schema_unsupported(self._name, table, f"the name {name!r} of a column")
            if len(_file_name(name)) + _OF_COLUMN > _LONGEST_FILE and not self._takes_long_names():
                raise schema_unsupported(self._name, table, f"the column name {name[:50]}… is too long")
        self._refuse_nested(table, schema)

    def run(self, table: TableName, statement: str) -> None:
        """Run a statement that defines something of a mirrored table.

        Raises:
            SinkError: `SINK_SCHEMA_UNSUPPORTED`.
        """
        try:
            self._engine.run(statement)
        except SinkError as error:
            code = _CODE.search(str(error))
            if error.error_class == "CLICKHOUSE_REFUSED" and code is not None and code[1] in _UNSUPPORTED:
                raise schema_unsupported(self._name, table, str(error)) from error
            raise

    def _refuse_nested(self, table: TableName, schema: Any) -> None:
        """Arrays `n.x` and `n.y` are one structure, whose arrays have the same lengths."""
        prefixes = Counter(
            field.name.partition(".")[0]
            for field in schema.fields
            if isinstance(field.dataType, (spark.ArrayType, spark.MapType)) and "." in field.name
        )
        for prefix, count in prefixes.items():
            if count > 1:
                raise schema_unsupported(
                    self._name, table, f"the arrays {prefix}.… would be columns of one nested structure"
                )

    def _virtual_names(self) -> set[str]:
        """The columns that every table has, as far as the server tells."""
        table = f"{name_sql(self._database)}.taut_fences"
        try:
            described = self._engine.rows(
                f"DESCRIBE TABLE {table} SETTINGS describe_include_virtual_columns = 1"
            )
        except SinkError as error:
            code = _CODE.search(str(error))
            if code is None or code[1] != _UNKNOWN_SETTING:
                raise
            return set(_VIRTUAL)
        return {*_VIRTUAL, *(str(row[0]) for row in described if row[0].startswith("_"))}

    def _takes_long_names(self) -> bool:
        if self._has_long_names is None:
            self._has_long_names = bool(
                self._engine.rows(
                    "SELECT 1 FROM system.merge_tree_settings "
                    "WHERE name = 'replace_long_file_name_to_hash' AND value = '1'"
                )
            )
        return self._has_long_names


def _file_name(name: str) -> str:
    """As ClickHouse writes a name in that of a file."""
    return re.sub(rb"\W", b"%00", name.encode(), flags=re.ASCII).decode()
