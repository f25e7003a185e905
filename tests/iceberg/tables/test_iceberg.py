"""The Iceberg adapter: the conformance suite, and what is Iceberg's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType
from tests.support.lake_conformance import SCHEMA, LakeBench, LakeConformance, commit_metadata
from tests.support.maintenance_conformance import MaintenanceConformance, soon_ms

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, DefinitionError
from tautochrone.iceberg.maintenance.orphans import path_of
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.effects import Step
from tautochrone.model.lake import ChangeKind, LakeTable, TableDefinition
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.effects import CountingEffects, DirectEffects

pytestmark = pytest.mark.spark

T = TypeVar("T")


class InterferingEffects(CountingEffects):
    """Runs an action before the next step of a kind, or loses its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Step, Callable[[], object]] = {}
        self.lose: set[Step] = set()

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        interfere = self.before.pop(step, None)
        if interfere is not None:
            interfere()
        result = super().perform(step, subject, action)
        if step in self.lose:
            self.lose.remove(step)
            raise CommitOutcomeUnknownError("COMMIT_OUTCOME_UNKNOWN", "the answer was lost")
        return result


class TestIceberg(LakeConformance):
    """All behaviours of the port."""

    @pytest.fixture
    def lake(self, spark: SparkSession) -> IcebergLake:
        return IcebergLake(spark, "lake", DirectEffects())


class TestIcebergMaintenance(MaintenanceConformance):
    """Expiry, compaction and orphans."""

    @pytest.fixture
    def lake(self, spark: SparkSession) -> IcebergLake:
        return IcebergLake(spark, "lake", DirectEffects())


class TestOwn(LakeBench):
    """Faults at the catalog, budgets, shapes."""

    @pytest.fixture
    def effects(self) -> InterferingEffects:
        return InterferingEffects()

    @pytest.fixture
    def lake(self, spark: SparkSession, effects: InterferingEffects) -> IcebergLake:
        return IcebergLake(spark, "lake", effects)

    @pytest.mark.parametrize("step", [Step.LAKE_PREPARE, Step.LAKE_COMMIT])
    def test_a_lost_answer_of_two_steps(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects, step: Step
    ) -> None:
        effects.lose.add(step)
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.commit(prepared, Fence(1))
        assert not effects.lose
        assert self.ids(spark, table) == [1]
        assert len(table.versions()) == 2

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_a_race_or_a_lost_answer_of_an_abort(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects, is_committed: bool
    ) -> None:
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        files = [file.path for file in table.files_at(prepared.version).files.values()]
        if is_committed:
            effects.before[Step.LAKE_ABORT] = lambda: table.commit(prepared, Fence(1))
        else:
            effects.lose.add(Step.LAKE_ABORT)
        table.abort(prepared)
        assert self.ids(spark, table) == ([1] if is_committed else [])
        assert [path is not None and path.exists() for path in files] == [is_committed]

    def test_a_lost_answer_of_one_step(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects
    ) -> None:
        effects.lose.add(Step.LAKE_COMMIT_STAGED)
        self.append(spark, table, commit_metadata(), 1)
        assert self.ids(spark, table) == [1]
        assert len(table.versions()) == 2

    def test_a_lost_answer_of_a_row_delta(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects
    ) -> None:
        self.append(spark, table, commit_metadata(), 1, 2, 3)
        rows = table.read(spark, table.current_version()).where("id = 2").select("_file", "_pos").collect()
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 20))
        effects.steps.clear()
        effects.lose.add(Step.LAKE_COMMIT_STAGED)
        done = table.apply(fork, [staged], {rows[0][0]: [rows[0][1]]}, commit_metadata())
        assert (done.rows_inserted, done.rows_deleted) == (1, 1)
        assert not effects.lose
        assert effects.steps == {Step.LAKE_STAGE: 1, Step.LAKE_COMMIT_STAGED: 1}
        assert done.version == table.current_version()
        assert self.ids(spark, table) == [1, 3, 20]
        assert len(table.versions()) == 3

    @pytest.mark.parametrize("in_two_steps", [False, True])
    def test_a_commit_between_listing_orphans_and_the_seal(
        self,
        spark: SparkSession,
        lake: IcebergLake,
        table: LakeTable,
        effects: InterferingEffects,
        in_two_steps: bool,
    ) -> None:
        fork = table.fork()
        staged, orphan = (table.stage(fork, self.frame(spark, number)) for number in (1, 2))

        def interfere() -> None:
            if in_two_steps:
                table.prepare(fork, [staged], commit_metadata())
            else:
                table.commit_staged(fork, [staged], commit_metadata())

        effects.before[Step.LAKE_SEAL] = interfere
        effects.lose.add(Step.LAKE_SEAL)
        orphans = table.remove_orphans(soon_ms(), Fence(1), lake.folders())
        assert not effects.before
        assert not effects.lose
        # A file that was committed in between is no orphan.
        assert [*map(path_of, orphans.files)] == [path_of(str(file.location())) for file in orphan.files]
        for prepared in table.prepared():
            table.commit(prepared, Fence(1))
        assert self.ids(spark, table) == [1]

    def test_metadata_that_never_became_current(
        self, spark: SparkSession, lake: IcebergLake, table: LakeTable, effects: InterferingEffects
    ) -> None:
        """A writer is stopped before it swaps its metadata in, and goes on when all of it is gone."""
        fork = table.fork()
        staged = table.stage(fork, self.frame(spark, 1))
        folder = Path(path_of(lake.folders()[table.name]))
        files_before = {*folder.rglob("*.*")}
        effects.before[Step.LAKE_COMMIT_STAGED] = lambda: table.remove_orphans(
            soon_ms(), Fence(1), lake.folders()
        )
        with pytest.raises(ConflictError, match="STAGED_FILES_EXPIRED"):
            table.commit_staged(fork, [staged], commit_metadata())
        (folder / "metadata" / "00007-0.metadata.json").write_text("{}")
        orphans = table.remove_orphans(soon_ms(), Fence(1), lake.folders())
        # The refused writer left a metadata file: a compare-and-set writes it before it asks the catalog.
        assert [Path(path_of(file)).name[:5] for file in orphans.files] == ["00002", "00007"]
        added = {path.name for path in {*folder.rglob("*.*")} - files_before if not path.name.startswith(".")}
        assert all(name.endswith(".metadata.json") for name in added), added
        assert self.ids(spark, table) == []

    def test_an_unrelated_commit_within_a_row_delta(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects
    ) -> None:
        self.append(spark, table, commit_metadata(), 1, 2, 3)
        rows = table.read(spark, table.current_version()).where("id = 2").select("_file", "_pos").collect()
        effects.before[Step.LAKE_COMMIT_STAGED] = lambda: table.tag(table.current_version(), "other")
        table.apply(table.fork(), [], {rows[0][0]: [rows[0][1]]}, commit_metadata())
        assert not effects.before
        assert self.ids(spark, table) == [1, 3]

    @pytest.mark.parametrize("step", [Step.LAKE_PREPARE, Step.LAKE_COMMIT, Step.LAKE_COMMIT_METADATA])
    def test_an_unrelated_commit_in_between_is_no_conflict(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects, step: Step
    ) -> None:
        def alter() -> None:
            spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('other' = '{step}')")

        effects.before[step] = alter
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.commit(prepared, Fence(1))
        table.commit_metadata_only(table.fork(), commit_metadata(definition="d"))
        assert not effects.before
        assert effects.steps[step] == 1
        assert self.ids(spark, table) == [1]
        assert table.fork().commit_metadata == commit_metadata(definition="d")

    def test_two_catalog_commits_per_batch(
        self, spark: SparkSession, table: LakeTable, effects: InterferingEffects
    ) -> None:
        effects.steps.clear()
        fork = table.fork()
        prepared = table.prepare(fork, [table.stage(fork, self.frame(spark, 1))], commit_metadata())
        table.commit(prepared, Fence(1))
        commits = {step: count for step, count in effects.steps.items() if step is not Step.LAKE_STAGE}
        assert commits == {Step.LAKE_PREPARE: 1, Step.LAKE_COMMIT: 1}

    def test_a_name_that_stands_for_another_column(self, spark: SparkSession, table: LakeTable) -> None:
        """What changed is unknown; whoever takes new rows only may go on while no others were moved."""
        first = self.append(spark, table, commit_metadata(), 1, 2).version
        for change in ("DROP COLUMN word", "ADD COLUMN word STRING", "ADD COLUMN other INT"):
            spark.sql(f"ALTER TABLE {table.name.sql} {change}")
        spark.sql(f"INSERT INTO {table.name.sql} VALUES (3, 'c', 3)")
        appended = table.current_version()
        change = table.change_between(first, appended)
        assert (change.kind, change.appended) == (ChangeKind.UNKNOWN, True)
        assert str(change.reason).startswith(f"column word of {table.name} was dropped and added again")
        spark.sql(f"DELETE FROM {table.name.sql} WHERE id = 1")
        change = table.change_between(first, table.current_version())
        assert (change.kind, change.appended) == (ChangeKind.UNKNOWN, False)
        assert table.change_between(appended, table.current_version()).kind is ChangeKind.CHANGED

    def test_partitions_and_properties(self, spark: SparkSession, lake: IcebergLake) -> None:
        name = TableName("lake", ("conformance",), "partitioned")
        table = lake.create(
            TableDefinition(
                name=name, schema=SCHEMA, comment="a comment", properties={"mine": "1"},
                partition_columns=("bucket(4, id)", "word"), cluster_columns=("id",),
            ),
            commit_metadata(),
        )  # fmt: skip
        self.append(spark, table, commit_metadata(), *range(20))
        assert self.ids(spark, table) == list(range(20))
        description = {row[0]: row[1] for row in spark.sql(f"DESCRIBE EXTENDED {name.sql}").collect()}
        assert description["Comment"] == "a comment"
        assert spark.sql(f"SELECT DISTINCT partition.word FROM {name.sql}.partitions").count() == 20

    @pytest.mark.parametrize("column", ["nonsense(id)", "bucket(id)"])
    def test_a_transform_that_iceberg_has_not(self, lake: IcebergLake, column: str) -> None:
        name = TableName("lake", ("conformance",), "broken")
        with pytest.raises(DefinitionError, match="UNSUPPORTED"):
            lake.create(
                TableDefinition(name=name, schema=SCHEMA, partition_columns=(column,)), commit_metadata()
            )

    def test_a_type_that_iceberg_has_not(self, spark: SparkSession, lake: IcebergLake) -> None:
        name = TableName("lake", ("conformance",), "broken")
        kind = spark.sql("SELECT INTERVAL 1 DAY AS i").schema["i"].dataType
        with pytest.raises(DefinitionError, match="UNSUPPORTED_TABLE_SHAPE"):
            lake.create(
                TableDefinition(name=name, schema=StructType([StructField("i", kind)])), commit_metadata()
            )
