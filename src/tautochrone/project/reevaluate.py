"""Whether a Python function still gives the query that it gave when its definition was loaded.

A query function runs again in each refresh. When it reads a file or a variable that changed since, a view
would get the changes of another query on top of its rows.
"""

from __future__ import annotations

from tautochrone.errors import DefinitionsOutdatedError
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.identity import described_flow
from tautochrone.project.queries import PythonQuery

__all__ = ["require_same_query"]


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
