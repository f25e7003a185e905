"""Putting a view's change into its table: finding the rows to remove, checking, one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row

from tautochrone.errors import RefreshError
from tautochrone.model import limits
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.model.names import TableName, quoted
from tautochrone.spark.execute.engine import are_few
from tautochrone.spark.translate.literals import has_literals, literals

__all__ = ["find_rows"]

_ROW, _COPIES, _EXACT = "__taut_row", "__taut_copies", "__taut_exact"
_STORED, _REMOVED = "__taut_stored", "__taut_removed"
_TOLERANCE = 1e-9


def find_rows(
    stored: DataFrame, table: TableName, deletes: DataFrame, *, stored_rows: int | None, few: bool
) -> Mapping[str, Sequence[int]]:
    """Where the rows to remove are: data file → positions, one per copy.

    A row is found by all of its values, as in `GROUP BY`, floats also when they are off by rounding. Values
    of a few columns go into the read as literals, so that files without them are not opened.

    Args:
        stored: the view's rows with file and position.
        deletes: rows of the view, one per copy.
        stored_rows: how many rows the view has; None when nobody knows.
        few: the rows to remove are on the driver; they are compared there and sent to every task.

    Raises:
        RefreshError: `REFRESH_INCONSISTENT`, the view does not hold a row that it should lose.
    """
    rows = deletes.collect() if few else []
    if few and not rows:
        return {}
    one_task = few and are_few(stored_rows)
    session = stored.sparkSession
    stored.createOrReplaceTempView(_STORED)
    deletes.createOrReplaceTempView(_REMOVED)
    try:
        matches = session.sql(_query(deletes.dtypes, rows, few=few, one_task=one_task)).collect()
    finally:
        session.catalog.dropTempView(_STORED)
        session.catalog.dropTempView(_REMOVED)
    positions_by_file = _assigned(matches)
    matched_count = sum(len(positions) for positions in positions_by_file.values())
    count = len(rows) if few else deletes.count()
    if matched_count != count:
        raise RefreshError(
            "REFRESH_INCONSISTENT",
            f"{table} should lose {count} rows and holds only {matched_count} of them",
            hint="its old version stays; rebuild it with --full-refresh, and please report the query",
            sqlstate="XX000",
        )
    return positions_by_file


def _query(kinds: Sequence[tuple[str, str]], rows: Sequence[Row], *, few: bool, one_task: bool) -> str:
    """The query that finds the rows, as one text: with DataFrames Spark would analyse every step."""
    indexes = range(len(kinds))
    names = [quoted(name) for name, _ in kinds]
    floats = [kind in ("double", "float") for _, kind in kinds]
    conditions = [f"({condition})" for condition in _literals(kinds, rows)] or ["true"]
    coalesce = "/*+ COALESCE(1) */" if one_task else ""
    join = "/*+ SHUFFLE_HASH(w) */" if one_task and not all(floats) else "/*+ BROADCAST(w) */" if few else ""
    equal = [f"s.h{i} <=> w.k{i}" for i in indexes]
    same = [_close(f"s.h{i}", f"w.k{i}") if floats[i] else equal[i] for i in indexes]
    stored = ", ".join(f"{name} AS h{i}" for i, name in enumerate(names))
    key_columns = ", ".join(f"k{i}" for i in indexes)
    removed = ", ".join(f"{name} AS k{i}" for i, name in enumerate(names))
    return f"""
        SELECT {join} {_ROW}, {_COPIES}, {" AND ".join(equal)} AS {_EXACT}, {FILE_COLUMN}, {POSITION_COLUMN}
        FROM (
            SELECT {coalesce} {stored}, {FILE_COLUMN}, {POSITION_COLUMN}
            FROM {_STORED} WHERE {" AND ".join(conditions)}
        ) s
        JOIN (
            SELECT *, monotonically_increasing_id() AS {_ROW} FROM (
                SELECT {key_columns}, count(1) AS {_COPIES}
                FROM (SELECT {coalesce} {removed} FROM {_REMOVED}) GROUP BY {key_columns}
            )
        ) w ON {" AND ".join(same)}
    """


def _close(left: str, right: str) -> str:
    """Equal, or as near as sums of floats in another order may be."""
    near = f"abs({left} - {right}) <= {_TOLERANCE}D * greatest(abs({left}), abs({right}))"
    return f"({left} <=> {right} OR coalesce({near}, false))"


def _assigned(matches: Sequence[Row]) -> dict[str, list[int]]:
    """One stored copy for each row to remove, exact ones first."""
    missing_copies: dict[int, int] = {}
    assigned: set[tuple[str, int]] = set()
    positions_by_file: dict[str, list[int]] = {}
    for row in sorted(matches, key=lambda row: (not row[_EXACT], row[FILE_COLUMN], row[POSITION_COLUMN])):
        position = row[FILE_COLUMN], row[POSITION_COLUMN]
        missing = missing_copies.setdefault(row[_ROW], row[_COPIES])
        if missing and position not in assigned:
            missing_copies[row[_ROW]] = missing - 1
            assigned.add(position)
            positions_by_file.setdefault(row[FILE_COLUMN], []).append(row[POSITION_COLUMN])
    return positions_by_file


def _literals(kinds: Sequence[tuple[str, str]], rows: Sequence[Row]) -> list[str]:
    """Conditions `column IN (…)` for the columns that tell the rows apart best."""
    candidates = []
    for i, (name, kind) in enumerate(kinds):
        if not rows or not has_literals(kind) or kind == "timestamp":
            continue
        values = {row[i] for row in rows}
        if len(values) <= limits.MAX_IN_LIST_VALUES:
            candidates.append((len(values), quoted(name), kind, values))
    candidates.sort(key=lambda entry: entry[0], reverse=True)
    return [_in(name, kind, values) for _, name, kind, values in candidates[: limits.MAX_PRUNING_COLUMNS]]


def _in(name: str, kind: str, values: set[Any]) -> str:
    texts = literals(values, kind)
    parts = [f"{name} IN ({texts})"] if texts else []
    if None in values:
        parts.append(f"{name} IS NULL")
    return " OR ".join(parts)
