"""The cut: which version of every root table a checkpoint names."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.errors import TableMissingError
from tautochrone.model.clock import NOW
from tautochrone.model.lake import ChangeKind
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.job.clock_table import ClockTable
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.streams.ingestion import Ingestion

__all__ = ["Cut", "take_cut", "what_changed"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The version of every root table, and why some external tables have none.

    Attributes:
        roots: versions of ingested roots, external tables and clocks.
        missing: external tables that could not be read, with the reason.
        taken_at_us: microseconds since 1970; `now()` in all views of the checkpoint.
        looked_ms: the same moment by the store's clock, in milliseconds.
        looks: see `MetaStore.beat`.
    """

    roots: dict[TableName, Version]
    missing: dict[TableName, str]
    taken_at_us: int
    looked_ms: int
    looks: dict[TableName, int]


def take_cut(job: Job, ingestion: Ingestion) -> Cut:
    """What was reported of our own roots, what is current of outsiders' tables. Ingestion never waits.

    A table that went away keeps no version: its readers fail with the reason, the rest goes on. What
    other jobs bring in or look at is not here: the store knows it. Clocks are here for all of them.
    """
    looked_ms, taken_at_us = job.store.now_ms(), job.clock_us()
    # Before what is reported is read: by then there may be more in a table than its flows have told.
    looks = _ingested(job, ingestion, looked_ms)
    reported = job.store.reported(job.name)
    roots = {name: reported[name] for name in job.topology.root_tables if name in reported}
    missing: dict[TableName, str] = {}
    outsiders = sorted(job.external_tables())
    observed = job.store.observed() if outsiders else {}
    for name in outsiders:
        try:
            roots[name], agreed = _observed(job, name, observed.get(name))
        except TableMissingError as error:
            missing[name] = str(error)
            continue
        if agreed:
            looks[name] = looked_ms
    for name in sorted(job.topology.clocks | job.store.shared_clocks(job.name)):
        roots[name] = ClockTable(name, job.base).version_at(taken_at_us)
    return Cut(roots, missing, taken_at_us, looked_ms, looks)


def _ingested(job: Job, ingestion: Ingestion, looked_ms: int) -> dict[TableName, int]:
    """The looks at the sources of the job's own roots. A table of bad records has those of its table."""
    committed = ingestion.committed_up_to_ms()
    ingestion.store_time_is(looked_ms)
    quarantines = {job.topology.quarantine_table(table): ms for table, ms in committed.items()}
    times = {table: committed.get(table, quarantines.get(table)) for table in job.topology.root_tables}
    return {table: ms for table, ms in times.items() if ms}


def _observed(job: Job, name: TableName, known: Version | None) -> tuple[Version, bool]:
    """An outsider's table now, and whether that is what was found here just now. Jobs that read the same
    one agree on what was seen of it last: another may have looked before us and told it later."""
    current = job.lake.load(name).current_version()
    if current == known or (known is not None and not _moved(job, name, known, current)):
        return known, True
    agreed = job.journal.observe(name, known, current)
    return agreed, agreed == current


def what_changed(job: Job, cut: Cut, last: dict[TableName, Version]) -> list[TableName]:
    """Roots whose rows differ from the last cut. Fences and compactions are no news, nor is it that time went
    on: what asks for `now()` is brought to a checkpoint, but opens none. A new date does.
    """
    news = [name for name in cut.missing if name in last]
    for name, version in cut.roots.items():
        known = last.get(name)
        if known == version or (name == NOW and known is not None):
            continue
        if known is None or _moved(job, name, known, version):
            news.append(name)
        else:
            # Same rows under another snapshot: keep the one that readers know.
            cut.roots[name] = known
    return news


def _moved(job: Job, name: TableName, old: Version, new: Version) -> bool:
    table = job.input_table(name)
    return table.change_between(old, new).kind is not ChangeKind.NONE
