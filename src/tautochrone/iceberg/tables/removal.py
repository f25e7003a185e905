"""Takes tables out of the catalog: dropped with their files, left to nobody, or under another name.

A dropped table leaves the catalog first, and its files are deleted then. So nobody reads a table of which
files are gone, and whoever comes back after a crash finds the files by what was noted before (`StoredTable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.compare_and_set import (
    SEAL_KEY,
    Loaded,
    check_fence,
    compare_and_set,
    load,
)
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY
from tautochrone.iceberg.java.api import Iceberg, translate
from tautochrone.iceberg.maintenance.orphans import lister_of, path_of
from tautochrone.model.dataset_change import StoredTable
from tautochrone.model.effects import Effects, Step
from tautochrone.model.lake import local_folder
from tautochrone.model.names import Fence, TableName

__all__ = ["bytes_of", "delete_files", "drop", "release", "rename", "require_renaming", "stored_table"]

_PARTS = ("data", "metadata")
"""The folders in a table's folder that have its files."""


def stored_table(iceberg: Iceberg, name: TableName) -> StoredTable:
    """Where a table is.

    Raises:
        TableMissingError: it is not there.
    """
    metadata = load(iceberg, name).metadata
    return StoredTable(
        table=name,
        identity=str(metadata.uuid()),
        folder=str(metadata.location()).rstrip("/"),
        metadata=str(metadata.metadataFileLocation()),
    )


def bytes_of(iceberg: Iceberg, stored: StoredTable) -> int | None:
    """The bytes of all files in the table's folder; None: the storage cannot be listed."""
    io = lister_of(iceberg, load(iceberg, stored.table).table.io(), stored.folder)
    if not _is(iceberg.api.io.SupportsPrefixOperations, io):
        return None
    try:
        listed = iceberg.functions.read_file_infos(io.listPrefix(f"{stored.folder}/"))
    except (Py4JError, ValueError):
        return None
    return sum(size for _, size, _ in listed)


def drop(iceberg: Iceberg, effects: Effects, stored: StoredTable) -> None:
    """Take the table out of the catalog. Its files stay. Another table that has its name by now stays too."""

    def remove() -> None:
        if _identity(iceberg, stored.table) == stored.identity:
            try:
                iceberg.catalog().dropTable(iceberg.identifier(stored.table), False)
            except Py4JError as error:
                raise translate(error, stored.table) from error

    effects.perform(Step.LAKE_DROP, str(stored.table), remove)


def delete_files(
    iceberg: Iceberg, effects: Effects, stored: StoredTable, folders: Mapping[TableName, str]
) -> TableName | None:
    """Delete the files of a table that has left the catalog. Repeatable.

    Args:
        folders: of all tables of the catalog. What lies in a folder that another table shares is deleted only
            if the dropped table names it.

    Returns:
        The name that somebody gave the table instead: it is read there, and nothing was deleted.
    """
    own = f"{path_of(stored.folder)}/"
    others = {name: f"{path_of(folder.rstrip('/'))}/" for name, folder in folders.items()}
    sharing = [name for name, other in others.items() if other.startswith(own) or own.startswith(other)]

    def delete() -> TableName | None:
        kept = next((name for name in sharing if _identity(iceberg, name) == stored.identity), None)
        if kept is None:
            _delete_files(iceberg, stored, is_shared=bool(sharing))
        return kept

    return effects.perform(Step.LAKE_DELETE, str(stored.table), delete)


def _delete_files(iceberg: Iceberg, stored: StoredTable, *, is_shared: bool) -> None:
    try:
        io = _io_of(iceberg, stored.table)
        if io.newInputFile(stored.metadata).exists():
            metadata = iceberg.api.TableMetadataParser.read(io, stored.metadata)
            iceberg.api.CatalogUtil.dropTableData(io, metadata)
        lister = lister_of(iceberg, io, stored.folder)
        if not is_shared and _is(iceberg.api.io.SupportsPrefixOperations, lister):
            for part in _PARTS:
                lister.deletePrefix(f"{stored.folder}/{part}/")
    except Py4JError as error:
        raise translate(error, stored.table) from error
    folder = local_folder(stored.folder)
    for empty in () if folder is None or is_shared else (*(folder / part for part in _PARTS), folder):
        # What somebody else put there stays.
        with suppress(OSError):
            empty.rmdir()


def release(iceberg: Iceberg, effects: Effects, stored: StoredTable, fence: Fence) -> None:
    """Make the table one of nobody: it keeps rows and versions and loses the commit metadata. Another table
    that has its name by now stays as it is. Repeatable.

    Raises:
        FencedError: a newer owner is seen.
    """

    def build(loaded: Loaded) -> Any:
        check_fence(stored.table, loaded, fence)
        keys = iceberg.jvm.java.util.HashSet()
        for key in (COMMIT_METADATA_KEY, SEAL_KEY):
            keys.add(key)
        return iceberg.api.TableMetadata.buildFrom(loaded.metadata).removeProperties(keys).build()

    def done(loaded: Loaded) -> bool:
        return loaded.commit_metadata is None or str(loaded.metadata.uuid()) != stored.identity

    compare_and_set(iceberg, stored.table, effects, Step.LAKE_RELEASE, build=build, done=done, ask_first=True)


def require_renaming(iceberg: Iceberg) -> None:
    """Refuse a catalog in which tables are folders, and have the names of these.

    Raises:
        LakeError: `CATALOG_CANNOT_RENAME`.
    """
    if str(iceberg.catalog().getClass().getName()).endswith(".HadoopCatalog"):
        raise LakeError(
            "CATALOG_CANNOT_RENAME",
            f"The catalog {iceberg.catalog_name} is of the type hadoop, which cannot rename a table",
            hint="keep the old name in the project, or build the table anew under the new one",
            sqlstate="0A000",
        )


def rename(iceberg: Iceberg, effects: Effects, stored: StoredTable, new: TableName) -> None:
    """Give the table another name; its files stay where they are. Repeatable.

    Raises:
        LakeError: `RENAME_TARGET_EXISTS`, another table has the new name.
    """

    def move() -> None:
        there = _identity(iceberg, new)
        if there == stored.identity:
            return
        if there is not None:
            raise LakeError(
                "RENAME_TARGET_EXISTS",
                f"The lake has a table {new} already, so {stored.table} cannot get its name",
                hint="rename or drop that table",
                sqlstate="42P07",
            )
        try:
            iceberg.catalog().renameTable(iceberg.identifier(stored.table), iceberg.identifier(new))
        except Py4JError as error:
            raise translate(error, stored.table) from error

    effects.perform(Step.LAKE_RENAME, str(stored.table), move)


def _identity(iceberg: Iceberg, name: TableName) -> str | None:
    """What tells the table of this name from others; None: there is none."""
    if not iceberg.catalog().tableExists(iceberg.identifier(name)):
        return None
    return str(load(iceberg, name).metadata.uuid())


def _io_of(iceberg: Iceberg, name: TableName) -> Any:
    """The FileIO that a table of this name has, or would have: the transaction is never committed."""
    if iceberg.catalog().tableExists(iceberg.identifier(name)):
        return load(iceberg, name).table.io()
    schema = iceberg.api.Schema(iceberg.jvm.java.util.ArrayList())
    return iceberg.catalog().buildTable(iceberg.identifier(name), schema).createTransaction().table().io()


def _is(interface: Any, value: Any) -> bool:
    return bool(interface._java_lang_class.isInstance(value))  # noqa: SLF001
