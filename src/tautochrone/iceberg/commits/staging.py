"""Writes data files that do not belong to a snapshot yet."""

from __future__ import annotations

import uuid
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from tautochrone.iceberg.commits.compare_and_set import staged_at_ms
from tautochrone.iceberg.java.api import Iceberg, items, java_error_class
from tautochrone.model.lake import Rows, Staged
from tautochrone.model.names import TableName

__all__ = ["local_rows", "write_files", "write_locally"]


def write_files(iceberg: Iceberg, name: TableName, table: Any, rows: Rows) -> Staged:
    """Let Spark write `rows` as data files of the Java `table`, without a commit.

    Iceberg's own compaction works the same way: the table is registered under a key, the write names the
    key instead of a table, and a coordinator on the driver collects the written files. It works in any
    session, whatever its catalogs are, and never accesses the catalog.
    """
    group, at_ms = str(uuid.uuid4()), staged_at_ms(table)
    iceberg.activate(rows.sparkSession)
    cache = iceberg.table_cache()
    coordinator = iceberg.api.spark.FileRewriteCoordinator.get()
    cache.add(group, table)
    try:
        # Fan-out: rows arrive in any order, a clustered writer would refuse the second partition.
        rows.write.format("iceberg").mode("append").option("fanout-enabled", "true").save(group)
        try:
            files = items(coordinator.fetchNewFiles(table, group))
        except Py4JJavaError as error:
            # Spark skipped the write of a relation that it knew to be empty.
            if not java_error_class(error).endswith("ValidationException"):
                raise
            files = []
    finally:
        cache.remove(group)
        coordinator.clearRewrite(table, group)
    return _staged(name, files, at_ms)


def local_rows(iceberg: Iceberg, table: Any, rows: Rows) -> Any | None:
    """The rows as a Java list if they are a local relation that can be written unchanged, else None.

    They can if they have the table's columns in the same order and with the same types. Otherwise Spark must
    plan the write, with casts and checks.
    """
    plan = rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    if str(plan.nodeName()) != "LocalRelation":
        return None
    table_schema = iceberg.api.spark.SparkSchemaUtil.convert(table.schema())
    rows_schema = rows._jdf.schema()  # noqa: SLF001
    if not table_schema.asNullable().equals(rows_schema.asNullable()):
        return None
    if not table_schema.equals(table_schema.asNullable()) and not table_schema.equals(rows_schema):
        # A column is NOT NULL, and the local write would not check that.
        return None
    return iceberg.jvm.scala.jdk.javaapi.CollectionConverters.asJava(plan.data())


def write_locally(iceberg: Iceberg, name: TableName, table: Any, rows: Rows, data: Any) -> Staged:
    """Write the `data` of `rows` in this thread, with the writer that Spark's tasks use.

    Types, partitions, statistics and table properties are treated as in any other write. It saves the Spark
    job, which takes most of the time of a small write.
    """
    at_ms = staged_at_ms(table)
    if data.isEmpty():
        return _staged(name, [], at_ms)
    group = str(uuid.uuid4())
    iceberg.activate(rows.sparkSession)
    connector, empty = (
        iceberg.jvm.org.apache.spark.sql.connector.write,
        iceberg.jvm.java.util.Optional.empty(),
    )
    # Without this option the writer would mark the files of a sorted table as sorted, which they are not.
    options = {"fanout-enabled": "true", "use-table-distribution-and-ordering": "false"}
    settings = iceberg.jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(iceberg.map(options))
    write_info = connector.LogicalWriteInfoImpl(group, rows._jdf.schema(), settings, empty, empty)  # noqa: SLF001
    batch = (
        iceberg.api.spark.source.SparkRewriteTable(table, group).newWriteBuilder(write_info).build().toBatch()
    )
    writer = batch.createBatchWriterFactory(connector.PhysicalWriteInfoImpl(1)).createWriter(0, 0)
    try:
        writer.writeAll(data.iterator())
        written = writer.commit()
    except Py4JError:
        writer.abort()
        raise
    finally:
        writer.close()
    messages = iceberg.array(connector.WriterCommitMessage, [written])
    coordinator = iceberg.api.spark.FileRewriteCoordinator.get()
    try:
        batch.commit(messages)
        files = items(coordinator.fetchNewFiles(table, group))
    finally:
        coordinator.clearRewrite(table, group)
    return _staged(name, files, at_ms)


def _staged(name: TableName, files: list[Any], at_ms: int) -> Staged:
    return Staged(table=name, files=files, rows=sum(int(file.recordCount()) for file in files), at_ms=at_ms)
