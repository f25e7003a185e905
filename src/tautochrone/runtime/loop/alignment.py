"""Aligned cuts: how far the sources of the job's roots have come, and what a cut takes of them.

Only with `run.align`. The source time of a version is read from the rows that were added since the version
before it. After a start all rows of the last cut's version are read once.

The newest version of a change log is complete until the flow last saw the end of the log: an idle database
holds nobody back. Copied rows have no commit time; a version that has only those is as old as its commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tautochrone.errors import HistoryLostError
from tautochrone.model import events
from tautochrone.model.checkpoint import HeldBack, SourceTime
from tautochrone.model.lake import LakeTable
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.table_properties import EVENT_TIME, event_time_of, has_commit_time
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.cut import Cut

__all__ = ["Aligner"]

_MAX_VERSIONS_PER_CUT = 32
"""At most so many new versions of one root are read for a cut. More would make the steps finer only."""

_MAX_VERSIONS_KEPT = 256
"""At most so many versions of one root are remembered while it is held back."""


class Aligner:
    """Holds roots back whose sources are ahead of others, and reports that. One per run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._columns: dict[TableName, str] = {}
        self._times: dict[TableName, list[SourceTime]] = {}
        self._reported_times: dict[TableName, tuple[SourceTime, ...]] | None = None
        self._held_back_roots: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Report which roots are aligned."""
        job = self._job
        max_skew_ms = job.settings.align_ms
        if max_skew_ms is None:
            # The run before may have aligned its cuts: others must not wait for it.
            job.store.roots.report_source_times(job.name, job.journal.fence, {})
            return
        roots = {name: event_time_of(job.definitions.datasets[name]) for name in job.topology.root_tables}
        self._columns = {name: column for name, column in roots.items() if column is not None}
        job.emit(
            events.Alignment(
                bound_ms=max_skew_ms,
                roots=sorted(map(str, self._columns)),
                unaligned=sorted(
                    str(name) for name in (roots.keys() - self._columns) | job.external_tables()
                ),
                reason=Reason.of(ReasonCode.NO_EVENT_TIME, property=EVENT_TIME),
            )
        )

    def align(self, cut: Cut, last: Mapping[TableName, Version]) -> Cut:
        """The cut with older versions of the job's roots that run ahead of the slowest root of all jobs.

        Args:
            last: what the last cut took.
        """
        job, max_skew_ms = self._job, self._job.settings.align_ms
        if max_skew_ms is None:
            return cut
        times = {
            name: self._with_complete_until(
                name, self._source_times(name, cut.roots[name], last.get(name)), cut.observations.get(name)
            )
            for name in self._columns
            if name in cut.roots
        }
        if times != self._reported_times:
            # Repeated at every start, and decides nothing by itself: no step of its own.
            job.store.roots.report_source_times(job.name, job.journal.fence, times)
            self._reported_times = times
        alignment = job.store.roots.aligned_cut(job.name, cut.roots, max_skew_ms)
        if alignment.held_back.keys() != self._held_back_roots:
            self._held_back_roots = frozenset(alignment.held_back)
            for name, lag in sorted(alignment.held_back.items()):
                job.emit(
                    events.CutAligned(
                        root=name,
                        ahead_ms=lag.ahead_ms,
                        behind=lag.behind,
                        reason=_reason(name, lag),
                    )
                )
        roots = {name: Version(alignment.roots[str(name)]) for name in cut.roots}
        observations = {
            name: observed_ms
            for name, observed_ms in cut.observations.items()
            if str(name) not in alignment.held_back
        }
        return replace(cut, roots=roots, observations=observations)

    def _with_complete_until(
        self, name: TableName, times: list[SourceTime], observed_ms: int | None
    ) -> tuple[SourceTime, ...]:
        """With the time until which the newest version of a change log is complete."""
        if not times or observed_ms is None or not self._has_commit_time(name):
            return tuple(times)
        return (*times[:-1], replace(times[-1], complete_until_ms=observed_ms))

    def _has_commit_time(self, name: TableName) -> bool:
        return has_commit_time(self._job.definitions.datasets[name])

    def _source_times(self, name: TableName, newest: Version, last: Version | None) -> list[SourceTime]:
        """The versions of a root from the last cut's to the newest, with their source times."""
        times = self._times.get(name, [])
        if not times or times[-1].version != newest or last not in [time.version for time in times]:
            times = self._times[name] = self._extended_times(name, times, newest, last)
        versions = [time.version for time in times]
        if last in versions:
            del times[: versions.index(last)]
        if len(times) > _MAX_VERSIONS_KEPT:
            # The first is where the root stands, the last is its newest.
            del times[1:-1:2]
        return times

    def _extended_times(
        self, name: TableName, earlier: list[SourceTime], newest: Version, last: Version | None
    ) -> list[SourceTime]:
        table, column = self._job.tables[name], self._columns[name]
        committed = {version: committed_at_ms for version, _, committed_at_ms in table.versions()}
        history = list(committed)
        if last in history and last not in [time.version for time in earlier]:
            earlier, start = [], last
        elif earlier and earlier[-1].version in history:
            start = earlier[-1].version
        else:
            # Before the first cut any version may be taken; after it, when its version is gone, the newest.
            earlier, start = [], history[0] if last is None and history else newest
        if newest not in history:
            earlier, start, history = [], newest, [newest]
        max_ms = earlier[-1].at_ms if earlier else self._greatest(table.read(self._job.base, start), column)
        if max_ms is None and self._has_commit_time(name):
            max_ms = committed.get(start)
        times = list(earlier) if earlier or max_ms is None else [SourceTime(version=start, at_ms=max_ms)]
        for version in _evenly_spaced(history[history.index(start) + 1 : history.index(newest) + 1]):
            newest_ms = self._greatest_added(table, column, start, version)
            max_ms = newest_ms if max_ms is None else max(max_ms, newest_ms or max_ms)
            if max_ms is not None:
                times.append(SourceTime(version=version, at_ms=max_ms))
            start = version
        return times

    def _greatest_added(self, table: LakeTable, column: str, old: Version, new: Version) -> int | None:
        try:
            added = table.changed_rows(self._job.base, old, new).added
        except HistoryLostError:
            added = table.read(self._job.base, new)
        return None if added is None else self._greatest(added, column)

    def _greatest(self, rows: DataFrame, column: str) -> int | None:
        row = rows.agg(f.unix_millis(f.max(rows[column]))).first()
        return None if row is None or row[0] is None else int(row[0])


def _reason(root: str, lag: HeldBack) -> Reason:
    code = ReasonCode.SOURCE_TIME_UNKNOWN if lag.ahead_ms is None else ReasonCode.SOURCE_FAR_BEHIND
    return Reason.of(code, root=root, behind=lag.behind)


def _evenly_spaced(versions: list[Version]) -> list[Version]:
    """At most `_MAX_VERSIONS_PER_CUT`, evenly, the last among them."""
    step = -(-len(versions) // _MAX_VERSIONS_PER_CUT) or 1
    return versions[::-1][::step][::-1]
