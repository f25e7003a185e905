"""Rows that are built beside main, and what main becomes when they are applied."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.iceberg.tables.test_iceberg import InterferingEffects
from tests.support.lake_conformance import SCHEMA, LakeBench, commit_metadata
from tests.support.maintenance_conformance import soon_ms

from tautochrone.errors import ConflictError, DefinitionError, LakeError
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.effects import Step
from tautochrone.model.lake import ChangeKind, LakeTable, Retention, TableDefinition
from tautochrone.model.names import Fence, TableName
from tautochrone.model.project_build import branch_of

pytestmark = pytest.mark.spark

BRANCH = branch_of("0123abcd")
WIDER = StructType([*SCHEMA.fields, StructField("n", LongType())])
OTHER = StructType([StructField("n", StringType()), StructField("word", StringType())])


class TestBuilds(LakeBench):
    """Over one table of two rows."""

    @pytest.fixture
    def effects(self) -> InterferingEffects:
        return InterferingEffects()

    @pytest.fixture
    def lake(self, spark: SparkSession, effects: InterferingEffects) -> IcebergLake:
        return IcebergLake(spark, "lake", effects)

    @pytest.fixture
    def filled(self, spark: SparkSession, table: LakeTable) -> LakeTable:
        self.append(spark, table, commit_metadata(mode="full"), 1, 2)
        return table

    def built(self, spark: SparkSession, lake: IcebergLake, name: TableName, schema: StructType) -> Any:
        values = {"id": 3, "word": "c", "n": 7 if schema is WIDER else "x"}
        row = tuple(values[field.name] for field in schema.fields)
        definition = TableDefinition(name=name, schema=schema)
        buildable = lake.buildable(name)
        rows = spark.createDataFrame([row], schema)
        return definition, buildable.build(definition, rows, commit_metadata(), BRANCH), row

    @pytest.mark.parametrize("schema", [SCHEMA, WIDER, OTHER], ids=["same", "wider", "other"])
    def test_main_gets_the_rows_without_a_copy(
        self, spark: SparkSession, lake: IcebergLake, filled: LakeTable, schema: StructType
    ) -> None:
        before = filled.current_version()
        definition, version, row = self.built(spark, lake, filled.name, schema)
        assert filled.current_version() == before
        assert self.ids(spark, filled) == [1, 2]
        assert [tuple(row) for row in filled.read(spark, version).collect()] == [row]
        files = filled.files_at(version).files.keys()
        buildable = lake.buildable(filled.name)
        done = buildable.apply_build(filled.fork(), definition, BRANCH, commit_metadata(2, mode="full"))
        assert done.version == filled.current_version() != version
        assert [tuple(row) for row in filled.read(spark, done.version).collect()] == [row]
        assert filled.files_at(done.version).files.keys() == files
        assert filled.fork().fence == 2
        assert [tuple(row) for row in filled.read(spark, before).collect()] == [(1, "1"), (2, "2")]
        assert buildable.built_version(BRANCH) is None
        change = filled.change_between(before, done.version).kind
        assert change is (ChangeKind.CHANGED if schema is SCHEMA else ChangeKind.UNKNOWN)
        # Ids of rows are unique, and the version that was built may leave.
        self.append_row(spark, filled, schema, row)
        ids = spark.table(filled.name.sql).select("_row_id").collect()
        assert len({value for (value,) in ids}) == 2
        filled.expire(Retention(after_ms=soon_ms()), Fence(2))
        filled.remove_orphans(soon_ms(), Fence(2), lake.folders())
        assert [tuple(row) for row in filled.read(spark, filled.current_version()).collect()] == [row, row]

    @staticmethod
    def append_row(spark: SparkSession, table: LakeTable, schema: StructType, row: tuple[Any, ...]) -> None:
        fork = table.fork()
        staged = table.stage(fork, spark.createDataFrame([row], schema))
        table.commit_staged(fork, [staged], commit_metadata(2))

    def test_no_rows(self, spark: SparkSession, lake: IcebergLake, filled: LakeTable) -> None:
        definition, buildable = TableDefinition(name=filled.name, schema=SCHEMA), lake.buildable(filled.name)
        for _ in range(2):
            buildable.build(definition, self.frame(spark), commit_metadata(), BRANCH)
            buildable.apply_build(filled.fork(), definition, BRANCH, commit_metadata(mode="full"))
            assert self.ids(spark, filled) == []

    def test_main_moves_meanwhile(self, spark: SparkSession, lake: IcebergLake, filled: LakeTable) -> None:
        definition, _, row = self.built(spark, lake, filled.name, WIDER)
        fork = filled.fork()
        self.append(spark, filled, commit_metadata(), 4)
        buildable = lake.buildable(filled.name)
        with pytest.raises(ConflictError):
            buildable.apply_build(fork, definition, BRANCH, commit_metadata())
        buildable.apply_build(filled.fork(), definition, BRANCH, commit_metadata())
        assert [tuple(each) for each in filled.read(spark, filled.current_version()).collect()] == [row]

    def test_a_build_survives_maintenance(
        self, spark: SparkSession, lake: IcebergLake, filled: LakeTable
    ) -> None:
        _, version, row = self.built(spark, lake, filled.name, OTHER)
        self.append(spark, filled, commit_metadata(), 4)
        filled.expire(Retention(after_ms=soon_ms()), Fence(1))
        filled.remove_orphans(soon_ms(), Fence(1), lake.folders())
        assert [tuple(each) for each in filled.read(spark, version).collect()] == [row]

    def test_dropping(
        self, spark: SparkSession, lake: IcebergLake, filled: LakeTable, effects: InterferingEffects
    ) -> None:
        definition, version, _ = self.built(spark, lake, filled.name, WIDER)
        files = [file.path for file in filled.files_at(version).files.values()]
        buildable = lake.buildable(filled.name)
        effects.lose.add(Step.LAKE_DROP_BUILD)
        buildable.drop_build(BRANCH)
        buildable.drop_build(BRANCH)
        assert not any(path and path.exists() for path in files)
        assert self.ids(spark, filled) == [1, 2]
        with pytest.raises(LakeError) as gone:
            buildable.apply_build(filled.fork(), definition, BRANCH, commit_metadata())
        assert gone.value.error_class == "BUILD_GONE"

    def test_main_gets_the_rows_while_they_are_dropped(
        self, spark: SparkSession, lake: IcebergLake, filled: LakeTable, effects: InterferingEffects
    ) -> None:
        definition, _, row = self.built(spark, lake, filled.name, WIDER)
        buildable = lake.buildable(filled.name)
        effects.before[Step.LAKE_DROP_BUILD] = lambda: buildable.apply_build(
            filled.fork(), definition, BRANCH, commit_metadata()
        )
        buildable.drop_build(BRANCH)
        assert [tuple(each) for each in filled.read(spark, filled.current_version()).collect()] == [row]

    @pytest.mark.parametrize("step", [Step.LAKE_BUILD, Step.LAKE_APPLY_BUILD])
    def test_a_lost_answer(
        self,
        spark: SparkSession,
        lake: IcebergLake,
        filled: LakeTable,
        effects: InterferingEffects,
        step: Step,
    ) -> None:
        effects.lose.add(step)
        definition, _, row = self.built(spark, lake, filled.name, SCHEMA)
        lake.buildable(filled.name).apply_build(filled.fork(), definition, BRANCH, commit_metadata())
        assert [tuple(each) for each in filled.read(spark, filled.current_version()).collect()] == [row]

    def test_other_columns_meanwhile(
        self, spark: SparkSession, lake: IcebergLake, filled: LakeTable, effects: InterferingEffects
    ) -> None:
        def widen() -> None:
            columns = StructType([*SCHEMA.fields, StructField("m", LongType())])
            filled.widen(filled.fork(), columns, commit_metadata())

        effects.before[Step.LAKE_BUILD] = widen
        with pytest.raises(LakeError) as moved:
            self.built(spark, lake, filled.name, WIDER)
        assert moved.value.error_class == "BUILD_COLUMNS_MOVED"
        assert self.ids(spark, filled) == [1, 2]

    def test_layouts(self, spark: SparkSession, lake: IcebergLake, filled: LakeTable) -> None:
        name, buildable = filled.name, lake.buildable(filled.name)
        rows = spark.createDataFrame([(3, "c", 7)], WIDER)
        new_column = TableDefinition(name=name, schema=WIDER, partition_columns=("n",))
        with pytest.raises(DefinitionError) as refused:
            buildable.build(new_column, rows, commit_metadata(), BRANCH)
        assert refused.value.error_class == "UNSUPPORTED_BUILD_LAYOUT"
        parted = TableDefinition(name=name, schema=WIDER, partition_columns=("word",), cluster_columns=("n",))
        version = buildable.build(parted, rows, commit_metadata(), BRANCH)
        assert self.ids(spark, filled) == [1, 2]
        assert [tuple(each) for each in filled.read(spark, version).collect()] == [(3, "c", 7)]
        buildable.apply_build(filled.fork(), parted, BRANCH, commit_metadata())
        # The partition's column goes again.
        definition, version, row = self.built(spark, lake, name, StructType([SCHEMA["id"]]))
        assert [tuple(each) for each in filled.read(spark, version).collect()] == [row]
        buildable.apply_build(filled.fork(), definition, BRANCH, commit_metadata())
        assert [tuple(each) for each in filled.read(spark, filled.current_version()).collect()] == [row]
