"""Data files as this process reads them by pyarrow, and what of them it leaves to a Spark query.

A data file may be older than the table: columns have other names there, are missing, or have types that
Iceberg widened since. They are found by their ids, or, in a file that has none, by the names that the table's
mapping gives; then they become what Spark hands over as Arrow.

To count appended rows by the values of a column, only that column of the appended files is read, where a
Spark job would take a hundred times as long.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError

from tautochrone.iceberg.commits.staged_files import arrow_type
from tautochrone.iceberg.java.api import Iceberg, first_line, items
from tautochrone.model import limits
from tautochrone.model.lake import AppendedRows, Staged, local_folder
from tautochrone.model.names import Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "LeftToSpark",
    "TableColumn",
    "appended_rows",
    "columns_of_files",
    "deleted_positions",
    "names_by_id",
    "names_in_file",
    "open_parquet_file",
    "table_columns",
]


class LeftToSpark(Exception):  # noqa: N818
    """A Spark query must read the rows, for this reason."""

    def __init__(self, code: ReasonCode, **params: Any) -> None:
        super().__init__(code)
        self.reason = Reason.of(code, **params)


def deleted_positions(iceberg: Iceberg, table: Any, task: Any, path: str) -> set[int]:
    """The positions of the rows of a data file that are deleted.

    Args:
        table: the Java table.
        task: the Java scan task of the file.

    Raises:
        LeftToSpark: rows of the file are deleted by value, or very many are deleted.
        Py4JError: a delete file cannot be read.
    """
    deletes = items(task.deletes())
    if not deletes:
        return set()
    if any(str(delete.content()) == "EQUALITY_DELETES" for delete in deletes):
        raise LeftToSpark(ReasonCode.ROWS_DELETED_BY_VALUE, file=path)
    loader = iceberg.api.data.BaseDeleteLoader(iceberg.functions.input_files(table.io()))
    deleted = loader.loadPositionDeletes(task.deletes(), path)
    count, limit = int(deleted.cardinality()), limits.MAX_DELETION_VECTOR_POSITIONS
    if count > limit:
        raise LeftToSpark(ReasonCode.MANY_ROWS_DELETED, file=path, rows=count, limit=limit)
    return set(iceberg.functions.positions(deleted))


_FIELD_ID = b"PARQUET:field_id"
_NAME_MAPPING = "schema.name-mapping.default"
_UNIT = "us"


@contextlib.contextmanager
def open_parquet_file(table: Any, path: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a Java table. One that is not on this machine is fetched as a whole.

    Raises:
        OSError, ArrowException, Py4JError: it cannot be read.
    """
    local = local_folder(path)
    if local is not None:
        with pq.ParquetFile(local, memory_map=True, coerce_int96_timestamp_unit=_UNIT) as file:
            yield file
        return
    with contextlib.closing(table.io().newInputFile(path).newStream()) as stream:
        content = stream.readAllBytes()
    with pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit=_UNIT) as file:
        yield file


def names_by_id(file: pq.ParquetFile) -> dict[int, str]:
    """The names of a file's columns by the ids of the table's columns. They may be older than the table's."""
    ids = ((_id_of(field), field.name) for field in file.schema_arrow)
    return {field_id: name for field_id, name in ids if field_id is not None}


_FLOATS = {"float": pa.float32(), "double": pa.float64()}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        iceberg_type: as Iceberg's JSON spells it.
        arrow_type: what `toArrow` of a DataFrame gives.
        has_default: rows of files without the column have a value in it.
        names_without_ids: what files call it that have no ids; None: the table has no mapping of names.
    """

    name: str
    field_id: int
    iceberg_type: Any
    arrow_type: Any
    has_default: bool
    names_without_ids: tuple[str, ...] | None = None


def table_columns(iceberg: Iceberg, table: Any) -> list[TableColumn]:
    """
    Args:
        table: the Java table.

    Raises:
        LeftToSpark: of a column's type.
    """
    columns = []
    mapping = table.properties().get(_NAME_MAPPING)
    mapped = {entry.get("field-id"): tuple(entry["names"]) for entry in json.loads(mapping or "[]")}
    for column in json.loads(str(iceberg.api.SchemaParser.toJson(table.schema())))["fields"]:
        try:
            as_arrow = _arrow_type(column["type"])
        except KeyError as error:
            raise LeftToSpark(
                ReasonCode.COLUMN_READ_BY_SPARK, column=column["name"], source=str(table.name())
            ) from error
        has_default = column.get("initial-default") is not None
        names = None if mapping is None else mapped.get(column["id"], ())
        columns.append(
            TableColumn(column["name"], column["id"], column["type"], as_arrow, has_default, names)
        )
    return columns


def names_in_file(columns: Sequence[TableColumn], file: Any, path: str) -> list[str | None]:
    """The names that the table's columns have in a Parquet file; None: it is NULL in all rows.

    Raises:
        LeftToSpark: Spark reads a column in another way, or the file has no ids of columns.
    """
    fields = {_id_of(field): field for field in file.schema_arrow}
    is_mapped = fields.keys() == {None} and all(c.names_without_ids is not None for c in columns)
    if is_mapped:
        by_name = {field.name: field for field in file.schema_arrow}
        fields = {
            column.field_id: by_name[name]
            for column in columns
            for name in column.names_without_ids or ()
            if name in by_name
        }
    names: list[str | None] = []
    for column in columns:
        field = fields.get(column.field_id)
        if field is None:
            # Without ids and without a mapping it is unknown which column is which.
            if None in fields or column.has_default:
                raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column.name, file=path)
            names.append(None)
        elif _is_read_alike(field.type, column.iceberg_type) or (
            column.iceberg_type == "timestamptz" and _is_int96(file, field.name)
        ):
            names.append(field.name)
        else:
            raise LeftToSpark(ReasonCode.COLUMN_READ_BY_SPARK, column=column.name, source=path)
    return names


def _is_int96(file: Any, name: str) -> bool:
    """Whether a column has the times that Spark writes unless it is told otherwise. They are in UTC."""
    columns = (file.schema.column(number) for number in range(len(file.schema)))
    return any(column.path == name and column.physical_type == "INT96" for column in columns)


def _id_of(field: pa.Field) -> int | None:
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _arrow_type(iceberg_type: Any) -> Any:
    """
    Raises:
        KeyError: Spark reads the type in a way of its own.
    """
    if isinstance(iceberg_type, str):
        if iceberg_type.startswith("fixed["):
            return pa.binary()
        return arrow_type(iceberg_type) or _FLOATS[iceberg_type]
    if iceberg_type["type"] == "struct":
        return pa.struct(
            [
                pa.field(field["name"], _arrow_type(field["type"]), nullable=not field["required"])
                for field in iceberg_type["fields"]
            ]
        )
    if iceberg_type["type"] == "list":
        element = _arrow_type(iceberg_type["element"])
        return pa.list_(pa.field("element", element, nullable=not iceberg_type["element-required"]))
    value = _arrow_type(iceberg_type["value"])
    return pa.map_(
        pa.field("key", _arrow_type(iceberg_type["key"]), nullable=False),
        pa.field("value", value, nullable=not iceberg_type["value-required"]),
    )


def _is_read_alike(stored: pa.DataType, iceberg_type: Any) -> bool:
    """Whether a cast of what a file has is what Spark reads of it."""
    if isinstance(iceberg_type, str):
        return _is_widened(stored, iceberg_type)
    if iceberg_type["type"] == "struct":
        # Fields that came or have other names since are left to Spark.
        return (
            pa.types.is_struct(stored)
            and len(stored) == len(iceberg_type["fields"])
            and all(
                _is_child(stored.field(index), field["id"], field["type"], field["name"])
                for index, field in enumerate(iceberg_type["fields"])
            )
        )
    if iceberg_type["type"] == "list":
        return _is_list(stored) and _is_child(
            stored.value_field, iceberg_type["element-id"], iceberg_type["element"]
        )
    return (
        pa.types.is_map(stored)
        and _is_child(stored.key_field, iceberg_type["key-id"], iceberg_type["key"])
        and _is_child(stored.item_field, iceberg_type["value-id"], iceberg_type["value"])
    )


def _is_list(stored: pa.DataType) -> bool:
    return bool(pa.types.is_list(stored) or pa.types.is_large_list(stored))


def _is_child(field: pa.Field, field_id: int, iceberg_type: Any, name: str | None = None) -> bool:
    is_same = _id_of(field) == field_id and name in (None, field.name)
    return is_same and _is_read_alike(field.type, iceberg_type)


def _is_widened(stored: pa.DataType, iceberg_type: str) -> bool:
    types = pa.types
    if types.is_dictionary(stored):
        stored = stored.value_type
    if iceberg_type in ("int", "long"):
        sizes = (types.is_int8, types.is_int16, types.is_int32, types.is_int64)
        return any(is_size(stored) for is_size in sizes[: 3 if iceberg_type == "int" else 4])
    if iceberg_type == "double":
        return bool(types.is_float64(stored) or types.is_float32(stored))
    if iceberg_type == "string":
        return bool(types.is_string(stored) or types.is_large_string(stored))
    if iceberg_type == "binary":
        return bool(types.is_binary(stored) or types.is_large_binary(stored))
    if iceberg_type.startswith("fixed["):
        return bool(types.is_fixed_size_binary(stored))
    target = _arrow_type(iceberg_type)
    if types.is_decimal(target):
        return bool(
            types.is_decimal(stored) and stored.scale == target.scale and stored.precision <= target.precision
        )
    if types.is_timestamp(target):
        is_precise = types.is_timestamp(stored) and stored.unit == "us"
        return bool(is_precise and (stored.tz is None) == (target.tz is None))
    return bool(stored == target)


def columns_of_files(
    iceberg: Iceberg, table: Any, staged: Staged, names: Sequence[str]
) -> list[pa.Table] | Reason:
    """See `model.lake.LakeTable.columns_of`.

    Args:
        table: the Java table.
    """
    try:
        by_name = {column.name.lower(): column for column in table_columns(iceberg, table)}
        columns = []
        for name in names:
            if name.lower() not in by_name:
                return Reason.of(ReasonCode.KEY_COLUMN_NOT_IN_TABLE, column=name)
            columns.append(by_name[name.lower()])
        return [_columns_of(table, str(file.location()), columns) for file in staged.files]
    except LeftToSpark as left:
        return left.reason


def _columns_of(table: Any, path: str, columns: Sequence[TableColumn]) -> pa.Table:
    """
    Raises:
        LeftToSpark: Spark must read the file.
    """
    try:
        with open_parquet_file(table, path) as file:
            names = names_in_file(columns, file, path)
            for name, column in zip(names, columns, strict=True):
                if name is None:
                    raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column.name, file=path)
            rows = file.read(columns=names)
    except (pa.ArrowException, OSError, Py4JError) as error:
        raise LeftToSpark(ReasonCode.FILE_NOT_READ, file=path, text=first_line(error)) from error
    return pa.table(
        {column.name: rows[name].cast(column.arrow_type) for name, column in zip(names, columns, strict=True)}
    )


_BATCH_ROWS = 10_000


def appended_rows(
    iceberg: Iceberg, table: Any, old: Version, new: Version, column: str, max_bytes: int
) -> AppendedRows | Reason:
    """See `model.lake.LakeTable.appended_rows`.

    Args:
        table: the Java table; between the versions rows were only appended to it.
    """
    functions = iceberg.functions
    scan = table.newIncrementalAppendScan().fromSnapshotExclusive(int(old)).toSnapshot(int(new))
    with contextlib.closing(scan.planWith(functions.this_thread).planFiles()) as tasks:
        paths = functions.task_paths(functions.tasks(tasks, None))
    field = table.schema().findField(column)
    if field is None:
        return Reason.of(ReasonCode.KEY_COLUMN_NOT_IN_TABLE, column=column)
    field_id = int(field.fieldId())
    counts: Counter[Any] = Counter()
    size = 0 if max_bytes else None
    for path in paths:
        if local_folder(path) is None:
            return Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location=path.rpartition("/")[0])
        try:
            with open_parquet_file(table, path) as file:
                name = names_by_id(file).get(field_id)
                if name is None:
                    return Reason.of(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column, file=path)
                for entry in pc.value_counts(file.read(columns=[name]).column(name)).to_pylist():
                    counts[entry["values"]] += entry["counts"]
                size = None if size is None else _size(file, size, max_bytes)
        except (pa.ArrowException, OSError, Py4JError) as error:
            # Spark reads the file in its way, or says what is wrong with it.
            return Reason.of(ReasonCode.FILE_NOT_READ, file=path, text=first_line(error))
    return AppendedRows(counts, size)


def _size(file: Any, size: int, max_bytes: int) -> int | None:
    """The size with the bytes of a file's rows in memory; None: it is above `max_bytes`. The file does not
    tell: a value may be stored once and occur often."""
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        size += batch.nbytes
        if size > max_bytes:
            return None
    return size
