"""Writing data files that belong to no snapshot yet."""

from __future__ import annotations

import time
import uuid
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from tautochrone.iceberg.java.api import Iceberg, java_error_class
from tautochrone.iceberg.java.functions import items
from tautochrone.model.lake import Rows, Staged
from tautochrone.model.names import TableName

__all__ = ["local_rows", "write_files", "write_locally"]


def write_files(iceberg: Iceberg, name: TableName, table: Any, rows: Rows) -> Staged:
    """Let Spark write `rows` as files of the Java `table`, and collect them without a commit.

    This is the door that Iceberg's own compaction uses: the table is registered under a key, the write
    names the key instead of a table, and the written files are handed to a coordinator on the driver.
    It works in any session, whatever its catalogs are, and never touches the catalog.
    """
    group, at_ms = str(uuid.uuid4()), time.time_ns() // 1_000_000
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
    """The rows as a Java list when the driver holds them and may write them as they are, else None.

    As they are: the columns of the table, in its order, with its types. Anything else needs the casts
    and checks that Spark puts into the plan of a write.
    """
    plan = rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    if str(plan.nodeName()) != "LocalRelation":
        return None
    wanted = iceberg.api.spark.SparkSchemaUtil.convert(table.schema())
    given = rows._jdf.schema()  # noqa: SLF001
    if not wanted.asNullable().equals(given.asNullable()):
        return None
    if not wanted.equals(wanted.asNullable()) and not wanted.equals(given):
        # Some column must not be NULL, and nothing here would look.
        return None
    return iceberg.jvm.scala.jdk.javaapi.CollectionConverters.asJava(plan.data())


def write_locally(iceberg: Iceberg, name: TableName, table: Any, rows: Rows, data: Any) -> Staged:
    """Write the `data` of `rows` with the very writer that Spark's tasks use, in this thread.

    So types, partitions, statistics and table properties are treated as in any other write; what is
    left out is the job, most of the time of a small write.
    """
    at_ms = time.time_ns() // 1_000_000
    if data.isEmpty():
        return _staged(name, [], at_ms)
    group = str(uuid.uuid4())
    iceberg.activate(rows.sparkSession)
    connector, empty = (
        iceberg.jvm.org.apache.spark.sql.connector.write,
        iceberg.jvm.java.util.Optional.empty(),
    )
    # A sorted table: the writer would call these rows sorted, and nobody sorted them.
    options = {"fanout-enabled": "true", "use-table-distribution-and-ordering": "false"}
    settings = iceberg.jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(iceberg.map(options))
    told = connector.LogicalWriteInfoImpl(group, rows._jdf.schema(), settings, empty, empty)  # noqa: SLF001
    batch = iceberg.api.spark.source.SparkRewriteTable(table, group).newWriteBuilder(told).build().toBatch()
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
