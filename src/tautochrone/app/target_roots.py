"""The ingested tables of another target, which a target reads at a checkpoint instead of ingesting itself.

A run takes the checkpoint, pins it in the other target's store, and shows its tables in its own lake
(`iceberg.tables.root_of_target`). From then on they are external tables like any other. Every other command
only needs to know which tables they are: that is in a file, as the last run had it.

    <storage>/target-roots.json
    {"target": "prod", "checkpoint": 12, "pins": […], "tables": […], "own": […]}

`own` are the other streaming tables of the definitions. The file is a hint. Without it the other target is
asked again, and its pins end with their leases.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql.types import StructType

from tautochrone.app.stores import existing_store
from tautochrone.errors import CheckpointUnavailableError, LakeError, MetaError, TautochroneError
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.iceberg.tables.root_of_target import RootOfTarget
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.model import events
from tautochrone.model.auto_cdc import APPLY_PREFIX
from tautochrone.model.closeable import Closeable
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import (
    CheckpointNumber,
    TableName,
    Version,
    is_clock,
    is_file_table,
    is_shadow_table,
)
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.auto_cdc import event_table_name
from tautochrone.project.definitions import Definitions
from tautochrone.project.settings import Settings, load_settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.targets import in_target
from tautochrone.rest_catalog.metadata import SnapshotGoneError, at_version, metadata_source
from tautochrone.runtime.job.pinned import renewed

__all__ = ["TargetRoots", "located_of_target"]

_log = logging.getLogger(__name__)
_FILE_NAME = "target-roots.json"


def located_of_target(spec: PipelineSpec, name: str) -> tuple[PipelineSpec, Settings]:
    """Another target of the project of `spec`, as the file has it: variables of ours and flags are about the
    target of the command.

    Raises:
        SpecError, SettingsError: what is wrong with that target.
    """
    other, flags, environment = in_target(spec, name)
    return other, load_settings(other, flags, environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What the file says."""

    target: str
    checkpoint: int
    pins: tuple[str, ...]
    tables: tuple[str, ...]
    own: tuple[str, ...]


class TargetRoots(Closeable):
    """The tables that a target reads of another one. Use as a context manager.

    Args:
        spec, settings: of the target that reads; it has `roots_from`.
        emit: gets the events of a run.
        renews: a run: take the checkpoint anew and keep it pinned.
    """

    def __init__(self, spec: PipelineSpec, settings: Settings, emit: events.Emit, *, renews: bool) -> None:
        target = settings.target
        assert target is not None
        assert target.roots_from is not None
        self.source = target.roots_from
        self.checkpoint: CheckpointNumber | None = None
        self.tables: frozenset[TableName] = frozenset()
        self._spec, self._settings, self._target, self._emit = spec, settings, target, emit
        self._file = Path(settings.storage) / _FILE_NAME
        record = _read(self._file)
        self._record = record if record is not None and record.target == self.source else None
        self._renews = renews or self._record is None
        self._pins = renews
        self._exit_stack = ExitStack()
        self.flows: frozenset[str] = frozenset()
        self._also: frozenset[TableName] = frozenset()
        self._known: frozenset[TableName] = frozenset()
        self._readable: frozenset[TableName] = frozenset()
        self._own: frozenset[TableName] = frozenset()
        self._versions: dict[TableName, Version] = {}
        self._root_tables: dict[TableName, RootOfTarget] = {}
        self._catalog = settings.catalog.name
        self._other: Settings = settings
        self._pin = ""
        self._is_pin_kept = False
        self._lease_ms = min(DEFAULT_LEASE_MS, target.roots_pinned_ms)

    def without_roots(self, definitions: Definitions) -> Definitions:
        """The definitions without the datasets that are read from the other target.

        Raises:
            MetaError: `TARGET_HAS_NO_CHECKPOINT`; the other target's store cannot be read.
            CheckpointUnavailableError: the checkpoint that the settings name is not there.
        """
        if not self._renews and self.checkpoint is None and not self._is_known(definitions):
            self._renews = True
        if not self._renews:
            assert self._record is not None
            self.tables = frozenset(map(TableName.parse, self._record.tables))
            self.checkpoint = CheckpointNumber(self._record.checkpoint)
        elif self.checkpoint is None:
            self._choose(definitions)
        self.flows = frozenset(flow.name for flow in definitions.flows if flow.target in self.tables)
        return replace(
            definitions,
            datasets={name: each for name, each in definitions.datasets.items() if name not in self.tables},
            flows=tuple(flow for flow in definitions.flows if flow.target not in self.tables),
        )

    def take_also(self, ingested: Collection[TableName]) -> bool:
        """Whether the other target has some of these tables, which read datasets as well as from outside, and
        this one does not read them from there yet. Then they are taken too, by the next `without_roots`."""
        more = self._known & {*ingested}
        if not more:
            return False
        self._also |= more
        self.checkpoint = None
        self._root_tables.clear()
        self.close()
        return True

    def schema(self, name: TableName, lake: IcebergLake) -> StructType | None:
        """Of a table at the checkpoint; None: it is none of the other target's, or the own lake shows it."""
        if name not in self._versions:
            return None
        metadata = self._root(name).metadata
        schemas = {schema["schema-id"]: schema for schema in metadata["schemas"]}
        return lake.schema_of(schemas[metadata["current-schema-id"]])

    def require_catalog(self, names: Collection[TableName]) -> None:
        """Refuse a catalog in which those of `names` that are of the other target cannot be shown.

        Raises:
            LakeError: `TARGET_ROOTS_NOT_SUPPORTED`.
        """
        if self._versions.keys() & {*names} and self._settings.catalog.kind != "jdbc":
            raise LakeError(
                "TARGET_ROOTS_NOT_SUPPORTED",
                f"Target {self._target.name} has a catalog of type {self._settings.catalog.kind}, in which "
                "tables of another target cannot be shown",
                hint="give it a catalog of type jdbc, such as the one in its storage that it has without "
                "lake.options",
            )

    def show(
        self,
        lake: IcebergLake,
        names: Collection[TableName],
        ingested: Sequence[TableName],
        store: Store,
    ) -> None:
        """Show those of `names` that are of the other target in the own lake, and write down which they are.

        Only the owner of the job may do so: another run would cut some tables before it and some after it.

        Args:
            ingested: what this target ingests itself, for people.
            store: of this target.

        Raises:
            LakeError: `TARGET_ROOT_EXISTS`.
            MetaError, CheckpointUnavailableError: as of `without_roots`.
        """
        self._follow_newer_run()
        shown = sorted(self._versions.keys() & {*names})
        for name in shown:
            lake.show_root(name, self._root(name))
        assert self.checkpoint is not None
        self._write_down(self._needed_versions(store))
        self._emit(
            events.RootsOfTarget(
                target=self.source,
                checkpoint=int(self.checkpoint),
                datasets=[str(name) for name in shown],
                ingested=[str(name) for name in ingested],
                reason=Reason.of(ReasonCode.ROOTS_OF_TARGET, target=self._target.name, source=self.source),
            )
        )

    def close(self) -> None:
        """Stop renewing the pin. It stays until its lease ends, if it is written down, and is released
        otherwise."""
        self._exit_stack.close()

    # -- the other target ------------------------------------------------------------------------------

    def _choose(self, definitions: Definitions) -> None:
        """Choose the checkpoint and the tables, and pin it."""
        _, self._other = located_of_target(self._spec, self.source)
        try:
            store = existing_store(self._other)
        except MetaError as error:
            if error.error_class != "META_STORE_MISSING":
                raise
            raise self._no_checkpoint_error("it has not run yet") from error
        self._exit_stack.callback(store.close)
        registered = {self._named_here(e.name): e for e in store.datasets.registered()}
        roots = frozenset(name for name, entry in registered.items() if entry.is_root)
        merged = frozenset(registered) - roots
        external = {self._named_here(name) for name in store.roots.external_versions()}
        others = {name for name in external if not _follows_itself(name)} - registered.keys()
        tables = self._also | {
            name
            for name, dataset in definitions.datasets.items()
            if _is_ingested(dataset, definitions, roots, merged)
        }
        self._known = frozenset(registered)
        # What is generated, such as quarantine tables, has no definition of its own.
        generated = roots - definitions.datasets.keys()
        self._own = _streaming_tables(definitions) - tables
        self.tables, self._readable = frozenset(tables), frozenset({*tables, *others, *generated})
        self._store = store
        self._exit_stack.callback(self._release_unkept)
        self._take(self._target.roots_checkpoint)
        if self._pins:
            self._exit_stack.enter_context(
                renewed(
                    store,
                    lambda: (self._pin, self._lease_ms),
                    owner=f"target {self._target.name} of {self._spec.name}",
                    on_lost=self._say_lost,
                )
            )

    def _take(self, checkpoint: int | None) -> None:
        """Take the tables at a checkpoint, the newest one for None, and pin it.

        Raises:
            MetaError, CheckpointUnavailableError: as of `without_roots`.
        """
        resolution = self._store.reads.resolve(
            tables=sorted(map(self._named_there, self._readable)),
            checkpoint=checkpoint,
            lease_ms=self._lease_ms if self._pins else 0,
            owner=f"target {self._target.name} of {self._spec.name}",
            only_named=True,
            followed=True,
        )
        self._pin = resolution.pin
        self._versions = {
            self._named_here(name): version
            for name, version in resolution.versions.items()
            if not is_clock(name)
        }
        missing = sorted(self.tables - self._versions.keys())
        if resolution.checkpoint is None or missing:
            names = ", ".join(name.without_catalog for name in missing)
            raise self._no_checkpoint_error(
                f"{names} has no version yet" if names else "nothing is published"
            )
        self.checkpoint = resolution.checkpoint

    def _follow_newer_run(self) -> None:
        """Take the checkpoint anew if another run took a newer one since this one chose its own."""
        record = _read(self._file)
        if record is None or record.target != self.source or record == self._record:
            return
        self._record = record
        assert self.checkpoint is not None
        if self._target.roots_checkpoint is None and record.checkpoint > self.checkpoint:
            self._release_unkept()
            self._root_tables.clear()
            self._take(None)

    def _is_known(self, definitions: Definitions) -> bool:
        """Whether the file knows all streaming tables, and is of the checkpoint that the settings choose."""
        assert self._record is not None
        known = {*self._record.tables, *self._record.own}
        chosen = self._target.roots_checkpoint
        is_chosen = chosen is None or chosen == self._record.checkpoint
        return is_chosen and known.issuperset(map(str, _streaming_tables(definitions)))

    def _no_checkpoint_error(self, problem: str) -> MetaError:
        return MetaError(
            "TARGET_HAS_NO_CHECKPOINT",
            f"Target {self._target.name} reads the tables of target {self.source}: {problem}",
            hint=f"`taut run --target {self.source}` first",
            sqlstate="55000",
        )

    def _named_here(self, name: TableName) -> TableName:
        return replace(name, catalog=self._catalog) if name.catalog == self._other.catalog.name else name

    def _named_there(self, name: TableName) -> TableName:
        return replace(name, catalog=self._other.catalog.name) if name.catalog == self._catalog else name

    def _root(self, name: TableName) -> RootOfTarget:
        """The table at the checkpoint."""
        if name not in self._root_tables:
            there, version = self._named_there(name), self._versions[name]
            location, newest = metadata_source(self._other.catalog).load(there)
            try:
                metadata = at_version(newest, version)
            except SnapshotGoneError:
                raise CheckpointUnavailableError(
                    "CHECKPOINT_EXPIRED",
                    f"Target {self.source} has removed version {version} of {there} since "
                    f"checkpoint {self.checkpoint}",
                    hint="the next run takes a newer checkpoint, if roots_checkpoint names none",
                ) from None
            # Files of a partition spec that the earlier schema cannot have are not readable by it.
            is_whole = metadata.get("partition-specs") == newest.get("partition-specs")
            snapshots = newest.get("snapshots") or () if is_whole else ()
            self._root_tables[name] = RootOfTarget(
                origin=f"{self.source} {version} {location}",
                metadata=metadata,
                readable=frozenset(snapshot["snapshot-id"] for snapshot in snapshots),
            )
        return self._root_tables[name]

    # -- the pin ---------------------------------------------------------------------------------------

    def _say_lost(self, error: CheckpointUnavailableError) -> None:
        assert self.checkpoint is not None
        reason = Reason.of(ReasonCode.ROOTS_PIN_LOST, cause=str(error))
        self._emit(events.RootsPinLost(target=self.source, checkpoint=int(self.checkpoint), reason=reason))

    def _release_unkept(self) -> None:
        """Release the pin, unless it is written down."""
        pin, self._pin = self._pin, ""
        if pin and not self._is_pin_kept:
            try:
                self._store.pins.release(pin)
            except TautochroneError as error:
                _log.warning("the pin in target %s was not released: %s", self.source, error)

    def _needed_versions(self, store: Store) -> set[tuple[TableName, Version]]:
        """The versions from which refreshes of this target go on: those at the last checkpoint of each
        dataset, and at one that is still open."""
        job = self._settings.job
        newest = (store.checkpoints.latest_done(job), store.checkpoints.next_for(job))
        roots = [checkpoint.roots for checkpoint in newest if checkpoint is not None]
        numbers = {each.checkpoint for each in store.datasets.statuses() if each.checkpoint is not None}
        roots += [store.checkpoints.versions_at(number) for number in sorted(numbers)]
        return {item for versions in roots for item in versions.items() if item[0] in self._versions}

    def _write_down(self, needed: set[tuple[TableName, Version]]) -> None:
        """Write the file, with the pins of `needed` and of this run. Then release the other ones."""
        live = {pin.id: pin.versions for pin in self._store.pins.live()}
        before = () if self._record is None else self._record.pins
        kept, missing = [self._pin], needed - {*self._versions.items()}
        for pin in reversed(before):
            versions = {(self._named_here(name), version) for name, version in live.get(pin, {}).items()}
            if missing & versions:
                kept.insert(0, pin)
                missing -= versions
        assert self.checkpoint is not None
        record = {
            "target": self.source,
            "checkpoint": int(self.checkpoint),
            "pins": kept,
            "tables": sorted(map(str, self.tables)),
            "own": sorted(map(str, self._own)),
        }
        self._lease_ms = self._target.roots_pinned_ms
        self._store.pins.renew(self._pin, self._lease_ms)
        draft = self._file.with_name(f".{_FILE_NAME}.{os.getpid()}")
        draft.write_text(json.dumps(record), encoding="utf-8")
        draft.replace(self._file)
        self._is_pin_kept = True
        for pin in {*before} - {*kept}:
            self._store.pins.release(pin)


def _follows_itself(name: TableName) -> bool:
    """Whether each target has a table of this kind of its own, over the same files."""
    return is_file_table(name) or is_shadow_table(name)


def _streaming_tables(definitions: Definitions) -> frozenset[TableName]:
    return frozenset(
        name for name, dataset in definitions.datasets.items() if dataset.kind is DatasetKind.STREAMING_TABLE
    )


def _is_ingested(
    dataset: Dataset, definitions: Definitions, roots: Collection[TableName], merged: Collection[TableName]
) -> bool:
    """Whether the other target ingests what a dataset of this one would ingest.

    Args:
        roots: the tables of the other target that only ingestion writes.
        merged: its other tables.
    """
    if dataset.kind is not DatasetKind.STREAMING_TABLE:
        return False
    if dataset.name in roots:
        return True
    if f"{APPLY_PREFIX}relation" in dataset.properties:
        # A captured table may have rows that are no longer in the log.
        return dataset.name in merged
    flows = [flow for flow in definitions.flows_of(dataset.name) if flow.auto_cdc is not None]
    return bool(flows) and all(event_table_name(flow) in roots for flow in flows)


def _read(file: Path) -> _Record | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return _Record(
            target=str(content["target"]),
            checkpoint=int(content["checkpoint"]),
            pins=tuple(content["pins"]),
            tables=tuple(content["tables"]),
            own=tuple(content["own"]),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None
