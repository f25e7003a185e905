"""Built rows: a version of a table beside main, with columns of its own, on a branch that nobody reads.

The version has no parent: it is made as `redefine` would make it. What main gets later is another version,
over the same data files: a child of main where the columns are the same, so that its change can be followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import DefinitionError, LakeError
from tautochrone.iceberg.commits.compare_and_set import MAIN, Loaded, check_main, load, staged_at_ms
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, encode
from tautochrone.iceberg.commits.staged_files import write_files
from tautochrone.iceberg.java.calls import references
from tautochrone.iceberg.maintenance.orphans import check_seal
from tautochrone.iceberg.reads.schema import TableShape, replacement_transaction, shape_of, widened_schema
from tautochrone.iceberg.tables.table import IcebergTable
from tautochrone.model.effects import Step
from tautochrone.model.former_names import with_renames
from tautochrone.model.lake import CommitMetadata, Committed, Fork, Rows, Staged, TableDefinition
from tautochrone.model.names import TableName, Version
from tautochrone.model.project_build import BRANCH_PREFIX
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["IcebergBuildable"]


class IcebergBuildable(IcebergTable):
    """See `model.project_build.BuildableTable` for what each method promises."""

    def build(
        self, definition: TableDefinition, rows: Rows, commit_metadata: CommitMetadata, branch: str
    ) -> Version:
        shape = shape_of(self._iceberg, definition)
        staged_for = replacement_transaction(
            self._iceberg, self._name, load(self._iceberg, self._name), shape
        ).table()
        staged = self._effects.perform(
            Step.LAKE_STAGE, str(self._name), lambda: write_files(self._iceberg, self._name, staged_for, rows)
        )

        def build(loaded: Loaded) -> Any:
            check_seal(self._name, loaded, staged.at_ms)
            transaction = replacement_transaction(self._iceberg, self._name, loaded, shape)
            if not transaction.table().schema().sameSchema(staged_for.schema()):
                raise LakeError(
                    "BUILD_COLUMNS_MOVED",
                    f"{self._name} got other columns while its rows were built",
                    hint="build again",
                    sqlstate="40001",
                    retryable=True,
                )
            replaced = _with_rows(transaction, staged, commit_metadata)
            builder = self._builder(loaded).addSchema(replaced.schema())
            try:
                builder.addPartitionSpec(replaced.spec())
            except (Py4JError, PySparkException) as error:
                # Every partition spec of a table must fit the columns of main.
                raise DefinitionError(
                    "UNSUPPORTED_BUILD_LAYOUT",
                    f"{self._name} cannot be built beside the deployed one: {problem_of(error).message}",
                    hint="its partitions need a column that the deployed table lacks; `taut run` builds it",
                    sqlstate="0A000",
                ) from error
            return builder.setBranchSnapshot(replaced.currentSnapshot(), branch).build()

        self._set(Step.LAKE_BUILD, build, lambda loaded: loaded.metadata.ref(branch) is not None)
        version = self.built_version(branch)
        if version is None:
            raise _build_gone_error(self._name, branch)
        return version

    def built_version(self, branch: str) -> Version | None:
        ref = load(self._iceberg, self._name).metadata.ref(branch)
        return None if ref is None else Version(str(ref.snapshotId()))

    def build_branches(self) -> Sequence[str]:
        names = (each.name for each in references(load(self._iceberg, self._name).metadata))
        return sorted(name for name in names if name.startswith(BRANCH_PREFIX))

    def apply_build(
        self, fork: Fork, definition: TableDefinition, branch: str, commit_metadata: CommitMetadata
    ) -> Committed:
        shape = shape_of(self._iceberg, definition)
        attempted_versions: list[Version] = []
        rows: list[int] = []

        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, fork.version, commit_metadata.fence)
            ref = loaded.metadata.ref(branch)
            if ref is None:
                raise _build_gone_error(self._name, branch)
            built = loaded.metadata.snapshot(ref.snapshotId())
            rows.append(int(built.summary().get("total-records") or 0))
            # The branch names the files until this very commit, so that no cleaning takes them.
            files = list(built.addedDataFiles(loaded.table.io()))
            staged = Staged(table=self._name, files=files, rows=rows[-1], at_ms=staged_at_ms(loaded.table))
            if built.schemaId() == loaded.metadata.currentSchemaId():
                overwrite = loaded.table.newOverwrite()
                overwrite.overwriteByRowFilter(self._iceberg.api.expressions.Expressions.alwaysTrue())
                snapshot = self._produce(loaded, overwrite, overwrite.addFile, [staged], commit_metadata)
                builder = self._builder(loaded).setBranchSnapshot(snapshot, MAIN)
            else:
                metadata = self._with_columns_of(loaded, built)
                columns = TableShape(metadata.schema(), shape.spec, shape.order, shape.properties)
                transaction = replacement_transaction(self._iceberg, self._name, loaded, columns, metadata)
                described = with_renames(loaded.commit_metadata, commit_metadata)
                replaced = _with_rows(transaction, staged, described)
                snapshot = replaced.currentSnapshot()
                builder = self._iceberg.api.TableMetadata.buildFrom(replaced)
            attempted_versions.append(Version(str(snapshot.snapshotId())))
            newest = carry_forward(loaded.commit_metadata, commit_metadata)
            return self._with_commit_metadata(builder.removeRef(branch), newest).build()

        def done(loaded: Loaded) -> bool:
            return loaded.main in attempted_versions

        self._set(Step.LAKE_APPLY_BUILD, build, done)
        return self._committed(attempted_versions[-1], fork.version, rows[-1])

    def _with_columns_of(self, loaded: Loaded, built: Any) -> Any:
        """The table's metadata with the columns of a Java snapshot: its files have their ids. Partitions and
        order are left out, because they need not fit these columns."""
        api = self._iceberg.api
        builder = self._builder(loaded).setDefaultPartitionSpec(api.PartitionSpec.unpartitioned())
        builder.setDefaultSortOrder(api.SortOrder.unsorted())
        return builder.setCurrentSchema(int(built.schemaId())).build()

    def columns_with(self, schema: Any) -> str | None:
        widened = widened_schema(self._iceberg, self._name, load(self._iceberg, self._name), schema)
        return None if widened is None else str(self._iceberg.api.SchemaParser.toJson(widened))

    def unwritten(self, definition: TableDefinition) -> str:
        shape, api = shape_of(self._iceberg, definition), self._iceberg.api
        properties = self._iceberg.map(shape.properties)
        # Nothing is ever read or written there.
        location = f"unwritten/{definition.name}"
        metadata = api.TableMetadata.newTableMetadata(
            shape.schema, shape.spec, shape.order, location, properties
        )
        return str(api.TableMetadataParser.toJson(metadata))

    def drop_build(self, branch: str) -> None:
        self._drop_branch(Step.LAKE_DROP_BUILD, branch)


def _with_rows(transaction: Any, staged: Staged, commit_metadata: CommitMetadata) -> Any:
    """The metadata of a transaction that replaced a table, with these rows. The transaction only produces
    metadata: its own commit would retry without checks."""
    append = transaction.newFastAppend()
    for file in staged.files:
        append.appendFile(file)
    append.set(COMMIT_METADATA_KEY, encode(commit_metadata)).commit()
    return transaction.currentMetadata()


def _build_gone_error(name: TableName, branch: str) -> LakeError:
    return LakeError(
        "BUILD_GONE",
        f"{name} has no branch {branch}: what was built of it was dropped, or is applied",
        hint="build the plan again with `taut plan --build`",
    )
