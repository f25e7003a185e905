"""Writing data files that belong to no snapshot yet."""

from __future__ import annotations

import uuid
from typing import Any

from py4j.protocol import Py4JJavaError

from tautochrone.lake.iceberg.jvm import Iceberg, java_error_class
from tautochrone.model.lake import Rows, Staged
from tautochrone.model.names import TableName

__all__ = ["write_files"]


def write_files(iceberg: Iceberg, name: TableName, table: Any, rows: Rows) -> Staged:
    """Let Spark write `rows` as files of the Java `table`, and collect them without a commit.

    This is the door that Iceberg's own compaction uses: the table is registered under a key, the write
    names the key instead of a table, and the written files are handed to a coordinator on the driver.
    It works in any session, whatever its catalogs are, and never touches the catalog.
    """
    group = str(uuid.uuid4())
    iceberg.activate(rows.sparkSession)
    cache = iceberg.table_cache()
    coordinator = iceberg.api.spark.FileRewriteCoordinator.get()
    cache.add(group, table)
    try:
        # Fan-out: rows arrive in any order, a clustered writer would refuse the second partition.
        rows.write.format("iceberg").mode("append").option("fanout-enabled", "true").save(group)
        try:
            files = list(coordinator.fetchNewFiles(table, group))
        except Py4JJavaError as error:
            # Spark skipped the write of a relation that it knew to be empty.
            if not java_error_class(error).endswith("ValidationException"):
                raise
            files = []
    finally:
        cache.remove(group)
        coordinator.clearRewrite(table, group)
    return Staged(table=name, files=files, rows=sum(file.recordCount() for file in files))
