"""Shortens the log table of a capture: rows older than its retention leave the newest version.

Old rows leave as whole data files, in a commit that followers of changes do not take for a change: a refresh
or a stream that is behind still reads them from the versions that it follows. Only what reads the log as a
whole would see a difference. So nothing is dropped while a view, a sink or another job reads it, or while a
table over it is not built; and the commit names the relations of which rows are gone, so that no captured
table is built anew from a part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from pyspark.sql import functions as sf

from tautochrone.model.lake import CommitMetadata, Fork, LakeTable
from tautochrone.model.log_retention import RELATION_COLUMN, log_retention_ms
from tautochrone.model.maintenance import Dropped
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import LogPosition
from tautochrone.project.table_properties import event_time_of
from tautochrone.runtime.job.job import Job

__all__ = ["shorten_log"]


def shorten_log(
    job: Job, table: LakeTable, now_ms: int, exclusive: AbstractContextManager[object]
) -> Dropped | Reason | None:
    """Drop what is older than the table's retention, for its owner.

    Returns:
        What was dropped; or why nothing may be; None: nothing is too old, or the table has no retention.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.
        ConflictError: somebody else moved the table.
        FencedError: a newer owner exists.
    """
    dataset = job.definitions.datasets.get(table.name)
    retention_ms = None if dataset is None else log_retention_ms(dataset.properties, str(dataset.location))
    column = None if dataset is None else event_time_of(dataset)
    latest = job.store.checkpoints.latest_done(job.name)
    version = None if latest is None else latest.roots.get(table.name)
    if retention_ms is None or column is None or version is None:
        return None
    before_ms = now_ms - retention_ms if retention_ms else None
    paths = table.files_before(version, column, before_ms)
    if not paths:
        return None
    fork = table.fork()
    reason = _needed_by(job, table.name, fork)
    if reason is not None:
        return reason
    rows = table.read(job.base, version)
    if before_ms is not None:
        rows = rows.where(sf.col(column).isNull() | (sf.col(column) < sf.timestamp_millis(sf.lit(before_ms))))
    relations = tuple(sorted(row[0] for row in rows.select(RELATION_COLUMN).distinct().collect() if row[0]))
    return table.drop_files(fork, paths, job.commit_metadata(shortened=relations), exclusive=exclusive)


def _needed_by(job: Job, log: TableName, fork: Fork) -> Reason | None:
    """Why all rows of a log are needed; None: they are not."""
    for reader in _whole_readers(job, log):
        return Reason.of(ReasonCode.LOG_READ_AS_A_WHOLE, log=log, reader=reader)
    for reader in job.graph.readers(log):
        metadata = job.tables[reader].fork().commit_metadata if reader in job.tables else None
        if not _has_begun(metadata, log):
            return Reason.of(ReasonCode.LOG_READER_NOT_BUILT, log=log, reader=reader)
    positions = {} if fork.commit_metadata is None else fork.commit_metadata.positions
    for position in positions.values():
        if isinstance(position, LogPosition) and position.bulk.waiting:
            return Reason.of(ReasonCode.WAITS_FOR_BULK, relation=min(position.bulk.waiting))
    return None


def _whole_readers(job: Job, log: TableName) -> Iterator[object]:
    """What may read all rows of a log: everything but the job's own tables that read it as a stream."""
    own = job.graph.order
    yield from (e.name for e in job.store.datasets.registered() if log in e.inputs and e.name not in own)
    delivered = ((sink.name, sink.delivered) for sink in job.store.deliveries.sinks())
    yield from (name for name, point in delivered if point is not None and log in point.versions)
    yield from (invariant.name for invariant in job.graph.invariants if log in invariant.tables)
    for reader in job.graph.readers(log):
        is_stream = reader in own and not job.topology.is_view(reader)
        if not is_stream or any(log in flow.inputs.batch for flow in job.topology.flows(reader)):
            yield reader


def _has_begun(metadata: CommitMetadata | None, log: TableName) -> bool:
    """Whether a table goes on from a version of the log that it has read."""
    return metadata is not None and (str(log) in metadata.inputs or bool(metadata.positions))
