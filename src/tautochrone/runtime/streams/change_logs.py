"""Flows that read a database's change log: the table takes the log as it is, others derive from it."""

from __future__ import annotations

from tautochrone.errors import DefinitionError
from tautochrone.model.source import ChangeLog
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.sources.registry import any_change_logs, change_log
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import kind, walk
from tautochrone.spark.sources.registry import is_stream_leaf, sources_of

__all__ = ["change_log_of"]


def change_log_of(graph: Graph, resolved: ResolvedFlow) -> ChangeLog | None:
    """The change log that a flow reads; None: its sources are Spark's.

    Raises:
        DefinitionError: `CHANGE_LOG_QUERY`, the flow does more than read it; `EXPECTATION_NOT_SUPPORTED`.
    """
    if not any_change_logs() or not resolved.inputs.external_streams:
        return None
    assert graph.analysis_session is not None
    frame = resolved.flow.evaluate(graph.analysis_session)
    logs = [log for source in sources_of(frame) if (log := change_log(source.name, source.options()))]
    if not logs:
        return None
    if resolved.flow.expectations:
        raise DefinitionError(
            "EXPECTATION_NOT_SUPPORTED",
            f"{resolved.flow.target} takes the change log of {logs[0].name} as it is, and has expectations",
            location=str(resolved.flow.location),
            hint="give them to a table that reads this one",
        )
    if all(is_stream_leaf(node) or kind(node) == "SubqueryAlias" for node in walk(analyzed_plan(frame))):
        return logs[0]
    raise DefinitionError(
        "CHANGE_LOG_QUERY",
        f"Flow {resolved.flow.name} reads the change log of {logs[0].name} and does something with it",
        location=str(resolved.flow.location),
        hint="let its table take the log as it is; select and filter in tables that read this one",
    )
