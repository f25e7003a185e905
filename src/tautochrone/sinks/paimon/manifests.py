"""The Avro files of a Paimon table: manifests of data files and of deletion vectors, and lists of manifests.

Their fields are those of Paimon 1.4 and 2.0, which both read files with fewer and with more of them.

https://paimon.apache.org/docs/master/concepts/spec/manifest/
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import fastavro

__all__ = [
    "Added",
    "Manifest",
    "Vector",
    "framed_vector",
    "read_entries",
    "read_manifest_list",
    "read_vectors",
    "write_entries",
    "write_manifest_list",
    "write_vectors",
]


@dataclass(frozen=True, slots=True)
class Added:
    """A data file in the table's folder.

    Attributes:
        schema: the id of the schema of its columns.
    """

    name: str
    bytes: int
    rows: int
    schema: int


@dataclass(frozen=True, slots=True)
class Vector:
    """Where the deletion vector of a data file is.

    Attributes:
        file, file_bytes: the index file, and its size.
        bytes: of the vector, without its length and its check sum.
        deletes: what the lake calls the deleted rows.
    """

    file: str
    file_bytes: int
    offset: int
    bytes: int
    positions: int
    deletes: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, as a list of manifests names it."""

    name: str
    bytes: int
    added: int
    removed: int
    schema: int


_BUCKET = 0
"""Of all files of a table without buckets."""
_ADD, _DELETE = 0, 1
_EMPTY_ROW = bytes(12)
"""A row without columns: their number, and no bits for NULL."""
_DELETES_KEY = "tautochrone.deletes"
"""Of the header of a manifest of deletion vectors: by data file what the lake calls its deleted rows."""

_STATISTICS = [
    {"name": "_MIN_VALUES", "type": "bytes"},
    {"name": "_MAX_VALUES", "type": "bytes"},
    {"name": "_NULL_COUNTS", "type": ["null", {"type": "array", "items": ["null", "long"]}], "default": None},
]
_NO_STATISTICS = {"_MIN_VALUES": _EMPTY_ROW, "_MAX_VALUES": _EMPTY_ROW, "_NULL_COUNTS": []}


def _record(name: str, fields: Sequence[Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def _optional(name: str, kind: Any) -> Any:
    return {"name": name, "type": ["null", kind], "default": None}


def _required(**kinds: Any) -> list[Any]:
    return [{"name": name, "type": kind} for name, kind in kinds.items()]


_TEXTS = {"type": "array", "items": "string"}
_MANIFEST_LIST = fastavro.parse_schema(
    _record(
        "ManifestFileMeta",
        [
            *_required(
                _VERSION="int",
                _FILE_NAME="string",
                _FILE_SIZE="long",
                _NUM_ADDED_FILES="long",
                _NUM_DELETED_FILES="long",
                _PARTITION_STATS=_record("record_PARTITION_STATS", _STATISTICS),
                _SCHEMA_ID="long",
            ),
            *(_optional(name, "int") for name in ("_MIN_BUCKET", "_MAX_BUCKET", "_MIN_LEVEL", "_MAX_LEVEL")),
            *(_optional(name, "long") for name in ("_MIN_ROW_ID", "_MAX_ROW_ID")),
        ],
    )
)
_ENTRIES = fastavro.parse_schema(
    _record(
        "ManifestEntry",
        _required(
            _VERSION="int",
            _KIND="int",
            _PARTITION="bytes",
            _BUCKET="int",
            _TOTAL_BUCKETS="int",
            _FILE=_record(
                "DataFileMeta",
                [
                    *_required(
                        _FILE_NAME="string",
                        _FILE_SIZE="long",
                        _ROW_COUNT="long",
                        _MIN_KEY="bytes",
                        _MAX_KEY="bytes",
                        _KEY_STATS=_record("record_KEY_STATS", _STATISTICS),
                        _VALUE_STATS=_record("record_VALUE_STATS", _STATISTICS),
                        _MIN_SEQUENCE_NUMBER="long",
                        _MAX_SEQUENCE_NUMBER="long",
                        _SCHEMA_ID="long",
                        _LEVEL="int",
                        _EXTRA_FILES=_TEXTS,
                    ),
                    _optional("_CREATION_TIME", {"type": "long", "logicalType": "timestamp-millis"}),
                    _optional("_DELETE_ROW_COUNT", "long"),
                    _optional("_EMBEDDED_FILE_INDEX", "bytes"),
                    _optional("_FILE_SOURCE", "int"),
                    _optional("_VALUE_STATS_COLS", _TEXTS),
                    _optional("_EXTERNAL_PATH", "string"),
                    _optional("_FIRST_ROW_ID", "long"),
                    _optional("_WRITE_COLS", _TEXTS),
                ],
            ),
        ),
    )
)
_RANGES = _record(
    "DeletionVectorMeta", [*_required(f0="string", f1="int", f2="int"), _optional("_CARDINALITY", "long")]
)
_VECTORS = fastavro.parse_schema(
    _record(
        "IndexManifestEntry",
        [
            *_required(
                _VERSION="int",
                _KIND="int",
                _PARTITION="bytes",
                _BUCKET="int",
                _INDEX_TYPE="string",
                _FILE_NAME="string",
                _FILE_SIZE="long",
                _ROW_COUNT="long",
            ),
            _optional("_DELETIONS_VECTORS_RANGES", {"type": "array", "items": _RANGES}),
            _optional("_EXTERNAL_PATH", "string"),
        ],
    )
)


def _written(
    schema: Any, records: Iterable[Mapping[str, Any]], metadata: dict[str, str] | None = None
) -> bytes:
    content = io.BytesIO()
    fastavro.writer(content, schema, records, codec="deflate", metadata=metadata)
    return content.getvalue()


def _read(content: bytes) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
    """The records, and what the header says."""
    reader = fastavro.reader(io.BytesIO(content))
    return cast("list[dict[str, Any]]", list(reader)), reader.metadata


def write_manifest_list(manifests: Iterable[Manifest]) -> bytes:
    return _written(
        _MANIFEST_LIST,
        (
            {
                "_VERSION": 2,
                "_FILE_NAME": manifest.name,
                "_FILE_SIZE": manifest.bytes,
                "_NUM_ADDED_FILES": manifest.added,
                "_NUM_DELETED_FILES": manifest.removed,
                "_PARTITION_STATS": _NO_STATISTICS,
                "_SCHEMA_ID": manifest.schema,
                "_MIN_BUCKET": _BUCKET,
                "_MAX_BUCKET": _BUCKET,
                "_MIN_LEVEL": 0,
                "_MAX_LEVEL": 0,
            }
            for manifest in manifests
        ),
    )


def read_manifest_list(content: bytes) -> list[Manifest]:
    names = ("_FILE_NAME", "_FILE_SIZE", "_NUM_ADDED_FILES", "_NUM_DELETED_FILES", "_SCHEMA_ID")
    return [Manifest(*(record[name] for name in names)) for record in _read(content)[0]]


def write_entries(added: Iterable[Added], removed: Iterable[Added], now_ms: int) -> bytes:
    """A manifest of the data files that come and go."""
    kinds = [(_DELETE, file) for file in removed] + [(_ADD, file) for file in added]
    return _written(_ENTRIES, (_entry(kind, file, now_ms) for kind, file in kinds))


def _entry(kind: int, file: Added, now_ms: int) -> dict[str, Any]:
    return {
        "_VERSION": 2,
        "_KIND": kind,
        "_PARTITION": _EMPTY_ROW,
        "_BUCKET": _BUCKET,
        # There are no buckets.
        "_TOTAL_BUCKETS": -1,
        "_FILE": {
            "_FILE_NAME": file.name,
            "_FILE_SIZE": file.bytes,
            "_ROW_COUNT": file.rows,
            "_MIN_KEY": _EMPTY_ROW,
            "_MAX_KEY": _EMPTY_ROW,
            "_KEY_STATS": _NO_STATISTICS,
            "_VALUE_STATS": _NO_STATISTICS,
            "_MIN_SEQUENCE_NUMBER": 0,
            "_MAX_SEQUENCE_NUMBER": max(file.rows - 1, 0),
            "_SCHEMA_ID": file.schema,
            "_LEVEL": 0,
            "_EXTRA_FILES": [],
            "_CREATION_TIME": now_ms,
            "_DELETE_ROW_COUNT": 0,
            # It was appended, and no compaction wrote it.
            "_FILE_SOURCE": 0,
            "_VALUE_STATS_COLS": [],
        },
    }


def read_entries(content: bytes) -> tuple[list[Added], list[Added]]:
    """The data files that come and those that go."""
    added: list[Added] = []
    removed: list[Added] = []
    for record in _read(content)[0]:
        file = record["_FILE"]
        values = Added(file["_FILE_NAME"], file["_FILE_SIZE"], file["_ROW_COUNT"], file["_SCHEMA_ID"])
        (added if record["_KIND"] == _ADD else removed).append(values)
    return added, removed


def write_vectors(vectors: Mapping[str, Vector]) -> bytes:
    """A manifest of all deletion vectors in force, by data file."""
    by_file: dict[str, dict[str, Vector]] = {}
    for name, vector in vectors.items():
        by_file.setdefault(vector.file, {})[name] = vector
    deletes = {name: vector.deletes for name, vector in vectors.items()}
    return _written(
        _VECTORS,
        (_index_entry(file, ranges) for file, ranges in by_file.items()),
        {_DELETES_KEY: json.dumps(deletes)},
    )


def _index_entry(file: str, vectors: Mapping[str, Vector]) -> dict[str, Any]:
    return {
        "_VERSION": 1,
        "_KIND": _ADD,
        "_PARTITION": _EMPTY_ROW,
        "_BUCKET": _BUCKET,
        "_INDEX_TYPE": "DELETION_VECTORS",
        "_FILE_NAME": file,
        "_FILE_SIZE": next(iter(vectors.values())).file_bytes,
        "_ROW_COUNT": len(vectors),
        "_DELETIONS_VECTORS_RANGES": [
            {"f0": name, "f1": vector.offset, "f2": vector.bytes, "_CARDINALITY": vector.positions}
            for name, vector in vectors.items()
        ],
    }


def read_vectors(content: bytes) -> dict[str, Vector]:
    """By data file."""
    vectors: dict[str, Vector] = {}
    records, metadata = _read(content)
    deletes = json.loads(metadata[_DELETES_KEY])
    for record in records:
        for entry in record["_DELETIONS_VECTORS_RANGES"]:
            name, offset, size, positions = (entry[field] for field in ("f0", "f1", "f2", "_CARDINALITY"))
            file, file_size = record["_FILE_NAME"], record["_FILE_SIZE"]
            vectors[name] = Vector(file, file_size, offset, size, positions, deletes[name])
    return vectors


# -- deletion vectors -----------------------------------------------------------------------------

_MAGIC = 1581511376
_HIGH_BITS_END = 20
"""A 64-bit bitmap begins with the number of its 32-bit ones, and the upper bits of the first."""


def framed_vector(content: bytes) -> bytes:
    """A deletion vector as Paimon has it: a length, a magic number, a 32-bit Roaring bitmap and a check sum.

    A 64-bit bitmap in its portable form is a list of 32-bit ones, with the upper 32 bits of their values
    before each. So the bytes of the bitmap stay as they are.

    Args:
        content: as Iceberg has it, see `model.lake.DeletionVector`.

    Raises:
        ValueError: a position needs more than 32 bits.
    """
    bitmaps, high = struct.unpack_from("<QI", content, 8)
    if bitmaps != 1 or high != 0:
        raise ValueError("positions of deleted rows need more than 32 bits")
    vector = struct.pack(">I", _MAGIC) + content[_HIGH_BITS_END:-4]
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
