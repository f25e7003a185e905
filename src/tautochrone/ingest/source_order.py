"""Whether each source of a flow still has the number under which its position is kept.

Spark keeps the positions of a query's sources by their order in the query. Two streams of files that change
places would each get the files that the other one has read: all of them would come again.
"""

from __future__ import annotations

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
        before, now: by number (as text) what each source reads.

    >>> moved_source({"0": "files in /a", "1": "files in /b"}, {"0": "files in /b", "1": "files in /a"})
    'files in /b'
    >>> moved_source({"0": "files in /a", "1": "files in /b"}, {"0": "files in /c", "1": "files in /b"})
    """
    for number, source in sorted(now.items()):
        former = [other for other, text in before.items() if text == source]
        if former and number not in former and any(now.get(other) != source for other in former):
            return source
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
        self._sources = {number: ", ".join(sorted(texts)) for number, texts in ids.items() if texts}
        moved = None if position is None else moved_source(position.sources, self._sources)
        if moved is not None:
            raise IngestError(
                "FLOW_SOURCES_REORDERED",
                f"The streams of {self.flow} are in another order: {moved} would go on where another stream "
                f"stood",
                hint="keep the streams of a flow in their order, or give each one a flow of its own "
                "(@dp.append_flow, CREATE FLOW); --full-refresh of the table reads all of them again",
            )
        return None

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: adds what each source reads."""
        del previous
        return replace(position, sources=self._sources)
