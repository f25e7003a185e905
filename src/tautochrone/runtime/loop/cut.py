"""The cut: which version of every root table a checkpoint names.

Tags on external tables keep the versions of the cuts from being expired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tautochrone.errors import TableMissingError, TautochroneError
from tautochrone.meta.protocols.checkpoints import Roots
from tautochrone.model import events
from tautochrone.model.lake import NO_VERSION, ChangeKind, LakeTable, ReadableTable
from tautochrone.model.names import NOW, TableName, Version, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.job import ClockTable, Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.topology import JobTopology

__all__ = ["Cut", "changed_roots", "missing_tables", "tag_cut", "take_cut"]

_TAG_PREFIX = "tautochrone-cut-"


@dataclass(frozen=True, slots=True)
class Cut:
    """The version of every root table, and why some external tables have none.

    Attributes:
        roots: versions of ingested roots, external tables and clocks.
        missing: external tables that could not be read, with the reason.
        taken_at_us: microseconds since 1970; `now()` in all views of the checkpoint.
        observed_ms: the same moment by the store's clock, in milliseconds.
        observations: the newest source observation of each root; see `Jobs.heartbeat`.
    """

    roots: dict[TableName, Version]
    missing: dict[TableName, Reason]
    taken_at_us: int
    observed_ms: int
    observations: dict[TableName, int]


def take_cut(
    job: Job,
    observed_ms: int,
    ingested: Mapping[TableName, int],
    unfollowed: Collection[TableName] = (),
    unreadable: Mapping[TableName, Reason] = MappingProxyType({}),
) -> Cut:
    """Take the reported versions of the job's roots and the current versions of external tables.

    Ingestion goes on meanwhile. An external table that was dropped gets no version; its readers fail with
    the reason, other tables are refreshed. The store adds the roots of other jobs. Clocks are taken here
    for all jobs.

    Args:
        observed_ms: now, by the store's clock.
        ingested: see `Ingestion.committed_up_to_ms`. Asked before the call, because a version may contain
            more than its observations say, never less.
        unfollowed: tables of files that do not agree with the files: they get no version.
        unreadable: shadow tables of tables that cannot be followed, with the reason.
    """
    taken_at_us = job.clock_us()
    observations = _observations(job.topology, ingested)
    reported = job.store.roots.reported(job.name)
    roots = {name: reported[name] for name in job.topology.root_tables if name in reported}
    missing: dict[TableName, Reason] = {}
    external_tables = sorted(job.external_tables() - {*unfollowed})
    observed = job.store.roots.external_versions() if external_tables else {}
    for name in external_tables:
        if name in unreadable:
            missing[name] = unreadable[name]
            continue
        try:
            table = job.observed_tables.get(name) or job.lake.load(name)
            roots[name], is_current = _observe_external(job.journal, table, observed.get(name))
        except TableMissingError as error:
            job.observed_tables.pop(name, None)
            missing[name] = _missing_reason(error)
            continue
        job.observed_tables[name] = table
        if is_current:
            observations[name] = observed_ms
    for name in sorted(job.topology.clocks | job.store.roots.shared_clocks(job.name)):
        roots[name] = ClockTable(name, job.base).version_at(taken_at_us)
    return Cut(roots, missing, taken_at_us, observed_ms, observations)


def missing_tables(
    job: Job, names: Collection[TableName], unreadable: Mapping[TableName, Reason]
) -> dict[TableName, Reason]:
    """Those of some external tables that cannot be read now, with the reason.

    Args:
        unreadable: as of `take_cut`.
    """
    missing = {name: unreadable[name] for name in names if name in unreadable}
    for name in sorted({*names} - missing.keys()):
        try:
            job.lake.load(name)
        except TableMissingError as error:
            missing[name] = _missing_reason(error)
    return missing


def _missing_reason(error: TableMissingError) -> Reason:
    return Reason.of(ReasonCode.INPUT_UNREADABLE, error_class=error.error_class, text=str(error))


def _observations(topology: JobTopology, ingested: Mapping[TableName, int]) -> dict[TableName, int]:
    """The source observations of the job's own roots. A quarantine table has those of its table."""
    quarantines = {topology.quarantine_table(table): ms for table, ms in ingested.items()}
    times = {table: ingested.get(table, quarantines.get(table)) for table in topology.root_tables}
    return {table: ms for table, ms in times.items() if ms}


def _observe_external(journal: Journal, table: LakeTable, observed: Version | None) -> tuple[Version, bool]:
    """The version of an external table that all jobs agree on, and whether it is the current one.

    Jobs that read the same table record what they observed in the store. Another job may have read the
    table earlier and recorded its version later; then that version counts.
    """
    current = table.current_version()
    # The files of an older version of a shadow table may be removed by their owner once they are rewritten.
    if observed is not None and not is_shadow_table(table.name) and not _is_changed(table, observed, current):
        return observed, True
    if current == observed:
        return current, True
    agreed = journal.record(Roots.observe_external_table, table.name, observed, current)
    return agreed, agreed == current


def changed_roots(
    load_input: Callable[[TableName], ReadableTable], cut: Cut, last: Mapping[TableName, Version]
) -> list[TableName]:
    """Roots whose rows differ from the last cut.

    A fence or a compaction changes no rows. The clock `now()` changes with every cut and is not counted,
    because it would open checkpoints without end; a new date is counted.

    Args:
        load_input: loads a table or a clock.
        cut: a version that differs without a change of rows is replaced by the one of the last cut, but
            for shadow tables: see `_observe_external`.
        last: the versions at the last cut.
    """
    changed = [name for name in cut.missing if name in last]
    for name, version in cut.roots.items():
        before = last.get(name)
        if before == version or (name == NOW and before is not None):
            continue
        if before is None or _is_changed(load_input(name), before, version):
            changed.append(name)
        elif not is_shadow_table(name):
            cut.roots[name] = before
    return changed


def _is_changed(table: ReadableTable, old: Version, new: Version) -> bool:
    return table.change_between(old, new).kind is not ChangeKind.NONE


def tag_cut(
    load: Callable[[TableName], LakeTable],
    versions: Mapping[TableName, Version],
    kept: int,
    emit: events.Emit,
) -> None:
    """Tag each external table's version of the cut, and drop the oldest tags when it has more than `kept`.

    A table that cannot be tagged is reported and does not fail the run: its readers fail later, if the
    version expires before they are done.
    """
    for name, version in sorted(versions.items()):
        if version == NO_VERSION:
            continue
        try:
            load(name).tag_newest(version, _TAG_PREFIX, kept)
        except TautochroneError as error:
            reason = Reason.of(ReasonCode.TAG_FAILED, error_class=error.error_class, text=str(error))
            emit(events.OutsiderNotTagged(dataset=str(name), reason=reason))
