"""Starting and stopping Spark, and what every kind of session needs.

Which catalogs a session has is not known here: see `iceberg.sessions.spark_sessions`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tautochrone.errors import SettingsError
from tautochrone.model.names import quoted
from tautochrone.redaction import redacted
from tautochrone.spark.jvm.driver_calls import COMPILED
from tautochrone.spark.session.gateway import finish_launch, launch, start_context
from tautochrone.spark.session.jars import resolve
from tautochrone.spark.session.java import (
    JAVA_VARIABLES,
    archive_options,
    class_path,
    find_java,
    prepared_folder,
)
from tautochrone.spark.session.jvm_liveness import jvm_error, reset_pyspark
from tautochrone.spark.session.settings import SparkSettings

__all__ = [
    "DEFAULTS",
    "launch_spark",
    "restrict_to_tables",
    "settings_to_start",
    "start_spark",
    "stop_session",
    "use_database",
]

_log = logging.getLogger(__name__)

_CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE")
_LOG4J_FILE = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_COMMAND_LINE = (_JAVA_OPTIONS, "spark.driver.defaultJavaOptions", "spark.executor.extraJavaOptions")
_REDACTION = "spark.redaction.regex"
_REDACTED_BY_SPARK = "(?i)secret|password|token|access[.]?key"


DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark describes each query for its web pages, also where these are off; the short form takes less time.
    "spark.sql.ui.explainMode": "simple",
    # Local refreshes are small: 200 shuffle partitions would cost more than the work in them.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "true",
    # Spark creates this folder in the current directory even when it stays empty.
    "spark.sql.warehouse.dir": (Path(tempfile.gettempdir()) / "tautochrone-spark-warehouse").as_uri(),
    "spark.sql.session.timeZone": "UTC",
    # A flow that is stopped must not leave a half-written batch behind.
    "spark.sql.streaming.stopTimeout": "60000",
    # Report every batch without data, not one in ten seconds: readers wait for these reports.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
}
"""What a session has unless a user sets it."""

# Without the optimising compiler Java keeps 48 MB of compiled code, which planning some hundred queries
# fills: then calls fail with errors of method handles.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
# Ten times Java's own numbers of calls. What a start does some thousand times is not optimised while it goes
# on, which took a third of the CPU time of a first run; loops over many rows are, as ever.
_OPTIMISED_LATER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")

_JAVA_CALLING_FUNCTIONS = ("reflect", "java_method", "try_reflect")
"""Spark functions that can call any static method in the JVM."""

_CLASS_PATH = "spark.driver.extraClassPath"
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""The variable by which a user may give options of spark-submit, such as `--packages`."""

_LOOPBACK = "127.0.0.1"
_LOCAL = {
    # Executors of a cluster must reach the driver, so there Spark or the user chooses the address.
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    # A machine that sleeps for two minutes would lose the executor in the driver's own process, which ends
    # the process ten minutes later: 30 days.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "2592000000ms",
}
"""For local mode."""


def start_spark(spark: SparkSettings, catalog: str, catalog_conf: Mapping[str, str]) -> SparkSession:
    """Start Spark (about 5 s).

    Args:
        spark: the settings of the user win over the others.
        catalog: name of the default catalog.
        catalog_conf: Spark settings that define the catalog.

    Raises:
        EnvironmentProblemError: Java or a jar is missing, or Spark refuses to start.
    """
    finish_launch()
    conf, secret = _environment_and_settings(spark, catalog, catalog_conf)
    # Py4J logs a stack trace to the root logger for each call to an ended JVM, and for one that Ctrl-C ends.
    logging.getLogger().addFilter(_not_from_py4j)
    start_context(conf, secret)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # PySpark logs every analysis error as JSON with a Java stack; the error is reported elsewhere.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return session


def launch_spark(spark: SparkSettings, catalog: str, catalog_conf: Mapping[str, str]) -> None:
    """Begin to start Spark's JVM; `start_spark` with the same arguments waits for it.

    Raises:
        EnvironmentProblemError: Java or a jar is missing.
    """
    launch(*_environment_and_settings(spark, catalog, catalog_conf))


def _environment_and_settings(
    spark: SparkSettings, catalog: str, catalog_conf: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Prepare the environment of the JVM.

    Returns:
        The settings with which Spark starts, and the names of the secret ones.
    """
    _forget_spark_connect()
    conf = settings_to_start(spark, catalog, catalog_conf)
    if _is_local(spark):
        # Otherwise Spark resolves the host name, warns, and may listen on other interfaces.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # Python workers use the interpreter of the definitions, not whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    secret = sorted(key for key, value in conf.items() if redacted(value) != value)
    if secret:
        _redact_in_spark(conf, secret)
    return conf, secret


def _is_local(spark: SparkSettings) -> bool:
    return _master(spark).startswith("local")


def _master(spark: SparkSettings) -> str:
    return spark.conf.get("spark.master", spark.master)


def settings_to_start(spark: SparkSettings, catalog: str, catalog_conf: Mapping[str, str]) -> dict[str, str]:
    """All settings with which Spark starts."""
    java = find_java()
    conf = DEFAULTS | (_LOCAL if _is_local(spark) else {})
    # Java's crash messages go to stderr: stdout may carry a command's answer.
    options = [
        f"-Dlog4j2.configurationFile={_LOG4J_FILE.as_uri()}",
        "-XX:+DisplayVMOutputToStderr",
        *archive_options(java, on_class_path=_jars_on_class_path(spark)),
    ]
    options += _SHORT_LIVED if spark.short_lived else _OPTIMISED_LATER
    if spark.short_lived and not _has_collector(spark):
        options.append("-XX:+UseSerialGC")
    conf.update(catalog_conf)
    conf["spark.sql.defaultCatalog"] = catalog
    conf.update(spark.conf)
    # The user's options come last: of two contradicting options Java takes the later one.
    conf[_JAVA_OPTIONS] = " ".join([*options, conf.get(_JAVA_OPTIONS, "")]).strip()
    conf.update(_jar_settings(spark, java, conf))
    conf[COMPILED] = str(prepared_folder(java))
    conf.setdefault("spark.app.name", spark.app_name)
    conf.setdefault("spark.master", spark.master)
    for key in ("spark.remote", "spark.api.mode"):
        if conf.pop(key, "classic") != "classic":
            _log.warning("%s is ignored: Spark runs in this process, at spark.master", key)
    return conf


def _has_collector(spark: SparkSettings) -> bool:
    """Whether the user chooses a garbage collector: Java does not start with two of them."""
    given = [spark.conf.get(_JAVA_OPTIONS), *map(os.environ.get, JAVA_VARIABLES)]
    return any(_COLLECTOR.search(text) for text in given if text)


def _jars_on_class_path(spark: SparkSettings) -> bool:
    """Whether Java itself loads this package's jars: see `spark.session.java`. Executors of a cluster get
    them from Spark."""
    has_jars = any(key.startswith("spark.jars") for key in spark.conf) or _SUBMIT_ARGUMENTS in os.environ
    return _master(spark).split("[")[0] == "local" and not has_jars


def _jar_settings(spark: SparkSettings, java: str, conf: Mapping[str, str]) -> dict[str, str]:
    jars = resolve(spark.artifacts, java)
    if not _jars_on_class_path(spark):
        return {"spark.jars": ",".join([*map(str, jars), *filter(None, [conf.get("spark.jars")])])}
    return {_CLASS_PATH: os.pathsep.join([*class_path(java, jars), *filter(None, [conf.get(_CLASS_PATH)])])}


def _forget_spark_connect() -> None:
    """Take Spark Connect's variables out of the environment: with them PySpark's functions make objects that
    a session of this process does not understand."""
    for name in _CONNECT_VARIABLES:
        if os.environ.pop(name, None) is not None:
            _log.warning("%s is ignored: Spark runs in this process, at spark.master", name)


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _redact_in_spark(conf: dict[str, str], secret: list[str]) -> None:
    """Extend `spark.redaction.regex`, so that Spark hides these settings in its UI and event logs.

    Raises:
        SettingsError: `SECRET_ON_COMMAND_LINE`, for a setting that only Java's command line can carry.
    """
    for key in secret:
        if key in _COMMAND_LINE:
            raise SettingsError(
                "SECRET_ON_COMMAND_LINE",
                f"The secret in {key} would be on Java's command line, which other users can read",
                hint="let Java read it from a file instead",
            )
    names = "|".join(rf"\Q{key}\E" for key in secret)
    conf[_REDACTION] = f"{conf.get(_REDACTION, _REDACTED_BY_SPARK)}|{names}"


def stop_session(session: SparkSession) -> None:
    """Stop a session's Spark. Also works when its Java process has already ended."""
    if jvm_error() is None:
        try:
            session.stop()
            return
        except (Py4JError, OSError):
            if jvm_error(ask=True) is None:
                raise
    reset_pyspark()


def use_database(session: SparkSession, catalog: str, database: str, *, create: bool) -> None:
    """Make `catalog.database` the session's current database, which unqualified names refer to.

    Args:
        create: create the database if it does not exist.
    """
    name = quoted(catalog, database)
    if create:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}")
    # By SQL: the catalog manager would configure the catalog from the thread's active session.
    session.sql(f"USE {name}")


def restrict_to_tables(session: SparkSession) -> SparkSession:
    """Restrict a session's queries to tables: no files by path, no Java methods, no settings or environment
    variables by `${…}`. For users who may only read."""
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    session.conf.set("spark.sql.variable.substitute", "false")
    jvm: Any = session._jvm  # noqa: SLF001
    functions = session._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001
    for name in _JAVA_CALLING_FUNCTIONS:
        functions.dropFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
    return session
