"""Flows that read a database's change log: the table takes the log as it is, others derive from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tautochrone.errors import DefinitionError
from tautochrone.model.copied_files import is_light
from tautochrone.model.definitions import Dataset
from tautochrone.model.keyed_apply import KeyedApply, keyed_apply_of
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason
from tautochrone.model.source import ChangeLog
from tautochrone.model.source_position import LogPosition
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.sources.registry import any_change_logs, change_log
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import kind, walk
from tautochrone.spark.sources.registry import is_stream_leaf, sources_of

__all__ = [
    "change_log_of",
    "check_light_logs",
    "copied_into",
    "kept_columns",
    "relations_to_copy",
    "tables_of_files",
]


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


def check_light_logs(graph: Graph) -> None:
    """Refuse readers of the log table of a light capture, other than its tables: it has no copied rows, and
    its changes go.

    Raises:
        DefinitionError: `LIGHT_CAPTURE_LOG_READ`.
    """
    datasets = graph.definitions.datasets
    for log, dataset in datasets.items():
        if not is_light(dataset.properties):
            continue
        readers = {
            str(reader): str(datasets[reader].location) if reader in datasets else None
            for reader in graph.readers(log)
            if reader not in datasets or _captures(datasets[reader]) is None
        }
        readers |= {invariant.name: None for invariant in graph.invariants if log in invariant.tables}
        for reader, location in readers.items():
            raise DefinitionError(
                "LIGHT_CAPTURE_LOG_READ",
                f"{reader} reads {log}, the log table of a light capture, which has no copied rows, and "
                "changes only until the captured tables have them",
                location=location,
                hint="read the captured tables, or capture with mode='full'",
            )


def relations_to_copy(job: Job, log: TableName) -> frozenset[str]:
    """Relations of a log table that lacks old rows of them, and from which a captured table must be built."""
    metadata = job.tables[log].fork().commit_metadata
    if metadata is None:
        return frozenset()
    in_files = _in_files(metadata)
    relations = set()
    for reader, apply in _captured_tables(job, log):
        relation = str(apply.relation)
        if reader not in job.tables or not (relation in metadata.shortened or relation in in_files):
            continue
        table = job.tables[reader]
        if not _is_built(table, log) and (
            relation in metadata.shortened
            or isinstance(table.task_files(table.fork(), [], in_files[relation]), Reason)
        ):
            relations.add(relation)
    return frozenset(relations)


def tables_of_files(job: Job, log: TableName) -> Mapping[str, LakeTable]:
    """By relation the tables that take files of their first copy: those over the log of a light capture that
    have a key and are not built."""
    dataset = job.definitions.datasets.get(log)
    if dataset is None or not is_light(dataset.properties):
        return {}
    return {
        str(apply.relation): job.tables[reader]
        for reader, apply in _captured_tables(job, log)
        if apply.weight is None and reader in job.tables and not _is_built(job.tables[reader], log)
    }


def copied_into(job: Job, table: LakeTable) -> str | None:
    """The relation of which the table may have copied rows in files that no version of it has yet."""
    dataset = job.definitions.datasets.get(table.name)
    apply = None if dataset is None else _captures(dataset)
    if apply is None:
        return None
    for log in job.graph.inputs(table.name).stream:
        log_dataset = job.definitions.datasets.get(log)
        if log_dataset is not None and is_light(log_dataset.properties) and not _is_built(table, log):
            return apply.relation
    return None


def _is_built(table: LakeTable, log: TableName) -> bool:
    built = table.fork().commit_metadata
    return built is not None and str(log) in built.inputs


def _in_files(metadata: CommitMetadata) -> Mapping[str, int]:
    positions = [position for position in metadata.positions.values() if isinstance(position, LogPosition)]
    return {name: at_ms for position in positions for name, at_ms in position.bulk.in_files.items()}


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
        apply = None if dataset is None else _captures(dataset)
        if apply is not None:
            yield reader, apply


def _captures(dataset: Dataset) -> KeyedApply | None:
    """How rows of a log table are merged into a captured table; None: it is none."""
    apply = keyed_apply_of(dataset.properties, str(dataset.location))
    return None if apply is None or apply.relation is None else apply
