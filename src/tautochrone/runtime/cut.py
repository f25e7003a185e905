"""The cut: which version of every root table a checkpoint names."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.errors import TableMissingError
from tautochrone.model.lake import ChangeKind
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.job import Job

__all__ = ["Cut", "take_cut", "what_changed"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Versions of the roots, and outsiders' tables that could not be read with the reason."""

    roots: dict[TableName, Version]
    missing: dict[TableName, str]


def take_cut(job: Job) -> Cut:
    """What was reported of our own roots, what is current of outsiders' tables. Ingestion never waits.

    A table that went away keeps no version: its readers fail with the reason, the rest goes on.
    """
    reported = job.store.reported(job.name)
    roots = {name: reported[name] for name in job.root_tables if name in reported}
    missing: dict[TableName, str] = {}
    for name in sorted(job.outsiders):
        try:
            roots[name] = job.lake.load(name).current_version()
        except TableMissingError as error:
            missing[name] = str(error)
    return Cut(roots, missing)


def what_changed(job: Job, cut: Cut, last: dict[TableName, Version]) -> list[TableName]:
    """Roots whose rows differ from the last cut. Fences and compactions are no news."""
    news = [name for name in cut.missing if name in last]
    for name, version in cut.roots.items():
        known = last.get(name)
        if known == version:
            continue
        if known is None or _moved(job, name, known, version):
            news.append(name)
        else:
            # Same rows under another snapshot: keep the one that readers know.
            cut.roots[name] = known
    return news


def _moved(job: Job, name: TableName, old: Version, new: Version) -> bool:
    table = job.lake_table(name)
    return table.change_between(old, new).kind is not ChangeKind.NONE
