"""The log of a Delta table: which actions are in force at its newest version, and new versions.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md. A version is a file of JSON lines
that only its first writer creates. Every tenth version all actions in force are written to a Parquet file, so
that readers need not read all versions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tautochrone.sinks.common.exclusive_files import opened_parquet, put_if_absent, replace_file
from tautochrone.sinks.common.object_paths import StoredPath

__all__ = ["TOMBSTONE_MS", "Actions", "DeltaLog"]

_INTERVAL = 10
"""So many versions after a file with all actions in force the next one is written."""
TOMBSTONE_MS = 7 * 24 * 3_600_000
"""Delta's default of `delta.deletedFileRetentionDuration`: so long removed files stay in the log."""

_LOG_MS = 30 * 24 * 3_600_000
"""Delta's default of `delta.logRetentionDuration`: so long versions can be read."""

_STRINGS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_FEATURES = pa.list_(pa.string())
_CHECKPOINT = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _STRINGS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _STRINGS,
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _STRINGS,
                "size": pa.int64(),
                "deletionVector": _VECTOR,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _STRINGS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _STRINGS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _FEATURES,
                "writerFeatures": _FEATURES,
            }
        ),
    }
)


@dataclass(slots=True)
class Actions:
    """The actions in force at a version.

    Attributes:
        adds: by path. A path is added once at a time, with or without a deletion vector.
        removes: by path and deletion vector, those of the last days.
        transactions: by application.
        lake_version: of the lake's table, as our newest version says it; empty: it is not known.
        sequence: the greatest one of its files there (`DataFile.sequence`); None: it is not known.
    """

    version: int = -1
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    adds: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    removes: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    transactions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    lake_version: str = ""
    sequence: int | None = None

    def take(self, lines: Iterable[Mapping[str, Any]], version: int) -> None:
        """Apply a version. Its removes come first: a file with another deletion vector is in both."""
        actions = list(lines)
        self.lake_version, self.sequence = "", None
        for remove in (line["remove"] for line in actions if line.get("remove")):
            self.adds.pop(remove["path"], None)
            self.removes[remove["path"], _vector_of(remove)] = remove
        for line in actions:
            if line.get("add"):
                add = line["add"]
                self.adds[add["path"]] = add
                self.removes.pop((add["path"], _vector_of(add)), None)
            elif line.get("metaData"):
                self.metadata = line["metaData"]
            elif line.get("protocol"):
                self.protocol = line["protocol"]
            elif line.get("commitInfo"):
                described = line["commitInfo"].get("tautochrone", {})
                self.lake_version = described.get("version", "")
                self.sequence = described.get("sequence")
            elif line.get("txn"):
                self.transactions[line["txn"]["appId"]] = line["txn"]
        self.version = version

    def lines(self, now_ms: int) -> Iterable[dict[str, Any]]:
        """The same as actions, without removes that are too old for the log."""
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        yield from ({"txn": transaction} for transaction in self.transactions.values())
        yield from ({"add": add} for add in self.adds.values())
        for remove in self.removes.values():
            if now_ms - remove["deletionTimestamp"] < TOMBSTONE_MS:
                yield {"remove": remove}


def _vector_of(action: Mapping[str, Any]) -> str:
    vector = action.get("deletionVector")
    return "" if vector is None else f"{vector['pathOrInlineDv']}@{vector.get('offset')}"


class DeltaLog:
    """The log in the folder `_delta_log` of a table."""

    def __init__(self, table_folder: StoredPath) -> None:
        self._folder = table_folder / "_delta_log"
        self._actions = Actions()

    def head(self) -> int | None:
        """The newest version; None: there is no log."""
        known = self._actions.version
        if known >= 0 and self._path(known).exists() and not self._path(known + 1).exists():
            return known
        self._actions = Actions()
        versions = [int(path.stem) for path in self._folder.glob("[0-9]*.json")]
        return max(versions, default=None)

    def read(self) -> Actions:
        """What is in force at the newest version. Later calls read only newer versions."""
        head = self.head()
        if head is None:
            return Actions()
        if self._actions.version < 0:
            self._actions = self._read_checkpoint(head)
        for version in range(self._actions.version + 1, head + 1):
            self._actions.take(self._lines(version), version)
        return self._actions

    def put(self, version: int, content: str) -> bool:
        """Write a version; whether it is there now with this content."""
        return put_if_absent(self._path(version), content.encode()) or self.has(version, content)

    def has(self, version: int, content: str) -> bool:
        """Whether a version is there with this content."""
        path = self._path(version)
        return path.exists() and path.read_bytes() == content.encode()

    def write_checkpoint(self) -> bool:
        """Write all actions in force, if the last time was long ago; whether it was. Repeatable."""
        head = self.head()
        if head is None or not head or head % _INTERVAL:
            return False
        path = self._folder / f"{head:020d}.checkpoint.parquet"
        if path.exists():
            return False
        rows = [_row(line) for line in self.read().lines(round(time.time() * 1000))]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT), buffer)
        replace_file(path, buffer.getvalue().to_pybytes())
        hint = {"version": head, "size": len(rows)}
        replace_file(self._folder / "_last_checkpoint", json.dumps(hint).encode())
        return True

    def remove_old(self) -> None:
        """Remove versions that are older than Delta keeps them, and that no newer one needs to be read."""
        oldest_s = time.time() - _LOG_MS / 1000
        checkpoints = self._folder.glob("[0-9]*.checkpoint.parquet")
        old = [path.name for path in checkpoints if path.stat().st_mtime < oldest_s]
        if not old:
            return
        for path in self._folder.glob("[0-9]*"):
            if path.name < max(old).partition(".")[0]:
                path.unlink(missing_ok=True)

    def _read_checkpoint(self, head: int) -> Actions:
        actions = Actions()
        files = self._folder.glob("[0-9]*.checkpoint.parquet")
        versions = [version for path in files if (version := int(path.name.partition(".")[0])) <= head]
        if versions:
            newest = max(versions)
            path = self._folder / f"{newest:020d}.checkpoint.parquet"
            rows = pq.read_table(opened_parquet(path), schema=_CHECKPOINT)
            actions.take(map(_line, rows.to_pylist(maps_as_pydicts="strict")), newest)
        return actions

    def _lines(self, version: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path(version).read_text("utf-8").split("\n") if line]

    def _path(self, version: int) -> StoredPath:
        return self._folder / f"{version:020d}.json"


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line for `_CHECKPOINT`, without what only the log has."""
    return {
        action: {name: value for name, value in fields.items() if name in names}
        for action, fields in line.items()
        for names in [{each.name for each in _CHECKPOINT.field(action).type}]
    }


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_row`: what is NULL is left out."""
    return {
        action: {name: value for name, value in fields.items() if value is not None}
        for action, fields in row.items()
        if fields is not None
    }
