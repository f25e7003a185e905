"""The protocol of shared checkpoints, simulated: a seeded scheduler, a clock that jumps, virtual committers.

Each schedule makes a random topology of jobs over a real store and lets them run, die, come back, lose
answers, repeat calls, take over from zombies, be taken back to a checkpoint, while the store itself is put
back to an older copy, swapped with another pipeline's, or lost. A virtual lake holds what each table's commit
was made from and the rows that came of it, so that what readers see can be judged without Spark. The
invariants are those of `docs/jobs.md`.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections.abc import Callable, Iterable

import pytest
from tests.meta.simulation.aligning import SourceTimes
from tests.meta.simulation.job_loop import JobLoop
from tests.meta.simulation.revising import Reviser, plan_revisions
from tests.meta.simulation.store_faults import StoreFaults, Stores
from tests.meta.simulation.virtual_job import KilledError, Process, ingest, take_over
from tests.meta.simulation.virtual_lake import Lake, VirtualTable
from tests.meta.simulation.writing import Sources

from tautochrone.errors import (
    ConflictError,
    FencedError,
    TautochroneError,
)
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import PATIENCE_MS, NewCheckpoint
from tautochrone.model.jobs import JOB_LEASE_MS
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["CI", "SOAK", "Simulation", "run"]

CI, SOAK = 12, 100_000
STEPS = 30

_ON_ANOTHER_STORE = (
    "META_STORE_REPLACED",
    "FENCE_UNKNOWN",
    "JOB_NOT_FOUND",
    "DATASET_NOT_FOUND",
    "CHECKPOINT_NOT_FOUND",
    "CHECKPOINT_INCOMPLETE",
    "CHECKPOINT_NOT_WRITABLE",
    "CHECKPOINT_OF_ANOTHER_JOB",
)
"""What a process may meet that goes on after its store was replaced."""


class Simulation(JobLoop):
    def __init__(self, seed: int, stores: Stores) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.now = 1_000_000
        self.stores, self.database = stores, stores.database
        self.faults = StoreFaults(stores)
        self.faults.begin(self.random)
        self.store = self.open_store()
        self.lake = Lake()
        self.sources = Sources()
        self.times = SourceTimes(self.random.choice((None, None, 0, 5_000)))
        self.entries: dict[str, list[DatasetEntry]] = {}
        self.processes: list[Process] = []
        self.zombies: list[Process] = []
        self.revisers: list[Reviser] = []
        self.stormy = True
        self.one_pipeline = self.random.random() < 0.6
        self._make_topology()

    # -- the world --------------------------------------------------------------------------------

    def _make_topology(self) -> None:
        pick = self.random
        jobs = [f"j{n}" for n in range(pick.randint(2, 4))]
        known: list[TableName] = []
        for number in range(pick.randint(3, 6)):
            name = TableName("lake", ("db",), f"t{number}")
            job = pick.choice(jobs)
            above = pick.sample(known, min(len(known), pick.choice((0, 1, 1, 2))))
            kind = "materialized view" if above else "streaming table"
            entry = DatasetEntry(name, kind, "d", frozenset(above), is_root=not above)
            self.entries.setdefault(job, []).append(entry)
            self.lake.inputs[name] = frozenset(above)
            known.append(name)

    def open_store(self) -> Store:
        """As a process of its own does."""
        return MetaStore(self.database, lambda: self.now)

    def pipeline_of(self, job: str) -> str:
        return "p" if self.one_pipeline else f"p-{job}"

    def jobs_of(self, pipeline: str) -> list[str]:
        return [job for job in self.entries if self.pipeline_of(job) == pipeline]

    def tables_of(self, pipeline: str) -> list[VirtualTable]:
        ours = [entry.name for job in self.jobs_of(pipeline) for entry in self.entries[job]]
        return [self.lake[name] for name in ours if name in self.lake.tables]

    def highest_fence(self, job: str) -> Fence:
        """The highest one that the job's tables have seen."""
        known = [self.lake[e.name] for e in self.entries[job] if e.name in self.lake.tables]
        return max((table.fork().fence for table in known), default=Fence(0))

    def dies(self) -> bool:
        return self.stormy and self.random.random() < 0.02

    def store_replaced(self) -> None:
        self.store = self.open_store()
        self.forget_unnamed()
        for process in self.processes:
            # Every look of a run asks for its newest checkpoint anew.
            process.cut = None
        if self.random.random() < 0.5:
            self.zombies += self.processes
            self.processes = []
            self.revisers = []
        # A run that goes on over a copy that was put back knows the numbers only that it has seen itself:
        # operators are told to stop the jobs before.
        self.forget_above(min((process.newest for process in self.processes), default=None))

    def start(self, job: str) -> None:
        process = Process(job, self.open_store(), self.pipeline_of(job), self.faults.count)
        if self.faults.wrong is not None:
            self._require_refused(process)
            return
        self.processes.append(process)
        self._guarded(process, lambda: self._begin(process))

    def _begin(self, process: Process) -> None:
        take_over(self, process)
        self.faults.behind.discard(process.job)
        roots = [entry.name for entry in self.entries[process.job] if entry.is_root]
        for name in roots:
            self._ingest(process, name)
        reported = process.store.roots.reported(process.job)
        self.times.align(self, process, {name: reported[name] for name in roots})

    def _require_refused(self, process: Process) -> None:
        """The store is another lake's, with the same names: nobody writes anything."""
        before, lake = self.stores.dump(), self.lake.counter
        with pytest.raises(TautochroneError):
            take_over(self, process)
        assert (self.stores.dump(), self.lake.counter) == (before, lake), "refused, but something was written"

    def _ingest(self, process: Process, table: TableName) -> None:
        if self.stormy and self.random.random() < 0.5:
            self.sources.write(table, self.now)
        ingest(self, process, table)

    # -- what may happen --------------------------------------------------------------------------

    def step(self) -> None:
        pick = self.random
        chance = pick.random()
        self.lake.now = self.now
        if chance < 0.03:
            self._kill()
        elif chance < 0.07:
            self._restart()
        elif chance < 0.10:
            self.now += pick.choice((JOB_LEASE_MS + 1, PATIENCE_MS + 1, -PATIENCE_MS, 3_600_000))
        elif chance < 0.14:
            self._zombie_acts()
        elif chance < 0.20:
            self.faults.strike(self)
        elif chance < 0.28:
            self._people_act()
        elif self.revisers and chance < 0.50:
            self._revise(pick.choice(self.revisers))
        elif self.processes:
            process = pick.choice(self.processes)
            roots = [e.name for e in self.entries[process.job] if e.is_root]
            if roots and pick.random() < 0.3:
                self._guarded(process, lambda: self._ingest(process, pick.choice(roots)))
            else:
                self._guarded(process, lambda: self.advance(process))
        self.now += pick.randint(0, 500)
        self.check()

    def _people_act(self) -> None:
        if self.random.random() < 0.4:
            self.revisers += plan_revisions(self)
        else:
            roots = [e.name for entries in self.entries.values() for e in entries if e.is_root]
            self.sources.write(self.random.choice(roots), self.now)

    def _revise(self, reviser: Reviser) -> None:
        if self.faults.wrong is not None or not reviser.step(self):
            self.revisers.remove(reviser)

    def _kill(self) -> None:
        if self.processes:
            process = self.processes.pop(self.random.randrange(len(self.processes)))
            if self.random.random() < 0.5:
                self.zombies.append(process)

    def _restart(self) -> None:
        job = self.random.choice(sorted(self.entries))
        for process in [p for p in self.processes if p.job == job]:
            # Two instances of one job: the older is a zombie from here on.
            self.processes.remove(process)
            self.zombies.append(process)
        self.start(job)

    def _guarded(self, process: Process, act: Callable[[], object]) -> None:
        try:
            act()
        except KilledError:
            self._lose(process, wakes=self.random.random() < 0.7)
        except TautochroneError as error:
            replaced = process.faults != self.faults.count and error.error_class in _ON_ANOTHER_STORE
            # The next job to take over may be the one that recognises an older copy.
            replaced |= self.faults.count > 0 and error.error_class == "META_STORE_REPLACED"
            if not isinstance(error, FencedError) and not replaced:
                raise
            self._lose(process, wakes=False)

    def _lose(self, process: Process, *, wakes: bool) -> None:
        self.processes = [running for running in self.processes if running is not process]
        self.zombies = [running for running in self.zombies if running is not process]
        if wakes:
            self.zombies.append(process)

    def _zombie_acts(self) -> None:
        """Whatever a process that was taken over still does has no effect: it is refused."""
        if not self.zombies:
            return
        zombie = self.random.choice(self.zombies)
        pending, zombie.pending = zombie.pending, None
        if pending is not None:
            # What it was about to write to the lake or the store; the guards of both decide.
            self._guarded(zombie, lambda: self._write_late(pending))
            return
        known = {status.name: status.fence for status in self.store.jobs.states()}
        if known.get(zombie.job, 0) <= zombie.fence:
            # Killed, but nobody took over yet, or the store does not know any more.
            self._guarded(zombie, lambda: self.advance(zombie))
            return
        before = self.store.checkpoints.newest(5)
        for act in (
            lambda: self.store.roots.report(
                zombie.job, zombie.fence, {TableName("lake", ("db",), "t0"): Version("z")}
            ),
            lambda: self.store.checkpoints.begin_next(zombie.job, zombie.fence),
            lambda: self.store.checkpoints.open(zombie.job, zombie.fence, NewCheckpoint({}, 0)),
            lambda: self.store.jobs.heartbeat(zombie.job, zombie.fence),
        ):
            with pytest.raises(FencedError):
                act()
        if zombie.target is not None and zombie.faults == self.faults.count:
            with pytest.raises(FencedError):
                self.store.checkpoints.publish(zombie.job, zombie.fence, zombie.target.number, 0)
        assert self.store.checkpoints.newest(5) == before

    def _write_late(self, pending: Callable[[], object]) -> None:
        try:
            pending()
        except ConflictError:
            return

    def calm(self) -> None:
        """The storm is over: every job runs, nothing dies. They must meet."""
        self.stormy, self.lake.now = False, self.now
        self.faults.calm(self)
        self.now = max(self.now, self.sources.latest) + 1
        self.times.level()
        for root in [e.name for entries in self.entries.values() for e in entries if e.is_root]:
            # Sources go on, or a root that ran ahead would wait for ever for one that has ended.
            self.sources.write(root, self.now)
        self.now += 1
        ingested: set[Process] = set()
        for _ in range(60):
            for job in sorted(self.entries):
                if not any(p.job == job for p in self.processes):
                    self.start(job)
            for process in list(self.processes):
                if process not in ingested:
                    ingested.add(process)
                    process.idle = False
                    for root in [e.name for e in self.entries[process.job] if e.is_root]:
                        self._guarded(process, lambda process=process, root=root: ingest(self, process, root))
                else:
                    self._guarded(process, lambda process=process: self.advance(process))
            self.now += 10
            running = {process.job for process in self.processes if process in ingested}
            if running == self.entries.keys() and all(p.idle and p.target is None for p in self.processes):
                break
        self.check()
        self.faults.check()
        assert self.settled(), f"they never met: {self.store.jobs.states()}"
        self.sources.read_all(self)


def run(seeds: Iterable[int]) -> None:
    # In memory where the machine has such a folder.
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        stores = Stores(folder)
        # What lives for the whole run is not looked at again by every collection.
        gc.collect()
        gc.freeze()
        try:
            for seed in seeds:
                run_one(seed, stores)
        finally:
            gc.unfreeze()
            stores.close()


def run_one(seed: int, stores: Stores) -> None:
    """One schedule; whatever it raises names its seed."""
    simulation = Simulation(seed, stores)
    try:
        for job in sorted(simulation.entries):
            if simulation.random.random() < 0.8:
                simulation.start(job)
        for _ in range(STEPS):
            simulation.step()
        simulation.calm()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
