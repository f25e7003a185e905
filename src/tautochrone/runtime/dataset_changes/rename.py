"""Lets a dataset go on under the new name that its definition has: nothing is read or computed again.

    1. survey: OLD is not defined any more, NEW is, and has no table yet; nothing is written
    2. take over the jobs that write it and that read it, so that no run of them is alive
    3. commit or abort the batches that they prepared, which name tables and flows as they are called now;
       decide, in one transaction of the store: until 7 no run of the job begins
    4. give the table and its states in the catalog their new names
    5. per table that names the old ones in its commit metadata: one commit that names the new ones. A query
       in which only names changed is not computed anew
    6. give the folders of its streams the new names, and what sinks have of it
    7. rename everything in the store, in one transaction; return the leases

Before 3 nothing happened. After 3 each step may be repeated, and the next `taut rename` does them all.
Between 4 and 7 readers are told that the table is not there. Older checkpoints show it under its new name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from tautochrone.errors import DefinitionError, LakeError, MetaError
from tautochrone.ingest.checkpoint_folder import Files
from tautochrone.ingest.committer import settle_quarantine
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.model import events
from tautochrone.model.dataset_change import DatasetChange, StoredTable, other_change_error
from tautochrone.model.effects import Step
from tautochrone.model.former_names import renamed
from tautochrone.model.names import TableName
from tautochrone.model.near_names import near_names_hint
from tautochrone.model.source import quarantine_of
from tautochrone.project.graph import Graph
from tautochrone.runtime.dataset_changes.mirrors import mirrors_of, rename_mirrors, require_free_in_sinks
from tautochrone.runtime.dataset_changes.owned_jobs import owned
from tautochrone.runtime.dataset_changes.parts import (
    companion_datasets,
    delete_folders,
    folders_of,
    require_known_table,
    require_unread,
    states_of,
)
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.reconcile_store import require_reconciled
from tautochrone.runtime.loop.takeover import settle_prepared
from tautochrone.runtime.refresh.states import STATE_NAMESPACE, state_prefix, states_among
from tautochrone.runtime.streams.streams import folders_of_streams

__all__ = ["RenamePlan", "rename", "survey"]

GraphsOfRename = Callable[[Mapping[TableName, TableName]], tuple[Graph, Graph]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamePlan:
    """What is renamed.

    Attributes:
        changes: of the dataset first, then of those beside it.
        tables: by name all tables of the lake that get another one, states included.
        flows: likewise flows that are called after their table.
        readers: tables of the project that read it, each with its job.
        others: who else reads it, and has to be changed by hand.
        left: sinks that cannot rename what they have: they get all rows under the new name.
        fingerprints: by table of the project its definition as it was if only names changed, and as it is.
    """

    changes: tuple[DatasetChange, ...]
    tables: Mapping[TableName, TableName]
    flows: Mapping[str, str]
    readers: Mapping[TableName, str]
    others: tuple[str, ...]
    left: tuple[str, ...]
    fingerprints: Mapping[TableName, tuple[str, str]]

    @property
    def names(self) -> dict[str, str]:
        """The new names of tables and flows by the old ones."""
        return {str(old): str(new) for old, new in self.tables.items()} | {**self.flows}


def survey(job: Job, old_text: str, new_text: str, graphs: GraphsOfRename) -> RenamePlan:
    """What a rename does. Writes nothing.

    Args:
        graphs: see `app.open.Project.graphs_of_rename`.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`, the project defines no such table; `DATASET_STILL_DEFINED`;
            `DATASET_STILL_READ`, the project reads the old name.
        MetaError: `DATASET_NOT_FOUND`, there is no such table; `DATASET_CHANGE_UNFINISHED`, it is being
            dropped, or gets a third name; `DATASET_OWNED_BY_ANOTHER_JOB`; `RENAME_TARGET_EXISTS`.
        LakeError: `TABLE_OF_ANOTHER_PIPELINE`; `CATALOG_CANNOT_RENAME`; `RENAME_TARGET_EXISTS`.
        SinkError: `RENAME_TARGET_EXISTS`; a sink does not answer.
    """
    require_reconciled(job)
    job.lake.require_renaming()
    old, new = _names(job, old_text, new_text)
    pending = {change.dataset: change for change in job.store.datasets.pending_changes()}
    datasets = _with_companions(job, old, new, pending)
    if old in pending:
        if pending[old].renamed_to != new:
            raise other_change_error(pending[old])
    else:
        _require_movable(job, old, new)
        for before, after in datasets.items():
            require_unread(job, before, hint=f"let it read {after}, then rename")
            require_free_in_sinks(job, before, after)
    changes = tuple(
        pending.get(before) or _change(job, before, after, old) for before, after in datasets.items()
    )
    before_graph, graph = graphs(datasets)
    tables = dict(datasets)
    for before, after in datasets.items():
        tables |= _states(job, before, after)
    return RenamePlan(
        changes=changes,
        tables=tables,
        flows=_flows(graph, old, new),
        readers=_readers(job, graph, datasets),
        others=job.store.datasets.readers(old, except_job=changes[0].job),
        left=tuple(mirror.sink for mirror in mirrors_of(job, old) if not mirror.can_rename),
        fingerprints={
            name: (_fingerprint(before_graph, name), _fingerprint(graph, name)) for name in graph.order
        },
    )


def rename(job: Job, plan: RenamePlan) -> None:
    """Rename what was surveyed. Returns when all of it is done.

    Raises:
        MetaError: `JOB_RUNNING`, another process runs a job that writes or reads it; nothing was changed.
    """
    owner = plan.changes[0].job
    own_tables = [*plan.tables, *plan.tables.values()]
    with ExitStack() as stack:
        journals = {
            name: stack.enter_context(owned(job, name, tables, registers=False)).journal
            for name, tables in _tables_by_job(plan, owner, own_tables).items()
        }
        _settle(job, plan, journals)
        journals[owner].record(Datasets.decide_changes, plan.changes)
        _carry_out(job, plan, journals)
        datasets = [change.dataset for change in plan.changes]
        journals[owner].record(Datasets.complete_changes, datasets, plan.flows)
    job.emit(
        events.DatasetRenamed(
            dataset=str(plan.changes[0].renamed_to),
            before=str(plan.changes[0].dataset),
            tables=len(plan.tables),
            readers=[str(reader) for reader in plan.readers],
            others=list(plan.others),
            sinks_with_both=list(plan.left),
        )
    )


# -- survey ---------------------------------------------------------------------------------------


def _names(job: Job, old_text: str, new_text: str) -> tuple[TableName, TableName]:
    scope = job.definitions.scope
    new = job.definitions.dataset_named(tuple(new_text.split(".")), scope)
    if new is None or new not in (*job.graph.order, *job.topology.sibling_tables):
        raise DefinitionError(
            "DATASET_NOT_FOUND",
            f"No table of this project is called {new_text}",
            hint="give the definition its new name first, then rename; "
            + near_names_hint(
                new_text, job.graph.order, "its tables are", spellings=job.definitions.spellings
            ),
            sqlstate="42P01",
        )
    old = scope.find(tuple(old_text.split(".")))
    if old is None or old in job.definitions.datasets:
        location = None if old is None else str(job.definitions.datasets[old].location)
        raise DefinitionError(
            "DATASET_STILL_DEFINED",
            f"{old or old_text} is a dataset of this project, so its table cannot become that of {new}",
            hint="the definition gets its new name first, and the old one is not defined any more",
            location=location,
            sqlstate="55006",
        )
    return old, new


def _require_movable(job: Job, old: TableName, new: TableName) -> None:
    """Refuse a table that is not this pipeline's, or whose new name is not free."""
    metadata = job.lake.load(old).fork().commit_metadata if job.lake.exists(old) else None
    owner = job.store.datasets.job_of(old)
    if metadata is None:
        raise MetaError(
            "DATASET_NOT_FOUND",
            f"The lake has no table {old} of a pipeline",
            hint=near_names_hint(
                str(old),
                job.store.datasets.retired(),
                "these left the project:",
                "no dataset left the project",
            ),
        )
    if metadata.pipeline != job.spec.name:
        raise LakeError(
            "TABLE_OF_ANOTHER_PIPELINE",
            f"{old} is written by pipeline {metadata.pipeline}",
            hint="rename it in the project of that pipeline",
            sqlstate="42P07",
        )
    require_known_table(job, old)
    if owner is not None and (owner != job.name or new not in job.graph.order):
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"{old} was written by job {owner}, and {new} belongs to another one",
            hint=f"leave {new} to that job, and name it: `--job {owner}`",
            sqlstate="42P07",
        )
    if job.lake.exists(new):
        raise LakeError(
            "RENAME_TARGET_EXISTS",
            f"The lake has a table {new} already, so {old} cannot get its name",
            hint=f"where a run built {new} anew: keep it and `taut drop` {old}; or take {new} out of the "
            "project, `taut drop` it, define it again, and rename before the next run",
            sqlstate="42P07",
            location=str(job.definitions.datasets[new].location),
        )


def _with_companions(
    job: Job, old: TableName, new: TableName, pending: Mapping[TableName, DatasetChange]
) -> dict[TableName, TableName]:
    """The dataset and those beside it with their new names."""
    owner = job.store.datasets.job_of(old)
    registered = () if owner is None else job.store.datasets.registered(owner)
    known = {*job.store.datasets.retired(), *pending, *(entry.name for entry in registered)}
    datasets = {old: new}
    for each in companion_datasets(old, known - job.definitions.datasets.keys()):
        datasets[each] = replace(new, table=new.table + each.table.removeprefix(old.table))
    return datasets


def _change(job: Job, before: TableName, after: TableName, old: TableName) -> DatasetChange:
    tables = [*states_of(job.lake, before), *([before] if job.lake.exists(before) else [])]
    return DatasetChange(
        dataset=before,
        job=job.store.datasets.job_of(old) or job.name,
        renamed_to=after,
        # Its own table last: what is renamed already finds its states.
        tables=tuple(map(job.lake.stored_table, tables)),
    )


def _states(job: Job, before: TableName, after: TableName) -> dict[TableName, TableName]:
    """The states with their new names, also those that have them already."""
    old_prefix, new_prefix = state_prefix(before), state_prefix(after)
    numbers = {state.table.removeprefix(old_prefix) for state in states_of(job.lake, before)}
    numbers |= {state.table.removeprefix(new_prefix) for state in states_of(job.lake, after)}
    some = [*states_of(job.lake, before), *states_of(job.lake, after)]
    return {
        replace(some[0], table=f"{old_prefix}{number}"): replace(some[0], table=f"{new_prefix}{number}")
        for number in numbers
    }


def _flows(graph: Graph, old: TableName, new: TableName) -> dict[str, str]:
    """By the name that a flow would have if it were called after `old` the one that it has after `new`."""
    flows: dict[str, str] = {}
    for after in (new.table, new.without_catalog):
        for name in graph.flows:
            if name == after or name.startswith(f"{after}__"):
                for before in (old.table, old.without_catalog):
                    flows[before + name.removeprefix(after)] = name
    return flows


def _readers(job: Job, graph: Graph, datasets: Mapping[TableName, TableName]) -> dict[TableName, str]:
    """The tables of the project that read one of the datasets and exist, with their jobs."""
    new_names = {*datasets.values()}
    tables = [
        name for name in (*job.graph.order, *sorted(job.topology.sibling_tables)) if name not in new_names
    ]
    return {
        name: job.store.datasets.job_of(name) or job.name
        for name in tables
        if new_names & graph.inputs(name).tables and job.lake.exists(name)
    }


def _fingerprint(graph: Graph, name: TableName) -> str:
    return "+".join(sorted(flow.fingerprint for flow in graph.flows_of(name)))


# -- carry out ------------------------------------------------------------------------------------


def _tables_by_job(plan: RenamePlan, owner: str, own: Iterable[TableName]) -> dict[str, list[TableName]]:
    tables = {owner: [*own]}
    for reader, name in plan.readers.items():
        tables.setdefault(name, []).append(reader)
    return tables


def _carry_out(job: Job, plan: RenamePlan, journals: Mapping[str, Journal]) -> None:
    journal = journals[plan.changes[0].job]
    for change in plan.changes:
        if _has_old_name(job, change):
            _clear_folders(job, change, journal)
    for stored in (stored for change in plan.changes for stored in change.tables):
        journal.require()
        _rename_table(job, stored, plan.tables.get(stored.table) or _renamed_state(stored.table, plan))
    for change in plan.changes:
        assert change.renamed_to is not None
        _rewrite(job, change.renamed_to, plan, plan.names, journal)
    tables = {str(old): str(new) for old, new in plan.tables.items()}
    for reader, name in plan.readers.items():
        _rewrite(job, reader, plan, tables, journals[name])
    for change in plan.changes:
        _move_folders(job, change, plan.flows, journal)
        assert change.renamed_to is not None
        rename_mirrors(job, change.dataset, change.renamed_to)


def _has_old_name(job: Job, change: DatasetChange) -> bool:
    """Whether the dataset's own table is not renamed yet; another table may have its name by now."""
    own = next((stored for stored in change.tables if stored.table == change.dataset), None)
    if own is None or not job.lake.exists(own.table):
        return False
    return job.lake.stored_table(own.table).identity == own.identity


def _settle(job: Job, plan: RenamePlan, journals: Mapping[str, Journal]) -> None:
    """Settle what was prepared and not committed. Repeatable: what has its new name already was settled."""
    fence = journals[plan.changes[0].job].fence
    existing = {
        change.dataset: job.lake.load(change.dataset) for change in plan.changes if _has_old_name(job, change)
    }
    main_tables = {quarantine_of(name): table for name, table in existing.items()}
    for name, table in existing.items():
        # Those of bad records come after their table, whose commit decides which of these count.
        if name in main_tables:
            settle_quarantine(main_tables[name], table, fence, job.emit)
        else:
            settle_prepared(table, fence, job.emit)
        table.raise_fence(table.fork(), replace(job.commit_metadata(), fence=fence))
    for reader, reader_job in plan.readers.items():
        settle_prepared(job.lake.load(reader), journals[reader_job].fence, job.emit)


def _renamed_state(state: TableName, plan: RenamePlan) -> TableName:
    """The new name of a state that has it already."""
    for change in plan.changes:
        assert change.renamed_to is not None
        if states_among([state], [change.dataset]):
            prefix = state_prefix(change.dataset)
            return replace(state, table=state_prefix(change.renamed_to) + state.table.removeprefix(prefix))
    raise LookupError(str(state))


def _rename_table(job: Job, stored: StoredTable, new: TableName) -> None:
    if new.namespace == STATE_NAMESPACE and job.lake.exists(new):
        leftover = job.lake.stored_table(new)
        if leftover.identity != stored.identity:
            # A state of a table that had the new name once: nobody reads it.
            job.lake.drop(leftover)
            job.lake.delete_files(leftover)
    job.lake.rename(stored, new)


def _rewrite(job: Job, name: TableName, plan: RenamePlan, names: Mapping[str, str], journal: Journal) -> None:
    """One commit by which the table's commit metadata names tables and flows as they are called now."""
    if not job.lake.exists(name):
        return
    table = job.lake.load(name)
    fork = table.fork()
    metadata = fork.commit_metadata
    if metadata is None:
        return
    named = renamed(metadata, names)
    before, now = plan.fingerprints.get(name, ("", ""))
    if metadata.definition is not None and metadata.definition == before:
        named = replace(named, definition=now)
    if named != metadata:
        # A reset replaces all that the older commit metadata says.
        table.commit_metadata_only(fork, replace(named, fence=journal.fence, reset=True))


def _clear_folders(job: Job, change: DatasetChange, journal: Journal) -> None:
    """Delete folders that streams into a former table of the new name left. None is moved yet."""
    assert change.renamed_to is not None
    left = folders_of(job, change.renamed_to)
    if left:
        journal.require()
        delete_folders(job, change.renamed_to, left)


def _move_folders(job: Job, change: DatasetChange, flows: Mapping[str, str], journal: Journal) -> None:
    """Streams find their plans and their state under the new name."""
    assert change.renamed_to is not None
    files, root = Files(job.base), job.settings.storage_root
    pairs = zip(
        folders_of_streams(root, change.dataset), folders_of_streams(root, change.renamed_to), strict=True
    )
    for before, after in pairs:
        folders = [(before, after), *((f"{after}/{old}", f"{after}/{new}") for old, new in flows.items())]
        journal.require()
        job.effects.perform(Step.INGEST_RENAME, str(change.dataset), partial(_move_all, files, folders))


def _move_all(files: Files, folders: Iterable[tuple[str, str]]) -> None:
    for before, after in folders:
        if before != after:
            files.move(before, after)
