"""Publishes tables as Delta tables: each checkpoint is one version of each of them.

See `sinks.common.publication` for how a checkpoint is committed, and `commits` for what is in a version.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tautochrone.model.lake import VersionFiles
from tautochrone.model.names import TableName
from tautochrone.model.s3 import S3_OPTIONS, is_on_s3
from tautochrone.model.sink import Digest, Intent
from tautochrone.sinks.common.exclusive_files import read_range, sizes_of
from tautochrone.sinks.common.object_paths import S3Path, StoredPath
from tautochrone.sinks.common.options import invalid_option_error, require_known
from tautochrone.sinks.common.publication import (
    PublicationSink,
    PublishedTable,
    described_folder,
    digest_of_files,
    diverged_error,
    publication_folder,
)
from tautochrone.sinks.common.publication_state import StagedCommit
from tautochrone.sinks.delta.commits import DATA_FOLDER, CommitBuilder, base85, vector_path
from tautochrone.sinks.delta.log import TOMBSTONE_MS, DeltaLog

__all__ = [
    "DeltaOptions",
    "DeltaPublication",
    "DeltaTable",
    "delta_options",
    "examine_delta_publication",
    "open_delta_publication",
]

_FORMAT = "delta-publication"


class DeltaPublication(PublicationSink):
    """See the module docstring.

    Args:
        by_id: readers look for columns by the ids in data files, not by name.
        links: data files get names in the tables' folders; on S3 they are copied there.
        has_feed: the tables have Delta's change data feed.
    """

    _log_folder = "_delta_log"

    def __init__(
        self,
        name: str,
        folder: StoredPath,
        *,
        by_id: bool = False,
        links: bool = True,
        has_feed: bool = False,
    ) -> None:
        super().__init__(name, folder)
        self._by_id = by_id
        self._links = links
        self._has_feed = has_feed

    def _builder(self, folder: StoredPath) -> CommitBuilder:
        return CommitBuilder(
            sink=self.name, folder=folder, by_id=self._by_id, links=self._links, has_feed=self._has_feed
        )

    def _new_table(self, table: TableName, folder: StoredPath) -> PublishedTable:
        return DeltaTable(self.name, table, folder, self._builder(folder))

    def digest_files(self, files: VersionFiles) -> Mapping[str, Digest]:
        deleted = [file.location for file in files.files.values() if file.deletes]
        vectors = dict(zip(deleted, files.deletion_vectors(deleted), strict=True))
        described, builder = [], self._builder(self._folder)
        for location, file in files.files.items():
            vector = vectors.get(location)
            content = b"" if vector is None else vector.content
            positions = 0 if vector is None else vector.positions
            described.append(_described(builder.path_of(file), file.rows, positions, content))
        return {"": digest_of_files(described)}


class DeltaTable:
    """One table of the publication, see `PublishedTable`."""

    def __init__(self, sink: str, table: TableName, folder: StoredPath, builder: CommitBuilder) -> None:
        self._sink = sink
        self._table = table
        self._folder = folder
        self._log = DeltaLog(folder)
        self._builder = builder

    def head(self) -> str | None:
        head = self._log.head()
        return None if head is None else str(head)

    def stage(self, intent: Intent, files: VersionFiles, *, moves_rows: bool) -> StagedCommit:
        before = self._log.read()
        lines = self._builder.lines(intent, files, before, moves_rows=moves_rows)
        rows = sum(json.loads(line["add"]["stats"])["numRecords"] for line in lines if "add" in line)
        return StagedCommit(str(before.version + 1), "".join(f"{json.dumps(line)}\n" for line in lines), rows)

    def commit(self, commit: StagedCommit) -> None:
        if not self._log.put(int(commit.version), commit.content):
            raise diverged_error(self._sink, self._table, self._folder, commit.version)

    def is_committed(self, commit: StagedCommit) -> bool:
        return self.head() == commit.version and self._log.has(int(commit.version), commit.content)

    def digest(self) -> Digest:
        """A file that is missing, or has another size, has no rows."""
        described, paths = [], self._vector_paths()
        adds = self._log.read().adds
        sizes = sizes_of([self._named(uri) for uri in adds])
        for (uri, add), size in zip(adds.items(), sizes, strict=True):
            rows = json.loads(add["stats"])["numRecords"]
            is_there = size == add["size"]
            vector = add.get("deletionVector")
            positions, content = (
                (0, b"") if vector is None else (vector["cardinality"], self._vector(vector, paths))
            )
            described.append(_described(uri, rows if is_there else 0, positions, content))
        return digest_of_files(described)

    def _named(self, uri: str) -> StoredPath:
        """The file that the log calls by this URI."""
        if isinstance(self._folder, S3Path) and is_on_s3(uri):
            return S3Path.parse(uri, self._folder.client)
        path = unquote(urlsplit(uri).path)
        # An absolute path stays as it is.
        return Path(path) if path.startswith("/") else self._folder / path

    def _vector(self, vector: Mapping[str, Any], paths: Mapping[str, StoredPath]) -> bytes:
        """Its bytes with their length and check sum; empty if they are damaged or gone."""
        path = paths.get(vector["pathOrInlineDv"])
        if path is None:
            return b""
        content = read_range(path, vector["offset"], vector["sizeInBytes"] + 8)
        is_sound = struct.pack(">I", zlib.crc32(content[4:-4])) == content[-4:]
        return content if is_sound else b""

    def _vector_paths(self) -> dict[str, StoredPath]:
        """The files of deletion vectors, by what the log calls them."""
        paths = self._folder.glob(vector_path(self._folder, "*").name)
        return {base85(uuid.UUID(path.stem.removeprefix("deletion_vector_")).bytes): path for path in paths}

    def maintain(self) -> None:
        if not self._log.write_checkpoint():
            return
        self._log.remove_old()
        actions = self._log.read()
        oldest_ms = time.time() * 1000 - TOMBSTONE_MS
        removes = (each for each in actions.removes.values() if each["deletionTimestamp"] > oldest_ms)
        named = set[str]()
        for action in (*actions.adds.values(), *removes):
            vector = action.get("deletionVector")
            named |= {unquote(action["path"]), "" if vector is None else vector["pathOrInlineDv"]}
        for path in self._folder.glob(f"{DATA_FOLDER}/*"):
            self._remove(path, oldest_ms, is_named=f"{DATA_FOLDER}/{path.name}" in named)
        for name, path in self._vector_paths().items():
            self._remove(path, oldest_ms, is_named=name in named)

    def _remove(self, path: StoredPath, oldest_ms: float, *, is_named: bool) -> None:
        """Remove a file that no version of the last days names. A commit under way has named its files later
        than that: a link changes the status of its file."""
        if not is_named and path.stat().st_ctime * 1000 < oldest_ms:
            path.unlink(missing_ok=True)


def _described(uri: str, rows: int, deleted: int, vector: bytes) -> tuple[int, str]:
    return rows - deleted, f"{uri}\n{rows}\n{deleted}\n{hashlib.sha256(vector).hexdigest()}"


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """See `DeltaPublication`."""

    folder: StoredPath
    by_id: bool
    links: bool
    has_feed: bool


def delta_options(name: str, options: Mapping[str, str]) -> DeltaOptions:
    """

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.
    """
    require_known(name, options, ("folder", "columns", "files", "changes", *S3_OPTIONS))
    folder = publication_folder(name, _FORMAT, options)
    # A bucket has no links, and whoever asks for them should know that files are copied.
    in_folder = "copies" if isinstance(folder, S3Path) else "links"
    return DeltaOptions(
        folder=folder,
        by_id=_choice(name, options, "columns", ("names", "ids")) == "ids",
        links=_choice(name, options, "files", (in_folder, "locations")) == in_folder,
        has_feed=_choice(name, options, "changes", ("none", "feed")) == "feed",
    )


def _choice(name: str, options: Mapping[str, str], option: str, choices: Sequence[str]) -> str:
    """The value of an option; the first of `choices` without it."""
    value = options.get(option, choices[0])
    if value not in choices:
        raise invalid_option_error(name, f"has {option} = {value}", f"Write {' or '.join(choices)}.")
    return value


def open_delta_publication(name: str, options: Mapping[str, str]) -> DeltaPublication:
    """The factory of the format. Nothing is written.

    Raises:
        SinkError: as `delta_options`.
    """
    chosen = delta_options(name, options)
    return DeltaPublication(
        name, chosen.folder, by_id=chosen.by_id, links=chosen.links, has_feed=chosen.has_feed
    )


def examine_delta_publication(name: str, options: Mapping[str, str]) -> str:
    """A sentence about the folder."""
    return described_folder(name, delta_options(name, options).folder)
