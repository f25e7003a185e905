"""Evaluating somebody's query in a chosen session: current database, settings, active session.

A session's current database and settings are its own state; the active session is a thread's, and
PySpark keeps one "instantiated" session per process. All of them are put back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.spark.jvm.cached_packages import cached_packages

__all__ = [
    "dataframe_of_plan",
    "scala_seq",
    "session_settings",
    "set_active_session",
    "spark_sql_parser",
    "use_session",
]


def spark_sql_parser(session: SparkSession) -> JavaObject:
    """Spark's own SQL parser, without the extensions that catalogs put before it.

    Iceberg's extension already resolves `CREATE VIEW` while parsing, which needs the database to
    exist and hides the query; definitions must be read before any of that is there.
    """
    return _packages(session).execution.SparkSqlParser()


def scala_seq(session: SparkSession, items: list[JavaObject]) -> JavaObject:
    """A Scala sequence of JVM objects."""
    return cached_packages(session._jvm).org.apache.spark.api.python.PythonUtils.toSeq(items)  # noqa: SLF001


def dataframe_of_plan(session: SparkSession, plan: JavaObject) -> DataFrame:
    """A DataFrame of `session` over a Catalyst plan, analysed at once."""
    made = _packages(session).classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
    return DataFrame(made, session)


def set_active_session(session: SparkSession) -> None:
    """Make `session` the one that Spark's parser and optimiser use on this thread."""
    _packages(session).classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001


@contextmanager
def session_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session while something runs; put back afterwards.

    Raises:
        pyspark.errors.AnalysisException: a setting is static (CANNOT_MODIFY_STATIC_CONFIG).
    """
    before: dict[str, str | None] = {}
    try:
        for key, value in wanted.items():
            old = session.conf.get(key, None)
            session.conf.set(key, value)
            before[key] = old
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


@contextmanager
def use_session(
    session: SparkSession, catalog: str | None, namespace: tuple[str, ...] | None, conf: Mapping[str, str]
) -> Iterator[None]:
    """Make `session` the active one, `catalog.namespace` its current database (None: leave it),
    `conf` its settings.

    Raises:
        pyspark.errors.AnalysisException: a setting is static (CANNOT_MODIFY_STATIC_CONFIG).
    """
    sessions = _packages(session).classic.SparkSession
    active = sessions.getActiveSession()
    python_sessions = SparkSession._instantiatedSession, SparkSession._activeSession  # noqa: SLF001
    # First of all: Spark configures a catalog, for good, from the session that is active when the
    # catalog is first touched. Another session's `lake` would be the wrong lake.
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = session  # noqa: SLF001
    catalogs = session._jsparkSession.sessionState().catalogManager()  # noqa: SLF001
    current: tuple[str, list[str]] | None = None
    try:
        with session_settings(session, conf):
            if catalog is not None and namespace is not None:
                current = catalogs.currentCatalog().name(), list(catalogs.currentNamespace())
                catalogs.setCurrentCatalog(catalog)
                catalogs.setCurrentNamespace(_array(session, namespace))
            yield
    finally:
        if current is not None:
            # Spark has no call for "no database"; changing the catalog gives that.
            catalogs.setCurrentCatalog("spark_catalog")
            catalogs.setCurrentCatalog(current[0])
            if current[1]:
                catalogs.setCurrentNamespace(_array(session, tuple(current[1])))
        SparkSession._instantiatedSession, SparkSession._activeSession = python_sessions  # noqa: SLF001
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


def _packages(session: SparkSession) -> Any:
    return cached_packages(session._jvm).org.apache.spark.sql  # noqa: SLF001


def _array(session: SparkSession, parts: tuple[str, ...]) -> JavaObject:
    gateway = session.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    array = gateway.new_array(gateway.jvm.java.lang.String, len(parts))
    for index, part in enumerate(parts):
        array[index] = part
    return array
