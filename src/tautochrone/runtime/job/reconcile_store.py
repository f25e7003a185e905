"""Compares the store with the lake before a takeover, and repairs the store.

The commit metadata in the lake names the store, fence and checkpoint of each table's last commit. An empty
store is rebuilt from it. A store that is an older copy, or a different store, is reconciled with it. A store
that belongs to another lake is refused, and so is a lake that is older than the store, as after a restore of
the catalog alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tautochrone.errors import LakeError, MetaError
from tautochrone.meta import LakeVersion, Store, StoreRelation
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.model import events
from tautochrone.model.effects import Step
from tautochrone.model.former_names import with_current_names
from tautochrone.model.lake import ChangeKind, CommitMetadata, LakeTable
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import Definitions
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal

__all__ = ["reconcile_store", "record_table_ids", "require_reconciled"]


def reconcile_store(
    job: Job, existing: Mapping[TableName, LakeTable], full: Collection[TableName] = ()
) -> None:
    """Repair the store; see the module docstring. A store that agrees with the lake is not changed.

    Args:
        existing: the job's tables that exist in the lake.
        full: tables that will be rebuilt; their ids may differ from those in the store.

    Raises:
        MetaError: `META_STORE_OF_ANOTHER_LAKE`, or what `Recovery.reconcile` raises; nothing was written.
        LakeError: `LAKE_BEHIND_STORE`.
    """
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        _require_same_lake(job, existing, full, pool)
        # The tables of the project's other jobs too: the first job to start reconciles all of them.
        sibling_tables = {
            name: job.lake.load(name) for name in sorted(job.topology.sibling_tables) if job.lake.exists(name)
        }
        tables = {**existing, **sibling_tables}
        newest = dict(zip(tables, pool.map(_newest, tables.values()), strict=True))
        relation = job.store.recovery.compare(job.name, newest).relation
        if relation is StoreRelation.CURRENT:
            _require_reported_versions(job.store, job.name, job.definitions, existing)
            return
        lake = dict(zip(tables, pool.map(_history, tables.values()), strict=True))
    if relation is StoreRelation.EMPTY:
        _rebuild(job, lake)
        return
    reconciled = job.effects.perform(
        Step.META_RECONCILE, job.name, lambda: job.store.recovery.reconcile(job.name, lake)
    )
    job.emit(
        events.StoreReconciled(
            job=job.name,
            relation=str(reconciled.relation),
            store=reconciled.incarnation,
            numbers_above=reconciled.last_number,
            published=[str(number) for number in reconciled.published],
            revoked=[str(number) for number in reconciled.revoked],
            given_up=[str(number) for number in reconciled.given_up],
            reason=reconciled.reason,
        )
    )


def require_reconciled(job: Job) -> None:
    """Refuse a store that was not reconciled with the lake. For commands that change the lake outside a run.

    Raises:
        MetaError: `META_STORE_NOT_IN_AGREEMENT`; nothing was written.
    """
    names = [
        name for name in (*job.graph.order, *sorted(job.topology.sibling_tables)) if job.lake.exists(name)
    ]
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        lake = dict(zip(names, pool.map(lambda name: _newest(job.lake.load(name)), names), strict=True))
    comparison = job.store.recovery.compare(job.name, lake)
    if comparison.relation in (StoreRelation.RESTORED, StoreRelation.FOREIGN):
        raise MetaError(
            "META_STORE_NOT_IN_AGREEMENT",
            f"The store is an older copy, or another one than the lake knows: {comparison.reason}",
            hint="`taut run` brings it into agreement with the lake",
        )


def record_table_ids(journal: Journal, tables: Mapping[TableName, LakeTable], parallelism: int) -> None:
    """Record the ids of the job's tables in the store if they changed. Call it after the takeover."""
    with ThreadPoolExecutor(parallelism) as pool:
        ids = dict(zip(tables, pool.map(lambda table: table.identity(), tables.values()), strict=True))
    if ids != journal.store.datasets.table_ids(journal.name):
        journal.record(Datasets.record_table_ids, ids)


def _require_same_lake(
    job: Job,
    existing: Mapping[TableName, LakeTable],
    full: Collection[TableName],
    pool: ThreadPoolExecutor,
) -> None:
    stored_ids = {
        name: identity
        for name, identity in job.store.datasets.table_ids(job.name).items()
        if name in job.graph.order and name not in full
    }
    present = [name for name in stored_ids if name in existing]
    ids = dict(zip(present, pool.map(lambda name: existing[name].identity(), present), strict=True))
    replaced = [name for name in present if ids[name] != stored_ids[name]]
    if replaced:
        difference = f"{replaced[0]} is not the table that the store knows by this name"
    elif stored_ids and not present:
        difference = (
            f"no table that the store knows of job {job.name} is in this lake, neither is {min(stored_ids)}"
        )
    else:
        return
    raise MetaError(
        "META_STORE_OF_ANOTHER_LAKE",
        f"{difference}: the store's checkpoints belong to another lake, or tables were recreated",
        hint="give this pipeline its own store ([meta] url); if the old tables are gone for good, rebuild "
        "all tables with `taut run --full-refresh-all`",
        parameters={"job": job.name, "table": str(replaced[0] if replaced else min(stored_ids))},
    )


def _require_reported_versions(
    store: Store, job: str, definitions: Definitions, existing: Mapping[TableName, LakeTable]
) -> None:
    """Refuse tables whose history lacks their reported version although nobody committed to them since.

    Raises:
        LakeError: `LAKE_BEHIND_STORE`.
    """
    reported = store.roots.reported(job)
    reported_ms = {report.table: report.at_ms for report in store.roots.report_times() if report.job == job}
    for name, version in reported.items():
        if name not in existing or name not in reported_ms:
            continue
        table = existing[name]
        if table.change_between(version, table.current_version()).kind is not ChangeKind.UNKNOWN:
            continue
        # Expiry and revisions also remove versions, but they commit after the report.
        if table.last_commit_ms() < reported_ms[name]:
            raise LakeError(
                "LAKE_BEHIND_STORE",
                f"{name} has no version {version}, which the store knows, and was not changed since",
                hint="the catalog was restored alone: restore the store of the same time too; or remove the "
                "store, and the next run fills a new one from the tables",
                location=str(definitions.datasets[name].location),
                sqlstate="55000",
            )


def _rebuild(job: Job, lake: Mapping[TableName, list[LakeVersion]]) -> None:
    if not any(version.checkpoint is not None for versions in lake.values() for version in versions):
        return
    numbers = job.effects.perform(Step.META_REBUILD, job.name, lambda: job.store.recovery.rebuild(lake))
    job.emit(
        events.Rebuilt(
            job=job.name,
            checkpoints=[str(number) for number in numbers],
            reason=Reason.of(ReasonCode.STORE_WAS_EMPTY),
        )
    )


def _newest(table: LakeTable) -> list[LakeVersion]:
    fork = table.fork()
    return [
        LakeVersion(version=fork.version, commit_metadata=_short(fork.commit_metadata), committed_at_ms=0)
    ]


def _short(commit_metadata: CommitMetadata | None) -> CommitMetadata | None:
    """The commit metadata without the texts of its positions: they may be long and are not needed here."""
    if commit_metadata is None:
        return None
    positions = {flow: position.brief() for flow, position in commit_metadata.positions.items()}
    return replace(commit_metadata, positions=positions)


def _history(table: LakeTable) -> list[LakeVersion]:
    """All commits with their metadata, then the table's current metadata.

    The current metadata alone names inputs that moved without a change of rows, and what a revision reset.
    """
    fork = table.fork()
    renames = () if fork.commit_metadata is None else fork.commit_metadata.renames
    history = [
        LakeVersion(
            version=version,
            commit_metadata=_short(
                None if commit_metadata is None else with_current_names(commit_metadata, renames)
            ),
            committed_at_ms=committed_at_ms,
        )
        for version, commit_metadata, committed_at_ms in table.versions()
    ]
    checkpoints = {version.checkpoint for version in history}
    if history and fork.commit_metadata is not None:
        is_recorded = fork.commit_metadata.checkpoint in checkpoints
        commit_metadata = replace(
            fork.commit_metadata, checkpoint=None if is_recorded else fork.commit_metadata.checkpoint
        )
        history.append(
            LakeVersion(
                version=fork.version,
                commit_metadata=_short(commit_metadata),
                committed_at_ms=history[-1].committed_at_ms,
            )
        )
    return history
