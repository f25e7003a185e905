"""Rows of keys are found in the data files by this process, as a Spark query finds them."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from tests.support.lake_conformance import commit_metadata

from tautochrone.iceberg.reads import key_positions
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model import limits
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN, LakeTable
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark

COLUMNS = (
    "id BIGINT, small SMALLINT, `a word` STRING, amount DECIMAL(12, 2), day DATE, at TIMESTAMP, flag BOOLEAN"
)
NAMES = ("id", "small", "a word", "amount", "day", "at", "flag")


@pytest.fixture
def table(spark: SparkSession) -> LakeTable:
    """Four commits over partitions, files of several row groups, deleted rows, a column that was renamed
    between two of the commits."""
    lake = IcebergLake(spark, "lake", DirectEffects())
    name = TableName("lake", ("keys",), f"t_{uuid.uuid4().hex[:8]}")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.keys")
    spark.sql(
        f"CREATE TABLE {name.sql} ({COLUMNS.replace('amount', 'price')}) USING iceberg "
        "PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = "
        "'merge-on-read', 'write.parquet.row-group-size-bytes' = '1', "
        "'write.parquet.row-group-check-min-record-count' = '10')"
    )
    for commit in range(4):
        spark.sql(
            f"INSERT INTO {name.sql} SELECT nullif(id, 7), id % 5, nullif('w' || id % 11, 'w3'), "
            "id % 13 / 4, "
            "date_add(DATE'1890-01-01', CAST(id % 17 AS INT) * 9999), "
            "timestamp_micros(id % 19 * 1234567890123456), nullif(id % 3 = 0, id % 5 = 0) "
            f"FROM range({commit * 40}, {commit * 40 + 60})"
        )
        if commit == 1:
            spark.sql(f"DELETE FROM {name.sql} WHERE small = 2 OR `a word` = 'w4'")
            spark.sql(f"ALTER TABLE {name.sql} RENAME COLUMN price TO amount")
    return lake.load(name)


def keys_of(spark: SparkSession, table: LakeTable, names: Sequence[str], share: float) -> Any:
    """Some keys of the table, one of them twice."""
    pick = random.Random(f"{names}{share}")
    rows = table.read(spark, table.current_version()).select(*(f"`{name}`" for name in names)).toArrow()
    chosen = rows.take(pa.array([n for n in range(rows.num_rows) if pick.random() < share], pa.int64()))
    return pa.concat_tables([chosen, rows.slice(0, 1)])


def found_by_query(
    spark: SparkSession, table: LakeTable, keys: Any, names: Sequence[str]
) -> dict[str, list[int]]:
    stored, key_rows = table.read(spark, table.current_version()), spark.createDataFrame(keys)
    stored = stored.select("*", FILE_COLUMN, POSITION_COLUMN).alias("s")
    equal = sf.lit(True)
    for name in names:
        equal = equal & sf.col(f"s.`{name}`").eqNullSafe(sf.col(f"k.`{name}`"))
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for row in stored.join(key_rows.alias("k"), equal, "left_semi").collect():
        positions[row[FILE_COLUMN]].append(row[POSITION_COLUMN])
    return {file: sorted(rows) for file, rows in positions.items()}


def test_rows_of_keys_are_those_that_a_query_finds(spark: SparkSession, table: LakeTable) -> None:
    for names in (*((name,) for name in NAMES), ("id", "a word"), ("amount", "day", "flag")):
        for share in (0.3, 0.0) if names == ("id",) else (0.3,):
            keys = keys_of(spark, table, names, share)
            positions = table.positions_of_keys(table.fork(), keys)
            assert positions == found_by_query(spark, table, keys, names), names
    assert not isinstance(positions, Reason)
    files = [Path(file.removeprefix("file:")) for file in positions]
    assert min(pq.read_metadata(file).num_row_groups for file in files) > 1
    fork = table.fork()
    positions = table.positions_of_keys(fork, pa.table({"id": pa.array([50, 51], pa.int64())}))
    assert not isinstance(positions, Reason)
    assert positions
    removed = table.apply(fork, [], positions, commit_metadata())
    assert removed.rows_deleted == sum(map(len, positions.values()))
    assert table.positions_of_keys(table.fork(), pa.table({"id": pa.array([50, 51], pa.int64())})) == {}


@pytest.mark.parametrize("name", ["id", "a word", "day"])
def test_only_row_groups_are_read_that_may_have_a_key(
    spark: SparkSession, table: LakeTable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read_groups: list[Any] = []
    read_row_group = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, number: int, columns: Sequence[str]) -> Any:
        group = read_row_group(file, number, columns=columns)
        read_groups.append(group)
        return group

    spark.sql(
        f"INSERT INTO {table.name.sql} (id, `a word`, day) SELECT id, 'z' || id, "
        "date_add(DATE'2020-01-01', CAST(id AS INT)) FROM range(1000, 1400)"
    )
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    keys = {"id": 1234, "a word": "z1234", "day": dt.date(2023, 5, 19)}
    kind = {"id": pa.int64(), "a word": pa.string(), "day": pa.date32()}[name]
    positions = table.positions_of_keys(table.fork(), pa.table({name: pa.array([keys[name]], kind)}))
    assert not isinstance(positions, Reason)
    assert sum(map(len, positions.values())) == 1
    # Dates are compared as numbers, for which there are no statistics.
    assert len(read_groups) > 40 if name == "day" else len(read_groups) < 12
    with_null = pa.table({name: pa.array([keys[name], None], kind)})
    assert table.positions_of_keys(table.fork(), with_null) == found_by_query(
        spark, table, with_null, (name,)
    )


def test_what_needs_a_query(spark: SparkSession, table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pa.table({"id": pa.array([50], pa.int64())})
    fork = table.fork()
    positions = table.positions_of_keys(fork, keys)
    assert not isinstance(positions, Reason)
    (path, *_) = positions
    assert _why(table, pa.table({"other": [1]})) == (ReasonCode.KEY_COLUMN_NOT_IN_TABLE, {"column": "other"})
    of_text = pa.table({"id": ["no number"]})
    assert _why(table, of_text)[0] is ReasonCode.VALUES_CAST_BY_SPARK
    spark.sql(f"ALTER TABLE {table.name.sql} ADD COLUMNS (later BIGINT, share DOUBLE)")
    code, params = _why(table, pa.table({"later": [1]}))
    assert (code, params["column"]) == (ReasonCode.KEY_COLUMN_NOT_IN_FILE, "later")
    double = {"column": "share", "type": "double"}
    assert _why(table, pa.table({"share": [1.0]})) == (ReasonCode.COLUMN_COMPARED_BY_SPARK, double)
    for name, expected in (
        ("MAX_DRIVER_LOOKUP_FILES", ReasonCode.KEYS_IN_MANY_FILES),
        ("MAX_DRIVER_LOOKUP_BYTES", ReasonCode.KEY_COLUMNS_LARGE),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, name, 1)
            code, params = _why(table, keys)
            assert (code, params["limit"]) == (expected, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_positions, "local_folder", lambda _path: None)
        patch.setattr(limits, "MAX_DRIVER_LOOKUP_REMOTE_BYTES", 1)
        assert _why(table, keys)[0] is ReasonCode.KEYS_IN_LARGE_REMOTE_FILES
    monkeypatch.setattr(limits, "MAX_DELETION_VECTOR_POSITIONS", 0)
    assert _why(table, pa.table({"small": pa.array([1], pa.int32())}))[0] is ReasonCode.MANY_ROWS_DELETED
    Path(path.removeprefix("file:")).write_bytes(b"no Parquet")
    code, params = _why(table, keys)
    assert (code, params["file"]) == (ReasonCode.FILE_NOT_READ, path)
    spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('write.format.default' = 'avro')")
    spark.sql(f"INSERT INTO {table.name.sql} (id) VALUES (1000)")
    of_avro = _why(table, pa.table({"id": pa.array([1000], pa.int64())}))
    assert of_avro == (ReasonCode.FILE_FORMAT_OF_SPARK, {"format": "AVRO"})


def _why(table: LakeTable, keys: Any) -> tuple[ReasonCode, Any]:
    """Why a query must find the rows of keys."""
    reason = table.positions_of_keys(table.fork(), keys)
    assert isinstance(reason, Reason)
    return reason.code, reason.params
