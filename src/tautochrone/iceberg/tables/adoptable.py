"""Implements `model.catalog.AdoptableTable`: an Iceberg table that another system created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tautochrone.iceberg.changes.changed_files import change_between
from tautochrone.iceberg.commits.compare_and_set import NO_VERSION, Loaded, check_main, compare_and_set, load
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, encode
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.calls import history
from tautochrone.iceberg.reads.schema import TRIMMED
from tautochrone.iceberg.tables.table import IcebergTable
from tautochrone.model.effects import Effects, Step
from tautochrone.model.lake import ChangeKind, CommitMetadata, Committed, Fork, TableDefinition
from tautochrone.model.names import TableName, Version

__all__ = ["IcebergAdoptable"]

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
