"""The plan of each view, made once: it does not depend on versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.ingest.flow import align
from tautochrone.model.lake import Fork
from tautochrone.model.names import TableName
from tautochrone.runtime.job import Job
from tautochrone.runtime.layout import Planned, planned
from tautochrone.runtime.states import States
from tautochrone.spark.errors import problem_of
from tautochrone.spark.evaluate import activate
from tautochrone.spark.frontend import plan_of

__all__ = ["Plans"]

Sessions = Callable[[TableName], SparkSession]


class Plans:
    """Plans of a job's views, for as long as the job runs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._known: dict[TableName, Planned | str] = {}

    def of(self, view: TableName, sessions: Sessions) -> Planned | None:
        """A view's plan; None when its changes can never be followed."""
        found = self._plan(view, sessions)
        return found if isinstance(found, Planned) and not found.view.obstacles else None

    def obstacles(self, view: TableName, sessions: Sessions) -> Sequence[str]:
        """Why a view's changes cannot be followed; empty when they can."""
        found = self._plan(view, sessions)
        return (found,) if isinstance(found, str) else found.view.obstacles

    def lost_state(self, view: TableName, fork: Fork) -> str | None:
        """Why the states that a planned view goes on from are not there, or None."""
        found = self._known.get(view)
        return States(self._job, view, found.layouts, fork).missing() if isinstance(found, Planned) else None

    def _plan(self, view: TableName, sessions: Sessions) -> Planned | str:
        with self._lock:
            known = self._known.get(view)
        if known is None:
            known = self._made(view, sessions(view))
            with self._lock:
                self._known[view] = known
        return known

    def _made(self, view: TableName, session: SparkSession) -> Planned | str:
        (flow,) = self._job.flows(view)
        activate(session)
        self._job.definitions.prepare(session, flow.views)
        frame = align(flow.flow.evaluate(session), self._job.graph.schemas[view], flow.flow.name)
        try:
            return planned(plan_of(frame, view.catalog))
        except PySparkException as error:
            return f"its plan cannot be followed: {problem_of(error).message}"
