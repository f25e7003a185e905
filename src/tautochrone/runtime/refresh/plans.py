"""The plan of each view, made once: it does not depend on versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from tautochrone.algebra.nodes import Aggregate, Join, TopK, Window, walk
from tautochrone.ingest.column_alignment import align
from tautochrone.model.lake import Fork
from tautochrone.model.names import TableName
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.state_layout import Planned, planned
from tautochrone.runtime.refresh.states import States
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["Plans"]

Sessions = Callable[[TableName], SparkSession]


class Plans:
    """Plans of a job's views, for as long as the job runs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._known: dict[TableName, Planned] = {}

    def of(self, view: TableName, sessions: Sessions) -> Planned | None:
        """A view's plan; None when its changes can never be followed."""
        found = self._plan(view, sessions)
        return None if found.view.obstacles else found

    def obstacles(self, view: TableName, sessions: Sessions) -> Sequence[str]:
        """Why a view's changes cannot be followed; empty when they can."""
        return self._plan(view, sessions).view.obstacles

    def steps(self, view: TableName, sessions: Sessions) -> int:
        """How many operators of a view's plan look at other rows than those that changed."""
        plan = self._plan(view, sessions).view.plan
        # What stands in two places is followed once.
        return sum(isinstance(node, Aggregate | Join | TopK | Window) for node in dict.fromkeys(walk(plan)))

    def columns(self, table: TableName) -> frozenset[str]:
        """The columns that the plans made so far read of a table."""
        with self._lock:
            plans = list(self._known.values())
        return frozenset[str]().union(*(plan.reads.get(table, ()) for plan in plans))

    def lost_state(self, view: TableName, fork: Fork) -> str | None:
        """Why the states that a planned view goes on from are not there, or None."""
        found = self._known.get(view)
        return None if found is None else States(self._job, view, found.layouts, fork).missing()

    def _plan(self, view: TableName, sessions: Sessions) -> Planned:
        with self._lock:
            known = self._known.get(view)
        if known is None:
            known = self._made(view, sessions(view))
            with self._lock:
                self._known[view] = known
        return known

    def _made(self, view: TableName, session: SparkSession) -> Planned:
        (flow,) = self._job.flows(view)
        set_active_session(session)
        self._job.definitions.prepare(session, flow.views)
        frame = align(flow.flow.evaluate(session), self._job.graph.schemas[view], flow.flow.name)
        return planned(plan_of(frame, view.catalog))
