"""Runs the forms of `taut serve`: queries and revisions over one Spark of the service's own.

Spark starts with the first form that needs it. Queries come from people who may only read: each is a session
of its own that sees tables and nothing else, has a time limit, and is refused when too many queries wait.
Revisions are those of `taut revise`; definitions are read anew for each.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import BoundedSemaphore, Lock
from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.errors import QueryError
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.meta import Store
from tautochrone.metaservice.http.logs import FIELDS
from tautochrone.metaservice.pages.forms import Answer
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.events import Event
from tautochrone.model.names import TableName
from tautochrone.model.revision import RevisionPlan
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.reader import Reader, query_error
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import complete_pending, revise, survey
from tautochrone.spark.session.factory import stop_session
from tautochrone.spark.session.jvm_liveness import jvm_error

__all__ = ["Console", "query_answer"]

_log = logging.getLogger("tautochrone.serve")

_TIME_LIMIT_S = 60.0
_MAX_RUNNING, _MAX_WAITING = 2, 6
_MAX_CHARACTERS = 2_000
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class Console:
    """See `pages.forms`: both `Runner` and `Revisions`. Safe to share between threads.

    Args:
        spec: the project.
        settings: its settings; their store is the one that the service serves.
        store: that store, open.
        base: a session whose catalog is the project's lake, instead of a Spark of its own.
        time_limit_s: how long a query may take, not counting Spark's start.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        settings: Settings,
        store: Store,
        *,
        base: SparkSession | None = None,
        time_limit_s: float = _TIME_LIMIT_S,
    ) -> None:
        self._spec, self._settings, self._store = spec, settings, store
        self._time_limit_s = time_limit_s
        self._base = base
        self._owns_spark = base is None
        self._starting, self._revising = Lock(), Lock()
        self._slots = BoundedSemaphore(_MAX_RUNNING + _MAX_WAITING)
        self._threads = ThreadPoolExecutor(_MAX_RUNNING, thread_name_prefix="tautochrone-query")

    @property
    def started(self) -> bool:
        """Whether Spark runs already."""
        return self._base is not None

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        """See `Runner.run`.

        Raises:
            QueryError: also `QUERY_TIMED_OUT`, and `TOO_MANY_QUERIES`, which is retryable.
            EnvironmentProblemError: Spark does not start.
        """
        base = self._spark()
        if not self._slots.acquire(blocking=False):
            raise QueryError("TOO_MANY_QUERIES", "Other queries are running and waiting", retryable=True)
        group = f"query {uuid4().hex[:8]}"
        answer = self._threads.submit(self._answer, base, group, sql, consistency, checkpoint, limit)
        # A query that was given up still counts until it has really ended.
        answer.add_done_callback(lambda _: self._slots.release())
        try:
            return answer.result(self._time_limit_s)
        except TimeoutError:
            answer.cancel()
            context: Any = base.sparkContext
            context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001
            raise QueryError(
                "QUERY_TIMED_OUT",
                f"The query took longer than {self._time_limit_s:g} seconds and was stopped",
                hint="`taut query` and other engines have no such limit",
            ) from None

    def plan(self, request: RevisionRequest) -> RevisionPlan:
        """See `Revisions.plan`."""
        with self._job(request.named) as job:
            return survey(job, request)

    def carry_out(self, request: RevisionRequest, accepted: RevisionPlan) -> str:
        """See `Revisions.carry_out`."""
        with self._job(request.named) as job:
            complete_pending(job)
            return revise(job, request, accepted).id

    def close(self) -> None:
        """Stop Spark; queries that run end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._starting:
            if self._owns_spark and self._base is not None:
                stop_session(self._base)

    def _spark(self) -> SparkSession:
        with self._starting:
            died = jvm_error() if self._owns_spark and self._base is not None else None
            if died is not None:
                _log.error("%s", died)
                self._base = None
            if self._base is None:
                _log.info("starting Spark for the first form that needs it")
                self._base = start_session(self._settings.spark, self._settings.catalog)
            return self._base

    def _answer(
        self,
        base: SparkSession,
        group: str,
        sql: str,
        consistency: Consistency,
        checkpoint: int | None,
        limit: int,
    ) -> Answer:
        base.sparkContext.setJobGroup(group, "query of a web page", interruptOnCancel=True)
        catalog = self._settings.catalog
        database = self._spec.database or "default"
        # One reader for each query: a shared one never goes back, and would refuse older checkpoints.
        with Reader(self._store, catalog, base=base, database=database, confined=True) as reader:
            return query_answer(reader, catalog.name, sql, consistency, checkpoint, limit)

    @contextmanager
    def _job(self, named: Sequence[TableName]) -> Iterator[Job]:
        """The job of the project that knows most about these tables. One revision at a time."""
        with self._revising:
            located = self._spec, replace(self._settings, job=self._job_of(named))
            with Project(Options(), _log_event, base=self._spark(), located=located) as project:
                yield project.job()

    def _job_of(self, named: Sequence[TableName]) -> str:
        """Clearing a table needs its definition, which only the job that writes it has."""
        own_jobs = {self._spec.name, *self._settings.jobs}
        owners = {status.dataset: status.job for status in self._store.datasets.statuses()}
        owners_of_named = [owners[name] for name in named if name in owners]
        jobs_reading_named = [
            owners[e.name] for e in self._store.datasets.registered() if e.inputs.intersection(named)
        ]
        candidates = (
            [job for job in (*owners_of_named, *jobs_reading_named) if job in own_jobs]
            if self._settings.jobs
            else []
        )
        return candidates[0] if candidates else self._settings.job


def query_answer(
    reader: Reader, catalog: str, sql: str, consistency: Consistency, checkpoint: int | None, limit: int
) -> Answer:
    """The answer of a reader to a query of the query box; see `Runner.run` of `pages.ports`.

    Args:
        catalog: the name of the reader's catalog.
    """
    frame = reader.sql(sql, consistency, checkpoint)
    # Two columns may have the same name, so they are renamed by position.
    numbered = frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))
    # One character more than is shown tells that the value is longer.
    texts = [_text(field).substr(1, _MAX_CHARACTERS + 1) for field in numbered.schema.fields]
    try:
        rows = numbered.select(*texts).limit(limit + 1).collect()
    except PySparkException as error:
        # Some errors appear only while the query runs: a division by zero, a missing file.
        raise query_error(error, sql) from error
    read_point = frame.sparkSession.conf.get(f"spark.sql.catalog.{catalog}.warehouse", "") or ""
    checkpoint_match = _CHECKPOINT.fullmatch(read_point)
    return Answer(
        columns=tuple(frame.columns),
        rows=tuple(tuple(map(_shown, row)) for row in rows[:limit]),
        checkpoint=int(checkpoint_match[1]) if checkpoint_match else None,
        more=len(rows) > limit,
    )


def _text(field: StructField) -> Column:
    """A value as Spark spells it; bytes as hexadecimal digits."""
    return f.hex(field.name) if isinstance(field.dataType, BinaryType) else f.col(field.name).cast("string")


def _shown(text: str | None) -> str | None:
    """Long values are cut: a page must not carry megabytes of one value."""
    return text if text is None or len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"


def _log_event(event: Event) -> None:
    _log.info("%s", event.name, extra={FIELDS: event.json_fields()})
