"""What tables promise to stay small: the second half of the conformance suite."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.lake_conformance import LakeBench, commit_metadata, position

from tautochrone.errors import ConflictError, FencedError, LakeError
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import ChangeKind, LakeTable, Retention
from tautochrone.model.names import Fence

__all__ = ["MaintenanceConformance", "soon_ms"]

_NEVER = 10**15
"""A time in the far future, in epoch milliseconds: nothing is younger."""


def soon_ms() -> int:
    """A time that lies after everything that was written so far; what comes now lies after it."""
    time.sleep(0.01)
    now = time.time_ns() // 1_000_000
    time.sleep(0.01)
    return now


class MaintenanceConformance(LakeBench):
    """Expiry, compaction and orphans. Fixtures: as of `LakeConformance`."""

    @staticmethod
    def is_there(spark: SparkSession, path: str) -> bool:
        jvm: Any = spark._jvm
        java_path = jvm.org.apache.hadoop.fs.Path(path)
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        return bool(java_path.getFileSystem(configuration).exists(java_path))

    def test_expiring(self, spark: SparkSession, table: LakeTable) -> None:
        written = commit_metadata(positions={"f": position(1)})
        versions = [table.current_version()]
        versions += [self.append(spark, table, written, number).version for number in range(5)]
        table.tag(versions[1], "kept")
        before = table.fork()
        retention = Retention(
            readable=frozenset({versions[2]}), followed=frozenset({versions[4]}), after_ms=_NEVER
        )
        assert table.expire(retention, Fence(1), at_least=3).versions == 0
        dry = table.expire(retention, Fence(1), dry_run=True)
        assert (dry.versions, dry.kept) == (2, 4)
        assert table.current_version() == before.version
        done = table.expire(retention, Fence(1), at_least=2)
        assert (done.versions, done.kept) == (2, 4)
        assert done.files > 0
        assert not table.expire(retention, Fence(1)).versions
        after = table.fork()
        assert (after.version, after.commit_metadata) == (before.version, before.commit_metadata)
        assert self.ids(spark, table) == [0, 1, 2, 3, 4]
        for index in (1, 2, 4):
            rows = table.read(spark, versions[index]).collect()
            assert sorted(row["id"] for row in rows) == list(range(index))
        assert table.change_between(versions[4], versions[5]).kind is ChangeKind.APPEND
        assert table.change_between(versions[2], versions[5]).kind is ChangeKind.UNKNOWN
        assert table.change_between(versions[3], versions[5]).kind is ChangeKind.UNKNOWN

    def test_files_that_only_expired_versions_had_are_deleted(
        self, spark: SparkSession, table: LakeTable
    ) -> None:
        self.append(spark, table, commit_metadata(), 1)
        expired_files = {
            row[0] for row in table.read(spark, table.current_version()).select("_file").collect()
        }
        fork = table.fork()
        rewritten = table.replace_rows(
            fork, [table.stage(fork, self.frame(spark, 2))], commit_metadata()
        ).version
        table.expire(Retention(readable=frozenset({fork.version}), after_ms=_NEVER), Fence(1))
        assert [row["id"] for row in table.read(spark, fork.version).collect()] == [1]
        table.expire(Retention(after_ms=_NEVER), Fence(1))
        live_files = {row[0] for row in table.read(spark, rewritten).select("_file").collect()}
        files = {path: self.is_there(spark, path) for path in expired_files | live_files}
        assert files == dict.fromkeys(expired_files, False) | dict.fromkeys(live_files, True)

    def test_expiry_spares_what_is_prepared(self, spark: SparkSession, table: LakeTable) -> None:
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.expire(Retention(after_ms=_NEVER), Fence(1))
        table.commit(prepared, Fence(1))
        assert self.ids(spark, table) == [1]

    def test_an_older_owner_cannot_expire(self, spark: SparkSession, table: LakeTable) -> None:
        self.append(spark, table, commit_metadata(5), 1)
        with pytest.raises(FencedError):
            table.expire(Retention(after_ms=_NEVER), Fence(4))
        table.expire(Retention(after_ms=_NEVER), Fence(5))

    def test_compacting(self, spark: SparkSession, table: LakeTable) -> None:
        written = commit_metadata(positions={"f": position(1)})
        for number in range(4):
            fork = table.fork()
            rows = self.frame(spark, number, number + 10).coalesce(1)
            table.commit_staged(fork, [table.stage(fork, rows)], written)
        fork = table.fork()
        (deleted_row,) = table.read(spark, fork.version).where("id = 12").select("_file", "_pos").collect()
        table.apply(fork, [], {deleted_row[0]: [deleted_row[1]]}, written)
        fork = table.fork()
        # An append that comes in between is no conflict.
        newest = self.append(spark, table, written, 20).version
        done = table.compact(fork, commit_metadata(), min_files=4, max_files=100, exclusive=nullcontext())
        assert (done.files_before, done.files_after) == (4, 1)
        assert done.version == table.current_version()
        assert self.ids(spark, table) == [0, 1, 2, 3, 10, 11, 13, 20]
        assert table.change_between(newest, table.current_version()).kind is ChangeKind.NONE
        assert table.change_between(fork.version, table.current_version()).kind is ChangeKind.APPEND
        assert table.fork().commit_metadata == written
        again = table.compact(
            table.fork(), commit_metadata(), min_files=4, max_files=100, exclusive=nullcontext()
        )
        assert again.version is None
        change = table.changed_rows(spark, fork.version, table.current_version())
        assert change.added is not None
        assert [row["id"] for row in change.added.collect()] == [20]

    def test_compaction_gives_way(self, spark: SparkSession, table: LakeTable) -> None:
        for number in range(3):
            self.append(spark, table, commit_metadata(), number)
        fork = table.fork()
        table.prepare(fork, [table.stage(fork, self.frame(spark, 9))], commit_metadata())
        with pytest.raises(ConflictError):
            table.compact(fork, commit_metadata(), min_files=3, max_files=100, exclusive=nullcontext())
        table.replace_rows(fork, [table.stage(fork, self.frame(spark, 5))], commit_metadata())
        for prepared in table.prepared():
            table.abort(prepared)
        with pytest.raises(LakeError):
            table.compact(fork, commit_metadata(), min_files=3, max_files=100, exclusive=nullcontext())
        assert self.ids(spark, table) == [5]

    def test_orphans_and_nothing_else(self, spark: SparkSession, lake: LakeCatalog, table: LakeTable) -> None:
        versions = [self.append(spark, table, commit_metadata(), n, n + 10).version for n in range(3)]
        table.tag(versions[0], "kept")
        (row,) = table.read(spark, versions[2]).where("id = 12").select("_file", "_pos").collect()
        table.apply(table.fork(), [], {row[0]: [row[1]]}, commit_metadata())
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 7))], commit_metadata())
        old = table.stage(fork, self.frame(spark, 8))
        before_ms = soon_ms()
        table.stage(fork, self.frame(spark, 9))
        orphans = table.remove_orphans(before_ms, Fence(1), lake.folders(), dry_run=True)
        assert len(orphans.files) == len(old.files) > 0
        assert orphans.bytes > 0
        assert all(self.is_there(spark, file) for file in orphans.files)
        assert table.remove_orphans(before_ms, Fence(1), lake.folders()) == orphans
        assert not any(self.is_there(spark, file) for file in orphans.files)
        assert not table.remove_orphans(before_ms, Fence(1), lake.folders()).files
        table.commit(prepared, Fence(1))
        assert self.ids(spark, table) == [0, 1, 2, 7, 10, 11]
        for count, version in enumerate(versions, 1):
            assert table.read(spark, version).count() == 2 * count

    def test_expired_versions_leave_no_orphans(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        for number in range(3):
            fork = table.fork()
            table.replace_rows(fork, [table.stage(fork, self.frame(spark, number))], commit_metadata())
        table.expire(Retention(after_ms=_NEVER), Fence(1))
        assert not table.remove_orphans(soon_ms(), Fence(1), lake.folders()).files

    def test_a_writer_that_slept_is_refused(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        self.append(spark, table, commit_metadata(), 1)
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 2))
        (row,) = table.read(spark, fork.version).select("_file", "_pos").collect()
        assert table.remove_orphans(soon_ms(), Fence(1), lake.folders()).files
        for write in (table.prepare, table.commit_staged, table.replace_rows):
            with pytest.raises(ConflictError, match="STAGED_FILES_EXPIRED"):
                write(table.fork(), [staged], commit_metadata())
        with pytest.raises(ConflictError, match="STAGED_FILES_EXPIRED"):
            table.apply(table.fork(), [staged], {row[0]: [row[1]]}, commit_metadata())
        assert self.ids(spark, table) == [1]
        self.append(spark, table, commit_metadata(), 3)
        assert self.ids(spark, table) == [1, 3]

    def test_an_older_owner_removes_no_orphans(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        self.append(spark, table, commit_metadata(5), 1)
        table.stage(table.fork(), self.frame(spark, 2))
        with pytest.raises(FencedError):
            table.remove_orphans(soon_ms(), Fence(4), lake.folders())

    def test_a_folder_that_others_use_is_left_alone(
        self, spark: SparkSession, lake: LakeCatalog, table: LakeTable
    ) -> None:
        table.stage(table.fork(), self.frame(spark, 2))
        folders = lake.folders()
        other = replace(table.name, table="other")
        for other_folder in (folders[table.name], f"{folders[table.name]}/data/x", "file:/"):
            with pytest.raises(LakeError, match="ORPHANS_UNKNOWN"):
                table.remove_orphans(soon_ms(), Fence(1), {**folders, other: other_folder})
        separate_folders = {**folders, other: f"{folders[table.name]}_2"}
        assert table.remove_orphans(soon_ms(), Fence(1), separate_folders).files
