"""Data files of others as a shadow table takes them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.support.lake_conformance import commit_metadata

from tautochrone.errors import ForeignTableError
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.foreign import (
    ForeignField,
    ForeignFile,
    ForeignList,
    ForeignMap,
    ForeignSource,
    ForeignStep,
    ForeignStruct,
    ForeignType,
    ForeignVersion,
    ShownVersion,
)
from tautochrone.model.lake import TableDefinition
from tautochrone.model.names import TableName
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1)  # noqa: DTZ001 - the columns have no zone


@dataclass
class OneFile:
    """A foreign table of one file."""

    path: Path
    fields: tuple[ForeignField, ...]
    source: ForeignSource = field(default_factory=lambda: ForeignSource("delta", "/orders"))

    def newest(self) -> ForeignVersion:
        file = ForeignFile(f"file:{self.path}", self.path.stat().st_size)
        return ForeignVersion(identity="t", number=1, fields=self.fields, files={file.location: file})

    def steps_since(self, shown: ShownVersion, *, has_same_columns: bool) -> Sequence[ForeignStep] | None:
        raise NotImplementedError

    def deleted_positions(self, file: ForeignFile) -> Sequence[int]:
        raise NotImplementedError


def follow(spark: SparkSession, foreign: OneFile) -> TableName:
    lake = IcebergLake(spark, "lake", DirectEffects())
    name = TableName("lake", ("shadows",), f"t_{uuid.uuid4().hex[:8]}")
    table = lake.create(TableDefinition(name=name, schema=StructType([])), commit_metadata())
    table.follow(table.fork(), foreign, commit_metadata())
    return name


@pytest.mark.parametrize(("has_ids", "is_deep"), [(False, False), (True, False), (False, True)])
def test_milliseconds_are_no_microseconds(
    spark: SparkSession, tmp_path: Path, has_ids: bool, is_deep: bool
) -> None:
    at = [START + timedelta(days=day) for day in range(3)]
    for unit in ("us", "ms"):
        metadata = {"PARQUET:field_id": "1"} if has_ids else None
        stored = pa.field("at", pa.timestamp(unit), metadata=metadata)
        column = pa.field("s", pa.struct([stored])) if is_deep else stored
        values = [{"at": each} for each in at] if is_deep else at
        path = tmp_path / f"{unit}.parquet"
        pq.write_table(pa.table([pa.array(values, column.type)], schema=pa.schema([column])), path)
        shown = ForeignField("at", "at", "timestamp", 1 if has_ids else None)
        foreign = OneFile(path, (ForeignField("s", "s", ForeignStruct((shown,))) if is_deep else shown,))
        if unit == "ms":
            with pytest.raises(ForeignTableError, match=r"FOREIGN_FILE_HAS_OTHER_TYPES.*milliseconds"):
                follow(spark, foreign)
            continue
        name, which = follow(spark, foreign), "s.at" if is_deep else "at"
        where = f"{which} > TIMESTAMP_NTZ '{START + timedelta(hours=1)}'"
        assert spark.sql(f"SELECT 1 FROM {name.sql} WHERE {where}").count() == 2


NUMBERS = ForeignList("int")


@pytest.mark.parametrize(
    ("written", "column"),
    [
        ("array(1, 2)", NUMBERS),
        ("array(named_struct('a', 1))", ForeignList(ForeignStruct((ForeignField("a", "a", "int"),)))),
        ("named_struct('l', array(1))", ForeignStruct((ForeignField("l", "l", NUMBERS),))),
        ("map('k', array(1))", ForeignMap("string", NUMBERS)),
    ],
)
def test_lists_of_two_levels_are_refused(
    spark: SparkSession, tmp_path: Path, written: str, column: ForeignType
) -> None:
    """As Parquet's older writers make them, which Hudi uses: Iceberg's readers fail at them."""
    session = spark.newSession()
    for is_old in (False, True):
        session.conf.set("spark.sql.parquet.writeLegacyFormat", str(is_old).lower())
        rows = session.sql(f"SELECT {written} AS v")
        rows.coalesce(1).write.parquet(f"file:{tmp_path}/{is_old}")
        (path,) = (tmp_path / str(is_old)).glob("*.parquet")
        foreign = OneFile(path, (ForeignField("v", "v", column),))
        if is_old:
            with pytest.raises(ForeignTableError, match="FOREIGN_FILE_HAS_OLD_LISTS"):
                follow(spark, foreign)
        else:
            name = follow(spark, foreign)
            assert spark.table(name.sql).collect() == rows.collect()
