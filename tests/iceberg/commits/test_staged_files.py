"""Rows of an Arrow table become a data file without Spark, and Spark reads them as they were."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from tests.support.lake_conformance import commit_metadata
from tests.support.maintenance_conformance import soon_ms

from tautochrone.iceberg.commits import staged_files
from tautochrone.iceberg.maintenance.orphans import path_of
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.lake import LakeTable, TableDefinition
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.sources.capture.log_table import ARROW_SCHEMA, SPARK_SCHEMA

pytestmark = pytest.mark.spark

ROWS: list[dict[str, Any]] = [
    {
        "point": 2**60 + n,
        "sequence": n,
        "transaction": n,
        "committed_at": dt.datetime(1969 + n, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC),
        "relation": f"public.é{n}",
        "operation": "update",
        "columns": [("id", str(n)), ("note", None), ("text", "x" * n)],
        "unchanged": ["a", "b"][: n % 3],
        "snapshot": "5:5:",
    }
    for n in range(100)
]
ROWS.append(dict.fromkeys(ARROW_SCHEMA.names))


def log_table(spark: SparkSession) -> LakeTable:
    lake = IcebergLake(spark, "lake", DirectEffects())
    name = TableName("lake", ("arrow",), f"t_{uuid.uuid4().hex[:8]}")
    return lake.create(TableDefinition(name=name, schema=SPARK_SCHEMA), commit_metadata())


def test_spark_reads_what_was_written(spark: SparkSession) -> None:
    table, rows = log_table(spark), pa.Table.from_pylist(ROWS, ARROW_SCHEMA)
    fork = table.fork()
    # The columns' order is the table's.
    staged = table.stage_arrow(fork, rows.select(ARROW_SCHEMA.names[::-1]))
    assert not isinstance(staged, Reason)
    assert staged.rows == len(ROWS)
    nothing = table.stage_arrow(fork, rows.slice(0, 0))
    assert not isinstance(nothing, Reason)
    assert not nothing.files
    version = table.commit_staged(fork, [staged], commit_metadata()).version
    assert table.row_count(version) == len(ROWS)
    stored = table.read(spark, version)
    expected = spark.createDataFrame(rows, SPARK_SCHEMA)
    assert sorted(stored.collect(), key=str) == sorted(expected.collect(), key=str)
    assert stored.where(sf.col("columns")["id"] == "7").select("point").first() == (2**60 + 7,)
    files = spark.sql(f"SELECT readable_metrics.point.* FROM {table.name.sql}.files").first()
    assert files is not None
    assert (files["lower_bound"], files["upper_bound"], files["null_value_count"]) == (2**60, 2**60 + 99, 1)
    # By Spark and without it, rows of one table.
    fork = table.fork()
    staged = table.stage(fork, expected.repartition(2), local=True)
    assert staged.left_to_spark == Reason.of(ReasonCode.ROWS_NOT_ON_DRIVER)
    table.commit_staged(fork, [staged], commit_metadata())
    assert table.read(spark, table.current_version()).count() == 2 * len(ROWS)


def test_tasks_write_their_rows(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    table, rows = log_table(spark), pa.Table.from_pylist(ROWS, ARROW_SCHEMA)
    fork = table.fork()
    writer = table.task_writer(fork, ARROW_SCHEMA.names[::-1])
    assert not isinstance(writer, Reason)
    batches = rows.to_batches(max_chunksize=20)

    def write(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from writer(batches[number] for ids in numbers for number in ids["id"].to_pylist())

    files = spark.range(0, len(batches), 1, 3).mapInArrow(write, writer.files_schema)
    staged = table.stage_task_files(fork, writer, files)
    assert (len(staged.files), staged.rows) == (3, len(ROWS))
    version = table.commit_staged(fork, [staged], commit_metadata()).version
    expected = sorted(spark.createDataFrame(rows, SPARK_SCHEMA).collect(), key=str)
    assert sorted(table.read(spark, version).collect(), key=str) == expected
    # Each file is closed when it is large, and the next one begun.
    monkeypatch.setattr(staged_files, "_ROW_GROUP_BYTES", 1)
    spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('write.target-file-size-bytes' = '3000')")
    fork = table.fork()
    writer = table.task_writer(fork, ARROW_SCHEMA.names)
    assert not isinstance(writer, Reason)
    locations = [location for batch in writer(iter(batches)) for location in batch["location"].to_pylist()]
    assert 1 < len(locations) < len(batches)
    staged = table.stage_task_files(
        fork, writer, spark.createDataFrame([(at,) for at in locations], ["location"])
    )
    assert staged.rows == len(ROWS)
    assert list(writer(iter([rows.to_batches()[0].slice(0, 0)]))) == []


def test_files_of_tasks_are_taken_later_without_some_rows(spark: SparkSession) -> None:
    """One commit adds files and deletes rows of them, all rows of one of them."""
    table = log_table(spark)
    writer = table.task_writer(table.fork())
    assert not isinstance(writer, Reason)
    batches = pa.Table.from_pylist(ROWS[:90], ARROW_SCHEMA).to_batches(max_chunksize=30)
    locations = [row["location"] for batch in batches for f in writer(iter([batch])) for row in f.to_pylist()]
    names = [location.rpartition("/")[2] for location in locations]
    at_ms = soon_ms() - 3_600_000
    staged = table.files_by_name(table.fork(), names, at_ms)
    assert not isinstance(staged, Reason)
    assert (staged.rows, staged.at_ms) == (90, at_ms)
    gone = table.files_by_name(table.fork(), [*names, "gone.parquet"], at_ms)
    assert isinstance(gone, Reason)
    assert gone.code is ReasonCode.FILE_NOT_READ
    deletes = {locations[0]: [0, 29], locations[2]: list(range(30))}
    committed = table.apply(table.fork(), [staged], deletes, commit_metadata())
    stored = table.read(spark, committed.version).select("sequence").collect()
    assert sorted(row.sequence for row in stored) == list(range(1, 29)) + list(range(30, 60))
    assert table.row_count(committed.version) == 58
    more = table.apply(table.fork(), [], {locations[0]: [1]}, commit_metadata())
    assert table.row_count(more.version) == 57
    assert table.files_taken(table.fork(), soon_ms()) is None
    taken = table.files_taken(table.fork(), at_ms)
    assert isinstance(taken, Reason)
    assert taken.code is ReasonCode.FILES_TAKEN


def test_manifests_have_the_statistics_of_files_of_tasks(spark: SparkSession) -> None:
    """They are those of the same rows in a file of Spark."""
    statistics = []
    for is_written_by_tasks in (True, False):
        table = log_table(spark)
        fork = table.fork()
        if is_written_by_tasks:
            writer = table.task_writer(fork, ARROW_SCHEMA.names)
            assert not isinstance(writer, Reason)
            batches = pa.Table.from_pylist(ROWS, ARROW_SCHEMA).to_batches(max_chunksize=20)
            (named,) = [row for batch in writer(iter(batches)) for row in batch.to_pylist()]
            files = spark.createDataFrame([tuple(named.values())], writer.files_schema)
            staged = table.stage_task_files(fork, writer, files)
        else:
            rows = spark.createDataFrame(pa.Table.from_pylist(ROWS, ARROW_SCHEMA), SPARK_SCHEMA)
            staged = table.stage(fork, rows.coalesce(1))
        table.commit_staged(fork, [staged], commit_metadata())
        (file,) = spark.sql(f"SELECT * FROM {table.name.sql}.files").collect()
        assert Path(file.file_path.removeprefix("file:")).stat().st_size == file.file_size_in_bytes
        kinds = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
        # Spark also writes the columns of row lineage, without values.
        of_columns = [{key: value for key, value in file[kind].items() if key < 2**30} for kind in kinds]
        statistics.append([file.record_count, file.spec_id, *of_columns])
    assert statistics[0] == statistics[1]
    assert statistics[0][0] == len(ROWS)
    assert all(statistics[0][2:])


def test_files_of_tasks_that_did_not_count_are_orphans(spark: SparkSession) -> None:
    """Spark repeats a task, or runs it twice at once, and takes what one of them gives."""
    table, rows = log_table(spark), pa.Table.from_pylist(ROWS, ARROW_SCHEMA)
    fork = table.fork()
    writer = table.task_writer(fork, ARROW_SCHEMA.names)
    assert not isinstance(writer, Reason)
    lost, counted = (
        [row["location"] for batch in writer(iter(rows.to_batches())) for row in batch.to_pylist()]
        for _attempt in range(2)
    )
    files = spark.createDataFrame([(location,) for location in counted], writer.files_schema)
    table.commit_staged(fork, [table.stage_task_files(fork, writer, files)], commit_metadata())
    folders = IcebergLake(spark, "lake", DirectEffects()).folders()
    orphans = table.remove_orphans(soon_ms(), Fence(1), folders)
    assert [path_of(location) for location in orphans.files] == [path_of(location) for location in lost]
    assert table.read(spark, table.current_version()).count() == len(ROWS)


def test_nothing_is_left_of_tasks_that_fail(spark: SparkSession, tmp_path: Path) -> None:
    table, rows = log_table(spark), pa.Table.from_pylist(ROWS, ARROW_SCHEMA)
    spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('write.data.path' = '{tmp_path / 'a[b]*'}')")
    fork = table.fork()
    writer = table.task_writer(fork, ARROW_SCHEMA.names)
    assert not isinstance(writer, Reason)
    batches = rows.to_batches(max_chunksize=60)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        list(writer(interrupted()))
    assert list(tmp_path.rglob("*.parquet")) == []

    def write(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in numbers:
            for number in ids["id"].to_pylist():
                yield from writer(iter([batches[number]]))
                if number == 1:
                    raise ConnectionError

    spark.sparkContext.setLogLevel("OFF")
    try:
        with pytest.raises(PySparkException):
            table.stage_task_files(
                fork, writer, spark.range(0, 2, 1, 1).mapInArrow(write, writer.files_schema)
            )
    finally:
        spark.sparkContext.setLogLevel("ERROR")
    assert list(tmp_path.rglob("*.parquet")) == []


def test_locations_are_not_decoded(spark: SparkSession, tmp_path: Path) -> None:
    table, rows = log_table(spark), pa.Table.from_pylist(ROWS, ARROW_SCHEMA)
    folder = tmp_path / "a%20b#c"
    spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('write.data.path' = 'file:{folder}')")
    fork = table.fork()
    staged = table.stage_arrow(fork, rows)
    assert not isinstance(staged, Reason)
    version = table.commit_staged(fork, [staged], commit_metadata()).version
    assert table.read(spark, version).count() == len(ROWS)
    assert len(list(folder.rglob("*.parquet"))) == 1


def test_what_only_spark_writes(spark: SparkSession) -> None:
    table, rows = log_table(spark), pa.Table.from_pylist(ROWS, ARROW_SCHEMA)

    def why(written: Any = rows) -> Reason | None:
        staged = table.stage_arrow(table.fork(), written)
        if written is rows:
            writer = table.task_writer(table.fork(), ARROW_SCHEMA.names)
            assert (writer == staged) if isinstance(staged, Reason) else not isinstance(writer, Reason)
        return staged if isinstance(staged, Reason) else None

    assert why(rows.drop_columns(["snapshot"])) == Reason.of(ReasonCode.COLUMNS_OF_ROWS_DIFFER)
    more = rows.append_column("more", pa.nulls(len(ROWS)))
    assert why(more) == Reason.of(ReasonCode.COLUMNS_OF_ROWS_DIFFER)
    cast = why(rows.set_column(0, "point", [["no number"] * len(ROWS)]))
    assert cast is not None
    assert cast.code is ReasonCode.VALUES_CAST_BY_SPARK
    assert "no number" in cast.params["text"]
    for name, value, reason in (
        ("write.parquet.page-size-bytes", "1000", _settings("write.parquet.page-size-bytes")),
        ("write.parquet.compression-codec", "lz4", _settings("write.parquet.compression-codec")),
        (
            "write.data.path",
            "s3://bucket/a",
            Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location="s3://bucket/a"),
        ),
        ("encryption.key-id", "a", Reason.of(ReasonCode.TABLE_ENCRYPTED, property="encryption.key-id")),
        ("write.format.default", "orc", Reason.of(ReasonCode.FILE_FORMAT_OF_SPARK, format="orc")),
    ):
        spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('{name}' = '{value}')")
        assert why() == reason
        spark.sql(f"ALTER TABLE {table.name.sql} UNSET TBLPROPERTIES ('{name}')")
        assert why() is None
    spark.sql(f"ALTER TABLE {table.name.sql} WRITE ORDERED BY point")
    assert table.task_writer(table.fork(), ARROW_SCHEMA.names) == Reason.of(ReasonCode.TABLE_SORTED)
    spark.sql(f"ALTER TABLE {table.name.sql} WRITE UNORDERED")
    spark.sql(f"ALTER TABLE {table.name.sql} ADD PARTITION FIELD relation")
    assert why() == Reason.of(ReasonCode.TABLE_PARTITIONED)
    spark.sql(f"ALTER TABLE {table.name.sql} DROP PARTITION FIELD relation")
    spark.sql(f"ALTER TABLE {table.name.sql} ADD COLUMN more STRUCT<a: INT>")
    structs = rows.append_column("more", pa.nulls(len(ROWS)))
    assert why(structs) == Reason.of(ReasonCode.COLUMN_WRITTEN_BY_SPARK, column="more")


def _settings(name: str) -> Reason:
    return Reason.of(ReasonCode.PARQUET_SETTINGS, settings=[name])
