"""What every streaming query that Spark runs for a flow needs, whether it writes a table or a sink."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tautochrone.errors import IngestError, TautochroneError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.ingest.stream_errors import explain
from tautochrone.model import events
from tautochrone.model.effects import Effects, Step

__all__ = ["Begin", "SparkQuery", "StreamingFlow"]

T = TypeVar("T")
_STOP_TIMEOUT_S = 60.0
"""A batch that runs longer than this is interrupted at the end of a run."""

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Writes a file under another name and renames it, as the default does. With local files the default starts
eight processes for each, since it looks for symbolic links."""


Begin = Callable[[SparkSession, Mapping[int, str], Mapping[int, str]], tuple[DataFrame, Mapping[int, str]]]
"""From a session and where the sources began and stand to the flow's rows and initial offsets for them."""


class StreamingFlow(Protocol):
    """A flow that can be run as a stream."""

    @property
    def name(self) -> str: ...

    def evaluate(self, session: SparkSession) -> DataFrame: ...

    def with_flags(self, rows: DataFrame) -> DataFrame:
        """Rows of `evaluate` with a column for each expectation: true if the row violates it."""


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class SparkQuery(ABC):
    """A flow that Spark runs, with a checkpoint folder. It may be started again after it ended."""

    flow: StreamingFlow
    effects: Effects
    emit: events.Emit
    begin: Begin | None = None
    """See `model.catalog.LakeCatalog.beginning`; None for flows that read no stream of the lake."""
    require_fence: Callable[[], object] = lambda: None
    """Raises FencedError when a newer owner of the job exists. Asked before each step at the folder: a
    paused process may still take it later, which its folder's name makes harmless."""
    _query: StreamingQuery | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    @property
    @abstractmethod
    def _target(self) -> str:
        """The table or the sink, as people name it."""

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    @property
    def has_completed_once(self) -> bool:
        """Whether a batch, or a trigger without new rows, succeeded since the last start."""
        return self._query is not None and self._query.lastProgress is not None

    def ends_within(self, timeout_s: float) -> bool:
        """Wait until it is no longer at work, for `timeout_s` at most."""
        # The JVM waits: asking it again and again would be a message each time.
        if self._query is not None:
            with contextlib.suppress(PySparkException):  # `failure` says why it failed
                return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type]  # fractions are taken
        return True

    def failure(self) -> TautochroneError | None:
        """Why the query is dead, if it died by itself."""
        if self._query is None or self._stopped or self._query.isActive:
            return None
        problem = self._query.exception()
        return self._died_silently() if problem is None else explain(problem, self.flow.name)

    def step(self, step: Step, action: Callable[[], T]) -> T:
        """One durable step at the flow's folder, only while this run holds the fence."""
        self.require_fence()
        try:
            return self.effects.perform(step, self._target, action)
        except FileNotFoundError as error:
            # A newer owner may have moved the folder, or the content of an older one.
            self.require_fence()
            raise IngestError(
                "FLOW_POSITIONS_LOST",
                f"Flow {self.flow.name}: its folder is needed, but {error} is missing",
                hint=f"start over with --full-refresh {self._target}",
            ) from error

    # -- for the queries --------------------------------------------------------------------------

    def _died_silently(self) -> TautochroneError | None:
        """What it means that the query ended, and Spark has no exception."""
        return None

    def _rows(
        self, session: SparkSession, folder: CheckpointFolder, offsets: str | None
    ) -> tuple[DataFrame, Mapping[int, str]]:
        """The flow's rows, and initial offsets that its sources must get.

        Args:
            offsets: where the flow stands; None before its first batch.
        """
        if self.begin is None:
            return self.flow.evaluate(session), {}
        reached = {} if offsets is None else dict(enumerate(source_offsets(offsets)))
        return self.begin(session, folder.iceberg_initial_offsets(), reached)

    def _launch(
        self,
        session: SparkSession,
        writer: DataStreamWriter,
        folder: CheckpointFolder,
        trigger: Mapping[str, Any],
    ) -> StreamingQuery:
        """Start the query. `session` is that of the writer, `trigger` is as of `DataStreamWriter.trigger`."""
        if folder.is_local and session.conf.get(_FILE_MANAGER, None) is None:
            session.conf.set(_FILE_MANAGER, _LOCAL_FILE_MANAGER)
        self._query = writer.option("checkpointLocation", folder.path).trigger(**trigger).start()
        return self._query

    def _end(self) -> None:
        """End the query after the batch that runs.

        Spark's own `stop` interrupts a running batch. That loses nothing, but it looks like a failure and
        the next start has work to repeat: so wait for the batch, up to `_STOP_TIMEOUT_S`.
        """
        query = self._query
        if query is None or not query.isActive:
            return
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.05)
        self._stopped = query.isActive
        query.stop()
