"""One flow into a sink that Spark writes: a Structured Streaming query with a checkpoint folder of its own.

The folder alone says how far the sink has come. A batch that a killed process planned runs again with the
same number and the same rows: at least once, and once only where the sink remembers the numbers of batches,
as Spark's file sink does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tautochrone.errors import IngestError, SinkError, TautochroneError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder, Files, FlowCheckpointFolders
from tautochrone.ingest.source_checks import RowsLeftOut
from tautochrone.ingest.spark_query import SparkQuery
from tautochrone.ingest.stream_errors import explain
from tautochrone.model import events
from tautochrone.model.effects import Step
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.sources.registry import prepared_stream

__all__ = ["SinkQuery"]

_METRIC = "tautochrone_sink"
_FILE_LOG = "_spark_metadata"
"""The log of Spark's file sink: the numbers of the batches whose files are in the folder."""


@dataclass(slots=True, kw_only=True)
class SinkQuery(SparkQuery):
    """A flow bound to its sink and to its folder.

    `batch` is the number of the last batch that the sink took from this process; `rows` counts the rows of
    these batches.
    """

    sink: str
    format: str
    options: Mapping[str, str] = field(repr=False)
    files: Files
    folders: FlowCheckpointFolders
    batch: int | None = None
    rows: int = 0
    _left_out: RowsLeftOut = field(init=False)

    def __post_init__(self) -> None:
        self._left_out = RowsLeftOut(self.flow.name, self.sink, self.emit)

    @property
    def folder(self) -> CheckpointFolder:
        return self.folders.own

    @property
    def _target(self) -> str:
        return self.sink

    def start(self, session: SparkSession, **trigger: Any) -> None:
        """Take over the folder of the last owner, if that is not done yet, then start.

        Raises:
            TautochroneError: the source or the sink refuses, or a newer owner exists.
        """
        self.move_checkpoint_folder_from_last_owner()
        self._require_log_of_own_batches()
        self._stopped = False
        try:
            evaluated = self._evaluate(session)
            self._left_out.begin(session, evaluated, None)
            self._left_out.close()
            # Spark by itself leaves out files that are older than others by a week.
            rows = prepared_stream(session, evaluated)
            # Spark looks a Python data source up in the active session.
            set_active_session(session)
            counted = rows.observe(_METRIC, F.count(F.lit(1)).alias("rows"))
            writer = counted.writeStream.queryName(self.flow.name).format(self.format)
            self._launch(session, writer.options(**self.options).outputMode("append"), self.folder, trigger)
        except (PySparkException, Py4JJavaError) as error:
            # PySpark has no exception of its own for a format that Spark cannot find.
            raise explain(error, self.flow.name) from error

    def offsets(self) -> str | None:
        """The offsets of the newest batch that the sink took; None before the first.

        Call `move_checkpoint_folder_from_last_owner` before.
        """
        finished = self.folder.state().finished
        return None if finished is None else self.folder.offsets(finished)

    def collect(self) -> bool:
        """Report the batches since the last call; whether there were any."""
        query = self._query
        newest = None if query is None else query.lastProgress
        if query is None or newest is None or newest.batchId == self.batch:
            return False
        has_new = False
        for progress in query.recentProgress:
            metrics = progress.observedMetrics.get(_METRIC)
            if metrics is None or (self.batch is not None and progress.batchId <= self.batch):
                continue
            has_new, self.batch = True, int(progress.batchId)
            self.rows += int(metrics["rows"])
            self.emit(
                events.SinkBatch(
                    sink=self.sink,
                    flow=self.flow.name,
                    batch=self.batch,
                    rows=int(metrics["rows"]),
                )
            )
        return has_new

    def take_failure(self) -> TautochroneError | None:
        """As `failure`, which then forgets the dead query."""
        failure = self.failure()
        if failure is not None:
            self._query = None
        return failure

    def stop(self) -> None:
        """End the query after the batch that runs."""
        self._end()
        self.collect()

    def move_checkpoint_folder_from_last_owner(self) -> None:
        """The last owner's folder says how far the sink has come: it becomes ours, unless ours has a query.
        Leftovers are deleted. Repeatable.

        Raises:
            TautochroneError: a newer owner exists.
        """
        own = self.folder
        if own.query_id is None:
            last = next((folder for folder in self.folders.older() if folder.query_id is not None), None)
            if last is not None:

                def move() -> None:
                    own.move_from(last)
                    own.correct_schema_paths()

                self.step(Step.INGEST_FOLDER, move)
        if self.folders.has_leftovers:
            self.step(Step.INGEST_CLEAN, self.folders.delete_leftovers)

    def _require_log_of_own_batches(self) -> None:
        """Spark's file sink silently skips a batch whose number is in its log, whatever its rows are."""
        path = next((text for key, text in self.options.items() if key.lower() == "path"), None)
        if path is None:
            return
        numbers = (name.split(".")[0] for name in self.files.names(f"{path}/{_FILE_LOG}"))
        newest = max((int(number) for number in numbers if number.isdigit()), default=-1)
        planned = self.folder.state().planned
        if newest > (-1 if planned is None else planned):
            raise SinkError(
                "SINK_FOLDER_HAS_BATCHES",
                f"Sink {self.sink}: the folder {path} already has batches up to {newest}, which flow "
                f"{self.flow.name} did not write since it began; Spark would skip its first batches",
                hint="give the sink an empty folder: another path, or move the files away together with "
                f"{_FILE_LOG}",
                parameters={"sink": self.sink},
                sqlstate="55000",
            )

    def _evaluate(self, session: SparkSession) -> DataFrame:
        offsets = None if self.begin is None else self.offsets()
        rows, initial_offsets = self._rows(session, self.folder, offsets)
        if initial_offsets and offsets is None and self.folder.state().planned is not None:
            raise IngestError(
                "FLOW_POSITIONS_LOST",
                f"Flow {self.flow.name} must run its first batch again, whose versions are expired",
                hint=f"send all rows again with --full-refresh {self.sink}",
            )
        if initial_offsets:
            self.step(Step.INGEST_FOLDER, lambda: self.folder.set_iceberg_initial_offsets(initial_offsets))
        return rows
