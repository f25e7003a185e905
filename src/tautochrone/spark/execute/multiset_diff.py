"""The difference of two relations as multisets: which rows to add and to remove to turn one into the other.

`EXCEPT ALL` in both directions would compute the new rows twice and lose the positions of the stored ones.
One grouping over both sides counts the copies on each side and collects the positions.

Where only the size of a difference is asked for, rows of floats that are equal except for the last few bits
are paired, in plain Python.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tautochrone.model import limits
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.model.names import quoted
from tautochrone.spark.analysis.session_context import session_settings
from tautochrone.spark.execute.materialize import local_rows_at, materialize_few

__all__ = [
    "FLOAT_TOLERANCE",
    "DriverDiff",
    "Floats",
    "MultisetDiff",
    "consolidated",
    "count_close_pairs",
    "diff_sizes",
    "has_floats",
    "is_close",
    "multiset_diff",
    "surviving_rows",
    "ungroupable_column",
]


FLOAT_TOLERANCE = 1e-9
"""The relative tolerance: a billionth of the larger of two numbers."""

Floats = tuple[float | None, ...]


def is_close(left: float | None, right: float | None) -> bool:
    """Whether two values count as equal. NULL equals NULL, NaN equals NaN, and only 0 is close to 0.

    >>> is_close(1.0, 1.0 + 1e-12), is_close(1.0, 1.0 + 1e-6), is_close(None, 0.0)
    (True, False, False)
    """
    if left is None or right is None:
        return left is right
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return math.isclose(left, right, rel_tol=FLOAT_TOLERANCE, abs_tol=0.0)


def count_close_pairs(left: Sequence[tuple[Floats, int]], right: Sequence[tuple[Floats, int]]) -> int:
    """The number of copies of `left` rows that have a partner of their own among the `right` rows.

    Each side lists distinct rows with their numbers of copies. Rows are visited in the order of one column,
    and each takes the first free partners that are close. That pairs as many rows as possible, except in
    chains of numbers of which each is close to the next but not to the one after it. Sums of the same numbers
    form no such chains.

    >>> count_close_pairs([((1.0,), 3)], [((1.0 + 1e-12,), 2)])
    2
    """
    if not left or not right:
        return 0
    width = len(left[0][0])
    # The column with the most distinct values: with many equal ones the loop below would be quadratic.
    pivot = max(range(width), key=lambda column: len({row[column] for row, _ in right}))
    partners = sorted(right, key=lambda part: _rank(part[0][pivot]))
    ranks = [_rank(row[pivot]) for row, _ in partners]
    copies = [count for _, count in partners]
    pairs = 0
    for row, count in sorted(left, key=lambda part: _rank(part[0][pivot])):
        low, high = _near(row[pivot])
        for index in range(bisect_left(ranks, low), bisect_right(ranks, high)):
            if count == 0:
                break
            if copies[index] and all(map(is_close, row, partners[index][0])):
                taken = min(count, copies[index])
                count -= taken
                copies[index] -= taken
                pairs += taken
    return pairs


def _rank(value: float | None) -> tuple[int, float]:
    """A total order: NULL, numbers, NaN."""
    if value is None:
        return 0, 0.0
    return (2, 0.0) if math.isnan(value) else (1, value)


def _near(value: float | None) -> tuple[tuple[int, float], tuple[int, float]]:
    """The range of ranks that contains all values close to a value, and a few others."""
    if value is None or not math.isfinite(value):
        return _rank(value), _rank(value)
    margin = abs(value) * 2 * FLOAT_TOLERANCE
    return (1, value - margin), (1, value + margin)


_WITHOUT_CONSTRAINTS = {"spark.sql.constraintPropagation.enabled": "false"}
"""With constraint propagation, Spark 4.1's rule `PruneFilters` fails on a scalar subquery below a union."""

_NEW, _OLD, _POSITIONS = "__taut_new", "__taut_old", "__taut_positions"


@dataclass(frozen=True, slots=True)
class MultisetDiff:
    """`new` minus `old`, materialized.

    Attributes:
        inserts: rows to add, one per copy.
        removed: rows to remove, one per copy.
        deletes: (file, position) of stored rows to remove, one per copy.
        inserted: number of rows in `inserts`.
        deleted: number of rows in `deletes`.
        files: data files that have rows to remove.
    """

    inserts: DataFrame
    removed: DataFrame
    deletes: DataFrame
    inserted: int
    deleted: int
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class DriverDiff:
    """`new` minus `old`, on the driver.

    Attributes:
        inserts: rows to add, one per copy, a local relation.
        removed: rows to remove, one per copy, a local relation.
        inserted: number of rows in `inserts`.
        deletes: data file → positions of the stored rows to remove, one per copy.
    """

    inserts: DataFrame
    removed: DataFrame
    inserted: int
    deletes: Mapping[str, Sequence[int]]

    @property
    def deleted(self) -> int:
        return sum(map(len, self.deletes.values()))


def ungroupable_column(schema: StructType) -> str | None:
    """The first column whose type Spark cannot group by, or None."""
    return next((column.name for column in schema.fields if _contains(column.dataType, "variant")), None)


def has_floats(schema: StructType) -> bool:
    """Whether a column, or a part of it, is FLOAT or DOUBLE: 0.0 and -0.0 of them count as equal."""
    return any(_contains(column.dataType, "float", "double") for column in schema.fields)


def _contains(kind: DataType, *names: str) -> bool:
    """Whether a type is one of the named types or contains one at any depth."""
    if kind.typeName() in names:
        return True
    if isinstance(kind, StructType):
        return any(_contains(column.dataType, *names) for column in kind.fields)
    inner = (getattr(kind, name, None) for name in ("elementType", "keyType", "valueType"))
    return any(_contains(child, *names) for child in inner if child is not None)


def _keys(rows: DataFrame) -> tuple[list[Column], list[Column]]:
    """Expressions to group equal rows by, and aggregates that return the values of columns that the keys
    replace.

    Spark 4.1 cannot group by VARIANT, and when it groups by a map, it turns NULLs in it into zeros.
    """
    keys: list[Column] = []
    values: list[Column] = []
    for position, field in enumerate(rows.schema.fields):
        column = sf.col(quoted(field.name))
        if _contains(field.dataType, "map", "variant"):
            keys.append(_key(column, field.dataType).alias(f"__taut_key_{position}"))
            values.append(sf.first(column).alias(field.name))
        else:
            keys.append(column)
    return keys, values


def _key(column: Column, kind: DataType) -> Column:
    if kind.typeName() == "variant":
        return sf.to_json(column)
    if not _contains(kind, "map", "variant"):
        return column
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return sf.array_sort(sf.transform(sf.map_entries(column), lambda pair: _key_of_fields(pair, entry)))
    if isinstance(kind, ArrayType):
        return sf.transform(column, lambda item: _key(item, kind.elementType))
    assert isinstance(kind, StructType)
    return sf.when(column.isNotNull(), _key_of_fields(column, kind))


def _key_of_fields(column: Column, kind: StructType) -> Column:
    return sf.struct(*(_key(column[field.name], field.dataType).alias(field.name) for field in kind.fields))


def multiset_diff(old: DataFrame, new: DataFrame, *, few: bool = False) -> MultisetDiff | DriverDiff:
    """The rows to insert and the stored rows to delete to turn `old` into `new`.

    NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0, as in `GROUP BY`.

    Args:
        old: the stored rows, with the columns of their file and position.
        new: the rows that the table must have.
        few: probably few rows differ. One Spark job computes them then, and they are kept on the driver; if
            they are too many, all are computed once more. Otherwise they are computed and counted first.
    """
    columns = [sf.col(quoted(name)) for name in new.columns]
    position = sf.struct(sf.col(FILE_COLUMN), sf.col(POSITION_COLUMN))
    both = old.select(
        *columns, position.alias(_POSITIONS), sf.lit(0).alias(_NEW), sf.lit(1).alias(_OLD)
    ).unionAll(
        new.select(
            *columns,
            sf.lit(None).cast(f"struct<{FILE_COLUMN}:string,{POSITION_COLUMN}:bigint>").alias(_POSITIONS),
            sf.lit(1).alias(_NEW),
            sf.lit(0).alias(_OLD),
        )
    )
    keys, values = _keys(new)
    counted = both.groupBy(*keys).agg(
        *values,
        sf.sum(_NEW).alias(_NEW),
        sf.sum(_OLD).alias(_OLD),
        # collect_list ignores NULLs: only stored copies have a position.
        sf.collect_list(_POSITIONS).alias(_POSITIONS),
    )
    changed = counted.where(sf.col(_NEW) != sf.col(_OLD))
    with session_settings(new.sparkSession, _WITHOUT_CONSTRAINTS):
        on_driver = materialize_few(changed, limits.MAX_DRIVER_ROWS) if few else None
        if on_driver is not None:
            return _driver_diff(on_driver, columns)
        # A second evaluation of a nondeterministic query could give other rows.
        changed = changed.localCheckpoint(eager=True)
    surplus = sf.col(_NEW) - sf.col(_OLD)
    totals = changed.agg(
        sf.count("*"),
        sf.sum(sf.size(_POSITIONS)),
        sf.sum(sf.greatest(surplus, sf.lit(0))),
        sf.sum(sf.greatest(-surplus, sf.lit(0))),
    ).first()
    assert totals is not None
    groups, positions, inserted, deleted = (count or 0 for count in totals)
    if max(groups, positions, inserted) <= limits.MAX_DRIVER_ROWS:
        on_driver = materialize_few(changed, limits.MAX_DRIVER_ROWS)
        assert on_driver is not None
        return _driver_diff(on_driver, columns)
    deleted_position = sf.explode(sf.slice(sf.array_sort(_POSITIONS), sf.lit(1), (-surplus).cast("int")))
    deletes = (
        changed.where(surplus < 0)
        .select(deleted_position.alias("position"))
        .select(f"position.{FILE_COLUMN}", f"position.{POSITION_COLUMN}")
    )
    files: frozenset[str] = frozenset()
    if deleted:
        files = frozenset(row[FILE_COLUMN] for row in deletes.select(FILE_COLUMN).distinct().collect())
    inserts, removed = (_copies(changed, columns, count) for count in (surplus, -surplus))
    return MultisetDiff(inserts, removed, deletes, inserted, deleted, files)


def _copies(rows: DataFrame, columns: Sequence[Column], count: Column) -> DataFrame:
    """Each row as many times as its count says, if that is above 0."""
    copies = sf.explode(sf.array_repeat(sf.lit(1), count.cast("int"))).alias("__taut_copy")
    return rows.where(count > 0).select(*columns, copies).select(*columns)


def _driver_diff(changed: DataFrame, columns: Sequence[Column]) -> DriverDiff:
    added: list[int] = []
    removed: list[int] = []
    deletes: dict[str, list[int]] = {}
    surplus = (sf.col(_NEW) - sf.col(_OLD)).alias("surplus")
    # Over a local relation Spark computes this on the driver, without a job.
    for number, row in enumerate(changed.select(surplus, _POSITIONS).collect()):
        added += [number] * max(row["surplus"], 0)
        for file, position in sorted(row[_POSITIONS])[: max(-row["surplus"], 0)]:
            deletes.setdefault(file, []).append(position)
            removed.append(number)
    inserts, removals = (local_rows_at(changed, numbers).select(*columns) for numbers in (added, removed))
    return DriverDiff(inserts, removals, len(added), deletes)


def surviving_rows(old: DataFrame, diff: MultisetDiff) -> DataFrame:
    """The rows that stay in the files that have rows to remove."""
    rows_of_files = old.where(sf.col(FILE_COLUMN).isin(sorted(diff.files)))
    surviving = rows_of_files.join(diff.deletes, on=[FILE_COLUMN, POSITION_COLUMN], how="left_anti")
    return surviving.drop(FILE_COLUMN, POSITION_COLUMN)


def consolidated(added: DataFrame, removed: DataFrame) -> tuple[DataFrame | None, DataFrame | None]:
    """Both relations without the rows that are in both, copy by copy. None for a side without rows.

    The result is materialized, so that both sides come from one evaluation.
    """
    columns = [sf.col(quoted(name)) for name in added.columns]
    both = added.select(*columns, sf.lit(1).alias(_NEW)).unionAll(
        removed.select(*columns, sf.lit(-1).alias(_NEW))
    )
    keys, values = _keys(added)
    with session_settings(added.sparkSession, _WITHOUT_CONSTRAINTS):
        surplus = both.groupBy(*keys).agg(*values, sf.sum(_NEW).alias(_NEW)).where(sf.col(_NEW) != 0)
        surplus = surplus.localCheckpoint(eager=True)

    def side(count: Column) -> DataFrame | None:
        return None if surplus.where(count > 0).isEmpty() else _copies(surplus, columns, count)

    return side(sf.col(_NEW)), side(-sf.col(_NEW))


def diff_sizes(expected: DataFrame, actual: DataFrame) -> tuple[int, int]:
    """Sizes of `expected EXCEPT ALL actual` and of `actual EXCEPT ALL expected`.

    One grouping computes both, so each side is evaluated once. The remaining rows of both sides are then
    paired: FLOAT and DOUBLE columns may differ by `FLOAT_TOLERANCE`, because Spark adds floats up in any
    order. Floats inside structs, arrays and maps are compared exactly.
    """
    columns = [sf.col(quoted(name)) for name in expected.columns]
    both = expected.select(*columns, sf.lit(1).alias(_NEW)).unionAll(
        actual.select(*columns, sf.lit(-1).alias(_NEW))
    )
    keys, values = _keys(expected)
    surplus = both.groupBy(*keys).agg(*values, sf.sum(_NEW).alias(_NEW)).where(sf.col(_NEW) != 0)
    floats = [field.name for field in expected.schema.fields if _is_float(field.dataType)]
    with session_settings(expected.sparkSession, _WITHOUT_CONSTRAINTS):
        if not floats:
            return _sizes(surplus)
        surplus = surplus.localCheckpoint(eager=True)
    missing, unexpected = _sizes(surplus)
    if not missing or not unexpected:
        return missing, unexpected
    paired = _paired_rows(surplus, floats)
    return missing - paired, unexpected - paired


def _is_float(kind: DataType) -> bool:
    return kind.typeName() in ("float", "double")


def _sizes(surplus: DataFrame) -> tuple[int, int]:
    counts = surplus.agg(
        sf.sum(sf.greatest(sf.col(_NEW), sf.lit(0))).alias("missing"),
        sf.sum(sf.greatest(-sf.col(_NEW), sf.lit(0))).alias("unexpected"),
    ).first()
    return (0, 0) if counts is None else (counts["missing"] or 0, counts["unexpected"] or 0)


def _paired_rows(surplus: DataFrame, floats: list[str]) -> int:
    """How many surplus rows of one side have a partner on the other."""
    exact = surplus.drop(*floats)
    keys, _ = _keys(exact.drop(_NEW))
    values = sf.array(*(sf.col(quoted(name)).cast("double") for name in floats))
    row = sf.struct(values.alias("floats"), sf.abs(_NEW).alias("copies"))
    groups = (
        # If all columns are floats, there is no other key.
        surplus.groupBy(sf.lit(0).alias("__taut_all"), *keys)
        .agg(
            sf.collect_list(sf.when(sf.col(_NEW) > 0, row)).alias(_NEW),
            sf.collect_list(sf.when(sf.col(_NEW) < 0, row)).alias(_OLD),
        )
        .where((sf.size(_NEW) > 0) & (sf.size(_OLD) > 0))
        .select(_NEW, _OLD)
    )
    # Only the floats of rows without an exact match are sent to the driver, group by group.
    return sum(count_close_pairs(_groups(row[_NEW]), _groups(row[_OLD])) for row in groups.toLocalIterator())


def _groups(rows: list[Row]) -> list[tuple[Floats, int]]:
    return [(tuple(row["floats"]), row["copies"]) for row in rows]
