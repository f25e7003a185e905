"""Maintenance of an Iceberg table: expiry, compaction and orphan removal. None of it changes rows,
except that a log loses old files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, LakeError
from tautochrone.iceberg.changes.changed_files import in_history, planned
from tautochrone.iceberg.commits.compare_and_set import (
    MAIN,
    NO_VERSION,
    Loaded,
    check_fence,
    compare_and_set,
    load,
    staged_at_ms,
)
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, encode, with_positions
from tautochrone.iceberg.java.api import items, translate
from tautochrone.iceberg.maintenance.compaction import Rewritten, rewrite_groups, rewrite_options
from tautochrone.iceberg.maintenance.expiry import expirable, old_log_files, unreachable_files
from tautochrone.iceberg.maintenance.orphans import (
    SEAL_KEY,
    check_seal,
    old_files,
    require_own_folder,
    unreferred,
)
from tautochrone.iceberg.reads.reading import IcebergReading, prepared_batches
from tautochrone.iceberg.reads.schema import TRIMMED
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata, Compacted, Dropped, Expired, Fork, Orphans, Retention
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["IcebergMaintenance"]


class IcebergMaintenance(IcebergReading):
    """See `model.lake.LakeTable` for what each method promises."""

    def expire(
        self, retention: Retention, fence: Fence, *, at_least: int = 1, dry_run: bool = False
    ) -> Expired:
        chosen: list[int] = []
        metadata_pair: list[Any] = []

        def choose(loaded: Loaded) -> list[int]:
            text = str(self._iceberg.api.TableMetadataParser.toJson(loaded.metadata))
            chosen[:] = expirable(json.loads(text), retention)
            return chosen

        def build(loaded: Loaded) -> Any:
            check_fence(self._name, loaded, fence)
            builder = self._iceberg.api.TableMetadata.buildFrom(loaded.metadata)
            # A set selects the right overload: for a list Py4J cannot tell ids from snapshots.
            builder.removeSnapshots(self._iceberg.functions.longs(choose(loaded)))
            untrimmed = {k: v for k, v in TRIMMED.items() if not loaded.metadata.properties().containsKey(k)}
            if untrimmed:
                builder.setProperties(self._iceberg.map(untrimmed))
            metadata_pair[:] = [loaded.metadata, builder.build()]
            return metadata_pair[1]

        def done(loaded: Loaded) -> bool:
            return not any(loaded.metadata.snapshot(number) for number in chosen)

        loaded = load(self._iceberg, self._name)
        count = len(choose(loaded))
        remaining = int(loaded.metadata.snapshots().size()) - count
        if count < at_least or not count:
            return Expired(table=self._name, kept=remaining + count)
        if dry_run:
            return Expired(table=self._name, versions=count, kept=remaining)
        loaded = compare_and_set(
            self._iceberg, self._name, self._effects, Step.LAKE_EXPIRE, build=build, done=done
        )
        try:
            files = unreachable_files(self._iceberg, loaded.table.io(), *metadata_pair)
        except Py4JError as error:
            raise translate(error, self._name) from error
        self._remove(loaded, files, Step.LAKE_CLEAN)
        return Expired(table=self._name, versions=len(chosen), files=len(files), kept=remaining)

    def compact(
        self,
        fork: Fork,
        commit_metadata: CommitMetadata,
        *,
        min_files: int,
        max_files: int,
        exclusive: AbstractContextManager[object],
    ) -> Compacted:
        at_ms = staged_at_ms(fork.handle.table)
        groups = self._rewritten(fork, min_files, max_files)
        if not groups:
            return Compacted(table=self._name)
        paths = self._written(groups)
        try:
            with exclusive:
                version = self._swap(fork, commit_metadata, groups, at_ms)
        except CommitOutcomeUnknownError:
            # The commit may have succeeded, so the files must not be deleted.
            raise
        except LakeError:
            self._remove(fork.handle, paths, Step.LAKE_CLEAN)
            raise
        return Compacted(
            table=self._name,
            version=version,
            files_before=sum(int(group.before.size()) for group in groups),
            files_after=len(paths),
            bytes=sum(group.bytes for group in groups),
        )

    def files_before(self, version: Version, column: str, before_ms: int | None) -> Sequence[str]:
        if version == NO_VERSION:
            return ()
        table = load(self._iceberg, self._name).table
        try:
            return old_log_files(self._iceberg, table, version, column, before_ms)
        except Py4JError as error:
            raise translate(error, self._name) from error

    def drop_files(
        self,
        fork: Fork,
        paths: Collection[str],
        commit_metadata: CommitMetadata,
        *,
        exclusive: AbstractContextManager[object],
    ) -> Dropped | None:
        functions = self._iceberg.functions
        tasks = functions.tasks(planned(functions, fork.handle.table, fork.version, {*paths}))
        if not tasks.size():
            return None

        def rewrite(loaded: Loaded, update: Any) -> None:
            nothing = self._iceberg.set(())
            files = self._iceberg.set([task.file() for task in items(tasks)])
            update.rewriteFiles(files, nothing, nothing, nothing)
            # Positions and the mark must outlive the expiry of older commits.
            update.set(COMMIT_METADATA_KEY, encode(with_positions(loaded.commit_metadata, commit_metadata)))

        with exclusive:
            version = self._replace(Step.LAKE_SHORTEN, fork, commit_metadata, rewrite)
        rows = functions.task_rows(tasks)
        return Dropped(table=self._name, version=version, files=int(tasks.size()), rows=rows)

    def remove_orphans(
        self, before_ms: int, fence: Fence, folders: Mapping[TableName, str], *, dry_run: bool = False
    ) -> Orphans:
        try:
            loaded = load(self._iceberg, self._name)
            check_fence(self._name, loaded, fence)
            folder = require_own_folder(self._name, loaded, folders)
            old = old_files(self._iceberg, self._name, loaded, folder, before_ms)
            orphans = unreferred(self._iceberg, load(self._iceberg, self._name), old)
            if orphans and not dry_run:
                self._seal(before_ms, fence)
                loaded = load(self._iceberg, self._name)
                orphans = unreferred(self._iceberg, loaded, orphans)
        except Py4JError as error:
            raise translate(error, self._name) from error
        files = tuple(file.location for file in orphans)
        if not dry_run:
            self._remove(loaded, files, Step.LAKE_ORPHANS)
        return Orphans(table=self._name, files=files, bytes=sum(file.bytes for file in orphans))

    def _seal(self, before_ms: int, fence: Fence) -> None:
        """Seal the table, see `orphans`. It always commits, even if the property does not change: the
        commit itself makes concurrent commits fail that are based on older metadata."""
        replaced_locations: list[Any] = []

        def build(loaded: Loaded) -> Any:
            check_fence(self._name, loaded, fence)
            # Each seal is a later one, also where the clock went back.
            newest = max(before_ms, int(loaded.metadata.properties().get(SEAL_KEY) or 0) + 1)
            builder = self._iceberg.api.TableMetadata.buildFrom(loaded.metadata)
            replaced_locations[:] = [loaded.metadata.metadataFileLocation()]
            return builder.setProperties(self._iceberg.map({SEAL_KEY: str(newest)})).build()

        def done(loaded: Loaded) -> bool:
            sealed = int(loaded.metadata.properties().get(SEAL_KEY) or 0) >= before_ms
            return sealed and loaded.metadata.metadataFileLocation() not in replaced_locations

        compare_and_set(self._iceberg, self._name, self._effects, Step.LAKE_SEAL, build=build, done=done)

    def _rewritten(self, fork: Fork, min_files: int, max_files: int) -> list[Rewritten]:
        table = fork.handle.table
        snapshot = table.currentSnapshot()
        files = None if snapshot is None else snapshot.summary().get("total-data-files")
        if snapshot is None or (files is not None and int(files) < min_files):
            return []

        groups: list[Rewritten] = []

        def rewrite() -> None:
            # The tier of big files includes the small ones, so only one tier is rewritten at a time.
            for options in reversed(rewrite_options(min_files, max_files)):
                groups.extend(rewrite_groups(self._iceberg, table, int(fork.version), options))
                if groups:
                    return

        try:
            self._effects.perform(Step.LAKE_STAGE, str(self._name), rewrite)
        except (Py4JError, PySparkException) as error:
            self._remove(fork.handle, self._written(groups), Step.LAKE_CLEAN)
            raise translate(error, self._name) from error
        return groups

    def _written(self, groups: Sequence[Rewritten]) -> list[str]:
        return [path for group in groups for path in self._iceberg.functions.paths(group.after)]

    def _swap(
        self, fork: Fork, commit_metadata: CommitMetadata, groups: Sequence[Rewritten], at_ms: int
    ) -> Version:
        sequence = int(fork.handle.metadata.snapshot(int(fork.version)).sequenceNumber())

        def rewrite(loaded: Loaded, update: Any) -> None:
            check_seal(self._name, loaded, at_ms)
            update.dataSequenceNumber(sequence)
            nothing = self._iceberg.set(())
            for group in groups:
                update.rewriteFiles(group.before, group.vectors, group.after, nothing)
            update.set(COMMIT_METADATA_KEY, encode(commit_metadata))

        return self._replace(Step.LAKE_COMPACT, fork, commit_metadata, rewrite)

    def _replace(
        self,
        step: Step,
        fork: Fork,
        commit_metadata: CommitMetadata,
        rewrite: Callable[[Loaded, Any], None],
    ) -> Version:
        """One commit that exchanges files, and is no change to follow."""
        attempted_versions: list[Version] = []

        def build(loaded: Loaded) -> Any:
            check_fence(self._name, loaded, commit_metadata.fence)
            if prepared_batches(self._name, loaded.metadata):
                raise ConflictError(
                    "BATCH_PREPARED",
                    f"A batch of {self._name} is prepared beside main; moving main would make it stale",
                )
            # Main may have moved by appends: Iceberg checks that the files still exist without new deletes.
            update = loaded.table.newRewrite().validateFromSnapshot(int(fork.version))
            rewrite(loaded, update)
            try:
                snapshot = update.toBranch(MAIN).apply()
            except Py4JError as error:
                raise translate(error, self._name) from error
            attempted_versions.append(Version(str(snapshot.snapshotId())))
            newest = encode(carry_forward(loaded.commit_metadata, commit_metadata))
            builder = self._iceberg.api.TableMetadata.buildFrom(loaded.metadata)
            builder.setBranchSnapshot(snapshot, MAIN).setProperties(
                self._iceberg.map({COMMIT_METADATA_KEY: newest})
            )
            return builder.build()

        def ours(loaded: Loaded) -> Version | None:
            committed = (
                v for v in attempted_versions if in_history(loaded.metadata, loaded.main, v, fork.version)
            )
            return next(committed, None)

        loaded = compare_and_set(
            self._iceberg,
            self._name,
            self._effects,
            step,
            build=build,
            done=lambda loaded: ours(loaded) is not None,
        )
        return ours(loaded) or attempted_versions[-1]

    def _remove(self, loaded: Loaded, paths: Sequence[str], step: Step) -> None:
        """Delete files that no version references. Missing files are ignored.

        Raises:
            LakeError: some files could not be deleted and remain as orphans.
        """

        def delete() -> None:
            # Not `CatalogUtil.deleteFiles`: it does not report failures.
            io, bulk = loaded.table.io(), self._iceberg.api.io.SupportsBulkOperations
            try:
                if bulk._java_lang_class.isInstance(io):  # noqa: SLF001
                    io.deleteFiles(self._iceberg.functions.strings(paths))
                else:
                    for path in paths:
                        io.deleteFile(path)
            except Py4JError as error:
                raise translate(error, self._name) from error

        if paths:
            self._effects.perform(step, str(self._name), delete)
