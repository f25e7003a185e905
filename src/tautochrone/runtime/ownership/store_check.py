"""The store held against the lake, before a takeover writes anything.

The lake's commit metadata says with which store, fence and checkpoint each table was last written. A
store that is lost is filled from them; one that is an older copy, or another one, is brought into
agreement with them. One that belongs to another lake is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tautochrone.errors import MetaError
from tautochrone.meta import LakeVersion, StoreRelation
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.names import TableName
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.ownership.lake_behind_store import require_reported_versions

__all__ = ["check_store", "identify_tables", "require_agreement"]


def check_store(job: Job, existing: Mapping[TableName, LakeTable], full: Collection[TableName] = ()) -> None:
    """See the module docstring. Repeatable: a store in agreement with the lake is left as it is.

    Args:
        existing: the job's tables that are in the lake.
        full: the tables that will be built anew: they need not be those that the store knows.

    Raises:
        MetaError: `META_STORE_OF_ANOTHER_LAKE`, or what `MetaStore.reconcile` raises; nothing was written.
        LakeError: `LAKE_BEHIND_STORE`.
    """
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        _require_own_lake(job, existing, full, pool)
        # Those of the project's other jobs too: who starts first brings all of them to one instant.
        others = {
            name: job.lake.load(name) for name in sorted(job.topology.sibling_tables) if job.lake.exists(name)
        }
        tables = {**existing, **others}
        newest = dict(zip(tables, pool.map(_newest, tables.values()), strict=True))
        relation = job.store.compare(job.name, newest).relation
        if relation is StoreRelation.CURRENT:
            require_reported_versions(job, existing)
            return
        lake = dict(zip(tables, pool.map(_history, tables.values()), strict=True))
    if relation is StoreRelation.EMPTY:
        _rebuild(job, lake)
        return
    done = job.effects.perform(Step.META_RECONCILE, job.name, lambda: job.store.reconcile(job.name, lake))
    job.emit(
        "store_reconciled",
        job=job.name,
        relation=str(done.relation),
        store=done.incarnation,
        numbers_above=done.last_number,
        published=[str(number) for number in done.published],
        revoked=[str(number) for number in done.revoked],
        given_up=[str(number) for number in done.given_up],
        reason=done.reason,
    )


def require_agreement(job: Job) -> None:
    """For whoever changes the lake by what the store says, and is no run.

    Raises:
        MetaError: `META_STORE_NOT_IN_AGREEMENT`; nothing was written.
    """
    names = [
        name for name in (*job.graph.order, *sorted(job.topology.sibling_tables)) if job.lake.exists(name)
    ]
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        lake = dict(zip(names, pool.map(lambda name: _newest(job.lake.load(name)), names), strict=True))
    comparison = job.store.compare(job.name, lake)
    if comparison.relation in (StoreRelation.RESTORED, StoreRelation.FOREIGN):
        raise MetaError(
            "META_STORE_NOT_IN_AGREEMENT",
            f"The store is an older copy, or another one than the lake knows: {comparison.reason}",
            hint="`taut run` brings it into agreement with the lake",
        )


def identify_tables(job: Job) -> None:
    """Record what tells the job's tables, when it is not known yet. After the takeover."""
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        found = dict(
            zip(job.tables, pool.map(lambda table: table.identity(), job.tables.values()), strict=True)
        )
    if found != job.store.table_ids(job.name):
        job.effects.perform(
            Step.META_IDENTIFY, job.name, lambda: job.store.identify(job.name, job.journal.fence, found)
        )


def _require_own_lake(
    job: Job,
    existing: Mapping[TableName, LakeTable],
    full: Collection[TableName],
    pool: ThreadPoolExecutor,
) -> None:
    known = {
        name: identity
        for name, identity in job.store.table_ids(job.name).items()
        if name in job.graph.order and name not in full
    }
    named = [name for name in known if name in existing]
    found = dict(zip(named, pool.map(lambda name: existing[name].identity(), named), strict=True))
    others = [name for name in named if found[name] != known[name]]
    if others:
        what = f"{others[0]} is not the table that the store knows by this name"
    elif known and not named:
        what = f"no table that the store knows of job {job.name} is in this lake, neither is {min(known)}"
    else:
        return
    raise MetaError(
        "META_STORE_OF_ANOTHER_LAKE",
        f"{what}: the store's checkpoints belong to another lake, or tables were made anew",
        hint="give this pipeline a store of its own ([meta] url), or, when the old tables are gone for good, "
        "build them anew with `taut run --full-refresh-all`",
        parameters={"job": job.name, "table": str(others[0] if others else min(known))},
    )


def _rebuild(job: Job, lake: Mapping[TableName, list[LakeVersion]]) -> None:
    if not any(version.checkpoint is not None for versions in lake.values() for version in versions):
        return
    numbers = job.effects.perform(Step.META_REBUILD, job.name, lambda: job.store.rebuild(lake))
    job.emit(
        "rebuilt",
        job=job.name,
        checkpoints=[str(number) for number in numbers],
        reason="the store was empty beside tables that know checkpoints",
    )


def _newest(table: LakeTable) -> list[LakeVersion]:
    fork = table.fork()
    return [
        LakeVersion(version=fork.version, commit_metadata=_short(fork.commit_metadata), committed_at_ms=0)
    ]


def _short(commit_metadata: CommitMetadata | None) -> CommitMetadata | None:
    """The commit metadata without the texts of its positions, which may be long: which flows have one is
    enough here."""
    if commit_metadata is None:
        return None
    positions = {flow: position.brief() for flow, position in commit_metadata.positions.items()}
    return replace(commit_metadata, positions=positions)


def _history(table: LakeTable) -> list[LakeVersion]:
    """All commits with their commit metadata, and last what the table says of itself now: inputs that moved
    without a change of rows are only there, and so is what a revision took back."""
    found = [
        LakeVersion(
            version=version,
            commit_metadata=_short(commit_metadata),
            committed_at_ms=at_ms,
        )
        for version, commit_metadata, at_ms in table.versions()
    ]
    fork = table.fork()
    told = {version.checkpoint for version in found}
    if found and fork.commit_metadata is not None:
        known = fork.commit_metadata.checkpoint in told
        commit_metadata = replace(
            fork.commit_metadata, checkpoint=None if known else fork.commit_metadata.checkpoint
        )
        found.append(
            LakeVersion(
                version=fork.version,
                commit_metadata=_short(commit_metadata),
                committed_at_ms=found[-1].committed_at_ms,
            )
        )
    return found
