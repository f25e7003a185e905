"""Compares what a sink shows with the lake at the same checkpoint, by content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.delivery import SinkDeclaration
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.sink import Digest, RowAudit, RowDifference, Sink
from tautochrone.sinks import open_sink

__all__ = ["SinkVerdict", "verify_sink"]

_SHOWN_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkVerdict:
    """One table of a sink.

    Attributes:
        rows: of the lake and of the sink.
        parts: of the sink's partitions or hash ranges those that differ.
        differences: rows that differ, some of them, if the sink can name them.
    """

    sink: str
    dataset: TableName
    checkpoint: CheckpointNumber
    lake_rows: int
    sink_rows: int
    parts: tuple[str, ...] = ()
    differences: tuple[RowDifference, ...] = field(default=())

    @property
    def equal(self) -> bool:
        return not self.parts


def verify_sink(
    session: Any,
    store: Store,
    lake: LakeCatalog,
    declaration: SinkDeclaration,
    tables: Sequence[TableName],
    number: int | None,
) -> Iterator[SinkVerdict]:
    """Compare tables of a sink at a checkpoint, or at the one that its readers see.

    Raises:
        SinkError: `SINK_SHOWS_NOTHING`, nothing was delivered yet; `SINK_CANNOT_AUDIT`,
            `SINK_CHECKPOINT_GONE`.
        CheckpointUnavailableError: `number` is no published checkpoint.
    """
    sink = open_sink(declaration.name, declaration.format, declaration.options)
    try:
        if not sink.capabilities.audits:
            raise SinkError(
                "SINK_CANNOT_AUDIT",
                f"Sink {declaration.name} ({declaration.format}) cannot tell what it holds",
                sqlstate="0A000",
            )
        published = sink.published()
        if published is None:
            raise SinkError("SINK_SHOWS_NOTHING", f"Sink {declaration.name} has no checkpoint yet")
        checkpoint = published.checkpoint if number is None else CheckpointNumber(number)
        versions = (
            published.versions
            if checkpoint == published.checkpoint
            else store.checkpoints.versions_at(checkpoint)
        )
        for name in tables or declaration.tables:
            if name in versions:
                yield _verdict(session, lake, sink, declaration.name, name, checkpoint, versions[name])
    finally:
        sink.close()


def _verdict(
    session: Any,
    lake: LakeCatalog,
    sink: Sink,
    sink_name: str,
    name: TableName,
    checkpoint: CheckpointNumber,
    version: Version,
) -> SinkVerdict:
    rows = lake.load(name).read(session, version)
    expected, shown = sink.digest(name, rows), sink.audit(name, checkpoint)
    nothing = Digest(0, "")
    parts = [
        part
        for part in sorted(expected.keys() | shown.keys())
        if expected.get(part, nothing) != shown.get(part, nothing)
    ]
    differences: Sequence[RowDifference] = ()
    if parts and isinstance(sink, RowAudit):
        differences = sink.differences(name, checkpoint, rows, _SHOWN_ROWS)
    return SinkVerdict(
        sink=sink_name,
        dataset=name,
        checkpoint=checkpoint,
        lake_rows=sum(digest.rows for digest in expected.values()),
        sink_rows=sum(digest.rows for digest in shown.values()),
        parts=tuple(parts),
        differences=tuple(differences),
    )
