"""Running code in a given session, and the settings with which a session starts.

The current database and the settings belong to a session, the active session to a thread, and PySpark's
"instantiated" session to the process. All of them are restored afterwards.

Spark is set up for much data: it compiles every stage to bytecode, shuffles into many partitions, and plans
again between stages. For a few hundred rows this preparation takes nearly all of the time, so a session is
`tuned_session` to the size of the data that it is about to process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model import limits
from tautochrone.spark.jvm.catalyst import cached_packages
from tautochrone.spark.jvm.driver_calls import active_in_jvm, driver_calls, settings_of
from tautochrone.spark.session.factory import DEFAULTS

__all__ = [
    "SqlDefaults",
    "dataframe_of_plan",
    "parsed_plan",
    "scala_seq",
    "session_settings",
    "set_active_session",
    "settings_at_start",
    "tuned_session",
    "use_session",
    "with_parameters",
]


def parsed_plan(sql: str) -> JavaObject:
    """A statement by Spark's own SQL parser, without the extensions of sessions.

    Iceberg's extension resolves `CREATE VIEW` while parsing, which needs an existing database and hides the
    query. Definitions are parsed before any database exists.

    Raises:
        pyspark.errors.ParseException: it is no statement.
    """
    plan: JavaObject = driver_calls().parsed(sql)
    return plan


def with_parameters(session: SparkSession, text: str) -> str:
    """The text with the values of `${parameters}`, as Spark's parser takes it. Unknown ones stay."""
    return str(_packages(session).internal.VariableSubstitution().substitute(text))


def scala_seq(session: SparkSession, items: list[JavaObject]) -> JavaObject:
    """A Scala sequence of JVM objects."""
    return cached_packages(session._jvm).org.apache.spark.api.python.PythonUtils.toSeq(items)  # noqa: SLF001


def dataframe_of_plan(session: SparkSession, plan: JavaObject) -> DataFrame:
    """A DataFrame of `session` over a Catalyst plan, which is analyzed immediately."""
    dataset = _packages(session).classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
    return DataFrame(dataset, session)


def set_active_session(session: SparkSession) -> None:
    """Make `session` this thread's active session, which Spark's parser and optimizer use."""
    _packages(session).classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001


@contextmanager
def session_settings(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session, which is active, inside the block; restored afterwards.

    Raises:
        pyspark.errors.AnalysisException: a setting is static (CANNOT_MODIFY_STATIC_CONFIG).
    """
    with active_in_jvm(session, conf):
        yield


_ONE_PARTITION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Spark guesses that a join of few rows gives many, and would shuffle them from one partition into one.
    "spark.sql.maxSinglePartitionBytes": str(2**63 - 1),
}
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def tuned_session(session: SparkSession, *, delta_rows: int, input_rows: int | None = None) -> Iterator[None]:
    """Set the session up for a change of `delta_rows` rows in inputs of `input_rows` rows (None: unknown);
    restore its settings afterwards."""
    settings: dict[str, str] = {}
    if delta_rows <= limits.MAX_SINGLE_PARTITION_DELTA_ROWS:
        settings |= _ONE_PARTITION
        if input_rows is not None and input_rows <= limits.MAX_INTERPRETED_ROWS:
            settings |= _INTERPRETED
    with session_settings(session, settings):
        yield


@contextmanager
def use_session(
    session: SparkSession, catalog: str | None, namespace: tuple[str, ...] | None, conf: Mapping[str, str]
) -> Iterator[None]:
    """Inside the block: `session` is active, `catalog.namespace` its current database, `conf` its settings.

    Args:
        session: becomes this thread's and PySpark's active session.
        catalog: of the current database; None leaves the current database as it is.
        namespace: of the current database; None likewise.
        conf: settings of the session.

    Raises:
        pyspark.errors.AnalysisException: a setting is static (CANNOT_MODIFY_STATIC_CONFIG).
    """
    database = None if catalog is None or namespace is None else (catalog, namespace)
    with active_in_jvm(session, conf, database):
        python_sessions = SparkSession._instantiatedSession, SparkSession._activeSession  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = session  # noqa: SLF001
        try:
            yield
        finally:
            SparkSession._instantiatedSession, SparkSession._activeSession = python_sessions  # noqa: SLF001


def _packages(session: SparkSession) -> Any:
    return cached_packages(session._jvm).org.apache.spark.sql  # noqa: SLF001


_TIME_ZONE = "spark.sql.session.timeZone"


def settings_at_start(session: SparkSession) -> dict[str, str]:
    """The settings that a new session has, wherever they were given.

    The time zone is always one of them: Spark takes that of the machine if there is no other.
    """
    return {**settings_of(session), _TIME_ZONE: session.conf.get(_TIME_ZONE) or ""}


class SqlDefaults:
    """The value of each SQL setting in a session of Tautochrone when nobody sets it; None for names that
    Spark does not know."""

    def __init__(self, session: SparkSession) -> None:
        # A configuration of its own: a session's has what was set.
        self._unset = cached_packages(session._jvm).org.apache.spark.sql.internal.SQLConf()  # noqa: SLF001
        self._known: dict[str, str | None] = {}

    def __call__(self, name: str) -> str | None:
        if name not in self._known:
            self._known[name] = DEFAULTS[name] if name in DEFAULTS else self._of_spark(name)
        return self._known[name]

    def _of_spark(self, name: str) -> str | None:
        if not name.startswith("spark.sql."):
            return None
        try:
            return str(self._unset.getConfString(name))
        except PySparkException:
            return None
