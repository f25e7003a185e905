"""Retention: which checkpoints may expire, which versions are still needed, which rows a log table keeps.

Old rows of a capture's log table leave as whole data files, in a commit that followers of changes do not take
for a change: a refresh or a stream that is behind still reads them from the versions that it follows. Only
what reads the log as a whole would see a difference. So nothing is dropped while a view, a sink or another
job reads it, or while a table over it is not built; and the commit names the relations of which rows are
gone, so that no captured table is built anew from a part of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pyspark.sql import functions as sf

from tautochrone.iceberg.changes.streams import versions_in_offsets
from tautochrone.meta import Store
from tautochrone.meta.protocols.checkpoints import UnexpiredCheckpoint
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import CommitMetadata, Dropped, Fork, LakeTable, Retention
from tautochrone.model.log_table import RELATION_COLUMN, log_retention_ms
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import DeliveryState, SinkStatus
from tautochrone.model.source_position import LogPosition, SparkPosition
from tautochrone.project.settings import MaintenanceRules
from tautochrone.project.table_properties import event_time_of
from tautochrone.runtime.job.job import Job

__all__ = ["Needs", "expirable_checkpoints", "follow_sinks", "needs_of", "shorten_log"]


def expirable_checkpoints(
    published: Sequence[UnexpiredCheckpoint], now_ms: int, rules: MaintenanceRules
) -> list[CheckpointNumber]:
    """The checkpoints that may expire, because they are too old or too close to another one.

    Args:
        published: those that are not expired, oldest first. Distances are counted from the oldest, so that a
            checkpoint kept for its distance stays until it is too old.
    """
    recent = {checkpoint.number for checkpoint in published[-rules.keep_last :]}
    expired: list[CheckpointNumber] = []
    last_kept_ms: int | None = None
    for checkpoint in published:
        if checkpoint.number in recent:
            continue
        old = now_ms - checkpoint.at_ms > rules.keep_ms
        dense = last_kept_ms is not None and checkpoint.at_ms - last_kept_ms < rules.spacing_ms
        if old or dense:
            expired.append(checkpoint.number)
        else:
            last_kept_ms = checkpoint.at_ms
    return expired


@dataclass(slots=True)
class Needs:
    """The needed versions of each table.

    Attributes:
        readable: versions whose rows somebody reads.
        followed: versions from which a refresh or a stream still has to follow the changes up to main.
    """

    readable: Mapping[TableName, frozenset[Version]]
    followed: defaultdict[TableName, set[Version]] = field(default_factory=lambda: defaultdict(set))

    def of(self, table: TableName, after_ms: int) -> Retention:
        return Retention(
            readable=self.readable.get(table, frozenset()),
            followed=frozenset(self.followed[table]),
            after_ms=after_ms,
        )


def needs_of(
    store: Store,
    job: str,
    lake: LakeCatalog,
    tables: Mapping[TableName, LakeTable],
    without: Collection[CheckpointNumber] = (),
) -> Needs:
    """The versions that readers and the next refresh of every dataset in the store need now.

    Needs only move forward, so an outdated answer keeps too much and never too little.

    Args:
        tables: the job's tables.
        without: checkpoints to treat as expired.
    """
    needs = Needs(_with_companions(store.pins.retained_versions(without), tables))
    versions_at: dict[int, dict[TableName, Version]] = {}
    inputs = {entry.name: entry.inputs for entry in store.datasets.registered()}
    for status in store.datasets.statuses():
        if status.checkpoint is None:
            continue
        if status.checkpoint not in versions_at:
            versions_at[status.checkpoint] = store.checkpoints.versions_at(status.checkpoint)
        # The next refresh asks how each input changed since the last complete checkpoint, and whether
        # the dataset itself did.
        for name in {status.dataset, *inputs.get(status.dataset, ())}:
            _follow(needs, name, versions_at[status.checkpoint].get(name))
    for checkpoint in (store.checkpoints.latest_done(job), store.checkpoints.next_for(job)):
        for name, version in ({} if checkpoint is None else checkpoint.roots).items():
            _follow(needs, name, version)
    follow_sinks(needs, store.deliveries.sinks(), store.now_ms())
    _follow_pins(needs, store)
    for name, version in store.roots.reported(job).items():
        _follow(needs, name, version)
    for name in inputs:
        # A dataset of another job may be in another lake.
        table = tables.get(name) or (lake.load(name) if lake.exists(name) else None)
        commit_metadata = None if table is None else table.fork().commit_metadata
        if commit_metadata is not None:
            _add_commit_metadata(needs, commit_metadata, inputs[name])
    return needs


def _follow_pins(needs: Needs, store: Store) -> None:
    """The next run of another target asks how its roots changed since the version that it pinned."""
    for name, versions in store.pins.followed_versions().items():
        needs.followed[name] |= versions


def follow_sinks(needs: Needs, sinks: Iterable[SinkStatus], now_ms: int) -> None:
    """The next delivery asks how each table changed since the last one. A sink that is behind for longer than
    its budget is rebuilt instead."""
    readable = dict(needs.readable)
    for sink in sinks:
        is_late = sink.behind_since_ms is not None and now_ms - sink.behind_since_ms > sink.catch_up_ms
        if sink.delivered is None or is_late or sink.state is DeliveryState.RETIRED:
            continue
        required = [sink.delivered.versions] + ([] if sink.intent is None else [sink.intent.versions])
        for versions in required:
            for name, version in versions.items():
                _follow(needs, name, version)
                # After a revision it is no ancestor of main, and has to be kept by itself.
                readable[name] = readable.get(name, frozenset()) | {version}
    needs.readable = readable


def _with_companions(
    readable: Mapping[TableName, frozenset[Version]], tables: Mapping[TableName, LakeTable]
) -> Mapping[TableName, frozenset[Version]]:
    """Adds the state tables of readable versions: a revision can revert to them."""
    with_states = defaultdict(frozenset[Version], readable)
    for name, table in tables.items():
        for companion, versions in table.companions_at(readable.get(name, frozenset())).items():
            with_states[companion] |= versions
    return with_states


def _add_commit_metadata(needs: Needs, commit_metadata: CommitMetadata, inputs: Iterable[TableName]) -> None:
    """Adds what a table's commit metadata names: the table may be ahead of the store, or behind it."""
    for named in (commit_metadata.inputs, commit_metadata.companions):
        for text, version in named.items():
            _follow(needs, TableName.parse(text), Version(version))
    # Only Spark's positions can name versions of lake tables.
    offsets = "\n".join(
        position.offsets
        for position in commit_metadata.positions.values()
        if isinstance(position, SparkPosition)
    )
    streamed = versions_in_offsets(offsets)
    for name in inputs:
        # Every input gets all of them: a table ignores versions of other tables.
        needs.followed[name] |= streamed


def _follow(needs: Needs, name: TableName, version: Version | None) -> None:
    if version is not None:
        needs.followed[name].add(version)


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
