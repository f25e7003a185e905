"""Relations as multisets: what must be added to and removed from one to get another.

`EXCEPT ALL` both ways would compute the new rows twice and lose track of where the old ones are
stored. One grouping over both sides counts copies on each and keeps the places of the old ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.model.names import quoted
from tautochrone.spark.analysis.session_context import session_settings
from tautochrone.spark.execute.float_tolerance import Floats, count_close_pairs

__all__ = [
    "MultisetDiff",
    "consolidated",
    "diff_sizes",
    "multiset_diff",
    "surviving_rows",
    "ungroupable_column",
]

_PLAIN = {"spark.sql.constraintPropagation.enabled": "false"}
"""Below a union, Spark 4.1 looks for columns inside scalar subqueries, and fails (`PruneFilters`)."""

_NEW, _OLD, _PLACES = "__taut_new", "__taut_old", "__taut_places"


@dataclass(frozen=True, slots=True)
class MultisetDiff:
    """`new` minus `old`, computed once and kept.

    Attributes:
        inserts: rows to add, one per copy.
        deletes: (file, position) of stored rows to remove, one per copy.
        inserted: number of rows in `inserts`.
        deleted: number of rows in `deletes`.
        files: data files that hold rows to remove.
    """

    inserts: DataFrame
    deletes: DataFrame
    inserted: int
    deleted: int
    files: frozenset[str]


def ungroupable_column(schema: StructType) -> str | None:
    """The first column whose type Spark cannot group by, or None."""

    return next((column.name for column in schema.fields if _holds(column.dataType, "variant")), None)


def _holds(kind: DataType, *names: str) -> bool:
    """Whether a type is, or has inside, one of the named ones."""
    if kind.typeName() in names:
        return True
    if isinstance(kind, StructType):
        return any(_holds(column.dataType, *names) for column in kind.fields)
    inner = (getattr(kind, name, None) for name in ("elementType", "keyType", "valueType"))
    return any(_holds(child, *names) for child in inner if child is not None)


def _keys(rows: DataFrame) -> tuple[list[Column], list[Column]]:
    """What to group by so that equal rows meet, and aggregates that give the columns their values back.

    Spark 4.1 groups by a map, but makes zeros of the NULLs in it; by VARIANT it does not group at all.
    """
    keys: list[Column] = []
    values: list[Column] = []
    for place, field in enumerate(rows.schema.fields):
        column = sf.col(quoted(field.name))
        if _holds(field.dataType, "map", "variant"):
            keys.append(_key(column, field.dataType).alias(f"__taut_key_{place}"))
            values.append(sf.first(column).alias(field.name))
        else:
            keys.append(column)
    return keys, values


def _key(column: Column, kind: DataType) -> Column:
    if kind.typeName() == "variant":
        return sf.to_json(column)
    if not _holds(kind, "map", "variant"):
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


def multiset_diff(old: DataFrame, new: DataFrame) -> MultisetDiff:
    """What turns the stored rows `old` (with file and position) into `new`. Runs two Spark jobs.

    NULLs are equal to each other, so are NaNs, and so are 0.0 and -0.0, as in `GROUP BY`.
    """
    columns = [sf.col(quoted(name)) for name in new.columns]
    place = sf.struct(sf.col(FILE_COLUMN), sf.col(POSITION_COLUMN))
    both = old.select(*columns, place.alias(_PLACES), sf.lit(0).alias(_NEW), sf.lit(1).alias(_OLD)).unionAll(
        new.select(
            *columns,
            sf.lit(None).cast(f"struct<{FILE_COLUMN}:string,{POSITION_COLUMN}:bigint>").alias(_PLACES),
            sf.lit(1).alias(_NEW),
            sf.lit(0).alias(_OLD),
        )
    )
    keys, values = _keys(new)
    counted = both.groupBy(*keys).agg(
        *values,
        sf.sum(_NEW).alias(_NEW),
        sf.sum(_OLD).alias(_OLD),
        # collect_list leaves NULLs out: only stored copies have a place.
        sf.collect_list(_PLACES).alias(_PLACES),
    )
    with session_settings(new.sparkSession, _PLAIN):
        # Materialised: a second evaluation of a query with side effects or ties could differ.
        changed = counted.where(sf.col(_NEW) != sf.col(_OLD)).localCheckpoint(eager=True)
    more = sf.col(_NEW) - sf.col(_OLD)
    gone = sf.explode(sf.slice(sf.array_sort(_PLACES), sf.lit(1), (-more).cast("int")))
    deletes = (
        changed.where(more < 0)
        .select(gone.alias("place"))
        .select(f"place.{FILE_COLUMN}", f"place.{POSITION_COLUMN}")
    )
    copies = sf.explode(sf.array_repeat(sf.lit(1), more.cast("int"))).alias("__taut_copy")
    inserts = changed.where(more > 0).select(*columns, copies).select(*columns)
    totals = changed.agg(
        sf.sum(sf.greatest(more, sf.lit(0))).alias("inserted"),
        sf.sum(sf.greatest(-more, sf.lit(0))).alias("deleted"),
    ).first()
    inserted, deleted = (0, 0) if totals is None else (totals["inserted"] or 0, totals["deleted"] or 0)
    files: frozenset[str] = frozenset()
    if deleted:
        files = frozenset(row[FILE_COLUMN] for row in deletes.select(FILE_COLUMN).distinct().collect())
    return MultisetDiff(inserts, deletes, inserted, deleted, files)


def surviving_rows(old: DataFrame, found: MultisetDiff) -> DataFrame:
    """Rows of the touched files that stay."""
    touched = old.where(sf.col(FILE_COLUMN).isin(sorted(found.files)))
    kept = touched.join(found.deletes, on=[FILE_COLUMN, POSITION_COLUMN], how="left_anti")
    return kept.drop(FILE_COLUMN, POSITION_COLUMN)


def consolidated(added: DataFrame, removed: DataFrame) -> tuple[DataFrame | None, DataFrame | None]:
    """Take rows that are in both from both, copy by copy. None for a side of which nothing is left.

    Computed once and kept: both sides agree, however often they are read.
    """
    columns = [sf.col(quoted(name)) for name in added.columns]
    both = added.select(*columns, sf.lit(1).alias(_NEW)).unionAll(
        removed.select(*columns, sf.lit(-1).alias(_NEW))
    )
    keys, values = _keys(added)
    with session_settings(added.sparkSession, _PLAIN):
        surplus = both.groupBy(*keys).agg(*values, sf.sum(_NEW).alias(_NEW)).where(sf.col(_NEW) != 0)
        surplus = surplus.localCheckpoint(eager=True)
    copies = sf.explode(sf.array_repeat(sf.lit(1), sf.abs(_NEW).cast("int"))).alias("__taut_copy")

    def side(rows: DataFrame) -> DataFrame | None:
        listed = rows.select(*columns, copies).select(*columns)
        return None if rows.isEmpty() else listed

    return side(surplus.where(sf.col(_NEW) > 0)), side(surplus.where(sf.col(_NEW) < 0))


def diff_sizes(expected: DataFrame, actual: DataFrame) -> tuple[int, int]:
    """Sizes of `expected EXCEPT ALL actual` and of `actual EXCEPT ALL expected`.

    One grouping answers both, so each side is evaluated once instead of twice. Rows that are left over on
    both sides are then paired: equal but for FLOAT and DOUBLE columns within `FLOAT_TOLERANCE`, because the
    order in which floats are added up is nobody's promise. Floats inside structs, arrays and maps are
    compared exactly.
    """
    columns = [sf.col(quoted(name)) for name in expected.columns]
    both = expected.select(*columns, sf.lit(1).alias(_NEW)).unionAll(
        actual.select(*columns, sf.lit(-1).alias(_NEW))
    )
    keys, values = _keys(expected)
    surplus = both.groupBy(*keys).agg(*values, sf.sum(_NEW).alias(_NEW)).where(sf.col(_NEW) != 0)
    floats = [field.name for field in expected.schema.fields if _is_float(field.dataType)]
    with session_settings(expected.sparkSession, _PLAIN):
        if not floats:
            return _sizes(surplus)
        surplus = surplus.localCheckpoint(eager=True)
    missing, unexpected = _sizes(surplus)
    if not missing or not unexpected:
        return missing, unexpected
    paired = _paired(surplus, floats)
    return missing - paired, unexpected - paired


def _is_float(kind: DataType) -> bool:
    return kind.typeName() in ("float", "double")


def _sizes(surplus: DataFrame) -> tuple[int, int]:
    counts = surplus.agg(
        sf.sum(sf.greatest(sf.col(_NEW), sf.lit(0))).alias("missing"),
        sf.sum(sf.greatest(-sf.col(_NEW), sf.lit(0))).alias("unexpected"),
    ).first()
    return (0, 0) if counts is None else (counts["missing"] or 0, counts["unexpected"] or 0)


def _paired(surplus: DataFrame, floats: list[str]) -> int:
    """How many surplus rows of one side have a partner on the other."""
    exact = surplus.drop(*floats)
    keys, _ = _keys(exact.drop(_NEW))
    values = sf.array(*(sf.col(quoted(name)).cast("double") for name in floats))
    row = sf.struct(values.alias("floats"), sf.abs(_NEW).alias("copies"))
    groups = (
        # A group needs a key even if all columns are floats.
        surplus.groupBy(sf.lit(0).alias("__taut_all"), *keys)
        .agg(
            sf.collect_list(sf.when(sf.col(_NEW) > 0, row)).alias(_NEW),
            sf.collect_list(sf.when(sf.col(_NEW) < 0, row)).alias(_OLD),
        )
        .where((sf.size(_NEW) > 0) & (sf.size(_OLD) > 0))
        .select(_NEW, _OLD)
    )
    # On the driver, group by group: only numbers travel, and only of rows that are not equal as they are.
    return sum(count_close_pairs(_groups(row[_NEW]), _groups(row[_OLD])) for row in groups.toLocalIterator())


def _groups(rows: list[Row]) -> list[tuple[Floats, int]]:
    return [(tuple(row["floats"]), row["copies"]) for row in rows]
