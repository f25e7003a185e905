"""Where the rows with given keys are, found by this process: only the key columns of the data files that may
have them are read, by pyarrow, and of a file only the row groups whose statistics allow them. A Spark job for
a few keys would take ten times as long to plan.

What this cannot do (file formats other than Parquet, equality deletes, types that are compared otherwise,
many or large files) is left to a Spark query: the answer is the reason then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError

from tautochrone.iceberg.changes.changed_files import file_tasks
from tautochrone.iceberg.commits.staged_files import arrow_type
from tautochrone.iceberg.java.api import Iceberg, first_line
from tautochrone.iceberg.reads.data_files import (
    LeftToSpark,
    deleted_positions,
    names_by_id,
    open_parquet_file,
)
from tautochrone.model import limits
from tautochrone.model.lake import local_folder
from tautochrone.model.names import Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.translate.literals import key_ranges

__all__ = ["KeyPositions", "positions_of_keys"]

_PARQUET = "PARQUET"
_PRUNED_BY = ("int", "long", "string")
"""Types whose values Py4J passes as Java values that Iceberg compares with file statistics."""


@dataclass(frozen=True, slots=True)
class _KeyColumn:
    """A column of the key, as the table has it."""

    name: str
    field_id: int
    iceberg_type: str
    arrow_type: Any
    values: Any


@dataclass(frozen=True, slots=True)
class KeyPositions:
    """Where rows are.

    Attributes:
        by_file: data file → positions of rows in it.
        tasks: the Java scan task of each of these files.
    """

    by_file: Mapping[str, Sequence[int]]
    tasks: Mapping[str, Any]


def positions_of_keys(iceberg: Iceberg, table: Any, version: Version, keys: Any) -> KeyPositions | Reason:
    """The positions of the rows with these keys, without rows that are deleted already.

    Args:
        table: the Java table.
        keys: an Arrow table of the key's columns, by name. NULL equals NULL.

    Returns:
        A reason: why a Spark query must find them.
    """
    if not keys.num_rows:
        return KeyPositions({}, {})
    try:
        return _positions(iceberg, table, version, _key_columns(table, keys))
    except LeftToSpark as left:
        return left.reason


def _positions(iceberg: Iceberg, table: Any, version: Version, columns: Sequence[_KeyColumn]) -> KeyPositions:
    """
    Raises:
        LeftToSpark: a query must find them.
    """
    functions = iceberg.functions
    tasks = file_tasks(functions, table, version, condition=_condition(iceberg, columns))
    paths = functions.task_paths(tasks)
    if len(paths) > limits.MAX_DRIVER_LOOKUP_FILES:
        raise LeftToSpark(
            ReasonCode.KEYS_IN_MANY_FILES, files=len(paths), limit=limits.MAX_DRIVER_LOOKUP_FILES
        )
    if any(local_folder(path) is None for path in paths):
        file_bytes, limit = functions.task_bytes(tasks), limits.MAX_DRIVER_LOOKUP_REMOTE_BYTES
        if file_bytes > limit:
            raise LeftToSpark(ReasonCode.KEYS_IN_LARGE_REMOTE_FILES, bytes=file_bytes, limit=limit)
    finder = _Finder(columns)
    matches: dict[str, list[int]] = {}
    tasks_of_matches: dict[str, Any] = {}
    for number, path in enumerate(paths):
        try:
            with open_parquet_file(table, path) as file:
                positions = finder.positions(file, path)
            if positions:
                task = tasks_of_matches[path] = tasks.get(number)
                deleted = deleted_positions(iceberg, table, task, path)
                positions = [position for position in positions if position not in deleted]
        except (pa.ArrowException, OSError, Py4JError) as error:
            # Spark reads the file in its way, or says what is wrong with it.
            file_format = str(tasks.get(number).file().format())
            if file_format != _PARQUET:
                raise LeftToSpark(ReasonCode.FILE_FORMAT_OF_SPARK, format=file_format) from error
            raise LeftToSpark(ReasonCode.FILE_NOT_READ, file=path, text=first_line(error)) from error
        if positions:
            matches[path] = positions
    return KeyPositions(matches, tasks_of_matches)


def _key_columns(table: Any, keys: Any) -> list[_KeyColumn]:
    """
    Raises:
        LeftToSpark: the type of a column is not compared here.
    """
    fields, columns = table.schema().asStruct(), []
    for name in keys.column_names:
        field = fields.caseInsensitiveField(name)
        if field is None:
            raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_TABLE, column=name)
        iceberg_type = str(field.type())
        as_arrow = arrow_type(iceberg_type)
        if as_arrow is None:
            raise LeftToSpark(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=name, type=iceberg_type)
        try:
            values = _comparable(keys.column(name), as_arrow).combine_chunks()
        except pa.ArrowException as error:
            raise LeftToSpark(ReasonCode.VALUES_CAST_BY_SPARK, text=first_line(error)) from error
        field_id = int(field.fieldId())
        columns.append(_KeyColumn(str(field.name()), field_id, iceberg_type, as_arrow, values))
    return columns


def _condition(iceberg: Iceberg, columns: Sequence[_KeyColumn]) -> Any | None:
    """An Iceberg expression that all keys meet, for columns whose statistics can be compared."""
    expressions = iceberg.api.expressions.Expressions
    conjunction, disjunction = getattr(expressions, "and"), getattr(expressions, "or")
    condition = None
    for column in columns:
        values = column.values.drop_null()
        # A dot in a name stands for a nested column.
        if column.iceberg_type not in _PRUNED_BY or "." in column.name or not len(values):
            continue
        ranges = expressions.isNull(column.name) if column.values.null_count else None
        for low, high in _ranges(values):
            within = conjunction(
                expressions.greaterThanOrEqual(column.name, low),
                expressions.lessThanOrEqual(column.name, high),
            )
            ranges = within if ranges is None else disjunction(ranges, within)
        condition = ranges if condition is None else conjunction(condition, ranges)
    return condition


def _ranges(values: Any) -> list[tuple[Any, Any]]:
    """Ranges that contain all values."""
    if len(values) <= limits.MAX_DRIVER_ROWS:
        return key_ranges(sorted(values.to_pylist()))
    bounds = pc.min_max(values).as_py()
    return [(bounds["min"], bounds["max"])]


def _comparable(column: Any, arrow_type: Any) -> Any:
    """A column as this type, dates and times as numbers: Python's end in the year 9999."""
    column = column.cast(arrow_type)
    if pa.types.is_timestamp(arrow_type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(arrow_type) else column


class _Finder:
    """Finds rows with the keys in one file after the other."""

    def __init__(self, columns: Sequence[_KeyColumn]) -> None:
        self._columns = columns
        self._values = [column.values.unique() for column in columns]
        self._keys = (
            set(zip(*(column.values.to_pylist() for column in columns), strict=True))
            if len(columns) > 1
            else None
        )
        # Statistics are compared for types that Parquet orders as Python does.
        self._sorted = [
            sorted(values.drop_null().to_pylist()) if column.iceberg_type in _PRUNED_BY else None
            for column, values in zip(columns, self._values, strict=True)
        ]
        self._bytes_left = limits.MAX_DRIVER_LOOKUP_BYTES

    def positions(self, file: Any, path: str) -> list[int]:
        """
        Raises:
            LeftToSpark: the file has no ids of columns or not all of the key's columns, or is too large.
        """
        names = self._names(file, path)
        chunks = {
            number: _chunks(file.metadata.row_group(number), names)
            for number in range(file.metadata.num_row_groups)
        }
        groups = [number for number in chunks if self._may_have_keys(chunks[number])]
        self._bytes_left -= sum(chunk.total_uncompressed_size for n in groups for chunk in chunks[n])
        if self._bytes_left < 0:
            raise LeftToSpark(ReasonCode.KEY_COLUMNS_LARGE, limit=limits.MAX_DRIVER_LOOKUP_BYTES)
        positions: list[int] = []
        rows = [file.metadata.row_group(number).num_rows for number in chunks]
        first_of_group = [0, *accumulate(rows)]
        # One group after the other, so that the keys of a large file are never in memory all at once.
        for number in groups:
            in_group = self._positions_in(file.read_row_group(number, columns=names), names)
            positions += [first_of_group[number] + position for position in in_group]
        return positions

    def _may_have_keys(self, chunks: Sequence[Any]) -> bool:
        """Whether the statistics of a row group allow one of the keys in it."""
        for chunk, column, keys in zip(chunks, self._columns, self._sorted, strict=True):
            statistics = chunk.statistics
            if keys is None or column.values.null_count or statistics is None or not statistics.has_min_max:
                continue
            if not isinstance(statistics.min, type(keys[0])):
                # Another writer may have left out that bytes are a text.
                continue
            index = bisect_left(keys, statistics.min)
            if index == len(keys) or keys[index] > statistics.max:
                return False
        return True

    def _positions_in(self, group: Any, names: Sequence[str]) -> list[int]:
        """
        Args:
            group: rows of a file, as an Arrow table.
        """
        stored = [
            _comparable(group.column(name), column.arrow_type)
            for name, column in zip(names, self._columns, strict=True)
        ]
        matching = None
        for column, values in zip(stored, self._values, strict=True):
            is_in = pc.is_in(column, value_set=values)
            matching = is_in if matching is None else pc.and_(matching, is_in)
        positions = pc.indices_nonzero(matching)
        numbers: list[int] = positions.to_pylist()
        if self._keys is None or not numbers:
            return numbers
        rows = zip(*(column.take(positions).to_pylist() for column in stored), strict=True)
        return [number for number, row in zip(numbers, rows, strict=True) if row in self._keys]

    def _names(self, file: Any, path: str) -> list[str]:
        """The names that the key's columns have in the file: it may be older than a table's new names."""
        name_of_id = names_by_id(file)
        for column in self._columns:
            if column.field_id not in name_of_id:
                raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column.name, file=path)
        return [name_of_id[column.field_id] for column in self._columns]


def _chunks(row_group: Any, names: Sequence[str]) -> list[Any]:
    """The metadata of some columns of a row group, none of which is nested."""
    by_name = {chunk.path_in_schema: chunk for chunk in map(row_group.column, range(row_group.num_columns))}
    return [by_name[name] for name in names]
