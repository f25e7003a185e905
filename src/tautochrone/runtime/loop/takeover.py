"""Becoming the owner of a job.

    0. reconcile the store with the lake (`reconcile_store`)
    1. register the topology        2. raise the fence above the store's and all fences in the lake
    3. complete a revision that was decided and not finished
    4. per table: commit prepared batches, add new columns, write the fence; create missing tables and views
    5. report root tables whose newest commit was not reported
    6. store what people read about the datasets

After 4 no batch of an older owner can be committed, because main is no longer its parent. Batches that the
older owner prepared are committed first, without reading their source again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tautochrone.errors import DefinitionError, LakeError
from tautochrone.ingest.committer import settle_quarantine
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import Roots
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.model import events
from tautochrone.model.auto_cdc import keyed_apply_of
from tautochrone.model.definitions import ColumnLineage, ColumnRef, DatasetDetails, DatasetKind, LakeColumn
from tautochrone.model.effects import Step
from tautochrone.model.lake import ChangeKind, Fork, LakeTable
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.redaction import redacted, without_literals
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.reconcile_store import reconcile_store, record_table_ids
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.runtime.loop.invariants import invariant_entries
from tautochrone.runtime.refresh.states import states_among
from tautochrone.runtime.revision.revise import complete_pending
from tautochrone.runtime.streams.streams import Streams
from tautochrone.sources.capture.set_aside import aside_reason
from tautochrone.spark.analysis.column_lineage import column_lineage

__all__ = [
    "become_owner",
    "clear_table",
    "require_own_table",
    "retired_datasets",
    "set_aside_reason",
    "settle_prepared",
    "take_over",
]


def take_over(
    job: Job, full: frozenset[TableName] = frozenset(), owned: Callable[[], None] = lambda: None
) -> None:
    """Take the job over; see the module docstring. Every step may be repeated.

    Args:
        full: datasets that a full refresh will rebuild.
        owned: called once this run owns the job; the steps after it may take longer than a lease.

    Raises:
        MetaError: `JOB_RUNNING`, another run has the job; nothing was written.
        LakeError: a table of that name belongs to another pipeline or to none; `LAKE_BEHIND_STORE`.
        DefinitionError: a streaming table's new columns do not fit those that it has, and it is no
            captured one.
    """
    existing = {table: job.lake.load(table) for table in job.graph.order if job.lake.exists(table)}
    fence_in_lake = max(
        _highest_fence(job.spec.name, job.definitions, existing),
        _highest_fence_of_states(job, existing),
        Streams(job).highest_fence(),
    )
    # The store must not be repaired while another run writes to it.
    job.ownership.require_free(job.store, job.name, job.emit)
    reconcile_store(job, existing, full)
    become_owner(job, fence_in_lake)
    owned()
    job.on_owned()
    complete_pending(job, job.journal.fence)
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        for table in existing.values():
            job.tables[table.name] = table
        # A table's commit decides which bad records count, so it is settled before its quarantine table.
        quarantines = [
            table for table in existing.values() if job.definitions.datasets[table.name].bad_records_of
        ]
        list(
            pool.map(
                lambda table: _settle_table(job, table, full),
                [t for t in existing.values() if t not in quarantines],
            )
        )
        list(pool.map(lambda table: _settle_quarantine(job, table), quarantines))
    if missing := [name for name in job.graph.order if name not in existing]:
        # The store must forget the id of a dropped table before its successor is created.
        record_table_ids(job.journal, job.tables, job.settings.parallelism)
    for name in missing:
        job.tables[name] = job.lake.create(job.topology.table_definition(name), job.commit_metadata())
    record_table_ids(job.journal, job.tables, job.settings.parallelism)
    _persist_views(job)
    _report_roots(job.journal, {name: job.tables[name] for name in job.topology.root_tables})
    _record_details(job.topology, job.journal)
    job.emit(events.Takeover(job=job.name, fence=int(job.journal.fence)))


def become_owner(job: Job, fence_in_lake: Fence) -> None:
    """Register the topology and raise the job's fence above the store's and the highest in the lake.

    Raises:
        MetaError: `JOB_RUNNING`, another run has the job; nothing was written.
    """
    store, datasets = job.store, _dataset_entries(job.topology)
    retired = retired_datasets(job)
    job.effects.perform(
        Step.META_START,
        job.name,
        lambda: job.ownership.claim_when_free(
            store,
            job.name,
            job.emit,
            lambda claim: store.jobs.start_run(
                job.spec.name,
                job.name,
                datasets,
                invariants=invariant_entries(job.graph.invariants),
                claim=claim,
                lease_ms=job.settings.lease_ms,
                lake=job.lake_id,
            ),
        ),
    )
    job.journal.fence = job.effects.perform(
        Step.META_TAKE_OVER,
        job.name,
        lambda: store.jobs.take_over(
            job.name,
            at_least=fence_in_lake,
            lease_ms=job.settings.lease_ms,
            ingests=[table for table in job.graph.order if job.topology.ingestion_flows(table)],
            claim=job.ownership.claim(store, job.name),
        ),
    )
    job.journal.incarnation = store.incarnation
    if retired:
        job.emit(events.DatasetsRetired(datasets=[str(name) for name in retired]))


def retired_datasets(job: Job) -> list[TableName]:
    """The datasets that the job registered and no longer defines."""
    registered = {entry.name for entry in job.store.datasets.registered(job.name)}
    return sorted(registered - {*job.graph.order})


def _dataset_entries(topology: JobTopology) -> list[DatasetEntry]:
    roots = set(topology.root_tables)
    return [
        DatasetEntry(
            table,
            str(topology.definitions.datasets[table].kind),
            topology.fingerprint(table),
            topology.inputs(table),
            is_root=table in roots,
        )
        for table in topology.graph.order
    ]


def clear_table(job: Job, name: TableName) -> None:
    """Empty a streaming table for a full refresh: its rows and positions go in one commit.

    Readers see the old rows until the next checkpoint is published. Views are left to their refresh.
    """
    if job.topology.is_view(name):
        return
    table = job.tables[name]
    # The table is replaced, so that its history starts here: a stream that reads it from the beginning
    # must get the new rows only.
    no_rows = job.base.createDataFrame([], job.graph.schemas[name])
    commit = table.redefine(
        table.fork(), job.topology.table_definition(name), no_rows, job.commit_metadata(reset=True)
    )
    if name in job.topology.root_tables:
        job.journal.record(Roots.report, {name: commit.version})
    job.emit(
        events.FullRefresh(
            dataset=str(name),
            invalidates=[str(reader) for reader in job.graph.downstream(name)],
            reason=Reason.of(ReasonCode.ROWS_AND_POSITIONS_DROPPED),
        )
    )


def _persist_views(job: Job) -> None:
    """Write the project's persisted views to the catalog, for readers."""
    for name, dataset in job.definitions.datasets.items():
        if dataset.kind is not DatasetKind.VIEW:
            continue
        (resolved,) = job.graph.flows_of(name)
        query = resolved.flow.query.view_text()
        if query is None or not job.lake.put_view_if_supported(
            name, query, resolved.schema, resolved.fingerprint
        ):
            job.emit(
                events.ViewNotPersisted(
                    dataset=str(name),
                    reason=Reason.of(ReasonCode.CATALOG_WITHOUT_VIEWS),
                )
            )


def _highest_fence(pipeline: str, definitions: Definitions, existing: Mapping[TableName, LakeTable]) -> Fence:
    highest = Fence(0)
    for name, table in existing.items():
        fork = table.fork()
        require_own_table(pipeline, fork, str(definitions.datasets[name].location))
        highest = max(highest, fork.fence)
    return highest


def _highest_fence_of_states(job: Job, existing: Collection[TableName]) -> Fence:
    """Of states whose tables were dropped beside them: the first build writes to them again.

    A table that exists has the fence of its states itself, so the lake is listed for missing tables only.
    """
    missing = [name for name in job.topology.derived_tables if name not in existing]
    tables: Sequence[TableName] = ()
    if missing:
        # Where nothing may be listed, a state that was left refuses the build.
        with suppress(LakeError):
            tables = job.lake.tables()
    left = states_among(tables, missing)
    return max((job.lake.load(table).fork().fence for table in left), default=Fence(0))


def require_own_table(pipeline: str, fork: Fork, location: str) -> None:
    """Refuse a table that this pipeline did not write.

    Args:
        fork: of the table.
        location: where its dataset is defined.

    Raises:
        LakeError: `TABLE_ALREADY_EXISTS`, `TABLE_OF_ANOTHER_PIPELINE`.
    """
    if fork.commit_metadata is None:
        raise LakeError(
            "TABLE_ALREADY_EXISTS",
            f"{fork.table} exists and was not written by a Tautochrone pipeline",
            hint="rename the dataset, rename or drop the table, or take it over with `taut adopt`",
            location=location,
            sqlstate="42P07",
        )
    if fork.commit_metadata.pipeline != pipeline:
        raise LakeError(
            "TABLE_OF_ANOTHER_PIPELINE",
            f"{fork.table} is written by pipeline {fork.commit_metadata.pipeline}",
            hint="one dataset has one producing pipeline; if this one was renamed: "
            f"`taut adopt --from-pipeline {fork.commit_metadata.pipeline}`",
            location=location,
            sqlstate="42P07",
        )


def settle_prepared(table: LakeTable, fence: Fence, emit: events.Emit) -> None:
    """Commit the batches that an older owner prepared, or abort them. Repeatable."""
    for prepared in table.prepared():
        if prepared.parent == table.current_version():
            table.commit(prepared, fence)
            emit(
                events.Recommit(
                    dataset=str(table.name),
                    rows=prepared.rows,
                    fence=int(prepared.commit_metadata.fence),
                )
            )
        else:
            table.abort(prepared)
            emit(
                events.Abort(
                    dataset=str(table.name),
                    rows=prepared.rows,
                    reason=Reason.of(ReasonCode.PREPARED_ON_OLDER_VERSION),
                )
            )


def _settle_table(job: Job, table: LakeTable, full: frozenset[TableName]) -> None:
    """Commit or abort prepared batches, add new columns, then write the fence."""
    settle_prepared(table, job.journal.fence, job.emit)
    if not job.topology.is_view(table.name) and table.name not in full:
        added = _with_new_columns(job, table)
        if added:
            reason = Reason.of(ReasonCode.COLUMNS_IN_DEFINITION)
            job.emit(events.ColumnsAdded(dataset=str(table.name), columns=list(added), reason=reason))
        _report_kept_columns(job, table.name)
    table.raise_fence(table.fork(), job.commit_metadata())


def _with_new_columns(job: Job, table: LakeTable) -> Sequence[str]:
    """Give the table the columns that it lacks; a captured table that cannot take them is set aside.

    Raises:
        DefinitionError: `INCOMPATIBLE_SCHEMA_CHANGE`, of a table whose columns the project decides.
    """
    try:
        return table.widen(table.fork(), job.graph.schemas[table.name], job.commit_metadata())
    except DefinitionError as error:
        relation, reason = set_aside_reason(job.topology, table.name, error)
        job.set_aside[table.name] = reason
        dataset_name = str(table.name)
        job.emit(
            events.TableSetAside(flow=dataset_name, dataset=dataset_name, relation=relation, reason=reason)
        )
        return ()


def set_aside_reason(topology: JobTopology, name: TableName, error: DefinitionError) -> tuple[str, Reason]:
    """The relation of a captured table that cannot take its new columns, and why it is set aside.

    Raises:
        DefinitionError: `error` itself, of a table whose columns the project decides.
    """
    dataset = topology.definitions.datasets[name]
    apply = keyed_apply_of(dataset.properties, str(dataset.location))
    if apply is None or apply.relation is None:
        raise error
    return apply.relation, aside_reason(apply.relation, error)


def _report_kept_columns(job: Job, name: TableName) -> None:
    dataset = job.definitions.datasets[name]
    apply = keyed_apply_of(dataset.properties, str(dataset.location))
    if apply is not None and (apply.ignored or apply.absent):
        job.emit(
            events.ColumnsIgnored(
                dataset=str(name),
                columns=list(apply.ignored),
                absent=list(apply.absent),
                reason=Reason.of(ReasonCode.TABLE_KEEPS_COLUMNS),
            )
        )


def _settle_quarantine(job: Job, table: LakeTable) -> None:
    """Commit the bad records that the main table's commit names, then write the fence.

    A full refresh may have died behind the main table. All records come again then, and the bad ones too.
    """
    main = job.definitions.datasets[table.name].bad_records_of
    if main in job.tables:
        settle_quarantine(job.tables[main], table, job.journal.fence, job.emit)
    fork = table.fork()
    table.raise_fence(fork, job.commit_metadata())
    if main in job.tables and _has_positions(fork) and not _has_positions(job.tables[main].fork()):
        clear_table(job, table.name)


def _has_positions(fork: Fork) -> bool:
    return fork.commit_metadata is not None and bool(fork.commit_metadata.positions)


def _report_roots(journal: Journal, roots: Mapping[TableName, LakeTable]) -> None:
    """Report versions that a crash left unreported between commit and report; no cut would take them."""
    reported = journal.store.roots.reported(journal.name)
    for name, table in roots.items():
        current = table.current_version()
        last = reported.get(name)
        if last is None or table.change_between(last, current).kind is not ChangeKind.NONE:
            journal.record(Roots.report, {name: current})


def _record_details(topology: JobTopology, journal: Journal) -> None:
    """Store definitions, columns and column lineage of the job's tables that changed. Only people read them.

    Lineage needs each flow's plan, so it is computed once per definition; the store keeps the definition's
    fingerprint with it.
    """
    stored = journal.store.datasets.details_of_job(journal.name)
    current = [_details(topology, table, stored.get(table)) for table in topology.graph.order]
    changed = [details for details in current if stored.get(details.dataset) != details]
    if changed:
        journal.record(Datasets.describe, changed)


def _details(topology: JobTopology, table: TableName, stored: DatasetDetails | None) -> DatasetDetails:
    dataset, flows, definition = (
        topology.definitions.datasets[table],
        topology.flows(table),
        topology.fingerprint(table),
    )
    same = stored is not None and stored.definition == definition
    return DatasetDetails(
        dataset=table,
        definition=definition,
        location=str(dataset.location),
        text="\n\n".join(without_literals(flow.flow.query.written) for flow in flows),
        columns=tuple(
            LakeColumn(field.name, field.dataType.simpleString(), field.metadata.get("comment"))
            for field in topology.graph.schemas[table].fields
        ),
        lineage=stored.lineage if same and stored else _lineage(topology.graph, table, flows),
    )


def _lineage(graph: Graph, table: TableName, flows: Iterable[ResolvedFlow]) -> ColumnLineage:
    """The lineage of all flows of a table together, with the table's spelling of its columns."""
    columns = {field.name.lower(): field.name for field in graph.schemas[table].fields}
    values: dict[str, frozenset[ColumnRef]] = {name: frozenset() for name in columns.values()}
    rows = frozenset[ColumnRef]()
    assert graph.analysis_session is not None
    for flow in flows:
        try:
            lineage = column_lineage(flow.flow.evaluate(graph.analysis_session), table.catalog)
        except DefinitionError as error:
            # Not repeatable, for the flow was evaluated before; missing lineage must not fail a run.
            lineage = ColumnLineage(problem=error.message)
        if lineage.problem is not None:
            return ColumnLineage(problem=redacted(lineage.problem))
        for name, origin in lineage.values.items():
            if name.lower() in columns:
                values[columns[name.lower()]] |= origin
        rows |= lineage.rows
    return ColumnLineage(values=values, rows=rows)
