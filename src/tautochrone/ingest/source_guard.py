"""What a flow asks of its sources around each batch, so that none of their rows is left out in silence.

A flow that reads nothing from outside has a guard without anything to guard.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.errors import IngestError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.kafka_topics import KafkaTopics
from tautochrone.ingest.source_files import SourceFiles
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.files import taking_all_ages

__all__ = ["SourceGuard"]


@dataclass(slots=True)
class SourceGuard:
    """The guard of one flow, for all its starts. `problem` is why the sources are not those of before."""

    files: SourceFiles | None = None
    topics: KafkaTopics | None = None
    problem: IngestError | None = None
    _started: threading.Event = field(default_factory=threading.Event)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> tuple[DataFrame, SparkPosition | None]:
        """Before a query over `rows` starts.

        Returns:
            The rows to query, and where the flow must begin instead of `position`, or None.

        Raises:
            IngestError: `KAFKA_TOPIC_RECREATED`, `KAFKA_NOT_REACHABLE`.
        """
        self.problem = None
        self._started.clear()
        if self.files is not None:
            rows = taking_all_ages(session, rows)
        return rows, None if self.topics is None else self.topics.begin(session, rows, position)

    def started(
        self, session: SparkSession, rows: DataFrame, query: StreamingQuery, folder: CheckpointFolder
    ) -> None:
        """`query` runs over `rows` and keeps its logs in `folder`."""
        try:
            if self.files is not None:
                self.files.started(session, rows, query, folder)
        finally:
            self._started.set()

    def before(self, batch_id: int, known: SparkPosition | None) -> None:
        """A batch is about to be read. `known` is the position that it follows.

        Raises:
            IngestError: `SOURCE_FILE_MISSING`.
        """
        if self.files is not None:
            # The first batch may run before the query's start has returned.
            self._started.wait()
            self.files.require_all(batch_id, known)

    def after(self, known: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """A batch was read and is about to be committed with `position`: the position with its topics.

        Raises:
            IngestError: `KAFKA_TOPIC_RECREATED`, `KAFKA_NOT_REACHABLE`.
        """
        if self.files is not None:
            self.files.batch_done(position.batch_id, known)
        if self.topics is None:
            return position
        return replace(position, topics=self.topics.check(position.batch_id, position.offsets))

    def looked(self, progress: Mapping[str, Any] | None) -> bool:
        """Whether a trigger looked at the sources that the position speaks of; if not, maybe a `problem`.
        Without an answer it does not count, and the next one asks again."""
        if self.topics is not None and self.problem is None:
            try:
                self.topics.check_idle(progress)
            except IngestError as error:
                if error.error_class != "KAFKA_NOT_REACHABLE":
                    self.problem = error
                return False
        return self.problem is None

    def inspect(self, *, at_once: bool = False) -> None:
        """Tell of files that the sources skip; see `SourceFiles.inspect`."""
        if self.files is not None:
            self.files.inspect(at_once=at_once)

    def close(self) -> None:
        """Let go of connections; repeatable."""
        if self.topics is not None:
            self.topics.close()
