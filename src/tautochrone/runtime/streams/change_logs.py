"""Flows that read a database's change log: the table takes the log as it is, others derive from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tautochrone.errors import DefinitionError
from tautochrone.model.keyed_apply import KeyedApply, keyed_apply_of
from tautochrone.model.names import TableName
from tautochrone.model.source import ChangeLog
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.sources.registry import any_change_logs, change_log
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import kind, walk
from tautochrone.spark.sources.registry import is_stream_leaf, sources_of

__all__ = ["change_log_of", "kept_columns", "relations_to_copy"]


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


def relations_to_copy(job: Job, log: TableName) -> frozenset[str]:
    """Relations of a log table that lacks old rows of them, and from which a captured table must be built."""
    metadata = job.tables[log].fork().commit_metadata
    if metadata is None or not metadata.shortened:
        return frozenset()
    relations = set()
    for reader, apply in _captured_tables(job, log):
        if apply.relation not in metadata.shortened or reader not in job.tables:
            continue
        built = job.tables[reader].fork().commit_metadata
        if built is None or str(log) not in built.inputs:
            relations.add(str(apply.relation))
    return frozenset(relations)


def kept_columns(job: Job, log: TableName) -> Mapping[str, Collection[str]]:
    """The columns of captured tables that get no new ones, by relation."""
    return {
        str(apply.relation): job.graph.schemas[reader].fieldNames()
        for reader, apply in _captured_tables(job, log)
        if apply.keeps_columns
    }


def _captured_tables(job: Job, log: TableName) -> Iterator[tuple[TableName, KeyedApply]]:
    """Those whose rows are in a log table."""
    for reader in job.graph.readers(log):
        dataset = job.definitions.datasets.get(reader)
        apply = None if dataset is None else keyed_apply_of(dataset.properties, str(dataset.location))
        if apply is not None and apply.relation is not None:
            yield reader, apply
