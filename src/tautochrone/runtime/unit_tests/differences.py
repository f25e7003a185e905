"""What differs between the rows that a unit test expects and those that there are, cell by cell.

Rows are multisets: their order does not matter, their number does. NULL equals NULL, NaN equals NaN, 0.0
equals -0.0, and numbers of type FLOAT and DOUBLE may differ by the tolerance of sums in another order.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tautochrone.spark.execute.multiset_diff import is_close

__all__ = ["Difference", "RowDifference", "RowState", "RowValues", "difference", "plain_value", "surplus"]

_MAX_PAIRS = 250_000
"""Above so many pairs of rows none is looked at: all are missing or unexpected."""


class RowState(enum.StrEnum):
    """How a row differs."""

    MISSING = "missing"
    UNEXPECTED = "unexpected"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class RowValues:
    """Rows as values of Python.

    Attributes:
        columns: their names.
        rows: values in the order of the columns.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, table: pa.Table) -> RowValues:
        """The rows of an Arrow table; maps as lists of pairs, timestamps with their time zone."""
        columns = [column.to_pylist() for column in table.columns]
        return cls(tuple(table.column_names), tuple(zip(*columns, strict=True)) if columns else ())

    def only(self, number: int) -> RowValues:
        """One row, by its number."""
        return RowValues(self.columns, (self.rows[number],))

    def plus(self, other: RowValues) -> RowValues:
        """The rows of both."""
        return RowValues(self.columns, (*self.rows, *other.rows))


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row that differs.

    Attributes:
        expected: None if the row is unexpected.
        actual: None if the row is missing.
        columns: that differ, of a row that changed.
    """

    state: RowState
    expected: tuple[Any, ...] | None
    actual: tuple[Any, ...] | None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """All rows that differ; none: the rows are as expected."""

    columns: tuple[str, ...]
    rows: tuple[RowDifference, ...]
    matching: int

    def __bool__(self) -> bool:
        return bool(self.rows)


def difference(expected: RowValues, actual: RowValues) -> Difference:
    """Compare rows as multisets. A row that is missing and one that is unexpected are one that changed if
    they have values in common: the rarer these are, the better the two match.

    Args:
        expected, actual: with the same columns in the same order.

    Example:
        >>> difference(RowValues(("id", "n"), ((1, 2),)), RowValues(("id", "n"), ((1, 3),))).rows[0].columns
        ('n',)
    """
    missing, unexpected = _without_equal(expected.rows, actual.rows)
    missing, unexpected = _without_close(missing, unexpected)
    pairs = _matches(missing, unexpected)
    rows = []
    paired = {other for _, other in pairs.items()}
    for number, row in enumerate(missing):
        if number not in pairs:
            rows.append(RowDifference(RowState.MISSING, row, None))
            continue
        other = unexpected[pairs[number]]
        names = tuple(
            name for name, a, b in zip(expected.columns, row, other, strict=True) if not _are_close(a, b)
        )
        rows.append(RowDifference(RowState.CHANGED, row, other, names))
    rows += [
        RowDifference(RowState.UNEXPECTED, None, row)
        for number, row in enumerate(unexpected)
        if number not in paired
    ]
    return Difference(expected.columns, tuple(rows), len(expected.rows) - len(missing))


def surplus(rows: RowValues, without: RowValues) -> list[int]:
    """The numbers of the rows that are not in `without`, copy by copy. Floats are compared to the last digit.

    Example:
        >>> surplus(RowValues(("n",), ((1,), (1,), (2,))), RowValues(("n",), ((1,),)))
        [1, 2]
    """
    free = Counter(map(_key, without.rows))
    numbers = []
    for number, row in enumerate(rows.rows):
        key = _key(row)
        if free[key]:
            free[key] -= 1
        else:
            numbers.append(number)
    return numbers


_Row = tuple[Any, ...]


def _without_equal(expected: Sequence[_Row], actual: Sequence[_Row]) -> tuple[list[_Row], list[_Row]]:
    """The rows of each side without those that the other side has too, copy by copy."""
    sides = RowValues((), tuple(expected)), RowValues((), tuple(actual))
    missing, unexpected = surplus(*sides), surplus(*reversed(sides))
    return [expected[number] for number in missing], [actual[number] for number in unexpected]


def _without_close(missing: list[_Row], unexpected: list[_Row]) -> tuple[list[_Row], list[_Row]]:
    """The same without pairs of rows that differ in the last digits of floats alone."""
    if not missing or len(missing) * len(unexpected) > _MAX_PAIRS:
        return missing, unexpected
    left = []
    for row in missing:
        close = next((n for n, other in enumerate(unexpected) if _are_close(row, other)), None)
        if close is None:
            left.append(row)
        else:
            unexpected = [*unexpected[:close], *unexpected[close + 1 :]]
    return left, unexpected


def _matches(missing: Sequence[_Row], unexpected: Sequence[_Row]) -> dict[int, int]:
    """The number of an unexpected row by that of the missing row that it is closest to."""
    if not missing or not unexpected or len(missing) * len(unexpected) > _MAX_PAIRS:
        return {}
    width = len(missing[0])
    often = [Counter(_key(row[n]) for row in (*missing, *unexpected)) for n in range(width)]
    scored = []
    for i, row in enumerate(missing):
        for j, other in enumerate(unexpected):
            score = sum(1 / often[n][_key(row[n])] for n in range(width) if _are_close(row[n], other[n]))
            if score:
                scored.append((-score, i, j))
    pairs: dict[int, int] = {}
    used: set[int] = set()
    for _, i, j in sorted(scored):
        if i not in pairs and j not in used:
            pairs[i] = j
            used.add(j)
    return pairs


def _key(value: Any) -> Any:
    """A value that is equal and hashable for values that count as equal."""
    match value:
        case None | bool() | int() | str() | bytes() | Decimal():
            return value
        case float():
            return "NaN" if value != value else value + 0.0
        case datetime():
            return value if value.tzinfo is None else value.astimezone(UTC)
        case dict():
            return tuple((name, _key(inner)) for name, inner in value.items())
        case list() | tuple():
            items = [_key(inner) for inner in value]
            return tuple(sorted(items, key=repr)) if _is_map(value) else tuple(items)
        case _:
            return value


def _is_map(value: Sequence[Any]) -> bool:
    """Whether a value is a map: Arrow gives its entries as pairs, and a struct as a mapping."""
    return isinstance(value, list) and bool(value) and all(isinstance(entry, tuple) for entry in value)


def _are_close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return is_close(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_are_close(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if _is_map(left) and _is_map(right):
            left, right = (
                sorted(entries, key=lambda entry: repr(_key(entry[0]))) for entries in (left, right)
            )
        return len(left) == len(right) and all(map(_are_close, left, right))
    return bool(_key(left) == _key(right))


def plain_value(value: Any) -> Any:
    """A value for people and for JSON: timestamps in the session's time zone, bytes as hexadecimal digits.

    Example:
        >>> plain_value(b"\\x01"), plain_value([("a", 1)])
        ('01', {'a': 1})
    """
    match value:
        case datetime():
            return str(value.replace(tzinfo=None))
        case date() | time() | timedelta() | Decimal():
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return value.hex().upper()
        case dict():
            return {name: plain_value(inner) for name, inner in value.items()}
        case list() if _is_map(value):
            return {str(plain_value(key)): plain_value(inner) for key, inner in value}
        case list() | tuple():
            return [plain_value(inner) for inner in value]
        case _:
            return value
