"""Rewrites the metadata of tables and views whose files were moved to another folder.

    survey   reads all files that the newest metadata references; nothing is written
    write    writes deletion vectors, manifests, manifest lists and last the metadata file. New names are
             derived from the old ones, so repeating it writes the same files.

The old folder is never opened: its files are looked up in the new one. The catalog is not accessed here.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY
from tautochrone.iceberg.maintenance.avro import AvroContent, read_avro, write_avro
from tautochrone.iceberg.maintenance.puffin import with_other_paths
from tautochrone.model.relocated_paths import MovedFolder

__all__ = ["Relocated", "Survey", "read_metadata", "write_whole"]

_MANIFEST_PATH, _MANIFEST_LENGTH = 500, 501
_STATUS, _DATA_FILE = 0, 2
_CONTENT, _FORMAT, _FILE_PATH, _FILE_SIZE = 134, 101, 100, 104
_BOUNDS, _REFERENCED = (125, 128), 143
_PATH_COLUMN = 2147483546
"""The field id of `file_path` in files of deletes."""

_DELETED, _POSITION_DELETES = 2, 1
_NUMBER = re.compile(r"^(\d+)-")


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


_FILE_LISTS = (("statistics", "statistics-path"), ("partition-statistics", "statistics-path"))


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
