"""PostgreSQL's types in the lake: the Spark type of a column, and the SQL that reads its text.

| PostgreSQL | Spark |
|---|---|
| boolean | BOOLEAN |
| smallint, integer, bigint | SMALLINT, INT, BIGINT |
| real, double precision | FLOAT, DOUBLE |
| numeric(p, s) that 38 digits can hold | DECIMAL(p, s) |
| date | DATE |
| timestamp, timestamp with time zone | TIMESTAMP_NTZ, TIMESTAMP |
| bytea | BINARY |
| domains | as the type below them |
| arrays | ARRAY of the element's type |
| all others: text, uuid, json, enums, intervals, ranges, numeric without precision, … | STRING, as printed |

A value that the type does not have is invalid: `infinity` and years BC as a date, `NaN` as a decimal, an
array of several dimensions. `as_text` takes the column as STRING instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg

from tautochrone.sources.capture.log_table import literal_sql, value_text_sql
from tautochrone.sources.postgresql.messages import RelationColumn

__all__ = ["FIRST_USER_TYPE", "invalid_value_sql", "lake_type", "value_sql", "with_built_in_types"]

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
_TEXT_ARRAY = 1009
_ELEMENTS = {
    1000: 16,
    1001: 17,
    1016: 20,
    1005: 21,
    1007: 23,
    1021: 700,
    1022: 701,
    1182: 1082,
    1115: 1114,
    1185: 1184,
    1231: _NUMERIC,
    # Arrays whose elements are texts, by pg_type.dat: char, name, text, bpchar, varchar, xml, json, jsonb,
    # jsonpath, uuid, bit, varbit, time, timetz, interval, money, inet, cidr, macaddr, macaddr8, oid, ranges.
    **dict.fromkeys((1002, 1003, _TEXT_ARRAY, 1014, 1015, 143, 199, 3807, 4073, 2951, 1561, 1563), 25),
    **dict.fromkeys((1183, 1270, 1187, 791, 1041, 651, 1040, 775, 1028), 25),
    **dict.fromkeys((3905, 3907, 3909, 3911, 3913, 3927), 25),
}
"""Built-in array types and the types of their elements; 25 is text."""
_MAX_PRECISION = 38
FIRST_USER_TYPE = 16384
_BOUNDS = r"^(\[[-0-9]+:[-0-9]+\])+="
"""Printed before an array whose indexes do not begin with 1."""
_ELEMENT = r'"(?:[^"\\]|\\.)*+"|[^,"]+'
"""An element as PostgreSQL prints it. The possessive loop does not recurse in Java."""
_ESCAPED = r"(?s)\\(.)"
_SHOWN_CHARACTERS = 100

_BUILT_IN_TYPES = """
SELECT t.oid::bigint,
       CASE WHEN t.typtype = 'd' THEN t.typbasetype::bigint
            WHEN e.typdelim = ',' THEN coalesce(nullif(b.typarray, 0)::bigint, %(text_array)s) END,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE coalesce(e.typtypmod, -1) END
FROM pg_type t
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_type b ON b.oid = e.typbasetype
WHERE t.oid::bigint = ANY(%(types)s)
"""


def with_built_in_types(
    connection: psycopg.Connection, columns: Sequence[RelationColumn]
) -> tuple[RelationColumn, ...]:
    """The columns with the types that their values are printed as: those below domains, and text for the
    elements of arrays of other types that users made."""
    resolved = tuple(columns)
    while True:
        types = sorted({column.type_id for column in resolved if column.type_id >= FIRST_USER_TYPE})
        arguments = {"types": types, "text_array": _TEXT_ARRAY}
        rows = connection.execute(_BUILT_IN_TYPES, arguments).fetchall() if types else []
        below = {type_id: (base, modifier) for type_id, base, modifier in rows if base is not None}
        if not below:
            return resolved
        resolved = tuple(
            replace(column, type_id=below[column.type_id][0], modifier=below[column.type_id][1])
            if column.type_id in below
            else column
            for column in resolved
        )


def lake_type(column: RelationColumn) -> str:
    """
    >>> lake_type(RelationColumn("price", 1700, (10 << 16 | 2) + 4, False))
    'DECIMAL(10, 2)'
    >>> lake_type(RelationColumn("days", 1182, -1, False))
    'ARRAY<DATE>'
    """
    element = _ELEMENTS.get(column.type_id)
    if element is not None:
        return f"ARRAY<{_scalar_type(element, column.modifier)}>"
    return _scalar_type(column.type_id, column.modifier)


def _scalar_type(type_id: int, modifier: int) -> str:
    if type_id == _NUMERIC and modifier >= 0:
        precision = (modifier - 4) >> 16 & 0xFFFF
        # Eleven bits with a sign: numeric(3, -2) holds 99900, numeric(3, 5) holds 0.00999.
        scale = ((modifier - 4 & 0x7FF) ^ 0x400) - 0x400
        precision, scale = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
        if precision <= _MAX_PRECISION:
            return f"DECIMAL({precision}, {scale})"
    return _TYPES.get(type_id, "STRING")


def value_sql(column: RelationColumn, table: str, *, as_text: bool, invalid_is_null: bool = False) -> str:
    """SQL over a row of the log table. A value that the type does not have raises, or is NULL.

    >>> print(value_sql(RelationColumn("id", 20, -1, True), "public.t", as_text=True))
    columns['id']
    """
    text = value_text_sql(column.name)
    data_type = lake_type(column)
    if as_text or data_type == "STRING":
        return text
    invalid = _is_invalid(text, data_type)
    value = _cast_or_null(text, data_type)
    if invalid_is_null or invalid is None:
        return value
    problem = literal_sql(f"{table} has a value in {column.name} that {data_type} does not have: ")
    return f"CASE WHEN {invalid} THEN raise_error(concat({problem}, {text})) ELSE {value} END"


def invalid_value_sql(column: RelationColumn) -> str | None:
    """SQL over a row of the log table: `column = value` of a value that the type does not have, else NULL.
    None: there are no such values.

    >>> invalid_value_sql(RelationColumn("note", 25, -1, False))
    """
    text = value_text_sql(column.name)
    invalid = _is_invalid(text, lake_type(column))
    if invalid is None:
        return None
    name = literal_sql(f"{column.name} = ")
    return f"CASE WHEN {invalid} THEN concat({name}, left({text}, {_SHOWN_CHARACTERS})) END"


def _cast_or_null(text: str, data_type: str) -> str:
    """NULL for a value that the type does not have; in an array, for an element."""
    if data_type.startswith("ARRAY<"):
        element = data_type[len("ARRAY<") : -1]
        return (
            f"CASE WHEN NOT startswith({_without_bounds(text)}, '{{{{') "
            f"THEN transform({_elements(text)}, e -> {_cast_or_null('e', element)}) END"
        )
    match data_type:
        case "STRING":
            return text
        case "BOOLEAN":
            return f"{text} = 't'"
        case "BINARY":
            return f"unhex(substr({text}, 3))"
        case "DATE" | "TIMESTAMP" | "TIMESTAMP_NTZ":
            # Spark reads the beginning of a text as a date, whatever follows.
            return f"CASE WHEN NOT endswith({text}, ' BC') THEN try_cast({text} AS {data_type}) END"
        case _:
            return f"try_cast({text} AS {data_type})"


def _is_invalid(text: str, data_type: str) -> str | None:
    """A condition that is never NULL; None: it holds for no value."""
    if data_type.startswith("ARRAY<"):
        has_dimensions = f"startswith({_without_bounds(text)}, '{{{{')"
        element = _is_invalid("e", data_type[len("ARRAY<") : -1])
        if element is not None:
            has_dimensions += f" OR exists({_elements(text)}, e -> {element})"
        return f"{text} IS NOT NULL AND ({has_dimensions})"
    if data_type in ("STRING", "BOOLEAN", "BINARY"):
        return None
    return f"{text} IS NOT NULL AND {_cast_or_null(text, data_type)} IS NULL"


def _without_bounds(text: str) -> str:
    return f"regexp_replace({text}, {literal_sql(_BOUNDS)}, '')"


def _elements(text: str) -> str:
    """The texts of an array's elements. A text that could be misread is quoted, and `NULL` is not."""
    body = f"substr({_without_bounds(text)}, 2, length({_without_bounds(text)}) - 2)"
    unquoted = f"regexp_replace(substr(e, 2, length(e) - 2), {literal_sql(_ESCAPED)}, '$1')"
    return (
        f"transform(regexp_extract_all({body}, {literal_sql(_ELEMENT)}, 0), "
        f"e -> CASE WHEN e = 'NULL' THEN NULL WHEN startswith(e, '\"') THEN {unquoted} ELSE e END)"
    )
