"""Up to which time a flow has taken in all that its sources held, and where it stands in them.

The store's clock and this machine's need not agree, so times are not compared across them: the store is
asked for its time, and a trigger that begins afterwards by this machine's clock, which is Spark's too,
looks at its sources after that time. When such a trigger has taken all that it met, so it has for the time
that was asked for. A trigger that took a part (rate limits, a minimum that is not reached), or that ran a
batch planned earlier, says nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from tautochrone.errors import IngestError
from tautochrone.model import limits
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.moments import now_ms
from tautochrone.model.source_position import LogPosition, SnapshotPosition, SourcePosition, SparkPosition

__all__ = ["ObservedSource", "SourceObservations", "position_of", "took_all"]


# PySpark makes a text of every offset, also of one that is not there.
_NO_OFFSET = (None, "None")


class ObservedSource(Protocol):
    """What is asked of a source; `spark.sources.spark_source` answers."""

    def takes_all_listed(self, description: str) -> bool | None: ...


def took_all(progress: Mapping[str, Any], sources: Sequence[ObservedSource]) -> bool:
    """Whether a trigger took all that it met when it looked.

    Args:
        progress: a `StreamingQueryProgress` of Spark's.
        sources: those of the query.
    """
    if "latestOffset" not in progress["durationMs"]:
        # The first batch after a start may be one that was planned before it.
        return False
    return all(_took_all_of(reported, sources) for reported in progress["sources"])


def _took_all_of(reported: Mapping[str, Any], sources: Sequence[ObservedSource]) -> bool:
    start, end, latest = (reported[key] for key in ("startOffset", "endOffset", "latestOffset"))
    if latest not in _NO_OFFSET:
        return bool(end == latest)
    if end not in _NO_OFFSET and start == end:
        return True
    answers = [source.takes_all_listed(str(reported["description"])) for source in sources]
    promises = [answer for answer in answers if answer is not None]
    return bool(promises) and all(promises)


@dataclass(slots=True)
class SourceObservations:
    """The observations of one flow. All that its sources held at `committed_up_to_ms`, by the store's clock,
    is committed and reported; None: not known of any time."""

    committed_up_to_ms: int | None = None
    _times: deque[tuple[int, int]] = field(default_factory=deque)

    def store_time_is(self, store_ms: int) -> None:
        """It is `store_ms` now, or was a moment ago, by the store's clock."""
        if len(self._times) >= limits.MAX_SOURCE_OBSERVATIONS:
            # A batch that runs for long: every second one will do, the newest among them.
            self._times = deque(list(self._times)[1::2])
        self._times.append((store_ms, now_ms()))

    def took_all_since(self, began_ms: int) -> None:
        """What the sources held at `began_ms`, by this machine's clock, is committed and reported."""
        while self._times and self._times[0][1] < began_ms:
            self.committed_up_to_ms = self._times.popleft()[0]

    def note_trigger(self, progress: Mapping[str, Any] | None, sources: Sequence[ObservedSource]) -> None:
        """A trigger ended; None: none did yet."""
        if progress is not None and took_all(progress, sources):
            began = datetime.fromisoformat(progress["timestamp"])
            self.took_all_since(round(began.timestamp() * 1000))


P = TypeVar("P", SparkPosition, LogPosition, SnapshotPosition)


def position_of(
    commit_metadata: CommitMetadata | None, flow: str, position_type: type[P], source: str, tables: str
) -> P | None:
    """Where a table says that a flow stands in its source. None: it has taken in nothing yet.

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
