"""Data files that do not belong to a snapshot yet: Spark writes them, or this process or Spark's tasks do by
pyarrow.

A row that goes from Python to the JVM is turned into one of Spark's first, and value by value into columns
again; maps take most of that time. So rows that are in Arrow are written by pyarrow where it may write a
table's files: only the names of the written files go to the driver, and Iceberg itself reads the column
statistics from their footers. Tables on other storage than this machine's, encrypted ones, and those with
partitions or settings of their own for Parquet are left to Spark.

A task that Spark repeats writes a file of its own, and the driver takes the files of the task that counted.
Files of the others belong to no version: they are removed with other orphans.
"""

from __future__ import annotations

import glob
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError

from tautochrone.iceberg.commits.compare_and_set import staged_at_ms
from tautochrone.iceberg.java.api import Iceberg, first_line, items, java_error_class
from tautochrone.iceberg.java.calls import iceberg_calls, written_files
from tautochrone.model.lake import Rows, Staged, local_folder
from tautochrone.model.lake import TaskWriter as WritesInTasks
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.jvm.catalyst import decimal_digits

__all__ = [
    "TaskWriter",
    "arrow_obstacle",
    "arrow_type",
    "files_by_name",
    "files_taken",
    "fitting_rows",
    "local_rows",
    "spec_without_partitions",
    "stage_task_files",
    "task_writer",
    "write_files",
    "write_locally",
    "write_rows",
]


_DISTRIBUTION = "write.distribution-mode"


def write_files(
    iceberg: Iceberg, name: TableName, table: Any, rows: Rows, *, is_observed: bool = False
) -> Staged:
    """Let Spark write `rows` as data files of the Java `table`, without a commit.

    Iceberg's own compaction works the same way: the table is registered under a key, the write names the
    key instead of a table, and a coordinator on the driver collects the written files. It works in any
    session, whatever its catalogs are, and never accesses the catalog.

    With `is_observed` each row is computed once; see `model.lake.LakeTable.stage`.
    """
    group, at_ms = str(uuid.uuid4()), staged_at_ms(table)
    iceberg.activate(rows.sparkSession)
    cache = iceberg.table_cache()
    coordinator = iceberg.api.spark.FileRewriteCoordinator.get()
    cache.add(group, table)
    try:
        # Fan-out: rows arrive in any order, a clustered writer would refuse the second partition.
        write = rows.write.format("iceberg").mode("append").option("fanout-enabled", "true")
        if is_observed and str(table.properties().get(_DISTRIBUTION)) != "none":
            # Iceberg's default but for sorted tables: ranges need a sample, for which all rows are computed.
            write = write.option("distribution-mode", "hash" if table.spec().isPartitioned() else "none")
        write.save(group)
        try:
            files = items(coordinator.fetchNewFiles(table, group))
        except Py4JJavaError as error:
            # Spark skipped the write of a relation that it knew to be empty.
            if not java_error_class(error).endswith("ValidationException"):
                raise
            files = []
    finally:
        cache.remove(group)
        coordinator.clearRewrite(table, group)
    return _staged(name, files, at_ms)


def local_rows(table: Any, rows: Rows) -> Any | None:
    """The rows as a Java list if they are a local relation that can be written unchanged, else None."""
    return iceberg_calls().localRows(table, rows._jdf)  # noqa: SLF001


def write_locally(name: TableName, table: Any, rows: Rows, data: Any) -> Staged:
    """Write the `data` of `rows` in this thread, with the writer that Spark's tasks use.

    Types, partitions, statistics and table properties are treated as in any other write. It saves the Spark
    job, which takes most of the time of a small write.
    """
    at_ms = staged_at_ms(table)
    if data.isEmpty():
        return _staged(name, [], at_ms)
    session, schema = rows.sparkSession._jsparkSession, rows._jdf.schema()  # noqa: SLF001
    files = written_files(str(iceberg_calls().write(session, table, schema, data, str(uuid.uuid4()))))
    return Staged(
        table=name, files=[file for file, _ in files], rows=sum(count for _, count in files), at_ms=at_ms
    )


def _staged(name: TableName, files: list[Any], at_ms: int) -> Staged:
    return Staged(table=name, files=files, rows=sum(int(file.recordCount()) for file in files), at_ms=at_ms)


# -- rows in Arrow ---------------------------------------------------------------------------------


_ARROW_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us"),
    "binary": pa.binary(),
}


def arrow_type(iceberg_type: str) -> Any | None:
    """Of a type without fields, as Iceberg's JSON spells it; None: this process neither reads nor writes it.

    Floating-point numbers are not among them: to Spark all NaN are equal, and so are 0.0 and -0.0.

    >>> arrow_type("decimal(12, 2)")
    Decimal128Type(decimal128(12, 2))
    >>> arrow_type("double") is None
    True
    """
    digits = decimal_digits(iceberg_type)
    return _ARROW_TYPES.get(iceberg_type) if digits is None else pa.decimal128(*digits)


_PARQUET_SETTINGS = "write.parquet."
_CODEC = f"{_PARQUET_SETTINGS}compression-codec"
_DEFAULT_CODEC = "zstd"
_CODECS = ("zstd", "snappy", "gzip")
_ENCRYPTION = "encryption."
_FORMAT, _PARQUET = "write.format.default", "parquet"


def fitting_rows(iceberg: Iceberg, table: Any, rows: Any) -> Any | Reason:
    """The rows with the types and field ids of the Java `table`; or why Spark must write them."""
    schema = _schema(iceberg, table)
    if isinstance(schema, Reason):
        return schema
    if set(schema.names) != set(rows.column_names):
        return Reason.of(ReasonCode.COLUMNS_OF_ROWS_DIFFER)
    try:
        return rows.select(schema.names).cast(schema)
    except (ValueError, pa.ArrowException) as error:
        return Reason.of(ReasonCode.VALUES_CAST_BY_SPARK, text=first_line(error))


def arrow_obstacle(iceberg: Iceberg, table: Any) -> Reason | None:
    """Why Spark must write all data files of the Java `table`."""
    schema = _schema(iceberg, table)
    return schema if isinstance(schema, Reason) else None


def _schema(iceberg: Iceberg, table: Any) -> pa.Schema | Reason:
    """What rows of a table are in Arrow; or why only Spark writes them."""
    left_to_spark = _left_to_spark(iceberg, table)
    if left_to_spark is not None:
        return left_to_spark
    fields = []
    for column in json.loads(str(iceberg.api.SchemaParser.toJson(table.schema())))["fields"]:
        try:
            fields.append(_field(column))
        except KeyError:
            return Reason.of(ReasonCode.COLUMN_WRITTEN_BY_SPARK, column=column["name"])
    return pa.schema(fields)


def _left_to_spark(iceberg: Iceberg, table: Any) -> Reason | None:
    """What of a table, other than its columns, only Spark writes."""
    properties = table.properties()
    names = set(iceberg.functions.texts(properties.keySet()))
    location = _new_location(table)
    if local_folder(location) is None:
        return Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location=location.rpartition("/")[0])
    encryption = sorted(name for name in names if name.startswith(_ENCRYPTION))
    if encryption:
        return Reason.of(ReasonCode.TABLE_ENCRYPTED, property=encryption[0])
    if not table.spec().isUnpartitioned():
        return Reason.of(ReasonCode.TABLE_PARTITIONED)
    file_format = str(properties.getOrDefault(_FORMAT, _PARQUET)).lower()
    if file_format != _PARQUET:
        return Reason.of(ReasonCode.FILE_FORMAT_OF_SPARK, format=file_format)
    settings = {name for name in names if name.startswith(_PARQUET_SETTINGS)} - {_CODEC}
    if _codec_of(table) not in _CODECS:
        settings.add(_CODEC)
    return Reason.of(ReasonCode.PARQUET_SETTINGS, settings=sorted(settings)) if settings else None


def write_rows(iceberg: Iceberg, name: TableName, table: Any, rows: Any) -> Staged:
    """Write `fitting_rows` as one data file that belongs to no snapshot yet; none without rows."""
    at_ms = staged_at_ms(table)
    if not rows.num_rows:
        return _staged(name, [], at_ms)
    location = _new_location(table)
    path = local_folder(location)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # As Iceberg's specification says of decimals of up to 18 digits.
        pq.write_table(rows, path, compression=_codec_of(table), store_decimal_as_integer=True)
        file = _data_file(iceberg, table, location, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return _staged(name, [file], at_ms)


def _new_location(table: Any) -> str:
    """Of a data file. It is below `write.data.path`, if the table has that."""
    return str(table.locationProvider().newDataLocation(f"00000-0-{uuid.uuid4()}.parquet"))


def _codec_of(table: Any) -> str:
    """With which data files are compressed."""
    return str(table.properties().getOrDefault(_CODEC, _DEFAULT_CODEC))


def _data_file(iceberg: Iceberg, table: Any, location: str, path: Path) -> Any:
    """Iceberg's description of a file that was written for no partition. Its statistics are read from the
    footer."""
    metrics = iceberg.api.parquet.ParquetUtil.fileMetrics(
        table.io().newInputFile(location), iceberg.api.MetricsConfig.forTable(table)
    )
    spec = spec_without_partitions(table)
    assert spec is not None
    builder = iceberg.api.DataFiles.builder(spec).withPath(location)
    builder = builder.withFormat(iceberg.api.FileFormat.PARQUET).withMetrics(metrics)
    return builder.withFileSizeInBytes(path.stat().st_size).build()


def spec_without_partitions(table: Any) -> Any | None:
    """The Java PartitionSpec of files that were written for no partition; None: the table never had one. It
    may have got partitions since: as a file of these, a file would have NULL in their columns."""
    specs = [table.spec(), *table.specs().values()]
    return next((spec for spec in specs if spec.isUnpartitioned()), None)


def _field(column: Mapping[str, Any]) -> Any:
    """
    Raises:
        KeyError: the column's type is not written here.
    """
    return _numbered(column["name"], column["id"], column["type"], is_required=column["required"])


def _numbered(name: str, field_id: int, iceberg_type: Any, *, is_required: bool) -> Any:
    metadata = {"PARQUET:field_id": str(field_id)}
    return pa.field(name, _nested_type(iceberg_type), nullable=not is_required, metadata=metadata)


def _nested_type(iceberg_type: Any) -> Any:
    if isinstance(iceberg_type, str):
        plain = arrow_type(iceberg_type)
        if plain is None:
            raise KeyError(iceberg_type)
        return plain
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


# -- files of tasks --------------------------------------------------------------------------------


_ROW_GROUP_BYTES = 32 * 1024 * 1024
"""So much is held in memory before it is compressed and written."""
_TOTAL_FILES = "total-data-files"
_FILE_SIZE = "write.target-file-size-bytes"
_DEFAULT_FILE_BYTES = 256 * 1024 * 1024
_SUFFIX = ".parquet"


@dataclass(frozen=True)
class TaskWriter:
    """Writes the batches of a task as data files of a table.

    Attributes:
        location: of a file that nobody writes; tasks write beside it.
        schema: the columns, with the field ids of the table.
        file_bytes: a file that is as large is closed, and the next one begun.
    """

    location: str
    schema: Any
    codec: str
    file_bytes: int

    files_schema = "location string"
    """Of what it gives, as Spark's DDL."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each file."""
        rows = _row_groups(batches)
        group = next(rows, None)
        while group is not None:
            location = f"{self.location.removesuffix(_SUFFIX)}-{uuid.uuid4()}{_SUFFIX}"
            path = local_folder(location)
            assert path is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with (
                    path.open("wb") as file,
                    pq.ParquetWriter(
                        file, self.schema, compression=self.codec, store_decimal_as_integer=True
                    ) as writer,
                ):
                    while group is not None and file.tell() < self.file_bytes:
                        writer.write_table(group.select(self.schema.names).cast(self.schema))
                        group = next(rows, None)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            yield pa.record_batch({"location": [location]})

    def remove_files(self) -> None:
        """Those that all tasks have written so far."""
        prefix = local_folder(self.location.removesuffix(_SUFFIX))
        assert prefix is not None
        for path in prefix.parent.glob(f"{glob.escape(prefix.name)}-*{_SUFFIX}"):
            path.unlink(missing_ok=True)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        parts.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(parts)
            parts, size = [], 0
    if parts:
        yield pa.Table.from_batches(parts)


def task_writer(iceberg: Iceberg, table: Any, columns: Sequence[str] | None) -> TaskWriter | Reason:
    """For batches with these columns, or with those of the table; or why Spark must write them."""
    if columns is None:
        columns = [str(column.name()) for column in items(table.schema().columns())]
    fitting = fitting_rows(iceberg, table, pa.table({name: pa.nulls(0) for name in columns}))
    if isinstance(fitting, Reason):
        return fitting
    if not table.sortOrder().isUnsorted():
        return Reason.of(ReasonCode.TABLE_SORTED)
    file_bytes = int(table.properties().getOrDefault(_FILE_SIZE, str(_DEFAULT_FILE_BYTES)))
    return TaskWriter(_new_location(table), fitting.schema, _codec_of(table), file_bytes)


def stage_task_files(
    iceberg: Iceberg, name: TableName, table: Any, writer: WritesInTasks, files: Rows
) -> Staged:
    """The files that `writer` writes when the DataFrame `files` is computed, which happens here."""
    at_ms = staged_at_ms(table)
    try:
        return _staged_by_location(iceberg, name, table, [row.location for row in files.collect()], at_ms)
    except BaseException:
        writer.remove_files()
        raise


def files_taken(table: Any, since_ms: int) -> Reason | None:
    """See `LakeTable.files_taken`."""
    for snapshot in items(table.snapshots()):
        files = int(snapshot.summary().getOrDefault(_TOTAL_FILES, "0"))
        # Where the clock went back since then, times do not tell.
        if files and (int(snapshot.timestampMillis()) >= since_ms or since_ms > now_ms()):
            return Reason.of(ReasonCode.FILES_TAKEN, version=str(snapshot.snapshotId()))
    return None


def files_by_name(
    iceberg: Iceberg, name: TableName, table: Any, file_names: Sequence[str], at_ms: int | None
) -> Staged | Reason:
    """See `LakeTable.files_by_name`."""
    if spec_without_partitions(table) is None:
        return Reason.of(ReasonCode.TABLE_PARTITIONED)
    provider = table.locationProvider()
    locations = [str(provider.newDataLocation(file_name)) for file_name in file_names]
    for location in locations:
        path = local_folder(location)
        if path is None:
            return Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location=location.rpartition("/")[0])
        if not path.exists():
            return Reason.of(ReasonCode.FILE_NOT_READ, file=location, text="there is no such file")
    at_ms = staged_at_ms(table) if at_ms is None else at_ms
    return _staged_by_location(iceberg, name, table, locations, at_ms)


def _staged_by_location(
    iceberg: Iceberg, name: TableName, table: Any, locations: Sequence[str], at_ms: int
) -> Staged:
    files = []
    for location in locations:
        path = local_folder(location)
        assert path is not None
        files.append(_data_file(iceberg, table, location, path))
    return _staged(name, files, at_ms)
