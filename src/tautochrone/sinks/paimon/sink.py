"""Publishes tables as Paimon tables: each checkpoint is one snapshot of each of them.

A Paimon table has its files in its own folder, so a data file of the lake gets a second name there: a link,
no copy. Deletion vectors are copied, with the same bitmaps in another frame.

Paimon has no setting by which all writers stay away. The tables have two that its Java code heeds, see
`_OPTIONS`; what is committed nevertheless is noticed at the next checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tautochrone.model.lake import DataFile, VersionFiles
from tautochrone.model.names import TableName
from tautochrone.model.s3 import S3_OPTIONS
from tautochrone.model.sink import Digest, Intent
from tautochrone.sinks.common.exclusive_files import link_files, read_range, sizes_of
from tautochrone.sinks.common.file_columns import (
    FileColumns,
    FileTypes,
    column_id,
    stored_file,
    unreadable_error,
)
from tautochrone.sinks.common.object_paths import StoredPath
from tautochrone.sinks.common.options import require_known
from tautochrone.sinks.common.publication import (
    PublicationSink,
    PublishedTable,
    described_folder,
    digest_of_files,
    diverged_error,
    publication_folder,
)
from tautochrone.sinks.common.publication_state import StagedCommit
from tautochrone.sinks.paimon.manifests import (
    Added,
    Manifest,
    Vector,
    framed_vector,
    write_entries,
    write_manifest_list,
    write_vectors,
)
from tautochrone.sinks.paimon.schema import Fields, fields_of_file, fields_of_table
from tautochrone.sinks.paimon.snapshots import (
    BUCKET_FOLDER,
    COMMIT_USER,
    INDEX_FOLDER,
    MANIFEST_FOLDER,
    PROPERTY,
    PaimonSnapshots,
    TableState,
)

__all__ = [
    "PaimonPublication",
    "PaimonTable",
    "examine_paimon_publication",
    "open_paimon_publication",
    "paimon_options",
]

_FORMAT = "paimon-publication"
_MANIFESTS = 20
"""With so many manifests, all files are written into one."""
_MAX_ROWS = 2**31 - 1
"""Of a file whose deleted rows readers find."""
_VECTORS_BEGIN = b"\x01"
"""Of an index file: its version."""
_OPTIONS = {
    "bucket": "-1",
    "file.format": "parquet",
    "deletion-vectors.enabled": "true",
    # Writers neither compact the table nor remove its snapshots.
    "write-only": "true",
    # A commit is refused if somebody else has overwritten something since snapshot 0. Our first does.
    "commit.strict-mode.last-safe-snapshot": "0",
}


class PaimonPublication(PublicationSink):
    """See the module docstring."""

    _log_folder = "snapshot"

    def _new_table(self, table: TableName, folder: StoredPath) -> PublishedTable:
        return PaimonTable(self.name, table, folder)

    def _table_folder(self, name: TableName) -> StoredPath:
        """As Paimon's catalogs name folders: the publication is a warehouse."""
        folder = super()._table_folder(name)
        return folder.parent.with_name(f"{folder.parent.name}.db") / folder.name

    def digest_files(self, files: VersionFiles) -> Mapping[str, Digest]:
        deleted = [file.location for file in files.files.values() if file.deletes]
        vectors = dict(zip(deleted, files.deletion_vectors(deleted), strict=True))
        described = []
        for location, file in files.files.items():
            vector = vectors.get(location)
            has_positions = vector is not None and vector.positions
            content = framed_vector(vector.content) if vector is not None and has_positions else b""
            positions = vector.positions if vector is not None else 0
            described.append(_described(_name_of(file), file.rows, positions, content))
        return {"": digest_of_files(described)}


def _name_of(file: DataFile) -> str:
    """What a data file of the lake is called in the table's folder."""
    return f"data-{hashlib.sha256(file.location.encode()).hexdigest()[:32]}.parquet"


def _described(name: str, rows: int, positions: int, vector: bytes) -> tuple[int, str]:
    return rows - positions, f"{name}\n{rows}\n{positions}\n{hashlib.sha256(vector).hexdigest()}"


@dataclass(slots=True)
class _Changes:
    """What a snapshot has that the one before it has not."""

    schema: int
    schemas: dict[int, Fields] = field(default_factory=dict)
    added: list[Added] = field(default_factory=list)
    removed: list[Added] = field(default_factory=list)
    vectors: Mapping[str, Vector] | None = None
    staged: list[str] = field(default_factory=list)


class PaimonTable:
    """One table of the publication, see `PublishedTable`."""

    def __init__(self, sink: str, table: TableName, folder: StoredPath) -> None:
        self._sink = sink
        self._table = table
        self._folder = folder
        self._snapshots = PaimonSnapshots(folder)

    def head(self) -> str | None:
        return self._snapshots.head()

    def stage(self, intent: Intent, files: VersionFiles, *, moves_rows: bool) -> StagedCommit:
        before = self._snapshots.read()
        # Readers look for the snapshot of a time, and clocks go back.
        now_ms = max(round(time.time() * 1000), before.committed_ms)
        # The files of a table that did not move need not be listed.
        changes = (
            _Changes(schema=before.schemas - 1)
            if files.version == before.lake_version
            else self._changes(files, before)
        )
        snapshot = {
            "version": 3,
            "id": before.snapshot + 1,
            "schemaId": changes.schema,
            **self._manifests(before, changes, now_ms),
            "commitUser": COMMIT_USER,
            "commitIdentifier": int(intent.transaction.checkpoint),
            "commitKind": _kind(before, changes, moves_rows=moves_rows),
            "timeMillis": now_ms,
            "totalRecordCount": before.rows + _rows(changes.added) - _rows(changes.removed),
            "deltaRecordCount": _rows(changes.added) - _rows(changes.removed),
            "properties": {
                PROPERTY: json.dumps(
                    {
                        "transaction": intent.transaction.as_json(),
                        "version": files.version,
                        "moves_rows": moves_rows,
                        "schemas": before.schemas + len(changes.schemas),
                    }
                )
            },
        }
        schemas = {number: self._schema(number, fields, now_ms) for number, fields in changes.schemas.items()}
        content = {"snapshot": json.dumps(snapshot), "schemas": schemas, "staged": changes.staged}
        return StagedCommit(str(before.snapshot + 1), json.dumps(content), _rows(changes.added))

    def _changes(self, files: VersionFiles, before: TableState) -> _Changes:
        """What leads to a version of the lake's table. Links and deletion vectors are written."""
        fields = fields_of_table(self._sink, self._table, files.columns)
        by_name = {_name_of(file): file for file in files.files.values()}
        new = {name: file for name, file in by_name.items() if name not in before.files}
        stored = dict(zip(new, self._stored_fields(files, list(new.values())), strict=True))
        schema, schemas, numbers = self._numbered(before, fields, stored)
        changes = _Changes(schema=schema, schemas=schemas)
        names = [f"{BUCKET_FOLDER}/{name}" for name in new]
        paths = (stored_file(self._sink, self._table, file, self._folder) for file in new.values())
        links = [(path, self._folder / name) for path, name in zip(paths, names, strict=True)]
        link_files(self._sink, self._table, links)
        changes.staged += names
        changes.added += [Added(name, file.bytes, file.rows, numbers[name]) for name, file in new.items()]
        changes.removed = [file for name, file in before.files.items() if name not in by_name]
        self._stage_vectors(files, by_name, before, changes)
        return changes

    def _stored_fields(self, files: VersionFiles, new: Sequence[DataFile]) -> list[Fields]:
        """The columns as they are in each file.

        Raises:
            SinkError: readers would not see in one what the lake has.
        """
        columns = FileColumns(
            self._sink, self._table, files.columns, FileTypes(), by_id=True, folder=self._folder
        )
        schemas = columns.require_readable(new)
        return [self._fields_of(files, *each) for each in zip(new, map(list, schemas), strict=True)]

    def _fields_of(self, files: VersionFiles, file: DataFile, stored: list[pa.Field]) -> Fields:
        if file.rows > _MAX_ROWS:
            raise unreadable_error(self._sink, self._table, file, f"it has {file.rows} rows")
        fields = fields_of_file(stored)
        missing = {each["id"] for each in files.columns} - {each["id"] for each in fields}
        for column in stored:
            if column_id(column) in missing:
                problem = f"its column {column.name} has the type {column.type}, which Paimon does not have"
                raise unreadable_error(self._sink, self._table, file, problem)
        return fields

    def _numbered(
        self, before: TableState, fields: Fields, stored: Mapping[str, Fields]
    ) -> tuple[int, dict[int, Fields], dict[str, int]]:
        """The table's schema, the schemas that are new, and by name of a new file its schema.

        The table's is the one with the highest number: readers take that for the columns of the table.
        """
        known = self._snapshots.schemas()
        numbers = {_text(of_schema): number for number, of_schema in known.items()}
        unknown = {_text(each): each for each in stored.values() if each != fields}
        unknown = {text: each for text, each in unknown.items() if text not in numbers}
        last = before.schemas - 1
        if last in known and known[last] == fields and not unknown:
            return last, {}, {name: numbers[_text(each)] for name, each in stored.items()}
        new = dict(enumerate((*unknown.values(), fields), before.schemas))
        numbers |= {_text(of_schema): number for number, of_schema in new.items()}
        return max(new), new, {name: numbers[_text(each)] for name, each in stored.items()}

    def _schema(self, number: int, fields: Fields, now_ms: int) -> str:
        schema = {
            "version": 3,
            "id": number,
            "fields": fields,
            "highestFieldId": _highest_id(fields),
            "partitionKeys": [],
            "primaryKeys": [],
            "options": _OPTIONS,
            "comment": f"Published by Tautochrone from {self._table}",
            "timeMillis": now_ms,
        }
        return json.dumps(schema)

    def _stage_vectors(
        self, files: VersionFiles, by_name: Mapping[str, DataFile], before: TableState, changes: _Changes
    ) -> None:
        """Write the deletion vectors that are new into one file."""
        kept = {
            name: vector
            for name, vector in before.vectors.items()
            if name in by_name and by_name[name].deletes == vector.deletes
        }
        deleted = {name: file for name, file in by_name.items() if file.deletes and name not in kept}
        vectors = files.deletion_vectors([file.location for file in deleted.values()])
        content, ranges = bytearray(_VECTORS_BEGIN), dict[str, tuple[int, int, int, str]]()
        for (name, file), vector in zip(deleted.items(), vectors, strict=True):
            if vector.positions:
                framed = framed_vector(vector.content)
                ranges[name] = (len(content), len(framed) - 8, vector.positions, file.deletes)
                content += framed
        if ranges:
            index, size = self._snapshots.stage("index", bytes(content))
            changes.staged.append(f"{INDEX_FOLDER}/{index}")
            kept |= {name: Vector(index, size, *of_vector) for name, of_vector in ranges.items()}
        changes.vectors = kept if kept != before.vectors else None

    def _manifests(self, before: TableState, changes: _Changes, now_ms: int) -> dict[str, Any]:
        """Write what the snapshot names."""

        def staged(kind: str, content: bytes) -> tuple[str, int]:
            name, size = self._snapshots.stage(kind, content)
            changes.staged.append(f"{MANIFEST_FOLDER}/{name}")
            return name, size

        def manifest(added: Sequence[Added], removed: Sequence[Added]) -> list[Manifest]:
            if not added and not removed:
                return []
            name, size = staged("manifest", write_entries(added, removed, now_ms))
            return [Manifest(name, size, len(added), len(removed), changes.schema)]

        base = list(before.manifests)
        # PyPaimon leaves out a file that any manifest removes, also if a later one adds it again.
        comes_back = any(file.name in before.removed for file in changes.added)
        if comes_back or len(base) >= _MANIFESTS:
            base = manifest(list(before.files.values()), [])
        base_list, base_size = staged("manifest-list", write_manifest_list(base))
        delta = manifest(changes.added, changes.removed)
        delta_list, delta_size = staged("manifest-list", write_manifest_list(delta))
        index_manifest = before.index_manifest
        if changes.vectors is not None:
            vectors = changes.vectors
            index_manifest = staged("index-manifest", write_vectors(vectors))[0] if vectors else None
        return {
            "baseManifestList": base_list,
            "baseManifestListSize": base_size,
            "deltaManifestList": delta_list,
            "deltaManifestListSize": delta_size,
            **({} if index_manifest is None else {"indexManifest": index_manifest}),
        }

    def commit(self, commit: StagedCommit) -> None:
        content = json.loads(commit.content)
        schemas = {int(number): text for number, text in content["schemas"].items()}
        if not self._snapshots.commit(content["snapshot"], schemas, content["staged"]):
            raise diverged_error(self._sink, self._table, self._folder, commit.version)

    def is_committed(self, commit: StagedCommit) -> bool:
        return self.head() == commit.version

    def digest(self) -> Digest:
        """A file that is missing, or has another size, has no rows."""
        state = self._snapshots.read()
        described = []
        sizes = sizes_of([self._folder / BUCKET_FOLDER / name for name in state.files])
        for (name, file), size in zip(state.files.items(), sizes, strict=True):
            rows = file.rows if size == file.bytes else 0
            vector = state.vectors.get(name)
            content = b"" if vector is None else self._vector(vector)
            described.append(_described(name, rows, 0 if vector is None else vector.positions, content))
        return digest_of_files(described)

    def _vector(self, vector: Vector) -> bytes:
        """Its bytes with their length and check sum; empty if they are damaged or gone."""
        path = self._folder / INDEX_FOLDER / vector.file
        if not path.exists():
            return b""
        content = read_range(path, vector.offset, vector.bytes + 8)
        is_sound = struct.pack(">I", zlib.crc32(content[4:-4])) == content[-4:]
        return content if is_sound else b""

    def maintain(self) -> None:
        self._snapshots.maintain()


def _rows(files: Sequence[Added]) -> int:
    return sum(file.rows for file in files)


def _kind(before: TableState, changes: _Changes, *, moves_rows: bool) -> str:
    """What readers of a stream take a snapshot for: rows that came, other rows than before, or the same."""
    if not before.snapshot:
        return "OVERWRITE"
    if not moves_rows:
        return "COMPACT"
    return "OVERWRITE" if changes.removed or changes.vectors is not None else "APPEND"


def _text(fields: Fields) -> str:
    return json.dumps(fields)


def _highest_id(part: Any) -> int:
    """The highest id of a field in a part of a schema."""
    if isinstance(part, Mapping):
        return max(int(part.get("id", 0)), *map(_highest_id, part.values()))
    return max(map(_highest_id, part), default=0) if isinstance(part, list) else 0


def paimon_options(name: str, options: Mapping[str, str]) -> StoredPath:
    """The folder of the publication.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.
    """
    require_known(name, options, ("folder", *S3_OPTIONS))
    return publication_folder(name, _FORMAT, options)


def open_paimon_publication(name: str, options: Mapping[str, str]) -> PaimonPublication:
    """The factory of the format. Nothing is written.

    Raises:
        SinkError: as `paimon_options`.
    """
    return PaimonPublication(name, paimon_options(name, options))


def examine_paimon_publication(name: str, options: Mapping[str, str]) -> str:
    """A sentence about the folder."""
    return described_folder(name, paimon_options(name, options))
