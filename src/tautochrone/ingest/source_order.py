"""Whether each source of a flow still has the number under which its position is kept.

Spark keeps the positions of a query's sources by their order in the query. Two streams of files that change
places would each get the files that the other one has read: all of them would come again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.ingest.source_checks import SourceCheck
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.registry import sources_of

__all__ = ["SourceOrder", "moved_source"]


def moved_source(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """A source that has another number than before; None: there is none.

    Args:
        before, now: by number (as text) a hash of what each source reads.

    Returns:
        Its number now.

    >>> moved_source({"0": "a", "1": "b"}, {"0": "b", "1": "a"})
    '0'
    >>> moved_source({"0": "a", "1": "b"}, {"0": "c", "1": "b"})
    """
    for number, source in sorted(now.items()):
        former = [other for other, text in before.items() if text == source]
        if former and number not in former and any(now.get(other) != source for other in former):
            return number
    return None


@dataclass(slots=True)
class SourceOrder(SourceCheck):
    """The check of one flow."""

    flow: str
    _sources: dict[str, str] = field(default_factory=dict)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """See `SourceCheck`.

        Raises:
            IngestError: `FLOW_SOURCES_REORDERED`.
        """
        del session
        ids = {str(source.number): source.input_ids() for source in sources_of(rows)}
        texts = {number: ", ".join(sorted(names)) for number, names in ids.items() if names}
        # Hashes, because a copy of a project must not name the folders of its original.
        self._sources = {number: _hash(text) for number, text in texts.items()}
        moved = None if position is None else moved_source(position.sources, self._sources)
        if moved is not None:
            raise IngestError(
                "FLOW_SOURCES_REORDERED",
                f"The streams of {self.flow} are in another order: {texts[moved]} would go on where another "
                f"stream stood",
                hint="keep the streams of a flow in their order, or give each one a flow of its own "
                "(@dp.append_flow, CREATE FLOW); --full-refresh of the table reads all of them again",
            )
        return None

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: adds what each source reads."""
        del previous
        return replace(position, sources=self._sources)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
