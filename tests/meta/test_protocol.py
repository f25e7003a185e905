"""The protocol of shared checkpoints, simulated: a seeded scheduler, a clock that jumps, virtual committers.

Each schedule makes a random topology of jobs over a real store and lets them run, die, come back, lose
answers, repeat calls, take over from zombies, are taken back to a checkpoint. A virtual lake holds what each
table's commit was made from, so that what readers see can be judged without Spark. The invariants are those
of `docs/jobs.md`:

1. Strong reads never mix instants: all tables at one checkpoint come from the same versions of the roots.
2. Separate strong queries over relatives agree, and a session never goes backwards.
3. A published checkpoint never changes.
4. A writer with an old fence changes nothing.
5. When the storm is over and all jobs run, they meet: the newest cut is complete everywhere.
6. What a revision took back is in no checkpoint that stands above the one it went back to.
7. A read after a write token shows what was written before the token.
8. Where cuts are aligned, no root gets further ahead of another in source time than the bound.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from tests.meta.aligning import SourceTimes
from tests.meta.revising import Reviser, finish_revisions, plan_revisions
from tests.meta.virtual_lake import Lake, Process
from tests.meta.writing import Sources

from tautochrone.errors import CheckpointUnavailableError, FencedError, MetaError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.coordinator import PATIENCE_MS
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import JOB_LEASE_MS, Part
from tautochrone.model.names import TableName, Version
from tautochrone.model.refresh import Refresh, RefreshMode

FULL = Refresh(mode=RefreshMode.FULL, reason="simulated")
CI, SOAK = 2_000, 100_000
STEPS = 30


class Simulation:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000
        shutil.copy(folder / "empty.db", folder / f"{seed}.db")
        self.store = MetaStore.open(f"sqlite:///{folder}/{seed}.db", clock=lambda: self.now)
        self.lake = Lake()
        self.sources = Sources()
        self.times = SourceTimes(self.random.choice((None, None, 0, 5_000)))
        self.entries: dict[str, list[DatasetEntry]] = {}
        self.processes: list[Process] = []
        self.zombies: list[Process] = []
        self.root_versions: dict[TableName, int] = {}
        self.published: dict[int, dict[TableName, Version]] = {}
        self.session = 0
        self.revisers: list[Reviser] = []
        self.taken_back: list[tuple[int, TableName, set[str]]] = []
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
            known.append(name)

    def start(self, job: str) -> None:
        self.store.start_run(f"p-{job}", job, self.entries[job])
        roots = [entry.name for entry in self.entries[job] if entry.is_root]
        process = Process(job, self.store.take_over(job, ingests=roots))
        finish_revisions(self, job, process.fence)
        process.reported = self.store.reported(job)
        self.processes.append(process)
        for name in roots:
            if name not in self.root_versions:
                self._ingest(process, name)
        self.times.align(self, process, {name: process.reported[name] for name in roots})

    def _ingest(self, process: Process, table: TableName) -> None:
        version = self.root_versions.get(table, 0) + 1
        self.sources.take(process, table, f"r{version}", self.now)
        self.times.take(table, f"r{version}", self.random)
        self.store.report(process.job, process.fence, {table: Version(f"r{version}")})
        self.root_versions[table] = version
        process.reported[table] = Version(f"r{version}")

    # -- what may happen --------------------------------------------------------------------------

    def step(self) -> None:
        pick = self.random
        what = pick.random()
        if what < 0.03:
            self._kill()
        elif what < 0.07:
            self._restart()
        elif what < 0.10:
            self.now += pick.choice((JOB_LEASE_MS + 1, PATIENCE_MS + 1, -PATIENCE_MS, 3_600_000))
        elif what < 0.14:
            self._zombie_acts()
        elif what < 0.24:
            self._people_act()
        elif self.revisers and what < 0.50:
            reviser = pick.choice(self.revisers)
            if not reviser.step(self):
                self.revisers.remove(reviser)
        elif self.processes:
            process = pick.choice(self.processes)
            roots = [e.name for e in self.entries[process.job] if e.is_root]
            if roots and pick.random() < 0.3:
                self._fenced(process, lambda: self._ingest(process, pick.choice(roots)))
            else:
                self._fenced(process, lambda: self.advance(process))
        self.now += pick.randint(0, 500)
        self.check()

    def _people_act(self) -> None:
        if self.random.random() < 0.4:
            self.revisers += plan_revisions(self)
        else:
            roots = [e.name for entries in self.entries.values() for e in entries if e.is_root]
            self.sources.write(self.random.choice(roots), self.now)

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

    def _fenced(self, process: Process, act: object) -> None:
        assert callable(act)
        try:
            act()
        except FencedError:
            self.processes = [p for p in self.processes if p is not process]

    def _zombie_acts(self) -> None:
        """Whatever a process that was taken over still does has no effect: it is refused."""
        if not self.zombies:
            return
        zombie = self.random.choice(self.zombies)
        if self.store.fence(zombie.job) == zombie.fence:
            return  # killed, but nobody took over yet
        before = self.store.checkpoints(5)
        for act in (
            lambda: self.store.report(
                zombie.job, zombie.fence, {TableName("lake", ("db",), "t0"): Version("z")}
            ),
            lambda: self.store.take_target(zombie.job, zombie.fence),
            lambda: self.store.open_checkpoint(zombie.job, zombie.fence, {}, 0),
            lambda: self.store.beat(zombie.job, zombie.fence),
        ):
            with pytest.raises(FencedError):
                act()
        if zombie.target is not None:
            with pytest.raises(FencedError):
                self.store.publish(zombie.job, zombie.fence, zombie.target.number, 0)
        assert self.store.checkpoints(5) == before

    # -- a job's loop, one call of the store at a time --------------------------------------------------

    def advance(self, process: Process) -> None:
        """As `runtime.run` does it. Each call may be repeated, as after a lost answer."""
        store, job, fence = self.store, process.job, process.fence
        again = self.random.random() < 0.15
        process.idle = False
        if self.random.random() < 0.2:
            store.beat(job, fence)
        if process.target is None:
            for _ in range(1 + again):
                process.target = store.take_target(job, fence)
            process.done = {}
            if process.target is None:
                self._open(process)
                return
        number = process.target.number
        parts = {p.job: p.part for p in store.progress(number)}
        if parts[job] is not Part.PENDING:
            process.target = None
            return
        self._do(process, number, parts, 1 + again)

    def _do(self, process: Process, number: int, parts: dict[str, Part], times: int) -> None:
        """Some of what is left of a job's part; each call of the store is made `times` times."""
        store, job, fence = self.store, process.job, process.fence
        versions = store.versions_at(number)
        todo = [e for e in self.entries[job] if not e.is_root and e.name not in process.done]
        ready = [e for e in todo if e.inputs <= versions.keys()]
        for entry in ready[: self.random.randint(1, 3)]:
            made = self._refresh(entry, versions)
            for _ in range(times):
                store.record_version(job, fence, number, entry.name, made, FULL)
            process.done[entry.name] = made
        if todo and not ready:
            self._wait(process, todo[0], versions, parts)
        elif len(ready) == len(todo) == len([e for e in todo if e.name in process.done]):
            for _ in range(times):
                store.publish(job, fence, number, self.now)
            process.target = None

    def _open(self, process: Process) -> None:
        store = self.store
        if process.cut is None:
            latest = store.latest_done(process.job)
            process.cut = {} if latest is None else store.versions_at(latest.number)
            news = latest is None or store.revoked_after(process.job, latest.number)
        else:
            news = False
        newest = {e.name: process.reported[e.name] for e in self.entries[process.job] if e.is_root}
        own, held = self.times.align(self, process, newest)
        looks = {name: at for name, at in process.looks.items() if name not in held}
        if not news and all(process.cut.get(name) == version for name, version in own.items()):
            process.idle = True
            latest = store.latest_done(process.job)
            shows = latest is not None and own.items() <= store.versions_at(latest.number).items()
            number = latest.number if latest is not None and shows else None
            store.beat(process.job, process.fence, looks=looks, checkpoint=number)
            return
        floors = self.times.floors(self)
        try:
            opened = store.open_checkpoint(
                process.job, process.fence, own, self.now, looks=looks, align_ms=self.times.bound_ms
            )
        except MetaError as error:
            if error.error_class not in ("CHECKPOINT_HELD_BACK", "CHECKPOINT_ALREADY_OPEN"):
                raise
            process.cut = None if news else process.cut
        else:
            process.cut = own
            self.times.require_aligned(opened, floors)

    def _refresh(self, entry: DatasetEntry, versions: dict[TableName, Version]) -> Version:
        sources: dict[TableName, str] = {}
        for name in entry.inputs:
            for root, version in self.lake.roots_of(name, versions[name]).items():
                # A refresh that mixes instants would show here.
                assert sources.setdefault(root, version) == version, (entry.name, root)
        return self.lake.commit(entry.name, sources)

    def _wait(
        self,
        process: Process,
        entry: DatasetEntry,
        versions: dict[TableName, Version],
        parts: dict[str, Part],
    ) -> None:
        store, number = self.store, process.target.number if process.target else 0
        owner = store.foreign(process.job)
        missing = [owner[name] for name in sorted(entry.inputs - versions.keys()) if name in owner]
        lost = [job for job in missing if parts.get(job) in (None, Part.SKIPPED)]
        if lost:
            store.abort(process.job, process.fence, number)
            process.target = None
        else:
            store.wait(process.job, process.fence, number, missing[0] if missing else "")
            # It looks again, and what it has to do may be another one by now.
            target = store.take_target(process.job, process.fence)
            if target is None or target.number != number:
                process.target, process.done = target, {}

    # -- what must be true ------------------------------------------------------------------------

    def check(self) -> None:
        if self.random.random() < 0.2:
            for checkpoint in self.store.checkpoints(3):
                if checkpoint.state is CheckpointState.PUBLISHED:
                    # What unrelated jobs show here may still be undecided.
                    part = {p.job for p in self.store.progress(checkpoint.number)}
                    own = {e.name for job in part for e in self.entries[job]}
                    seen = self.store.versions_at(checkpoint.number)
                    at = {name: version for name, version in seen.items() if name in own}
                    assert self.published.setdefault(checkpoint.number, at) == at, "a published one changed"
                    self._one_instant(at)
                    for to, name, gone in self.taken_back:
                        assert checkpoint.number <= to or at.get(name) not in gone, f"{name} was taken back"
        if self.random.random() < 0.1:
            self._read()
        if self.random.random() < 0.1:
            self.sources.read(self)

    def _one_instant(self, versions: dict[TableName, Version]) -> None:
        seen: dict[TableName, str] = {}
        for name, version in versions.items():
            for root, at in self.lake.roots_of(name, version).items():
                assert seen.setdefault(root, at) == at, f"{name} reads {root} at another instant"

    def _read(self) -> None:
        tables = [entry.name for entries in self.entries.values() for entry in entries]
        one, other = (self.random.sample(tables, self.random.randint(1, 2)) for _ in range(2))
        try:
            first = self.store.resolve(tables=one, lease_ms=0)
            second = self.store.resolve(tables=[*one, *other], lease_ms=0)
        except CheckpointUnavailableError:
            return
        self._one_instant(dict(second.versions))
        if second.checkpoint == first.checkpoint:
            self._one_instant({**first.versions, **second.versions})

    def calm(self) -> None:
        """The storm is over: every job runs, nothing dies. They must meet."""
        for job in sorted(self.entries):
            if not any(p.job == job for p in self.processes):
                self.start(job)
        self.now = max(self.now, self.sources.latest) + 1
        self.times.level()
        for process in list(self.processes):
            for root in [e.name for e in self.entries[process.job] if e.is_root]:
                self._fenced(process, lambda process=process, root=root: self._ingest(process, root))
        for _ in range(60):
            for process in list(self.processes):
                self._fenced(process, lambda process=process: self.advance(process))
            self.now += 10
            if all(process.idle and process.target is None for process in self.processes):
                break
        self.check()
        assert self._settled(), f"they never met: {self.store.job_states()}"
        self.sources.read_all(self)

    def _settled(self) -> bool:
        roots = {name: Version(f"r{version}") for name, version in self.root_versions.items()}
        for group in self._groups():
            newest = max((s.newest_done or 0 for s in self.store.job_states() if s.name in group), default=0)
            if not newest:
                return False
            at = self.store.versions_at(newest)
            wanted = [e for job in group for e in self.entries[job]]
            if not all(e.name in at for e in wanted):
                return False
            if any(at[e.name] != roots[e.name] for e in wanted if e.is_root):
                return False
            if self.store.checkpoint(newest).state is not CheckpointState.PUBLISHED:
                return False
        return True

    def _groups(self) -> list[set[str]]:
        groups: list[set[str]] = []
        owner = {e.name: job for job, entries in self.entries.items() for e in entries}
        for job, entries in self.entries.items():
            joined = {job} | {owner[name] for e in entries for name in e.inputs}
            touching = [g for g in groups if g & joined]
            groups = [g for g in groups if not g & joined] + [joined.union(*touching)]
        return groups


def run(seeds: range) -> None:
    # In memory where the machine has such a folder: thousands of stores are made.
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        MetaStore.open(f"sqlite:///{folder}/empty.db").close()
        for seed in seeds:
            simulation = Simulation(seed, Path(folder))
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
            finally:
                simulation.store.close()
                for file in Path(folder).glob(f"{seed}.db*"):
                    file.unlink()


@pytest.mark.parametrize("part", range(8))
def test_schedules(part: int) -> None:
    run(range(part * CI // 8, (part + 1) * CI // 8))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_schedules() -> None:
    run(range(CI, SOAK))
