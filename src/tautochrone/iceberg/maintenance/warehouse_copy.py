"""Copies the tables of a warehouse of Iceberg's hadoop catalog into another local warehouse.

The files that a table's newest metadata names are copied, those of older snapshots included, and its metadata
is written again with the new paths. The source is only read. Copying is repeatable: files that are there are
left alone, and new names are derived from old ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tautochrone.errors import LakeError
from tautochrone.iceberg.maintenance.relocation import Survey, read_metadata
from tautochrone.iceberg.sessions.hadoop_files import is_table, newest_metadata_file, plain_path, subfolders
from tautochrone.model.relocated_paths import MovedFolder, spellings

__all__ = ["TableCopy", "tables_of"]


def tables_of(warehouse: Path) -> Iterator[tuple[str, ...]]:
    """The names of all tables in a warehouse, each as its namespaces and the table.

    Raises:
        LakeError: `WAREHOUSE_NOT_FOUND`, the folder holds no table.
    """
    names = list(_tables_below(warehouse, ()))
    if not names:
        raise LakeError(
            "WAREHOUSE_NOT_FOUND",
            f"{warehouse} holds no table of a hadoop catalog",
            hint="give the folder that spark.sql.catalog.NAME.warehouse names; its tables are in "
            "NAMESPACE/TABLE/metadata below it",
            sqlstate="42704",
        )
    yield from names


def _tables_below(folder: Path, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for entry in subfolders(folder):
        if is_table(entry):
            if above:
                yield (*above, entry.name)
        else:
            yield from _tables_below(entry, (*above, entry.name))


class TableCopy:
    """The copy of one table, from its folder in a hadoop warehouse to a new folder. Creating it reads the
    source and writes nothing.

    Args:
        name: for messages.
        source: the table's folder.
        target: the folder of its copy.

    Attributes:
        files: the files to copy, all in `source`.

    Raises:
        LakeError: `WAREHOUSE_INCOMPLETE`, `WAREHOUSE_DELETES`, `METADATA_UNREADABLE`.
    """

    def __init__(self, name: str, source: Path, target: Path) -> None:
        self._name, self._source, self._target = name, source, target
        newest = newest_metadata_file(source)
        if newest is None:
            raise LakeError("METADATA_UNREADABLE", f"{source} has no metadata file")
        self._metadata_file = str(newest)
        # A warehouse that was moved or copied names its files where they were made.
        self._made_in = str(plain_path(str(read_metadata(newest)["location"])))
        survey = Survey(name, self._metadata_file, MovedFolder((self._made_in,), str(source)))
        survey.read()
        lacking = [*survey.missing, *survey.outside]
        if lacking:
            raise LakeError(
                "WAREHOUSE_INCOMPLETE",
                f"{name} names {len(lacking)} files that are not in {source}, such as {lacking[0]}",
                hint="copy while nobody writes the table; one with files outside of its folder must be "
                "rewritten first",
                sqlstate="55000",
            )
        if survey.refused:
            raise LakeError(
                "WAREHOUSE_DELETES",
                f"{name} has deleted rows whose files are named inside of {survey.refused[0]}",
                hint="let Spark rewrite its data files (rewrite_data_files with delete-file-threshold 1), "
                "expire its old snapshots, and repeat",
                sqlstate="0A000",
            )
        self.files = tuple(survey.files)

    @property
    def bytes(self) -> int:
        """How much there is to copy."""
        return sum(file.stat().st_size for file in self.files)

    def write(self) -> str:
        """Copy the files and write the new metadata; the location of the metadata file for the catalog."""
        for file in self.files:
            _copy(file, self._target / file.relative_to(self._source))
        moved = MovedFolder(spellings(self._made_in, str(self._source)), str(self._target))
        survey = Survey(self._name, self._metadata_file, moved)
        survey.read()
        return survey.write().location


def _copy(source: Path, target: Path) -> None:
    """Copy a file, completely or not at all. Only files of metadata have names that another table has too."""
    is_same = target.exists() and target.stat().st_size == source.stat().st_size
    if is_same and not source.name.endswith(".metadata.json"):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, draft)
    with draft.open("rb") as content:
        os.fsync(content.fileno())
    target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
    draft.rename(target)
