"""Revisions inside the simulated protocol, as in `runtime.revision.revise`; others act between the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.meta.simulation.virtual_job import KilledError

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import Store, StoreRelation
from tautochrone.model.checkpoint import CheckpointState, RefreshMode
from tautochrone.model.lake import NO_VERSION, CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.revision import RevisedTable, Revision, RevisionAction, RevisionPlan, tag_of
from tautochrone.runtime.revision.plan import (
    DatasetNode,
    RevertCheck,
    RevisionRequest,
    affected_datasets,
    plan_revision,
)

if TYPE_CHECKING:
    from tests.meta.simulation.simulation import Simulation
    from tests.meta.simulation.virtual_job import Process

__all__ = ["Reviser", "finish_revisions", "plan_revisions"]

_STANDING = (CheckpointState.PUBLISHED, CheckpointState.PARTIAL)
_REFUSED = (
    "JOB_FENCED",
    "REVISION_PENDING",
    "REVISION_PLAN_CHANGED",
    "REVISION_NOT_REPLAYABLE",
    "CHECKPOINT_REVOKED",
    "META_STORE_NOT_IN_AGREEMENT",
)
_ON_ANOTHER_STORE = (
    "META_STORE_REPLACED",
    "FENCE_UNKNOWN",
    "JOB_NOT_FOUND",
    "CHECKPOINT_NOT_FOUND",
    "CHECKPOINT_NOT_PUBLISHED",
    "REVISION_NAMES_NOTHING",
)


@dataclass(eq=False)
class Reviser:
    """One `taut revise NAME --to N --read-again`, and how far it has come."""

    named: TableName
    to: CheckpointNumber
    store: Store
    plan: RevisionPlan | None = None
    fences: dict[str, Fence] = field(default_factory=dict)
    decided: Revision | None = None

    def step(self, simulation: Simulation) -> bool:
        """The next step; whether there is one after it."""
        try:
            return self._step(simulation)
        except KilledError:
            return False
        except TautochroneError as error:
            replaced = simulation.faults.count > 0 and error.error_class in _ON_ANOTHER_STORE
            if error.error_class in _REFUSED or replaced:
                return False
            raise

    def _step(self, simulation: Simulation) -> bool:
        store = self.store
        if self.plan is None:
            self.plan = _survey(simulation, store, self.named, self.to)
        elif not self.fences:
            # Before a fence rises in the store: by it a copy is recognised.
            _require_agreement(simulation, store)
            self.fences = _take_over(simulation, store, self.plan.jobs)
        elif self.decided is None:
            if not _survey(simulation, store, self.named, self.to).has_same_actions(self.plan):
                return False
            identity = f"{self.named} {simulation.random.random()}"[:36]
            for _ in range(1 + (simulation.random.random() < 0.15)):
                self.decided = store.revisions.decide(identity, self.plan, self.fences)
            for process in simulation.processes:
                # Every look of a run asks for its newest checkpoint anew.
                process.cut = None
        else:
            _carry_out(simulation, store, self.decided, self.fences)
            return False
        return True


def plan_revisions(simulation: Simulation) -> list[Reviser]:
    """Somebody who takes a random dataset back to a random checkpoint, if there are any."""
    known = sorted(e.name for e in simulation.store.datasets.registered() if e.name in simulation.lake.tables)
    published = [c.number for c in simulation.store.checkpoints.newest(9) if c.state in _STANDING]
    if not known or not published:
        return []
    named, to = simulation.random.choice(known), simulation.random.choice(published)
    return [Reviser(named, to, simulation.open_store())]


def finish_revisions(simulation: Simulation, process: Process) -> None:
    """What a run of a job does first."""
    for revision in process.store.revisions.pending(process.job):
        other_jobs = [name for name in revision.plan.jobs if name != process.job]
        fences = {process.job: process.fence, **_take_over(simulation, process.store, other_jobs)}
        _carry_out(simulation, process.store, revision, fences, running=process.job)


def _survey(simulation: Simulation, store: Store, named: TableName, to: CheckpointNumber) -> RevisionPlan:
    _require_agreement(simulation, store)
    owners = {status.dataset: status.job for status in store.datasets.statuses()}
    nodes = {
        entry.name: DatasetNode(
            table=entry.name, job=owners[entry.name], kind=entry.kind, inputs=entry.inputs
        )
        for entry in store.datasets.registered()
    }
    request = RevisionRequest(named=(named,), to=to, read_again=True)
    names = {node.table for node in affected_datasets(request, nodes)}
    versions = store.reads.published_versions(to)
    before = store.revisions.last_complete(to, names - versions.keys())
    versions |= {name: version for name, (_, version) in before.items()}
    older = {name: number for name, (number, _) in before.items()}
    checks = {name: _revert_check(simulation, name, versions.get(name)) for name in names}
    return plan_revision(request, nodes, versions, checks, {}, (), older)


def _require_agreement(simulation: Simulation, store: Store) -> None:
    """As `runtime.job.reconcile_store`, for those who change the lake by the store and are no run."""
    for job in simulation.entries:
        lake = {table.name: table.says() for table in simulation.tables_of(simulation.pipeline_of(job))}
        relation = store.recovery.compare(job, lake).relation
        if relation in (StoreRelation.RESTORED, StoreRelation.FOREIGN):
            raise MetaError("META_STORE_NOT_IN_AGREEMENT", "as runtime.reconcile_store")


def _revoked(plan: RevisionPlan) -> tuple[tuple[int, int], ...]:
    assert plan.to is not None
    assert plan.last is not None
    return ((int(plan.to), int(plan.last)),) if plan.last > plan.to else ()


def _revert_check(simulation: Simulation, name: TableName, version: Version | None) -> RevertCheck:
    if version is None or simulation.lake[name].goes_back_to(version):
        return RevertCheck()
    return RevertCheck(obstacle="it never had that version")


def _take_over(simulation: Simulation, store: Store, jobs: Iterable[str]) -> dict[str, Fence]:
    for process in [process for process in simulation.processes if process.job in jobs]:
        simulation.processes.remove(process)
        simulation.zombies.append(process)
    return {job: store.jobs.take_over(job, at_least=simulation.highest_fence(job)) for job in sorted(jobs)}


def _carry_out(
    simulation: Simulation,
    store: Store,
    revision: Revision,
    fences: dict[str, Fence],
    running: str | None = None,
) -> None:
    """What a root was since the version that it is taken back to is not seen again."""
    for revised in revision.plan.changed:
        if revised.job is None or revised.table not in simulation.lake.tables:
            continue
        removed = _revise(simulation, store.incarnation, revision, revised, fences[revised.job])
        if revised.table in store.roots.reported(revised.job):
            store.roots.report(
                revised.job, fences[revised.job], {revised.table: simulation.lake[revised.table].main}
            )
            simulation.taken_back.append((revision.plan.to or 0, revised.table, removed))
        if simulation.dies():
            raise KilledError
    store.revisions.complete(revision.id)
    for job in fences.keys() - {running}:
        store.jobs.end_run(job, fences[job])


def _revise(
    simulation: Simulation, store: str, revision: Revision, revised: RevisedTable, fence: Fence
) -> set[Version]:
    """Answers the versions that are gone."""
    table, tag = simulation.lake[revised.table], tag_of(revision.id)
    revoked = _revoked(revision.plan)
    assert table.commit_metadata is not None
    before = table.main
    if revised.action is RevisionAction.ROLL_BACK:
        assert revised.version is not None
        commit_metadata = table.merged_commit_metadata_at(revised.version)
        assert commit_metadata is not None
        revoked = tuple(sorted({*revoked, *commit_metadata.revoked, *table.commit_metadata.revoked}))
        removed = table.revert(
            revised.version, replace(commit_metadata, fence=fence, store=store, revoked=revoked), tag
        )
        simulation.times.take_back(revised.table, table.main, revised.version)
        return removed
    known = table.commit_metadata
    commit_metadata = CommitMetadata(
        pipeline=known.pipeline, job=known.job, fence=fence, store=store, revoked=revoked
    )
    if tag not in table.tags:
        table.raise_fence(commit_metadata)
        simulation.times.take_back(revised.table, table.main, before)
        table.tags.add(tag)
    if revised.action is RevisionAction.REBUILD:
        table.commit_metadata_only(
            table.fork(), replace(commit_metadata, mode=str(RefreshMode.FULL), reset=True)
        )
        return set()
    removed = {snapshot.version for snapshot in table.chain(table.main)}
    table.clear(replace(commit_metadata, reset=True))
    simulation.times.take_back(revised.table, table.main, NO_VERSION)
    return removed
