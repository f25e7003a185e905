"""A job's loop inside the simulated protocol, one call of the store at a time, as in `runtime.loop.run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tests.meta.simulation.aligning import SourceTimes
from tests.meta.simulation.judging import Judged
from tests.meta.simulation.store_faults import FULL
from tests.meta.simulation.virtual_job import Process, refresh

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.jobs import Part
from tautochrone.model.lake import ChangeKind
from tautochrone.model.names import CheckpointNumber, TableName, Version

if TYPE_CHECKING:
    from tests.meta.simulation.simulation import Simulation

__all__ = ["JobLoop"]


class JobLoop(Judged):
    """What a process does when it has nothing to ingest."""

    now: int
    times: SourceTimes

    def advance(self, process: Process) -> None:
        """As `runtime.loop.run` does it. Each call may be repeated, as after a lost answer."""
        store, job, fence = process.store, process.job, process.fence
        again = self.random.random() < 0.15
        process.idle = False
        if self.random.random() < 0.2:
            store.jobs.heartbeat(job, fence)
        if process.target is None:
            for _ in range(1 + again):
                process.target = store.checkpoints.begin_next(job, fence)
            process.done = {}
            process.newest = max(process.newest, 0 if process.target is None else process.target.number)
            if process.target is None:
                self._open(process)
                return
        number = process.target.number
        if any(e.is_root and e.name not in process.target.roots for e in self.entries[job]):
            # It was cut before anybody said how far this job's roots are.
            store.checkpoints.abort(job, fence, number)
            process.target = None
            return
        parts = {p.job: p.part for p in store.checkpoints.progress(number)}
        if parts.get(job) is not Part.PENDING:
            process.target = None
            return
        self._do(process, number, parts, 1 + again)

    def _do(self, process: Process, number: CheckpointNumber, parts: dict[str, Part], times: int) -> None:
        """Some of what is left of a job's part; each call of the store is made `times` times."""
        store, job, fence = process.store, process.job, process.fence
        versions = store.checkpoints.versions_at(number)
        todo = [e for e in self.entries[job] if not e.is_root and e.name not in process.done]
        ready = [e for e in todo if e.inputs <= versions.keys()]
        for entry in ready[: self.random.randint(1, 3)]:
            version = refresh(cast("Simulation", self), process, entry, number, versions)
            for _ in range(times):
                store.checkpoints.record_version(job, fence, number, entry.name, version, FULL)
            process.done[entry.name] = version
        if todo and not ready:
            self._wait(process, todo[0], versions, parts)
        elif len(ready) == len(todo) == len([e for e in todo if e.name in process.done]):
            for _ in range(times):
                store.checkpoints.publish(job, fence, number, self.now)
            process.target = None
            self.look_at(store.checkpoints.get(number))

    def _open(self, process: Process) -> None:
        store, job, fence = process.store, process.job, process.fence
        latest, done = store.checkpoints.latest_done(job), store.checkpoints.last_done(job)
        assert (done and done.checkpoint) == latest
        if done is not None:
            assert done.versions == store.checkpoints.versions_at(done.checkpoint.number)
        if process.cut is None:
            process.cut = {} if latest is None else store.checkpoints.versions_at(latest.number)
            own_tables = {e.name for e in self.entries[job]}
            news = done is None or done.is_followed_by_revoked or not own_tables <= process.cut.keys()
        else:
            news = False
        reported = store.roots.reported(job)
        newest = {
            e.name: self._known(e.name, reported[e.name], process.cut) for e in self.entries[job] if e.is_root
        }
        own, held_back = self.times.align(cast("Simulation", self), process, newest)
        observations = {
            name: observed_ms for name, observed_ms in process.observations.items() if name not in held_back
        }
        if not news and all(process.cut.get(name) == version for name, version in own.items()):
            process.idle = True
            shows = latest is not None and own.items() <= store.checkpoints.versions_at(latest.number).items()
            number = latest.number if latest is not None and shows else None
            store.jobs.heartbeat(job, fence, observations=observations, checkpoint=number)
            return
        floors = self.times.floors(cast("Simulation", self))
        try:
            opened = store.checkpoints.open(
                job,
                fence,
                NewCheckpoint(
                    own,
                    self.now,
                    observations=observations,
                    align_ms=self.times.max_skew_ms,
                    store=process.incarnation,
                    after=process.newest,
                ),
            )
        except MetaError as error:
            if error.error_class not in ("CHECKPOINT_HELD_BACK", "CHECKPOINT_ALREADY_OPEN"):
                raise
            process.cut = None if news else process.cut
        else:
            process.cut = own
            process.newest = max(process.newest, opened.number)
            self.times.require_aligned(opened, floors)
            last = self.seen.get(self.incarnation(), 0)
            assert opened.number > last, f"readers know {last}, and {opened.number} is handed out"

    def _known(self, name: TableName, version: Version, last: Mapping[TableName, Version]) -> Version:
        """The same rows under another version: the one that readers know is kept."""
        known = last.get(name)
        same = known is not None and self.lake[name].change_between(known, version) is ChangeKind.NONE
        return known if same and known is not None else version

    def _wait(
        self,
        process: Process,
        entry: DatasetEntry,
        versions: dict[TableName, Version],
        parts: dict[str, Part],
    ) -> None:
        store, number = process.store, process.target.number if process.target else 0
        owner = store.roots.tables_of_other_jobs(process.job)
        missing = [owner[name] for name in sorted(entry.inputs - versions.keys()) if name in owner]
        lost = [job for job in missing if parts.get(job) in (None, Part.SKIPPED)]
        if lost:
            store.checkpoints.abort(process.job, process.fence, number)
            process.target = None
        else:
            store.checkpoints.record_wait(process.job, process.fence, number, missing[0] if missing else "")
            # It looks again, and what it has to do may be another one by now.
            target = store.checkpoints.begin_next(process.job, process.fence)
            if target is None or target.number != number:
                process.target, process.done = target, {}
