"""What a flow asks of its sources around each batch, so that none of their rows is left out silently.

Each check is about one thing that a source may be able to tell; it asks the flow's sources whether they can,
and does nothing for those that cannot. A flow that reads nothing from outside has no checks.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.errors import IngestError, SourceUnreachableError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.registry import prepared_stream, sources_of

__all__ = ["SourceCheck", "SourceChecks", "SourceOrder", "moved_source"]


class SourceCheck:
    """One check of one flow, for all its starts. By itself it does nothing."""

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """Before a query over `rows` starts.

        Returns:
            Where the flow must begin instead of `position`; None: there.
        """
        del session, rows, position
        return None

    def started(
        self, session: SparkSession, rows: DataFrame, query: StreamingQuery, folder: CheckpointFolder
    ) -> None:
        """`query` runs over `rows` and keeps its logs in `folder`."""

    def before_batch(self, batch_id: int, previous: SparkPosition | None) -> None:
        """A batch is about to be read, behind the position `previous`."""

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """A batch was read and is about to be committed with `position`: that, with what the check adds."""
        del previous
        return position

    def idle(self, progress: Mapping[str, Any] | None) -> None:
        """A trigger ended; None: none did yet."""
        del progress

    def inspect(self, *, at_once: bool = False) -> None:
        """From time to time, or `at_once`."""

    def close(self) -> None:
        """Close connections; repeatable."""


@dataclass(slots=True)
class SourceChecks:
    """All checks of one flow. `problem` is why the sources are not those of before."""

    checks: Sequence[SourceCheck] = ()
    problem: IngestError | None = None
    _started: threading.Event = field(default_factory=threading.Event)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> tuple[DataFrame, SparkPosition | None]:
        """Before a query over `rows` starts.

        Returns:
            The rows to query, and where the flow must begin instead of `position`, or None.

        Raises:
            IngestError: a source is not the one of before, or does not answer.
        """
        self.problem = None
        self._started.clear()
        if self.checks:
            rows = prepared_stream(session, rows)
        moved: SparkPosition | None = None
        for check in self.checks:
            moved = check.begin(session, rows, moved or position) or moved
        return rows, moved

    def started(
        self, session: SparkSession, rows: DataFrame, query: StreamingQuery, folder: CheckpointFolder
    ) -> None:
        """`query` runs over `rows` and keeps its logs in `folder`."""
        try:
            for check in self.checks:
                check.started(session, rows, query, folder)
        finally:
            self._started.set()

    def before_batch(self, batch_id: int, previous: SparkPosition | None) -> None:
        """A batch is about to be read, behind the position `previous`.

        Raises:
            IngestError: a part of the batch is gone.
        """
        if self.checks:
            # The first batch may run before the query's start has returned.
            self._started.wait()
        for check in self.checks:
            check.before_batch(batch_id, previous)

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """A batch was read and is about to be committed with `position`: that, with what the checks add.

        Raises:
            IngestError: a source is not the one of before, or does not answer.
        """
        for check in self.checks:
            position = check.after_batch(previous, position)
        return position

    def trigger_ended(self, progress: Mapping[str, Any] | None) -> bool:
        """A trigger ended: ask the sources whether it looked at those that the position speaks of. One that
        is not the one of before is the `problem` from now on.

        Returns:
            Whether it did. Without an answer it does not count, and the next one asks again.
        """
        if self.problem is None:
            try:
                for check in self.checks:
                    check.idle(progress)
            except IngestError as error:
                if not isinstance(error, SourceUnreachableError):
                    self.problem = error
                return False
        return self.problem is None

    def inspect(self, *, at_once: bool = False) -> None:
        """Report what the sources skip; see `SkippedFilesCheck.inspect`."""
        for check in self.checks:
            check.inspect(at_once=at_once)

    def close(self) -> None:
        """Close connections; repeatable."""
        for check in self.checks:
            check.close()


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
    """Whether each source of a flow still has the number under which its position is kept.

    Spark keeps the positions of a query's sources by their order in the query. Two streams of files that
    change places would each get the files that the other one has read: all of them would come again.
    """

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
