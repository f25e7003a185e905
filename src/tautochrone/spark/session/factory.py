"""Starting Spark, and the kinds of sessions that share its one context.

* the *base* session: `lake` is the real catalog; everything that writes goes through it;
* a *reader* session: `lake` is the read-only REST catalog of a checkpoint or of a refresh target;
* a *scratch* session: `lake` is an empty in-memory catalog in which a graph resolves before
  anything is built.

A session never changes its kind: Spark keeps a catalog once it was used.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tautochrone.errors import SettingsError
from tautochrone.model.names import quoted
from tautochrone.redaction import redacted
from tautochrone.spark.session.class_archive import archive_options
from tautochrone.spark.session.gateway import start_context
from tautochrone.spark.session.jars import resolve
from tautochrone.spark.session.java import find_java
from tautochrone.spark.session.jvm_liveness import stop_session
from tautochrone.spark.session.settings import CatalogSettings, SparkSettings

__all__ = [
    "CatalogSettings",
    "SparkSettings",
    "lake_conf",
    "reader_session",
    "restrict_to_tables",
    "scratch_session",
    "start_session",
    "stop_session",
    "use_database",
]

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_COMMAND_LINE = (_JAVA_OPTIONS, "spark.driver.defaultJavaOptions", "spark.executor.extraJavaOptions")
_REDACTION = "spark.redaction.regex"
_REDACTED_BY_SPARK = "(?i)secret|password|token|access[.]?key"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""Hadoop's own starts two processes, `chmod`, for every file that it creates: 10 ms instead of 1. A refresh
writes about ten. Only the lake's catalog uses this one: it does not list folders behind symbolic links."""
_ICEBERG_SESSION_CATALOG = "org.apache.iceberg.spark.SparkSessionCatalog"


_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    # Local refreshes are small: 200 shuffle partitions would cost more than the work in them.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "true",
    # Spark makes this folder in the current directory even when nothing is ever put there.
    "spark.sql.warehouse.dir": (Path(tempfile.gettempdir()) / "tautochrone-spark-warehouse").as_uri(),
    "spark.sql.session.timeZone": "UTC",
    # A flow that is stopped must not leave a half-written batch behind.
    "spark.sql.streaming.stopTimeout": "60000",
    # Each look at a source that finds nothing is told, not one in ten seconds: readers wait for it.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
}

_CALLS_JAVA = ("reflect", "java_method", "try_reflect")
"""Functions of Spark that call any static method of the JVM."""

_LOOPBACK = "127.0.0.1"
_ALONE = {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
"""For a Spark that is one process. Executors of a cluster must find the driver, so there its address is
Spark's own choice, or the user's."""


def lake_conf(catalog: CatalogSettings) -> dict[str, str]:
    """What a session must be told before it first touches the lake's catalog."""
    conf = _catalog_conf(catalog.name, _ICEBERG_CATALOG, catalog.options)
    kind = catalog.options.get("type") or catalog.options.get("catalog-impl", "")
    if kind == "hadoop" or kind.endswith(".HadoopCatalog"):
        # Its namespaces and tables are the folders that it lists.
        return conf
    prefix = f"spark.sql.catalog.{catalog.name}.hadoop.fs.file.impl"
    # Hadoop's cache of file systems does not look at settings.
    return {prefix: _LOCAL_FILES, f"{prefix}.disable.cache": "true"} | conf


def _catalog_conf(name: str, implementation: str, options: Mapping[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    conf = {prefix: implementation}
    # With the cache, outsiders' commits and new branches stay invisible.
    conf[f"{prefix}.cache-enabled"] = "false"
    conf.update({f"{prefix}.{key}": value for key, value in options.items()})
    return conf


def start_session(spark: SparkSettings, catalog: CatalogSettings) -> SparkSession:
    """Start Spark (about 5 s) with the real catalog as default.

    Raises:
        EnvironmentProblemError: Java or a jar is missing, or Spark refuses to start.
    """
    java = find_java()
    jars = ",".join(str(path) for path in resolve(spark.artifacts, java))
    alone = spark.conf.get("spark.master", spark.master).startswith("local")
    conf = _DEFAULTS | (_ALONE if alone else {})
    # What Java says of a crash is for stderr: stdout may carry a command's answer.
    options = [
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "-XX:+DisplayVMOutputToStderr",
        *archive_options(java),
    ]
    if spark.short_lived:
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    if alone:
        # Otherwise Spark looks the host's name up, warns, and may listen on other interfaces.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # Python functions run where the definitions were imported, not in whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf.update(lake_conf(catalog))
    conf["spark.sql.defaultCatalog"] = catalog.name
    conf.update(spark.conf)
    # The user's come last: of two that contradict each other Java takes the later one.
    conf[_JAVA_OPTIONS] = " ".join([*options, conf.get(_JAVA_OPTIONS, "")]).strip()
    users_jars = conf.get("spark.jars")
    conf["spark.jars"] = f"{jars},{users_jars}" if users_jars else jars
    conf.setdefault("spark.app.name", spark.app_name)
    conf.setdefault("spark.master", spark.master)
    secret = sorted(key for key, value in conf.items() if redacted(value) != value)
    if secret:
        _hide(conf, secret)
    start_context(conf, secret)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # PySpark logs every analysis error as JSON with a Java stack; errors reach people through ours.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Py4J writes a stack to the root logger for each call that a dead JVM does not answer.
    logging.getLogger().addFilter(_not_of_py4j)
    return session


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _hide(conf: dict[str, str], secret: list[str]) -> None:
    """Have Spark hide these settings in its web pages and event logs as it does those named like secrets.

    Raises:
        SettingsError: `SECRET_ON_COMMAND_LINE`, for a setting that only Java's command line can carry.
    """
    for key in secret:
        if key in _COMMAND_LINE:
            raise SettingsError(
                "SECRET_ON_COMMAND_LINE",
                f"The secret in {key} would stand on Java's command line, where everybody can read it",
                hint="have Java read it from a file instead",
            )
    names = "|".join(rf"\Q{key}\E" for key in secret)
    conf[_REDACTION] = f"{conf.get(_REDACTION, _REDACTED_BY_SPARK)}|{names}"


def use_database(session: SparkSession, catalog: str, database: str, *, create: bool) -> None:
    """Make `catalog.database` what unqualified names mean in this session."""
    name = quoted(catalog, database)
    if create:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}")
    # Only by SQL: the catalog manager itself would configure a catalog from the active session.
    session.sql(f"USE {name}")


def _with_catalog(base: SparkSession, name: str, options: Mapping[str, str]) -> SparkSession:
    """A new session in which `name` and, so that `spark_catalog.x.y` means the same tables, Spark's
    session catalog are given by `options`. (Not so in the base session: Iceberg's JDBC catalog keys
    its rows by the catalog's name in Spark, so the same file shows no table under a second name.)"""
    session = base.newSession()
    prefix = f"spark.sql.catalog.{name}."
    for key in [key for key in session.conf.getAll if key.startswith(prefix)]:
        session.conf.unset(key)
    conf = _catalog_conf(name, _ICEBERG_CATALOG, options)
    conf.update(_catalog_conf("spark_catalog", _ICEBERG_SESSION_CATALOG, options))
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def reader_session(base: SparkSession, name: str, uri: str, read_point: str) -> SparkSession:
    """A session whose catalog `name` is the REST catalog at `uri`, fixed to `read_point`.

    `read_point` is what the service resolves: `strong`, `weak`, `checkpoint-42`, or an internal name.
    """
    return _with_catalog(base, name, {"type": "rest", "uri": uri, "warehouse": read_point})


def restrict_to_tables(session: SparkSession) -> SparkSession:
    """Let its queries reach nothing but tables: no files by their paths, no Java methods, and neither
    settings nor environment variables put into the text. For queries of people who may only read."""
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    session.conf.set("spark.sql.variable.substitute", "false")
    jvm: Any = session._jvm  # noqa: SLF001
    functions = session._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001
    for name in _CALLS_JAVA:
        functions.dropFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
    return session


def scratch_session(base: SparkSession, name: str) -> SparkSession:
    """A session whose catalog `name` is empty, in memory, and writes nothing anywhere."""
    return _with_catalog(
        base,
        name,
        {
            "catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog",
            "warehouse": "memory://scratch",
        },
    )
