"""Finds orphan files in a table's folder, and seals the table before they are deleted.

    1. list old files   2. read the references   3. seal the table
    4. read the references again   5. the caller deletes the unreferenced files

Files are listed before references are read, so a file that is committed in between is referenced. A writer
that staged files, paused for days and commits them after step 4 would lose them. The seal, a table property
with a time, prevents that: files staged before this time cannot be committed any more. Each commit is a
compare-and-set, so it comes either before the seal, and step 4 sees its references, or after it, and it is
refused. The seal also changes the metadata, so a commit of metadata files written before it fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import ConflictError, LakeError
from tautochrone.iceberg.commits.compare_and_set import SEAL_KEY, Loaded
from tautochrone.iceberg.java.api import Iceberg, items
from tautochrone.model.names import TableName

__all__ = [
    "SEAL_KEY",
    "OldFile",
    "check_seal",
    "lister_of",
    "old_files",
    "path_of",
    "require_own_folder",
    "unreferenced_files",
]

_ELSEWHERE = (
    "write.data.path",
    "write.metadata.path",
    "write.folder-storage.path",
    "write.object-storage.path",
    "write.location-provider.impl",
)
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")


@dataclass(frozen=True, slots=True)
class OldFile:
    """A listed file: its location as listed, and its bytes."""

    location: str
    bytes: int


def path_of(location: str) -> str:
    """A location without scheme and authority: `file:/a`, `file:///a` and `/a` are the same file.

    Files in two buckets can get the same path. Then a reference to one of them also protects the other.
    """
    return re.sub("/+", "/", _SCHEME.sub("", location, count=1))


def check_seal(name: TableName, loaded: Loaded, at_ms: int) -> None:
    """Refuse to commit files whose writer started at `at_ms` if they may have been deleted as orphans.

    Raises:
        ConflictError: `STAGED_FILES_EXPIRED`.
    """
    if loaded.sealed_at_ms is not None and at_ms < loaded.sealed_at_ms:
        raise ConflictError(
            "STAGED_FILES_EXPIRED",
            f"Files of {name} were written so long ago that maintenance took them for orphans",
            hint="the work is done again; if it takes so long each time, raise maintenance.orphans",
        )


def require_own_folder(name: TableName, loaded: Loaded, folders: Mapping[TableName, str]) -> str:
    """The table's folder, after a check that it cannot contain files of other tables.

    Raises:
        LakeError: `ORPHANS_UNKNOWN`.
    """
    folder_of_table = str(loaded.table.location()).rstrip("/")
    properties = loaded.metadata.properties()
    moved = [key for key in _ELSEWHERE if properties.containsKey(key)]
    if moved:
        raise LakeError("ORPHANS_UNKNOWN", f"{name} keeps files elsewhere: it has the property {moved[0]}")
    own_path = path_of(folder_of_table) + "/"
    for other, folder in folders.items():
        other_path = path_of(folder.rstrip("/")) + "/"
        if other != name and (other_path.startswith(own_path) or own_path.startswith(other_path)):
            raise LakeError("ORPHANS_UNKNOWN", f"The folders of {name} and {other} overlap")
    return folder_of_table


def old_files(
    iceberg: Iceberg, name: TableName, loaded: Loaded, folder: str, before_ms: int
) -> list[OldFile]:
    """The table's data and metadata files that were last written before `before_ms`, by location.

    Raises:
        LakeError: `ORPHANS_UNKNOWN`, its storage cannot be listed.
    """
    io, kind = lister_of(iceberg, loaded.table.io(), folder), iceberg.api.io.SupportsPrefixOperations
    if not kind._java_lang_class.isInstance(io):  # noqa: SLF001
        raise LakeError(
            "ORPHANS_UNKNOWN", f"The storage of {name} ({io.getClass().getName()}) cannot be listed"
        )
    # The slash matters: in an object store `…/events` is also a prefix of `…/events_of_others/`.
    try:
        listed = iceberg.functions.read_file_infos(io.listPrefix(f"{folder}/"))
    except ValueError as error:
        raise LakeError("ORPHANS_UNKNOWN", f"A file of {name} has a name of two lines") from error
    inside = tuple(f"{path_of(folder)}/{part}/" for part in ("data", "metadata"))
    return sorted(
        (
            OldFile(location, size)
            for location, size, at_ms in listed
            if at_ms < before_ms and path_of(location).startswith(inside)
        ),
        key=lambda file: file.location,
    )


def lister_of(iceberg: Iceberg, io: Any, folder: str) -> Any:
    """The FileIO that lists a folder. Local folders are listed by Hadoop's own file system, because the
    faster one that is used for writing loops at a symbolic link (see `iceberg.sessions.spark_sessions`)."""
    local = folder.startswith(("/", "file:"))
    if not (local and iceberg.api.hadoop.HadoopConfigurable._java_lang_class.isInstance(io)):  # noqa: SLF001
        return io
    conf = iceberg.jvm.org.apache.hadoop.conf.Configuration(io.getConf())
    conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    return iceberg.api.hadoop.HadoopFileIO(conf)


def unreferenced_files(iceberg: Iceberg, loaded: Loaded, files: Sequence[OldFile]) -> list[OldFile]:
    """The `files` that the table's metadata does not reference."""
    referred_paths = {path_of(location) for location in _referenced_paths(iceberg, loaded)}
    return [file for file in files if path_of(file.location) not in referred_paths]


def _referenced_paths(iceberg: Iceberg, loaded: Loaded) -> set[str]:
    table, metadata, functions = loaded.table, loaded.metadata, iceberg.functions
    reachable, manifests = iceberg.api.ReachableFileUtil, iceberg.api.ManifestFiles
    locations = {str(metadata.metadataFileLocation()), str(reachable.versionHintLocation(table))}
    # Only the current metadata log: each commit removes older metadata files from it.
    locations.update(functions.texts(reachable.metadataFileLocations(table, False)))
    locations.update(functions.texts(reachable.manifestListLocations(table)))
    locations.update(functions.texts(reachable.statisticsFilesLocations(table)))
    io, specs = table.io(), table.specs()
    # All snapshots, not only main's: also those of tags, prepared batches and pinned versions.
    for snapshot in items(metadata.snapshots()):
        for manifest in items(snapshot.allManifests(io)):
            path = str(manifest.path())
            if path not in locations:
                locations.add(path)
                paths: Any = manifests.readPaths(manifest, io, specs)
                try:
                    locations.update(functions.texts(paths))
                finally:
                    paths.close()
    return locations
