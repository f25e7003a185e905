"""Finds published tables that others damaged, and has them published anew.

Somebody may have committed to a published table, or have removed its files. Such a table is set aside whole,
in one step, so that nothing of it is lost; then the delivery begins it anew at the newest checkpoint. A
process that dies in between leaves a publication without the table, and the next delivery begins it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tautochrone.model import events
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import NO_VERSION, VersionFiles
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.sink import PUBLICATIONS, Repairable, Sink, SinkDeclaration
from tautochrone.runtime.delivery.delivery import Delivery
from tautochrone.runtime.job.job import Job
from tautochrone.sinks import open_sink

__all__ = ["Damage", "repair", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A table of a sink that is not as it was delivered."""

    sink: str
    dataset: TableName
    reason: Reason


def survey(
    lake: LakeCatalog, declarations: Sequence[SinkDeclaration], tables: Sequence[TableName]
) -> list[Damage]:
    """What is damaged. Changes nothing.

    Args:
        tables: to look at; none: all.

    Raises:
        SinkError: a sink cannot be opened or read.
        LakeError: so it is with a table of the lake.
    """
    damages: list[Damage] = []
    for declaration in _publications(declarations):
        sink = open_sink(declaration.name, declaration.format, declaration.options)
        try:
            damages += _damages(lake, declaration, sink, tables)
        finally:
            sink.close()
    return damages


def _publications(declarations: Sequence[SinkDeclaration]) -> list[SinkDeclaration]:
    return [each for each in declarations if each.format in PUBLICATIONS.values()]


def _damages(
    lake: LakeCatalog, declaration: SinkDeclaration, sink: Sink, tables: Sequence[TableName]
) -> Iterator[Damage]:
    if not isinstance(sink, Repairable):
        return
    published = sink.published()
    versions = {} if published is None else published.versions
    # Of a table that is not published yet, somebody else's may stand in its place.
    for table in dict.fromkeys([*versions, *declaration.tables]):
        if not tables or table in tables:
            files = _files_at(lake, table, versions[table]) if table in versions else None
            reason = sink.damage(table, files)
            # What its owner published meanwhile is not compared with the version of before.
            if reason is not None and sink.published() == published:
                yield Damage(sink=declaration.name, dataset=table, reason=reason)


def _files_at(lake: LakeCatalog, table: TableName, version: Version) -> VersionFiles | None:
    """None: the version expired, or is no longer in the table's history."""
    stored = lake.load(table)
    is_there = version == NO_VERSION or any(each.version == version for each in stored.versions())
    return stored.files_at(version) if is_there else None


def repair(job: Job, declarations: Sequence[SinkDeclaration], tables: Sequence[TableName]) -> list[Damage]:
    """Set damaged tables aside and publish them anew. The job is owned.

    Returns:
        What was damaged.

    Raises:
        SinkError, LakeError: what is against it; what was set aside is begun anew by the next delivery.
        FencedError: a newer owner runs the job.
    """
    damages: list[Damage] = []
    for declaration in _publications(declarations):
        delivery = Delivery(job, declaration)
        try:
            sink = delivery.claimed_sink()
            for damage in _damages(job.lake, declaration, sink, tables):
                damages.append(damage)
                assert isinstance(sink, Repairable)
                folder = delivery.journal.set_aside(sink, damage.dataset)
                job.emit(
                    events.SinkTableSetAside(
                        sink=damage.sink, dataset=str(damage.dataset), folder=folder, reason=damage.reason
                    )
                )
            delivery.deliver()
        finally:
            delivery.close()
    return damages
