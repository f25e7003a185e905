"""The kinds of Spark sessions that share one Spark context. They differ in their lake catalog.

* the *base* session: `lake` is the real catalog; everything that writes goes through it;
* a *reader* session: `lake` is the read-only REST catalog of a checkpoint or of an open checkpoint;
* an *empty* session: `lake` is an empty in-memory catalog in which a graph resolves before anything is built.

A session never changes its kind, because Spark keeps a catalog after its first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from tautochrone.errors import DefinitionError, EnvironmentProblemError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.model.names import TableName, quoted
from tautochrone.spark.jvm.driver_calls import new_session, settings_of
from tautochrone.spark.jvm.errors import SparkProblem, problem_of
from tautochrone.spark.session.factory import launch_spark, start_spark
from tautochrone.spark.session.settings import SparkSettings

__all__ = [
    "EmptyCatalog",
    "catalog_unreachable_error",
    "count_without_metadata",
    "empty_session",
    "lake_conf",
    "launch_session",
    "reader_session",
    "start_session",
]

_EXTENSIONS = "spark.sql.extensions"
_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_SESSION_CATALOG = "org.apache.iceberg.spark.SparkSessionCatalog"
_FILE_OPTIONS = ("io-impl", "s3.", "client.", "gcs.", "adls.", "oss.", "http-client.", "hadoop.")
"""Beginnings of Iceberg's catalog options that say how files are opened."""
_ONLY_LAKE = "hadoop.fs.file."
"""Options of local files are those of the lake's own catalog alone, see `_LOCAL_FILES`."""
_HADOOP_FILE_KINDS = ("jdbc", "hadoop", "hive")
_HADOOP_FILES = "org.apache.iceberg.hadoop.HadoopFileIO"
_LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""Hadoop's own implementation starts two `chmod` processes for every file that it creates, which takes 10 ms
instead of 1 ms, and a refresh writes about ten files. Only the lake's catalog uses this implementation,
because it cannot list folders behind symbolic links."""


def start_session(spark: SparkSettings, catalog: CatalogSettings) -> SparkSession:
    """Start Spark (about 5 s) with the real catalog as default.

    Raises:
        EnvironmentProblemError: Java or a jar is missing, or Spark refuses to start.
    """
    return start_spark(_with_extensions(spark), catalog.name, lake_conf(catalog))


def launch_session(spark: SparkSettings, catalog: CatalogSettings) -> None:
    """Begin to start Spark's JVM; `start_session` with the same arguments waits for it.

    Raises:
        EnvironmentProblemError: Java or a jar is missing.
    """
    launch_spark(_with_extensions(spark), catalog.name, lake_conf(catalog))


def _with_extensions(spark: SparkSettings) -> SparkSettings:
    given = spark.conf.get(_EXTENSIONS, "").split(",")
    extensions = dict.fromkeys([_ICEBERG_EXTENSIONS, *(name.strip() for name in given if name.strip())])
    return replace(spark, conf={**spark.conf, _EXTENSIONS: ",".join(extensions)})


def lake_conf(catalog: CatalogSettings) -> dict[str, str]:
    """Settings that a session needs before it first uses the lake's catalog."""
    conf = _catalog_conf(catalog.name, _CATALOG, catalog.options)
    if catalog.kind == "hadoop":
        # This catalog lists folders as namespaces and tables, so it needs Hadoop's own implementation.
        return conf
    prefix = f"spark.sql.catalog.{catalog.name}.hadoop.fs.file.impl"
    # Hadoop's cache of file systems ignores settings, so it is disabled.
    return {prefix: _LOCAL_FILES, f"{prefix}.disable.cache": "true"} | conf


def _catalog_conf(name: str, implementation: str, options: Mapping[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    conf = {prefix: implementation}
    # With the cache, commits of external writers and new branches would not be seen.
    conf[f"{prefix}.cache-enabled"] = "false"
    conf.update({f"{prefix}.{key}": value for key, value in options.items()})
    return conf


def reader_session(base: SparkSession, name: str, uri: str, read_point: str) -> SparkSession:
    """A session whose catalog `name` is the REST catalog at `uri`, fixed to `read_point`.

    `read_point` is what the service resolves: `strong`, `weak`, `checkpoint-42`, or an internal name.
    """
    options = {"type": "rest", "uri": uri, "warehouse": read_point}
    return _with_catalog(base, name, options | _file_options(base, name))


def _file_options(base: SparkSession, name: str) -> dict[str, str]:
    """How the catalog `name` of the base session opens files: the REST catalog of a read point says where a
    table's files are, not how to open them."""
    prefix = f"spark.sql.catalog.{name}."
    given = {
        key.removeprefix(prefix): text for key, text in settings_of(base).items() if key.startswith(prefix)
    }
    options = {
        key: text
        for key, text in given.items()
        if key.startswith(_FILE_OPTIONS) and not key.startswith(_ONLY_LAKE)
    }
    if CatalogSettings(name, given).kind in _HADOOP_FILE_KINDS:
        # These catalogs' own default. A REST catalog's default would open s3a:// by Iceberg's client for S3,
        # with other settings and jars.
        options.setdefault("io-impl", _HADOOP_FILES)
    return options


def empty_session(base: SparkSession, name: str) -> SparkSession:
    """A session whose catalog `name` is empty, in memory, and writes nothing anywhere."""
    return _with_catalog(
        base,
        name,
        {
            "catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog",
            "warehouse": "memory://empty",
        },
    )


def count_without_metadata(session: SparkSession) -> None:
    """Let Spark count rows itself in this session. Iceberg answers a count from metadata as a nullable
    column, and Spark then refuses its own plan when the target column is NOT NULL."""
    session.conf.set("spark.sql.iceberg.aggregate-push-down.enabled", "false")


def catalog_unreachable_error(catalog: str, error: BaseException) -> EnvironmentProblemError:
    """To raise instead of the Java exception `error` of a call to the catalog."""
    return EnvironmentProblemError(
        "CATALOG_NOT_REACHABLE",
        f"The catalog {catalog} does not answer: {problem_of(error).message}",
        hint="see [lake] options in tautochrone.toml, or spark.sql.catalog.… in --conf",
        retryable=True,
    )


def _with_catalog(base: SparkSession, name: str, options: Mapping[str, str]) -> SparkSession:
    """A new session in which `name` and, so that `spark_catalog.x.y` means the same tables, Spark's
    session catalog are given by `options`. (Not so in the base session: Iceberg's JDBC catalog keys
    its rows by the catalog's name in Spark, so the same file shows no table under a second name.)"""
    conf = _catalog_conf(name, _CATALOG, options)
    conf.update(_catalog_conf("spark_catalog", _SESSION_CATALOG, options))
    # Also what spark-defaults.conf says of them: `type` and `catalog-impl` exclude each other.
    return new_session(
        base, without=(f"spark.sql.catalog.{name}.", "spark.sql.catalog.spark_catalog."), settings=conf
    )


# -- empty tables ----------------------------------------------------------------------------------


# Variants and nanosecond timestamps exist from format version 3 on.
_FORMAT_VERSION = "3"


class EmptyCatalog:
    """A session with an empty catalog, and the tables created in it so far.

    A graph is resolved in it before anything is built. Nothing is written to storage: the tables are metadata
    in memory and exist as long as the session.

    Args:
        base: of which the session is made.
        catalog: the lake catalog's name in Spark.
        session: an `empty_session` to create tables in, instead of a new one.
    """

    def __init__(self, base: SparkSession, catalog: str, session: SparkSession | None = None) -> None:
        self.session = session or empty_session(base, catalog)
        self.catalog = catalog
        self._namespaces: set[tuple[str, ...]] = set()
        self.tables: dict[TableName, StructType] = {}

    def ensure_namespace(self, namespace: tuple[str, ...]) -> None:
        """Create a namespace and its parents unless they exist."""
        for depth in range(1, len(namespace) + 1):
            part = namespace[:depth]
            if part not in self._namespaces:
                self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.catalog, *part)}")
                self._namespaces.add(part)

    def create_table(self, name: TableName, schema: StructType, location: str | None = None) -> StructType:
        """Make an empty table.

        Returns:
            The schema as the lake gives it back: Iceberg widens bytes and shorts to int, drops
            CHAR lengths and collations.

        Raises:
            DefinitionError: UNSUPPORTED_COLUMN_TYPE, a type that Iceberg cannot store, and Spark's
                own classes when Spark refuses the columns (duplicates, TIME).
        """
        self.ensure_namespace(name.namespace)
        jvm_schema = self._jvm_schema(schema)
        columns = jvm_schema.toDDL()
        try:
            self.session.sql(
                f"CREATE TABLE {name.sql} ({columns}) USING iceberg "
                f"TBLPROPERTIES ('format-version'='{_FORMAT_VERSION}')"
            )
        except PySparkException as error:
            raise self._schema_refused_error(name, schema, problem_of(error), location) from error
        self.tables[name] = self.session.table(name.sql).schema
        return self.tables[name]

    def _schema_refused_error(
        self, name: TableName, schema: StructType, problem: SparkProblem, location: str | None
    ) -> DefinitionError:
        columns = [field for field in schema.fields if not self._is_storable(field)]
        if not columns:
            return DefinitionError(
                problem.error_class,
                f"Table {name} cannot be stored in the lake: {problem.message}",
                sqlstate=problem.sqlstate,
                location=location,
            )
        types = ", ".join(f"{field.name} ({field.dataType.simpleString()})" for field in columns)
        return DefinitionError(
            "UNSUPPORTED_COLUMN_TYPE",
            f"Table {name} cannot be stored in the lake: Iceberg has no type for {types}",
            sqlstate="0A000",
            location=location,
            hint=f"Write CAST({columns[0].name} AS STRING), or another type that Iceberg stores.",
        )

    def _is_storable(self, field: StructField) -> bool:
        jvm = self.session._jvm  # noqa: SLF001
        assert jvm is not None
        try:
            jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(self._jvm_schema(StructType([field])))
        except (PySparkException, Py4JJavaError):
            return False
        return True

    def _jvm_schema(self, schema: StructType) -> JavaObject:
        jvm = self.session._jvm  # noqa: SLF001
        assert jvm is not None
        return jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
