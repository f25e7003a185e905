"""Maintenance of an Iceberg table: expiry, compaction and orphan removal. None of it changes rows, except
that a log loses old files.

Iceberg's own `expireSnapshots` selects by age and retries its commit without checks. Here a pure function of
the metadata selects the snapshots, and the commit is a compare-and-set like every other. Iceberg's code only
finds the files that became unreachable. The data files of a log table that have old rows only are found by
Iceberg's statistics of their columns.

Small data files are rewritten into bigger ones with Iceberg's own planner, reader and writer. Iceberg's
commit is not used here either. Rows keep their `_row_id`, because Iceberg's rewrite tables are used for
reading and writing.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.errors import ConflictError, LakeError
from tautochrone.iceberg.changes.changed_files import file_tasks, in_history
from tautochrone.iceberg.commits.compare_and_set import (
    MAIN,
    NO_VERSION,
    Loaded,
    check_fence,
    compare_and_set,
    load,
    staged_at_ms,
)
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, encode, snapshot_metadata
from tautochrone.iceberg.java.api import Iceberg, items, translate
from tautochrone.iceberg.maintenance.orphans import (
    SEAL_KEY,
    check_seal,
    old_files,
    path_of,
    require_own_folder,
    unreferenced_files,
)
from tautochrone.iceberg.reads.reading import IcebergReading, prepared_batches
from tautochrone.iceberg.reads.schema import TRIMMED
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata, Compacted, Dropped, Expired, Fork, Orphans, Retention
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["IcebergMaintenance", "expirable"]


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
            files = _unreachable_files(self._iceberg, loaded.table.io(), *metadata_pair)
        except Py4JError as error:
            raise translate(error, self._name) from error
        if str(loaded.table.properties().getOrDefault(_GC, "true")).lower() == "false":
            # Its data files are others'. The metadata and the deletion vectors are ours.
            own = f"{path_of(str(loaded.table.location()).rstrip('/'))}/"
            files = [file for file in files if path_of(file).startswith(own)]
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
        attempted_versions: list[Version] = []
        try:
            with exclusive:
                version = self._swap(fork, commit_metadata, groups, at_ms, attempted_versions)
        except LakeError as error:
            # After any other error of an attempt, main may name the files: orphan removal asks it.
            if isinstance(error, ConflictError) or not attempted_versions:
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
            return _old_log_files(self._iceberg, table, version, column, before_ms)
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
        tasks = functions.tasks(file_tasks(functions, fork.handle.table, fork.version, {*paths}))
        if not tasks.size():
            return None

        def rewrite(loaded: Loaded, update: Any) -> None:
            nothing = self._iceberg.set(())
            files = self._iceberg.set([task.file() for task in items(tasks)])
            update.rewriteFiles(files, nothing, nothing, nothing)
            # Positions and the mark must outlive the expiry of older commits.
            update.set(
                COMMIT_METADATA_KEY, encode(snapshot_metadata(loaded.commit_metadata, commit_metadata))
            )

        with exclusive:
            version = self._replace(Step.LAKE_SHORTEN, fork, commit_metadata, rewrite, [])
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
            orphans = unreferenced_files(self._iceberg, load(self._iceberg, self._name), old)
            if orphans and not dry_run:
                self._seal(before_ms, fence)
                loaded = load(self._iceberg, self._name)
                orphans = unreferenced_files(self._iceberg, loaded, orphans)
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

    def _rewritten(self, fork: Fork, min_files: int, max_files: int) -> list[_Rewritten]:
        table = fork.handle.table
        snapshot = table.currentSnapshot()
        files = None if snapshot is None else snapshot.summary().get("total-data-files")
        if snapshot is None or (files is not None and int(files) < min_files):
            return []

        groups: list[_Rewritten] = []

        def rewrite() -> None:
            # The tier of big files includes the small ones, so only one tier is rewritten at a time.
            for options in reversed(_rewrite_options(min_files, max_files)):
                groups.extend(_rewrite_groups(self._iceberg, table, int(fork.version), options))
                if groups:
                    return

        try:
            self._effects.perform(Step.LAKE_STAGE, str(self._name), rewrite)
        except (Py4JError, PySparkException) as error:
            self._remove(fork.handle, self._written(groups), Step.LAKE_CLEAN)
            raise translate(error, self._name) from error
        return groups

    def _written(self, groups: Sequence[_Rewritten]) -> list[str]:
        return [path for group in groups for path in self._iceberg.functions.paths(group.after)]

    def _swap(
        self,
        fork: Fork,
        commit_metadata: CommitMetadata,
        groups: Sequence[_Rewritten],
        at_ms: int,
        attempted_versions: list[Version],
    ) -> Version:
        sequence = int(fork.handle.metadata.snapshot(int(fork.version)).sequenceNumber())

        def rewrite(loaded: Loaded, update: Any) -> None:
            check_seal(self._name, loaded, at_ms)
            update.dataSequenceNumber(sequence)
            nothing = self._iceberg.set(())
            for group in groups:
                update.rewriteFiles(group.before, group.vectors, group.after, nothing)
            update.set(
                COMMIT_METADATA_KEY, encode(snapshot_metadata(loaded.commit_metadata, commit_metadata))
            )

        return self._replace(Step.LAKE_COMPACT, fork, commit_metadata, rewrite, attempted_versions)

    def _replace(
        self,
        step: Step,
        fork: Fork,
        commit_metadata: CommitMetadata,
        rewrite: Callable[[Loaded, Any], None],
        attempted_versions: list[Version],
    ) -> Version:
        """One commit that exchanges files, and is no change to follow.

        Args:
            attempted_versions: gets the version of each attempt.
        """

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


# -- expiry ----------------------------------------------------------------------------------------


_GC = "gc.enabled"
_CLEANUP = "org.apache.iceberg.ReachableFileCleanup"


def expirable(metadata: Mapping[str, Any], retention: Retention) -> list[int]:
    """Ids of the snapshots that can expire, oldest first.

    Args:
        metadata: a table's metadata, parsed from its JSON.
    """
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    needed_ids = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    needed_ids.update(number for number, s in snapshots.items() if s["timestamp-ms"] >= retention.after_ms)
    needed_ids.update(int(version) for version in retention.readable)
    history = _unexpired_ancestors(snapshots, metadata.get("current-snapshot-id"))
    followed = {int(version) for version in retention.followed}
    # Snapshots between main and the oldest followed one stay: only the unbroken chain of parents proves
    # what changed.
    followed_indexes = [index for index, number in enumerate(history) if number in followed]
    needed_ids.update(history[: followed_indexes[-1] + 1] if followed_indexes else history[:1])
    unneeded = (snapshot for number, snapshot in snapshots.items() if number not in needed_ids)
    return [s["snapshot-id"] for s in sorted(unneeded, key=lambda s: s.get("sequence-number", 0))]


def _unexpired_ancestors(snapshots: Mapping[int, Mapping[str, Any]], main: int | None) -> list[int]:
    """Main and its ancestors up to the first expired one, newest first."""
    ids: list[int] = []
    current = main
    while current is not None and current in snapshots:
        ids.append(current)
        current = snapshots[current].get("parent-snapshot-id")
    return ids


def _unreachable_files(iceberg: Iceberg, io: Any, before: Any, after: Any) -> Sequence[str]:
    """Paths of data files, delete files, manifests and manifest lists that are reachable from `before` and
    not from `after`.

    Args:
        io: the table's Java `FileIO`.
        before, after: Java `TableMetadata`; nothing is deleted.
    """
    consumer, paths = iceberg.functions.collector()
    loader = iceberg.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # This class is not public. The public `expireSnapshots` that uses it would also commit.
    constructor = loader.loadClass(_CLEANUP).getDeclaredConstructors()[0]
    constructor.setAccessible(True)
    pools = iceberg.api.util.ThreadPools
    arguments = iceberg.array(iceberg.jvm.java.lang.Object, [io, None, pools.getWorkerPool(), consumer])
    cleanup = constructor.newInstance(arguments)
    everything = (
        iceberg.jvm.java.lang.Class.forName("org.apache.iceberg.ExpireSnapshots$CleanupLevel", True, loader)
        .getField("ALL")
        .get(None)
    )
    _clean_files(iceberg, cleanup, before, after, everything)
    return iceberg.functions.texts(paths)


def _clean_files(iceberg: Iceberg, cleanup: Any, before: Any, after: Any, level: Any) -> None:
    """Call `cleanFiles` by reflection: Py4J calls only public methods of public classes."""
    metadata = iceberg.api.TableMetadata._java_lang_class  # noqa: SLF001
    kinds = iceberg.array(iceberg.jvm.java.lang.Class, [metadata, metadata, level.getClass()])
    method = cleanup.getClass().getDeclaredMethod("cleanFiles", kinds)
    method.setAccessible(True)
    method.invoke(cleanup, iceberg.array(iceberg.jvm.java.lang.Object, [before, after, level]))


def _old_log_files(
    iceberg: Iceberg, table: Any, version: Version, column: str, before_ms: int | None
) -> Sequence[str]:
    """See `LakeTable.files_before`."""
    functions, expressions = iceberg.functions, iceberg.api.expressions.Expressions

    def paths(condition: Any = None) -> list[str]:
        """Of the files that may have rows that meet the condition."""
        scan = table.newScan().useSnapshot(int(version))
        scan = scan if condition is None else scan.filter(condition)
        with contextlib.closing(scan.planFiles()) as planned:
            tasks = functions.tasks(planned)
        return [] if functions.deleted_rows(tasks) else functions.task_paths(tasks)

    everything = paths()
    if before_ms is None or not everything:
        return everything
    before_us = before_ms * 1000
    young = set(paths(expressions.greaterThanOrEqual(column, before_us)))
    dated = set(paths(expressions.lessThan(column, before_us)))
    return [path for path in everything if path not in young] if dated - young else []


# -- compaction ------------------------------------------------------------------------------------


_MIB = 1 << 20
_TIERS = ((8 * _MIB, 1), (128 * _MIB, 2))
"""Target size of a file, and the factor of `min_files` that it needs. With two tiers a row is rewritten a few
times until its file is big, and not again with each few small files."""

_HALF_DELETED = "0.5"


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """Java values of one group: files before and after, and deletion vectors of the files before."""

    before: Any
    vectors: Any
    after: Any
    bytes: int


def _rewrite_options(min_files: int, max_files: int) -> list[Mapping[str, str]]:
    """The planner's options, tier by tier."""
    return [
        {
            "target-file-size-bytes": str(target),
            "min-input-files": str(min_files * times),
            "max-files-to-rewrite": str(max(max_files, min_files * times)),
            "delete-ratio-threshold": _HALF_DELETED,
        }
        for target, times in _TIERS
    ]


def _rewrite_groups(
    iceberg: Iceberg, table: Any, version: int, options: Mapping[str, str]
) -> Iterator[_Rewritten]:
    """Rewrite the files of each group that the planner selects; nothing is committed.

    A group holds files of one partition. Lazy: a group is rewritten when the iterator reaches it.
    """
    session = iceberg.session
    iceberg.activate(session)
    everything = iceberg.api.expressions.Expressions.alwaysTrue()
    planner = iceberg.api.actions.BinPackRewriteFilePlanner(table, everything, version, False)
    planner.init(iceberg.map(options))
    groups = planner.plan().groups().iterator()
    while groups.hasNext():
        yield _rewrite(iceberg, session, table, groups.next())


def _rewrite(iceberg: Iceberg, session: SparkSession, table: Any, group: Any) -> _Rewritten:
    key = str(uuid.uuid4())
    tasks = iceberg.jvm.java.util.ArrayList(group.fileScanTasks())
    manager = iceberg.api.spark.ScanTaskSetManager.get()
    coordinator = iceberg.api.spark.FileRewriteCoordinator.get()
    cache = iceberg.table_cache()
    manager.stageTasks(table, key, tasks)
    cache.add(key, table)
    try:
        reader = session.read.format("iceberg").option("file-open-cost", "0")
        rows = reader.option("split-size", str(group.inputSplitSize())).load(key)
        # Each split has the target size of a file and is one task, so no shuffle is needed.
        writer = rows.write.format("iceberg").option("distribution-mode", "none")
        writer = writer.option("target-file-size-bytes", str(group.maxOutputFileSize()))
        writer.mode("append").save(key)
        after = coordinator.fetchNewFiles(table, key)
    finally:
        cache.remove(key)
        manager.removeTasks(table, key)
        coordinator.clearRewrite(table, key)
    size = int(group.inputFilesSizeInBytes())
    return _Rewritten(group.rewrittenFiles(), group.danglingDVs(), after, size)
