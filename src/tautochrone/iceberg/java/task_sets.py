"""DataFrames over exactly chosen data files.

Iceberg's compaction reads chosen files through a scan whose tasks are looked up under an id in a
registry of the JVM (`ScanTaskSetManager`). The registry keeps what it is given for ever, while a
DataFrame may be planned again as long as anybody holds a plan that was made from it. So each set is
released when the Java object that stands for it in those plans is garbage.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.names import TableName
from tautochrone.spark.analysis.session_context import dataframe_of_plan

__all__ = ["TaskSets"]


class TaskSets:
    """The task sets of one process. Safe to use from several threads."""

    def __init__(self, jvm: Any) -> None:
        spark = jvm.org.apache.iceberg.spark
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self._weak_map, self._string = jvm.java.util.WeakHashMap, jvm.java.lang.String
        self._manager = spark.ScanTaskSetManager.get()
        self._staged_table = spark.source.SparkRewriteTable
        self._whole_table = spark.source.SparkTable
        self._relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
        self._none = none
        self._lock = threading.Lock()
        self._known: dict[TableName, tuple[set[str], Any]] = {}

    def frame(self, session: SparkSession, name: TableName, table: Any, tasks: Any) -> DataFrame:
        """The rows of `tasks` with the columns of the Java `table` and its metadata columns.

        `session` must be the active one of this thread's JVM thread.
        """
        key = str(uuid.uuid4())
        # The columns come from the plain relation: that of a staged table has no metadata columns.
        plain = self._relation.create(self._whole_table(table), self._none, self._none).withMetadataColumns()
        staged = self._staged_table(table, key)
        with self._lock:
            known, alive = self._known.setdefault(name, (set(), self._weak_map()))
            self._sweep(table, known, alive)
            alive.put(staged, key)
            known.add(key)
        self._manager.stageTasks(table, key, tasks)
        relation = self._relation(staged, plain.output(), self._none, self._none, plain.options(), self._none)
        return dataframe_of_plan(session, relation)

    def _sweep(self, table: Any, known: set[str], alive: Any) -> None:
        if int(alive.size()) == len(known):
            return
        left = set(str(self._string.join(",", alive.values())).split(","))
        for key in known - left:
            self._manager.removeTasks(table, key)
        known &= left
