"""Rows that were appended to a table are counted in its data files, without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.lake_conformance import commit_metadata

from tautochrone.iceberg.reads import data_files
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.lake import AppendedRows, LakeTable, TableDefinition
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.sources.capture.log_table import ARROW_SCHEMA, SPARK_SCHEMA

pytestmark = pytest.mark.spark

MANY = 1_000_000


def append(table: LakeTable, *relations: str | None, text: str = "") -> Version:
    """Rows of these relations, by pyarrow."""
    empty = dict.fromkeys(ARROW_SCHEMA.names)
    rows = [empty | {"relation": relation, "columns": [("text", text)]} for relation in relations]
    fork = table.fork()
    staged = table.stage_arrow(fork, pa.Table.from_pylist(rows, ARROW_SCHEMA))
    assert not isinstance(staged, Reason)
    return table.commit_staged(fork, [staged], commit_metadata()).version


def test_rows_are_counted_by_relation(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = IcebergLake(spark, "lake", DirectEffects())
    name = TableName("lake", ("appended",), f"t_{uuid.uuid4().hex[:8]}")
    table = lake.create(TableDefinition(name=name, schema=SPARK_SCHEMA), commit_metadata())
    first = append(table, "a", "b")
    append(table, "a", "a", None)
    # By Spark, into a file of another writer.
    fork = table.fork()
    empty = spark.createDataFrame([], SPARK_SCHEMA)
    by_spark = empty.unionByName(spark.sql("SELECT 'c' AS relation"), allowMissingColumns=True)
    last = table.commit_staged(fork, [table.stage(fork, by_spark)], commit_metadata()).version

    def counted(old: Version, new: Version, max_bytes: int = MANY) -> Any:
        return table.appended_rows(old, new, "relation", max_bytes)

    rows = counted(first, last)
    assert isinstance(rows, AppendedRows)
    assert rows.counts == {"a": 2, None: 1, "c": 1}
    assert rows.bytes is not None
    assert 0 < rows.bytes < 5_000
    # One long text, many times: the file stores it once.
    longer = append(table, *["a"] * 100, text="x" * 10_000)
    assert counted(last, longer, 999_999) == AppendedRows({"a": 100}, None)
    assert counted(last, longer, 2_000_000).bytes > 1_000_000
    assert counted(last, longer, 0) == AppendedRows({"a": 100}, None)
    with monkeypatch.context() as patch:
        patch.setattr(data_files, "local_folder", lambda _path: None)
        assert counted(last, longer).code is ReasonCode.STORAGE_NOT_LOCAL
    (path,) = {
        row[0].removeprefix("file:")
        for row in spark.sql(f"SELECT file_path FROM {name.sql}.files WHERE record_count = 100").collect()
    }
    Path(path).write_bytes(b"no Parquet")
    assert counted(last, longer).code is ReasonCode.FILE_NOT_READ
