"""The cut: which version of every root table a checkpoint names."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.errors import TableMissingError
from tautochrone.model.clock import NOW
from tautochrone.model.lake import ChangeKind
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.clock import ClockTable
from tautochrone.runtime.job import Job

__all__ = ["Cut", "take_cut", "what_changed"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Versions of the roots, and outsiders' tables that could not be read with the reason.

    `micros` is when it was taken, since 1970: the time that all views of the checkpoint know.
    """

    roots: dict[TableName, Version]
    missing: dict[TableName, str]
    micros: int


def take_cut(job: Job) -> Cut:
    """What was reported of our own roots, what is current of outsiders' tables. Ingestion never waits.

    A table that went away keeps no version: its readers fail with the reason, the rest goes on.
    """
    micros = job.micros()
    reported = job.store.reported(job.name)
    roots = {name: reported[name] for name in job.root_tables if name in reported}
    missing: dict[TableName, str] = {}
    for name in sorted(job.outsiders):
        try:
            roots[name] = job.lake.load(name).current_version()
        except TableMissingError as error:
            missing[name] = str(error)
    for name in sorted(job.clocks):
        roots[name] = ClockTable(name, job.base).version_at(micros)
    return Cut(roots, missing, micros)


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
