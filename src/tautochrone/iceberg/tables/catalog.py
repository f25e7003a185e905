"""Implements `model.catalog.LakeCatalog` with an Iceberg catalog, and `AdoptableTable` with a table that
another system created."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.changed_files import change_between
from tautochrone.iceberg.changes.streams import beginning
from tautochrone.iceberg.commits.compare_and_set import NO_VERSION, Loaded, check_main, compare_and_set, load
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, encode
from tautochrone.iceberg.java.api import Iceberg, items, java_error_class, sync_file_systems, translate
from tautochrone.iceberg.java.calls import history
from tautochrone.iceberg.reads.schema import TRIMMED, shape_of
from tautochrone.iceberg.sessions.spark_sessions import catalog_unreachable_error
from tautochrone.iceberg.tables import removal
from tautochrone.iceberg.tables.builds import IcebergBuildable
from tautochrone.iceberg.tables.root_of_target import RootOfTarget, show_root
from tautochrone.iceberg.tables.table import IcebergTable
from tautochrone.model.catalog import Beginning, FullSnapshotRead
from tautochrone.model.dataset_change import StoredTable
from tautochrone.model.effects import Durability, Effects, Step
from tautochrone.model.lake import ChangeKind, CommitMetadata, Committed, Fork, TableDefinition
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["IcebergAdoptable", "IcebergLake"]

_VIEW_KEY = "tautochrone.definition"


class IcebergLake:
    """See `model.catalog.LakeCatalog`. `session` must be the base session: its catalog is the real one.

    No table is opened that has files in one of the `foreign_folders`, which belong to other targets.
    """

    def __init__(
        self,
        session: SparkSession,
        catalog: str,
        effects: Effects,
        durability: Durability = Durability.PROCESS,
        foreign_folders: Sequence[str] = (),
    ) -> None:
        self._iceberg = Iceberg(session, catalog, durability, foreign_folders)
        self._effects = effects

    def exists(self, name: TableName) -> bool:
        if name.catalog != self._iceberg.catalog_name:
            return False
        try:
            return bool(self._iceberg.catalog().tableExists(self._iceberg.identifier(name)))
        except Py4JJavaError as error:
            raise catalog_unreachable_error(name.catalog, error) from error

    def create(self, definition: TableDefinition, commit_metadata: CommitMetadata) -> IcebergTable:
        name = definition.name
        table = IcebergTable(self._iceberg, name, self._effects)
        first = replace(commit_metadata, mode=None, checkpoint=None)
        if not self.exists(name):
            shape = shape_of(self._iceberg, definition)
            # The creating commit already has the commit metadata, so a crash leaves no table without owner.
            properties = {**shape.properties, COMMIT_METADATA_KEY: encode(first)}

            def make() -> None:
                catalog = self._iceberg.catalog()
                identifier = self._iceberg.identifier(name)
                self._ensure_namespace(catalog, identifier)
                try:
                    builder = catalog.buildTable(identifier, shape.schema)
                    java_table = (
                        builder.withPartitionSpec(shape.spec)
                        .withSortOrder(shape.order)
                        .withProperties(self._iceberg.map(properties))
                        .create()
                    )
                    sync_file_systems(self._iceberg.synced_folders(java_table.operations().current()))
                except Py4JJavaError as error:
                    # Another process created the table first; it is used as it is.
                    if not java_error_class(error).endswith("AlreadyExistsException"):
                        raise translate(error, name) from error

            self._effects.perform(Step.LAKE_CREATE, str(name), make)
        fork = table.fork()
        if fork.version == NO_VERSION:
            # Without a first snapshot there is no parent to check a fork against.
            table.raise_fence(fork, first)
        return table

    def _ensure_namespace(self, catalog: Any, identifier: Any) -> None:
        """Create the namespace unless it exists. Done separately, because another process may create the
        namespace at the same time without creating the table."""
        namespace = identifier.namespace()
        try:
            if not catalog.namespaceExists(namespace):
                catalog.createNamespace(namespace)
        except Py4JJavaError:
            # Some catalogs check first and insert then, so the slower of two processes gets a key violation.
            if not catalog.namespaceExists(namespace):
                raise

    def put_view_if_supported(
        self, name: TableName, query: str, schema: StructType, fingerprint: str
    ) -> bool:
        catalog = self._iceberg.catalog()
        interface = self._iceberg.jvm.java.lang.Class.forName(
            "org.apache.iceberg.catalog.ViewCatalog",
            True,
            catalog.getClass().getClassLoader(),
        )
        if not interface.isInstance(catalog):
            return False
        identifier = self._iceberg.identifier(name)

        def make() -> None:
            try:
                self._ensure_namespace(catalog, identifier)
                if catalog.viewExists(identifier):
                    stored_fingerprint = catalog.loadView(identifier).properties().get(_VIEW_KEY)
                    if stored_fingerprint == fingerprint:
                        return
                converted = self._iceberg.api.spark.SparkSchemaUtil.convert(self._iceberg.java_schema(schema))
                builder = catalog.buildView(identifier).withSchema(converted).withQuery("spark", query)
                builder = builder.withDefaultCatalog(name.catalog).withDefaultNamespace(
                    identifier.namespace()
                )
                builder.withProperty(_VIEW_KEY, fingerprint).createOrReplace()
            except Py4JError as error:
                raise translate(error, name) from error

        self._effects.perform(Step.LAKE_CREATE, str(name), make)
        return True

    def load(self, name: TableName) -> IcebergTable:
        return IcebergTable(self._iceberg, name, self._effects, load(self._iceberg, name))

    def register(self, name: TableName, metadata_location: str) -> None:
        """Create the table whose newest metadata file is there, unless the table exists."""

        def make() -> None:
            catalog, identifier = self._iceberg.catalog(), self._iceberg.identifier(name)
            self._ensure_namespace(catalog, identifier)
            try:
                if not catalog.tableExists(identifier):
                    catalog.registerTable(identifier, metadata_location)
            except Py4JJavaError as error:
                if not java_error_class(error).endswith("AlreadyExistsException"):
                    raise translate(error, name) from error

        self._effects.perform(Step.LAKE_CREATE, str(name), make)

    def show_root(self, name: TableName, root: RootOfTarget) -> None:
        """Let `name` be what a table of another target is at a version. Repeatable.

        Raises:
            LakeError: `TARGET_ROOT_EXISTS`, the lake has a table of its own that is called so.
        """
        self._ensure_namespace(self._iceberg.catalog(), self._iceberg.identifier(name))
        show_root(self._iceberg, name, self._effects, root, exists=self.exists(name))

    def schema_of(self, schema: Mapping[str, Any]) -> StructType:
        """A schema in Iceberg's JSON as Spark's."""
        java_schema = self._iceberg.api.SchemaParser.fromJson(json.dumps(schema))
        return StructType.fromJson(
            json.loads(self._iceberg.api.spark.SparkSchemaUtil.convert(java_schema).json())
        )

    def stored_table(self, name: TableName) -> StoredTable:
        return removal.stored_table(self._iceberg, name)

    def bytes_of(self, stored: StoredTable) -> int | None:
        return removal.bytes_of(self._iceberg, stored)

    def drop(self, stored: StoredTable) -> None:
        removal.drop(self._iceberg, self._effects, stored)

    def delete_files(self, stored: StoredTable) -> TableName | None:
        return removal.delete_files(self._iceberg, self._effects, stored, self.folders())

    def release(self, stored: StoredTable, fence: Fence) -> None:
        removal.release(self._iceberg, self._effects, stored, fence)

    def require_renaming(self) -> None:
        removal.require_renaming(self._iceberg)

    def rename(self, stored: StoredTable, new: TableName) -> None:
        self._ensure_namespace(self._iceberg.catalog(), self._iceberg.identifier(new))
        removal.rename(self._iceberg, self._effects, stored, new)

    def buildable(self, name: TableName) -> IcebergBuildable:
        return IcebergBuildable(self._iceberg, name, self._effects)

    def adoptable(self, name: TableName) -> IcebergAdoptable:
        return IcebergAdoptable(self._iceberg, self.load(name), self._effects)

    def beginning(
        self,
        rows: DataFrame,
        initial_offsets: Mapping[int, str],
        current_offsets: Mapping[int, str],
        known: Sequence[FullSnapshotRead] = (),
    ) -> Beginning:
        return beginning(self._iceberg, self._effects, rows, initial_offsets, current_offsets, known)

    def tables(self) -> Sequence[TableName]:
        catalog = self._iceberg.catalog()
        names: list[TableName] = []
        try:
            for namespace in catalog.listNamespaces():
                for identifier in catalog.listTables(namespace):
                    levels = tuple(str(level) for level in identifier.namespace().levels())
                    names.append(TableName(self._iceberg.catalog_name, levels, str(identifier.name())))
        except Py4JError as error:
            raise LakeError("CATALOG_UNREADABLE", f"The catalog cannot be listed: {error}") from error
        return sorted(names)

    def folders(self) -> Mapping[TableName, str]:
        catalog, locations = self._iceberg.catalog(), dict[TableName, str]()
        try:
            for namespace in self._namespaces(catalog, self._iceberg.api.catalog.Namespace.empty()):
                for identifier in items(catalog.listTables(namespace)):
                    levels = tuple(str(level) for level in identifier.namespace().levels())
                    name = TableName(self._iceberg.catalog_name, levels, str(identifier.name()))
                    locations[name] = str(catalog.loadTable(identifier).location())
        except Py4JError as error:
            raise LakeError("CATALOG_UNREADABLE", f"The catalog cannot be listed: {error}") from error
        return locations

    def _namespaces(self, catalog: Any, parent: Any) -> list[Any]:
        """All namespaces below `parent`, at any depth."""
        namespaces = []
        for namespace in items(catalog.listNamespaces(parent)):
            namespaces += [namespace, *self._namespaces(catalog, namespace)]
        return namespaces

    def schema(self, name: TableName) -> StructType:
        table = self._iceberg.load(name)
        java_schema = self._iceberg.api.spark.SparkSchemaUtil.convert(table.schema())
        return StructType.fromJson(json.loads(java_schema.json()))


# -- tables of other systems -----------------------------------------------------------------------


# Iceberg's streaming sink stores the query and the batch under these keys of a snapshot's summary.
_QUERY, _BATCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_FORMAT, _NEWEST_FORMAT = "format-version", 3
_NO_SNAPSHOT = -1


class IcebergAdoptable:
    """See `model.catalog.AdoptableTable` for what each method promises."""

    def __init__(self, iceberg: Iceberg, table: IcebergTable, effects: Effects) -> None:
        self._iceberg = iceberg
        self._table = table
        self._effects = effects

    @property
    def name(self) -> TableName:
        return self._table.name

    def fork(self) -> Fork:
        return self._table.fork()

    def stream_batches(self) -> Mapping[str, int]:
        loaded = load(self._iceberg, self.name)
        newest_batches: dict[str, int] = {}
        for snapshot in history(loaded.metadata, loaded.main):
            query, batch = snapshot.summary.get(_QUERY), snapshot.summary.get(_BATCH)
            if query is not None and batch is not None:
                newest_batches[query] = max(int(batch), newest_batches.get(query, 0))
        return newest_batches

    def has_read(self, offset: str, version: Version) -> bool:
        offset_fields = _offset_fields(offset)
        if offset_fields is None:
            return False
        number, position, whole = offset_fields
        if number == _NO_SNAPSHOT:
            return version == NO_VERSION
        metadata = load(self._iceberg, self.name).metadata
        snapshot = metadata.snapshot(number)
        if snapshot is None:
            return False
        if change_between(self.name, metadata, Version(str(number)), version).kind is not ChangeKind.NONE:
            return False
        files = snapshot.summary().get("total-data-files" if whole else "added-data-files")
        return position >= int(files or 0)

    def adopt(self, fork: Fork, definition: TableDefinition, commit_metadata: CommitMetadata) -> Committed:
        if fork.version == NO_VERSION:
            # Without a first snapshot there is no parent to check a fork against.
            first = replace(
                commit_metadata, mode=None, checkpoint=None, positions={}, inputs={}, definition=None
            )
            fork = replace(fork, version=self._table.raise_fence(fork, first).version)
        version = int(definition.properties.get(_FORMAT, _NEWEST_FORMAT))

        def build(loaded: Loaded) -> Any:
            check_main(self.name, loaded, fork.version, commit_metadata.fence)
            builder = self._iceberg.api.TableMetadata.buildFrom(loaded.metadata)
            if int(loaded.metadata.formatVersion()) < version:
                builder.upgradeFormatVersion(version)
            untrimmed = {k: v for k, v in TRIMMED.items() if not loaded.metadata.properties().containsKey(k)}
            return builder.setProperties(
                self._iceberg.map({**untrimmed, COMMIT_METADATA_KEY: encode(commit_metadata)})
            ).build()

        compare_and_set(
            self._iceberg,
            self.name,
            self._effects,
            Step.LAKE_ADOPT,
            build=build,
            done=lambda loaded: loaded.commit_metadata == commit_metadata,
        )
        return Committed(table=self.name, version=fork.version, parent=None)


def _offset_fields(offset: str) -> tuple[int, int, bool] | None:
    """The offset's snapshot, the number of its files read, and whether all its files are read or only the
    added ones. None for an offset of another source."""
    try:
        fields = json.loads(offset)
        return int(fields["snapshot_id"]), int(fields["position"]), bool(fields["scan_all_files"])
    except (ValueError, TypeError, KeyError):
        # This is an offset of another source.
        return None
