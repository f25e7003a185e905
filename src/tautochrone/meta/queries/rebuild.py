"""Rebuilding a lost store from the commit metadata of the lake. It must never read the lake itself.

The metadata of every derived commit names its checkpoint and the versions of all its inputs. The commits
*prove* a checkpoint when all datasets, each at its newest commit up to that number, read the same version of
every table that they share. The tables then had exactly these versions. One exception: a dataset that failed
left no commit metadata, so a proven checkpoint may show an older, still consistent state. Therefore new
numbers and fences begin far above the highest seen, and no number is given twice. A checkpoint that a job
skipped is not published again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from sqlalchemy import Connection, insert, select, update

from tautochrone.meta.database import tables as t
from tautochrone.meta.protocols.recovery import LakeVersion
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.dataset_registration import end_external_interval
from tautochrone.meta.queries.topology import EXTERNAL, JOB_PREFIX, connected_components
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.inputs import is_clock
from tautochrone.model.jobs import Part
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import TableName

__all__ = [
    "NUMBER_GAP",
    "DerivedCommit",
    "commit_metadata_of",
    "commits_of",
    "highest_fences",
    "is_revoked",
    "proven_checkpoints",
    "publish",
    "record_lake_fences",
    "register",
    "related",
    "renew_named_incarnation",
    "revoked_ranges",
]

NUMBER_GAP = 1_000
"""How far new numbers and fences begin above the highest in the lake. Fewer than this were given without a
trace."""


@dataclass(frozen=True, slots=True)
class DerivedCommit:
    """A derived commit, with the later versions that only repeat it (fences, compactions)."""

    version: str
    checkpoint: int
    inputs: Mapping[str, str]
    committed_at_ms: int
    aliases: set[str]


_State = tuple[dict[str, DerivedCommit], dict[str, str]]
"""The commit of each dataset and the version of each root at one checkpoint."""


def commits_of(lake: Mapping[TableName, Sequence[LakeVersion]]) -> dict[str, list[DerivedCommit]]:
    """The derived commits of each table, oldest first."""
    return {str(name): _commits(versions) for name, versions in lake.items()}


def commit_metadata_of(lake: Mapping[TableName, Sequence[LakeVersion]]) -> dict[str, list[CommitMetadata]]:
    """All commit metadata of each table, oldest first."""
    return {
        str(name): [version.commit_metadata for version in versions if version.commit_metadata is not None]
        for name, versions in lake.items()
    }


def revoked_ranges(metadata: Iterable[CommitMetadata]) -> list[tuple[int, int]]:
    """The ranges of checkpoints that revisions revoked, from the commit metadata of a table: after the first
    number, up to and including the second."""
    return sorted(
        {revoked_range for commit_metadata in metadata for revoked_range in commit_metadata.revoked}
    )


def is_revoked(checkpoint: int, revoked_ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether a revision revoked the checkpoint. A range excludes its start and includes its end."""
    return any(start < checkpoint <= end for start, end in revoked_ranges)


def renew_named_incarnation(connection: Connection, lake: Mapping[TableName, Sequence[LakeVersion]]) -> str:
    """The incarnation of the store, which is replaced when commits of the lake name it: this copy of the
    store lacks some of what was done under that incarnation."""
    incarnation = str(connection.execute(select(t.stores.c.incarnation)).scalar_one())
    named = {
        v.commit_metadata.store
        for versions in lake.values()
        for v in versions
        if v.commit_metadata is not None
    }
    if incarnation in named:
        incarnation = str(uuid4())
        connection.execute(update(t.stores).values(incarnation=incarnation))
    return incarnation


def record_lake_fences(connection: Connection, lake: Mapping[TableName, Sequence[LakeVersion]]) -> None:
    """Record for each job the highest fence in the lake, up to which its commit metadata is taken into
    account."""
    for job, fence in highest_fences(lake).items():
        connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(lake_fence=fence))


def highest_fences(lake: Mapping[TableName, Sequence[LakeVersion]]) -> dict[str, int]:
    """The highest fence that the lake's commit metadata has of each job."""
    fences: dict[str, int] = {}
    for versions in lake.values():
        for version in versions:
            if version.commit_metadata is not None:
                fences[version.commit_metadata.job] = max(
                    fences.get(version.commit_metadata.job, 0), version.commit_metadata.fence
                )
    return fences


def related(owner: Mapping[str, str], derived: Mapping[str, Sequence[DerivedCommit]]) -> list[list[str]]:
    """Groups of our tables whose jobs share checkpoints: tables of one job, and tables that are read
    together."""
    edges = [(name, JOB_PREFIX + job) for name, job in owner.items()]
    edges += [
        (name, table)
        for name in owner
        for commit in derived[name]
        for table in commit.inputs
        if not is_clock(TableName.parse(table))
    ]
    return [sorted(group & owner.keys()) for group in connected_components(edges)]


def _commits(versions: Sequence[LakeVersion]) -> list[DerivedCommit]:
    commits: list[DerivedCommit] = []
    for version in versions:
        if version.checkpoint is not None and version.commit_metadata is not None:
            same = commits and commits[-1].version == version.version
            commits.append(
                DerivedCommit(
                    version.version,
                    version.checkpoint,
                    version.commit_metadata.inputs,
                    version.committed_at_ms,
                    commits[-1].aliases if same else {str(version.version)},
                )
            )
        elif commits:
            commits[-1].aliases.add(version.version)
    return commits


def register(
    connection: Connection,
    metadata: Mapping[str, Sequence[CommitMetadata]],
    derived: Mapping[str, Sequence[DerivedCommit]],
) -> None:
    fences: dict[str, int] = {}
    for name, table_metadata in metadata.items():
        for commit_metadata in table_metadata:
            fences[commit_metadata.job] = max(fences.get(commit_metadata.job, 0), commit_metadata.fence)
            if connection.execute(select(t.jobs.c.name).where(t.jobs.c.name == commit_metadata.job)).first():
                continue
            connection.execute(
                insert(t.jobs).values(name=commit_metadata.job, pipeline=commit_metadata.pipeline, fence=0)
            )
        if table_metadata:
            # Another pipeline of this store may have read it as an external table before.
            end_external_interval(connection, name)
        known = connection.execute(select(t.datasets.c.name).where(t.datasets.c.name == name))
        if table_metadata and known.first() is None:
            # Only `start_run` knows the kind for certain. A table without derived commits and without
            # positions may be a view that was never built; readers would see it empty if it were taken for
            # a root.
            is_root = not derived[name] and any(
                commit_metadata.positions for commit_metadata in table_metadata
            )
            kind = DatasetKind.STREAMING_TABLE if is_root else DatasetKind.MATERIALIZED_VIEW
            connection.execute(
                insert(t.datasets).values(
                    name=name,
                    job=table_metadata[-1].job,
                    kind=kind.value,
                    definition=table_metadata[-1].definition or "",
                    retired=False,
                    is_root=is_root,
                )
            )
            # The topology must be known before the jobs start, or one job could take a cut without the
            # others.
            inputs = derived[name][-1].inputs if derived[name] else ()
            for table in sorted(inputs):
                connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))
    for job, fence in fences.items():
        j = t.jobs.c
        above = update(t.jobs).where(j.name == job, j.fence < fence + NUMBER_GAP)
        connection.execute(above.values(fence=fence + NUMBER_GAP))


def proven_checkpoints(
    derived: Mapping[str, Sequence[DerivedCommit]],
    retained: Mapping[str, Collection[str]],
    revoked: Sequence[tuple[int, int]] = (),
) -> Iterable[tuple[int, _State]]:
    """The checkpoints that the commits of related tables prove, without the revoked ones, in ascending
    order."""
    for number in sorted({commit.checkpoint for commits in derived.values() for commit in commits}):
        state = None if is_revoked(number, revoked) else _state_at(derived, number, retained)
        if state is not None:
            yield number, state


def publish(
    connection: Connection,
    number: int,
    chosen: Mapping[str, DerivedCommit],
    roots: Mapping[str, str],
    owner: Mapping[str, str],
    derived: Mapping[str, Sequence[DerivedCommit]],
) -> None:
    """Publish a proven checkpoint for the jobs of its tables, including jobs that only ingest."""
    jobs = {owner[name] for name in chosen}
    jobs |= {owner[name] for name in roots if name in owner and not derived[name]}
    cut_at_ms = max(commit.committed_at_ms for commit in chosen.values())
    known = select(t.checkpoints.c.number).where(t.checkpoints.c.number == number)
    if connection.execute(known).first() is None:
        connection.execute(
            insert(t.checkpoints).values(
                number=number,
                job=min(jobs),
                state=CheckpointState.PUBLISHED.value,
                cut_at_ms=cut_at_ms,
                published_at_ms=cut_at_ms,
                opened_ms=cut_at_ms,
            )
        )
    for job in sorted(jobs):
        part = {"checkpoint": number, "job": job, "state": Part.DONE.value}
        connection.execute(insert(t.checkpoint_jobs).values(part))
    for name, version in roots.items():
        intervals.record(connection, owner.get(name, EXTERNAL), name, version, number, root=True)
    for name, commit in chosen.items():
        intervals.record(connection, owner[name], name, commit.version, number)


def _state_at(
    derived: Mapping[str, Sequence[DerivedCommit]], number: int, retained: Mapping[str, Collection[str]]
) -> _State | None:
    """The commit of each dataset and the version of each root at `number`; None when the commits do
    not prove the checkpoint, or when a root's version is not `retained` any more."""
    chosen: dict[str, DerivedCommit] = {}
    for name, commits in derived.items():
        earlier = [commit for commit in commits if commit.checkpoint <= number]
        if earlier:
            chosen[name] = earlier[-1]
    roots: dict[str, str] = {}
    for commit in chosen.values():
        for table, version in commit.inputs.items():
            if table in derived:
                if table not in chosen or version not in chosen[table].aliases:
                    return None
            elif is_clock(TableName.parse(table)):
                # A view that did not change keeps the clock version of its last commit.
                roots[table] = max(roots.get(table, version), version, key=int)
            elif roots.setdefault(table, version) != version or version not in retained.get(
                table, (version,)
            ):
                return None
    return chosen, roots
