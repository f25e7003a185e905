"""Relations as multisets: what must be added to and removed from one to get another.

`EXCEPT ALL` both ways would compute the new rows twice and lose track of where the old ones are
stored. One grouping over both sides counts copies on each and keeps the places of the old ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StructType

__all__ = ["BagDifference", "compare", "difference", "incomparable", "survivors"]

_NEW, _OLD, _PLACES = "__taut_new", "__taut_old", "__taut_places"
FILE, POSITION = "_file", "_pos"


@dataclass(frozen=True, slots=True)
class BagDifference:
    """`new` minus `old`, computed once and kept.

    Attributes:
        inserts: rows to add, one per copy.
        deletes: (`_file`, `_pos`) of stored rows to remove, one per copy.
        inserted: number of rows in `inserts`.
        deleted: number of rows in `deletes`.
        files: data files that hold rows to remove.
    """

    inserts: DataFrame
    deletes: DataFrame
    inserted: int
    deleted: int
    files: frozenset[str]


def incomparable(schema: StructType) -> str | None:
    """The first column whose type Spark cannot group by, or None."""

    def holds(kind: DataType) -> bool:
        if kind.typeName() == "variant":
            return True
        if isinstance(kind, StructType):
            return any(holds(column.dataType) for column in kind.fields)
        inner = (getattr(kind, name, None) for name in ("elementType", "keyType", "valueType"))
        return any(holds(child) for child in inner if child is not None)

    return next((column.name for column in schema.fields if holds(column.dataType)), None)


def difference(old: DataFrame, new: DataFrame) -> BagDifference:
    """What turns the stored rows `old` (with `_file` and `_pos`) into `new`. Runs two Spark jobs.

    NULLs are equal to each other, so are NaNs, and so are 0.0 and -0.0, as in `GROUP BY`.
    """
    columns = [sf.col(f"`{name}`") for name in new.columns]
    place = sf.struct(sf.col(FILE), sf.col(POSITION))
    both = old.select(*columns, place.alias(_PLACES), sf.lit(0).alias(_NEW), sf.lit(1).alias(_OLD)).unionAll(
        new.select(
            *columns,
            sf.lit(None).cast("struct<_file:string,_pos:bigint>").alias(_PLACES),
            sf.lit(1).alias(_NEW),
            sf.lit(0).alias(_OLD),
        )
    )
    changed = (
        both.groupBy(*columns)
        .agg(
            sf.sum(_NEW).alias(_NEW),
            sf.sum(_OLD).alias(_OLD),
            # collect_list leaves NULLs out: only stored copies have a place.
            sf.collect_list(_PLACES).alias(_PLACES),
        )
        .where(sf.col(_NEW) != sf.col(_OLD))
        # Materialised: a second evaluation of a query with side effects or ties could differ.
        .localCheckpoint(eager=True)
    )
    more = sf.col(_NEW) - sf.col(_OLD)
    gone = sf.explode(sf.slice(sf.array_sort(_PLACES), sf.lit(1), (-more).cast("int")))
    deletes = changed.where(more < 0).select(gone.alias("place")).select(f"place.{FILE}", f"place.{POSITION}")
    copies = sf.explode(sf.array_repeat(sf.lit(1), more.cast("int"))).alias("__taut_copy")
    inserts = changed.where(more > 0).select(*columns, copies).select(*columns)
    totals = changed.agg(
        sf.sum(sf.greatest(more, sf.lit(0))).alias("inserted"),
        sf.sum(sf.greatest(-more, sf.lit(0))).alias("deleted"),
    ).first()
    inserted, deleted = (0, 0) if totals is None else (totals["inserted"] or 0, totals["deleted"] or 0)
    files: frozenset[str] = frozenset()
    if deleted:
        files = frozenset(row[FILE] for row in deletes.select(FILE).distinct().collect())
    return BagDifference(inserts, deletes, inserted, deleted, files)


def survivors(old: DataFrame, found: BagDifference) -> DataFrame:
    """Rows of the touched files that stay."""
    touched = old.where(sf.col(FILE).isin(sorted(found.files)))
    kept = touched.join(found.deletes, on=[FILE, POSITION], how="left_anti")
    return kept.drop(FILE, POSITION)


def compare(expected: DataFrame, actual: DataFrame) -> tuple[int, int]:
    """Sizes of `expected EXCEPT ALL actual` and of `actual EXCEPT ALL expected`.

    One grouping answers both, so each side is evaluated once instead of twice.
    """
    columns = [sf.col(f"`{name}`") for name in expected.columns]
    both = expected.select(*columns, sf.lit(1).alias(_NEW)).unionAll(
        actual.select(*columns, sf.lit(-1).alias(_NEW))
    )
    surplus = both.groupBy(*columns).agg(sf.sum(_NEW).alias(_NEW)).where(sf.col(_NEW) != 0)
    counts = surplus.agg(
        sf.sum(sf.greatest(sf.col(_NEW), sf.lit(0))).alias("missing"),
        sf.sum(sf.greatest(-sf.col(_NEW), sf.lit(0))).alias("unexpected"),
    ).first()
    return (0, 0) if counts is None else (counts["missing"] or 0, counts["unexpected"] or 0)
