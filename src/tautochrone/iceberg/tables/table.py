"""Implements the commit protocol `model.lake.LakeTable` for one Iceberg table.

Spark writes data files through Iceberg's rewrite API (`SparkTableCache` and `FileRewriteCoordinator`): tasks
write the files and the driver gets them as `DataFile` values, without a catalog commit. Snapshots are then
produced with `apply()` and committed by compare-and-set.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.changed_files import can_move_main_back, in_history
from tautochrone.iceberg.commits.compare_and_set import (
    MAIN,
    Loaded,
    check_fence,
    check_main,
    compare_and_set,
    load,
)
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, encode, snapshot_metadata
from tautochrone.iceberg.commits.staged_files import (
    arrow_obstacle,
    files_by_name,
    files_taken,
    fitting_rows,
    local_rows,
    stage_task_files,
    task_writer,
    write_files,
    write_locally,
    write_rows,
)
from tautochrone.iceberg.java.api import translate
from tautochrone.iceberg.java.calls import column_names, history, iceberg_calls, references
from tautochrone.iceberg.maintenance.orphans import check_seal
from tautochrone.iceberg.maintenance.table_maintenance import IcebergMaintenance
from tautochrone.iceberg.reads.data_files import columns_of_files
from tautochrone.iceberg.reads.key_positions import positions_of_keys
from tautochrone.iceberg.reads.reading import BRANCH_PREFIX, own_files, prepared_batches, reverted_metadata
from tautochrone.iceberg.reads.schema import replacement_transaction, shape_of, widened_schema
from tautochrone.iceberg.tables.deletes import write_removal
from tautochrone.iceberg.tables.shadow_table import follow
from tautochrone.model.effects import Step
from tautochrone.model.foreign import Followed, ForeignTable
from tautochrone.model.former_names import with_current_names, with_renames
from tautochrone.model.lake import (
    NO_VERSION,
    CommitMetadata,
    Committed,
    Fork,
    Prepared,
    Rows,
    Staged,
    TableDefinition,
    TaskWriter,
)
from tautochrone.model.names import Fence, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.jvm.driver_calls import joined_texts

__all__ = ["IcebergTable"]


class IcebergTable(IcebergMaintenance):
    """See `model.lake.LakeTable` for what each method promises."""

    _planned: tuple[Version, Mapping[str, Any]] = (NO_VERSION, {})
    """Scan tasks by data file, of the version in which positions were found last, mostly to be deleted."""

    # -- staging: files without a version ---------------------------------------------------------

    def stage(self, fork: Fork, rows: Rows, *, local: bool = False, is_observed: bool = False) -> Staged:
        def write() -> Staged:
            table = fork.handle.table
            data = local_rows(table, rows) if local else None
            if data is not None:
                return write_locally(self._name, table, rows, data)
            staged = write_files(self._iceberg, self._name, table, rows, is_observed=is_observed)
            return (
                replace(staged, left_to_spark=Reason.of(ReasonCode.ROWS_NOT_ON_DRIVER)) if local else staged
            )

        return self._effects.perform(Step.LAKE_STAGE, str(self._name), write)

    def stage_arrow(self, fork: Fork, rows: Any) -> Staged | Reason:
        table = fork.handle.table
        fitting = fitting_rows(self._iceberg, table, rows)
        if isinstance(fitting, Reason):
            return fitting
        return self._effects.perform(
            Step.LAKE_STAGE, str(self._name), lambda: write_rows(self._iceberg, self._name, table, fitting)
        )

    def arrow_obstacle(self, fork: Fork) -> Reason | None:
        return arrow_obstacle(self._iceberg, fork.handle.table)

    def task_writer(self, fork: Fork, columns: Sequence[str] | None = None) -> TaskWriter | Reason:
        return task_writer(self._iceberg, fork.handle.table, columns)

    def stage_task_files(self, fork: Fork, writer: TaskWriter, files: Rows) -> Staged:
        def write() -> Staged:
            return stage_task_files(self._iceberg, self._name, fork.handle.table, writer, files)

        return self._effects.perform(Step.LAKE_STAGE, str(self._name), write)

    def files_taken(self, fork: Fork, since_ms: int) -> Reason | None:
        return files_taken(fork.handle.table, since_ms)

    def files_by_name(self, fork: Fork, names: Sequence[str], at_ms: int | None) -> Staged | Reason:
        return files_by_name(self._iceberg, self._name, fork.handle.table, names, at_ms)

    def columns_of(self, fork: Fork, staged: Staged, names: Sequence[str]) -> Sequence[Any] | Reason:
        return columns_of_files(self._iceberg, fork.handle.table, staged, names)

    def discard(self, staged: Staged) -> None:
        loaded = load(self._iceberg, self._name)
        self._remove(loaded, [str(file.location()) for file in staged.files], Step.LAKE_DISCARD)

    # -- two steps: prepare on a branch, move main ------------------------------------------------

    def prepare(self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata) -> Prepared:
        branch = f"{BRANCH_PREFIX}{commit_metadata.fence}-{uuid.uuid4().hex[:12]}"
        snapshots: list[Any] = []

        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, fork.version, commit_metadata.fence)
            # The snapshot is produced for main: for a new branch Iceberg would count the totals from zero.
            snapshot = self._append(loaded, staged, commit_metadata)
            snapshots.append(snapshot)
            return self._builder(loaded).setBranchSnapshot(snapshot, branch).build()

        def done(loaded: Loaded) -> bool:
            return loaded.metadata.ref(branch) is not None

        self._set(Step.LAKE_PREPARE, build, done)
        return Prepared(
            table=self._name,
            parent=fork.version,
            version=Version(str(snapshots[-1].snapshotId())),
            branch=branch,
            commit_metadata=commit_metadata,
            rows=sum(part.rows for part in staged),
        )

    def prepared(self) -> Sequence[Prepared]:
        return prepared_batches(self._name, load(self._iceberg, self._name).metadata)

    def commit(self, prepared: Prepared, fence: Fence) -> Committed:
        def on_main(loaded: Loaded) -> bool:
            return in_history(loaded.metadata, loaded.main, prepared.version, prepared.parent)

        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, prepared.parent, fence)
            if loaded.metadata.ref(prepared.branch) is None:
                raise LakeError(
                    "PREPARED_BATCH_GONE",
                    f"The batch {prepared.branch} of {self._name} was aborted; it cannot be committed",
                )
            ref = self._iceberg.api.SnapshotRef.branchBuilder(int(prepared.version)).build()
            builder = self._builder(loaded).setRef(MAIN, ref).removeRef(prepared.branch)
            newest, batch = loaded.commit_metadata, prepared.commit_metadata
            if newest is not None:
                batch = with_current_names(batch, newest.renames)
            commit_metadata = replace(carry_forward(newest, batch), fence=fence)
            return self._with_commit_metadata(builder, commit_metadata).build()

        self._set(Step.LAKE_COMMIT, build, on_main, ask_first=True)
        return self._committed(prepared.version, prepared.parent, prepared.rows)

    def abort(self, prepared: Prepared) -> None:
        def check(loaded: Loaded) -> None:
            if in_history(loaded.metadata, loaded.main, prepared.version, prepared.parent):
                raise LakeError(
                    "PREPARED_BATCH_COMMITTED",
                    f"The batch {prepared.version} of {self._name} is committed; it cannot be aborted",
                )

        self._drop_branch(Step.LAKE_ABORT, prepared.branch, check)

    # -- one step: what can be computed again -----------------------------------------------------

    def commit_staged(
        self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        def snapshot(loaded: Loaded) -> Any:
            return self._append(loaded, staged, commit_metadata)

        return self._on_main(
            Step.LAKE_COMMIT_STAGED, fork, commit_metadata, snapshot, sum(s.rows for s in staged)
        )

    def positions_of_keys(self, fork: Fork, keys: Any) -> Mapping[str, Sequence[int]] | Reason:
        positions = positions_of_keys(self._iceberg, fork.handle.table, fork.version, keys)
        if isinstance(positions, Reason):
            return positions
        self._planned = fork.version, positions.tasks
        return positions.by_file

    def apply(
        self,
        fork: Fork,
        staged: Sequence[Staged],
        deletes: Mapping[str, Sequence[int]],
        commit_metadata: CommitMetadata,
    ) -> Committed:
        if not any(deletes.values()):
            return self.commit_staged(fork, staged, commit_metadata)
        planned_version, planned = self._planned
        self._planned = NO_VERSION, {}
        known_tasks = planned if planned_version == fork.version else {}
        java_table, version = fork.handle.table, fork.version
        new_files = {str(file.location()): file for part in staged for file in part.files}
        removal = self._effects.perform(
            Step.LAKE_STAGE,
            str(self._name),
            lambda: write_removal(self._name, java_table, version, deletes, known_tasks, new_files),
        )

        def snapshot(loaded: Loaded) -> Any:
            delta = loaded.table.newRowDelta()
            if fork.version != NO_VERSION:
                # Without a start snapshot, Iceberg compares with every vector in the history.
                delta = delta.validateFromSnapshot(int(fork.version))
            check_seal(self._name, loaded, removal.at_ms)
            removal.put_into(delta)
            left = [
                replace(part, files=[f for f in part.files if str(f.location()) not in removal.unused])
                for part in staged
            ]
            return self._produce(loaded, delta, delta.addRows, left, commit_metadata)

        rows = sum(s.rows for s in staged)
        done = self._on_main(Step.LAKE_COMMIT_STAGED, fork, commit_metadata, snapshot, rows)
        return replace(done, rows_deleted=removal.rows)

    def replace_rows(
        self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        def snapshot(loaded: Loaded) -> Any:
            overwrite = loaded.table.newOverwrite()
            overwrite.overwriteByRowFilter(self._iceberg.api.expressions.Expressions.alwaysTrue())
            return self._produce(loaded, overwrite, overwrite.addFile, staged, commit_metadata)

        return self._on_main(
            Step.LAKE_COMMIT_STAGED, fork, commit_metadata, snapshot, sum(s.rows for s in staged)
        )

    def replace_files(
        self, fork: Fork, paths: frozenset[str], staged: Sequence[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        def snapshot(loaded: Loaded) -> Any:
            overwrite = loaded.table.newOverwrite()
            with contextlib.closing(
                loaded.table.newScan().useSnapshot(int(fork.version)).planFiles()
            ) as tasks:
                each = tasks.iterator()
                while each.hasNext():
                    file = each.next().file()
                    if str(file.location()) in paths:
                        overwrite.deleteFile(file)
            return self._produce(loaded, overwrite, overwrite.addFile, staged, commit_metadata)

        return self._on_main(
            Step.LAKE_COMMIT_STAGED, fork, commit_metadata, snapshot, sum(s.rows for s in staged)
        )

    def redefine(
        self, fork: Fork, definition: TableDefinition, rows: Rows, commit_metadata: CommitMetadata
    ) -> Committed:
        shape = shape_of(self._iceberg, definition)
        replaced = replacement_transaction(self._iceberg, self._name, fork.handle, shape).table()
        staged = self._effects.perform(
            Step.LAKE_STAGE, str(self._name), lambda: write_files(self._iceberg, self._name, replaced, rows)
        )
        attempted_versions: list[Version] = []

        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, fork.version, commit_metadata.fence)
            check_seal(self._name, loaded, staged.at_ms)
            # The transaction only produces metadata. Its own commit would retry without checks.
            transaction = replacement_transaction(self._iceberg, self._name, loaded, shape)
            append = transaction.newFastAppend()
            for file in staged.files:
                append.appendFile(file)
            described = with_renames(loaded.commit_metadata, commit_metadata)
            append.set(COMMIT_METADATA_KEY, encode(described)).commit()
            metadata = transaction.currentMetadata()
            attempted_versions.append(Version(str(metadata.currentSnapshot().snapshotId())))
            builder = self._iceberg.api.TableMetadata.buildFrom(metadata)
            return self._with_commit_metadata(
                builder, carry_forward(loaded.commit_metadata, commit_metadata)
            ).build()

        def done(loaded: Loaded) -> bool:
            return loaded.main in attempted_versions

        self._set(Step.LAKE_REDEFINE, build, done)
        return self._committed(attempted_versions[-1], fork.version, staged.rows)

    def follow(self, fork: Fork, foreign: ForeignTable, commit_metadata: CommitMetadata) -> Followed:
        return follow(self._iceberg, self._name, self._effects, fork, foreign, commit_metadata)

    def require_widenable(self, fork: Fork, schema: Any) -> bool:
        return widened_schema(self._iceberg, self._name, fork.handle, schema) is not None

    def widen(self, fork: Fork, schema: Any, commit_metadata: CommitMetadata) -> Sequence[str]:
        old_columns = set(column_names(fork.handle.table.schema()))
        new_schema = widened_schema(self._iceberg, self._name, fork.handle, schema)
        if new_schema is None:
            return ()

        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, fork.version, commit_metadata.fence)
            newest = widened_schema(self._iceberg, self._name, loaded, schema) or loaded.table.schema()
            return self._builder(loaded).setCurrentSchema(newest, newest.highestFieldId()).build()

        def done(loaded: Loaded) -> bool:
            return widened_schema(self._iceberg, self._name, loaded, schema) is None

        self._set(Step.LAKE_REDEFINE, build, done)
        return [column for column in column_names(new_schema) if column not in old_columns]

    def commit_metadata_only(self, fork: Fork, commit_metadata: CommitMetadata) -> Committed:
        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, fork.version, commit_metadata.fence)
            newest = carry_forward(loaded.commit_metadata, commit_metadata)
            return self._with_commit_metadata(self._builder(loaded), newest).build()

        def done(loaded: Loaded) -> bool:
            return carry_forward(loaded.commit_metadata, commit_metadata) == loaded.commit_metadata

        self._set(Step.LAKE_COMMIT_METADATA, build, done)
        return self._committed(fork.version, None, 0)

    def raise_fence(self, fork: Fork, commit_metadata: CommitMetadata) -> Committed:
        def snapshot(loaded: Loaded) -> Any:
            return self._append(loaded, [], commit_metadata)

        return self._on_main(Step.LAKE_FENCE, fork, commit_metadata, snapshot, 0)

    def roll_back(self, version: Version, commit_metadata: CommitMetadata) -> Committed:
        def build(loaded: Loaded) -> Any:
            if not can_move_main_back(loaded.metadata, loaded.main, version):
                raise LakeError("VERSION_NOT_IN_HISTORY", f"{self._name} never stood at {version}")
            check_main(self._name, loaded, loaded.main, commit_metadata.fence)
            ref = self._iceberg.api.SnapshotRef.branchBuilder(int(version)).build()
            # The positions of that version are valid again, so none are carried forward.
            described = with_renames(loaded.commit_metadata, commit_metadata)
            return self._with_commit_metadata(self._builder(loaded).setRef(MAIN, ref), described).build()

        self._set(Step.LAKE_ROLL_BACK, build, lambda loaded: loaded.main == version)
        return self._committed(version, None, 0)

    def revert(self, version: Version, commit_metadata: CommitMetadata, tag: str) -> Committed:
        attempted_versions: list[Version] = []

        def build(loaded: Loaded) -> Any:
            check_fence(self._name, loaded, commit_metadata.fence)
            metadata, newest = reverted_metadata(self._name, loaded, version, commit_metadata, tag)
            attempted_versions.append(newest)
            return self._with_commit_metadata(
                self._iceberg.api.TableMetadata.buildFrom(metadata), commit_metadata
            ).build()

        def done(loaded: Loaded) -> bool:
            return loaded.metadata.ref(tag) is not None

        loaded = self._set(Step.LAKE_REVERT, build, done, ask_first=True)
        return self._committed(attempted_versions[-1] if attempted_versions else loaded.main, version, 0)

    # -- tags --------------------------------------------------------------------------------------

    def tag(self, version: Version, name: str) -> None:
        def build(loaded: Loaded) -> Any:
            ref = self._iceberg.api.SnapshotRef.tagBuilder(int(version)).build()
            return self._builder(loaded).setRef(name, ref).build()

        def done(loaded: Loaded) -> bool:
            ref = loaded.metadata.ref(name)
            return ref is not None and str(ref.snapshotId()) == version

        self._set(Step.LAKE_TAG, build, done, ask_first=True)

    def tag_newest(self, version: Version, prefix: str, kept: int) -> None:
        name = f"{prefix}{version}"

        def changes(loaded: Loaded) -> tuple[bool, list[str]]:
            """Whether the tag is missing, and the tags to drop."""
            tags = {each.name: each for each in references(loaded.metadata) if each.is_tag}
            tagged = [each for each in tags.values() if each.name.startswith(prefix)]
            numbered = {each.name: each.sequence_number for each in tagged}
            if name not in numbered:
                # Iceberg refuses a tag of a version that is gone.
                of_version = (each.sequence_number for each in history(loaded.metadata, version, version))
                numbered[name] = next(of_version, sys.maxsize)
            by_age = sorted(numbered, key=lambda tag: (numbered[tag], tag))
            newest = by_age[-kept:]
            is_missing = name in newest and (name not in tags or tags[name].version != version)
            return is_missing, [tag for tag in by_age if tag in tags and tag not in newest]

        def build(loaded: Loaded) -> Any:
            is_missing, outdated = changes(loaded)
            tag = name if is_missing else ""
            return iceberg_calls().tagged(loaded.metadata, tag, version, joined_texts(outdated))

        def done(loaded: Loaded) -> bool:
            return changes(loaded) == (False, [])

        self._set(Step.LAKE_TAG, build, done, ask_first=True)

    def untag(self, name: str) -> None:
        def build(loaded: Loaded) -> Any:
            return self._builder(loaded).removeRef(name).build()

        def done(loaded: Loaded) -> bool:
            return loaded.metadata.ref(name) is None

        self._set(Step.LAKE_TAG, build, done, ask_first=True)

    # -- inside -----------------------------------------------------------------------------------

    def _on_main(
        self,
        step: Step,
        fork: Fork,
        commit_metadata: CommitMetadata,
        produce: Callable[[Loaded], Any],
        rows: int,
    ) -> Committed:
        attempted_versions: list[Version] = []

        def ours(loaded: Loaded) -> Version | None:
            committed = (
                v for v in attempted_versions if in_history(loaded.metadata, loaded.main, v, fork.version)
            )
            return next(committed, None)

        def build(loaded: Loaded) -> Any:
            check_main(self._name, loaded, fork.version, commit_metadata.fence)
            snapshot = produce(loaded)
            attempted_versions.append(Version(str(snapshot.snapshotId())))
            newest = encode(carry_forward(loaded.commit_metadata, commit_metadata))
            return iceberg_calls().updated(loaded.metadata, snapshot, MAIN, COMMIT_METADATA_KEY, newest)

        loaded = self._set(step, build, lambda loaded: ours(loaded) is not None)
        return self._committed(ours(loaded) or attempted_versions[-1], fork.version, rows)

    def _set(
        self,
        step: Step,
        build: Callable[[Loaded], Any],
        done: Callable[[Loaded], bool],
        *,
        ask_first: bool = False,
    ) -> Loaded:
        return compare_and_set(
            self._iceberg,
            self._name,
            self._effects,
            step,
            build=build,
            done=done,
            ask_first=ask_first,
        )

    def _drop_branch(
        self, step: Step, branch: str, check: Callable[[Loaded], None] = lambda _loaded: None
    ) -> None:
        """Remove a branch and its version, then delete the files that this version added. Repeatable.

        Args:
            check: raises an error to stop.
        """
        files: list[str] = []
        versions: list[Version] = []

        def build(loaded: Loaded) -> Any:
            check(loaded)
            snapshot = loaded.metadata.snapshot(loaded.metadata.ref(branch).snapshotId())
            files[:] = own_files(loaded, snapshot)
            versions[:] = loaded.main, Version(str(snapshot.snapshotId()))
            snapshots = self._iceberg.jvm.java.util.ArrayList()
            snapshots.add(snapshot)
            return self._builder(loaded).removeRef(branch).removeSnapshots(snapshots).build()

        def done(loaded: Loaded) -> bool:
            return loaded.metadata.ref(branch) is None

        loaded = self._set(step, build, done, ask_first=True)
        if files and done(loaded):
            # Another commit removed the branch, or the answer to this one was lost. Whoever takes the files
            # over moves main and keeps the version. What is left undeleted here, maintenance deletes.
            main, version = versions
            if loaded.main != main or loaded.metadata.snapshot(int(version)) is not None:
                return
        self._remove(loaded, files, Step.LAKE_DISCARD)

    def _append(self, loaded: Loaded, staged: Sequence[Staged], commit_metadata: CommitMetadata) -> Any:
        # Not `newFastAppend`: it never merges manifests, and a table with a commit per second needs that.
        append = loaded.table.newAppend()
        return self._produce(loaded, append, append.appendFile, staged, commit_metadata)

    def _produce(
        self,
        loaded: Loaded,
        update: Any,
        add: Callable[[Any], Any],
        staged: Sequence[Staged],
        commit_metadata: CommitMetadata,
    ) -> Any:
        """The snapshot of an update: its manifests are written, but it is not committed."""
        for part in staged:
            if part.files:
                check_seal(self._name, loaded, part.at_ms)
            for file in part.files:
                add(file)
        newest = encode(snapshot_metadata(loaded.commit_metadata, commit_metadata))
        try:
            return iceberg_calls().produced(update, COMMIT_METADATA_KEY, newest, MAIN)
        except Py4JError as error:
            raise translate(error, self._name) from error

    def _builder(self, loaded: Loaded) -> Any:
        return self._iceberg.api.TableMetadata.buildFrom(loaded.metadata)

    def _with_commit_metadata(self, builder: Any, newest: CommitMetadata) -> Any:
        return builder.setProperties(self._iceberg.map({COMMIT_METADATA_KEY: encode(newest)}))

    def _committed(self, version: Version, parent: Version | None, rows: int) -> Committed:
        return Committed(table=self._name, version=version, parent=parent, rows_inserted=rows)
