"""Rows that the driver holds as local relations, selected and compared without a plan of Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.driver_calls import singleton

__all__ = ["COMPARED_TYPES", "distinct_values", "rows_at_other_version", "rows_with_keys"]

_SOURCE = Path(__file__).with_name("DriverRows.java")
COMPARED_TYPES = ("tinyint", "smallint", "int", "bigint", "date")
"""The types of keys that `rows_at_other_version` compares, as catalog strings."""
_EPOCH = dt.date(1970, 1, 1).toordinal()


def rows_with_keys(
    rows: JavaObject,
    columns: Sequence[int],
    keys: JavaObject,
    key_columns: Sequence[int],
    *,
    null_safe: bool,
    output: Sequence[int],
) -> JavaObject | None:
    """Some columns of the rows of a local relation whose key is among some keys, as a local relation.

    None: the columns differ in type, or equal values of a type may differ in bytes, as floats do.

    Args:
        rows: the rows.
        columns: numbers of the columns that are compared.
        keys: a local relation.
        key_columns: for each of `columns` the number of the column of `keys` that it must equal.
        null_safe: whether NULL equals NULL.
        output: numbers of the columns of the result, at least one.
    """
    of_rows, of_keys, of_result = (",".join(map(str, each)) for each in (columns, key_columns, output))
    return _driver_rows().withKeys(rows, of_rows, keys, of_keys, null_safe, of_result)


def distinct_values(rows: JavaObject, column: int, kind: str) -> frozenset[Any] | None:
    """The values of a column of a local relation; None unless they are whole numbers or dates.

    Args:
        rows: the rows.
        column: its number.
        kind: the catalog string of its type.

    Raises:
        OverflowError, ValueError: Python has no such date.
    """
    if not rows.data().size():
        return frozenset()
    text = _driver_rows().values(rows, column)
    if text is None:
        return None
    value_of = _date_of if kind == "date" else int
    return frozenset(value_of(each) if each else None for each in str(text).split(","))


def rows_at_other_version(
    rows: JavaObject,
    own: JavaObject | None,
    others: JavaObject | None,
    column: int,
    keys: Collection[int | dt.date],
) -> JavaObject | None:
    """The rows of a table that have some keys at another of its versions, as a local relation; maybe others.

    None: a row that `rows` should have is not there, or the key is neither a whole number nor a date.

    Args:
        rows: all rows of a version with one of the keys, maybe others; a local relation, as the next two.
        own: the rows that this version has and the other one has not, in the same columns; None: no row.
        others: the rows that the other one has and this one has not.
        column: the number of the key.
        keys: its values.
    """
    texts = (str(each.toordinal() - _EPOCH if isinstance(each, dt.date) else each) for each in keys)
    return _driver_rows().atOtherVersion(rows, own, others, column, ",".join(texts))


def _date_of(days: str) -> dt.date:
    return dt.date.fromordinal(_EPOCH + int(days))


def _driver_rows() -> Any:
    return singleton(_SOURCE)
