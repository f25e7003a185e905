"""Putting a view's change into its table: finding the rows to remove, checking, one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from tautochrone.errors import RefreshError
from tautochrone.model.names import TableName, quoted
from tautochrone.spark.engine import are_few
from tautochrone.spark.literals import LITERALS, literals, suits

__all__ = ["find_rows"]

_PRUNING_COLUMNS = 3
_ROW, _GONE, _EXACT = "__taut_row", "__taut_gone", "__taut_exact"
_TOLERANCE = 1e-9


def find_rows(
    stored: DataFrame, table: TableName, deletes: DataFrame, *, stored_rows: int | None, few: bool
) -> Mapping[str, Sequence[int]]:
    """Where the rows to remove are: data file → positions, one per copy.

    A row is found by all of its values, as in `GROUP BY`, floats also when they are off by rounding. Values
    of a few columns go into the read as literals, so that files without them are not opened.

    Args:
        stored: the view's rows with `_file` and `_pos`.
        deletes: rows of the view, one per copy.
        stored_rows: how many rows the view has; None when nobody knows.
        few: those to remove are held on the driver, which looks at them and sends them to every task.

    Raises:
        RefreshError: `REFRESH_INCONSISTENT`, the view does not hold a row that it should lose.
    """
    names = deletes.columns
    rows = deletes.collect() if few else []
    if few and not rows:
        return {}
    for condition in _literals(deletes, rows):
        stored = stored.where(condition)
    stored_names = [f"__taut_stored_{place}" for place in range(len(names))]
    stored = stored.toDF(*stored_names, "_file", "_pos")
    one_task = few and are_few(stored_rows)
    if one_task:
        stored, deletes = stored.coalesce(1), deletes.coalesce(1)
    wanted = deletes.groupBy(*map(quoted, names)).agg(sf.count(sf.lit(1)).alias(_GONE))
    keys = [f"__taut_{place}" for place in range(len(names))]
    renamed = wanted.toDF(*keys, _GONE).withColumn(_ROW, sf.monotonically_increasing_id())
    same, exact = sf.lit(True), sf.lit(True)
    floats = [kind in ("double", "float") for _, kind in deletes.dtypes]
    for key, name, inexact in zip(keys, stored_names, floats, strict=True):
        wants, has = renamed[key], stored[name]
        exact = exact & has.eqNullSafe(wants)
        same = same & (_close(has, wants) if inexact else has.eqNullSafe(wants))
    if one_task and not all(floats):
        renamed = renamed.hint("shuffle_hash")
    elif few:
        renamed = renamed.hint("broadcast")
    found = (
        stored.join(renamed, same, "inner")
        .select(_ROW, _GONE, exact.alias(_EXACT), "_file", "_pos")
        .collect()
    )
    places = _assigned(found)
    held = sum(len(positions) for positions in places.values())
    count = len(rows) if few else deletes.count()
    if held != count:
        raise RefreshError(
            "REFRESH_INCONSISTENT",
            f"{table} should lose {count} rows and holds only {held} of them",
            hint="its old version stays; rebuild it with --full-refresh, and please report the query",
            sqlstate="XX000",
        )
    return places


def _close(ours: Column, theirs: Column) -> Column:
    """Equal, or as near as sums of floats in another order may be."""
    near = sf.abs(ours - theirs) <= sf.lit(_TOLERANCE) * sf.greatest(sf.abs(ours), sf.abs(theirs))
    return ours.eqNullSafe(theirs) | sf.coalesce(near, sf.lit(False))


def _assigned(found: Sequence[Row]) -> dict[str, list[int]]:
    """One stored copy for each row to remove, exact ones first."""
    left: dict[int, int] = {}
    taken: set[tuple[str, int]] = set()
    places: dict[str, list[int]] = {}
    for row in sorted(found, key=lambda row: (not row[_EXACT], row["_file"], row["_pos"])):
        place = row["_file"], row["_pos"]
        missing = left.setdefault(row[_ROW], row[_GONE])
        if missing and place not in taken:
            left[row[_ROW]] = missing - 1
            taken.add(place)
            places.setdefault(row["_file"], []).append(row["_pos"])
    return places


def _literals(deletes: DataFrame, rows: Sequence[Row]) -> list[str]:
    """Conditions `column IN (…)` for the columns that tell the rows apart best."""
    found = []
    for place, (name, kind) in enumerate(deletes.dtypes):
        if not rows or not suits(kind) or kind == "timestamp":
            continue
        values = {row[place] for row in rows}
        if len(values) <= LITERALS:
            found.append((len(values), quoted(name), kind, values))
    found.sort(key=lambda entry: entry[0], reverse=True)
    return [_in(name, kind, values) for _, name, kind, values in found[:_PRUNING_COLUMNS]]


def _in(name: str, kind: str, values: set[Any]) -> str:
    texts = literals(values, kind)
    parts = [f"{name} IN ({texts})"] if texts else []
    if None in values:
        parts.append(f"{name} IS NULL")
    return " OR ".join(parts)
