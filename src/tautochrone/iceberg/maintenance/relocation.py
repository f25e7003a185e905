"""Rewrites the metadata of tables and views whose files were moved to another folder, or are copied there
from a warehouse of Iceberg's hadoop catalog.

    survey   reads all files that the newest metadata references; nothing is written
    write    writes deletion vectors, manifests, manifest lists and last the metadata file. New names are
             derived from the old ones, so repeating it writes the same files.

The old folder is never opened: its files are looked up in the new one. The catalog is not accessed here.

Manifests and manifest lists are Avro files, which keep their schema, header and number of records. PyIceberg
reads and writes the records. It would write a new header from its own model of the schema, so the old header
is copied instead and fields that PyIceberg does not know are not lost. The written file is read again and
compared before it is used.

Deletion vectors are in Puffin files, which name data files in a JSON footer at the end. The blobs before it
do not move, so the offsets in manifests stay valid.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY
from tautochrone.iceberg.sessions.hadoop_files import is_table, newest_metadata_file, plain_path, subfolders
from tautochrone.model.foreign import FOREIGN_PATH_KEY
from tautochrone.model.relocated_paths import MovedFolder, spellings

__all__ = [
    "AvroContent",
    "Relocated",
    "Survey",
    "TableRelocation",
    "read_avro",
    "read_metadata",
    "tables_of",
    "with_other_paths",
    "write_avro",
    "write_whole",
]

_BLOCK = 1_000
_io = PyArrowFileIO()


class AvroContent:
    """A complete file: the header's entries, the schema, and the records with fields by position."""

    def __init__(self, header: dict[str, str], schema: Schema, records: Sequence[Record]) -> None:
        self.header, self.schema, self.records = header, schema, records

    def position(self, *field_ids: int) -> tuple[int, ...] | None:
        """The path to a field, as positions of nested fields. None if the schema has no such field."""
        fields: Any = self.schema.fields
        positions: list[int] = []
        for field_id in field_ids:
            index = next((n for n, field in enumerate(fields) if field.field_id == field_id), None)
            if index is None:
                return None
            positions.append(index)
            fields = getattr(fields[index].field_type, "fields", ())
        return tuple(positions)


class _SameHeader(AvroOutputFile[Record]):
    """Writes all entries of the header unchanged, `avro.schema` included."""

    def _write_header(self) -> None:
        construct_writer(META_SCHEMA).write(
            self.encoder, AvroFileHeader(MAGIC, self.metadata, self.sync_bytes)
        )


def read_avro(path: Path) -> AvroContent:
    """Read a manifest list or a manifest completely.

    Raises:
        LakeError: `METADATA_UNREADABLE`.
    """
    try:
        with AvroFile[Record](_io.new_input(str(path))) as file:
            return AvroContent(dict(file.header.meta), file.schema, list(file))
    except (ValueError, TypeError, KeyError, EOFError, OSError) as error:
        raise LakeError("METADATA_UNREADABLE", f"{path} cannot be read: {error}") from error


def write_avro(path: Path, content: AvroContent, write: Callable[[Path, bytes], None]) -> int:
    """Write `content` through `write`. Returns the number of bytes written.

    Raises:
        LakeError: `METADATA_UNREADABLE`, the written file differs from `content` when read again.
    """
    draft = path.with_name(f".{path.name}.draft")
    with _SameHeader(_io.new_output(str(draft)), content.schema, "", metadata=content.header) as out:
        for start in range(0, len(content.records), _BLOCK):
            out.write_block(list(content.records[start : start + _BLOCK]))
    data = draft.read_bytes()
    again = read_avro(draft)
    draft.unlink()
    if again.header != content.header or list(again.records) != list(content.records):
        raise LakeError("METADATA_UNREADABLE", f"{path} has a form that cannot be written again")
    write(path, data)
    return len(data)


_MAGIC = b"PFA1"
_TAIL = struct.Struct("<i4s4s")
"""Payload length, flags, mark."""

_PATHS = ("referenced-data-file",)


def with_other_paths(data: bytes, path: str, renamed: Callable[[str], str | None]) -> bytes:
    """The file's bytes, with each path of a data file replaced for which `renamed` returns a new one.

    Raises:
        LakeError: `METADATA_UNREADABLE`, no Puffin file, or one with a compressed footer.
    """
    if len(data) < _TAIL.size + 2 * len(_MAGIC) or not data.startswith(_MAGIC):
        raise _puffin_error(path, "it is no Puffin file")
    length, flags, mark = _TAIL.unpack(data[-_TAIL.size :])
    start = len(data) - _TAIL.size - length
    if mark != _MAGIC or length < 0 or data[start - 4 : start] != _MAGIC:
        raise _puffin_error(path, "its footer is damaged")
    if flags[0] & 1:
        raise _puffin_error(path, "its footer is compressed")
    footer = json.loads(data[start : start + length])
    for blob in footer.get("blobs", ()):
        properties = blob.get("properties", {})
        for key in _PATHS:
            if key in properties:
                properties[key] = renamed(properties[key]) or properties[key]
    payload = json.dumps(footer, separators=(",", ":")).encode()
    return data[:start] + payload + _TAIL.pack(len(payload), flags, mark)


def _puffin_error(path: str, why: str) -> LakeError:
    return LakeError("METADATA_UNREADABLE", f"{path} cannot be read: {why}")


_MANIFEST_PATH, _MANIFEST_LENGTH = 500, 501
_STATUS, _DATA_FILE = 0, 2
_CONTENT, _FORMAT, _FILE_PATH, _FILE_SIZE = 134, 101, 100, 104
_BOUNDS, _REFERENCED = (125, 128), 143
_PATH_COLUMN = 2147483546
"""The field id of `file_path` in files of deletes."""

_DELETED, _POSITION_DELETES = 2, 1
_NUMBER = re.compile(r"^(\d+)-")
_FILE_LISTS = (("statistics", "statistics-path"), ("partition-statistics", "statistics-path"))


@dataclass(frozen=True, slots=True)
class Relocated:
    """Locations of a table's or view's new metadata file and of its previous one."""

    location: str
    previous: str


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: it exists completely or not at all."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    # Hadoop stores a checksum file next to each file. The old checksum must go, or reads would fail.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    draft.rename(path)


@dataclass(slots=True)
class Survey:
    """Reads and rewrites one table or view, given the metadata location that its catalog names.

    Attributes:
        ours: whether a pipeline writes the table.
        missing: files that the metadata names and that are not in the new folder.
        outside: files that are in neither folder.
        refused: files that cannot be rewritten, such as position delete files.
        files: the paths in the new folder of all files that the metadata names, its own included.
    """

    name: str
    location: str
    moved: MovedFolder
    ours: bool = False
    missing: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    files: dict[Path, None] = field(default_factory=dict)
    _metadata: dict[str, Any] = field(default_factory=dict)
    _lists: dict[str, None] = field(default_factory=dict)
    _manifests: dict[str, None] = field(default_factory=dict)
    _vectors: dict[str, None] = field(default_factory=dict)
    _sizes: dict[str, tuple[str, int]] = field(default_factory=dict)

    def read(self) -> None:
        """Read the metadata and fill the attributes.

        Raises:
            LakeError: `METADATA_UNREADABLE`.
        """
        path = self._path_in_new_folder(self.location)
        if path is None or not path.exists():
            (self.missing if path else self.outside).append(self.location)
            return
        self._metadata = read_metadata(path)
        self.files[path] = None
        self.ours = COMMIT_METADATA_KEY in self._metadata.get("properties", {})
        for snapshot in self._metadata.get("snapshots", ()):
            location = snapshot.get("manifest-list")
            if location is None:
                # Format version 1 may list manifests in the metadata file itself.
                self.refused.append(f"{self.location} (snapshot {snapshot.get('snapshot-id')})")
            elif self._record_existing(location, self._lists):
                self._read_list(location)
        for key, name in _FILE_LISTS:
            for entry in self._metadata.get(key, ()):
                self._record_existing(entry[name], {})

    @property
    def _is_shadow_table(self) -> bool:
        return FOREIGN_PATH_KEY in self._metadata.get("properties", {})

    def _read_list(self, location: str) -> None:
        content = read_avro(self._local(location))
        path_position = _required(content, location, _MANIFEST_PATH)
        for record in content.records:
            manifest = str(_get(record, path_position))
            if manifest not in self._manifests and self._record_existing(manifest, self._manifests):
                self._read_manifest(manifest)

    def _read_manifest(self, location: str) -> None:
        content = read_avro(self._local(location))
        path = _required(content, location, _DATA_FILE, _FILE_PATH)
        status = _required(content, location, _STATUS)
        kind = content.position(_DATA_FILE, _CONTENT)
        form = _required(content, location, _DATA_FILE, _FORMAT)
        for record in content.records:
            file = str(_get(record, path))
            deletes = kind is not None and _get(record, kind) == _POSITION_DELETES
            vector = deletes and str(_get(record, form)).upper() == "PUFFIN"
            if _get(record, status) == _DELETED and not self._file_exists(file):
                continue  # a deleted entry references a file that may be gone
            if self._is_shadow_table and not deletes and self._path_in_new_folder(file) is None:
                continue  # the data files of a foreign table stay where they are
            if self._record_existing(file, self._vectors if vector else {}) and deletes and not vector:
                self.refused.append(file)

    # -- writing ----------------------------------------------------------------------------------

    def write(self) -> Relocated:
        """Write the new files. Returns the locations for the catalog. Repeatable."""
        for vector in self._vectors:
            data = with_other_paths(self._local(vector).read_bytes(), vector, self.moved.path)
            self._rewrite(vector, lambda path, data=data: self._written(path, data))  # type: ignore[misc]
        for manifest in self._manifests:
            content = self._rewritten_manifest(read_avro(self._local(manifest)), manifest)
            self._rewrite(manifest, lambda path, content=content: write_avro(path, content, write_whole))  # type: ignore[misc]
        for location in self._lists:
            content = self._rewritten_list(read_avro(self._local(location)), location)
            self._rewrite(location, lambda path, content=content: write_avro(path, content, write_whole))  # type: ignore[misc]
        metadata = self._rewritten_metadata()
        previous = self._new_location(self.location)
        number = _NUMBER.match(Path(previous).name)
        version = 0 if number is None else int(number[1]) + 1
        name = f"{version:05d}-{uuid5(NAMESPACE_URL, previous)}.metadata.json"
        newest = f"{previous.rpartition('/')[0]}/{name}"
        write_whole(self._local(newest), json.dumps(metadata, separators=(",", ":")).encode())
        return Relocated(newest, previous)

    def _rewrite(self, location: str, write: Callable[[Path], int]) -> None:
        """Write the replacement of the file at `location`, and record its new location and size."""
        new_location = self._new_location(location)
        folder, _, old_name = new_location.rpartition("/")
        suffix = old_name.rpartition(".")[2]
        # Some readers recognise manifest lists by the prefix of their names.
        head = "snap-" if old_name.startswith("snap-") else ""
        target = f"{folder}/{head}{uuid5(NAMESPACE_URL, new_location)}.{suffix}"
        self._sizes[location] = (target, write(self._local(target)))

    @staticmethod
    def _written(path: Path, data: bytes) -> int:
        write_whole(path, data)
        return len(data)

    def _rewritten_manifest(self, content: AvroContent, location: str) -> AvroContent:
        path = _required(content, location, _DATA_FILE, _FILE_PATH)
        size = _required(content, location, _DATA_FILE, _FILE_SIZE)
        referenced = content.position(_DATA_FILE, _REFERENCED)
        kind = content.position(_DATA_FILE, _CONTENT)
        bounds = [content.position(_DATA_FILE, field_id) for field_id in _BOUNDS]
        for record in content.records:
            file = str(_get(record, path))
            if file in self._sizes:
                target, length = self._sizes[file]
                _set(record, path, target)
                _set(record, size, length)
            else:
                _set(record, path, self._new_location(file))
            if referenced is not None and _get(record, referenced) is not None:
                _set(record, referenced, self._new_location(str(_get(record, referenced))))
            for bound_position in (
                bounds if kind is not None and _get(record, kind) == _POSITION_DELETES else ()
            ):
                bound_values = None if bound_position is None else _get(record, bound_position)
                if bound_position is not None and bound_values is not None and _PATH_COLUMN in bound_values:
                    text = bytes(bound_values[_PATH_COLUMN]).decode()
                    _set(
                        record,
                        bound_position,
                        {**dict(bound_values), _PATH_COLUMN: self._new_location(text).encode()},
                    )
        return content

    def _rewritten_list(self, content: AvroContent, location: str) -> AvroContent:
        path = _required(content, location, _MANIFEST_PATH)
        length = _required(content, location, _MANIFEST_LENGTH)
        for record in content.records:
            manifest = str(_get(record, path))
            if manifest in self._sizes:
                target, size = self._sizes[manifest]
                _set(record, path, target)
                _set(record, length, size)
        return content

    def _rewritten_metadata(self) -> dict[str, Any]:
        metadata = json.loads(json.dumps(self._metadata))
        metadata["location"] = self._new_location(metadata["location"])
        if "properties" in metadata:
            metadata["properties"] = {
                key: self._new_location(value) for key, value in metadata["properties"].items()
            }
        for snapshot in metadata.get("snapshots", ()):
            listed = self._sizes.get(snapshot["manifest-list"])
            snapshot["manifest-list"] = listed[0] if listed else self._new_location(snapshot["manifest-list"])
        for key, name in (*_FILE_LISTS, ("metadata-log", "metadata-file")):
            for entry in metadata.get(key, ()):
                entry[name] = self._new_location(entry[name])
        return dict(metadata)

    # -- paths --------------------------------------------------------------------------------------

    def _new_location(self, location: str) -> str:
        return self.moved.path(location) or location

    def _path_in_new_folder(self, location: str) -> Path | None:
        """The file's path in the new folder; None if the location is in neither folder."""
        new_location = self.moved.path(location)
        if new_location is None and not self.moved.is_new(location):
            return None
        return self._local(new_location or location)

    def _local(self, location: str) -> Path:
        return Path(re.sub(r"^file:(//[^/]*)?(?=/)", "", self._new_location(location)))

    def _file_exists(self, location: str) -> bool:
        path = self._path_in_new_folder(location)
        return path is not None and path.exists()

    def _record_existing(self, location: str, into: dict[str, None]) -> bool:
        path = self._path_in_new_folder(location)
        if path is None:
            self.outside.append(location)
            return False
        if not path.exists():
            self.missing.append(location)
            return False
        into[location] = None
        self.files[path] = None
        return True


def read_metadata(path: Path) -> dict[str, Any]:
    """The content of a metadata file.

    Raises:
        LakeError: `METADATA_UNREADABLE`.
    """
    raw = path.read_bytes()
    try:
        metadata = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except ValueError as error:
        raise LakeError("METADATA_UNREADABLE", f"{path} cannot be read: {error}") from error
    if not isinstance(metadata, dict):
        raise LakeError("METADATA_UNREADABLE", f"{path} is no metadata of a table")
    return metadata


def _required(content: AvroContent, location: str, *field_ids: int) -> tuple[int, ...]:
    field_position = content.position(*field_ids)
    if field_position is None:
        raise LakeError("METADATA_UNREADABLE", f"{location} has no field {field_ids[-1]}")
    return field_position


def _get(record: Any, field_position: tuple[int, ...]) -> Any:
    for position in field_position:
        record = record[position]
    return record


def _set(record: Any, field_position: tuple[int, ...], value: Any) -> None:
    for position in field_position[:-1]:
        record = record[position]
    record[field_position[-1]] = value


# -- copies ----------------------------------------------------------------------------------------


def tables_of(warehouse: Path) -> Iterator[tuple[str, ...]]:
    """The names of all tables in a warehouse, each as its namespaces and the table.

    Raises:
        LakeError: `WAREHOUSE_NOT_FOUND`, the folder holds no table.
    """
    names = list(_tables_below(warehouse, ()))
    if not names:
        raise LakeError(
            "WAREHOUSE_NOT_FOUND",
            f"{warehouse} holds no table of a hadoop catalog",
            hint="give the folder that spark.sql.catalog.NAME.warehouse names; its tables are in "
            "NAMESPACE/TABLE/metadata below it",
            sqlstate="42704",
        )
    yield from names


def _tables_below(folder: Path, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for entry in subfolders(folder):
        if is_table(entry):
            if above:
                yield (*above, entry.name)
        else:
            yield from _tables_below(entry, (*above, entry.name))


class TableRelocation:
    """The copy of one table, from its folder in a hadoop warehouse to a new folder. Creating it reads the
    source and writes nothing.

    The files that the newest metadata names are copied, those of older snapshots included, and the metadata
    is written again with the new paths. Copying is repeatable: files that are there are left alone, and new
    names are derived from old ones.

    Args:
        name: for messages.
        source: the table's folder.
        target: the folder of its copy.

    Attributes:
        files: the files to copy, all in `source`.

    Raises:
        LakeError: `WAREHOUSE_INCOMPLETE`, `WAREHOUSE_DELETES`, `METADATA_UNREADABLE`.
    """

    def __init__(self, name: str, source: Path, target: Path) -> None:
        self._name, self._source, self._target = name, source, target
        newest = newest_metadata_file(source)
        if newest is None:
            raise LakeError("METADATA_UNREADABLE", f"{source} has no metadata file")
        self._metadata_file = str(newest)
        # A warehouse that was moved or copied names its files where they were made.
        self._made_in = str(plain_path(str(read_metadata(newest)["location"])))
        survey = Survey(name, self._metadata_file, MovedFolder((self._made_in,), str(source)))
        survey.read()
        lacking = [*survey.missing, *survey.outside]
        if lacking:
            raise LakeError(
                "WAREHOUSE_INCOMPLETE",
                f"{name} names {len(lacking)} files that are not in {source}, such as {lacking[0]}",
                hint="copy while nobody writes the table; one with files outside of its folder must be "
                "rewritten first",
                sqlstate="55000",
            )
        if survey.refused:
            raise LakeError(
                "WAREHOUSE_DELETES",
                f"{name} has deleted rows whose files are named inside of {survey.refused[0]}",
                hint="let Spark rewrite its data files (rewrite_data_files with delete-file-threshold 1), "
                "expire its old snapshots, and repeat",
                sqlstate="0A000",
            )
        self.files = tuple(survey.files)

    @property
    def bytes(self) -> int:
        """How much there is to copy."""
        return sum(file.stat().st_size for file in self.files)

    def write(self) -> str:
        """Copy the files and write the new metadata; the location of the metadata file for the catalog."""
        for file in self.files:
            _copy(file, self._target / file.relative_to(self._source))
        moved = MovedFolder(spellings(self._made_in, str(self._source)), str(self._target))
        survey = Survey(self._name, self._metadata_file, moved)
        survey.read()
        return survey.write().location


def _copy(source: Path, target: Path) -> None:
    """Copy a file, completely or not at all. Only files of metadata have names that another table has too."""
    is_same = target.exists() and target.stat().st_size == source.stat().st_size
    if is_same and not source.name.endswith(".metadata.json"):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, draft)
    with draft.open("rb") as content:
        os.fsync(content.fileno())
    target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
    draft.rename(target)
