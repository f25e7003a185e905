"""Data files that the process writes itself: as good as Spark's."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.change_conformance import ChangeBench, every_type, every_value, local, spark_jobs
from tests.support.lake_conformance import SCHEMA, commit_metadata

from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.lake import LakeTable, TableDefinition
from tautochrone.model.names import TableName
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: SparkSession) -> IcebergLake:
    return IcebergLake(spark, "lake", DirectEffects())


def fresh(lake: IcebergLake, schema: StructType = SCHEMA, **more: Any) -> LakeTable:
    name = TableName("lake", ("conformance",), f"t_{uuid.uuid4().hex[:8]}")
    return lake.create(TableDefinition(name=name, schema=schema, **more), commit_metadata())


class TestLocal(ChangeBench):
    """Shapes of tables, statistics, other readers."""

    def add(self, spark: SparkSession, table: LakeTable, *ids: int) -> None:
        fork = table.fork()
        jobs = spark_jobs(spark)
        staged = table.stage(fork, local(spark, *ids), local=True)
        assert spark_jobs(spark) == jobs
        table.commit_staged(fork, [staged], commit_metadata())

    def test_statistics_let_scans_skip_the_file(
        self, spark: SparkSession, lake: IcebergLake, table: LakeTable
    ) -> None:
        self.add(spark, table, 1, 2)
        self.add(spark, table, 100, 200)
        java = lake._iceberg.load(table.name)
        expressions = lake._iceberg.api.expressions.Expressions
        for number, files in ((2, 1), (150, 1), (50, 0), (500, 0)):
            scan = java.newScan().filter(expressions.equal("id", number)).planFiles()
            assert len(lake._iceberg.functions.task_paths(lake._iceberg.functions.tasks(scan))) == files
        bounds = spark.sql(
            f"SELECT readable_metrics.id.lower_bound, readable_metrics.id.upper_bound,"
            f" readable_metrics.word.value_count FROM {table.name.sql}.files ORDER BY 1"
        ).collect()
        assert [tuple(row) for row in bounds] == [(1, 2, 2), (100, 200, 2)]

    @pytest.mark.parametrize(
        "columns", [("word",), ("bucket(4, id)",), ("truncate(1, word)", "bucket(2, id)")]
    )
    def test_partitions(self, spark: SparkSession, lake: IcebergLake, columns: tuple[str, ...]) -> None:
        table, by_spark = (fresh(lake, partition_columns=columns) for _ in range(2))
        self.add(spark, table, *range(12))
        self.append(spark, by_spark, commit_metadata(), *range(12))
        assert self.ids(spark, table) == list(range(12))
        layouts = [
            spark.sql(f"SELECT partition, record_count FROM {which.name.sql}.partitions").collect()
            for which in (table, by_spark)
        ]
        assert sorted(layouts[0]) == sorted(layouts[1])

    def test_sorted_tables_do_not_call_the_file_sorted(self, spark: SparkSession, lake: IcebergLake) -> None:
        table = fresh(lake, cluster_columns=("id",))
        self.add(spark, table, 3, 1, 2)
        assert self.ids(spark, table) == [1, 2, 3]
        assert [
            row[0] for row in spark.sql(f"SELECT sort_order_id FROM {table.name.sql}.files").collect()
        ] == [0]

    def test_a_null_where_none_may_be_is_refused(self, spark: SparkSession, lake: IcebergLake) -> None:
        schema = StructType(
            [StructField("id", LongType(), nullable=False), StructField("word", StringType())]
        )
        table = fresh(lake, schema)
        fork = table.fork()
        nothing = spark.createDataFrame(pa.table({"id": pa.array([None], pa.int64()), "word": ["x"]}))
        with pytest.raises(Exception, match="id"):
            table.stage(fork, nothing, local=True)
        strict = spark.sql("SELECT * FROM VALUES (5L, 'five') AS t(id, word)")
        table.commit_staged(fork, [table.stage(fork, strict, local=True)], commit_metadata())
        assert self.ids(spark, table) == [5]

    def test_pyiceberg_reads_every_type(self, spark: SparkSession, lake: IcebergLake) -> None:
        frame = every_type(spark)
        table = fresh(lake, frame.schema)
        fork = table.fork()
        table.commit_staged(fork, [table.stage(fork, frame, local=True)], commit_metadata())
        file = str(spark.conf.get("spark.sql.catalog.lake.uri")).removeprefix("jdbc:sqlite:").split("?")[0]
        catalog = SqlCatalog(
            "lake",
            uri=f"sqlite:///{file.removeprefix('file:')}",
            warehouse=spark.conf.get("spark.sql.catalog.lake.warehouse"),
        )
        rows = catalog.load_table((*table.name.namespace, table.name.table)).scan().to_arrow()
        assert rows.sort_by("id").to_pylist() == every_value().to_pylist()
