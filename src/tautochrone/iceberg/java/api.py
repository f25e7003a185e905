"""Iceberg's Java API over Py4J: the calls that the adapter makes, with comments on their pitfalls.

Knows Java objects; knows nothing of checkpoints or commit metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.errors import (
    CommitOutcomeUnknownError,
    LakeError,
    TableMissingError,
    TautochroneError,
)
from tautochrone.iceberg.java.durable import local_folder
from tautochrone.iceberg.java.functions import Functions
from tautochrone.iceberg.java.task_sets import TaskSets
from tautochrone.model.effects import Durability
from tautochrone.model.names import TableName
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.jvm.catalyst import cached_packages
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["Iceberg", "MetadataMovedError", "first_line", "java_error_class", "translate"]

_PATHS = ("write.data.path", "write.metadata.path")
_OF_THE_FUTURE = re.compile(
    r"Invalid update timestamp[^\n]*|Expected sorted (snapshot|previous metadata) log entries"
)
_PREFIX = "org.apache.iceberg.exceptions."
_MISSING = {_PREFIX + "NoSuchTableException", _PREFIX + "NoSuchNamespaceException"}
# The catalog did not refuse the commit, so it may have succeeded. (Iceberg reports SQLite's lock time-out
# as an unchecked error, neither as a refusal nor as an unknown state.)
_UNKNOWN = {
    _PREFIX + "CommitStateUnknownException",
    _PREFIX + "ServiceUnavailableException",
    _PREFIX + "ServiceFailureException",
    _PREFIX + "RESTException",
    "org.apache.iceberg.jdbc.UncheckedSQLException",
    "org.apache.iceberg.jdbc.UncheckedInterruptedException",
    _PREFIX + "RuntimeIOException",
    "java.io.UncheckedIOException",
}


class MetadataMovedError(LakeError):
    """The table's metadata changed since it was read; reload, check again, retry. Internal."""


def java_error_class(error: Py4JJavaError) -> str:
    """The Java class of an error, in full."""
    return str(error.java_exception.getClass().getName())


def first_line(error: Exception) -> str:
    """What an error says, without Java's trace."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def translate(error: Py4JError | PySparkException, table: TableName) -> TautochroneError:
    """Convert an error of the Java API, or of a Spark job that it started, to a TautochroneError."""
    if refused := _OF_THE_FUTURE.search(str(error)):
        return LakeError(
            "LAKE_CLOCK_BEHIND",
            f"{table} has commits that are newer than a clock says, this host's or the catalog's: "
            f"{refused.group()}",
            hint="set the clocks right; where they are, it is over when they have caught up with the time in "
            "the message (epoch milliseconds)",
            retryable=True,
        )
    if isinstance(error, PySparkException):
        return LakeError("LAKE_OPERATION_FAILED", f"{table}: {problem_of(error).message}")
    if not isinstance(error, Py4JJavaError):
        return CommitOutcomeUnknownError("LAKE_UNREACHABLE", f"The JVM did not answer for {table}: {error}")
    name = java_error_class(error)
    text = str(error.java_exception.getMessage())
    if name == _PREFIX + "CommitFailedException":
        return MetadataMovedError("METADATA_MOVED", f"{table}: {text}", retryable=True)
    if name in _MISSING:
        return TableMissingError("TABLE_OR_VIEW_NOT_FOUND", f"The table {table} cannot be found: {text}")
    if name in _UNKNOWN:
        return CommitOutcomeUnknownError(
            "COMMIT_OUTCOME_UNKNOWN", f"The catalog gave no clear answer for {table}: {text}"
        )
    return LakeError("LAKE_OPERATION_FAILED", f"{table}: {name.rsplit('.', 1)[-1]}: {text}")


class Iceberg:
    """The Java API behind one Spark session (the base session: its catalog is the real one)."""

    def __init__(
        self, session: SparkSession, catalog: str, durability: Durability = Durability.PROCESS
    ) -> None:
        self.session = session
        self.durability = durability
        self.catalog_name = catalog
        jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        self.jvm = jvm
        self.jsession: Any = session._jsparkSession  # noqa: SLF001
        self.api: Any = jvm.org.apache.iceberg
        self._gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        self._identifiers: dict[TableName, Any] = {}

    @cached_property
    def functions(self) -> Functions:
        """Java functions over lists of files."""
        return Functions(self.jvm, self._gateway)

    @cached_property
    def task_sets(self) -> TaskSets:
        """DataFrames over chosen data files."""
        return TaskSets(self.jvm)

    def catalog(self) -> Any:
        """The Java catalog. Iceberg's Spark code uses the thread's active session, which only the thread
        that created the session has, so it is set here."""
        self.activate(self.session)
        return self._catalog

    @cached_property
    def _catalog(self) -> Any:
        return self.api.spark.Spark3Util.loadIcebergCatalog(self.jsession, self.catalog_name)

    def activate(self, session: SparkSession) -> None:
        """Make `session` the active one of this thread's JVM thread."""
        set_active_session(session)

    def identifier(self, name: TableName) -> Any:
        if name not in self._identifiers:
            namespace = self.api.catalog.Namespace.of(self.strings([*name.namespace]))
            self._identifiers[name] = self.api.catalog.TableIdentifier.of(namespace, name.table)
        return self._identifiers[name]

    def load(self, name: TableName) -> Any:
        """The table, fresh from the catalog.

        Raises:
            TableMissingError: it is not there.
        """
        try:
            return self.catalog().loadTable(self.identifier(name))
        except Py4JError as error:
            raise translate(error, name) from error

    def array(self, kind: Any, values: Sequence[Any]) -> Any:
        """A Java array of the Java class `kind`."""
        java_array = self._gateway.new_array(kind, len(values))
        for index, value in enumerate(values):
            java_array[index] = value
        return java_array

    def strings(self, values: list[str]) -> Any:
        return self.array(self.jvm.java.lang.String, values)

    def map(self, values: Mapping[str, str]) -> Any:
        result = self.jvm.java.util.HashMap()
        for key, value in values.items():
            result.put(key, value)
        return result

    def set(self, values: Iterable[str]) -> Any:
        result = self.jvm.java.util.HashSet()
        for value in values:
            result.add(value)
        return result

    def synced_folders(self, metadata: Any) -> list[Path]:
        """The local folders of a table whose files must be synced to disk before and after a commit."""
        if self.durability is Durability.PROCESS:
            return []
        properties = metadata.properties()
        locations = [metadata.location(), *(properties.get(key) for key in _PATHS)]
        folders = [local_folder(str(location)) for location in locations if location is not None]
        return [folder for folder in folders if folder is not None]

    def table_cache(self) -> Any:
        """Iceberg's registry of tables that a write can name by a key.

        `SparkTableCache.get()` is static and `get(String)` is not. Py4J then treats both as instance
        methods, so the static one is called by reflection.
        """
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        cls = loader.loadClass("org.apache.iceberg.spark.SparkTableCache")
        method = cls.getMethod("get", self._gateway.new_array(self.jvm.java.lang.Class, 0))
        return method.invoke(None, self._gateway.new_array(self.jvm.java.lang.Object, 0))

    def java_schema(self, schema: Any) -> Any:
        """A pyspark StructType as the Java one."""
        return self.jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
