"""`taut adopt --from-warehouse`: the tables of a hadoop warehouse become tables of the project's own catalog.

    1. read the metadata of every table of the warehouse; if one cannot be copied, nothing is written
    2. per table that the lake has not: copy its files, write its metadata with the new paths
    3. register it in the catalog

A process that dies in between leaves some tables registered. The next one copies the others.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from tautochrone.errors import LakeError, SettingsError
from tautochrone.iceberg.maintenance.relocation import TableCopy, tables_of
from tautochrone.iceberg.sessions.hadoop_files import plain_path
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model import events
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName
from tautochrone.project.settings import Settings

__all__ = ["WarehouseCopy"]


class WarehouseCopy:
    """The copy of a warehouse into the lake. Creating it reads and writes nothing.

    Args:
        warehouse: the folder of a hadoop catalog.
        lake: the project's.
        settings: the project's.
        effects: performs the durable steps.
        emit: gets an event for each table.

    Attributes:
        tables: the tables that the lake has not.

    Raises:
        SettingsError: `WAREHOUSE_NOT_COPIED`, the lake cannot take the copy.
        LakeError: a table cannot be copied; nothing was written.
    """

    def __init__(
        self, warehouse: Path, lake: IcebergLake, settings: Settings, effects: Effects, emit: events.Emit
    ) -> None:
        self._lake, self._effects, self._emit = lake, effects, emit
        source, catalog = warehouse.absolute(), settings.catalog
        target = _local_warehouse(settings, source)
        self.tables: dict[TableName, TableCopy] = {}
        for parts in tables_of(source):
            dotted = [part for part in parts if "." in part]
            if dotted:
                raise LakeError(
                    "WAREHOUSE_NOT_COPIED",
                    f"The part {dotted[0]} of a table's name in {source} contains a dot",
                    hint="rename the table in the warehouse",
                    sqlstate="42602",
                )
            name = TableName(catalog.name, parts[:-1], parts[-1])
            if not lake.exists(name):
                self.tables[name] = TableCopy(str(name), source.joinpath(*parts), target.joinpath(*parts))

    def complete(self, *, dry_run: bool) -> None:
        """Copy and register the tables, or only tell what would be copied."""
        for name, copy in self.tables.items():
            self._emit(
                events.TableCopied(
                    dataset=str(name), files=len(copy.files), bytes=copy.bytes, dry_run=dry_run
                )
            )
            if not dry_run:
                location = self._effects.perform(Step.LAKE_RELOCATE, str(name), copy.write)
                self._lake.register(name, location)


def _local_warehouse(settings: Settings, source: Path) -> Path:
    """The folder of the lake's warehouse."""
    catalog = settings.catalog
    location = catalog.options.get("warehouse", "")
    problem, hint = None, ""
    if catalog.kind == "hadoop":
        problem = f"The lake catalog {catalog.name} is a hadoop catalog itself"
        hint = (
            f"take spark.sql.catalog.{catalog.name}.type and .warehouse out of the project: then the lake is "
            "a catalog in the storage, under the same name"
        )
    elif not location or urlsplit(location).scheme not in ("", "file"):
        problem = f"The warehouse of the lake catalog {catalog.name} is no local folder"
        hint = "copy into a lake with a local warehouse, or register the tables in the lake's own service"
    elif plain_path(location).resolve() == source.resolve():
        problem = f"{source} is the lake's own warehouse"
        hint = "give the folder of the hadoop catalog"
    if problem is not None:
        raise SettingsError("WAREHOUSE_NOT_COPIED", problem, hint=hint)
    return plain_path(location).absolute()
