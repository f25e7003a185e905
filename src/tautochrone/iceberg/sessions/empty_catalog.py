"""A catalog of empty tables, in which a graph is resolved before anything is built.

Nothing is written to storage: the tables are metadata in memory and exist as long as the session.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from tautochrone.errors import DefinitionError
from tautochrone.iceberg.sessions.spark_sessions import empty_session
from tautochrone.model.names import TableName, quoted
from tautochrone.spark.jvm.errors import SparkProblem, problem_of

__all__ = ["EmptyCatalog"]

# Variants and nanosecond timestamps exist from format version 3 on.
_FORMAT_VERSION = "3"


class EmptyCatalog:
    """A session with an empty catalog, and the tables created in it so far."""

    def __init__(self, base: SparkSession, catalog: str) -> None:
        self.session = empty_session(base, catalog)
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
            raise self._refused(name, schema, problem_of(error), location) from error
        self.tables[name] = self.session.table(name.sql).schema
        return self.tables[name]

    def _refused(
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
