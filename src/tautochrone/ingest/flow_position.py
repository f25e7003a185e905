"""Where a table says that a flow stands in its source."""

from __future__ import annotations

from typing import TypeVar

from tautochrone.errors import IngestError
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.source_position import LogPosition, SnapshotPosition, SourcePosition, SparkPosition

__all__ = ["position_of"]

P = TypeVar("P", SparkPosition, LogPosition, SnapshotPosition)


def position_of(
    commit_metadata: CommitMetadata | None, flow: str, position_type: type[P], source: str, tables: str
) -> P | None:
    """None: it has taken in nothing yet.

    Args:
        source: what the flow reads now, whose positions have the type; for the error.
        tables: those that a full refresh must name, for the error.

    Raises:
        IngestError: the flow read by other means before, and its position means nothing to this source.
    """
    position = None if commit_metadata is None else commit_metadata.positions.get(flow)
    if position is None or isinstance(position, position_type):
        return position
    raise IngestError(
        "FLOW_POSITIONS_DIVERGED",
        f"Flow {flow} read {_source_of(position)} before, and reads {source} now",
        hint=f"start over with --full-refresh {tables}",
    )


def _source_of(position: SourcePosition) -> str:
    match position:
        case LogPosition():
            return f"the change log {position.log}"
        case SnapshotPosition():
            return "snapshots of a function"
        case SparkPosition():
            return "a stream of Spark"
