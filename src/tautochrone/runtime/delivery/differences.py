"""What differs between two checkpoints, or a checkpoint and a built plan, table by table.

Which data files differ tells the metadata of a table, so a difference costs what changed between the two
checkpoints. Where the history of a table does not tell, all rows of both versions are compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from tautochrone.errors import LakeError, MetaError, QueryError
from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.lake import LakeTable, Rows
from tautochrone.model.names import TableName, Version, is_clock, is_file_table, quoted
from tautochrone.model.near_names import matching_tables, near_names_hint, table_spellings
from tautochrone.model.reason import Reason
from tautochrone.runtime.delivery.deltas import CollectedRows, delta_of
from tautochrone.spark.execute.multiset_diff import consolidated

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableDifference", "differences", "first_rows"]


_LEASE_MS = 3_600_000
"""A large table may take long. The pins are released at the end."""


@dataclass(frozen=True)
class TableDifference:
    """The rows that a table has at one checkpoint and not at the other.

    Attributes:
        added, removed: rows of the newer and of the older side only, copy by copy; None: there are none.
        columns_added, columns_removed: names of columns that only one side has. Rows of the other side have
            NULL there, or lack them.
        reason: why all rows of both sides were compared; or, with `problem`, why they could not be.
        problem: the error; nothing is known of the rows.
    """

    table: TableName
    added: Rows | None = None
    removed: Rows | None = None
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()
    reason: Reason | None = None
    problem: LakeError | None = None

    @cached_property
    def rows_added(self) -> int:
        return _count(self.added)

    @cached_property
    def rows_removed(self) -> int:
        return _count(self.removed)

    def changed_values(self, key: Sequence[str]) -> dict[str, int]:
        """In how many rows of a key each other column has another value than before; columns without any are
        left out. Keys of several rows on a side are not counted, nor are columns that cannot be compared.

        Args:
            key: columns of both sides.
        """
        if self.added is None or self.removed is None:
            return {}
        before, after = (_one_row_a_key(_frame(rows), key) for rows in (self.removed, self.added))
        row_before: Any = before.schema["row"].dataType
        row_after: Any = after.schema["row"].dataType
        types = {field.name: field.dataType for field in row_after.fields}
        names = [
            field.name
            for field in row_before.fields
            if field.name not in key
            and field.name in types
            and _is_comparable(field.dataType, types[field.name])
        ]
        if not names:
            return {}
        same_key = [before[f"k{n}"].eqNullSafe(after[f"k{n}"]) for n in range(len(key))]
        differs = (~before["row"][name].eqNullSafe(after["row"][name]) for name in names)
        counts = before.join(after, same_key).agg(
            *(sf.count_if(each).alias(f"c{n}") for n, each in enumerate(differs))
        )
        row = counts.collect()[0]
        return {name: int(count) for name, count in zip(names, row, strict=True) if count}

    @property
    def columns(self) -> frozenset[str]:
        """Those that both sides have."""
        sides = [{*rows.columns} for rows in (self.added, self.removed) if rows is not None]
        return frozenset(set.intersection(*sides)) if sides else frozenset()

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same columns and rows."""
        columns = self.columns_added or self.columns_removed
        return not (self.problem or columns or self.rows_added or self.rows_removed)

    def changed_keys(self, key: Sequence[str]) -> int:
        """How many values of a key are among the added and among the removed rows: of rows that changed.

        Raises:
            QueryError: `UNRESOLVED_COLUMN`.
        """
        if self.added is None and self.removed is None:
            return 0
        for name in key:
            if name not in self.columns:
                hint = "columns: " + ", ".join(sorted(self.columns))
                raise QueryError("UNRESOLVED_COLUMN", f"{self.table} has no column {name}", hint=hint)
        if self.added is None or self.removed is None:
            return 0
        sides = [_frame(rows).select(*map(quoted, key)).distinct() for rows in (self.added, self.removed)]
        return int(sides[0].intersect(sides[1]).count())


def differences(
    store: Store,
    lake: LakeCatalog,
    session: SparkSession,
    old: int | str,
    new: int | str,
    tables: Collection[str] = (),
) -> Iterator[TableDifference]:
    """What differs between two published checkpoints, by name of the table; tables whose version is the same
    are left out, unless they are named.

    Args:
        old, new: numbers of checkpoints in any order, or ids of built plans: then what these built, and else
            the checkpoint at which they did. Both are pinned until the iterator ends.
        tables: names of tables, with or without catalog and database; none: all.

    Raises:
        CheckpointUnavailableError: one of them is no published checkpoint, or expired.
        MetaError: `DATASET_NOT_FOUND`, no table of either checkpoint has this name; `BUILD_NOT_FOUND`.
    """
    with ExitStack() as pins:
        builds = [store.builds.get(side) if isinstance(side, str) else None for side in (old, new)]
        numbers = [
            int(side) if build is None else build.base for side, build in zip((old, new), builds, strict=True)
        ]
        for number in numbers:
            pinned = store.reads.resolve(
                Consistency.STRONG, checkpoint=number, owner="diff", lease_ms=_LEASE_MS
            )
            pins.callback(store.pins.release, pinned.pin)
        sides = [
            store.reads.published_versions(number) | ({} if build is None else build.versions)
            for number, build in zip(numbers, builds, strict=True)
        ]
        known = {name for side in sides for name in side if not is_clock(name) and not is_file_table(name)}
        for name in _named(known, tables):
            before, after = (side.get(name) for side in sides)
            if before == after:
                if tables:
                    yield TableDifference(name)
                continue
            try:
                yield _difference(lake.load(name), session, before, after)
            except LakeError as problem:
                yield TableDifference(name, problem=problem)


def _named(known: Collection[TableName], names: Collection[str]) -> list[TableName]:
    if not names:
        return sorted(known)
    matching: list[TableName] = []
    for text in names:
        of_name = matching_tables(text, known)
        if not of_name:
            raise MetaError(
                "DATASET_NOT_FOUND",
                f"Neither checkpoint has a table {text}",
                hint=near_names_hint(text, known, "tables:", spellings=table_spellings),
            )
        matching += [name for name in of_name if name not in matching]
    return matching


def _difference(
    table: LakeTable, session: SparkSession, before: Version | None, after: Version | None
) -> TableDifference:
    if before is None or after is None:
        added = None if after is None else table.read(session, after)
        removed = None if before is None else table.read(session, before)
        return TableDifference(table.name, added, removed)
    delta = delta_of(table, session, before, after)
    rows_before: DataFrame = table.read(session, before)
    rows_after: DataFrame = table.read(session, after)
    columns = _new_columns(rows_before, rows_after), _new_columns(rows_after, rows_before)
    if delta.change is not None:
        # They have the columns of the newest version, which may be a later one.
        names = {*rows_before.columns, *rows_after.columns}
        added, removed = (_only(rows, names) for rows in (delta.change.added, delta.change.removed))
        return TableDifference(table.name, added, removed, *columns)
    return TableDifference(
        table.name, *consolidated(rows_after, _as(rows_before, rows_after)), *columns, reason=delta.reason
    )


def _one_row_a_key(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Keys of one row as `k0`, `k1` and so on, with that row."""
    keys = [sf.col(quoted(name)).alias(f"k{n}") for n, name in enumerate(key)]
    grouped = rows.select(*keys, sf.struct("*").alias("row")).groupBy(*(f"k{n}" for n in range(len(key))))
    alone = grouped.agg(sf.count("*").alias("copies"), sf.first("row").alias("row"))
    return alone.where("copies = 1").drop("copies")


def _is_comparable(before: DataType, after: DataType) -> bool:
    # Neither maps nor variants have an order or an equality of their own in Spark.
    return before == after and not {"map", "variant"} & {*re.split(r"\W+", after.simpleString())}


def _only(rows: Any, names: Collection[str]) -> Rows | None:
    return None if rows is None else rows.select(*(name for name in rows.columns if name in names))


def _new_columns(before: DataFrame, after: DataFrame) -> tuple[str, ...]:
    return tuple(name for name in after.columns if name not in before.columns)


def _as(rows: DataFrame, like: DataFrame) -> DataFrame:
    """Rows with the columns and types of others; a column that they lack is NULL, as is a value that does not
    fit."""
    present = set(rows.columns)
    return rows.select(
        *(
            (sf.col(quoted(field.name)) if field.name in present else sf.lit(None))
            .try_cast(field.dataType)
            .alias(field.name)
            for field in like.schema.fields
        )
    )


def _frame(rows: Any) -> DataFrame:
    if isinstance(rows, CollectedRows):
        return rows.as_frame()
    frame: DataFrame = rows
    return frame


def _count(rows: Any) -> int:
    if rows is None:
        return 0
    return len(rows) if isinstance(rows, CollectedRows) else int(rows.count())


def first_rows(rows: Any, limit: int) -> pa.Table:
    """Some of the rows, as Arrow."""
    if isinstance(rows, CollectedRows):
        return rows.toArrow().slice(0, limit)
    return rows.limit(limit).toArrow()
