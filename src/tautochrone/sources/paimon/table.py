"""A Paimon table as a foreign table: see `model.foreign`.

Tables without a primary key are followed. Of those with one, each data file must stand for its rows alone, as
for Paimon's own readers that read files without merging: after a full compaction, or with deletion vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import (
    ForeignFile,
    ForeignSource,
    ForeignStep,
    ForeignVersion,
    ShownVersion,
)
from tautochrone.sources.damage import DAMAGED, CodecError, DamagedFileError, text_of
from tautochrone.sources.paimon.schema import columns_of
from tautochrone.sources.paimon.snapshots import (
    DataEntry,
    PaimonFiles,
    Schema,
    SnapshotError,
    VectorRange,
    positions_of,
)
from tautochrone.sources.storage import Storage

__all__ = ["PaimonTable"]

_COMPACT = "COMPACT"
_ANALYZE = "ANALYZE"
_FIRST_ROW = "first-row"
_DATA_FOLDER = "data-file.path-directory"
_POSTPONED = -2
"""The bucket of rows that readers do not see yet."""
_OF_READERS = re.compile(
    r"scan\.(snapshot-id|tag-name|timestamp|timestamp-millis|file-creation-time-millis|creation-time-millis|"
    r"version|watermark|bounded\.watermark|fallback-branch)|branch|incremental-between.*|"
    r"record-level\.expire-time|fields\..*\.default-value"
)
"""Options of a table by which readers see other rows than those of its newest files."""
_SWITCHES = ("data-evolution.enabled", "query-auth.enabled")


class PaimonTable:
    """See `model.foreign.ForeignTable`."""

    def __init__(self, source: ForeignSource, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._folder = ""
        self._files: PaimonFiles | None = None
        self._known: tuple[Any, ...] = ()
        self._version: ForeignVersion | None = None
        self._schema: Schema | None = None
        self._paths: dict[str, str] = {}
        self._vectors: dict[str, VectorRange] = {}
        self._index_files: dict[str, bytes] = {}
        """Contents, by name: one has the vectors of many data files."""
        self._index_paths: dict[str, str] = {}

    @property
    def source(self) -> ForeignSource:
        return self._source

    def newest(self) -> ForeignVersion:
        self._index_files.clear()
        with self._snapshot_errors():
            if not self._folder:
                self._folder = self._storage.qualified(self._source.path)
            files = self._files = self._files or PaimonFiles(self._storage, self._folder)
            number = max(files.numbers("snapshot", "snapshot-"), default=0)
            schemas = max(files.numbers("schema", "schema-"), default=-1)
            path = f"{self._folder}/snapshot/snapshot-{number}"
            known = number, schemas, self._storage.stamp(path)
            if self._version is None or self._known != known:
                self._version = self._read(files, number)
                self._known = known
            return self._version

    def _read(self, files: PaimonFiles, number: int) -> ForeignVersion:
        schemas = files.schemas()
        if not schemas:
            raise ForeignTableError(
                "PAIMON_TABLE_MISSING",
                f"There is no Paimon table in {self._source.path}",
                hint="a Paimon table is a folder with a folder schema; its path is absolute, and its storage "
                "is one that Spark has the settings of",
                sqlstate="42P01",
            )
        schema = self._schema = schemas[-1]
        self._require_known_features(schema)
        snapshot = files.snapshot(number) if number else None
        if snapshot is None and number:
            raise SnapshotError(f"the snapshot {number} was removed while it was read")
        entries = [] if snapshot is None else list(files.entries(snapshot).values())
        vectors = {} if snapshot is None else files.vectors(snapshot)
        rows = self._readable(schema, entries)
        missing = self._missing(rows)
        if missing:
            raise SnapshotError(f"the data file {missing[0]} is not there")
        return ForeignVersion(
            # Paimon's tables have none: the stamp tells one from another in its folder.
            identity="",
            number=number,
            stamp=f"{'' if snapshot is None else snapshot['deltaManifestList']}/{schema.number}",
            fields=columns_of(self._source, schemas, frozenset(entry.schema for entry in rows)),
            files={file.location: file for file in self._described(rows, vectors)},
        )

    def _described(
        self, entries: Iterable[DataEntry], vectors: Mapping[str, VectorRange]
    ) -> Iterator[ForeignFile]:
        for entry in entries:
            vector = vectors.get(entry.name)
            if vector is not None:
                self._vectors[vector.name] = vector
            deletes = "" if vector is None else vector.name
            yield ForeignFile(self._location(entry), entry.size, deletes=deletes)

    def steps_since(self, shown: ShownVersion, *, has_same_columns: bool) -> Sequence[ForeignStep] | None:
        newest, files, schema = self._version, self._files, self._schema
        assert newest is not None
        assert files is not None
        assert schema is not None
        whole = [ForeignStep(newest.files, moves_rows=True, is_complete=True)]
        is_known = shown.identity == newest.identity and 0 < shown.number <= newest.number
        if not has_same_columns or not is_known:
            return whole
        if schema.primary_keys:
            step = self._difference(files, schema, shown, newest)
            return whole if step is None else [step] if step.files else []
        with self._snapshot_errors():
            snapshots = [files.snapshot(each) for each in range(shown.number, newest.number + 1)]
            known = [each for each in snapshots if each is not None]
            if len(known) < len(snapshots) or known[0]["deltaManifestList"] != shown.stamp.partition("/")[0]:
                # They expired, or were rolled back.
                return whole
            steps = self._steps(files, known)
            return whole if steps is None else steps

    def _difference(
        self, files: PaimonFiles, schema: Schema, shown: ShownVersion, newest: ForeignVersion
    ) -> ForeignStep | None:
        """Of a table with a primary key, whose compactions move rows: the files that differ; None: it is not
        known what they were."""
        with self._snapshot_errors(), suppress(FileNotFoundError):
            snapshot = files.snapshot(shown.number)
            if snapshot is None or shown.stamp != f"{snapshot['deltaManifestList']}/{schema.number}":
                # It expired or was rolled back, or other options say which files readers see.
                return None
            entries = self._readable(schema, list(files.entries(snapshot).values()))
            if self._missing(entries):
                return None
            former = {file.location: file for file in self._described(entries, files.vectors(snapshot))}
            changed: dict[str, ForeignFile | None] = dict.fromkeys(former.keys() - newest.files.keys())
            changed |= {path: file for path, file in newest.files.items() if former.get(path) != file}
            return ForeignStep(changed, moves_rows=True)
        # Its manifests are gone: it expires just now.
        return None

    def _steps(self, files: PaimonFiles, snapshots: Sequence[Mapping[str, Any]]) -> list[ForeignStep] | None:
        """From the first of some snapshots to the last one; None: it is not known where some files were."""
        entries = {entry.name: entry for entry in files.entries(snapshots[0]).values()}
        vectors = files.vectors(snapshots[0])
        steps: list[ForeignStep] = []
        for snapshot in snapshots[1:]:
            added, removed = files.changes(snapshot)
            former, vectors = vectors, files.vectors(snapshot)
            changed = {entry.name: entry for entry in added}
            changed |= {
                name: entries[name]
                for name in {*former, *vectors}
                if former.get(name) != vectors.get(name) and name in entries
            }
            gone = [entry for entry in removed if entry.name not in {each.name for each in added}]
            for entry in gone:
                entries.pop(entry.name, None)
                changed.pop(entry.name, None)
            entries |= {entry.name: entry for entry in added}
            if self._missing([*changed.values(), *gone]):
                return None
            described: dict[str, ForeignFile | None] = {self._location(entry): None for entry in gone} | {
                file.location: file for file in self._described(changed.values(), vectors)
            }
            moves_rows = snapshot["commitKind"] not in (_COMPACT, _ANALYZE)
            if not described:
                continue
            if steps and steps[-1].moves_rows is moves_rows:
                steps[-1] = ForeignStep({**steps[-1].files, **described}, moves_rows)
            else:
                steps.append(ForeignStep(described, moves_rows))
        return steps

    def deleted_positions(self, file: ForeignFile) -> Sequence[int]:
        try:
            vector = self._vectors[file.deletes]
            return positions_of(self._index_file(vector), vector.offset)
        except DAMAGED as error:
            raise ForeignTableError(
                "PAIMON_VECTOR_UNREADABLE",
                f"The deleted rows of {file.location}, of {self._source}, cannot be read: {text_of(error)}",
                hint="its snapshot may have expired; the next run reads the newest one",
                retryable=True,
            ) from error

    # -- what is understood -------------------------------------------------------------------------

    def _require_known_features(self, schema: Schema) -> None:
        unknown = [
            f"{name} = {value}" for name, value in schema.options.items() if _OF_READERS.fullmatch(name)
        ]
        unknown += [name for name in _SWITCHES if schema.options.get(name, "").lower() == "true"]
        kind = schema.options.get("type", "table")
        if kind != "table":
            unknown.append(f"tables of the type {kind}")
        if schema.options.get("scan.mode", "default") not in ("default", "latest", "latest-full", "full"):
            unknown.append(f"scan.mode = {schema.options['scan.mode']}")
        if unknown:
            raise self._feature_error(", ".join(sorted(unknown)))

    def _feature_error(self, what: str) -> ForeignTableError:
        return ForeignTableError(
            "PAIMON_FEATURE_UNSUPPORTED",
            f"Readers of {self._source} must know {what}, and this one does not",
            hint="let Paimon's own program reset the option, or write a copy without it, in Parquet",
            sqlstate="0A000",
        )

    def _readable(self, schema: Schema, entries: Sequence[DataEntry]) -> list[DataEntry]:
        """The files that readers see.

        Raises:
            ForeignTableError: they would have to be merged, or are in another format.
        """
        seen = [entry for entry in entries if entry.bucket != _POSTPONED]
        if schema.primary_keys:
            seen = self._unmerged(schema, seen)
        other = next((entry.name for entry in seen if not entry.name.endswith(".parquet")), None)
        if other is not None:
            raise self._feature_error(f"the format of the data file {other}")
        return seen

    def _unmerged(self, schema: Schema, entries: Sequence[DataEntry]) -> list[DataEntry]:
        has_vectors = schema.options.get("deletion-vectors.enabled", "").lower() == "true"
        may_be_deep = has_vectors or schema.options.get("merge-engine") == _FIRST_ROW
        levels: dict[tuple[bytes, int], set[int]] = {}
        seen = [entry for entry in entries if entry.level > 0 or not may_be_deep]
        for entry in seen:
            levels.setdefault((entry.partition, entry.bucket), set()).add(entry.level)
        is_merged = all(entry.level > 0 and not entry.deletes for entry in seen)
        if not is_merged or not (may_be_deep or all(len(each) == 1 for each in levels.values())):
            raise ForeignTableError(
                "PAIMON_MERGE_UNSUPPORTED",
                f"{self._source} has a primary key, and files that readers must merge by it",
                hint="let Paimon compact the table in full, each time before it shall be followed, or write "
                "it with deletion-vectors.enabled = true",
                sqlstate="0A000",
            )
        return seen

    # -- where files are ----------------------------------------------------------------------------

    def _missing(self, entries: Sequence[DataEntry]) -> list[str]:
        """Find out where files are; names of those that are not there. Names of folders of partitions have
        two spellings, and files only one name."""
        schema = self._schema
        if schema is None or not (schema.partition_keys or _DATA_FOLDER in schema.options):
            return []
        unknown = {entry.name for entry in entries if entry.external is None} - self._paths.keys()
        if unknown:
            listed = self._storage.files(self._folder, below=True)
            self._paths |= {file.path.rpartition("/")[2]: file.path for file in listed}
        return sorted(unknown - self._paths.keys())

    def _location(self, entry: DataEntry) -> str:
        if entry.external is not None:
            return self._storage.qualified(entry.external)
        path = self._paths.get(entry.name) or f"bucket-{entry.bucket}/{entry.name}"
        return f"{self._folder}/{path}"

    def _index_file(self, vector: VectorRange) -> bytes:
        """Its content, which is kept until the next look at the newest snapshot."""
        if vector.file not in self._index_files:
            self._index_files[vector.file] = self._storage.read(self._index_location(vector))
        return self._index_files[vector.file]

    def _index_location(self, vector: VectorRange) -> str:
        if vector.external is not None:
            return self._storage.qualified(vector.external)
        location = f"{self._folder}/index/{vector.file}"
        if vector.file not in self._index_paths and self._storage.stamp(location) is None:
            # An option puts index files into the folders of the data files.
            listed = self._storage.files(self._folder, below=True)
            self._index_paths = {file.path.rpartition("/")[2]: file.path for file in listed}
        path = self._index_paths.get(vector.file)
        return location if path is None else f"{self._folder}/{path}"

    @contextmanager
    def _snapshot_errors(self) -> Iterator[None]:
        """Raise what is wrong with the metadata as an error of a class. What was read is forgotten."""
        try:
            yield
        except CodecError as error:
            self._files = self._version = None
            raise self._feature_error(f"manifests compressed by {error} (manifest.compression)") from error
        except (SnapshotError, DamagedFileError, *DAMAGED) as error:
            self._files = self._version = None
            raise ForeignTableError(
                "PAIMON_SNAPSHOT_UNREADABLE",
                f"The newest snapshot of {self._source} cannot be read: {text_of(error)}",
                hint="it is read again at the next cut; if Paimon's own readers fail too, it is damaged",
                retryable=True,
            ) from error
