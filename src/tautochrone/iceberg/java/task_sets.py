"""DataFrames over chosen data files.

Iceberg's compaction reads chosen files through a scan whose tasks are registered under an id in the JVM
(`ScanTaskSetManager`). The registry never forgets a set, and a DataFrame can be planned again as long as a
plan made from it is referenced. So each set is removed after the Java object that represents it in those
plans has been garbage collected.
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
        self._task_set_keys: dict[TableName, tuple[set[str], Any]] = {}

    def frame(self, session: SparkSession, name: TableName, table: Any, tasks: Any) -> DataFrame:
        """The rows of `tasks` with the columns of the Java `table` and its metadata columns.

        `session` must be the active one of this thread's JVM thread.
        """
        key = str(uuid.uuid4())
        # The columns come from the plain relation, because a staged table has no metadata columns.
        plain = self._relation.create(self._whole_table(table), self._none, self._none).withMetadataColumns()
        staged = self._staged_table(table, key)
        with self._lock:
            keys, alive = self._task_set_keys.setdefault(name, (set(), self._weak_map()))
            self._sweep(table, keys, alive)
            alive.put(staged, key)
            keys.add(key)
        self._manager.stageTasks(table, key, tasks)
        relation = self._relation(staged, plain.output(), self._none, self._none, plain.options(), self._none)
        return dataframe_of_plan(session, relation)

    def _sweep(self, table: Any, keys: set[str], alive: Any) -> None:
        if int(alive.size()) == len(keys):
            return
        keys_in_use = set(str(self._string.join(",", alive.values())).split(","))
        for key in keys - keys_in_use:
            self._manager.removeTasks(table, key)
        keys &= keys_in_use
