"""The folder of a Paimon table: its schemas and its snapshots, one of which is each checkpoint.

    schema/schema-0                  columns and options
    snapshot/snapshot-1              names its schema, two lists of manifests and the manifest of vectors
    manifest/manifest-list-…         the manifests of the snapshot before, and what came and went since
    manifest/manifest-…              data files that come and go
    manifest/index-manifest-…        where deletion vectors are
    index/index-…                    deletion vectors
    bucket-0/data-….parquet          links to the lake's data files

A snapshot is committed by whoever creates its file. Files that no snapshot names are read by nobody.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tautochrone.sinks.common.exclusive_files import (
    file_names,
    of_each,
    put_if_absent,
    replace_file,
    sync_folder,
    write_synced,
)
from tautochrone.sinks.common.object_paths import S3Path, StoredPath
from tautochrone.sinks.common.publication import incomplete_error
from tautochrone.sinks.paimon.manifests import (
    Added,
    Manifest,
    Vector,
    read_entries,
    read_manifest_list,
    read_vectors,
)
from tautochrone.sinks.paimon.schema import Fields

__all__ = [
    "BUCKET_FOLDER",
    "COMMIT_USER",
    "INDEX_FOLDER",
    "MANIFEST_FOLDER",
    "PROPERTY",
    "PaimonSnapshots",
    "TableState",
]

BUCKET_FOLDER, INDEX_FOLDER, MANIFEST_FOLDER = "bucket-0", "index", "manifest"
COMMIT_USER = "tautochrone"
PROPERTY = "tautochrone"
"""Of a snapshot: what it says about itself."""

_OLD_MS = 3_600_000
_KEPT = 10
"""So many snapshots are kept, however old they are. Both are what Paimon keeps by default."""
_SWEEP_EVERY = 10
_OWN_NAME = re.compile(
    r"\.?(data|manifest|manifest-list|index-manifest|index)-[0-9a-f]{32}(\.parquet)?(\.[0-9a-f]{32})?"
)
"""Of files of this publication, and of drafts. Those of others have dashes in their UUIDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What a snapshot shows.

    Attributes:
        snapshot: its number; 0: there is none.
        committed_ms: its time.
        lake_version: of the lake's table.
        rows: of all data files, deleted ones included.
        schemas: the number of schemas.
        files, vectors: by name of the data file.
        removed: names of data files that one of `manifests` removes.
    """

    snapshot: int = 0
    committed_ms: int = 0
    lake_version: str = ""
    rows: int = 0
    schemas: int = 0
    manifests: Sequence[Manifest] = ()
    index_manifest: str | None = None
    files: Mapping[str, Added] = field(default_factory=dict)
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


class PaimonSnapshots:
    """Reads and writes the folder of a table."""

    def __init__(self, table_folder: StoredPath) -> None:
        self._folder = table_folder
        self._state = TableState()
        self._entries: dict[str, tuple[list[Added], list[Added]]] = {}
        self._named: dict[str, frozenset[str]] = {}

    # -- reading ----------------------------------------------------------------------------------

    def newest(self) -> int | None:
        """The number of the newest snapshot, whoever wrote it."""
        return max(_numbers(self._folder / "snapshot", "snapshot-"), default=None)

    def head(self) -> str | None:
        """The newest snapshot; if it, or a newer schema, is somebody else's, a text that says so."""
        newest = self.newest()
        if newest is None:
            return None
        snapshot = self._snapshot(newest)
        described = snapshot.get("properties", {}).get(PROPERTY)
        if snapshot.get("commitUser") != COMMIT_USER or described is None:
            return f"{newest} of {snapshot.get('commitUser')}"
        schemas = self._schema_count()
        if schemas != json.loads(described)["schemas"]:
            return f"{newest} with schema {schemas - 1}"
        return str(newest)

    def read(self) -> TableState:
        """What the newest snapshot shows.

        Raises:
            SinkError: `PUBLICATION_LOG_INCOMPLETE`.
        """
        newest = self.newest()
        if newest is None:
            self._state = TableState()
        elif newest != self._state.snapshot:
            self._state = self._state_at(self._snapshot(newest))
        return self._state

    def schemas(self) -> dict[int, Fields]:
        """The columns of all schemas, by number."""
        numbers = sorted(_numbers(self._folder / "schema", "schema-"))
        return {
            number: json.loads(self._schema_path(number).read_text("utf-8"))["fields"] for number in numbers
        }

    def _state_at(self, snapshot: Mapping[str, Any]) -> TableState:
        described = json.loads(snapshot["properties"][PROPERTY])
        lists = (snapshot["baseManifestList"], snapshot["deltaManifestList"])
        manifests = [manifest for name in lists for manifest in read_manifest_list(self._read(name))]
        self._entries = {each.name: self._entries_of(each.name) for each in manifests}
        files, removed = self._files_of(manifests)
        index_manifest = snapshot.get("indexManifest")
        return TableState(
            snapshot=snapshot["id"],
            committed_ms=snapshot["timeMillis"],
            lake_version=described["version"],
            rows=snapshot["totalRecordCount"],
            schemas=described["schemas"],
            manifests=manifests,
            index_manifest=index_manifest,
            files=files,
            vectors={} if index_manifest is None else read_vectors(self._read(index_manifest)),
            removed=removed,
        )

    def _files_of(self, manifests: Sequence[Manifest]) -> tuple[dict[str, Added], frozenset[str]]:
        """The files in force, and all that were removed once."""
        files: dict[str, Added] = {}
        names = set[str]()
        for manifest in manifests:
            added, removed = self._entries_of(manifest.name)
            for file in removed:
                files.pop(file.name, None)
                names.add(file.name)
            files |= {file.name: file for file in added}
        return files, frozenset(names)

    def _entries_of(self, manifest: str) -> tuple[list[Added], list[Added]]:
        return self._entries.get(manifest) or read_entries(self._read(manifest))

    def _read(self, name: str) -> bytes:
        try:
            return (self._folder / MANIFEST_FOLDER / name).read_bytes()
        except FileNotFoundError as error:
            raise incomplete_error(self._folder, f"{name} is missing") from error

    def _snapshot(self, number: int) -> dict[str, Any]:
        snapshot: dict[str, Any] = json.loads(self._snapshot_path(number).read_text("utf-8"))
        return snapshot

    def _snapshot_path(self, number: int) -> StoredPath:
        return self._folder / "snapshot" / f"snapshot-{number}"

    def _schema_path(self, number: int) -> StoredPath:
        return self._folder / "schema" / f"schema-{number}"

    def _schema_count(self) -> int:
        return max(_numbers(self._folder / "schema", "schema-"), default=-1) + 1

    # -- writing ----------------------------------------------------------------------------------

    def stage(self, kind: str, content: bytes) -> tuple[str, int]:
        """Write a file that no snapshot names yet. Its name and size."""
        name = f"{kind}-{uuid.uuid4().hex}"
        folder = INDEX_FOLDER if kind == "index" else MANIFEST_FOLDER
        write_synced(self._folder / folder / name, content)
        return name, len(content)

    def commit(self, snapshot: str, schemas: Mapping[int, str], staged: Sequence[str]) -> bool:
        """Write a snapshot; whether it is there now, or was. Repeatable.

        Args:
            schemas: that are new, by number.
            staged: files that it needs, as paths in the table's folder.

        Raises:
            SinkError: `PUBLICATION_LOG_INCOMPLETE`.
        """
        if not self._folder.is_dir():
            # Somebody deleted the table. The next delivery begins it again.
            return True
        number = json.loads(snapshot)["id"]
        path, newest = self._snapshot_path(number), self.newest()
        if newest is not None and newest >= number:
            # One that is gone has expired.
            return not path.exists() or path.read_bytes() == snapshot.encode()
        are_there = of_each(
            staged,
            lambda name: (self._folder / name).exists(),
            on_server=isinstance(self._folder, S3Path),
        )
        for name, is_there in zip(staged, are_there, strict=True):
            if not is_there:
                raise incomplete_error(self._folder, f"{name} is missing")
        for folder in {(self._folder / name).parent for name in staged}:
            sync_folder(folder)
        # The highest one goes first: readers that open the table meanwhile take it for the table's columns.
        for schema in sorted(schemas, reverse=True):
            content = schemas[schema].encode()
            schema_path = self._schema_path(schema)
            if not put_if_absent(schema_path, content) and schema_path.read_bytes() != content:
                return False
        if not put_if_absent(path, snapshot.encode()) and path.read_bytes() != snapshot.encode():
            return False
        replace_file(path.with_name("LATEST"), str(number).encode())
        return True

    # -- maintenance ------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Remove old snapshots, and files that none of the others needs. Tags and branches of others keep
        theirs."""
        newest = self.newest()
        if newest is None or newest % _SWEEP_EVERY:
            return
        # Listed first: what a newer owner writes from now on is not removed.
        folders = (MANIFEST_FOLDER, INDEX_FOLDER, BUCKET_FOLDER)
        paths = [path for folder in folders for path in (self._folder / folder).glob("*")]
        needed = self._needed(self._remove_snapshots())
        if self.newest() != newest:
            return
        oldest_s = (time.time() * 1000 - _OLD_MS) / 1000
        for path in paths:
            is_unneeded = _OWN_NAME.fullmatch(path.name) and path.name not in needed
            # A commit under way has named its files later than that: a link changes the status of its file.
            if is_unneeded and path.stat().st_ctime < oldest_s:
                path.unlink(missing_ok=True)

    def _remove_snapshots(self) -> list[StoredPath]:
        """Those that are left."""
        numbers = sorted(_numbers(self._folder / "snapshot", "snapshot-"))
        oldest_ms = time.time() * 1000 - _OLD_MS
        first = next(
            (n for n in numbers[:-_KEPT] if self._snapshot(n)["timeMillis"] >= oldest_ms), numbers[-_KEPT:][0]
        )
        if first != numbers[0]:
            replace_file(self._folder / "snapshot" / "EARLIEST", str(first).encode())
        for number in numbers:
            if number < first:
                self._snapshot_path(number).unlink(missing_ok=True)
        return [self._snapshot_path(number) for number in numbers if number >= first]

    def _needed(self, snapshots: Sequence[StoredPath]) -> set[str]:
        """Names of the files that snapshots, tags and branches name."""
        described = [json.loads(path.read_text("utf-8")) for path in snapshots]
        # A list of manifests has a name of its own, also after somebody deleted the table.
        self._named = {
            key: self._named.get(key) or frozenset(self._names_in(snapshot, is_complete=False))
            for snapshot in described
            for key in [snapshot["deltaManifestList"]]
        }
        branches: list[StoredPath] = list(self._folder.glob("branch/*"))
        paths = [path for branch in branches for path in branch.glob("snapshot/snapshot-*")]
        paths += [path for folder in (self._folder, *branches) for path in folder.glob("tag/tag-*")]
        complete = [described[0], described[-1], *(json.loads(path.read_text("utf-8")) for path in paths)]
        needed = set[str]().union(*self._named.values())
        return needed.union(*(self._names_in(snapshot, is_complete=True) for snapshot in complete))

    def _names_in(self, snapshot: Mapping[str, Any], *, is_complete: bool) -> Iterator[str]:
        """Names of the files that a snapshot needs.

        Args:
            is_complete: all data files; otherwise those that the one before it lacks.
        """
        lists = (snapshot["baseManifestList"], snapshot["deltaManifestList"])
        base, delta = (read_manifest_list(self._read(name)) for name in lists)
        yield from lists
        yield from (manifest.name for manifest in (*base, *delta))
        yield from self._files_of([*base, *delta] if is_complete else delta)[0]
        index_manifest = snapshot.get("indexManifest")
        if index_manifest is not None:
            yield index_manifest
            yield from (vector.file for vector in read_vectors(self._read(index_manifest)).values())


def _numbers(folder: StoredPath, prefix: str) -> Iterator[int]:
    names = file_names(folder)
    return (int(name.removeprefix(prefix)) for name in names if re.fullmatch(rf"{prefix}\d+", name))
