"""`store.recovery` in SQL: a lost store is rebuilt from the lake, one that contradicts it is reconciled.

Both get the commit metadata of the lake. They must never read the lake itself.

The metadata of every derived commit names its checkpoint and the versions of all its inputs. The commits
*prove* a checkpoint when all datasets, each at its newest commit up to that number, read the same version of
every table that they share. The tables then had exactly these versions. One exception: a dataset that failed
left no commit metadata, so a proven checkpoint may show an older, still consistent state. Therefore new
numbers and fences begin far above the highest seen, and no number is given twice. A checkpoint that a job
skipped is not published again.

A store that does not agree with the lake is an older copy, or another pipeline's. The metadata of every
commit names the incarnation of the store, the fence and the checkpoint. A store gives fences and numbers
before they reach the lake, so only an older copy can be behind the lake. Reconciling is one transaction, and
changes only jobs and tables of the lake at hand:

1. raise numbers and fences above all that the lake names; give an older copy a new incarnation
2. revoke the checkpoints that a revision revoked in the lake, and those with a different cut in the lake
3. publish the checkpoints that the lake proves and the store does not know
4. skip the open checkpoints, because what was computed for them belongs to another cut

`lake_fence` of a job is the fence up to which the lake's commit metadata is taken into account.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, or_, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES, Repository
from tautochrone.meta.protocols.recovery import Comparison, Lake, LakeVersion, Reconciled, StoreRelation
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.checkpoints import pending, set_state, skip
from tautochrone.meta.queries.topology import EXTERNAL, JOB_PREFIX, connected_components
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.jobs import Part
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, TableName, is_clock

__all__ = ["SqlRecovery"]


_C, _P, _V, _D, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.versions.c, t.datasets.c, t.jobs.c
_PUBLISHED_STATES = (CheckpointState.PUBLISHED.value, CheckpointState.PARTIAL.value)
_NUMBER_GAP = 1_000
"""How far new numbers and fences begin above the highest in the lake. Fewer than this were given without a
trace."""


@dataclass(frozen=True, slots=True)
class _DerivedCommit:
    """A derived commit, with the later versions that only repeat it (fences, compactions)."""

    version: str
    checkpoint: int
    inputs: Mapping[str, str]
    committed_at_ms: int
    aliases: set[str]


_State = tuple[dict[str, _DerivedCommit], dict[str, str]]
"""The commit of each dataset and the version of each root at one checkpoint."""


class SqlRecovery(Repository):
    """`protocols.recovery.Recovery` in SQL."""

    def is_empty(self) -> bool:
        with self._read() as connection:
            return connection.execute(select(t.checkpoints.c.number).limit(1)).first() is None

    def rebuild(self, lake: Lake) -> tuple[CheckpointNumber, ...]:
        derived, metadata = _commits_of(lake), _commit_metadata_of(lake)
        seen = [0, *(commit.checkpoint for commits in derived.values() for commit in commits)]
        ends = [end for commits in metadata.values() for _, end in _revoked_ranges(commits)]
        last = max(*seen, *ends, 0) + _NUMBER_GAP
        with self._write() as connection:
            known = connection.execute(select(t.checkpoints.c.number).order_by(t.checkpoints.c.number))
            numbers = known.scalars().all()
            if numbers:
                if (
                    numbers[-1] in seen
                    and connection.execute(select(t.stores.c.last_number)).scalar() == last
                ):
                    # The last number is the one that a rebuild from this lake leaves: this call is a
                    # repetition.
                    return tuple(map(CheckpointNumber, numbers))
                raise MetaError("META_STORE_NOT_EMPTY", "Only an empty store can be rebuilt")
            _register(connection, metadata, derived)
            stored = connection.execute(select(t.stores.c.last_number)).scalar_one()
            connection.execute(update(t.stores).values(last_number=max(last, stored)))
            _renew_named_incarnation(connection, lake)
            _record_lake_fences(connection, lake)
            owner = {name: commits[-1].job for name, commits in metadata.items() if commits}
            proven = sorted(_proven(owner, derived, metadata, lake), key=lambda each: each[1])
            for _, number, (chosen, roots) in proven:
                _publish(connection, number, chosen, roots, owner, derived)
            return tuple(CheckpointNumber(number) for number in sorted({number for _, number, _ in proven}))

    def compare(self, job: str, lake: Lake) -> Comparison:
        with self._read() as connection:
            return _compare_with_lake(connection, job, lake)

    def reconcile(self, job: str, lake: Lake) -> Reconciled:
        with self._write() as connection:
            last = int(connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one())
            comparison = _compare_with_lake(connection, job, lake)
            if comparison.relation in (StoreRelation.CURRENT, StoreRelation.EMPTY):
                incarnation = str(connection.execute(select(t.stores.c.incarnation)).scalar_one())
                return Reconciled(
                    relation=comparison.relation, reason="", incarnation=incarnation, last_number=last
                )
            _require_own_tables(connection, lake)
            derived, metadata = _commits_of(lake), _commit_metadata_of(lake)
            contradicted = _contradicted_checkpoints(connection, lake)
            seen = [commit.checkpoint for commits in derived.values() for commit in commits]
            seen += [end for commits in metadata.values() for _, end in _revoked_ranges(commits)]
            risen = max(seen, default=0) + _NUMBER_GAP
            newest = max(last, risen)
            connection.execute(update(t.stores).values(last_number=newest))
            incarnation = _renew_named_incarnation(connection, lake)
            _register(connection, metadata, derived)
            _record_lake_fences(connection, lake)
            owner = {name: commits[-1].job for name, commits in metadata.items() if commits}
            revoked = _revoke_checkpoints(connection, owner, metadata, contradicted, newest)
            published = _publish_proven(connection, owner, derived, metadata, lake)
            given_up = _skip_open(connection, set(owner.values()), risen)
            _report_roots(connection, owner, lake, self._clock())
            return Reconciled(
                relation=comparison.relation,
                reason=comparison.reason,
                incarnation=incarnation,
                last_number=newest,
                published=tuple(map(CheckpointNumber, published)),
                revoked=tuple(map(CheckpointNumber, revoked)),
                given_up=tuple(map(CheckpointNumber, given_up)),
            )


def _commits_of(lake: Lake) -> dict[str, list[_DerivedCommit]]:
    """The derived commits of each table, oldest first."""
    return {str(name): _commits(versions) for name, versions in lake.items()}


def _commit_metadata_of(lake: Lake) -> dict[str, list[CommitMetadata]]:
    """All commit metadata of each table, oldest first."""
    return {
        str(name): [version.commit_metadata for version in versions if version.commit_metadata is not None]
        for name, versions in lake.items()
    }


def _revoked_ranges(metadata: Iterable[CommitMetadata]) -> list[tuple[int, int]]:
    """The ranges of checkpoints that revisions revoked, from the commit metadata of a table: after the first
    number, up to and including the second."""
    return sorted(
        {revoked_range for commit_metadata in metadata for revoked_range in commit_metadata.revoked}
    )


def _is_revoked(checkpoint: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether a revision revoked the checkpoint. A range excludes its start and includes its end."""
    return any(start < checkpoint <= end for start, end in ranges)


def _named_stores(lake: Lake) -> set[str]:
    """The incarnations of stores that the lake's commit metadata names."""
    return {
        version.commit_metadata.store
        for versions in lake.values()
        for version in versions
        if version.commit_metadata is not None
    }


def _renew_named_incarnation(connection: Connection, lake: Lake) -> str:
    """The incarnation of the store, which is replaced when commits of the lake name it: this copy of the
    store lacks some of what was done under that incarnation."""
    incarnation = str(connection.execute(select(t.stores.c.incarnation)).scalar_one())
    if incarnation in _named_stores(lake):
        incarnation = str(uuid4())
        connection.execute(update(t.stores).values(incarnation=incarnation))
    return incarnation


def _record_lake_fences(connection: Connection, lake: Lake) -> None:
    """Record for each job the highest fence in the lake, up to which its commit metadata is taken into
    account."""
    for job, fence in _highest_fences(lake).items():
        connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(lake_fence=fence))


def _highest_fences(lake: Lake) -> dict[str, int]:
    """The highest fence that the lake's commit metadata has of each job."""
    fences: dict[str, int] = {}
    for versions in lake.values():
        for version in versions:
            if version.commit_metadata is not None:
                fences[version.commit_metadata.job] = max(
                    fences.get(version.commit_metadata.job, 0), version.commit_metadata.fence
                )
    return fences


def _related(owner: Mapping[str, str], derived: Mapping[str, Sequence[_DerivedCommit]]) -> list[list[str]]:
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


def _commits(versions: Sequence[LakeVersion]) -> list[_DerivedCommit]:
    commits: list[_DerivedCommit] = []
    for version in versions:
        if version.checkpoint is not None and version.commit_metadata is not None:
            same = commits and commits[-1].version == version.version
            commits.append(
                _DerivedCommit(
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


def _register(
    connection: Connection,
    metadata: Mapping[str, Sequence[CommitMetadata]],
    derived: Mapping[str, Sequence[_DerivedCommit]],
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
            intervals.end_external(connection, name)
            _register_table(connection, name, table_metadata, derived[name])
    for job, fence in fences.items():
        j = t.jobs.c
        above = update(t.jobs).where(j.name == job, j.fence < fence + _NUMBER_GAP)
        connection.execute(above.values(fence=fence + _NUMBER_GAP))


def _register_table(
    connection: Connection,
    name: str,
    metadata: Sequence[CommitMetadata],
    commits: Sequence[_DerivedCommit],
) -> None:
    if connection.execute(select(_D.name).where(_D.name == name)).first() is not None:
        return
    # Only `start_run` knows the kind for certain. A table without derived commits and without positions may
    # be a view that was never built; readers would see it empty if it were taken for a root.
    is_root = not commits and any(commit_metadata.positions for commit_metadata in metadata)
    kind = DatasetKind.STREAMING_TABLE if is_root else DatasetKind.MATERIALIZED_VIEW
    connection.execute(
        insert(t.datasets).values(
            name=name,
            job=metadata[-1].job,
            kind=kind.value,
            definition=metadata[-1].definition or "",
            retired=False,
            is_root=is_root,
        )
    )
    # The topology must be known before the jobs start, or one job could take a cut without the others.
    for table in sorted(commits[-1].inputs if commits else ()):
        connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))


def _proven_checkpoints(
    derived: Mapping[str, Sequence[_DerivedCommit]],
    retained: Mapping[str, Collection[str]],
    revoked: Sequence[tuple[int, int]] = (),
) -> Iterable[tuple[int, _State]]:
    """The checkpoints that the commits of related tables prove, without the revoked ones, in ascending
    order."""
    for number in sorted({commit.checkpoint for commits in derived.values() for commit in commits}):
        state = None if _is_revoked(number, revoked) else _state_at(derived, number, retained)
        if state is not None:
            yield number, state


def _publish(
    connection: Connection,
    number: int,
    chosen: Mapping[str, _DerivedCommit],
    roots: Mapping[str, str],
    owner: Mapping[str, str],
    derived: Mapping[str, Sequence[_DerivedCommit]],
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
    derived: Mapping[str, Sequence[_DerivedCommit]], number: int, retained: Mapping[str, Collection[str]]
) -> _State | None:
    """The commit of each dataset and the version of each root at `number`; None when the commits do
    not prove the checkpoint, or when a root's version is not `retained` any more."""
    chosen: dict[str, _DerivedCommit] = {}
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


def _newest_metadata(lake: Lake) -> dict[TableName, CommitMetadata]:
    result: dict[TableName, CommitMetadata] = {}
    for name, versions in lake.items():
        metadata = [version.commit_metadata for version in versions if version.commit_metadata is not None]
        if metadata:
            newest = max(reversed(metadata), key=lambda commit_metadata: commit_metadata.fence)
            # A commit that only takes over a table has no checkpoint: then an older commit has it.
            derived = next(
                (
                    commit_metadata
                    for commit_metadata in reversed(metadata)
                    if commit_metadata.checkpoint is not None
                ),
                newest,
            )
            result[name] = replace(newest, checkpoint=derived.checkpoint, inputs=derived.inputs)
    return result


def _compare_with_lake(connection: Connection, job: str, lake: Lake) -> Comparison:
    if connection.execute(select(_C.number).limit(1)).first() is None:
        return Comparison(relation=StoreRelation.EMPTY)
    store_row = connection.execute(select(t.stores)).one()
    jobs = {row.name: row for row in connection.execute(select(t.jobs))}
    relation = (
        StoreRelation.RESTORED if store_row.incarnation in _named_stores(lake) else StoreRelation.FOREIGN
    )
    for table, commit_metadata in _newest_metadata(lake).items():
        row = jobs.get(commit_metadata.job)
        if row is not None and row.lake_fence is not None and commit_metadata.fence <= row.lake_fence:
            continue
        if commit_metadata.store != store_row.incarnation:
            if commit_metadata.job == job or row is not None:
                reason = (
                    f"{table} was last written with store {commit_metadata.store}, "
                    f"and this is {store_row.incarnation}"
                )
                return Comparison(relation=relation, reason=reason, table=table)
            continue
        if row is None or commit_metadata.fence > row.fence:
            known = 0 if row is None else row.fence
            reason = (
                f"{table} knows fence {commit_metadata.fence} of job {commit_metadata.job}, "
                f"and the store gave {known} at most"
            )
            return Comparison(relation=StoreRelation.RESTORED, reason=reason, table=table)
        if (commit_metadata.checkpoint or 0) > store_row.last_number:
            reason = (
                f"{table} knows checkpoint {commit_metadata.checkpoint}, "
                f"and the store gave {store_row.last_number} at most"
            )
            return Comparison(relation=StoreRelation.RESTORED, reason=reason, table=table)
        if _is_contradicted(connection, commit_metadata):
            reason = (
                f"{table} was brought to another cut of checkpoint {commit_metadata.checkpoint} "
                f"than the store's"
            )
            return Comparison(relation=StoreRelation.RESTORED, reason=reason, table=table)
    return Comparison(relation=StoreRelation.CURRENT)


def _is_contradicted(connection: Connection, commit_metadata: CommitMetadata) -> bool:
    """Whether the store's checkpoint of that number has another cut than the commit metadata names."""
    if commit_metadata.checkpoint is None or not commit_metadata.inputs:
        return False
    state = connection.execute(select(_C.state).where(_C.number == commit_metadata.checkpoint)).scalar()
    part_query = select(_P.state).where(
        _P.checkpoint == commit_metadata.checkpoint, _P.job == commit_metadata.job
    )
    part = connection.execute(part_query).scalar()
    if state not in VISIBLE_STATES or part in (None, Part.SKIPPED.value):
        return False
    cut = intervals.cut_at(connection, commit_metadata.checkpoint, only=sorted(commit_metadata.inputs))
    return any(
        cut.versions[name] != commit_metadata.inputs[name]
        for name in cut.roots & commit_metadata.inputs.keys()
    )


def _contradicted_checkpoints(connection: Connection, lake: Lake) -> set[tuple[int, str]]:
    """Checkpoints of this store, each with a job, for which the lake's newest commit metadata names another
    cut."""
    incarnation = connection.execute(select(t.stores.c.incarnation)).scalar_one()
    return {
        (commit_metadata.checkpoint, commit_metadata.job)
        for commit_metadata in _newest_metadata(lake).values()
        if commit_metadata.checkpoint is not None
        and commit_metadata.store == incarnation
        and _is_contradicted(connection, commit_metadata)
    }


def _require_own_tables(connection: Connection, lake: Lake) -> None:
    """Refuse a lake whose jobs or tables have the names of another pipeline's in this store.

    Raises:
        MetaError: `JOB_NAME_TAKEN`, `DATASET_OWNED_BY_ANOTHER_JOB`.
    """
    pipelines = {row.name: row.pipeline for row in connection.execute(select(_J.name, _J.pipeline))}
    for table, commit_metadata in sorted(_newest_metadata(lake).items(), key=lambda item: str(item[0])):
        if pipelines.get(commit_metadata.job, commit_metadata.pipeline) != commit_metadata.pipeline:
            raise MetaError(
                "JOB_NAME_TAKEN",
                f"Job {commit_metadata.job} belongs to pipeline {pipelines[commit_metadata.job]} "
                f"here, not to {commit_metadata.pipeline}",
                hint="Give the job another name, or the pipeline a store of its own ([meta] url).",
            )
        row = connection.execute(select(_D.job).where(_D.name == str(table), _D.retired.is_(False))).first()
        if row is not None and pipelines.get(row.job) != commit_metadata.pipeline:
            raise MetaError(
                "DATASET_OWNED_BY_ANOTHER_JOB",
                f"Dataset {table} is written by job {row.job} "
                f"here; job {commit_metadata.job} must not write it",
                hint="Give the dataset another name, or the pipeline a store of its own ([meta] url).",
            )


def _revoke_checkpoints(
    connection: Connection,
    owner: Mapping[str, str],
    metadata: Mapping[str, Sequence[CommitMetadata]],
    contradicted: set[tuple[int, str]],
    last: int,
) -> list[int]:
    """Revoke the checkpoints that a revision revoked in the lake and those whose cut differs; returns
    them."""
    revoked: set[int] = set()
    for name, job in owner.items():
        ranges = _revoked_ranges(metadata[name])
        part_query = select(_P.checkpoint).where(_P.job == job)
        shown = select(_C.number).where(_C.number.in_(part_query), _C.state.in_(_PUBLISHED_STATES))
        for number in connection.execute(shown).scalars():
            if _is_revoked(number, ranges) or (number, job) in contradicted:
                revoked.add(number)
        for start, end in ranges:
            ended = (_V.job == job) & (_V.table_name == name) & _V.to_checkpoint.is_(None)
            ended &= (_V.from_checkpoint > start) & (_V.from_checkpoint <= end)
            connection.execute(update(t.versions).where(ended).values(to_checkpoint=last))
    for number, job in contradicted:
        ended = (_V.job == job) & _V.to_checkpoint.is_(None) & (_V.from_checkpoint >= number)
        connection.execute(update(t.versions).where(ended).values(to_checkpoint=last))
    for number in revoked:
        set_state(connection, number, CheckpointState.REVOKED)
    return sorted(revoked)


def _publish_proven(
    connection: Connection,
    owner: Mapping[str, str],
    derived: Mapping[str, Sequence[_DerivedCommit]],
    metadata: Mapping[str, Sequence[CommitMetadata]],
    lake: Lake,
) -> list[int]:
    """Publish the checkpoints that the lake proves and that are newer than the store's of these jobs."""
    done = []
    for tables, number, (chosen, roots) in _proven(owner, derived, metadata, lake):
        names = {(owner.get(name, EXTERNAL), name) for name in (*chosen, *roots)}
        if not _is_free(connection, number, {owner[name] for name in tables}, names):
            continue
        connection.execute(delete(t.checkpoint_jobs).where(_P.checkpoint == number))
        failed = (t.failures.c.checkpoint == number) & t.failures.c.dataset.in_(sorted(chosen))
        connection.execute(delete(t.failures).where(failed))
        _publish(connection, number, chosen, roots, owner, derived)
        set_state(connection, CheckpointNumber(number), CheckpointState.PUBLISHED)
        done.append(number)
    return sorted(set(done))


def _proven(
    owner: Mapping[str, str],
    derived: Mapping[str, Sequence[_DerivedCommit]],
    metadata: Mapping[str, Sequence[CommitMetadata]],
    lake: Lake,
) -> Iterator[tuple[Collection[str], int, _State]]:
    """The checkpoints that the lake proves, for each group of related tables."""
    retained = {str(name): {str(v.version) for v in versions} for name, versions in lake.items()}
    for tables in _related(owner, derived):
        ranges = [revoked_range for name in tables for revoked_range in _revoked_ranges(metadata[name])]
        commits = {name: derived[name] for name in tables if derived[name]}
        for number, state in _proven_checkpoints(commits, retained, ranges):
            yield tables, number, state


def _is_free(connection: Connection, number: int, jobs: set[str], names: set[tuple[str, str]]) -> bool:
    """Whether a checkpoint of these jobs may be published under the number: the store has none of theirs from
    it on, and no other job takes part in it."""
    shown = select(_P.checkpoint).join(t.checkpoints, _C.number == _P.checkpoint)
    shown = shown.where(_P.job.in_(sorted(jobs)), _P.state == Part.DONE.value, _C.number >= number)
    if connection.execute(shown.where(_C.state != CheckpointState.ABORTED.value).limit(1)).first():
        return False
    other_parts = select(_P.job).where(_P.checkpoint == number, _P.job.not_in(sorted(jobs)))
    if connection.execute(other_parts.limit(1)).first():
        return False
    for job, name in names:
        later = (_V.job == job) & (_V.table_name == name)
        later &= or_(_V.from_checkpoint > number, _V.to_checkpoint >= number)
        if connection.execute(select(_V.id).where(later).limit(1)).first():
            return False
    return True


def _skip_open(connection: Connection, jobs: set[str], raised_to: int) -> list[int]:
    """Skip the jobs' open checkpoints up to `raised_to`.

    Those above it were opened after another pipeline had reconciled the store: their cuts are right.
    """
    skipped = set()
    for job in sorted(jobs):
        for number in pending(connection, job):
            if number <= raised_to:
                skip(connection, job, number)
                skipped.add(number)
    return sorted(skipped)


def _report_roots(connection: Connection, owner: Mapping[str, str], lake: Lake, now: int) -> None:
    """Report the lake's newest version of each root, so that no cut takes an older one."""
    r = t.reports.c
    roots = set(connection.execute(select(_D.name).where(_D.is_root.is_(True))).scalars())
    for table, versions in lake.items():
        name = str(table)
        if name not in roots or name not in owner or not versions:
            continue
        job, version = owner[name], versions[-1].version
        values = {"version": str(version), "at_ms": now}
        key = (r.job == job) & (r.table_name == name)
        if not connection.execute(update(t.reports).where(key).values(values)).rowcount:
            values |= {"job": job, "table_name": name}
            connection.execute(insert(t.reports).values(**values, times=[]))
        # Aligned cuts keep the root at its version until its job reports source times again.
        connection.execute(update(t.reports).where(key, r.times.is_not(None)).values(times=[]))
