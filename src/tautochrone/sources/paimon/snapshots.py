"""The snapshots of a Paimon table that others write: which data files and deletion vectors are in force.

Paimon's format: https://paimon.apache.org/docs/master/concepts/spec/overview/. A snapshot is a JSON file that
names two lists of manifests and an index manifest: the files before it, what came and went with it, and where
deletion vectors are. They are in Avro, or in what the option `manifest.format` says.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
from pyroaring import BitMap, BitMap64

from tautochrone.sources.damage import DAMAGED, avro_records, text_of
from tautochrone.sources.storage import Storage

__all__ = ["DataEntry", "PaimonFiles", "Schema", "SnapshotError", "VectorRange", "positions_of"]

_ADD = 0
_VECTORS = "DELETION_VECTORS"
_COLUMNAR = {b"ORC": po.read_table, b"PAR1": pq.read_table}
"""How manifests that are no Avro are read, by their first bytes."""


class SnapshotError(Exception):
    """A file of the metadata is damaged or missing."""


@dataclass(frozen=True, slots=True)
class DataEntry:
    """A data file in a manifest.

    Attributes:
        partition: its values, as Paimon's binary row.
        size: its bytes.
        deletes: rows in it that say that a row is deleted; None: not known.
        external: where it is, if it is not in the table's folder.
    """

    name: str
    partition: bytes
    bucket: int
    level: int
    size: int
    schema: int
    deletes: int | None
    external: str | None

    @property
    def key(self) -> tuple[bytes, int, int, str]:
        return self.partition, self.bucket, self.level, self.name


@dataclass(frozen=True, slots=True)
class VectorRange:
    """Where the deletion vector of a data file is.

    Attributes:
        file: the name of the index file.
        external: where that is, if it is not in the table's folder.
    """

    file: str
    offset: int
    external: str | None

    @property
    def name(self) -> str:
        """Equal for the same deleted rows of a file."""
        return f"{self.file}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns and options, as Paimon's JSON has them."""

    number: int
    fields: tuple[Mapping[str, Any], ...]
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    options: Mapping[str, str]


Entries = tuple[list[DataEntry], list[DataEntry]]
"""Files that came, and those that went."""


class PaimonFiles:
    """Reads the metadata of a table. What no longer changes is read once.

    Args:
        folder: of the table, as Hadoop spells it.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._schemas: dict[int, Schema] = {}
        self._entries: dict[str, Entries] = {}

    def numbers(self, folder: str, prefix: str) -> list[int]:
        """The numbers in the names of the files of a folder, ascending."""
        names = self._storage.names(f"{self._folder}/{folder}")
        return sorted(int(name.removeprefix(prefix)) for name in names if re.fullmatch(rf"{prefix}\d+", name))

    def schemas(self) -> list[Schema]:
        """All schemas, the newest last; none: there is no table."""
        numbers = self.numbers("schema", "schema-")
        self._schemas = {number: self._schemas.get(number) or self._schema(number) for number in numbers}
        return list(self._schemas.values())

    def _schema(self, number: int) -> Schema:
        content = self._json(f"schema/schema-{number}")
        return Schema(
            number,
            tuple(content["fields"]),
            tuple(content.get("partitionKeys") or ()),
            tuple(content.get("primaryKeys") or ()),
            content.get("options") or {},
        )

    def snapshot(self, number: int) -> Mapping[str, Any] | None:
        """None: it is not there, or no longer."""
        try:
            return self._json(f"snapshot/snapshot-{number}")
        except FileNotFoundError:
            return None

    def entries(self, snapshot: Mapping[str, Any]) -> dict[tuple[bytes, int, int, str], DataEntry]:
        """The data files in force at a snapshot."""
        manifests = [
            *self._manifests(snapshot["baseManifestList"]), *self._manifests(snapshot["deltaManifestList"])
        ]  # fmt: skip
        read = {name: self._entries.get(name) or self._entries_of(name) for name in manifests}
        self._entries = read
        gone = {entry.key for _, removed in read.values() for entry in removed}
        return {entry.key: entry for added, _ in read.values() for entry in added if entry.key not in gone}

    def changes(self, snapshot: Mapping[str, Any]) -> Entries:
        """What came and went with a snapshot."""
        added: list[DataEntry] = []
        removed: list[DataEntry] = []
        for name in self._manifests(snapshot["deltaManifestList"]):
            came, went = self._entries.get(name) or self._entries_of(name)
            added += came
            removed += went
        return added, removed

    def vectors(self, snapshot: Mapping[str, Any]) -> dict[str, VectorRange]:
        """By name of the data file its deletion vector at a snapshot."""
        name = snapshot.get("indexManifest")
        vectors: dict[str, VectorRange] = {}
        for record in () if name is None else self._records(name):
            if record["_KIND"] == _ADD and record["_INDEX_TYPE"] == _VECTORS:
                for each in record.get("_DELETIONS_VECTORS_RANGES") or ():
                    external = record.get("_EXTERNAL_PATH")
                    vectors[each["f0"]] = VectorRange(record["_FILE_NAME"], each["f1"], external)
        return vectors

    def _manifests(self, name: str) -> list[str]:
        return [record["_FILE_NAME"] for record in self._records(name)]

    def _entries_of(self, name: str) -> Entries:
        added: list[DataEntry] = []
        removed: list[DataEntry] = []
        for record in self._records(name):
            file = record["_FILE"]
            entry = DataEntry(
                file["_FILE_NAME"],
                record["_PARTITION"],
                record["_BUCKET"],
                file["_LEVEL"],
                file["_FILE_SIZE"],
                file["_SCHEMA_ID"],
                file.get("_DELETE_ROW_COUNT"),
                file.get("_EXTERNAL_PATH"),
            )
            (added if record["_KIND"] == _ADD else removed).append(entry)
        return added, removed

    def _records(self, name: str) -> list[Any]:
        path = f"{self._folder}/manifest/{name}"
        content = self._storage.read(path)
        # The option `manifest.format` may have had another value when this file was written.
        read = next((read for magic, read in _COLUMNAR.items() if content.startswith(magic)), None)
        if read is None:
            return avro_records(path, content)
        try:
            return list(read(io.BytesIO(content)).to_pylist())
        except (pa.ArrowException, *DAMAGED) as error:
            raise SnapshotError(f"{path} is damaged: {text_of(error)}") from error

    def _json(self, path: str) -> Mapping[str, Any]:
        content = self._storage.read(f"{self._folder}/{path}")
        try:
            record: Mapping[str, Any] = json.loads(content)
        except ValueError as error:
            raise SnapshotError(f"{self._folder}/{path} is no JSON: {error}") from error
        return record


_MAGIC, _MAGIC_64 = 1581511376, 1681511377


def positions_of(content: bytes, offset: int) -> list[int]:
    """The positions of the deleted rows, ascending.

    Args:
        content: of an index file.

    Raises:
        ValueError: the vector is damaged.
    """
    (size,) = struct.unpack_from(">i", content, offset)
    data = content[offset + 4 : offset + 4 + size]
    (check_sum,) = struct.unpack_from(">I", content, offset + 4 + size)
    if len(data) != size or zlib.crc32(data) != check_sum:
        raise ValueError("its size or check sum differs")
    if struct.unpack_from(">I", data) == (_MAGIC,):
        return list(BitMap.deserialize(data[4:]))
    if struct.unpack_from("<I", data) == (_MAGIC_64,):
        return list(BitMap64.deserialize(data[4:]))
    raise ValueError("it is no Roaring bitmap of 32 or 64 bits")


def names_by_id(schemas: Iterable[tuple[Mapping[str, Any], ...]]) -> dict[int, list[str]]:
    """By id of a field all names that it has in some schemas, in their order.

    >>> names_by_id([({"id": 1, "name": "a"},), ({"id": 1, "name": "b"},)])
    {1: ['a', 'b']}
    """
    names: dict[int, list[str]] = {}
    for fields in schemas:
        for field in fields:
            known = names.setdefault(field["id"], [])
            if field["name"] not in known:
                known.append(field["name"])
    return names
