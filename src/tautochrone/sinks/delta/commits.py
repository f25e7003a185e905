"""The actions that lead a Delta table from what it shows to a version of a lake table.

A data file of the lake gets a second name in the table's folder: a link, no copy. So the file lives as long
as one of its names, and whoever deletes one deletes no file of the lake. On S3, which has no links, it is
copied. Where files cannot be linked, an `add` names the lake's file by its absolute URI, which some readers
do not take.

Deletion vectors have the same bytes in both formats, but Delta reads them from files that begin with a
version byte, so those of a commit are copied into one.

Every table is without partitions: the files have all columns, and bounds of their values leave out as many
files.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from tautochrone.model.lake import ColumnStatistics, DataFile, VersionFiles
from tautochrone.model.sink import Intent
from tautochrone.sinks.common.exclusive_files import link_files, write_synced
from tautochrone.sinks.common.file_columns import FileColumns, FileTypes, stored_file
from tautochrone.sinks.common.object_paths import S3Path, StoredPath
from tautochrone.sinks.delta.log import Actions
from tautochrone.sinks.delta.schema import delta_schema, leaf_columns

__all__ = ["DATA_FOLDER", "DELETES_TAG", "WRITER_FEATURE", "CommitBuilder", "base85", "vector_path"]

DATA_FOLDER = "data"
"""In the table's folder, with the links."""
DELETES_TAG = "tautochrone.deletes"
"""The tag of an `add` with what the lake calls its deletion vector."""
WRITER_FEATURE = "tautochronePublication"
"""A feature that only writers must know: all others may read the table, and must not write to it."""
_FEED_FEATURE = "changeDataFeed"

_FILE_TYPES = "tautochrone.fileTypes"
"""The setting of a table that keeps `FileTypes`."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_EXACT_CHARACTERS = 16
"""Iceberg shortens bounds of texts to so many characters: shorter ones are exact."""
_TYPES_WITH_BOUNDS = frozenset(
    {"int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBuilder:
    """
    Args:
        folder: of the Delta table.
        by_id: readers look for columns by the ids in data files.
        links: data files get names in the folder.
        has_feed: readers may ask for the rows that came and went with a version.
    """

    sink: str
    folder: StoredPath
    by_id: bool
    links: bool
    has_feed: bool = False

    def lines(
        self, intent: Intent, files: VersionFiles, before: Actions, *, moves_rows: bool
    ) -> list[dict[str, Any]]:
        """The actions. Their links and deletion vectors are written; nothing names them before the commit.

        Raises:
            SinkError: Delta, or its readers, cannot have the table.
        """
        now_ms = round(time.time() * 1000)
        if files.version == before.lake_version:
            # The files of a table that did not move need not be listed.
            info = self._commit_info(intent, files, before.sequence, now_ms, moves_rows=False)
            return [info, {"txn": _transaction(intent, files, now_ms)}]
        uris = {self.path_of(file): file for file in files.files.values()}
        added = [
            file
            for uri, file in uris.items()
            if uri not in before.adds or before.adds[uri].get("tags", {}).get(DELETES_TAG, "") != file.deletes
        ]
        schema, types = self._schema(files, before, added)
        vectors = self._vectors(files, [file for file in added if file.deletes])
        protocol = self._protocol(schema, before, has_vectors=bool(vectors))
        metadata = self._metadata(files, before, schema, types, protocol, now_ms)
        sequence = max((file.sequence for file in uris.values()), default=0)
        lines: list[dict[str, Any]] = [
            self._commit_info(intent, files, sequence, now_ms, moves_rows=moves_rows)
        ]
        if protocol != before.protocol:
            lines.append({"protocol": protocol})
        if metadata != before.metadata:
            lines.append({"metaData": metadata})
        lines.append({"txn": _transaction(intent, files, now_ms)})
        changed = {self.path_of(file) for file in added}
        removed = [add for uri, add in before.adds.items() if uri not in uris or uri in changed]
        merged = _merged(before, removed, added)
        lines += [{"remove": _remove(add, now_ms, moves_rows=moves_rows and not merged)} for add in removed]
        moving = [moves_rows and file not in merged for file in added]
        adds = self._adds(files, before, added, vectors, moving)
        return [*lines, *({"add": add} for add in adds)]

    def path_of(self, file: DataFile) -> str:
        """What a data file is called in the log: a URI, for links relative to the table's folder."""
        if not self.links:
            return file.location if file.path is None else file.path.as_uri()
        location = hashlib.sha256(file.location.encode()).hexdigest()[:8]
        return quote(f"{DATA_FOLDER}/{location}-{file.location.rpartition('/')[2]}")

    # -- what the table is ------------------------------------------------------------------------

    def _schema(
        self, files: VersionFiles, before: Actions, added: Sequence[DataFile]
    ) -> tuple[str, FileTypes]:
        """The schema, and the types in files that are narrower."""
        if before.metadata is not None:
            types = FileTypes.parse(before.metadata["configuration"].get(_FILE_TYPES, "{}"))
            schema = self._compared_schema(files, added, types)
            if schema == before.metadata["schemaString"]:
                return schema, types
        # What was compared with other columns is compared again.
        types = FileTypes()
        return self._compared_schema(files, list(files.files.values()), types), types

    def _compared_schema(self, files: VersionFiles, compared: Sequence[DataFile], types: FileTypes) -> str:
        columns = FileColumns(
            self.sink, files.table, files.columns, types, by_id=self.by_id, folder=self.folder
        )
        # Types that Delta lacks are refused before files are looked at.
        delta_schema(self.sink, files.table, files.columns, types, by_id=self.by_id)
        columns.require_readable(compared)
        return json.dumps(delta_schema(self.sink, files.table, files.columns, types, by_id=self.by_id))

    def _protocol(self, schema: str, before: Actions, *, has_vectors: bool) -> Mapping[str, Any]:
        """The features that readers need. None is taken back: older versions have them still."""
        known = before.protocol or {}
        needs = {
            "deletionVectors": has_vectors,
            "timestampNtz": '"timestamp_ntz"' in schema,
            "typeWidening": "delta.typeChanges" in schema,
            "columnMapping": self.by_id,
        }
        features = {feature for feature, is_needed in needs.items() if is_needed}
        features |= set(known.get("readerFeatures") or ())
        of_writers = {WRITER_FEATURE, *(known.get("writerFeatures") or ())}
        if self.has_feed:
            of_writers.add(_FEED_FEATURE)
        protocol: dict[str, Any] = {
            "minReaderVersion": 3 if features else 1,
            "minWriterVersion": 7,
            "writerFeatures": sorted({*features, *of_writers}),
        }
        return {**protocol, "readerFeatures": sorted(features)} if features else protocol

    def _metadata(
        self,
        files: VersionFiles,
        before: Actions,
        schema: str,
        types: FileTypes,
        protocol: Mapping[str, Any],
        now_ms: int,
    ) -> Mapping[str, Any]:
        configuration = {}
        if "deletionVectors" in protocol["writerFeatures"]:
            configuration["delta.enableDeletionVectors"] = "true"
        if self.has_feed:
            # A file comes or goes as a whole, or with other deleted rows: readers know the changes by that.
            configuration["delta.enableChangeDataFeed"] = "true"
        if types.by_id:
            configuration |= {"delta.enableTypeWidening": "true", _FILE_TYPES: types.text()}
        if self.by_id:
            configuration["delta.columnMapping.mode"] = "id"
            configuration["delta.columnMapping.maxColumnId"] = str(_highest_id(files.columns))
        known = before.metadata or {}
        return {
            "id": known.get("id", str(uuid.uuid4())),
            "name": files.table.table,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
            "configuration": configuration,
            "createdTime": known.get("createdTime", now_ms),
        }

    def _commit_info(
        self,
        intent: Intent,
        files: VersionFiles,
        sequence: int | None,
        now_ms: int,
        *,
        moves_rows: bool,
    ) -> dict[str, Any]:
        return {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": "PUBLISH",
                "operationParameters": {},
                "isBlindAppend": False,
                "engineInfo": "tautochrone",
                "txnId": str(intent.transaction),
                "tautochrone": {
                    "transaction": intent.transaction.as_json(),
                    "version": files.version,
                    "movesRows": moves_rows,
                    "sequence": sequence,
                },
            }
        }

    # -- files ------------------------------------------------------------------------------------

    def _vectors(self, files: VersionFiles, deleted: Sequence[DataFile]) -> dict[str, Mapping[str, Any]]:
        """By location of the data file Delta's description of its deletion vector."""
        locations = [file.location for file in deleted]
        vectors = dict(zip(locations, files.deletion_vectors(locations), strict=True))
        vectors = {location: vector for location, vector in vectors.items() if vector.positions}
        if not vectors:
            return {}
        name = uuid.uuid4()
        content, described = b"\x01", dict[str, Mapping[str, Any]]()
        for location, vector in vectors.items():
            described[location] = {
                "storageType": "u",
                "pathOrInlineDv": base85(name.bytes),
                "offset": len(content),
                "sizeInBytes": struct.unpack_from(">i", vector.content)[0],
                "cardinality": vector.positions,
            }
            content += vector.content
        write_synced(vector_path(self.folder, name), content)
        return described

    def _adds(
        self,
        files: VersionFiles,
        before: Actions,
        added: Sequence[DataFile],
        vectors: Mapping[str, Mapping[str, Any]],
        moves_rows: Sequence[bool],
    ) -> Iterator[dict[str, Any]]:
        columns = list(leaf_columns(files.columns, by_id=self.by_id))
        paths = [stored_file(self.sink, files.table, file, self.folder) for file in added]
        if self.links:
            # Of a file that was there only the deletion vector is new.
            uris = {self.path_of(file): path for file, path in zip(added, paths, strict=True)}
            new = [(path, self.folder / unquote(uri)) for uri, path in uris.items() if uri not in before.adds]
            link_files(self.sink, files.table, new)
        statistics = files.statistics([file.location for file in added])
        now_ms = round(time.time() * 1000)
        for file, path, known, moves in zip(added, paths, statistics, moves_rows, strict=True):
            vector = vectors.get(file.location)
            add: dict[str, Any] = {
                "path": self.path_of(file),
                "partitionValues": {},
                "size": file.bytes,
                # An object is copied now, or named for the first time.
                "modificationTime": now_ms
                if isinstance(path, S3Path)
                else round(path.stat().st_mtime * 1000),
                "dataChange": moves,
                "stats": json.dumps(_statistics(columns, known, file.rows, is_exact=vector is None)),
            }
            if file.deletes:
                add["tags"] = {DELETES_TAG: file.deletes}
            if vector is not None:
                add["deletionVector"] = vector
            yield add


def _highest_id(part: Any) -> int:
    """The highest id of a column in a part of Iceberg's JSON of a schema."""
    if isinstance(part, Mapping):
        own = (int(value) for key, value in part.items() if key == "id" or key.endswith("-id"))
        return max(0, *own, *map(_highest_id, part.values()), 0)
    return max(map(_highest_id, part), default=0) if isinstance(part, list) else 0


def _transaction(intent: Intent, files: VersionFiles, now_ms: int) -> dict[str, Any]:
    transaction = intent.transaction
    return {
        "appId": f"tautochrone/{transaction.incarnation}/{transaction.sink}/{files.table}",
        "version": int(transaction.checkpoint),
        "lastUpdated": now_ms,
    }


def _remove(add: Mapping[str, Any], now_ms: int, *, moves_rows: bool) -> dict[str, Any]:
    kept = {key: add[key] for key in ("path", "partitionValues", "size", "deletionVector") if key in add}
    return {
        **kept,
        "deletionTimestamp": now_ms,
        "dataChange": moves_rows,
        "extendedFileMetadata": True,
    }


def _merged(
    before: Actions, removed: Sequence[Mapping[str, Any]], added: Sequence[DataFile]
) -> Sequence[DataFile]:
    """The new files into which exactly the removed ones were merged: readers of changes see neither. Empty if
    other rows came or went with them."""
    if before.sequence is None or any(file.deletes for file in added):
        return []
    merged = [file for file in added if file.sequence <= before.sequence]
    rows = sum(file.rows for file in merged)
    return merged if rows and rows == sum(map(_live_rows, removed)) else []


def _live_rows(add: Mapping[str, Any]) -> int:
    rows = int(json.loads(add["stats"])["numRecords"])
    return rows - int((add.get("deletionVector") or {}).get("cardinality", 0))


# -- statistics -----------------------------------------------------------------------------------


def _statistics(
    columns: Sequence[tuple[tuple[str, ...], int, str]],
    known: Mapping[int, ColumnStatistics],
    rows: int,
    *,
    is_exact: bool,
) -> dict[str, Any]:
    """Delta's statistics of a data file: its rows, and per column its nulls and the bounds of its values.

    Args:
        is_exact: none of its rows is deleted.
    """
    statistics: dict[str, Any] = {"numRecords": rows, "tightBounds": is_exact}
    for path, column, kind in columns:
        of_column = known.get(column)
        if of_column is None:
            continue
        if of_column.nulls is not None:
            _set(statistics, ("nullCount", *path), of_column.nulls)
        if _has_exact_bounds(of_column, kind):
            _set(statistics, ("minValues", *path), _bound(of_column.lower, kind))
            _set(statistics, ("maxValues", *path), _bound(of_column.upper, kind))
    return statistics


def _has_exact_bounds(known: ColumnStatistics, kind: str) -> bool:
    """Whether the bounds are values of the column, and of all of its values."""
    bounds = (known.lower, known.upper)
    if None in bounds or kind not in _TYPES_WITH_BOUNDS:
        return False
    if kind == "string":
        return all(len(bound) < _EXACT_CHARACTERS for bound in bounds)
    if kind in ("float", "double"):
        # NaN is above all numbers in Delta, and beside them in Iceberg. JSON has no infinity.
        return known.nans == 0 and all(isinstance(b, int | float) and math.isfinite(b) for b in bounds)
    # Years with more than four digits have a sign before them, which not every reader takes.
    return kind in ("int", "long") or all(bound[0].isdigit() for bound in bounds)


def _bound(value: Any, kind: str) -> Any:
    return value.replace("+00:00", "Z") if kind == "timestamptz" else value


def _set(statistics: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        statistics = statistics.setdefault(name, {})
    statistics[path[-1]] = value


# -- deletion vectors -----------------------------------------------------------------------------


def vector_path(folder: StoredPath, name: uuid.UUID | str) -> StoredPath:
    """The file of deletion vectors with this name."""
    return folder / f"deletion_vector_{name}.bin"


def base85(content: bytes) -> str:
    """Bytes in the alphabet of Z85, https://rfc.zeromq.org/spec/32/; their number is a multiple of 4.

    >>> base85(bytes.fromhex("864FD26FB559F75B"))
    'HelloWorld'
    """
    text = ""
    for (number,) in struct.iter_unpack(">I", content):
        digits = ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits = _DIGITS[digit] + digits
        text += digits
    return text
