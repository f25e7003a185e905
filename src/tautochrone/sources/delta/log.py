"""The log of a Delta table that others write: what is in force at its newest version.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md. A version is a file of JSON
lines. A checkpoint of the log has the actions that are in force at its version: one Parquet file, several
parts of one, or, as V2, a file with the names of further files.

Why no library reads the log: delta-rs opens storages with credentials of its own, and Delta's Kernel is a
further set of jars. What is needed of the protocol is small, the files are opened with Spark's own settings,
and a feature that is not known here is refused by its name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tautochrone.sources.storage import Storage

__all__ = ["DeltaLog", "LogError", "LogState", "Remembered", "location_of"]

_COMMIT = re.compile(r"(\d{20})\.json")
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_V2 = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(json|parquet)")
_COLUMNS = {
    "add": ("path", "partitionValues", "size", "deletionVector"),
    "metaData": ("id", "format", "schemaString", "partitionColumns", "configuration"),
    "protocol": ("minReaderVersion", "readerFeatures"),
    "sidecar": ("path",),
}
"""What is read of a checkpoint. The statistics of files, which are most of it, are not."""


_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?(/.*)")


class LogError(Exception):
    """The log is damaged or has a hole."""


def location_of(folder: str, path: str) -> str:
    """Where a file is, however the log spells its path: a URI, absolute, or relative to the table.

    Args:
        folder: of the table, as Hadoop spells it.

    >>> [location_of("file:/t", path) for path in ("a%20b", "/t/a%20b", "file:///t/a%20b")]
    ['file:/t/a b', 'file:/t/a b', 'file:/t/a b']
    """
    absolute = _URI.fullmatch(path)
    if absolute is None:
        if not path.startswith("/"):
            return f"{folder}/{unquote(path)}"
        root = _URI.fullmatch(folder)
        absolute = _URI.fullmatch(f"{root[1]}:{root[2] or ''}{path}" if root else f"file:{path}")
        assert absolute is not None
    scheme, authority, rest = absolute.groups()
    if scheme == "file":
        return f"file:{unquote(rest)}"
    return f"{scheme}:{authority or ''}{unquote(rest)}"


@dataclass(slots=True)
class LogState:
    """The actions in force at a version.

    Attributes:
        folder: of the table, as Hadoop spells it.
        adds: by location. Writers may spell the path of a file in one way when it comes, and in another one
            when it goes.
        digest: of the file of the version; empty: the writer's clean-up took it.
    """

    folder: str
    version: int
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    adds: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    digest: str = ""

    def take(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply actions. Removes come first: a file with another deletion vector is in both."""
        actions = list(lines)
        for line in actions:
            if line.get("remove"):
                self.adds.pop(location_of(self.folder, line["remove"]["path"]), None)
        for line in actions:
            if line.get("add"):
                location = location_of(self.folder, line["add"]["path"])
                self.adds[location] = {name: line["add"].get(name) for name in _COLUMNS["add"]}
            elif line.get("metaData"):
                self.metadata = line["metaData"]
            elif line.get("protocol"):
                self.protocol = line["protocol"]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one version did to data files.

    Attributes:
        adds: by location; None: the file was removed.
        changes_rows: not only the same rows in other files.
        metadata: the table's metadata, if the version has it.
    """

    adds: Mapping[str, Mapping[str, Any] | None]
    changes_rows: bool
    metadata: Mapping[str, Any] | None


class DeltaLog:
    """The folder `_delta_log` of a table.

    Args:
        folder: of the table, as Hadoop spells it.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._table = folder
        self._folder = f"{folder}/_delta_log"
        self._state: LogState | None = None
        self._stamp: tuple[int, ...] | None = None

    def newest(self) -> LogState | None:
        """What is in force now; None: there is no log. Later calls read only newer versions.

        Raises:
            LogError: it cannot be told.
            OSError: a file cannot be read.
        """
        state = self._state
        if state is None or self._stamp is None or self._stamp != self._stamp_of(state.version):
            # The log was put into the place of another one, or it is read for the first time.
            state = self._state = self._read()
            if state is None:
                return None
        try:
            while self._storage.stamp(self._path(state.version + 1)) is not None:
                self._take_commit(state, state.version + 1)
        except BaseException:
            self._state = None
            raise
        self._stamp = self._stamp_of(state.version)
        return state

    def digest(self, version: int) -> str | None:
        """Tells a version from another one that had its number before the log was put back; None: the log no
        longer has its file.

        Raises:
            OSError: as of `newest`.
        """
        try:
            return _digest(self._storage.read(self._path(version)))
        except FileNotFoundError:
            return None

    def remembered(self, version: int) -> Remembered | None:
        """What a version did; None: the log no longer has it.

        Raises:
            LogError, OSError: as of `newest`.
        """
        try:
            lines = self._lines(version)
        except FileNotFoundError:
            return None
        adds: dict[str, Mapping[str, Any] | None] = {}
        changes = False
        for line in lines:
            if line.get("remove"):
                adds[location_of(self._table, line["remove"]["path"])] = None
                changes |= bool(line["remove"].get("dataChange", True))
        for line in lines:
            if line.get("add"):
                adds[location_of(self._table, line["add"]["path"])] = line["add"]
                changes |= bool(line["add"].get("dataChange", True))
        metadata = next((line["metaData"] for line in lines if line.get("metaData")), None)
        return Remembered(adds, changes, metadata)

    # -- reading --------------------------------------------------------------------------------------

    def _read(self) -> LogState | None:
        names = self._storage.names(self._folder)
        commits = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
        checkpoints = _checkpoints(names)
        newest = max([*commits, *checkpoints], default=None)
        if newest is None:
            return None
        start = max(checkpoints, default=None)
        state = (
            LogState(self._table, -1) if start is None else self._read_checkpoint(start, checkpoints[start])
        )
        for version in range(state.version + 1, newest + 1):
            if version not in commits:
                raise LogError(f"the log has version {newest} and not version {version}")
            self._take_commit(state, version)
        state.digest = state.digest or self.digest(newest) or ""
        if not state.metadata or not state.protocol:
            raise LogError("the log has no metadata or no protocol")
        return state

    def _read_checkpoint(self, version: int, files: list[str]) -> LogState:
        state = LogState(self._table, version)
        sidecars: list[str] = []
        for name in files:
            for line in self._checkpoint_lines(f"{self._folder}/{name}"):
                if line.get("sidecar"):
                    sidecars.append(str(line["sidecar"]["path"]).rpartition("/")[2])
                else:
                    state.take([line])
        for name in sidecars:
            state.take(self._checkpoint_lines(f"{self._folder}/_sidecars/{name}"))
        return state

    def _checkpoint_lines(self, path: str) -> Iterator[Mapping[str, Any]]:
        content = self._storage.read(path)
        if path.endswith(".json"):
            yield from _parsed(path, content)
            return
        try:
            with pq.ParquetFile(pa.BufferReader(content)) as file:
                for batch in file.iter_batches(columns=_stored_columns(file.schema_arrow)):
                    for row in batch.to_pylist(maps_as_pydicts="strict"):
                        yield {action: fields for action, fields in row.items() if fields is not None}
        except pa.ArrowException as error:
            raise LogError(f"{path} cannot be read: {error}") from error

    def _take_commit(self, state: LogState, version: int) -> None:
        path = self._path(version)
        content = self._storage.read(path)
        state.take(_parsed(path, content))
        state.version, state.digest = version, _digest(content)

    def _lines(self, version: int) -> list[Mapping[str, Any]]:
        path = self._path(version)
        return _parsed(path, self._storage.read(path))

    def _stamp_of(self, version: int) -> tuple[int, ...] | None:
        return self._storage.stamp(self._path(version))

    def _path(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """By version the files of a complete checkpoint."""
    complete: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for name in sorted(names):
        if match := _CLASSIC.fullmatch(name) or _V2.fullmatch(name):
            complete[int(match[1])] = [name]
        elif match := _PART.fullmatch(name):
            parts[int(match[1]), int(match[3])][int(match[2])] = name
    for (version, count), files in parts.items():
        if files.keys() == set(range(1, count + 1)):
            complete.setdefault(version, [files[number] for number in sorted(files)])
    return complete


def _stored_columns(schema: pa.Schema) -> list[str]:
    """Those of `_COLUMNS` that a checkpoint has."""
    return [
        f"{action}.{name}"
        for action, names in _COLUMNS.items()
        if schema.get_field_index(action) >= 0
        for name in names
        if schema.field(action).type.get_field_index(name) >= 0
    ]


def _parsed(path: str, content: bytes) -> list[Mapping[str, Any]]:
    try:
        # `splitlines` would also split at other separators, which texts of JSON may contain.
        return [json.loads(line) for line in content.decode().split("\n") if line.strip()]
    except ValueError as error:
        raise LogError(f"{path} is no JSON: {error}") from error
