"""Tables whose files get other paths: those of a copied or moved storage, and those of a hadoop warehouse.

`Relocation` (`taut relocate`) rewrites the paths of a storage:

    1. survey every table and view of the catalog and every file that it refers to; if one cannot be moved,
       nothing is written
    2. per table: write new metadata under new names next to the old (`iceberg.maintenance.relocation`)
    3. rewrite the lists of source files that were read (`ingest.relocation`)
    4. give an embedded store an incarnation of its own
    5. update the catalog's rows, in one transaction
    6. write the storage's identity

Until step 6 the storage counts as moved, so nothing runs in it. Each step can be repeated: after a crash the
next process does all of them. Files are written into the new folder only, and the old one is not read.

`WarehouseCopy` (`taut adopt --from-warehouse`) makes the tables of a hadoop warehouse tables of the project's
own catalog:

    1. read the metadata of every table of the warehouse; if one cannot be copied, nothing is written
    2. per table that the lake has not: copy its files, write its metadata with the new paths
    3. register it in the catalog

A process that dies in between leaves some tables registered. The next one copies the others.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from tautochrone.app.storage import (
    Identity,
    Row,
    catalog_rows,
    embedded_store,
    lake_id,
    local_catalog,
    origin_of,
    read_identity,
    same_folder,
    write_identity,
)
from tautochrone.app.stores import existing_store, project_store, store_exists
from tautochrone.errors import LakeError, SettingsError
from tautochrone.iceberg.maintenance.relocation import (
    Relocated,
    Survey,
    TableRelocation,
    tables_of,
    write_whole,
)
from tautochrone.iceberg.sessions.hadoop_files import plain_path
from tautochrone.ingest.relocation import files_read, relocate_sources
from tautochrone.model import events
from tautochrone.model.counts import counted
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName
from tautochrone.model.relocated_paths import MovedFolder, spellings
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec

if TYPE_CHECKING:
    from tautochrone.iceberg.tables.catalog import IcebergLake

__all__ = ["Relocation", "WarehouseCopy"]


@dataclass(frozen=True, slots=True)
class _Move:
    storage: MovedFolder
    project: MovedFolder | None


class Relocation:
    """One relocation of a project's storage: call `survey`, then `relocate`.

    Args:
        from_project: where the project was, for storages that do not record it.
        moved: the original no longer exists: the storage keeps its identity, so that jobs in a shared store
            stay its jobs.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        settings: Settings,
        effects: Effects,
        emit: events.Emit,
        *,
        from_project: str | None = None,
        moved: bool = False,
    ) -> None:
        self._spec, self._settings, self._effects, self._emit = spec, settings, effects, emit
        self._from_project, self._keeps = from_project, moved
        self._surveys: dict[Row, Survey] = {}
        self._move: _Move | None = None
        self._known: Identity | None = None

    def survey(self) -> bool:
        """Read what must be relocated. Returns whether there is anything. Writes nothing.

        Raises:
            LakeError: `RELOCATION_INCOMPLETE`, `RELOCATION_OUTSIDE`, `RELOCATION_DELETES`,
                `RELOCATION_ORIGIN_UNKNOWN`, `RELOCATION_ORIGINAL_EXISTS`, `RELOCATION_SHARED_LAKE`,
                `METADATA_UNREADABLE`.
        """
        settings = self._settings
        self._known = read_identity(settings)
        file = local_catalog(settings)
        rows = [] if file is None else catalog_rows(file)
        storages = self._old_storages(rows)
        project = self._old_project(storages)
        if not storages and project is None:
            return False
        self._require_own_lake(storages, file)
        self._move = _Move(MovedFolder(storages, settings.storage.rstrip("/")), project)
        for row in rows:
            if row.location is not None:
                survey = Survey(row.name, row.location, self._move.storage)
                survey.read()
                self._surveys[row] = survey
        self._require_movable()
        for row, survey in self._surveys.items():
            if survey.outside:
                self._emit(
                    events.RelocationOutside(
                        table=row.name,
                        files=len(survey.outside),
                        sample=survey.outside[0],
                        reason="they lie in neither folder, and stay what they are",
                    )
                )
        return True

    def relocate(self) -> Identity:
        """Relocate what `survey` has read. Repeatable."""
        move, settings, known = self._move, self._settings, self._known
        assert move is not None
        relocated: dict[Row, Relocated] = {}
        for row, survey in self._surveys.items():
            if move.storage.path(survey.location) is not None:
                relocated[row] = self._effects.perform(Step.LAKE_RELOCATE, row.name, survey.write)
        list_count = 0
        if move.project is not None:
            list_count = self._effects.perform(
                Step.INGEST_RELOCATE,
                settings.storage,
                partial(relocate_sources, Path(settings.storage), move.project, write_whole),
            )
        keeps_identity = self._keeps or not move.storage.old
        storage_id = known.id if known is not None and keeps_identity else str(uuid4())
        identity = Identity.of(self._spec, settings, storage_id, known)
        if not keeps_identity:
            self._renew_store(identity)
        file = local_catalog(settings)
        if file is not None and relocated:
            self._effects.perform(
                Step.LAKE_RELOCATED, str(file), partial(_point_catalog_at, file, relocated, move.storage)
            )
        self._effects.perform(
            Step.STORAGE_IDENTIFY, settings.storage, partial(write_identity, settings, identity)
        )
        self._emit(
            events.Relocated(
                storage=settings.storage,
                before=list(move.storage.old),
                tables=len(relocated),
                source_lists=list_count,
                id=identity.id,
            )
        )
        return identity

    def accept_lake(self, *, dry_run: bool = False) -> bool:
        """With `moved` and a storage at its recorded path: the pipeline's jobs belong to the lake that the
        settings name now, because its catalog got another name or path.
        Returns whether there was such a job."""
        settings, known = self._settings, self._known
        if not self._keeps or known is None or dry_run:
            return False
        from tautochrone.runtime.job.ownership import Ownership

        # The storage is the one that it was: its job may run.
        with existing_store(settings, ownership=Ownership()) as store:
            jobs = self._effects.perform(
                Step.META_BELONG,
                settings.job,
                partial(store.jobs.move_lake, self._spec.name, lake_id(settings, known)),
            )
        self._emit(events.LakeAccepted(pipeline=self._spec.name, jobs=jobs, lake=lake_id(settings, known)))
        return jobs > 0

    def _renew_store(self, identity: Identity) -> None:
        """Give the jobs of an embedded store to this copy. Those of a shared one are checked at each run."""
        settings = self._settings
        if embedded_store(settings) and store_exists(settings.meta_url):
            # What runs over the original leaves this copy alone, though its leases were copied.
            with project_store(settings) as store:
                renew = partial(store.jobs.become_copy, lake_id(settings, identity))
                self._effects.perform(Step.META_BELONG, settings.job, renew)

    def _require_own_lake(self, storages: tuple[str, ...], catalog: Path | None) -> None:
        """Refuse a copy that would pass for its original, or would write the tables of its original."""
        settings = self._settings
        if self._keeps and any(os.path.isdir(old) for old in storages):
            raise LakeError(
                "RELOCATION_ORIGINAL_EXISTS",
                f"{storages[0]} is still there, so {settings.storage} is a copy of it",
                hint="leave --moved away",
                sqlstate="55000",
            )
        if catalog is None and storages and embedded_store(settings) and not self._keeps:
            raise LakeError(
                "RELOCATION_SHARED_LAKE",
                f"The catalog is not inside of {settings.storage}: a copy would write the same tables",
                hint="give the copy a catalog of its own; if the original is gone: `taut relocate --moved`",
                sqlstate="55000",
            )

    # -- the old paths --------------------------------------------------------------------------------

    def _old_storages(self, rows: list[Row]) -> tuple[str, ...]:
        settings, known = self._settings, self._known
        old_storages: list[str] = []
        if known is not None and not same_folder(known.storage, settings.storage):
            old_storages += [known.storage, known.real_storage]
        origin = origin_of(settings, rows)
        if origin is not None:
            old_storages += [origin]
        return spellings(*old_storages)

    def _old_project(self, storages: tuple[str, ...]) -> MovedFolder | None:
        root = str(self._spec.root)
        known, new = self._known, MovedFolder((), root)
        old: tuple[str, ...] = ()
        if self._from_project is not None:
            old = spellings(os.path.abspath(self._from_project))
        elif known is not None:
            old = known.project(self._spec.name)
            if not old and len(known.projects) == 1:
                # Only one pipeline ran here: this is the same pipeline under another name.
                (old,) = map(tuple, known.projects.values())
        elif storages:
            # Without a recorded path, only a storage with a relative path shows where the spec was.
            relative_storage = os.path.relpath(self._settings.storage, root)
            if not os.path.isabs(self._spec.storage) and ":" not in self._spec.storage:
                candidates = [
                    storage.removesuffix(f"/{relative_storage}")
                    for storage in storages
                    if not relative_storage.startswith("..") and storage.endswith(f"/{relative_storage}")
                ]
                old = spellings(*candidates)
            uris_outside = [
                uri for uri in files_read(Path(self._settings.storage)) if not _is_below(uri, root)
            ]
            if not old and uris_outside:
                raise LakeError(
                    "RELOCATION_ORIGIN_UNKNOWN",
                    f"The storage does not say where its project was, and its flows have read "
                    f"{uris_outside[0]}",
                    hint="say it: `taut relocate --from-project PATH`",
                    sqlstate="55000",
                )
        if not old or all(same_folder(folder, root) for folder in old):
            return None
        return replace(new, old=old)

    def _require_movable(self) -> None:
        for row, survey in self._surveys.items():
            if survey.missing:
                raise LakeError(
                    "RELOCATION_INCOMPLETE",
                    f"{row.name} names {counted(len(survey.missing), 'file')} missing in "
                    f"{self._settings.storage}, such as {survey.missing[0]}",
                    hint="copy the whole storage, while nothing runs in it",
                    sqlstate="55000",
                )
            if survey.refused:
                raise LakeError(
                    "RELOCATION_DELETES",
                    f"{row.name} has deleted rows whose files are named inside of {survey.refused[0]}",
                    hint="rewrite its delete files where it came from, and copy the storage again",
                    sqlstate="0A000",
                )
            if survey.ours and survey.outside:
                raise LakeError(
                    "RELOCATION_OUTSIDE",
                    f"{row.name} is written by the pipeline and has files outside of its storage, such as "
                    f"{survey.outside[0]}: a copy would share them with its original",
                    hint="move the table's files into the storage where it came from, and copy again",
                    sqlstate="55000",
                )


def _point_catalog_at(file: Path, relocated: dict[Row, Relocated], moved: MovedFolder) -> None:
    """Point all rows of a catalog at the new metadata files, and namespaces at their new folders."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=30)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for row, new in relocated.items():
            count = connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? WHERE "
                "catalog_name = ? AND table_namespace = ? AND table_name = ? AND metadata_location = ?",
                (new.location, new.previous, *row.key, row.location),
            ).rowcount
            if count != 1:
                raise LakeError(
                    "RELOCATION_INTERRUPTED",
                    f"{row.name} was changed by somebody else meanwhile; the catalog is left as it was",
                    hint="end what runs in this storage and run `taut relocate` again",
                    sqlstate="40001",
                )
        properties = "iceberg_namespace_properties"
        named = "SELECT rowid, property_value FROM " + properties
        known = connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (properties,)
        ).fetchone()
        for number, value in connection.execute(named).fetchall() if known else ():
            mapped = None if value is None else moved.path(value)
            if mapped is not None:
                connection.execute(
                    f"UPDATE {properties} SET property_value = ? WHERE rowid = ?", (mapped, number)
                )
        connection.commit()
    except sqlite3.Error as error:
        raise LakeError("CATALOG_UNREADABLE", f"The catalog {file} cannot be written: {error}") from error
    finally:
        connection.close()


def _is_below(uri: str, root: str) -> bool:
    # MovedFolder maps only URIs below its old folder; the new folder here is the same folder.
    return MovedFolder((root,), f"{root}/.").uri(uri) is not None


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
        self.tables: dict[TableName, TableRelocation] = {}
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
                self.tables[name] = TableRelocation(
                    str(name), source.joinpath(*parts), target.joinpath(*parts)
                )

    def copy_and_register(self, *, dry_run: bool) -> None:
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
