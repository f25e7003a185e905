"""Chooses which checkpoints may expire, and which versions of each table are still needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tautochrone.iceberg.changes.streams import versions_in_offsets
from tautochrone.meta import Store
from tautochrone.meta.protocols.checkpoints import UnexpiredCheckpoint
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.maintenance import Retention
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.sink import DeliveryState, SinkStatus
from tautochrone.model.source_position import SparkPosition
from tautochrone.project.settings import MaintenanceRules

__all__ = ["Needs", "follow_sinks", "needs_of", "outlived"]


def outlived(
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
    for name, version in store.roots.reported(job).items():
        _follow(needs, name, version)
    for name in inputs:
        # A dataset of another job may be in another lake.
        table = tables.get(name) or (lake.load(name) if lake.exists(name) else None)
        commit_metadata = None if table is None else table.fork().commit_metadata
        if commit_metadata is not None:
            _add_commit_metadata(needs, commit_metadata, inputs[name])
    return needs


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
