"""What the commit protocol promises: one suite of behaviours. Iceberg runs it, and so may tables of tests.

A test class subclasses `LakeConformance` and provides the fixture `lake`. What its tables cannot do is marked
with `notimpl` (not written), `notyet` (a library under it cannot yet) or `never` (with the reason);
all three are strict: a behaviour that starts to work fails the suite until its mark is removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tautochrone.errors import ConflictError, FencedError, LakeError, TableMissingError
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import ChangeKind, CommitMetadata, LakeTable, Outcome, Retention, TableDefinition
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import ReasonCode
from tautochrone.model.source_position import SparkPosition

__all__ = ["LakeBench", "LakeConformance", "never", "notimpl", "notyet"]

SCHEMA = StructType([StructField("id", LongType()), StructField("word", StringType())])


def _mark(kind: str) -> Any:
    def with_reason(reason: str) -> pytest.MarkDecorator:
        return pytest.mark.xfail(reason=f"{kind}: {reason}", strict=True)

    return with_reason


notimpl, notyet, never = _mark("notimpl"), _mark("notyet"), _mark("never")


def commit_metadata(fence: int = 1, **fields: Any) -> CommitMetadata:
    return CommitMetadata(pipeline="p", job="j", fence=Fence(fence), store="s", **fields)


def position(batch: int) -> SparkPosition:
    return SparkPosition(query_id="q", batch_id=batch, offsets=f"v1\n{{}}\n{batch}", commit="v1\n{}")


class LakeBench:
    """A fresh table per test, and helpers to fill and read it."""

    @pytest.fixture
    def table(self, lake: LakeCatalog) -> LakeTable:
        name = TableName("lake", ("conformance",), f"t_{uuid.uuid4().hex[:8]}")
        return lake.create(TableDefinition(name=name, schema=SCHEMA), commit_metadata())

    @staticmethod
    def frame(spark: SparkSession, *ids: int) -> DataFrame:
        return spark.createDataFrame([(number, str(number)) for number in ids], SCHEMA)

    @staticmethod
    def ids(spark: SparkSession, table: LakeTable) -> list[int]:
        rows = table.read(spark, table.current_version()).collect()
        return sorted(row["id"] for row in rows)

    def append(
        self, spark: SparkSession, table: LakeTable, commit_metadata: CommitMetadata, *ids: int
    ) -> Any:
        fork = table.fork()
        return table.commit_staged(fork, [table.stage(fork, self.frame(spark, *ids))], commit_metadata)


class LakeConformance(LakeBench):
    """Behaviours of `model.lake`. Fixtures: `spark`, `lake` (a LakeCatalog named `lake`)."""

    def test_a_new_table_has_a_first_version_and_an_owner(self, lake: LakeCatalog, table: LakeTable) -> None:
        fork = table.fork()
        assert fork.commit_metadata is not None
        assert fork.fence == 1
        assert lake.exists(table.name)
        assert table.name in lake.tables()
        assert [field.name for field in lake.schema(table.name).fields] == ["id", "word"]

    def test_creating_again_returns_the_same_table(self, lake: LakeCatalog, table: LakeTable) -> None:
        before = table.current_version()
        lake.create(TableDefinition(name=table.name, schema=SCHEMA), commit_metadata())
        assert table.current_version() == before

    def test_tables_of_a_new_namespace_at_once(self, lake: LakeCatalog) -> None:
        """As the states of a job's views are, when several views are built for the first time."""
        for _ in range(3):
            namespace = f"n_{uuid.uuid4().hex[:8]}"
            names = [TableName("lake", (namespace,), f"t{number}") for number in range(8)]
            with ThreadPoolExecutor(len(names)) as pool:
                list(
                    pool.map(
                        lambda n: lake.create(TableDefinition(name=n, schema=SCHEMA), commit_metadata()),
                        names,
                    )
                )
            assert all(lake.exists(name) for name in names)

    def test_a_missing_table_is_an_error(self, lake: LakeCatalog) -> None:
        with pytest.raises(TableMissingError):
            lake.load(TableName("lake", ("conformance",), "nowhere"))

    def test_staged_files_are_invisible(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 1, 2))
        assert staged.rows == 2
        assert table.current_version() == fork.version
        table.discard(staged)
        assert self.ids(spark, table) == []

    def test_prepare_then_commit(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        written = commit_metadata(positions={"f": position(0)})
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1, 2))], written)
        assert table.current_version() == fork.version
        assert table.outcome(prepared.version) is Outcome.PENDING
        assert list(table.prepared()) == [prepared]
        done = table.commit(prepared, Fence(1))
        assert done.version == prepared.version == table.current_version()
        assert table.outcome(prepared.version) is Outcome.COMMITTED
        assert not table.prepared()
        assert self.ids(spark, table) == [1, 2]
        assert table.fork().commit_metadata == written

    def test_rows_are_counted_over_prepared_batches(self, spark: SparkSession, table: LakeTable) -> None:
        for number in range(3):
            fork = table.fork()
            staged = table.stage(fork, self.frame(spark, number, number + 10))
            table.commit(table.prepare(fork, [staged], commit_metadata()), Fence(1))
        assert table.row_count(table.current_version()) == 6

    def test_committing_again_changes_nothing(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        first = table.commit(prepared, Fence(1))
        self.append(spark, table, commit_metadata(), 2)
        assert table.commit(prepared, Fence(1)) == first
        assert self.ids(spark, table) == [1, 2]

    def test_several_parts_in_one_version(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        parts = [table.stage(fork, self.frame(spark, n)) for n in (1, 2, 3)]
        table.commit(table.prepare(fork, parts, commit_metadata()), Fence(1))
        assert self.ids(spark, table) == [1, 2, 3]
        assert len(table.versions()) == 2

    def test_a_version_knows_its_rows(self, spark: SparkSession, table: LakeTable) -> None:
        """The count is of all rows, not of the last batch: estimates of a refresh use it."""
        for number in (1, 2, 3):
            fork = table.fork()
            staged = table.stage(fork, self.frame(spark, number))
            committed = table.commit(table.prepare(fork, [staged], commit_metadata()), Fence(1))
            assert table.row_count(committed.version) == number

    def test_an_aborted_batch_is_gone(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.abort(prepared)
        table.abort(prepared)
        assert not table.prepared()
        assert table.outcome(prepared.version) is Outcome.LOST
        with pytest.raises(LakeError):
            table.commit(prepared, Fence(1))
        assert self.ids(spark, table) == []

    def test_a_committed_batch_cannot_be_aborted(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.commit(prepared, Fence(1))
        table.abort(prepared)
        assert self.ids(spark, table) == [1]

    def test_main_moved_is_a_conflict(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 1))
        prepared = table.prepare(fork, [staged], commit_metadata())
        self.append(spark, table, commit_metadata(), 2)
        attempts: tuple[Callable[[], object], ...] = (
            lambda: table.commit(prepared, Fence(1)),
            lambda: table.commit_staged(fork, [staged], commit_metadata()),
            lambda: table.replace_rows(fork, [], commit_metadata()),
            lambda: table.commit_metadata_only(fork, commit_metadata(positions={"f": position(7)})),
        )
        for late in attempts:
            with pytest.raises(ConflictError):
                late()
        assert self.ids(spark, table) == [2]

    def test_a_fence_kills_what_was_prepared(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.raise_fence(table.fork(), commit_metadata(2))
        with pytest.raises(FencedError):
            table.commit(prepared, Fence(1))
        with pytest.raises(ConflictError):
            table.commit(prepared, Fence(2))
        assert table.fork().fence == 2

    def test_an_older_owner_is_refused_everywhere(self, spark: SparkSession, table: LakeTable) -> None:
        table.raise_fence(table.fork(), commit_metadata(5))
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 1))
        attempts: tuple[Callable[[], object], ...] = (
            lambda: table.prepare(fork, [staged], commit_metadata(4)),
            lambda: table.commit_staged(fork, [staged], commit_metadata(4)),
            lambda: table.replace_rows(fork, [staged], commit_metadata(4)),
            lambda: table.commit_metadata_only(fork, commit_metadata(4)),
            lambda: table.raise_fence(fork, commit_metadata(4)),
            lambda: table.roll_back(fork.version, commit_metadata(4)),
        )
        for late in attempts:
            with pytest.raises(FencedError):
                late()

    def test_a_new_owner_commits_what_an_older_one_prepared(
        self, spark: SparkSession, table: LakeTable
    ) -> None:
        fork = table.fork()
        written = commit_metadata(positions={"f": position(3)})
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], written)
        table.commit(prepared, Fence(2))
        after = table.fork()
        assert after.fence == 2
        assert after.commit_metadata is not None
        assert after.commit_metadata.positions == {"f": position(3)}

    def test_positions_are_carried_forward(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(positions={"a": position(1)}), 1)
        self.append(spark, table, commit_metadata(positions={"b": position(2)}), 2)
        table.raise_fence(table.fork(), commit_metadata(2))
        table.commit_metadata_only(table.fork(), commit_metadata(2, positions={"a": position(4)}))
        current = table.fork().commit_metadata
        assert current is not None
        assert current.positions == {"a": position(4), "b": position(2)}

    def test_a_reset_forgets_positions(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(positions={"a": position(1)}), 1)
        table.replace_rows(table.fork(), [], commit_metadata(reset=True))
        current = table.fork().commit_metadata
        assert current is not None
        assert not current.positions
        assert self.ids(spark, table) == []

    def test_a_refresh_is_remembered_behind_fences(self, spark: SparkSession, table: LakeTable) -> None:
        written = commit_metadata(
            checkpoint=CheckpointNumber(4), mode="append", definition="d", inputs={"lake.a.b": "7"},
            companions={"lake.a.state": "9"},
        )  # fmt: skip
        self.append(spark, table, written, 1)
        table.raise_fence(table.fork(), commit_metadata(2))
        assert table.fork().commit_metadata == replace(written, fence=Fence(2))
        assert [recorded.checkpoint for _, recorded, _ in table.versions() if recorded] == [None, 4, None]

    def test_a_revert_remembers_the_refresh_behind_expired_versions(
        self, spark: SparkSession, table: LakeTable
    ) -> None:
        written = commit_metadata(
            checkpoint=CheckpointNumber(4), mode="append", definition="d", inputs={"lake.a.b": "7"}
        )
        self.append(spark, table, written, 1)
        table.commit_metadata_only(
            table.fork(), replace(written, checkpoint=CheckpointNumber(5), inputs={"lake.a.b": "8"})
        )
        fence = table.raise_fence(table.fork(), commit_metadata(2)).version
        self.append(spark, table, replace(written, fence=Fence(2), inputs={"lake.a.b": "9"}), 2)
        needed = Retention(readable=frozenset({fence}), followed=frozenset(), after_ms=2**62)
        assert table.expire(needed, Fence(2)).versions
        fenced = table.raise_fence(table.fork(), commit_metadata(2)).version
        table.expire(Retention(readable=frozenset({fence}), after_ms=2**62), Fence(2))
        reason = table.change_between(fence, fenced).reason
        assert reason.code is ReasonCode.HISTORY_EXPIRED, reason
        then = table.merged_commit_metadata_at(fence)
        assert then is not None
        assert then.inputs == {"lake.a.b": "8"}
        reverted = table.revert(fence, replace(then, fence=Fence(3)), "back").version
        assert (
            table.merged_commit_metadata_at(reverted)
            == table.fork().commit_metadata
            == replace(then, fence=Fence(3))
        )

    def test_replacing_rows_and_files(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(), 1, 2)
        self.append(spark, table, commit_metadata(), 3)
        fork = table.fork()
        holding = table.read(spark, fork.version).where("id = 3").select("_file").collect()
        staged = table.stage(fork, self.frame(spark, 30, 31))
        table.replace_files(fork, frozenset(row[0] for row in holding), [staged], commit_metadata())
        assert self.ids(spark, table) == [1, 2, 30, 31]
        fork = table.fork()
        table.replace_rows(fork, [table.stage(fork, self.frame(spark, 9))], commit_metadata())
        assert self.ids(spark, table) == [9]

    def test_changes_between_versions(self, spark: SparkSession, table: LakeTable) -> None:
        start = table.current_version()
        table.raise_fence(table.fork(), commit_metadata())
        fenced = table.current_version()
        first = self.append(spark, table, commit_metadata(), 1).version
        second = self.append(spark, table, commit_metadata(), 2).version
        fork = table.fork()
        third = table.replace_rows(fork, [table.stage(fork, self.frame(spark, 3))], commit_metadata()).version
        kinds: Sequence[tuple[Any, Any, ChangeKind]] = (
            (start, start, ChangeKind.NONE),
            (start, fenced, ChangeKind.NONE),
            (start, second, ChangeKind.APPEND),
            (first, second, ChangeKind.APPEND),
            (first, third, ChangeKind.CHANGED),
            (second, first, ChangeKind.UNKNOWN),
        )
        for old, new, kind in kinds:
            assert table.change_between(old, new).kind is kind, (old, new)
        options = table.read_options(start, second)
        rows = spark.read.options(**dict(options)).table(table.name.sql).collect()
        assert sorted(row["id"] for row in rows) == [1, 2]

    def test_older_versions_stay_readable(self, spark: SparkSession, table: LakeTable) -> None:
        first = self.append(spark, table, commit_metadata(), 1).version
        self.append(spark, table, commit_metadata(), 2)
        assert [row["id"] for row in table.read(spark, first).collect()] == [1]

    def test_redefining_keeps_older_versions(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        old = self.append(spark, table, commit_metadata(), 1).version
        schema = StructType([StructField("word", StringType()), StructField("length", LongType())])
        rows = spark.createDataFrame([("abc", 3)], schema)
        definition = TableDefinition(name=table.name, schema=schema)
        table.redefine(table.fork(), definition, rows, commit_metadata(mode="full"))
        assert [tuple(row) for row in table.read(spark, table.current_version()).collect()] == [("abc", 3)]
        assert [tuple(row) for row in table.read(spark, old).collect()] == [(1, "1")]
        assert lake.schema(table.name).simpleString() == schema.simpleString()

    def test_rolling_back(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(positions={"f": position(1)}), 1)
        earlier = table.fork()
        self.append(spark, table, commit_metadata(positions={"f": position(2)}), 2)
        assert earlier.commit_metadata is not None
        table.roll_back(earlier.version, earlier.commit_metadata)
        assert self.ids(spark, table) == [1]
        assert table.fork().commit_metadata == earlier.commit_metadata

    def test_reverting(self, spark: SparkSession, table: LakeTable) -> None:
        first = self.append(spark, table, commit_metadata(positions={"f": position(1), "g": position(5)}), 1)
        self.append(spark, table, commit_metadata(positions={"f": position(2)}), 2)
        wrong = self.append(spark, table, commit_metadata(positions={"f": position(3)}), 3).version
        early = table.fork()
        metadata_at_first = table.merged_commit_metadata_at(first.version)
        assert metadata_at_first is not None
        assert metadata_at_first.positions == {"f": position(1), "g": position(5)}
        done = table.revert(first.version, replace(metadata_at_first, fence=Fence(2)), "kept")
        assert (
            table.revert(first.version, replace(metadata_at_first, fence=Fence(2)), "kept").version
            == done.version
        )
        assert self.ids(spark, table) == [1]
        assert table.fork().commit_metadata == replace(metadata_at_first, fence=Fence(2))
        assert sorted(row["id"] for row in table.read(spark, wrong).collect()) == [1, 2, 3]
        assert list(table.tags()) == ["kept"]
        # The older rows are in its history, the versions that were taken back are not.
        assert table.change_between(first.version, done.version).kind is ChangeKind.NONE
        assert table.change_between(wrong, done.version).kind is ChangeKind.UNKNOWN
        assert table.goes_back_to(first.version)
        assert not table.goes_back_to(wrong)
        with pytest.raises(LakeError, match="VERSION_NOT_IN_HISTORY"):
            table.revert(wrong, commit_metadata(2), "again")
        with pytest.raises(FencedError):
            table.revert(first.version, commit_metadata(1), "again")
        # Forked before it, even from the version that main went back to.
        for fork in (early, replace(table.fork(), version=first.version)):
            with pytest.raises(ConflictError):
                table.commit_staged(fork, [table.stage(fork, self.frame(spark, 9))], commit_metadata(2))

    def test_going_back_over_expired_versions(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        written = commit_metadata(
            checkpoint=CheckpointNumber(1), mode="append", definition="d", companions={"lake.a.state": "9"}
        )
        self.append(spark, table, commit_metadata(positions={"g": position(5)}), 0)
        first = self.append(spark, table, written, 1).version
        table.raise_fence(table.fork(), commit_metadata())
        fenced = table.current_version()
        for number in (2, 3, 4):
            self.append(spark, table, commit_metadata(positions={"g": position(5 + number)}), number)
        state = TableName.parse("lake.a.state")
        assert table.companions_at([first, fenced]) == {state: frozenset([Version("9")])}
        table.expire(Retention(readable=frozenset([first]), after_ms=2**62), Fence(1))
        fresh = lake.load(table.name)
        assert fresh.change_between(first, fresh.current_version()).kind is ChangeKind.UNKNOWN
        assert table.goes_back_to(first)
        assert not table.goes_back_to(fenced)
        assert table.companions_at([first, fenced]) == {state: frozenset([Version("9")])}
        metadata_at_first = table.merged_commit_metadata_at(first)
        assert metadata_at_first is not None
        assert (metadata_at_first.definition, metadata_at_first.positions) == ("d", {"g": position(5)})
        table.revert(first, metadata_at_first, "kept")
        assert self.ids(spark, table) == [0, 1]
        self.append(spark, table, commit_metadata(), 5)
        assert table.change_between(first, table.current_version()).kind is ChangeKind.APPEND

    def test_newest_tags(self, spark: SparkSession, table: LakeTable) -> None:
        table.tag(table.current_version(), "kept")
        versions = [self.append(spark, table, commit_metadata(), number).version for number in range(4)]
        for version in (*versions[:3], versions[2]):
            table.tag_newest(version, "cut-", 2)
        assert list(table.tags()) == ["kept", f"cut-{versions[1]}", f"cut-{versions[2]}"]
        table.tag_newest(versions[0], "cut-", 2)
        assert list(table.tags()) == ["kept", f"cut-{versions[1]}", f"cut-{versions[2]}"]
        table.tag_newest(versions[3], "cut-", 1)
        assert list(table.tags()) == ["kept", f"cut-{versions[3]}"]

    def test_tags(self, table: LakeTable) -> None:
        table.tag(table.current_version(), "kept")
        table.tag(table.current_version(), "kept")
        assert list(table.tags()) == ["kept"]
        table.untag("kept")
        table.untag("kept")
        assert not table.tags()
