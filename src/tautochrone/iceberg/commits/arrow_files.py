"""Writes rows that this process has as an Arrow table into a data file, by pyarrow: without a Spark job, and
without turning each value into one of Spark's first.

Iceberg itself reads the column statistics from the file's footer. Tables on other storage than this
machine's, encrypted ones, and those with partitions or settings of their own for Parquet are left to Spark.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.durable import local_folder
from tautochrone.model.lake import Staged
from tautochrone.model.names import TableName

__all__ = ["fitting_rows", "write_rows"]

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us"),
    "binary": pa.binary(),
}
_PARQUET_SETTINGS = "write.parquet."
_CODEC = f"{_PARQUET_SETTINGS}compression-codec"
_DEFAULT_CODEC = "zstd"
_CODECS = ("zstd", "snappy", "gzip")
_ENCRYPTION = "encryption."


def fitting_rows(iceberg: Iceberg, table: Any, rows: Any) -> Any | None:
    """The rows with the types and field ids of the Java `table`; None: Spark must write them."""
    properties = table.properties()
    names = set(iceberg.functions.texts(properties.keySet()))
    settings = {name for name in names if name.startswith(_PARQUET_SETTINGS)} - {_CODEC}
    if (
        local_folder(_new_location(table)) is None
        or any(name.startswith(_ENCRYPTION) for name in names)
        or not table.spec().isUnpartitioned()
        or settings
        or _codec(table) not in _CODECS
        or str(properties.getOrDefault("write.format.default", "parquet")) != "parquet"
    ):
        return None
    columns = json.loads(str(iceberg.api.SchemaParser.toJson(table.schema())))["fields"]
    if {column["name"] for column in columns} != set(rows.column_names):
        return None
    try:
        schema = pa.schema([_field(column) for column in columns])
        return rows.select(schema.names).cast(schema)
    except (KeyError, ValueError, pa.ArrowException):
        # A type that is not written here, or values that it does not have.
        return None


def write_rows(name: TableName, iceberg: Iceberg, table: Any, rows: Any) -> Staged:
    """Write `fitting_rows` as one data file that belongs to no snapshot yet."""
    at_ms = time.time_ns() // 1_000_000
    location = _new_location(table)
    path = local_folder(location)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pq.write_table(rows, path, compression=_codec(table))
        file = _data_file(iceberg, table, location, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Staged(table=name, files=[file], rows=rows.num_rows, at_ms=at_ms)


def _new_location(table: Any) -> str:
    """Of a data file. It is below `write.data.path`, if the table has that."""
    return str(table.locationProvider().newDataLocation(f"00000-0-{uuid.uuid4()}.parquet"))


def _codec(table: Any) -> str:
    return str(table.properties().getOrDefault(_CODEC, _DEFAULT_CODEC))


def _data_file(iceberg: Iceberg, table: Any, location: str, path: Path) -> Any:
    metrics = iceberg.api.parquet.ParquetUtil.fileMetrics(
        table.io().newInputFile(location), iceberg.api.MetricsConfig.forTable(table)
    )
    builder = iceberg.api.DataFiles.builder(table.spec()).withPath(location)
    builder = builder.withFormat(iceberg.api.FileFormat.PARQUET).withMetrics(metrics)
    return builder.withFileSizeInBytes(path.stat().st_size).build()


def _field(column: Mapping[str, Any]) -> Any:
    """
    Raises:
        KeyError: the column's type is not written here.
    """
    return _numbered(column["name"], column["id"], column["type"], is_required=column["required"])


def _numbered(name: str, field_id: int, iceberg_type: Any, *, is_required: bool) -> Any:
    metadata = {"PARQUET:field_id": str(field_id)}
    return pa.field(name, _arrow_type(iceberg_type), nullable=not is_required, metadata=metadata)


def _arrow_type(iceberg_type: Any) -> Any:
    if isinstance(iceberg_type, str):
        return _TYPES[iceberg_type]
    if iceberg_type["type"] == "list":
        is_required = iceberg_type["element-required"]
        return pa.list_(
            _numbered("element", iceberg_type["element-id"], iceberg_type["element"], is_required=is_required)
        )
    if iceberg_type["type"] == "map":
        is_required = iceberg_type["value-required"]
        return pa.map_(
            _numbered("key", iceberg_type["key-id"], iceberg_type["key"], is_required=True),
            _numbered("value", iceberg_type["value-id"], iceberg_type["value"], is_required=is_required),
        )
    raise KeyError(iceberg_type["type"])
