"""PostgreSQL's types in the lake: the Spark type of a column, and the SQL that reads its text.

| PostgreSQL | Spark |
|---|---|
| boolean | BOOLEAN |
| smallint, integer, bigint | SMALLINT, INT, BIGINT |
| real, double precision | FLOAT, DOUBLE |
| numeric(p, s) with 0 ≤ s ≤ p ≤ 38 | DECIMAL(p, s) |
| date | DATE |
| timestamp, timestamp with time zone | TIMESTAMP_NTZ, TIMESTAMP |
| bytea | BINARY |
| all others, such as text, uuid, json, enums, arrays, numeric without precision | STRING: PostgreSQL's text |

A value that the type does not have (`infinity` and BC as a date, `NaN` as a decimal) fails the table with the
column's name and the value; `as_text` takes the column as STRING instead.
"""

from __future__ import annotations

from tautochrone.sources.postgresql.messages import Column

__all__ = ["lake_type", "value_sql"]

_TYPES = {
    16: "BOOLEAN",
    17: "BINARY",
    20: "BIGINT",
    21: "SMALLINT",
    23: "INT",
    700: "FLOAT",
    701: "DOUBLE",
    1082: "DATE",
    1114: "TIMESTAMP_NTZ",
    1184: "TIMESTAMP",
}
_NUMERIC = 1700
_MAX_PRECISION = 38


def lake_type(column: Column) -> str:
    """
    >>> lake_type(Column("price", 1700, (10 << 16 | 2) + 4, False))
    'DECIMAL(10, 2)'
    """
    if column.type_id == _NUMERIC and column.modifier >= 0:
        precision, scale = (column.modifier - 4) >> 16, (column.modifier - 4) & 0x7FF
        # A negative scale has its highest bit set here, so it is greater than any precision.
        if scale <= precision <= _MAX_PRECISION:
            return f"DECIMAL({precision}, {scale})"
    return _TYPES.get(column.type_id, "STRING")


def value_sql(column: Column, table: str, *, as_text: bool) -> str:
    """SQL over a row of the log table.

    >>> print(value_sql(Column("id", 20, -1, True), "public.t", as_text=True))
    columns['id']
    """
    text = f"columns[{_literal(column.name)}]"
    data_type = lake_type(column)
    if as_text or data_type == "STRING":
        return text
    if data_type == "BOOLEAN":
        return f"{text} = 't'"
    if data_type == "BINARY":
        return f"unhex(substr({text}, 3))"
    problem = _literal(f"{table} has a value in {column.name} that {data_type} does not have: ")
    return (
        f"CASE WHEN {text} IS NOT NULL THEN coalesce(try_cast({text} AS {data_type}), "
        f"raise_error(concat({problem}, {text}))) END"
    )


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
