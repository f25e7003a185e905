"""Becoming the owner of a job.

    0. hold the store against the lake (`store_check`): fill an empty one, bring an older copy into agreement
    1. register the topology        2. raise the fence, above the store's and above any in the lake
    3. carry out a revision that somebody decided and did not finish
    4. per table: commit what was prepared, add new columns, fence main; create missing tables, views
    5. report roots that moved unreported
    6. tell the store what people want to read about the datasets

After 4 nothing that an older owner prepared can land: main is no longer its parent. What it prepared
and could not commit is committed by us first, without reading its source again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tautochrone.errors import LakeError
from tautochrone.ingest.committer import settle_quarantine
from tautochrone.meta.jobs import DatasetEntry
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.effects import Step
from tautochrone.model.lake import ChangeKind, LakeTable
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.ownership.describe import describe
from tautochrone.runtime.ownership.store_check import check_store, identify_tables
from tautochrone.runtime.refresh.check_invariants import entries
from tautochrone.runtime.revision.revise import complete_pending
from tautochrone.runtime.streams.streams import highest_fence

__all__ = ["become_owner", "clear", "take_over"]


def take_over(
    job: Job, full: frozenset[TableName] = frozenset(), owned: Callable[[], None] = lambda: None
) -> None:
    """See the module docstring; every step may be repeated. `full` are datasets that will be rebuilt.
    `owned` is called as soon as the job is ours: what follows may take longer than a lease.

    Raises:
        MetaError: `JOB_RUNNING`, another run has the job; nothing was written.
        LakeError: a table of that name belongs to somebody else; `LAKE_BEHIND_STORE`.
        DefinitionError: a streaming table's new columns do not fit those that it has.
    """
    existing = {table: job.lake.load(table) for table in job.graph.order if job.lake.exists(table)}
    seen = max(_highest_fence(job, existing), highest_fence(job))
    # A store under which another run is at work is left as it is.
    job.ownership.require_free(job.store, job.name, job.emit)
    check_store(job, existing, full)
    become_owner(job, seen)
    owned()
    complete_pending(job, job.journal.fence)
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        for table in existing.values():
            job.tables[table.name] = table
        # A table's commit decides which bad records count, so it is settled before its quarantine table.
        quarantines = [table for table in existing.values() if _dataset(job, table.name).bad_records_of]
        list(
            pool.map(
                lambda table: _settle(job, table, full),
                [t for t in existing.values() if t not in quarantines],
            )
        )
        list(pool.map(lambda table: _settle_quarantine(job, table), quarantines))
    if missing := [name for name in job.graph.order if name not in existing]:
        # What the store knew of a table that is gone must not be held against the new one.
        identify_tables(job)
    for name in missing:
        job.tables[name] = job.lake.create(job.topology.table_definition(name), job.commit_metadata())
    identify_tables(job)
    _keep_views(job)
    _report_roots(job)
    describe(job)
    job.emit("takeover", job=job.name, fence=int(job.journal.fence))


def become_owner(job: Job, seen: Fence) -> None:
    """Register the topology and raise the job's fence above the store's and `seen`, the lake's highest.

    Raises:
        MetaError: `JOB_RUNNING`, another run has the job; nothing was written.
    """
    roots = set(job.topology.root_tables)
    datasets = [
        DatasetEntry(
            table,
            str(job.definitions.datasets[table].kind),
            job.topology.fingerprint(table),
            job.topology.inputs(table),
            is_root=table in roots,
        )
        for table in job.graph.order
    ]
    store = job.store
    job.effects.perform(
        Step.META_START,
        job.name,
        lambda: job.ownership.claimed(
            store,
            job.name,
            job.emit,
            lambda claim: store.start_run(
                job.spec.name,
                job.name,
                datasets,
                invariants=entries(job),
                claim=claim,
                lease_ms=job.settings.lease_ms,
                lake=job.lake_id,
            ),
        ),
    )
    job.journal.fence = job.effects.perform(
        Step.META_TAKE_OVER,
        job.name,
        lambda: store.take_over(
            job.name,
            at_least=seen,
            lease_ms=job.settings.lease_ms,
            ingests=[table for table in job.graph.order if job.topology.ingestion_flows(table)],
            claim=job.ownership.claim(store, job.name),
        ),
    )
    job.journal.incarnation = store.incarnation


def clear(job: Job, name: TableName) -> None:
    """Empty a streaming table for a full refresh: rows and positions in one commit. Readers keep the
    old rows until the next checkpoint is published. Views are replaced by their refresh instead."""
    if job.topology.is_view(name):
        return
    table = job.tables[name]
    # A replaced table, not deleted rows: its history starts anew, so that a stream that reads it from the
    # beginning meets the new rows only.
    nothing = job.base.createDataFrame([], job.graph.schemas[name])
    done = table.redefine(
        table.fork(), job.topology.table_definition(name), nothing, job.commit_metadata(reset=True)
    )
    if name in job.topology.root_tables:
        job.journal.report({name: done.version})
    job.emit(
        "full_refresh",
        dataset=str(name),
        invalidates=[str(reader) for reader in job.graph.downstream(name)],
        reason="its rows and positions were dropped; streaming tables that read it need one too",
    )


def _keep_views(job: Job) -> None:
    """Persisted views of the project stand in the catalog, where readers find them."""
    for name, dataset in job.definitions.datasets.items():
        if dataset.kind is not DatasetKind.VIEW:
            continue
        (resolved,) = job.graph.flows_of(name)
        query = resolved.flow.query.view_text(job.base)
        if query is None or not job.lake.keep_view(name, query, resolved.schema, resolved.fingerprint):
            job.emit(
                "view_not_persisted",
                dataset=str(name),
                reason="the catalog keeps no views; the pipeline's own queries see it all the same",
            )


def _highest_fence(job: Job, existing: dict[TableName, LakeTable]) -> Fence:
    highest = Fence(0)
    for name, table in existing.items():
        fork = table.fork()
        if fork.commit_metadata is None:
            raise LakeError(
                "TABLE_ALREADY_EXISTS",
                f"{name} exists and was not written by a pipeline of ours",
                hint="rename the dataset, move the table away, or take it over as it is with `taut adopt`",
                location=str(job.definitions.datasets[name].location),
                sqlstate="42P07",
            )
        if fork.commit_metadata.pipeline != job.spec.name:
            raise LakeError(
                "TABLE_OF_ANOTHER_PIPELINE",
                f"{name} is written by pipeline {fork.commit_metadata.pipeline}",
                hint="one dataset has one producing pipeline; if this one was renamed: "
                f"`taut adopt --from-pipeline {fork.commit_metadata.pipeline}`",
                location=str(job.definitions.datasets[name].location),
                sqlstate="42P07",
            )
        highest = max(highest, fork.fence)
    return highest


def _settle(job: Job, table: LakeTable, full: frozenset[TableName]) -> None:
    """Commit or abort what is prepared, add new columns, then fence."""
    for prepared in table.prepared():
        if prepared.parent == table.current_version():
            table.commit(prepared, job.journal.fence)
            job.emit(
                "recommit",
                dataset=str(table.name),
                rows=prepared.rows,
                fence=int(prepared.commit_metadata.fence),
            )
        else:
            table.abort(prepared)
            job.emit(
                "abort",
                dataset=str(table.name),
                rows=prepared.rows,
                reason="main moved since the batch was prepared; its source is read again",
            )
    if not job.topology.is_view(table.name) and table.name not in full:
        added = table.widen(table.fork(), job.graph.schemas[table.name], job.commit_metadata())
        if added:
            reason = "its definition gained them; rows of before have NULL there"
            job.emit("columns_added", dataset=str(table.name), columns=list(added), reason=reason)
    table.raise_fence(table.fork(), job.commit_metadata())


def _settle_quarantine(job: Job, table: LakeTable) -> None:
    """Bad records are in when their table's commit names them, then the fence."""
    owner = _dataset(job, table.name).bad_records_of
    if owner in job.tables:
        settle_quarantine(job.tables[owner], table, job.journal.fence, job.emit)
    table.raise_fence(table.fork(), job.commit_metadata())


def _dataset(job: Job, name: TableName) -> Dataset:
    return job.definitions.datasets[name]


def _report_roots(job: Job) -> None:
    """A crash between commit and report leaves a version that no cut would take: report it now."""
    reported = job.store.reported(job.name)
    for name in job.topology.root_tables:
        table = job.tables[name]
        main = table.current_version()
        known = reported.get(name)
        if known is None or table.change_between(known, main).kind is not ChangeKind.NONE:
            job.journal.report({name: main})
