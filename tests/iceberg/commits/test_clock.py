"""A clock that went back: the lake's tables were written in what is the future now."""

from __future__ import annotations

import json
import uuid

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support.lake_conformance import SCHEMA, LakeBench, LakeConformance, commit_metadata
from tests.support.maintenance_conformance import MaintenanceConformance, soon_ms

from tautochrone.errors import ConflictError, FencedError
from tautochrone.iceberg.commits.compare_and_set import is_of_the_future, load
from tautochrone.iceberg.java.api import translate
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.lake import LakeTable, Retention, TableDefinition
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark


def into_the_future(lake: IcebergLake, name: TableName, by_ms: int = 7_200_000) -> None:
    """As if all of it had been written by a clock that was ahead."""
    iceberg = lake._iceberg
    loaded = load(iceberg, name)
    parser = iceberg.api.TableMetadataParser
    fields = json.loads(str(parser.toJson(loaded.metadata)))
    for entry in (fields, *fields["snapshots"], *fields["snapshot-log"], *fields["metadata-log"]):
        for key in ("timestamp-ms", "last-updated-ms"):
            if key in entry:
                entry[key] += by_ms
    loaded.operations.commit(
        loaded.metadata, parser.fromJson(loaded.metadata.metadataFileLocation(), json.dumps(fields))
    )
    assert is_of_the_future(load(iceberg, name).metadata)


@pytest.fixture
def lake(spark: SparkSession) -> IcebergLake:
    return IcebergLake(spark, "lake", DirectEffects())


class _Ahead(LakeBench):
    """Each table was made by a clock that was two hours ahead."""

    @pytest.fixture
    def table(self, lake: IcebergLake) -> LakeTable:
        name = TableName("lake", ("conformance",), f"t_{uuid.uuid4().hex[:8]}")
        table = lake.create(TableDefinition(name=name, schema=SCHEMA), commit_metadata())
        into_the_future(lake, name)
        return table


@pytest.mark.slow
class TestCommitsAfterTheClockWentBack(_Ahead, LakeConformance):
    """All behaviours of the port."""


@pytest.mark.slow
class TestMaintenanceAfterTheClockWentBack(_Ahead, MaintenanceConformance):
    """Expiry, compaction and orphans. Two tests would find metadata files of the future too."""

    test_orphans_and_nothing_else = test_expired_versions_leave_no_orphans = None  # type: ignore[assignment]


class TestClock(_Ahead):
    def test_each_commit_may_follow_one_of_the_future(
        self, lake: IcebergLake, table: LakeTable, spark: SparkSession
    ) -> None:
        name = table.name
        self.append(spark, table, commit_metadata(), 1, 2, 3)
        first = table.current_version()
        into_the_future(lake, name)
        with pytest.raises(FencedError):
            table.raise_fence(table.fork(), commit_metadata(0))
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 4))], commit_metadata())
        into_the_future(lake, name)
        table.commit(prepared, Fence(1))
        into_the_future(lake, name)
        table.tag(first, "kept")
        into_the_future(lake, name)
        table.untag("kept")
        into_the_future(lake, name)
        table.commit_metadata_only(table.fork(), commit_metadata(runs=7))
        into_the_future(lake, name)
        table.revert(first, commit_metadata(), "reverted")
        assert self.ids(spark, table) == [1, 2, 3]
        into_the_future(lake, name)
        fork = table.fork()
        definition = TableDefinition(name=name, schema=SCHEMA)
        table.redefine(fork, definition, self.frame(spark, 9), commit_metadata(reset=True))
        into_the_future(lake, name)
        assert table.expire(Retention(after_ms=2**60), Fence(1), at_least=1).versions > 0
        assert self.ids(spark, table) == [9]
        # Afterwards the table is one of now, for other programs too.
        spark.sql(f"DELETE FROM {name} WHERE id = 9")
        assert self.ids(spark, table) == []

    def test_clocks_of_hosts_that_differ_a_little_change_nothing(
        self, lake: IcebergLake, table: LakeTable, spark: SparkSession
    ) -> None:
        self.append(spark, table, commit_metadata(), 1)
        iceberg = lake._iceberg
        metadata = load(iceberg, table.name).metadata
        parser = iceberg.api.TableMetadataParser
        fields = json.loads(str(parser.toJson(metadata)))
        fields["last-updated-ms"] += 10_000
        assert not is_of_the_future(parser.fromJson(metadata.metadataFileLocation(), json.dumps(fields)))

    def test_what_iceberg_refuses_by_itself_says_so(self, lake: IcebergLake, table: LakeTable) -> None:
        """Such as the server of a REST catalog, which builds the metadata by its own clock."""
        iceberg = lake._iceberg
        metadata = load(iceberg, table.name).metadata
        builder = iceberg.api.TableMetadata.buildFrom(metadata).setProperties(iceberg.map({"a": "b"}))
        with pytest.raises((Py4JError, PySparkException)) as refused:
            builder.build()
        error = translate(refused.value, table.name)
        assert (error.error_class, error.retryable) == ("LAKE_CLOCK_BEHIND", True)

    def test_a_seal_of_the_future_refuses_nothing_that_is_staged_later(
        self, lake: IcebergLake, table: LakeTable, spark: SparkSession
    ) -> None:
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 1))
        table.remove_orphans(soon_ms() + 86_400_000, Fence(1), lake.folders())
        with pytest.raises(ConflictError, match="STAGED_FILES_EXPIRED"):
            table.commit_staged(fork, [staged], commit_metadata())
        self.append(spark, table, commit_metadata(), 2)
        assert self.ids(spark, table) == [2]
        # A search by a clock that is right again finds files that were staged in between.
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 3))
        table.remove_orphans(soon_ms(), Fence(1), lake.folders())
        with pytest.raises(ConflictError, match="STAGED_FILES_EXPIRED"):
            table.commit_staged(fork, [staged], commit_metadata())

    def test_files_of_a_copy_that_begins_in_the_future_may_be_taken(
        self, table: LakeTable, spark: SparkSession
    ) -> None:
        assert table.files_taken(table.fork(), soon_ms() + 3_600_000) is None
        self.append(spark, table, commit_metadata(), 1)
        assert table.files_taken(table.fork(), soon_ms() + 3_600_000) is not None
