"""Aligned cuts inside the simulated protocol: sources whose times go on at different paces."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from sqlalchemy import select

from tautochrone.meta.database import tables as t
from tautochrone.model.checkpoint import Checkpoint, SourceTime
from tautochrone.model.names import TableName, Version

if TYPE_CHECKING:
    from tests.meta.simulation.simulation import Simulation
    from tests.meta.simulation.virtual_job import Process

__all__ = ["SourceTimes"]

_PACES_MS = (0, 500, 3_000, 20_000)


@dataclass
class SourceTimes:
    """The greatest event time of each version of a root. `max_skew_ms` None: cuts are not aligned."""

    max_skew_ms: int | None
    versions: dict[TableName, list[SourceTime]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Roots of which the store does not know that they take part: their job died, or a copy was put back,
    before it had said how far they have come."""
    _level_ms: int | None = None

    def take(self, table: TableName, version: str, pick: Random) -> None:
        """A new version, whose source went on."""
        known = self.versions.setdefault(table, [])
        at_ms = known[-1].at_ms + pick.choice(_PACES_MS) if known else 0
        at_ms = at_ms if self._level_ms is None else self._level_ms
        known.append(SourceTime(version=Version(version), at_ms=at_ms))

    def take_back(self, table: TableName, version: str, to: str) -> None:
        """A version with the rows of an older one; views have no times."""
        known = self.versions.get(table)
        if known is None:
            return
        at_ms = next((time.at_ms for time in known if time.version == to), 0)
        known.append(SourceTime(version=Version(version), at_ms=at_ms))

    def level(self) -> None:
        """The sources have all come equally far and stay there."""
        self._level_ms = max((time.at_ms for known in self.versions.values() for time in known), default=0)

    def align(
        self, simulation: Simulation, process: Process, own: dict[TableName, Version]
    ) -> tuple[dict[TableName, Version], set[TableName]]:
        """What a cut takes of the job's roots, and which are held back; as `runtime.loop.alignment`."""
        store = process.store
        if self.max_skew_ms is None:
            return own, set()
        latest = store.checkpoints.latest_done(process.job)
        last_versions = {} if latest is None else store.checkpoints.versions_at(latest.number)
        times = {name: self._between(name, last_versions.get(name), own[name]) for name in own}
        store.roots.report_source_times(process.job, process.fence, times)
        aligned = store.roots.aligned_cut(process.job, own, self.max_skew_ms)
        return {name: Version(aligned.roots[str(name)]) for name in own}, {
            name for name in own if str(name) in aligned.held_back
        }

    def _between(self, table: TableName, last: Version | None, newest: Version) -> tuple[SourceTime, ...]:
        known = [time.version for time in self.versions[table]]
        start = known.index(last) if last in known else 0
        return tuple(self.versions[table][start : known.index(newest) + 1])

    def floors(self, simulation: Simulation) -> set[tuple[str, str]]:
        """What a cut may take of a root however far ahead it is: what the last one took of it, and the oldest
        that its job offers."""
        v, r = t.versions.c, t.reports.c
        with simulation.database.read() as connection:
            current = select(v.table_name, v.version).where(v.is_root.is_(True), v.to_checkpoint.is_(None))
            last = {(row.table_name, row.version) for row in connection.execute(current)}
            reports = connection.execute(select(r.table_name, r.times)).all()
        shown = {name for name, _ in last}
        # A root of which nothing is known stays where the last cut took it; at the first cut it is nowhere.
        self.unknown = {
            row.table_name
            for row in reports
            if row.times is None or (not row.times and row.table_name not in shown)
        }
        return last | {(row.table_name, row.times[0][0]) for row in reports if row.times}

    def require_aligned(self, checkpoint: Checkpoint, floors: set[tuple[str, str]]) -> None:
        """What is further ahead of the slowest root than the bound is as far back as it may be."""
        if self.max_skew_ms is None:
            return
        at_ms = {
            name: next(time.at_ms for time in self.versions[name] if time.version == version)
            for name, version in checkpoint.roots.items()
            if str(name) not in self.unknown
        }
        for name, version in checkpoint.roots.items():
            if str(name) not in self.unknown and at_ms[name] > min(at_ms.values()) + self.max_skew_ms:
                assert (str(name), version) in floors, f"{name} ran ahead in {checkpoint.number}"
