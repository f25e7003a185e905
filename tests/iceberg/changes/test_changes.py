"""Row deltas and row changes of Iceberg tables, external tables included."""

from __future__ import annotations

import gc
import json
import time
import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession
from tests.support.change_conformance import ChangeBench, ChangeConformance, local
from tests.support.lake_conformance import commit_metadata

from tautochrone.errors import HistoryLostError, LakeError
from tautochrone.iceberg.java.api import items
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model import limits
from tautochrone.model.lake import ChangeKind, LakeTable, Retention
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import ReasonCode
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: SparkSession) -> IcebergLake:
    return IcebergLake(spark, "lake", DirectEffects())


class TestIceberg(ChangeConformance):
    """All behaviours of the port that incremental views need."""


class ExternalWriters(ChangeBench):
    """Tables that Spark's own statements or PyIceberg write."""

    def make(
        self, spark: SparkSession, lake: IcebergLake, version: int, *, flat: bool = False, **more: str
    ) -> LakeTable:
        name = TableName("lake", ("outside",), f"t_{uuid.uuid4().hex[:8]}")
        properties = {
            "format-version": str(version), "write.delete.mode": "merge-on-read",
            "write.update.mode": "merge-on-read", "write.merge.mode": "merge-on-read", **more,
        }  # fmt: skip
        property_list = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.outside")
        spark.sql(
            f"CREATE TABLE {name.sql} (id BIGINT, word STRING) USING iceberg"
            f"{'' if flat else ' PARTITIONED BY (bucket(2, id))'} TBLPROPERTIES ({property_list})"
        )
        self.fill(spark, name, 0, 20)
        return lake.load(name)

    def fill(self, spark: SparkSession, name: TableName, start: int, end: int) -> None:
        spark.sql(f"INSERT INTO {name.sql} SELECT id, CAST(id AS STRING) FROM range({start}, {end})")


REWRITES = {f"write.{statement}.mode": "copy-on-write" for statement in ("delete", "update", "merge")}


class TestSparkStatements(ExternalWriters):
    """DELETE, UPDATE and MERGE, merge-on-read and copy-on-write."""

    @pytest.mark.parametrize(
        ("version", "more"),
        [
            (3, {}),
            (2, {}),
            pytest.param(2, {"write.delete.granularity": "file"}, marks=pytest.mark.slow),
            pytest.param(
                2,
                {"write.delete.mode": "copy-on-write", "write.update.mode": "copy-on-write"},
                marks=pytest.mark.slow,
            ),
            pytest.param(3, REWRITES, marks=pytest.mark.slow),
        ],
    )
    def test_statements(
        self, spark: SparkSession, lake: IcebergLake, version: int, more: dict[str, str]
    ) -> None:
        table = self.make(spark, lake, version, **more)
        sql = table.name.sql
        versions = [table.current_version()]
        for statement in (
            f"DELETE FROM {sql} WHERE id IN (1, 2, 3)",
            f"UPDATE {sql} SET word = 'x' WHERE id IN (4, 5)",
            f"DELETE FROM {sql} WHERE id = 6",
            f"MERGE INTO {sql} t USING (SELECT id FROM range(7, 25)) s ON t.id = s.id"
            " WHEN MATCHED AND s.id < 10 THEN DELETE WHEN MATCHED AND s.id < 12 THEN UPDATE SET word = 'y'"
            " WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.id, 'new')",
            f"INSERT INTO {sql} VALUES (100, 'z')",
        ):
            spark.sql(statement)
            versions.append(table.current_version())
        for start, end in ((1, 2), (1, 3), (3, 4), (0, 5)):
            old, new = versions[start], versions[end]
            self.check_change(spark, table, old, new)
            counted = table.row_count(new)
            assert counted in (None, table.read(spark, new).count())
            assert counted is not None or version == 2
        deleted, _, bound = self.check_change(spark, table, versions[0], versions[1])
        assert not deleted or "copy-on-write" in more.values()
        assert bound == 3 or "copy-on-write" in more.values()

    def test_a_column_with_a_default_changes_all_older_rows(
        self, spark: SparkSession, lake: IcebergLake
    ) -> None:
        table = self.make(spark, lake, 3)
        sql, first = table.name.sql, table.current_version()
        jvm = spark._jvm
        assert jvm is not None
        types, literal = jvm.org.apache.iceberg.types.Types, jvm.org.apache.iceberg.expressions.Literal
        loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, sql)
        loaded.updateSchema().addColumn("rank", types.IntegerType.get(), "", literal.of(7)).commit()
        spark.sql(f"REFRESH TABLE {sql}")
        spark.sql(f"INSERT INTO {sql} VALUES (100, 'z', 1)")
        second = table.current_version()
        ranks = Counter(row["rank"] for row in table.read(spark, second).collect())
        assert ranks == {7: 20, 1: 1}
        change = table.change_between(first, second)
        assert (change.kind, change.appended) == (ChangeKind.UNKNOWN, True)
        assert change.reason.code is ReasonCode.COLUMN_WITH_DEFAULT
        assert change.reason.params["column"] == "rank"
        with pytest.raises(HistoryLostError, match="rank"):
            table.changed_rows(spark, first, second)
        # From then on changes are followed again, also of the older rows.
        spark.sql(f"DELETE FROM {sql} WHERE id = 3")
        _, removed, _ = self.check_change(spark, table, second, table.current_version())
        assert removed == Counter([(3, "3", 7)])

    def test_vectors_that_grew_much_are_compared_whole(
        self, spark: SparkSession, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_DELETE_POSITIONS", 0)
        table = self.make(spark, lake, 3)
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id < 3")
        old = table.current_version()
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id < 6")
        _, removed, bound = self.check_change(spark, table, old, table.current_version())
        # Rows have ids in version 3: those that stayed are known although they are counted.
        assert bound > 3
        assert removed.total() == 3

    def test_rows_that_a_rewrite_only_carried_over_are_left_out(
        self, spark: SparkSession, lake: IcebergLake
    ) -> None:
        table = self.make(spark, lake, 3, **REWRITES)
        sql = table.name.sql
        first = table.current_version()
        spark.sql(f"UPDATE {sql} SET word = 'x' WHERE id = 4")
        second = table.current_version()
        added, removed, bound = self.check_change(spark, table, first, second)
        assert (added, removed) == (Counter([(4, "x")]), Counter([(4, "4")]))
        assert bound > 2
        assert table.changed_rows(spark, first, second).carried
        spark.sql(f"UPDATE {sql} SET word = '4' WHERE id = 4")
        spark.sql(f"DELETE FROM {sql} WHERE id = 5")
        added, removed, _ = self.check_change(spark, table, first, table.current_version())
        assert added == Counter([(4, "4")])
        assert removed == Counter([(4, "4"), (5, "5")])

    def test_positions_that_are_too_many_to_list_are_joined(
        self, spark: SparkSession, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_POSITIONS_IN_FILTER", 2)
        table = self.make(spark, lake, 3)
        sql = table.name.sql
        # The same positions in a second file, with other rows.
        spark.sql(f"INSERT INTO {sql} SELECT id + 1000, 'second' FROM range(20)")
        spark.sql(f"DELETE FROM {sql} WHERE id IN (1, 2, 1001)")
        old = table.current_version()
        spark.sql(f"DELETE FROM {sql} WHERE id IN (3, 4, 1002, 1007)")
        _, removed, bound = self.check_change(spark, table, old, table.current_version())
        deleted_rows = [(3, "3"), (4, "4"), (1002, "second"), (1007, "second")]
        assert (removed, bound) == (Counter(deleted_rows), 4)

    def test_what_a_vector_held_before_costs_nothing(
        self, spark: SparkSession, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_DELETE_POSITIONS", 2)
        table = self.make(spark, lake, 3)
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id < 12")
        old = table.current_version()
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id < 14")
        _, removed, bound = self.check_change(spark, table, old, table.current_version())
        assert (removed, bound) == (Counter([(12, "12"), (13, "13")]), 2)

        monkeypatch.setattr(limits, "MAX_DELETION_VECTOR_POSITIONS", 3)
        assert self.check_change(spark, table, old, table.current_version())[2] > 2

    def test_a_compaction_in_between_costs_nothing(self, spark: SparkSession, lake: IcebergLake) -> None:
        table = self.make(spark, lake, 3)
        first = table.current_version()
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id = 1")
        self.compact(spark, table)
        compacted = table.current_version()
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id = 2")
        new = table.current_version()
        assert table.change_between(first, new).kind is ChangeKind.CHANGED
        added, removed, bound = self.check_change(spark, table, first, new)
        assert (added, removed, bound) == (Counter(), Counter([(1, "1"), (2, "2")]), 2)
        assert self.check_change(spark, table, compacted, new)[2] == 1

    def test_only_compacted_is_no_change(self, spark: SparkSession, lake: IcebergLake) -> None:
        table = self.make(spark, lake, 3)
        old = table.current_version()
        self.compact(spark, table)
        assert old != table.current_version()
        change = table.changed_rows(spark, old, table.current_version())
        assert (change.added, change.removed, change.rows) == (None, None, 0)

    def compact(self, spark: SparkSession, table: LakeTable) -> None:
        done = spark.sql(
            f"CALL lake.system.rewrite_data_files(table => '{table.name.sql}',"
            " options => map('rewrite-all', 'true'))"
        ).collect()
        assert done[0]["rewritten_data_files_count"] > 0

    def test_equality_deletes(self, spark: SparkSession, lake: IcebergLake) -> None:
        table = self.make(spark, lake, 2, flat=True)
        first = table.current_version()
        delete_by_word(lake, table.name, "7")
        second = table.current_version()
        delete_by_word(lake, table.name, "8")
        third = table.current_version()
        deleted_rows = self.check_change(spark, table, first, second)[1]
        assert deleted_rows == Counter([(7, "7")])
        self.check_change(spark, table, second, third)
        self.check_change(spark, table, first, third)
        assert table.row_count(third) is None

    def test_rows_below_equality_deletes_and_old_formats_are_refused(
        self, spark: SparkSession, lake: IcebergLake
    ) -> None:
        table = self.make(spark, lake, 2, flat=True)
        with pytest.raises(LakeError, match="DELETION_VECTORS_UNSUPPORTED"):
            self.apply(spark, table, "id = 1")
        delete_by_word(lake, table.name, "7")
        spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('format-version' = '3')")
        with pytest.raises(LakeError, match="equality"):
            self.apply(spark, table, "id < 20")

    def test_position_deletes_of_the_older_format_go_into_the_vector(
        self, spark: SparkSession, lake: IcebergLake
    ) -> None:
        table = self.make(spark, lake, 2)
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id IN (1, 2)")
        stale = self.where(spark, table, "id in (3, 4)")
        spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('format-version' = '3')")
        old = table.current_version()
        table.apply(table.fork(), [], stale, commit_metadata())
        assert self.ids(spark, table) == [0, *range(5, 20)]
        self.check_change(spark, table, old, table.current_version())
        with pytest.raises(LakeError, match="ROW_DELETED_TWICE"):
            table.apply(table.fork(), [], stale, commit_metadata())


class TestPyIceberg(ExternalWriters):
    """Copy-on-write by PyIceberg, and what PyIceberg reads of ours."""

    @pytest.fixture
    def outside(self, spark: SparkSession) -> SqlCatalog:
        file = spark.conf.get("spark.sql.catalog.lake.uri").removeprefix("jdbc:sqlite:").split("?")[0]
        file = file.removeprefix("file:")
        return SqlCatalog(
            "lake", uri=f"sqlite:///{file}", warehouse=spark.conf.get("spark.sql.catalog.lake.warehouse")
        )

    @staticmethod
    def rows(*ids: int, word: str | None = None) -> pa.Table:
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "word": pa.array([word or str(number) for number in ids], pa.string()),
            }
        )

    def test_a_table_of_pyiceberg(self, spark: SparkSession, lake: IcebergLake, outside: SqlCatalog) -> None:
        outside.create_namespace_if_not_exists("outside")
        name = TableName("lake", ("outside",), f"p_{uuid.uuid4().hex[:8]}")
        pyiceberg_table = outside.create_table(f"outside.{name.table}", self.rows().schema)
        table = lake.load(name)
        versions = [table.current_version()]
        pyiceberg_table.append(self.rows(*range(10)))
        versions.append(table.current_version())
        pyiceberg_table.append(self.rows(*range(10, 20)))
        versions.append(table.current_version())
        pyiceberg_table.delete("id in (1, 11)")
        versions.append(table.current_version())
        pyiceberg_table.overwrite(self.rows(2, word="x"), overwrite_filter="id = 2")
        versions.append(table.current_version())
        pyiceberg_table.upsert(self.rows(3, 40, word="u"), join_cols=["id"])
        versions.append(table.current_version())
        for start, end in ((2, 3), (3, 4), (4, 5), (1, 4), (0, 5)):
            old, new = versions[start], versions[end]
            self.check_change(spark, table, old, new)
            assert table.row_count(new) == table.read(spark, new).count()

    def test_pyiceberg_reads_row_deltas(
        self, spark: SparkSession, table: LakeTable, outside: SqlCatalog
    ) -> None:
        fork = table.fork()
        table.commit_staged(fork, [table.stage(fork, local(spark, *range(5)), local=True)], commit_metadata())
        self.apply(spark, table, "id = 1")
        self.apply(spark, table, "id = 3", 30)
        pyiceberg_table = outside.load_table((*table.name.namespace, table.name.table))
        assert sorted(pyiceberg_table.scan().to_arrow()["id"].to_pylist()) == [0, 2, 4, 30]


class TestCost(ChangeBench):
    """A change is read from its files alone, and file sets are released."""

    def test_only_files_that_changed_are_read(
        self, spark: SparkSession, lake: IcebergLake, table: LakeTable
    ) -> None:
        for start in range(0, 50, 10):
            self.append(spark, table, commit_metadata(), *range(start, start + 10))
        old = table.current_version()
        (changed_file,) = self.where(spark, table, "id = 3")
        new = self.apply(spark, table, "id = 3", 100).version
        (added_file,) = self.where(spark, table, "id = 100")
        change = table.changed_rows(spark, old, new)
        assert change.rows == 2
        assert sorted(staged_file_sets(lake, table).values()) == sorted([[changed_file], [added_file]])
        assert self.bag(change.removed) == Counter([(3, "3")])

    def test_file_sets_are_released(self, spark: SparkSession, lake: IcebergLake, table: LakeTable) -> None:
        versions = [self.append(spark, table, commit_metadata(), *range(5)).version]
        retained: Any = None
        for deleted_id in range(2):
            versions.append(self.apply(spark, table, f"id = {deleted_id}").version)
            derived = table.changed_rows(spark, versions[-2], versions[-1]).removed.where("id >= 0")
            assert [row["id"] for row in derived.collect()] == [deleted_id]
            if deleted_id == 0:
                retained = derived
            del derived
        # Older sets are released when the next one is staged.
        deadline = time.monotonic() + 60
        last: Any = None
        while time.monotonic() < deadline:
            last = None
            collect_garbage(spark)
            last = table.changed_rows(spark, versions[-2], versions[-1])
            if len(staged_file_sets(lake, table)) == 2:
                break
            time.sleep(0.5)
        assert len(staged_file_sets(lake, table)) == 2, (
            "more sets are staged than those of `retained` and `last`"
        )
        assert [row["id"] for row in retained.groupBy("id").count().collect()] == [0]
        assert last.removed.count() == 1


class TestStreams(ChangeBench):
    """Where a stream begins once versions are expired."""

    def test_a_history_that_cannot_be_read_from_the_beginning(
        self, spark: SparkSession, lake: IcebergLake, table: LakeTable
    ) -> None:
        first = self.append(spark, table, commit_metadata(), *range(5)).version
        self.apply(spark, table, "id = 1")
        last = self.append(spark, table, commit_metadata(), 9).version
        tolerant = {"streaming-skip-overwrite-snapshots": True, "streaming-skip-delete-snapshots": True}
        skipping = stream_of(spark, table, **tolerant)
        assert lake.beginning(skipping, {}, {}).offsets == {}, "nothing is expired"
        with pytest.raises(LakeError, match="STREAM_HISTORY_EXPIRED"):
            # Spark's source would stop at the version that took rows away.
            lake.beginning(stream_of(spark, table), {}, {})
        table.expire(Retention(followed=frozenset({last}), after_ms=10**15), Fence(1))
        with pytest.raises(LakeError, match="STREAM_HISTORY_EXPIRED"):
            lake.beginning(stream_of(spark, table, **tolerant), {}, {})
        rows = stream_of(spark, table)
        with pytest.raises(LakeError, match="STREAM_HISTORY_EXPIRED"):
            lake.beginning(rows, {}, {})
        # A stream that goes on is past the expired versions.
        remembered = {0: json.dumps({"snapshot_id": int(first)})}
        reached = {0: json.dumps({"snapshot_id": int(last), "position": 1})}
        assert lake.beginning(rows, remembered, reached).offsets == {
            0: json.dumps({"snapshot_id": int(last), "position": 0})
        }


def stream_of(spark: SparkSession, table: LakeTable, **options: bool) -> DataFrame:
    spark.catalog.refreshTable(table.name.sql)
    return spark.readStream.options(**options).table(table.name.sql)


def staged_file_sets(lake: IcebergLake, table: LakeTable) -> dict[str, list[str]]:
    """The sets of data files that are kept for frames."""
    iceberg: Any = lake._iceberg
    java_table, manager = iceberg.load(table.name), iceberg.api.spark.ScanTaskSetManager.get()
    keys = items(manager.fetchSetIds(java_table))
    return {key: iceberg.functions.task_paths(manager.fetchTasks(java_table, key)) for key in keys}


def collect_garbage(spark: SparkSession) -> None:
    """Release in the JVM what Python dropped, of which the JVM is told a moment later."""
    jvm: Any = spark._jvm
    last_dropped = jvm.java.lang.Object()
    released = jvm.java.lang.ref.WeakReference(last_dropped)
    del last_dropped
    gc.collect()
    deadline = time.monotonic() + 10
    while True:
        jvm.java.lang.System.gc()
        if released.refersTo(None):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def delete_by_word(lake: IcebergLake, name: TableName, word: str) -> None:
    """What Flink does: a delete file that says `word = …`."""
    iceberg: Any = lake._iceberg
    table, api, jvm = iceberg.load(name), iceberg.api, iceberg.jvm
    schema = table.schema().select(iceberg.strings(["word"]))
    factory = getattr(api.data, "GenericFileWriterFactory$Builder")(table)
    factory = factory.equalityFieldIds(iceberg.array(jvm.int, [schema.findField("word").fieldId()]))
    factory = factory.equalityDeleteRowSchema(schema).build()
    output = api.io.OutputFileFactory.builderFor(table, 0, 0).format(api.FileFormat.PARQUET).build()
    writer = factory.newEqualityDeleteWriter(output.newOutputFile(), table.spec(), None)
    record = api.data.GenericRecord.create(schema)
    record.setField("word", word)
    writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
