"""Types of MariaDB and MySQL in the lake: the Spark type of a column, and the SQL that reads its text.

| database | Spark |
|---|---|
| tinyint, smallint, mediumint and int, bigint | TINYINT, SMALLINT, INT, BIGINT |
| the same unsigned | SMALLINT, INT, BIGINT, DECIMAL(20, 0) |
| year; bit(1); bit(n) | SMALLINT; BOOLEAN; DECIMAL(20, 0) |
| float, double | FLOAT, DOUBLE |
| decimal(p, s) with p ≤ 38 | DECIMAL(p, s) |
| date, datetime, timestamp | DATE, TIMESTAMP_NTZ, TIMESTAMP |
| binary, varbinary, blobs, geometry | BINARY |
| char, varchar, texts, json, enum, set, time, decimals of more digits | STRING |

A zero date such as `0000-00-00` or `2026-02-00` is invalid: the type does not have it. `as_text` takes the
column as STRING instead.
"""

from __future__ import annotations

from tautochrone.errors import DefinitionError
from tautochrone.sources.capture.log_table import literal_sql, value_text_sql
from tautochrone.sources.mysql.tables import CapturedTable, TableColumn, quoted_name

__all__ = [
    "BINARIES",
    "BINLOG_TYPES",
    "TEXTS",
    "copy_sql",
    "invalid_value_sql",
    "lake_type",
    "require_known_types",
    "value_sql",
]

_BINARY_STRINGS = ("binary", "varbinary")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_GEOMETRIES = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
)
BINARIES = frozenset((*_BINARY_STRINGS, *_BLOBS, *_GEOMETRIES))
_BLOB_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
TEXTS = frozenset(("char", "varchar", *_BLOB_TEXTS, "enum", "set"))
"""Types that have a character set."""
_SIGNED = {
    "tinyint": ("TINYINT", "SMALLINT"),
    "smallint": ("SMALLINT", "INT"),
    "mediumint": ("INT", "INT"),
    "int": ("INT", "BIGINT"),
    "bigint": ("BIGINT", "DECIMAL(20, 0)"),
}
_OTHERS = {
    "year": "SMALLINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "datetime": "TIMESTAMP_NTZ",
    "timestamp": "TIMESTAMP",
    "time": "STRING",
}
_MAX_PRECISION = 38
BINLOG_TYPES: dict[str, tuple[int, ...]] = {
    "tinyint": (1,),
    "smallint": (2,),
    "mediumint": (9,),
    "int": (3,),
    "bigint": (8,),
    "float": (4,),
    "double": (5,),
    "decimal": (246,),
    "year": (13,),
    "bit": (16,),
    "date": (10,),
    "time": (19,),
    "datetime": (18,),
    "timestamp": (17,),
    "char": (254,),
    "varchar": (15,),
    "binary": (254,),
    "varbinary": (15,),
    "enum": (247,),
    "set": (248,),
    **dict.fromkeys((*_BLOB_TEXTS, *_BLOBS), (252,)),
    "json": (245,),
    **dict.fromkeys(_GEOMETRIES, (252, 255)),
}
"""By `DATA_TYPE`: the number of the type in the log's table maps."""
_WIDE_CHARSETS = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
_FILE_NAMES = "filename"
"""A character set that MariaDB does not show, whose characters it writes as `@0041`."""


_HINT_OF_OLD_TIMES = (
    "the column is stored as before MariaDB 10.1: SET GLOBAL mysql56_temporal_format = ON, then ALTER TABLE "
    "... FORCE; or leave the table out with exclude=[...]"
)


def lake_type(column: TableColumn) -> str:
    """
    >>> lake_type(TableColumn("n", "int", "int(10) unsigned"))
    'BIGINT'
    """
    kind = column.data_type
    if kind in _SIGNED:
        return _SIGNED[kind][column.is_unsigned]
    if kind == "bit":
        return "BOOLEAN" if column.precision == 1 else "DECIMAL(20, 0)"
    if kind == "decimal" and column.precision <= _MAX_PRECISION:
        return f"DECIMAL({column.precision}, {column.scale})"
    if kind in BINARIES:
        return "BINARY"
    return _OTHERS.get(kind, "STRING")


def require_known_types(table: CapturedTable, capture: str) -> None:
    """
    Raises:
        DefinitionError: `CAPTURED_TYPE_NOT_SUPPORTED`.
    """
    for column in table.logged:
        problem = ""
        if column.data_type not in BINLOG_TYPES or "/*" in column.column_type:
            problem = f"type {column.column_type}"
        elif column.data_type in TEXTS and column.charset == _FILE_NAMES:
            problem = f"character set {column.charset}"
        elif column.data_type in ("enum", "set") and _hides_labels(column):
            # The catalog has ? for characters behind the first 65,536, and the log has numbers of labels.
            problem = f"label with ? in the type {column.column_type}, which may be another character,"
        if problem:
            raise DefinitionError(
                "CAPTURED_TYPE_NOT_SUPPORTED",
                f"The capture {capture} includes {table.name}, and the {problem} of its column {column.name} "
                f"is not read from the log",
                hint=_HINT_OF_OLD_TIMES
                if "5.3 */" in column.column_type
                else f"give the column another type, or leave the table out with exclude=[{table.name!r}]",
            )


def _hides_labels(column: TableColumn) -> bool:
    return "?" in column.column_type and column.charset in _WIDE_CHARSETS


def copy_sql(column: TableColumn) -> str:
    """SQL in the database that prints a value as the log's decoder does; texts and binaries in their own
    bytes, which are decoded as those of the log are."""
    name = quoted_name(column.name)
    if column.data_type in ("bit", "year"):
        return f"{name} + 0"
    if column.data_type in ("float", "double"):
        # All digits, also of a FLOAT(7, 2), whose value is no decimal number.
        return f"CAST({name} AS DOUBLE)"
    if "zerofill" in column.column_type:
        # The log has no zeros before a number.
        return f"{name} + 0"
    if column.data_type == "timestamp":
        return f"CONCAT({name}, '+00:00')"
    return name


def value_sql(column: TableColumn, table: str, *, as_text: bool, invalid_is_null: bool = False) -> str:
    """SQL over a row of the log table. A value that the type does not have raises, or is NULL.

    >>> print(value_sql(TableColumn("id", "int", "int(11)"), "shop.t", as_text=True))
    columns['id']
    """
    text, data_type = value_text_sql(column.name), lake_type(column)
    if as_text or data_type == "STRING":
        return text
    if data_type == "BOOLEAN":
        return f"{text} = '1'"
    if data_type == "BINARY":
        return f"unhex({text})"
    value = f"try_cast({text} AS {data_type})"
    if invalid_is_null:
        return value
    problem = literal_sql(f"{table} has a value in {column.name} that {data_type} does not have: ")
    raised = f"raise_error(concat({problem}, {text}))"
    return f"CASE WHEN {text} IS NOT NULL THEN coalesce({value}, {raised}) END"


def invalid_value_sql(column: TableColumn) -> str | None:
    """SQL over a row of the log table: `column = value` of a value that the type does not have, else NULL.
    None: there are no such values."""
    text, data_type = value_text_sql(column.name), lake_type(column)
    if data_type in ("STRING", "BOOLEAN", "BINARY"):
        return None
    is_invalid = f"{text} IS NOT NULL AND try_cast({text} AS {data_type}) IS NULL"
    return f"CASE WHEN {is_invalid} THEN concat({literal_sql(f'{column.name} = ')}, {text}) END"
