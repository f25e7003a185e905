"""Files in a table's folder that nothing refers to, and how a table is sealed before they are deleted.

    1. list what is old   2. read what is referred to   3. seal the table
    4. read again what is referred to   5. delete the rest (by the caller)

Files are listed before references are read, so one that is committed in between is referred to. What
is in danger is a writer that staged files, slept for days, and commits them after 4. The seal is a
property that says before when unreferred files are gone: each commit is a compare-and-set, so it comes
before the seal, and 4 sees it, or after it, and sees the seal and is refused. The same seal makes every
metadata file that was written and not yet swapped in worthless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import ConflictError, LakeError
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.functions import items
from tautochrone.model.names import TableName

__all__ = ["SEAL_KEY", "OldFile", "check_seal", "old_files", "path_of", "require_own_folder", "unreferred"]

SEAL_KEY = "tautochrone.orphans-before"
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
    """A location without scheme and authority: the same file is `file:/a`, `file:///a` and `/a`.

    Files of two buckets may become equal so; then one that is referred to spares the other.
    """
    return re.sub("/+", "/", _SCHEME.sub("", location, count=1))


def check_seal(name: TableName, loaded: Loaded, at_ms: int) -> None:
    """Refuse files whose writer began at `at_ms`, when they may be deleted by now.

    Raises:
        ConflictError: `STAGED_FILES_EXPIRED`.
    """
    sealed = loaded.metadata.properties().get(SEAL_KEY)
    if sealed is not None and at_ms < int(sealed):
        raise ConflictError(
            "STAGED_FILES_EXPIRED",
            f"Files of {name} were written so long ago that maintenance took them for orphans",
            hint="the work is done again; if it takes so long each time, raise maintenance.orphans",
        )


def require_own_folder(name: TableName, loaded: Loaded, folders: Mapping[TableName, str]) -> str:
    """The table's folder, when nobody else's files can be in it.

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
    io, kind = _lister(iceberg, loaded.table.io(), folder), iceberg.api.io.SupportsPrefixOperations
    if not kind._java_lang_class.isInstance(io):  # noqa: SLF001
        raise LakeError(
            "ORPHANS_UNKNOWN", f"The storage of {name} ({io.getClass().getName()}) cannot be listed"
        )
    # With the slash: for an object store `…/events` is also the beginning of `…/events_of_others/`.
    try:
        listed = iceberg.functions.listed(io.listPrefix(f"{folder}/"))
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


def _lister(iceberg: Iceberg, io: Any, folder: str) -> Any:
    """What lists a folder. Of local ones Hadoop's own file system: the one that writes faster goes round in
    circles at a symbolic link (see `iceberg.sessions.spark_sessions`)."""
    local = folder.startswith(("/", "file:"))
    if not (local and iceberg.api.hadoop.HadoopConfigurable._java_lang_class.isInstance(io)):  # noqa: SLF001
        return io
    conf = iceberg.jvm.org.apache.hadoop.conf.Configuration(io.getConf())
    conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    return iceberg.api.hadoop.HadoopFileIO(conf)


def unreferred(iceberg: Iceberg, loaded: Loaded, files: Sequence[OldFile]) -> list[OldFile]:
    """Those of `files` that the table's metadata does not lead to."""
    referred_paths = {path_of(location) for location in _referred(iceberg, loaded)}
    return [file for file in files if path_of(file.location) not in referred_paths]


def _referred(iceberg: Iceberg, loaded: Loaded) -> set[str]:
    table, metadata, functions = loaded.table, loaded.metadata, iceberg.functions
    reachable, manifests = iceberg.api.ReachableFileUtil, iceberg.api.ManifestFiles
    locations = {str(metadata.metadataFileLocation()), str(reachable.versionHintLocation(table))}
    # Not further back: the files that older metadata names are trimmed with each commit.
    locations.update(functions.texts(reachable.metadataFileLocations(table, False)))
    locations.update(functions.texts(reachable.manifestListLocations(table)))
    locations.update(functions.texts(reachable.statisticsFilesLocations(table)))
    io, specs = table.io(), table.specs()
    # All snapshots, not only main's: tags, prepared batches, versions that readers have pinned.
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
