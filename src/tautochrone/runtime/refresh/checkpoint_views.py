"""The pipeline's views at the open checkpoint: every dataset that reads a view sees the same rows of it.

A view is no table: Spark evaluates it again in each query that reads it. Two evaluations may give different
rows: a Python function asks for the time, `uuid()` and `rand()` give new values, LIMIT takes other rows. So a
view's function runs once per checkpoint, and the rows of a view that Spark might compute differently are
stored for as long as the checkpoint is open.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from py4j.java_gateway import JavaObject
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.project.definitions import Definitions, is_view
from tautochrone.project.graph import Graph
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, determinism
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["CheckpointViews"]


class CheckpointViews:
    """Safe to use from the threads of one run. Its sessions all show the lake at the open checkpoint."""

    def __init__(self, definitions: Definitions, graph: Graph) -> None:
        self._definitions = definitions
        self._graph = graph
        # Held while a view is computed: its other readers need the same rows.
        self._lock = threading.RLock()
        self._checkpoint: CheckpointNumber | None = None
        self._plans: dict[TableName, JavaObject] = {}
        self._stored: dict[TableName, JavaObject] = {}
        self._repeatable: dict[TableName, bool] = {}

    def start(self, checkpoint: CheckpointNumber) -> None:
        """Forget the rows of other checkpoints."""
        with self._lock:
            if checkpoint == self._checkpoint:
                return
            self._checkpoint = checkpoint
            self._plans.clear()
            for plan in self._stored.values():
                plan.rdd().unpersist(False)
            self._stored.clear()

    def prepare(
        self,
        session: SparkSession,
        views: Collection[TableName],
        versions: Mapping[TableName, Version] | None = None,
    ) -> None:
        """Register views as temporary views of `session`.

        Args:
            session: shows the lake at the open checkpoint.
            views: with the views that they read.
            versions: of the clocks at the checkpoint; None when the session will only analyse queries.

        Raises:
            DefinitionError: a view cannot be evaluated.
        """

        def evaluate(view: TableName) -> DataFrame:
            plan = self._plans.get(view)
            if plan is None:
                frame = self._definitions.flows_of(view)[0].evaluate(session)
                if frame.isStreaming:
                    # A stream belongs to the query that reads it.
                    return frame
                plan = self._plans[view] = analyzed_plan(frame)
            if versions is not None and self._is_stored(view, dataframe_of_plan(session, plan)):
                plan = self._stored.get(view) or self._store(view, plan, session, versions)
            return dataframe_of_plan(session, plan)

        with self._lock:
            self._definitions.prepare(session, views, evaluate)

    def _is_stored(self, view: TableName, frame: DataFrame) -> bool:
        """Whether two readers could see different rows of the view."""
        if self._definitions.datasets[view].kind is not DatasetKind.TEMPORARY_VIEW or self._readers(view) < 2:
            return False
        if view not in self._repeatable:
            always_the_same, _ = determinism(analyzed_plan(frame))
            self._repeatable[view] = always_the_same and not plan_of(frame, view.catalog).nondeterminism
        return not self._repeatable[view]

    def _readers(self, view: TableName) -> int:
        """How many queries read the view, without those of other views."""
        datasets = self._definitions.datasets
        flows = [
            flow
            for flow in self._graph.flows.values()
            if not flow.streaming
            and not (flow.flow.target in datasets and is_view(datasets[flow.flow.target]))
        ]
        queries = [*flows, *(invariant.query for invariant in self._graph.invariants)]
        return sum(view in query.views for query in queries)

    def _store(
        self,
        view: TableName,
        plan: JavaObject,
        session: SparkSession,
        versions: Mapping[TableName, Version],
    ) -> JavaObject:
        frame = with_fixed_time(dataframe_of_plan(session, plan), versions)
        rows = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
        self._stored[view] = analyzed_plan(rows)
        return self._stored[view]
