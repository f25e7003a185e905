"""What flows evaluate to, and whether they still do when they are evaluated again.

In an analysis Python functions run twice, to find constants that are others each time.

A query function runs again in each refresh. When it reads a file or a variable that changed since its
definition was loaded, a view would get the changes of another query on top of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import DefinitionsOutdatedError
from tautochrone.model.names import TableName, quoted
from tautochrone.project.definitions import Definitions, Flow, is_view
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.identity import DescribedPlan, described_flow, described_function
from tautochrone.project.queries import PythonQuery

__all__ = ["Evaluated", "Evaluations", "require_same_query"]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a flow evaluates to.

    Attributes:
        plan: what its evaluations have in common.
        is_stable: whether they are the same.
        code: of the functions that give another query each time. Without it a change of `timedelta(days=7)`
            in `datetime.now() - timedelta(days=7)` would not be seen.
    """

    plan: DescribedPlan
    is_stable: bool
    code: tuple[str, ...]


class Evaluations:
    """Evaluates the flows of one analysis.

    Args:
        session: in which they are evaluated.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._unstable_views: dict[TableName, tuple[DataFrame, DataFrame]] = {}
        self._unstable: dict[str, Evaluated] = {}

    def of(
        self,
        definitions: Definitions,
        flow: Flow,
        rows: DataFrame,
        views: Collection[TableName],
        *,
        is_repeatable: bool,
    ) -> Evaluated:
        """What a flow evaluates to. A stream is evaluated once. The views that it reads must be known.

        Args:
            definitions: of the flow.
            flow: whose query it is.
            rows: what it evaluated to.
            views: that it reads.
            is_repeatable: whether its plan gives the same rows each time.
        """
        plan = described_flow(definitions, flow, rows)
        if rows.isStreaming:
            return Evaluated(plan, is_stable=True, code=())
        below = [view for view in views if view in self._unstable_views]
        is_python = isinstance(flow.query, PythonQuery)
        # Spark chooses a seed whenever a query without one is analysed.
        if is_repeatable and not below and not is_python and not plan.has_node("Sample"):
            return Evaluated(plan, is_stable=True, code=())
        with self._evaluated_again(definitions, below):
            again = flow.evaluate(self._session)
            other = described_flow(definitions, flow, again)
        if plan.is_same(other):
            return Evaluated(plan, is_stable=True, code=())
        evaluated = self._unstable_of(definitions, flow, plan, other, below)
        dataset = definitions.datasets.get(flow.target)
        if dataset is not None and is_view(dataset):
            self._unstable_views[flow.target] = rows, again
            self._unstable[flow.name] = evaluated
        return evaluated

    def _unstable_of(
        self,
        definitions: Definitions,
        flow: Flow,
        plan: DescribedPlan,
        other: DescribedPlan,
        below: Collection[TableName],
    ) -> Evaluated:
        common = plan.common(other)
        unread = [*plan.unread]
        if common is None:
            common = replace(plan, tokens=(), functions=())
            unread.append("a function that makes a query of another form each time it runs")
        code: list[str] = []
        project_folder = plan.project_folder
        if isinstance(flow.query, PythonQuery):
            function = described_function(definitions, flow.query, self._session)
            code.append(function.text)
            unread += function.unread
            project_folder = project_folder or function.project_folder
        for view in sorted(below):
            for view_flow in definitions.flows_of(view):
                evaluated = self._unstable[view_flow.name]
                code += evaluated.code
                unread += evaluated.plan.unread
                project_folder = project_folder or evaluated.plan.project_folder
        common = replace(common, unread=tuple(dict.fromkeys(unread)), project_folder=project_folder)
        return Evaluated(common, is_stable=False, code=tuple(code))

    @contextmanager
    def _evaluated_again(self, definitions: Definitions, views: Collection[TableName]) -> Iterator[None]:
        """Inside the block these views show what they gave when they were evaluated once more."""
        for number in (1, 0):
            for view in views:
                frame = self._unstable_views[view][number]
                frame.createOrReplaceTempView(quoted(definitions.view_name(view)))
            if number:
                yield


def require_same_query(graph: Graph, flow: ResolvedFlow) -> None:
    """Evaluate the Python functions of a flow and of the views below it once more. No Spark job, except for
    rows that the driver gives to Spark.

    Raises:
        DefinitionsOutdatedError: `DEFINITION_CHANGED_IN_RUN`.
        DefinitionError: a function failed.
    """
    views = [below for view in sorted(flow.views) for below in graph.flows_of(view)]
    for each in (flow, *views):
        if isinstance(each.flow.query, PythonQuery) and not _is_same(graph, each):
            raise DefinitionsOutdatedError(
                "DEFINITION_CHANGED_IN_RUN",
                f"The function of {each.flow.name} gives another query than when this run loaded it",
                location=str(each.flow.location),
                hint="a continuous run loads its definitions anew and rebuilds what they change; "
                "otherwise the next run does",
            )


def _is_same(graph: Graph, flow: ResolvedFlow) -> bool:
    if flow.evaluated is None or graph.analysis_session is None:
        return True
    definitions, session = graph.definitions, graph.analysis_session
    return flow.evaluated.may_be(described_flow(definitions, flow.flow, flow.flow.evaluate(session)))
