"""Revisions inside the simulated protocol: as `runtime.revise` does them; others act between the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tautochrone.errors import TautochroneError
from tautochrone.meta import MetaStore
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.revision import Revision, RevisionPlan
from tautochrone.runtime.revision_plan import Node, Request, Stand, affected, plan_revision

if TYPE_CHECKING:
    from tests.meta.test_protocol import Simulation

__all__ = ["Reviser", "finish_revisions", "plan_revisions"]

_STANDING = (CheckpointState.PUBLISHED, CheckpointState.PARTIAL)
_REFUSED = ("JOB_FENCED", "REVISION_PENDING", "REVISION_PLAN_CHANGED", "CHECKPOINT_REVOKED")


@dataclass(eq=False)
class Reviser:
    """One `taut revise NAME --to N --read-again`, and how far it has come."""

    named: TableName
    to: CheckpointNumber
    plan: RevisionPlan | None = None
    fences: dict[str, Fence] = field(default_factory=dict)
    decided: Revision | None = None

    def step(self, simulation: Simulation) -> bool:
        """The next step; whether there is one after it."""
        try:
            return self._step(simulation)
        except TautochroneError as error:
            if error.error_class in _REFUSED:
                return False
            raise

    def _step(self, simulation: Simulation) -> bool:
        store = simulation.store
        if self.plan is None:
            self.plan = _survey(store, self.named, self.to)
        elif not self.fences:
            self.fences = _take_over(simulation, self.plan.jobs)
        elif self.decided is None:
            if not _survey(store, self.named, self.to).same_work(self.plan):
                return False
            identity = f"{self.named} {simulation.random.random()}"[:36]
            for _ in range(1 + (simulation.random.random() < 0.15)):
                self.decided = store.decide(identity, self.plan, self.fences)
            for process in simulation.processes:
                # Every look of a run asks for its newest checkpoint anew.
                process.cut = None
        else:
            _carry_out(simulation, self.decided, self.fences)
            return False
        return True


def plan_revisions(simulation: Simulation) -> list[Reviser]:
    """Somebody who takes a random dataset back to a random checkpoint, if there are any."""
    known = sorted(entry.name for entry in simulation.store.datasets())
    standing = [c.number for c in simulation.store.checkpoints(9) if c.state in _STANDING]
    if not known or not standing:
        return []
    return [Reviser(simulation.random.choice(known), simulation.random.choice(standing))]


def finish_revisions(simulation: Simulation, job: str, fence: Fence) -> None:
    """What a run of `job` does first."""
    for revision in simulation.store.pending_revisions(job):
        others = [name for name in revision.plan.jobs if name != job]
        _carry_out(simulation, revision, {job: fence, **_take_over(simulation, others)}, running=job)


def _survey(store: MetaStore, named: TableName, to: CheckpointNumber) -> RevisionPlan:
    owners = {status.dataset: status.job for status in store.status()}
    nodes = {
        entry.name: Node(table=entry.name, job=owners[entry.name], kind=entry.kind, inputs=entry.inputs)
        for entry in store.datasets()
    }
    request = Request(named=(named,), to=to, read_again=True)
    names = {node.table for node in affected(request, nodes)}
    at = store.published_versions(to)
    before = store.last_complete(to, names - at.keys())
    at |= {name: version for name, (_, version) in before.items()}
    older = {name: number for name, (number, _) in before.items()}
    return plan_revision(request, nodes, at, dict.fromkeys(names, Stand()), {}, (), older)


def _take_over(simulation: Simulation, jobs: Iterable[str]) -> dict[str, Fence]:
    for process in [process for process in simulation.processes if process.job in jobs]:
        simulation.processes.remove(process)
        simulation.zombies.append(process)
    return {job: simulation.store.take_over(job) for job in jobs}


def _carry_out(
    simulation: Simulation, revision: Revision, fences: dict[str, Fence], running: str | None = None
) -> None:
    """A root taken back gets a new version, as its table does, and what it was since is not seen again."""
    store, versions = simulation.store, simulation.root_versions
    for one in revision.plan.changed:
        if one.job is None or one.table not in store.reported(one.job):
            continue
        now, then = versions[one.table] + 1, int((one.version or "r0")[1:])
        store.report(one.job, fences[one.job], {one.table: Version(f"r{now}")})
        simulation.sources.take_back(one.table, f"r{now}", f"r{then}")
        simulation.times.take_back(one.table, f"r{now}", f"r{then}")
        versions[one.table] = now
        gone = {f"r{number}" for number in range(then + 1, now)}
        simulation.taken_back.append((revision.plan.to or 0, one.table, gone))
    store.complete_revision(revision.id)
    for job in fences.keys() - {running}:
        store.end_run(job, fences[job])
