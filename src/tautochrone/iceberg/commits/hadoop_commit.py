"""A commit to a table of Iceberg's hadoop catalog on a local disk.

Iceberg renames the new metadata file to its number, after it has looked whether that file exists. A local
rename overwrites an existing file, so of two processes that commit at once one would lose its commit without
an error. A hard link fails where there is a file: the first process wins, and the other one is refused.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from tautochrone.errors import LakeError
from tautochrone.iceberg.java.api import Iceberg, MetadataMovedError
from tautochrone.iceberg.sessions.hadoop_files import newest_metadata_file, plain_path, version_of
from tautochrone.model.effects import Durability
from tautochrone.model.names import TableName

__all__ = ["commit_by_link", "is_hadoop_table"]

_GZIP = b"\x1f\x8b"
_OPERATIONS = "org.apache.iceberg.hadoop.HadoopTableOperations"


def is_hadoop_table(operations: Any) -> bool:
    """Whether a table's Java operations are those of the hadoop catalog."""
    return str(operations.getClass().getName()) == _OPERATIONS


def commit_by_link(iceberg: Iceberg, name: TableName, operations: Any, base: Any, updated: Any) -> None:
    """Make `updated` the table's next version, if `base` is its newest one.

    The metadata file is never compressed, whatever the table's properties say: with two possible names for
    the next version two writers could both create it.

    Raises:
        MetadataMovedError: the table has a newer version than `base`.
        LakeError: `CATALOG_MOVED`, the table's folder was copied or moved.
    """
    base_file = plain_path(str(base.metadataFileLocation()))
    made_in = plain_path(str(base.location()))
    if os.path.realpath(made_in) != os.path.realpath(base_file.parent.parent):
        raise LakeError(
            "CATALOG_MOVED",
            f"{name} was made in {made_in} and is in {base_file.parent.parent} now: it names the files there",
            hint="put the warehouse where it was; only a catalog inside of the storage can be relocated",
            sqlstate="55000",
        )
    version = version_of(base_file)
    newest = newest_metadata_file(base_file.parent.parent)
    if version is None or newest is None or version_of(newest) != version:
        raise _moved(name, newest)
    draft = base_file.with_name(f"{uuid4()}.metadata.json")
    next_file = base_file.with_name(f"v{version + 1}.metadata.json")
    iceberg.api.TableMetadataParser.write(updated, operations.io().newOutputFile(str(draft)))
    try:
        if iceberg.durability is not Durability.PROCESS:
            _sync_file(draft)
        os.link(draft, next_file)
    except FileExistsError:
        raise _moved(name, next_file) from None
    finally:
        for leftover in (draft, draft.with_name(f".{draft.name}.crc")):
            leftover.unlink(missing_ok=True)
    newest = newest_metadata_file(base_file.parent.parent) or next_file
    newest_version = version_of(newest) or version + 1
    if newest_version > version + 1 and not _is_built_upon(next_file, version + 1):
        next_file.unlink(missing_ok=True)
        raise _moved(name, newest)
    _write_hint(base_file.parent, max(newest_version, version + 1))
    iceberg.api.CatalogUtil.deleteRemovedMetadataFiles(operations.io(), base, updated)


def _is_built_upon(file: Path, version: int) -> bool:
    """Whether the newer versions of a table come after this metadata file, which was just linked.

    They do not if other writers made that version and more, and deleted its file, before it was linked:
    Iceberg deletes old metadata files where the table says so.
    """
    newer = [other for other in file.parent.iterdir() if (version_of(other) or 0) > version]
    logs = [entry for other in newer for entry in _metadata_log(other)]
    try:
        made_ms = json.loads(file.read_bytes())["last-updated-ms"]
    except FileNotFoundError:
        # Only a writer of a newer version deletes it.
        return True
    return any(plain_path(path).name == file.name and at_ms == made_ms for path, at_ms in logs)


def _metadata_log(file: Path) -> list[tuple[str, int]]:
    """The earlier metadata files that a metadata file names, and when they were made."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    metadata = json.loads(gzip.decompress(content) if content.startswith(_GZIP) else content)
    return [(entry["metadata-file"], entry["timestamp-ms"]) for entry in metadata.get("metadata-log", [])]


def _moved(name: TableName, newest: Path | None) -> MetadataMovedError:
    text = "is gone" if newest is None else f"stands at {newest.name}"
    return MetadataMovedError("METADATA_MOVED", f"{name} {text}", retryable=True)


def _sync_file(file: Path) -> None:
    with file.open("rb") as content:
        os.fsync(content.fileno())


def _write_hint(folder: Path, version: int) -> None:
    """Other engines begin to look for the newest version at the hint; one that is behind is no error."""
    draft = folder / f"{uuid4()}-version-hint.temp"
    draft.write_text(str(version), encoding="ascii")
    # Hadoop would compare the new text with the checksum of the one before.
    (folder / ".version-hint.text.crc").unlink(missing_ok=True)
    draft.replace(folder / "version-hint.text")
