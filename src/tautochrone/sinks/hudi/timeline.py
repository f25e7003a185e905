"""The timeline of a Hudi table, copy on write, of table version 6, which Hudi since 0.14 and hudi-rs read.

An instant is three files that appear one after the other: requested, inflight, completed. The last one has
the commit's metadata as JSON. Nobody reads files of an instant that is not completed.

https://hudi.apache.org/tech-specs
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.sinks.common.exclusive_files import file_names, put_if_absent
from tautochrone.sinks.common.object_paths import StoredPath
from tautochrone.sinks.common.publication import incomplete_error

__all__ = ["METADATA_KEY", "FileGroup", "FileGroups", "HudiTimeline"]

METADATA_KEY = "tautochrone"
"""Of `extraMetadata`: what the instant says about itself."""

_COMMIT, _REPLACE = "commit", "replacecommit"
_CHANGING = frozenset({_COMMIT, _REPLACE, "deltacommit"})
"""Actions that may change rows."""


@dataclass(frozen=True, slots=True)
class FileGroup:
    """A data file of the lake, as a file group of the table.

    Attributes:
        name: the file in the table's folder.
        deletes: names the deleted rows that are left out of it.
        rows, bytes: of this file.
    """

    file_id: str
    name: str
    deletes: str
    rows: int
    bytes: int


FileGroups = dict[str, FileGroup]
"""By location of the lake's data file."""


class HudiTimeline:
    """The timeline in the folder `.hoodie` of a table."""

    def __init__(self, table_folder: StoredPath) -> None:
        self._folder = table_folder / ".hoodie"
        self._known: tuple[str, FileGroups] | None = None
        self.instants_read = 0
        """How many instants the last reading took."""
        self.schema = self.lake_version = ""
        """Of the newest instant: its schema, and the version of the lake's table."""

    def head(self) -> str | None:
        """The newest completed instant that may have changed rows; None: there is none."""
        return max(self._completed(), default=None)

    def groups(self) -> FileGroups:
        """The file groups in force. The newest instant that names all of them is where reading begins."""
        completed = self._completed()
        head = max(completed, default=None)
        if head is None:
            self._known, self.schema, self.lake_version = None, "", ""
            return {}
        if self._known is None or self._known[0] != head:
            described = self._described(completed)
            self._known = head, _groups_of(described)
            self.instants_read = len(described)
            self.schema, self.lake_version = described[0]["schema"], described[0]["version"]
        return self._known[1]

    def unneeded_before(self, kept: int) -> tuple[str, set[str]]:
        """An instant, and the files up to it that the newest `kept` instants show; the others need nobody.

        Returns:
            An empty text as long as there are no more instants than that.
        """
        completed = self._completed()
        newest = sorted(completed)[-kept:]
        if len(completed) <= kept:
            return "", set()
        oldest = {instant: path for instant, path in completed.items() if instant <= newest[0]}
        return newest[0], {group.name for group in _groups_of(self._described(oldest)).values()}

    def _described(self, completed: Mapping[str, StoredPath]) -> list[dict[str, Any]]:
        """What instants say about themselves, the newest first, up to one that names all files.

        Raises:
            SinkError: `PUBLICATION_LOG_INCOMPLETE`.
        """
        described: list[dict[str, Any]] = []
        for instant in sorted(completed, reverse=True):
            extra = json.loads(completed[instant].read_text("utf-8"))["extraMetadata"]
            described.append({"schema": extra["schema"], **json.loads(extra[METADATA_KEY])})
            if described[-1]["is_complete"]:
                return described
        raise incomplete_error(self._folder.parent, "the instants that are left do not name all files")

    def create(self, table_name: str) -> None:
        """Write the properties of the table. Repeatable."""
        properties = {
            "hoodie.table.name": table_name,
            "hoodie.table.type": "COPY_ON_WRITE",
            "hoodie.table.version": "6",
            "hoodie.timeline.layout.version": "1",
            "hoodie.archivelog.folder": "archived",
            "hoodie.table.base.file.format": "PARQUET",
            "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
            "hoodie.populate.meta.fields": "false",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.table.metadata.partitions": "",
            "hoodie.table.checksum": str(zlib.crc32(f".{table_name}".encode())),
        }
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        put_if_absent(self._folder / "hoodie.properties", text.encode())

    def begin(self, instant: str, *, replaces: bool) -> None:
        """Write that the instant is requested and inflight. Repeatable."""
        inflight = f"{instant}.{_REPLACE}.inflight" if replaces else f"{instant}.inflight"
        put_if_absent(self._folder / f"{instant}.{_REPLACE if replaces else _COMMIT}.requested", b"")
        put_if_absent(self._folder / inflight, b"")

    def complete(self, instant: str, metadata: str, *, replaces: bool) -> bool:
        """Write that the instant is completed; whether it is now, with this metadata."""
        path = self._folder / f"{instant}.{_REPLACE if replaces else _COMMIT}"
        content = metadata.encode()
        return put_if_absent(path, content) or path.read_bytes() == content

    def remove_before(self, kept: int) -> None:
        """Remove all but the newest `kept` instants, as Hudi archives them. The caller has removed the files
        that only these showed."""
        completed = self._completed()
        for instant in sorted(completed)[:-kept]:
            # The completed one goes last: without it the others would say that the instant is under way.
            for path in self._folder.glob(f"{instant}.*.*"):
                path.unlink(missing_ok=True)
            (self._folder / f"{instant}.inflight").unlink(missing_ok=True)
            completed[instant].unlink(missing_ok=True)

    def _completed(self) -> dict[str, StoredPath]:
        names = (name.partition(".") for name in file_names(self._folder))
        return {
            instant: self._folder / f"{instant}.{action}"
            for instant, _, action in names
            if action in _CHANGING and instant.isdecimal()
        }


def _groups_of(described: Sequence[Mapping[str, Any]]) -> FileGroups:
    groups: FileGroups = {}
    for each in reversed(described):
        for location in each["removed"]:
            groups.pop(location, None)
        groups |= {location: FileGroup(**group) for location, group in each["added"].items()}
    return groups
