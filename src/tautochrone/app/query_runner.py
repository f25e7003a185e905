"""Answers the queries of a service over one Spark: its own, or that of the job that the service is part of.

A Spark of its own starts with the first query. Queries come from people who may only read: their sessions see
tables and nothing else, they have a time limit, and are refused when too many wait.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField

from tautochrone.app.connect import query_settings
from tautochrone.errors import QueryError
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.meta import Store
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.closeable import Closeable
from tautochrone.model.query import Answer, Query, QueryAnswer
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.reader import Reader, query_error
from tautochrone.spark.session.factory import stop_session
from tautochrone.spark.session.jvm_liveness import jvm_error

__all__ = ["SparkQueryRunner", "cancel_jobs", "query_answer"]

_log = logging.getLogger("tautochrone.serve")

_Result = TypeVar("_Result")

_TIME_LIMIT_S = 60.0
_MAX_RUNNING, _MAX_WAITING = 2, 6
_MAX_CHARACTERS = 2_000
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class SparkQueryRunner(Closeable):
    """See `pages.forms.Runner` and `model.query.QueryRunner`. Safe to share between threads.

    Args:
        spec: the project.
        settings: its settings; their store is the one that the service serves.
        store: that store, open.
        base: a session whose catalog is the project's lake, instead of a Spark of its own.
        time_limit_s: how long a query may take, not counting Spark's start.
        lease_ms: of the checkpoints that queries read; they are released when nobody has read them for a
            third of it.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        settings: Settings,
        store: Store,
        *,
        base: SparkSession | None = None,
        time_limit_s: float = _TIME_LIMIT_S,
        lease_ms: int = 60_000,
    ) -> None:
        self._spec, self._settings, self._store = spec, settings, store
        self._time_limit_s, self._lease_ms = time_limit_s, lease_ms
        self._base = base
        self._owns_spark = base is None
        self._reader: Reader | None = None
        self._starting = Lock()
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
        catalog = self._settings.catalog.name
        return self._in_time(
            lambda reader: query_answer(reader, catalog, sql, consistency, checkpoint, limit)
        )

    def arrow(self, query: Query) -> QueryAnswer:
        """See `QueryRunner.arrow`.

        Raises:
            QueryError: also `QUERY_TIMED_OUT`, and `TOO_MANY_QUERIES`, which is retryable.
            EnvironmentProblemError: Spark does not start.
        """
        return self._in_time(lambda reader: reader.arrow(replace(query, wait_ms=0)))

    def _in_time(self, ask: Callable[[Reader], _Result]) -> _Result:
        base, reader = self._spark(), self._shared_reader()
        if not self._slots.acquire(blocking=False):
            raise QueryError("TOO_MANY_QUERIES", "Other queries are running and waiting", retryable=True)
        group = f"query {uuid4().hex[:8]}"

        def answer_in_group() -> _Result:
            base.sparkContext.setJobGroup(group, "query over HTTP", interruptOnCancel=True)
            return ask(reader)

        answer = self._threads.submit(answer_in_group)
        # A query that was given up still counts until it has really ended.
        answer.add_done_callback(lambda _: self._slots.release())
        try:
            return answer.result(self._time_limit_s)
        except TimeoutError:
            answer.cancel()
            Thread(target=_cancel_until_ended, args=(base, group, answer), daemon=True).start()
            raise QueryError(
                "QUERY_TIMED_OUT",
                f"The query took longer than {self._time_limit_s:g} seconds and was stopped",
                hint="`taut query --own-spark` and other engines have no such limit",
            ) from None

    def close(self) -> None:
        """Stop Spark; queries that run end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._starting:
            self._close_reader()
            if self._owns_spark and self._base is not None:
                stop_session(self._base)

    def _spark(self) -> SparkSession:
        with self._starting:
            died = jvm_error() if self._owns_spark and self._base is not None else None
            if died is not None:
                _log.error("%s", died)
                self._base = None
                self._close_reader()
            if self._base is None:
                _log.info("starting Spark for the first request that needs it")
                self._base = start_session(self._settings.spark, self._settings.catalog)
            return self._base

    def _shared_reader(self) -> Reader:
        with self._starting:
            if self._reader is None:
                self._reader = Reader(
                    self._store,
                    self._settings.catalog,
                    base=self._base,
                    database=self._spec.database or "default",
                    lease_ms=self._lease_ms,
                    conf=query_settings(self._spec.configuration),
                    confined=True,
                    many_clients=True,
                )
            return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _cancel_until_ended(session: SparkSession, group: str, answer: Future[Any]) -> None:
    # A job that a plan was about to start may begin after others of its group were cancelled.
    # A Spark that has stopped has no jobs, and the answer has ended with it.
    with suppress(Py4JError):
        while not answer.done():
            cancel_jobs(session, group)
            wait([answer], timeout=1)


def cancel_jobs(session: SparkSession, group: str) -> None:
    """Cancel the jobs of a group that run, and those that it would start."""
    context: Any = session.sparkContext
    context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001


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
    except (PySparkException, Py4JJavaError) as error:
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
