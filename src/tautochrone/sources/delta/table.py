"""A Delta table as a foreign table: see `model.foreign`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import (
    ForeignField,
    ForeignFile,
    ForeignSource,
    ForeignStep,
    ForeignVersion,
    ShownVersion,
)
from tautochrone.sources.damage import DAMAGED, text_of
from tautochrone.sources.delta.log import DeltaLog, LogError, LogState, Remembered, location_of
from tautochrone.sources.delta.schema import columns_of, partition_value
from tautochrone.sources.delta.vectors import name_of_vector, path_of_vector, positions_of
from tautochrone.sources.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DeltaTable"]

_FEATURES = frozenset(
    {
        "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "typeWidening",
        "typeWidening-preview", "vacuumProtocolCheck",
    }
)  # fmt: skip
"""What readers must know and what is known here."""
_NEWEST_READER = 3
_MODE = "delta.columnMapping.mode"
_UNMAPPED = "none"


def _columns_key(metadata: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Equal for the same columns, found in data files in the same way."""
    mode = (metadata.get("configuration") or {}).get(_MODE, _UNMAPPED)
    return metadata.get("schemaString") or "", mode, tuple(metadata.get("partitionColumns") or ())


class DeltaTable:
    """See `model.foreign.ForeignTable`."""

    def __init__(self, source: ForeignSource, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._log: DeltaLog | None = None
        self._folder = ""
        self._version: ForeignVersion | None = None
        self._key: tuple[Any, ...] = ()
        self._columns: tuple[ForeignField, ...] = ()
        self._vectors: dict[str, Mapping[str, Any]] = {}
        self._files: dict[str, tuple[Mapping[str, Any], ForeignFile]] = {}

    @property
    def source(self) -> ForeignSource:
        return self._source

    def newest(self) -> ForeignVersion:
        with self._log_errors():
            if self._log is None:
                self._folder = self._storage.qualified(self._source.path)
                self._log = DeltaLog(self._storage, self._folder)
            state = self._log.newest()
            return self._version_of(state)

    def _version_of(self, state: LogState | None) -> ForeignVersion:
        if state is None:
            raise ForeignTableError(
                "DELTA_TABLE_MISSING",
                f"There is no Delta table in {self._source.path}",
                hint="a Delta table is a folder with a folder _delta_log; its path is absolute, and its "
                "storage is one that Spark has the settings of",
                sqlstate="42P01",
            )
        known = self._version
        shown = str(state.metadata["id"]), state.version, state.digest
        if known is not None and (known.identity, known.number, known.stamp) == shown:
            return known
        self._require_known_features(state)
        fields = self._fields(state.metadata)
        partitions = tuple(state.metadata.get("partitionColumns") or ())
        if known is None or (known.fields, known.partition_columns) != (fields, partitions):
            self._files.clear()
        # An add that is still in force is the same object.
        self._files = {
            location: (
                add,
                self._files[location][1]
                if self._is_known(location, add)
                else self._file(location, add, fields, partitions),
            )
            for location, add in state.adds.items()
        }
        self._version = ForeignVersion(
            identity=str(state.metadata["id"]),
            number=state.version,
            fields=fields,
            partition_columns=partitions,
            files={file.location: file for _, file in self._files.values()},
            stamp=state.digest,
        )
        return self._version

    def steps_since(self, shown: ShownVersion, *, has_same_columns: bool) -> Sequence[ForeignStep] | None:
        newest, log = self._version, self._log
        assert newest is not None
        assert log is not None
        done = self._remembered_since(log, shown, newest)
        if done is None:
            return None
        # With other columns in between, files of that time are not looked at.
        changes = [_columns_key(each.metadata) for each in done if each.metadata is not None]
        are_columns_the_same = not changes or (has_same_columns and {*changes} == {self._key})
        steps: list[ForeignStep] = []
        for each in done:
            files: dict[str, ForeignFile | None] = {}
            for location, add in each.adds.items():
                files[location] = newest.files.get(location) if not are_columns_the_same else None
                if add is not None and are_columns_the_same:
                    files[location] = self._file(location, add, newest.fields, newest.partition_columns)
            if not files:
                continue
            moves_rows = each.changes_rows or not are_columns_the_same
            if steps and steps[-1].moves_rows is moves_rows:
                steps[-1] = replace(steps[-1], files={**steps[-1].files, **files})
            else:
                steps.append(ForeignStep(files, moves_rows))
        return steps

    def deleted_positions(self, file: ForeignFile) -> Sequence[int]:
        vector = self._vectors[file.deletes]
        path = path_of_vector(vector)
        try:
            content = None if path is None else self._storage.read(location_of(self._folder, path))
            return positions_of(vector, content)
        except DAMAGED as error:
            raise ForeignTableError(
                "DELTA_VECTOR_UNREADABLE",
                f"The deleted rows of {file.location}, of {self._source}, cannot be read: {text_of(error)}",
                hint="Delta's VACUUM may have removed the file; the next run reads the newest version",
                retryable=True,
            ) from error

    # -- inside -----------------------------------------------------------------------------------

    def _remembered_since(
        self, log: DeltaLog, shown: ShownVersion, newest: ForeignVersion
    ) -> list[Remembered] | None:
        """What the versions after the one that is shown did; None: the log does not tell."""
        if shown.identity != newest.identity or shown.number > newest.number:
            return None
        done: list[Remembered] = []
        with self._log_errors():
            if not self._has_commit(log, shown, newest):
                return None
            for version in range(shown.number + 1, newest.number + 1):
                remembered = log.remembered(version)
                if remembered is None:
                    # The writer's clean-up took it.
                    return None
                done.append(remembered)
        if any(each.metadata is not None and each.metadata["id"] != shown.identity for each in done):
            return None
        return done

    def _has_commit(self, log: DeltaLog, shown: ShownVersion, newest: ForeignVersion) -> bool:
        """Whether the log has the version that is shown. After a backup was put back it may have another one
        of that number."""
        if not shown.stamp:
            return True
        digest = newest.stamp if shown.number == newest.number else log.digest(shown.number)
        # Of the newest version the checkpoint of the log is enough.
        return digest == shown.stamp or (digest == "" and shown.number == newest.number)

    def _require_known_features(self, state: LogState) -> None:
        reader = int(state.protocol.get("minReaderVersion") or 1)
        features = state.protocol.get("readerFeatures") or () if reader >= _NEWEST_READER else ()
        unknown = sorted({*features} - _FEATURES)
        if reader > _NEWEST_READER:
            unknown.append(f"reader version {reader}")
        if (state.metadata.get("format") or {}).get("provider", "parquet") != "parquet":
            unknown.append(f"files of the format {state.metadata['format']['provider']}")
        if unknown:
            raise ForeignTableError(
                "DELTA_FEATURE_UNSUPPORTED",
                f"Readers of {self._source} must know {', '.join(unknown)}, and this one does not",
                hint="let Delta's own program drop the feature (ALTER TABLE … DROP FEATURE …), or write a "
                "copy without it",
                sqlstate="0A000",
            )

    def _fields(self, metadata: Mapping[str, Any]) -> tuple[ForeignField, ...]:
        key = _columns_key(metadata)
        if self._key != key:
            schema, mode, _ = key
            if not schema:
                raise LogError("the table has no columns")
            self._columns = columns_of(self._source, schema, is_mapped=mode != _UNMAPPED)
            self._key = key
        return self._columns

    def _is_known(self, location: str, add: Mapping[str, Any]) -> bool:
        return location in self._files and self._files[location][0] is add

    def _file(
        self,
        location: str,
        add: Mapping[str, Any],
        fields: Sequence[ForeignField],
        partitions: Sequence[str],
    ) -> ForeignFile:
        values = add.get("partitionValues") or {}
        vector = add.get("deletionVector")
        deletes = name_of_vector(vector)
        if vector:
            self._vectors[deletes] = vector
        columns = (field for field in fields if field.name in partitions)
        partition = {
            column.name: partition_value(
                self._source, column.name, column.type, values.get(column.stored_name)
            )
            for column in columns
        }
        return ForeignFile(location, int(add["size"]), partition, deletes)

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        """Raise what is wrong with the log as an error of a class. What was read of it is forgotten."""
        try:
            yield
        except (LogError, *DAMAGED) as error:
            self._log = self._version = None
            raise ForeignTableError(
                "DELTA_LOG_UNREADABLE",
                f"The log of {self._source} cannot be read: {text_of(error)}",
                hint="it is read again at the next cut; if Delta's own readers fail too, it is damaged",
                retryable=True,
            ) from error
