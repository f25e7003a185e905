"""What tables promise to incremental views: row deltas in, row changes out, companions.

See `tests.support.lake_conformance` for how to run it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.lake_conformance import SCHEMA, LakeBench, commit_metadata

from tautochrone.errors import ConflictError, FencedError, HistoryLostError, LakeError
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import LakeTable, Staged, TableDefinition
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import Reason

__all__ = ["ChangeBench", "ChangeConformance", "every_type", "every_value", "local", "spark_jobs"]

Bag = Counter[Any]


def local(spark: SparkSession, *ids: int) -> DataFrame:
    """Rows of the bench's schema that the driver holds."""
    return spark.createDataFrame(
        pa.table({"id": pa.array(ids, pa.int64()), "word": pa.array([str(n) for n in ids], pa.string())})
    )


def spark_jobs(spark: SparkSession) -> int:
    """How many Spark jobs this Spark has been given so far."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


class ChangeBench(LakeBench):
    """Ways to delete by value and to check a change against the versions."""

    @staticmethod
    def where(spark: SparkSession, table: LakeTable, condition: str) -> dict[str, list[int]]:
        """File and position of the rows that match."""
        rows = table.read(spark, table.current_version()).where(condition).select("_file", "_pos").collect()
        positions_of_file: dict[str, list[int]] = {}
        for file, position in rows:
            positions_of_file.setdefault(file, []).append(position)
        return positions_of_file

    def apply(self, spark: SparkSession, table: LakeTable, condition: str, *ids: int, fence: int = 1) -> Any:
        fork = table.fork()
        staged = [table.stage(fork, local(spark, *ids), local=True)] if ids else []
        return table.apply(fork, staged, self.where(spark, table, condition), commit_metadata(fence))

    @staticmethod
    def bag(frame: DataFrame | None) -> Bag:
        return Counter() if frame is None else Counter(tuple(row) for row in frame.collect())

    def check_change(
        self, spark: SparkSession, table: LakeTable, old: Version, new: Version
    ) -> tuple[Bag, Bag, int]:
        """Old plus what was added less what was removed is new; answers added, removed and the bound."""
        change = table.changed_rows(spark, old, new)
        added, removed = self.bag(change.added), self.bag(change.removed)
        before, after = self.bag(table.read(spark, old)), self.bag(table.read(spark, new))
        assert not removed - (before + added)
        assert before + added - removed == after
        assert change.rows >= added.total() + removed.total()
        collected = table.collected_change(old, new)
        if not isinstance(collected, Reason):
            came, left = self.arrow_bag(collected.added), self.arrow_bag(collected.removed)
            assert (came - left, left - came) == (added - removed, removed - added)
        return added, removed, change.rows

    @staticmethod
    def arrow_bag(rows: Any) -> Bag:
        return Counter() if rows is None else Counter(tuple(row.values()) for row in rows.to_pylist())


class ChangeConformance(ChangeBench):
    """Behaviours of `model.lake` that incremental views need. Fixtures as for `LakeConformance`."""

    # -- apply ------------------------------------------------------------------------------------

    def test_deleting_and_adding_is_one_version(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(), *range(10))
        before = len(table.versions())
        done = self.apply(spark, table, "id in (3, 4)", 30, 31, 32)
        assert (done.rows_inserted, done.rows_deleted) == (3, 2)
        assert done.version == table.current_version()
        assert len(table.versions()) == before + 1
        assert self.ids(spark, table) == [0, 1, 2, 5, 6, 7, 8, 9, 30, 31, 32]

    def test_deleting_from_a_file_again_and_again(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        table.commit_staged(fork, [table.stage(fork, local(spark, *range(6)), local=True)], commit_metadata())
        for deleted_id in range(6):
            self.apply(spark, table, f"id = {deleted_id}")
            assert self.ids(spark, table) == list(range(deleted_id + 1, 6))
        assert table.row_count(table.current_version()) == 0
        self.apply(spark, table, "id < 0", 7)
        assert self.ids(spark, table) == [7]

    def test_duplicates_are_deleted_one_by_one(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(), 1, 1, 1, 2)
        file, positions = next(
            (file, row_positions)
            for file, row_positions in self.where(spark, table, "id = 1").items()
            if row_positions
        )
        done = table.apply(table.fork(), [], {file: positions[:1]}, commit_metadata())
        assert done.rows_deleted == 1
        assert self.ids(spark, table) == [1, 1, 2]

    def test_deletes_in_many_files(self, spark: SparkSession, table: LakeTable) -> None:
        for start in range(0, 40, 10):
            self.append(spark, table, commit_metadata(), *range(start, start + 10))
        done = self.apply(spark, table, "id % 10 < 3", 100)
        assert done.rows_deleted == 12
        assert self.ids(spark, table) == [n for n in range(40) if n % 10 >= 3] + [100]

    def test_deletes_that_cannot_be_are_refused(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        table.commit_staged(fork, [table.stage(fork, local(spark, 1, 2, 3), local=True)], commit_metadata())
        stale = self.where(spark, table, "id = 1")
        (file,) = stale
        self.apply(spark, table, "id = 1")
        fork = table.fork()
        refused: tuple[dict[str, list[int]], ...] = (
            stale,
            {file: [1, 1]},
            {file: [3]},
            {file: [-1]},
            {"file:/nowhere.parquet": [0]},
        )
        for deletes in refused:
            with pytest.raises(LakeError):
                table.apply(fork, [], deletes, commit_metadata())
        assert table.current_version() == fork.version
        assert self.ids(spark, table) == [2, 3]

    def test_files_of_later_versions_are_refused(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        self.append(spark, table, commit_metadata(), 1)
        with pytest.raises(LakeError):
            table.apply(fork, [], self.where(spark, table, "id = 1"), commit_metadata())
        assert self.ids(spark, table) == [1]

    def test_applying_to_what_moved_is_refused(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(), 1, 2)
        fork, deletes = table.fork(), self.where(spark, table, "id = 1")
        self.append(spark, table, commit_metadata(), 3)
        with pytest.raises(ConflictError):
            table.apply(fork, [], deletes, commit_metadata())
        table.raise_fence(table.fork(), commit_metadata(5))
        with pytest.raises(FencedError):
            table.apply(table.fork(), [], deletes, commit_metadata(4))
        assert self.ids(spark, table) == [1, 2, 3]

    def test_partitions(self, spark: SparkSession, lake: LakeCatalog) -> None:
        name = TableName("lake", ("conformance",), f"t_{uuid.uuid4().hex[:8]}")
        definition = TableDefinition(name=name, schema=SCHEMA, partition_columns=("word", "bucket(2, id)"))
        table = lake.create(definition, commit_metadata())
        self.append(spark, table, commit_metadata(), *range(8))
        done = self.apply(spark, table, "word in ('1', '2', '5')", 1, 50)
        assert (done.rows_inserted, done.rows_deleted) == (2, 3)
        self.apply(spark, table, "id = 50")
        assert self.ids(spark, table) == [0, 1, 3, 4, 6, 7]
        assert table.read(spark, table.current_version()).where("word = '1'").count() == 1

    # -- rows that the process writes itself ------------------------------------------------------

    def test_local_rows_are_the_same_rows(self, spark: SparkSession, lake: LakeCatalog) -> None:
        name = TableName("lake", ("conformance",), f"t_{uuid.uuid4().hex[:8]}")
        rows = every_type(spark)
        table = lake.create(TableDefinition(name=name, schema=rows.schema), commit_metadata())
        fork = table.fork()
        jobs = spark_jobs(spark)
        staged = table.stage(fork, rows, local=True)
        assert spark_jobs(spark) == jobs
        assert staged.rows == 2
        table.commit_staged(fork, [staged], commit_metadata())
        stored_rows = table.read(spark, table.current_version()).orderBy("id").collect()
        assert stored_rows == rows.orderBy("id").collect()
        by_spark = lake.create(
            TableDefinition(name=TableName("lake", ("conformance",), f"{name.table}_s"), schema=rows.schema),
            commit_metadata(),
        )
        fork = by_spark.fork()
        by_spark.commit_staged(fork, [by_spark.stage(fork, rows)], commit_metadata())
        assert by_spark.read(spark, by_spark.current_version()).orderBy("id").collect() == stored_rows

    def test_rows_that_are_not_local_are_written_too(self, spark: SparkSession, table: LakeTable) -> None:
        frames = (
            spark.range(3).selectExpr("id", "CAST(id AS STRING) AS word"),
            # Another order and another type: Spark's write casts and arranges.
            local(spark, 3, 4).selectExpr("word", "CAST(id AS INT) AS id"),
            local(spark).limit(0),
        )
        for frame in frames:
            fork = table.fork()
            table.commit_staged(fork, [table.stage(fork, frame, local=True)], commit_metadata())
        assert self.ids(spark, table) == [0, 1, 2, 3, 4]

    # -- changed rows and counts ------------------------------------------------------------------

    def test_changed_rows_of_every_kind_of_commit(self, spark: SparkSession, table: LakeTable) -> None:
        start = table.current_version()
        first = self.append(spark, table, commit_metadata(), *range(20)).version
        second = self.apply(spark, table, "id in (3, 4)", 30).version
        third = self.apply(spark, table, "id in (5, 30)", 31, 32).version
        table.raise_fence(table.fork(), commit_metadata())
        fork = table.fork()
        fourth = table.replace_rows(
            fork, [table.stage(fork, self.frame(spark, 1, 2))], commit_metadata()
        ).version

        def ids(*numbers: int) -> Bag:
            return Counter((number, str(number)) for number in numbers)

        assert self.check_change(spark, table, start, first) == (ids(*range(20)), ids(), 20)
        assert self.check_change(spark, table, first, second) == (ids(30), ids(3, 4), 3)
        assert self.check_change(spark, table, second, third) == (ids(31, 32), ids(5, 30), 4)
        added, removed, bound = self.check_change(spark, table, first, third)
        assert (added, removed) == (ids(31, 32), ids(3, 4, 5))
        assert bound <= 6
        self.check_change(spark, table, second, fourth)
        self.check_change(spark, table, start, fourth)
        counts = [table.row_count(version) for version in (start, first, second, third, fourth)]
        assert counts == [0, 20, 19, 19, 2]

    def test_nothing_moved_is_no_change(self, spark: SparkSession, table: LakeTable) -> None:
        old = self.append(spark, table, commit_metadata(), 1).version
        table.raise_fence(table.fork(), commit_metadata())
        change = table.changed_rows(spark, old, table.current_version())
        assert (change.added, change.removed, change.rows) == (None, None, 0)

    def test_rows_of_an_unprovable_change_raise_history_lost(
        self, spark: SparkSession, table: LakeTable
    ) -> None:
        old = self.append(spark, table, commit_metadata(), 1).version
        new = self.append(spark, table, commit_metadata(), 2).version
        with pytest.raises(HistoryLostError):
            table.changed_rows(spark, new, old)

    def test_new_columns_are_null_in_older_rows(self, spark: SparkSession, table: LakeTable) -> None:
        start = table.current_version()
        first = self.append(spark, table, commit_metadata(), *range(4)).version
        wider = spark.createDataFrame([(9, "9", 1.5)], "id bigint, word string, more double")
        table.widen(table.fork(), wider.schema, commit_metadata())
        fork = table.fork()
        second = table.commit_staged(fork, [table.stage(fork, wider)], commit_metadata()).version
        third = self._apply_wide(spark, table, "id = 2")
        steps = ((start, first), (first, second), (first, third), (start, third))
        for old, new in steps:
            change = table.changed_rows(spark, old, new)
            for frame in (change.added, change.removed):
                assert frame is None or frame.columns == ["id", "word", "more"]
        lost = table.changed_rows(spark, first, third)
        assert self.bag(lost.removed) == Counter([(2, "2", None)])
        assert self.bag(lost.added) == Counter([(9, "9", 1.5)])

    def _apply_wide(self, spark: SparkSession, table: LakeTable, condition: str) -> Version:
        return table.apply(table.fork(), [], self.where(spark, table, condition), commit_metadata()).version

    # -- companions -------------------------------------------------------------------------------

    def test_a_companion_goes_on_from_the_named_version(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        """A crash between a companion's commit and its view's leaves a newer version on the companion."""
        companion = table
        named = self._add(spark, companion, 1)
        orphan = self._add(spark, companion, 2)
        # The next owner raised the fence. It reads the version that its view names, not the newest one.
        companion.raise_fence(companion.fork(), commit_metadata(2))
        assert [row["id"] for row in companion.read(spark, named).collect()] == [1]
        late: tuple[Callable[[], object], ...] = (
            lambda: companion.roll_back(named, commit_metadata(1)),
            lambda: self._add(spark, companion, 9),
        )
        for attempt in late:
            with pytest.raises(FencedError):
                attempt()
        companion.roll_back(named, commit_metadata(2))
        companion.roll_back(named, commit_metadata(2))
        after = companion.fork()
        assert (after.version, after.fence) == (named, Fence(2))
        zombie = self._staged(spark, companion, 8)
        with pytest.raises(FencedError):
            companion.commit_staged(after, [zombie], commit_metadata(1))
        newest = self._add(spark, companion, 3, fence=2)
        assert self.ids(spark, companion) == [1, 3]
        self.check_change(spark, companion, named, newest)
        with pytest.raises(HistoryLostError):
            companion.changed_rows(spark, orphan, newest)
        fork = companion.fork()
        folded = companion.replace_rows(fork, [self._staged(spark, companion, 4)], commit_metadata(2)).version
        assert [row["id"] for row in companion.read(spark, newest).orderBy("id").collect()] == [1, 3]
        assert [row["id"] for row in companion.read(spark, folded).collect()] == [4]
        assert companion.row_count(folded) == 1
        again = lake.create(TableDefinition(name=companion.name, schema=SCHEMA), commit_metadata(2))
        assert again.current_version() == folded

    def _staged(self, spark: SparkSession, table: LakeTable, *ids: int) -> Staged:
        return table.stage(table.fork(), local(spark, *ids), local=True)

    def _add(self, spark: SparkSession, table: LakeTable, *ids: int, fence: int = 1) -> Version:
        fork = table.fork()
        return table.commit_staged(fork, [self._staged(spark, table, *ids)], commit_metadata(fence)).version


def every_type(spark: SparkSession) -> DataFrame:
    """`every_value` as rows that the driver holds."""
    # Spark reads Arrow's local times as instants.
    rows = spark.createDataFrame(every_value())
    return rows.withColumn("wall", rows["wall"].cast("timestamp_ntz"))


def every_value() -> pa.Table:
    """Two rows: values at the edges, and NULLs."""
    when = datetime(2026, 3, 29, 1, 59, 59, 123457, tzinfo=UTC)
    values: dict[str, tuple[pa.DataType, Any]] = {
        "flag": (pa.bool_(), True),
        "small": (pa.int32(), -(2**31)),
        "big": (pa.int64(), 2**63 - 1),
        "single": (pa.float32(), 0.1),
        "double": (pa.float64(), float("-inf")),
        "money": (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678")),
        "cents": (pa.decimal128(9, 2), Decimal("0.01")),
        "day": (pa.date32(), date(1582, 10, 4)),
        "at": (pa.timestamp("us", tz="UTC"), when),
        "wall": (pa.timestamp("us"), when.replace(tzinfo=None)),
        "text": (pa.string(), "ä\x00\n'\\"),
        "bytes": (pa.binary(), b"\x00\xff"),
        "list": (pa.list_(pa.string()), ["a", None]),
        "nested": (pa.struct([("a", pa.int64()), ("b", pa.decimal128(20, 3))]), {"a": 1, "b": Decimal(2)}),
        "pairs": (pa.map_(pa.string(), pa.list_(pa.int64())), [("k", [1, None])]),
    }  # fmt: skip
    columns = {name: pa.array([value, None], kind) for name, (kind, value) in values.items()}
    return pa.table({"id": pa.array([1, 2], pa.int64()), **columns})
