"""What must stay: which checkpoints, and of each table which versions. Chosen here, removed elsewhere."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tautochrone.meta.expiry import Standing
from tautochrone.model.lake import CommitMetadata, LakeTable
from tautochrone.model.maintenance import Retention
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.source_position import SparkPosition
from tautochrone.project.maintenance import MaintenanceRules
from tautochrone.runtime.job.job import Job

__all__ = ["Needs", "needs_of", "outlived"]

_STREAMED = re.compile(r'"snapshot_id"\s*:\s*(-?\d+)')


def outlived(standing: Sequence[Standing], now_ms: int, rules: MaintenanceRules) -> list[CheckpointNumber]:
    """The checkpoints that need not stay readable for their age or their density.

    Args:
        standing: oldest first. Counting from the oldest makes the answer stable: what was kept once for
            its distance is kept until it is too old.
    """
    recent = {checkpoint.number for checkpoint in standing[-rules.keep_last :]}
    found: list[CheckpointNumber] = []
    last_kept_ms: int | None = None
    for checkpoint in standing:
        if checkpoint.number in recent:
            continue
        old = now_ms - checkpoint.at_ms > rules.keep_ms
        dense = last_kept_ms is not None and checkpoint.at_ms - last_kept_ms < rules.spacing_ms
        if old or dense:
            found.append(checkpoint.number)
        else:
            last_kept_ms = checkpoint.at_ms
    return found


@dataclass(slots=True)
class Needs:
    """By table: versions that must be readable, versions from which somebody still has to get to main."""

    readable: Mapping[TableName, frozenset[Version]]
    followed: defaultdict[TableName, set[Version]] = field(default_factory=lambda: defaultdict(set))

    def of(self, table: TableName, after_ms: int) -> Retention:
        return Retention(
            readable=self.readable.get(table, frozenset()),
            followed=frozenset(self.followed[table]),
            after_ms=after_ms,
        )


def needs_of(
    job: Job, tables: Mapping[TableName, LakeTable], without: Collection[CheckpointNumber] = ()
) -> Needs:
    """What is needed now, by readers and by the next refresh of every dataset that the store knows.

    What is asked here only moves forward: an answer that is older than the metadata it is used on keeps
    too much, never too little.

    Args:
        tables: the job's tables.
        without: checkpoints that shall be taken as expired.
    """
    store = job.store
    needs = Needs(_with_companions(store.retained_versions(without), tables))
    at: dict[int, dict[TableName, Version]] = {}
    inputs = {entry.name: entry.inputs for entry in store.datasets()}
    for status in store.status():
        if status.checkpoint is None:
            continue
        if status.checkpoint not in at:
            at[status.checkpoint] = store.versions_at(status.checkpoint)
        # The next refresh asks how each input changed since the last complete checkpoint, and whether
        # the dataset itself did.
        for name in {status.dataset, *inputs.get(status.dataset, ())}:
            _follow(needs, name, at[status.checkpoint].get(name))
    for checkpoint in (store.latest_done(job.name), store.open_target(job.name)):
        for name, version in ({} if checkpoint is None else checkpoint.roots).items():
            _follow(needs, name, version)
    for name, version in store.reported(job.name).items():
        _follow(needs, name, version)
    for name in inputs:
        # A dataset of another job may live in a lake of its own.
        table = tables.get(name) or (job.lake.load(name) if job.lake.exists(name) else None)
        commit_metadata = None if table is None else table.fork().commit_metadata
        if commit_metadata is not None:
            _add_commit_metadata(needs, commit_metadata, inputs[name])
    return needs


def _with_companions(
    readable: Mapping[TableName, frozenset[Version]], tables: Mapping[TableName, LakeTable]
) -> Mapping[TableName, frozenset[Version]]:
    """A checkpoint to which tables can be taken back keeps the states that belong to it."""
    found = defaultdict(frozenset[Version], readable)
    for name, table in tables.items():
        for companion, versions in table.companions_at(readable.get(name, frozenset())).items():
            found[companion] |= versions
    return found


def _add_commit_metadata(needs: Needs, commit_metadata: CommitMetadata, inputs: Iterable[TableName]) -> None:
    """What a table says of itself: it may be ahead of what is published, or behind."""
    for named in (commit_metadata.inputs, commit_metadata.companions):
        for text, version in named.items():
            _follow(needs, TableName.parse(text), Version(version))
    # Only Spark's positions can name versions of lake tables.
    offsets = "\n".join(
        position.offsets
        for position in commit_metadata.positions.values()
        if isinstance(position, SparkPosition)
    )
    streamed = {Version(found) for found in _STREAMED.findall(offsets)}
    for name in inputs:
        # Which source of the stream is which table does not matter: a table ignores foreign versions.
        needs.followed[name] |= streamed


def _follow(needs: Needs, name: TableName, version: Version | None) -> None:
    if version is not None:
        needs.followed[name].add(version)
