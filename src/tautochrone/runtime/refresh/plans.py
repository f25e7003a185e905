"""The plan of each view, made once: it does not depend on versions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from tautochrone.algebra.nodes import Aggregate, Join, TopK, Window, walk
from tautochrone.ingest.column_alignment import align
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import UNSTABLE_FUNCTION, Graph
from tautochrone.runtime.refresh.checkpoint_views import CheckpointViews
from tautochrone.runtime.refresh.state_layout import Planned, planned
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["Plans"]


class Plans:
    """Plans of a job's views, for as long as the job runs.

    Methods take the session in which a view is planned if it was not yet.
    """

    def __init__(self, views: CheckpointViews, graph: Graph) -> None:
        self._views = views
        self._graph = graph
        self._lock = threading.Lock()
        self._known: dict[TableName, Planned] = {}

    def of(self, view: TableName, session: SparkSession) -> Planned | None:
        """A view's plan; None when its changes can never be followed."""
        plan = self._plan(view, session)
        return None if plan.view.obstacles else plan

    def known(self, view: TableName) -> Planned | None:
        """A view's plan if it was made already."""
        with self._lock:
            return self._known.get(view)

    def obstacles(self, view: TableName, session: SparkSession) -> Sequence[Reason]:
        """Why a view's changes cannot be followed; empty when they can."""
        obstacles = self._plan(view, session).view.obstacles
        return [Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=obstacle) for obstacle in obstacles]

    def steps(self, view: TableName, session: SparkSession) -> int:
        """How many operators of a view's plan look at other rows than those that changed."""
        plan = self._plan(view, session).view.plan
        # A node that occurs twice in the plan is computed once.
        return sum(isinstance(node, Aggregate | Join | TopK | Window) for node in dict.fromkeys(walk(plan)))

    def columns(self, table: TableName) -> frozenset[str]:
        """The columns that the plans made so far read of a table."""
        with self._lock:
            plans = list(self._known.values())
        return frozenset[str]().union(*(plan.reads.get(table, ()) for plan in plans))

    def _plan(self, view: TableName, session: SparkSession) -> Planned:
        plan = self.known(view)
        if plan is None:
            plan = self._make(view, session)
            with self._lock:
                self._known[view] = plan
        return plan

    def _make(self, view: TableName, session: SparkSession) -> Planned:
        (flow,) = self._graph.flows_of(view)
        set_active_session(session)
        self._views.prepare(session, flow.views)
        rows = flow.evaluate(session, with_dropped=True)
        frame = align(rows, self._graph.schemas[view], flow.flow.name)
        plan = plan_of(flow.flow.with_flags(frame), view.catalog)
        if flow.deterministic_reason == UNSTABLE_FUNCTION:
            # The rows that are stored have the constants of another run.
            plan = replace(plan, obstacles=(*plan.obstacles, UNSTABLE_FUNCTION))
        return planned(plan)
