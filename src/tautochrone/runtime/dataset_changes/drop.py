"""Drops datasets that left the project.

    1. survey: who still needs them, and what is theirs in lake, storage and sinks; nothing is written
    2. take over the job that wrote them, so that no run of it is alive
    3. decide, in one transaction of the store: from here on no checkpoint shows them
    4. drop what sinks have of them
    5. per table: take it out of the catalog, delete its files; then delete the folders of their streams
    6. forget them, in one transaction of the store; return the lease

Before 3 nothing happened. After 3 each step may be repeated, and the next `taut drop` does them all. Until 6
no run registers a dataset of that name, so the steps never meet tables of a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.errors import DefinitionError, LakeError, MetaError
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.model import events
from tautochrone.model.dataset_change import DatasetChange, StoredTable
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import TableName
from tautochrone.model.near_names import near_names_hint, table_spellings
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.dataset_changes.mirrors import drop_mirrors, mirrors_of
from tautochrone.runtime.dataset_changes.owned_jobs import OwnedJob, owned
from tautochrone.runtime.dataset_changes.parts import (
    companion_datasets,
    delete_folders,
    folders_of,
    require_known_table,
    require_unread,
    states_of,
)
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.reconcile_store import require_reconciled

__all__ = ["DropPlan", "drop", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPlan:
    """What goes, by dataset in the order of the names, those of one dataset together.

    Attributes:
        changes: one for each dataset.
        decided: the datasets of which the drop was decided before, and not completed.
        parts: everything that goes or is left, for people.
    """

    changes: tuple[DatasetChange, ...]
    decided: frozenset[TableName]
    parts: tuple[events.DropPart, ...]


def survey(job: Job, names: Sequence[str], *, keeps_table: bool = False) -> DropPlan:
    """What a drop of these datasets takes. Writes nothing.

    Args:
        names: as a user types them.
        keeps_table: the tables of the lake stay, as tables of nobody.

    Raises:
        DefinitionError: `DATASET_STILL_DEFINED`, `DATASET_STILL_READ`, by the project.
        MetaError: `DATASET_NOT_FOUND`; as of `Datasets.require_unused`; `DATASET_CHANGE_UNFINISHED`, it is
            being renamed; `META_STORE_NOT_IN_AGREEMENT`.
        LakeError: `TABLE_OF_ANOTHER_PIPELINE`.
    """
    require_reconciled(job)
    pending = {change.dataset: change for change in job.store.datasets.pending_changes()}
    datasets = dict.fromkeys(
        each for name in names for each in _with_companions(job, _dataset_of(job, name, pending), pending)
    )
    fresh = [dataset for dataset in datasets if dataset not in pending]
    for dataset in fresh:
        require_unread(job, dataset, hint="take it out of what reads it, then drop it")
    job.store.datasets.require_unused(fresh, except_job=job.name)
    changes = tuple(
        pending.get(dataset) or _change(job, dataset, keeps_table=keeps_table) for dataset in datasets
    )
    for change in changes:
        if change.renamed_to is not None:
            raise MetaError(
                "DATASET_CHANGE_UNFINISHED",
                f"{change.dataset} is being renamed to {change.renamed_to}, and that is not finished",
                hint=f"`{change.command}` goes on with it",
                sqlstate="55000",
            )
    parts = tuple(part for change in changes for part in _parts(job, change))
    return DropPlan(changes=changes, decided=frozenset(pending.keys() & datasets.keys()), parts=parts)


def drop(job: Job, plan: DropPlan) -> None:
    """Drop what was surveyed. Returns when nothing of it is left.

    Raises:
        MetaError: `JOB_RUNNING`, another process runs a job that wrote one of them; what `survey` raises, for
            somebody may need one by now. Nothing was changed.
    """
    for name in dict.fromkeys(change.job for change in plan.changes):
        changes = tuple(change for change in plan.changes if change.job == name)
        is_fresh = plan.decided.isdisjoint(change.dataset for change in changes)
        tables = [stored.table for change in changes for stored in change.tables]
        with owned(job, name, tables, registers=is_fresh) as owner:
            owner.journal.record(Datasets.decide_changes, changes)
            kept_names = {change.dataset: _carry_out(job, owner, change) for change in changes}
            owner.journal.record(Datasets.complete_changes, [change.dataset for change in changes], {})
        for change in changes:
            job.emit(
                events.DatasetDropped(
                    dataset=str(change.dataset),
                    tables=len(change.tables) - change.keeps_table - len(kept_names[change.dataset]),
                    keeps_table=change.keeps_table,
                    kept_as=[str(name) for name in kept_names[change.dataset]],
                )
            )


def _carry_out(job: Job, owner: OwnedJob, change: DatasetChange) -> list[TableName]:
    """Returns the tables that stay because somebody gave them another name meanwhile."""
    kept_names: list[TableName] = []
    # A publication may name the files of the lake: it goes before them.
    drop_mirrors(job, change.dataset)
    for stored in change.tables:
        # Nothing fences a drop in a catalog, so the owner asks whether it still is one.
        owner.journal.require()
        if change.keeps_table and stored.table == change.dataset:
            if job.lake.exists(stored.table):
                job.lake.release(stored, owner.journal.fence)
            continue
        job.lake.drop(stored)
        kept = job.lake.delete_files(stored)
        if kept is not None:
            kept_names.append(kept)
    folders = folders_of(job, change.dataset)
    if folders:
        owner.journal.require()
        delete_folders(job, change.dataset, folders)
    return kept_names


# -- survey ---------------------------------------------------------------------------------------


def _dataset_of(job: Job, text: str, pending: Mapping[TableName, DatasetChange]) -> TableName:
    """The dataset of this name, which the project must not define unless its drop is decided."""
    parts = tuple(text.split("."))
    name = job.definitions.scope.find(parts)
    defined = job.definitions.dataset_named(parts, job.definitions.scope)
    if defined is not None and defined not in pending:
        raise DefinitionError(
            "DATASET_STILL_DEFINED",
            f"{defined} is a dataset of this project",
            hint="take its definition out of the project first; `taut run --full-refresh` builds it anew",
            location=str(job.definitions.datasets[defined].location),
            sqlstate="55006",
        )
    store = job.store.datasets
    if name is not None and (store.job_of(name) is not None or job.lake.exists(name)):
        return name
    known = [*map(str, store.retired()), *map(str, pending)]
    raise MetaError(
        "DATASET_NOT_FOUND",
        f"Neither the store nor the lake knows {text}",
        hint=near_names_hint(
            text,
            known,
            "these left the project:",
            "no dataset left the project",
            spellings=lambda name: [
                written
                for written in table_spellings(name)
                if str(job.definitions.scope.find(tuple(written.split(".")))) == name
            ],
        ),
    )


def _with_companions(
    job: Job, dataset: TableName, pending: Mapping[TableName, DatasetChange]
) -> list[TableName]:
    """The dataset and those beside it that nobody defined by name and that are not defined any more."""
    known = {*job.store.datasets.retired(), *pending, *_registered(job, dataset)}
    return [dataset, *companion_datasets(dataset, known - job.definitions.datasets.keys())]


def _registered(job: Job, dataset: TableName) -> Iterator[TableName]:
    """What is registered with the dataset's job: the store retires it only when its next run starts."""
    owner = job.store.datasets.job_of(dataset)
    if owner is not None:
        yield from (entry.name for entry in job.store.datasets.registered(owner))


def _change(job: Job, dataset: TableName, *, keeps_table: bool) -> DatasetChange:
    metadata = _commit_metadata(job, dataset)
    owner = job.store.datasets.job_of(dataset)
    pipelines = {status.name: status.pipeline for status in job.store.jobs.states()}
    # Whoever wrote the table that has the name now decides, whatever this store knows of the name.
    pipeline = pipelines.get(owner or "") if metadata is None else metadata.pipeline
    if pipeline != job.spec.name:
        raise LakeError(
            "TABLE_OF_ANOTHER_PIPELINE",
            f"{dataset} is written by {f'pipeline {pipeline}' if pipeline else 'no pipeline'}",
            hint="drop it from the project of that pipeline"
            if pipeline
            else f"DROP TABLE {dataset} drops it",
            sqlstate="42P07",
        )
    if metadata is not None:
        require_known_table(job, dataset)
    return DatasetChange(
        dataset=dataset,
        job=owner or job.name,
        keeps_table=keeps_table and metadata is not None,
        tables=tuple(_tables(job, dataset, metadata)),
    )


def _commit_metadata(job: Job, dataset: TableName) -> CommitMetadata | None:
    """Of the table of this name in the lake, if this pipeline or another one wrote it."""
    return job.lake.load(dataset).fork().commit_metadata if job.lake.exists(dataset) else None


def _tables(job: Job, dataset: TableName, metadata: CommitMetadata | None) -> Iterator[StoredTable]:
    # Without commit metadata somebody else has put a table there, which is theirs.
    if metadata is not None:
        yield job.lake.stored_table(dataset)
    for state in states_of(job.lake, dataset):
        written = _commit_metadata(job, state)
        # A state may be of a table of that name which another pipeline had.
        if written is None or written.pipeline == job.spec.name:
            yield job.lake.stored_table(state)


def _parts(job: Job, change: DatasetChange) -> Iterator[events.DropPart]:
    dataset = str(change.dataset)
    for stored in change.tables:
        is_own = stored.table == change.dataset
        kind = events.DropPartKind.TABLE if is_own else events.DropPartKind.STATE
        stays = is_own and change.keeps_table
        size = job.lake.bytes_of(stored) if job.lake.exists(stored.table) else None
        yield events.DropPart(
            dataset=dataset, kind=kind, name_of_part=str(stored.table), bytes=size, stays=stays
        )
    for folder in folders_of(job, change.dataset):
        yield events.DropPart(dataset=dataset, kind=events.DropPartKind.STREAM_FOLDER, name_of_part=folder)
    for mirror in mirrors_of(job, change.dataset):
        yield events.DropPart(
            dataset=dataset,
            kind=events.DropPartKind.MIRROR,
            name_of_part=f"{mirror.name} of sink {mirror.sink}",
            stays=not mirror.can_drop,
            reason=None if mirror.can_drop else Reason.of(ReasonCode.SINK_CANNOT_DROP),
        )
    yield events.DropPart(
        dataset=dataset, kind=events.DropPartKind.RECORDS, name_of_part="records of the store"
    )
