"""Reading of an Iceberg table: fork, versions, changes and rows. Nothing here commits.

`reverted_metadata` only builds the metadata of a table that goes back to an older version. Its caller commits
it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.types import StructType

from tautochrone.errors import HistoryLostError, LakeError
from tautochrone.iceberg.changes.changed_files import (
    can_move_main_back,
    change_between,
    commits_between,
    in_history,
    moves_rows,
    rows_behind_vectors,
)
from tautochrone.iceberg.changes.changes import rows_appended, rows_changed
from tautochrone.iceberg.commits.compare_and_set import NO_VERSION, Loaded, load
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, decode, encode
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.calls import history, references
from tautochrone.iceberg.reads.collected_change import collected_append, collected_change
from tautochrone.iceberg.reads.data_files import appended_rows
from tautochrone.iceberg.reads.version_files import IcebergVersionFiles
from tautochrone.model.effects import Effects
from tautochrone.model.former_names import with_current_names
from tautochrone.model.lake import (
    AppendedRows,
    ChangeKind,
    CollectedChange,
    CommitMetadata,
    Fork,
    Outcome,
    Prepared,
    RowChange,
    Rows,
    TableChange,
    TableVersion,
    VersionFiles,
    local_folder,
)
from tautochrone.model.names import Fence, TableName, Version, describe_input, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.jvm.driver_calls import read_table

__all__ = [
    "BRANCH_PREFIX",
    "IcebergReading",
    "companions_at",
    "merged_commit_metadata_at",
    "own_files",
    "prepared_batches",
    "reverted_metadata",
    "tags",
]


BRANCH_PREFIX = "tautochrone-prepared-"
"""Every prepared batch has its own branch, whose name begins with this prefix."""


def prepared_batches(name: TableName, metadata: Any) -> list[Prepared]:
    """Prepared batches on branches with our prefix, with their commit metadata."""
    batches = []
    for branch in references(metadata):
        if not branch.name.startswith(BRANCH_PREFIX):
            continue
        (snapshot,) = history(metadata, branch.version, branch.version)
        commit_metadata = decode(snapshot.summary.get(COMMIT_METADATA_KEY))
        if commit_metadata is None:
            continue
        batches.append(
            Prepared(
                table=name,
                parent=NO_VERSION if snapshot.parent is None else snapshot.parent,
                version=snapshot.version,
                branch=branch.name,
                commit_metadata=commit_metadata,
                rows=int(snapshot.summary.get("added-records") or 0),
            )
        )
    return batches


def tags(metadata: Any) -> Sequence[str]:
    """Names of all tags, those of older snapshots first."""
    numbered_tags = [
        (reference.sequence_number, reference.name) for reference in references(metadata) if reference.is_tag
    ]
    return [name for _, name in sorted(numbered_tags)]


def own_files(loaded: Loaded, snapshot: Any) -> list[str]:
    """Data files, manifests and the manifest list that this snapshot added."""
    io = loaded.table.io()
    manifests = [m for m in snapshot.allManifests(io) if m.snapshotId() == snapshot.snapshotId()]
    data = [str(file.location()) for file in snapshot.addedDataFiles(io)]
    return [*data, *(str(m.path()) for m in manifests), str(snapshot.manifestListLocation())]


def merged_commit_metadata_at(name: TableName, loaded: Loaded, version: Version) -> CommitMetadata | None:
    """See `LakeTable.merged_commit_metadata_at`."""
    if not can_move_main_back(loaded.metadata, loaded.main, version):
        raise HistoryLostError(
            "VERSION_NOT_IN_HISTORY", f"{name} was rolled back or replaced since it stood at {version}"
        )
    chain = history(loaded.metadata, version)
    merged: CommitMetadata | None = None
    newest = loaded.commit_metadata
    renames = () if newest is None else newest.renames
    for snapshot in reversed(chain):
        commit_metadata = decode(snapshot.summary.get(COMMIT_METADATA_KEY))
        if commit_metadata is not None:
            merged = carry_forward(merged, with_current_names(commit_metadata, renames))
    unknown = set(newest.positions) - set(merged.positions) if newest and merged else set()
    if unknown and chain[-1].parent is not None:
        raise HistoryLostError(
            "POSITIONS_LOST",
            f"Where the flow {min(unknown)} of {name} stood at version {version} was told by commits that "
            "are expired",
            hint="choose a later checkpoint, or clear the table with --full",
        )
    return None if merged is None else replace(merged, renames=renames)


def companions_at(
    metadata: Mapping[str, Any], versions: Collection[Version]
) -> Mapping[TableName, frozenset[Version]]:
    """See `LakeTable.companions_at`.

    Args:
        metadata: a table's metadata, parsed from its JSON, because one Java call per snapshot is too slow.
    """
    snapshots = {str(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}
    companions: dict[TableName, set[Version]] = {}
    newest = decode((metadata.get("properties") or {}).get(COMMIT_METADATA_KEY))
    renames = () if newest is None else newest.renames
    for version in versions:
        current = snapshots.get(version)
        commit_metadata = None
        # A fence commit names no companions; its rows are still those of the commit below it.
        while current is not None and (commit_metadata is None or commit_metadata.mode is None):
            commit_metadata = decode(current.get("summary", {}).get(COMMIT_METADATA_KEY))
            current = snapshots.get(str(current.get("parent-snapshot-id")))
        if commit_metadata is not None:
            for name, companion in with_current_names(commit_metadata, renames).companions.items():
                companions.setdefault(TableName.parse(name), set()).add(Version(companion))
    return {name: frozenset(versions_of_companion) for name, versions_of_companion in companions.items()}


def reverted_metadata(
    name: TableName, loaded: Loaded, version: Version, commit_metadata: CommitMetadata, tag: str
) -> tuple[Any, Version]:
    """Java TableMetadata that tags main as `tag`, moves main to `version` and adds an empty snapshot; and
    the version of that snapshot.

    The snapshot's commit metadata is that of the version, by its new writer, without the checkpoint: that
    stays on the commit that wrote the rows.
    """
    if not can_move_main_back(loaded.metadata, loaded.main, version):
        raise LakeError("VERSION_NOT_IN_HISTORY", f"{name} never stood at {version}")
    # The transaction only produces metadata. Its own commit would retry without checks.
    transaction = loaded.table.newTransaction()
    manage = transaction.manageSnapshots()
    manage.createTag(tag, int(loaded.main)).setCurrentSnapshot(int(version)).commit()
    described = replace(commit_metadata, checkpoint=None, built=None)
    transaction.newAppend().set(COMMIT_METADATA_KEY, encode(described)).commit()
    metadata = transaction.currentMetadata()
    return metadata, Version(str(metadata.currentSnapshot().snapshotId()))


_VERSIONS_KEPT = 64


@dataclass(frozen=True, slots=True)
class _LastLoad:
    """What the table was when it was loaded last, and what was asked of it: snapshots never change.

    Attributes:
        versions: some that it has.
        changes: between two versions.
        schema_ids: of versions.
    """

    loaded: Loaded
    versions: set[Version] = field(default_factory=set)
    changes: dict[tuple[Version, Version], TableChange] = field(default_factory=dict)
    schema_ids: dict[Version | None, int] = field(default_factory=dict)

    def schema_id(self, version: Version | None) -> int:
        """Of a version that the table has, or of the table now."""
        known = self.schema_ids.get(version)
        if known is None:
            metadata = self.loaded.metadata
            has_rows = version is not None and version != NO_VERSION
            snapshot = metadata.snapshot(int(version)) if version and has_rows else None
            schema_id = None if snapshot is None else snapshot.schemaId()
            known = int(metadata.currentSchemaId() if schema_id is None else schema_id)
            self.schema_ids[version] = known
        return known

    def has(self, versions: Iterable[Version]) -> bool:
        for version in versions:
            if version != NO_VERSION and version not in self.versions:
                if self.loaded.metadata.snapshot(int(version)) is None:
                    return False
                self.versions.add(version)
        return True


class IcebergReading:
    """See `model.lake.LakeTable` for what each method promises."""

    def __init__(
        self, iceberg: Iceberg, name: TableName, effects: Effects, last: Loaded | None = None
    ) -> None:
        self._iceberg = iceberg
        self._name = name
        self._effects = effects
        self._last = None if last is None else _LastLoad(last)
        self._counts: dict[Version, int | None] = {}
        self._schemas: dict[tuple[str, int], StructType] = {}
        """By the table's UUID and the number of the schema."""
        self._schemas_at: dict[Version, StructType] = {}

    @property
    def name(self) -> TableName:
        return self._name

    def fork(self) -> Fork:
        loaded = load(self._iceberg, self._name)
        self._last = _LastLoad(loaded)
        commit_metadata = loaded.commit_metadata
        return Fork(
            table=self._name,
            version=loaded.main,
            fence=Fence(0) if commit_metadata is None else commit_metadata.fence,
            commit_metadata=commit_metadata,
            handle=loaded,
        )

    def outcome(self, expected: Version) -> Outcome:
        loaded = load(self._iceberg, self._name)
        if in_history(loaded.metadata, loaded.main, expected, NO_VERSION):
            return Outcome.COMMITTED
        exists = loaded.metadata.snapshot(int(expected)) is not None
        return Outcome.PENDING if exists else Outcome.LOST

    def identity(self) -> str:
        # The UUID never changes while the table exists.
        loaded = load(self._iceberg, self._name) if self._last is None else self._last.loaded
        return str(loaded.metadata.uuid())

    def current_version(self) -> Version:
        loaded = load(self._iceberg, self._name)
        self._last = _LastLoad(loaded)
        return loaded.main

    def versions(self) -> Sequence[TableVersion]:
        loaded = load(self._iceberg, self._name)
        chain = history(loaded.metadata, loaded.main)
        return [
            TableVersion(
                version=snapshot.version,
                commit_metadata=decode(snapshot.summary.get(COMMIT_METADATA_KEY)),
                committed_at_ms=snapshot.committed_at_ms,
            )
            for snapshot in reversed(chain)
        ]

    def goes_back_to(self, version: Version) -> bool:
        # Loaded afresh, because the answer depends on the current main.
        loaded = load(self._iceberg, self._name)
        return can_move_main_back(loaded.metadata, loaded.main, version)

    def merged_commit_metadata_at(self, version: Version) -> CommitMetadata | None:
        return merged_commit_metadata_at(self._name, load(self._iceberg, self._name), version)

    def companions_at(self, versions: Collection[Version]) -> Mapping[TableName, frozenset[Version]]:
        metadata = load(self._iceberg, self._name).metadata
        text = str(self._iceberg.api.TableMetadataParser.toJson(metadata))
        return companions_at(json.loads(text), versions)

    def change_between(self, old: Version, new: Version) -> TableChange:
        return self._change(old, new)[1]

    def common_ancestor(self, first: Version, second: Version) -> Version | None:
        metadata = self._loaded_with(first, second).metadata
        first_ancestors = {snapshot.version for snapshot in history(metadata, first)}
        second_ancestors = (snapshot.version for snapshot in history(metadata, second))
        return next((version for version in second_ancestors if version in first_ancestors), None)

    def read(self, session: Any, version: Version) -> Rows:
        if version == NO_VERSION:
            return session.read.table(self._name.sql).limit(0)
        return read_table(session, self._name.sql, {"versionAsOf": version})

    def files_at(self, version: Version) -> VersionFiles:
        return IcebergVersionFiles(self._iceberg, self._name, self._loaded_with(version), version)

    def schema_at(self, version: Version) -> StructType:
        known = self._schemas_at.get(version)
        if known is not None:
            return known
        last = self._last_with([version])
        # A table that was dropped and created again numbers its schemas anew.
        key = str(last.loaded.metadata.uuid()), last.schema_id(version)
        if key not in self._schemas:
            java_schema = last.loaded.metadata.schemasById().get(key[1])
            text = str(self._iceberg.api.spark.SparkSchemaUtil.convert(java_schema).json())
            self._schemas[key] = StructType.fromJson(json.loads(text))
        if version != NO_VERSION:
            if len(self._schemas_at) >= _VERSIONS_KEPT:
                self._schemas_at.clear()
            self._schemas_at[version] = self._schemas[key]
        return self._schemas[key]

    def columns_lost(self, old: Version, new: Version) -> Sequence[str]:
        if old == new:
            return []
        last = self._last_with((old, new))
        ids = [last.schema_id(version) for version in (old, new, None)]
        if len({*ids}) == 1:
            return []
        before, after, now = (self._fields(last.loaded, schema_id) for schema_id in ids)
        return [
            name
            for name, known in after.items()
            if now.get(name) != known or before.get(name, known)[0] != known[0]
        ]

    def _fields(self, loaded: Loaded, schema_id: int) -> dict[str, tuple[int, Any]]:
        """By name the id and the type of each column."""
        java_schema = loaded.metadata.schemasById().get(schema_id)
        listed = json.loads(str(self._iceberg.api.SchemaParser.toJson(java_schema)))["fields"]
        return {str(each["name"]): (int(each["id"]), each["type"]) for each in listed}

    def read_options(self, old: Version, new: Version) -> Mapping[str, str]:
        if old == NO_VERSION:
            # The whole version was appended. Iceberg refuses an end snapshot without a start snapshot.
            return {"snapshot-id": new}
        return {"start-snapshot-id": old, "end-snapshot-id": new}

    def changed_rows(self, session: Any, old: Version, new: Version) -> RowChange:
        loaded, change = self._change(old, new)
        if change.kind is ChangeKind.UNKNOWN:
            raise HistoryLostError("HISTORY_LOST", str(change.reason))
        if change.kind is ChangeKind.NONE:
            return RowChange()
        if change.kind is ChangeKind.CHANGED or old == NO_VERSION:
            # From an empty table: reading the version itself would return the columns of that time.
            return rows_changed(self._iceberg, self._name, loaded, session, old, new)
        rows = rows_appended(loaded, old, new)
        if not rows:
            return RowChange()
        self._iceberg.activate(session)
        added = read_table(session, self._name.sql, self.read_options(old, new))
        return RowChange(added=added, rows=rows)

    def collected_change(self, old: Version, new: Version) -> CollectedChange | Reason:
        loaded, change = self._change(old, new)
        if change.kind is ChangeKind.UNKNOWN:
            raise HistoryLostError("HISTORY_LOST", str(change.reason))
        if change.kind is ChangeKind.NONE:
            return CollectedChange()
        if change.kind is ChangeKind.CHANGED or old == NO_VERSION:
            return collected_change(self._iceberg, self._name, loaded, old, new)
        rows = rows_appended(loaded, old, new)
        if not rows:
            return CollectedChange()
        return collected_append(self._iceberg, loaded, old, new, rows)

    def appended_rows(self, old: Version, new: Version, column: str, max_bytes: int) -> AppendedRows | Reason:
        table = self._loaded_with(old, new).table
        return appended_rows(self._iceberg, table, old, new, column, max_bytes)

    def row_count(self, version: Version) -> int | None:
        if version == NO_VERSION:
            return 0
        if version not in self._counts:
            if len(self._counts) >= _VERSIONS_KEPT:
                self._counts.clear()
            self._counts[version] = self._count(version)
        return self._counts[version]

    def last_commit_ms(self) -> int:
        return int(load(self._iceberg, self._name).metadata.lastUpdatedMillis())

    def tags(self) -> Sequence[str]:
        return tags(load(self._iceberg, self._name).metadata)

    # -- inside -----------------------------------------------------------------------------------

    def _loaded_with(self, *versions: Version) -> Loaded:
        """The last loaded table if it has these versions, else a fresh one. A snapshot never changes, so
        an older load is valid for it."""
        return self._last_with(versions).loaded

    def _last_with(self, versions: Sequence[Version]) -> _LastLoad:
        last = self._last
        if last is None or not last.has(versions):
            last = self._last = _LastLoad(load(self._iceberg, self._name))
        return last

    def _change(self, old: Version, new: Version) -> tuple[Loaded, TableChange]:
        """A load that has both versions, and the change between them."""
        last = self._last_with((old, new))
        change = last.changes.get((old, new))
        if change is None:
            change = change_between(self._name, last.loaded.metadata, old, new)
            if change.kind is ChangeKind.CHANGED and is_shadow_table(self._name):
                change = self._with_files_there(last.loaded, old, new, change)
            last.changes[old, new] = change
        return last.loaded, change

    def _with_files_there(
        self, loaded: Loaded, old: Version, new: Version, change: TableChange
    ) -> TableChange:
        """The change of a shadow table, of which only files that are still there show removed rows."""
        io = loaded.table.io()
        paths: set[str] = set()
        for snapshot in commits_between(loaded.metadata, old, new):
            if moves_rows(snapshot):
                removed = loaded.metadata.snapshot(int(snapshot.version)).removedDataFiles(io)
                paths.update(self._iceberg.functions.paths(removed))
        missing = sum(not self._exists(io, path) for path in sorted(paths))
        if not missing:
            return change
        reason = Reason.of(ReasonCode.FOREIGN_FILES_GONE, table=describe_input(self._name), files=missing)
        return TableChange(kind=ChangeKind.UNKNOWN, reason=reason)

    def _exists(self, io: Any, path: str) -> bool:
        local = local_folder(path)
        return bool(io.newInputFile(path).exists()) if local is None else local.exists()

    def _count(self, version: Version) -> int | None:
        loaded = self._loaded_with(version)
        summary = next((each.summary for each in history(loaded.metadata, version, version)), {})
        records, delete_files = summary.get("total-records"), summary.get("total-delete-files")
        if records is None or delete_files is None:
            return None
        if delete_files == "0":
            return int(records)
        return rows_behind_vectors(self._iceberg.functions, loaded.table, version)
