"""Flows that read a database's change log: the table takes the log as it is, others derive from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import KeyedApply, keyed_apply_of
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.definitions import Dataset
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.log_table import KeyedTable, is_light
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import ChangeLog
from tautochrone.model.source_position import LogPosition
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.sources.capture.set_aside import aside_reason
from tautochrone.sources.registry import any_change_logs, change_log
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import kind, walk
from tautochrone.spark.sources.registry import is_stream_leaf, sources_of

__all__ = [
    "change_log_of",
    "check_light_logs",
    "kept_columns",
    "orphans_end",
    "refused_tables",
    "relations_to_copy",
    "tables_of_change_files",
    "tables_of_copied_files",
]

_LONGEST_BATCH_MS = 3_600_000
"""A file is written before the log table's commit that names it: by less than this."""


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
    """Refuse readers of the log table of a light capture, other than its tables: it names files instead of
    their rows.

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
                f"{reader} reads {log}, the log table of a light capture, which names files instead of their "
                "rows",
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
    for reader, apply in _captured_tables(job.graph, log):
        relation = str(apply.relation)
        if reader not in job.tables or not (relation in metadata.shortened or relation in in_files):
            continue
        table = job.tables[reader]
        if not _is_built(table, log) and (
            relation in metadata.shortened or table.files_taken(table.fork(), in_files[relation])
        ):
            relations.add(relation)
    return frozenset(relations)


def tables_of_copied_files(job: Job, log: TableName) -> Mapping[str, LakeTable]:
    """By relation the tables that take files of their first copy: those over the log of a light capture that
    have a key and are not built."""
    tables = _light_tables(job, log)
    return {name: table for name, (table, _) in tables.items() if not _is_built(table, log)}


def tables_of_change_files(job: Job, log: TableName, relations: Collection[str]) -> Mapping[str, KeyedTable]:
    """By relation the tables that take files of their changes once they are built: those over the log of a
    light capture that have a key.

    Args:
        relations: others are left out.
    """
    return {name: table for name, table in _light_tables(job, log).items() if name in relations}


def orphans_end(job: Job, table: LakeTable, before_ms: int) -> int | Reason:
    """Up to when files of a table were last written that are orphans if no version has them (epoch ms). The
    log of a light capture names files that its tables do not have yet. A reason: any file may be one of them.

    Args:
        before_ms: up to when for all other tables.
    """
    dataset = job.definitions.datasets.get(table.name)
    apply = None if dataset is None else _captures(dataset)
    if apply is None:
        return before_ms
    for log in job.graph.inputs(table.name).stream:
        # The log may have moved to another job.
        log_table = job.tables[log] if log in job.tables else job.lake.load(log)
        newest = log_table.fork()
        # A log that was light may still name files.
        log_dataset = job.definitions.datasets.get(log)
        is_light_now = log_dataset is not None and is_light(log_dataset.properties)
        metadata = newest.commit_metadata
        if not is_light_now and (metadata is None or apply.relation not in _in_files(metadata)):
            continue
        merged = _merged(table, log)
        if merged is None:
            return Reason.of(ReasonCode.WAITS_FOR_BULK, relation=apply.relation)
        if merged == newest.version:
            return before_ms
        committed = {version: at_ms for version, _, at_ms in log_table.versions()}
        if merged not in committed:
            return Reason.of(ReasonCode.VERSION_EXPIRED, table=str(log), version=merged)
        return min(before_ms, committed[merged] - _LONGEST_BATCH_MS)
    return before_ms


def _light_tables(job: Job, log: TableName) -> Mapping[str, KeyedTable]:
    """By relation the tables with a key over the log of a light capture."""
    dataset = job.definitions.datasets.get(log)
    if dataset is None or not is_light(dataset.properties):
        return {}
    return {
        str(apply.relation): KeyedTable(job.tables[reader], apply.keys)
        for reader, apply in _captured_tables(job.graph, log)
        if apply.weight is None and reader in job.tables
    }


def _is_built(table: LakeTable, log: TableName) -> bool:
    return _merged(table, log) is not None


def _merged(table: LakeTable, log: TableName) -> Version | None:
    """The version of the log up to which a table has its changes; None: it is not built."""
    built = table.fork().commit_metadata
    merged = None if built is None else built.inputs.get(str(log))
    return None if merged is None else Version(merged)


def _in_files(metadata: CommitMetadata) -> Mapping[str, int]:
    positions = [position for position in metadata.positions.values() if isinstance(position, LogPosition)]
    return {name: at_ms for position in positions for name, at_ms in position.bulk.in_files.items()}


def kept_columns(job: Job, log: TableName) -> Mapping[str, Collection[str]]:
    """The columns of captured tables that get no new ones, by relation."""
    return {
        str(apply.relation): job.graph.schemas[reader].fieldNames()
        for reader, apply in _captured_tables(job.graph, log)
        if apply.keeps_columns
    }


def refused_tables(graph: Graph, lake: LakeCatalog, log: TableName) -> Mapping[str, Reason]:
    """Captured tables whose tables in the lake cannot take their new columns: relation → why. A run sets them
    aside."""
    refused: dict[str, Reason] = {}
    for reader, apply in _captured_tables(graph, log):
        table = lake.load(reader) if lake.exists(reader) else None
        try:
            if table is not None:
                table.require_widenable(table.fork(), graph.schemas[reader])
        except DefinitionError as error:
            relation = str(apply.relation)
            refused[relation] = aside_reason(relation, error)
    return refused


def _captured_tables(graph: Graph, log: TableName) -> Iterator[tuple[TableName, KeyedApply]]:
    """Those whose rows are in a log table."""
    for reader in graph.readers(log):
        dataset = graph.definitions.datasets.get(reader)
        apply = None if dataset is None else _captures(dataset)
        if apply is not None:
            yield reader, apply


def _captures(dataset: Dataset) -> KeyedApply | None:
    """How rows of a log table are merged into a captured table; None: it is none."""
    apply = keyed_apply_of(dataset.properties, str(dataset.location))
    return None if apply is None or apply.relation is None else apply
