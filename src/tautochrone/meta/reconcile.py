"""A store that is not the one that the lake knows: an older copy that was put back, or another pipeline's.

Every commit in the lake names the store that its process worked with, its fence and its checkpoint. A store
gives fences and numbers before they reach the lake, so it is behind only when it is an older copy. What is
done then is one transaction, and only jobs and tables of the lake that is shown are touched:

1. numbers and fences rise above all that the lake names; an older copy gets a new incarnation
2. checkpoints that a revision took back are revoked here too, and so are those whose cut was another
3. checkpoints that the lake proves (`rebuild`) are published again where the store does not know them
4. targets that are still open are given up: what was computed for them belongs to another cut

`lake_fence` of a job remembers up to which fence the lake's commit metadata was heeded: older ones say
nothing new. It must never read the lake itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sqlalchemy import Connection, delete, insert, or_, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta import version_intervals as intervals
from tautochrone.meta.coordinator import pending, skip
from tautochrone.meta.read_models import set_state
from tautochrone.meta.rebuild import (
    SKIP,
    DerivedCommit,
    LakeVersion,
    commit_metadata_of,
    commits_of,
    is_revoked,
    publish,
    register,
    related,
    renew_if_named,
    revoked_ranges,
    settle_with,
    told,
)
from tautochrone.meta.repository import STANDING, Repository
from tautochrone.meta.topology import OUTSIDE
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import Part
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName

__all__ = ["Comparison", "Reconcile", "Reconciled", "StoreRelation"]

_C, _P, _V, _D, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.versions.c, t.datasets.c, t.jobs.c
_SHOWN = (CheckpointState.PUBLISHED.value, CheckpointState.PARTIAL.value)

Lake = Mapping[TableName, Sequence[LakeVersion]]


class StoreRelation(StrEnum):
    """What a store is to the lake's commit metadata: the one that they name, one without checkpoints, an
    older copy of one that they name, another one."""

    CURRENT = "current"
    EMPTY = "empty"
    RESTORED = "restored"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the store stands to the lake; `table` and `reason` say by what that is seen."""

    relation: StoreRelation
    reason: str = ""
    table: TableName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What became of the store. Numbers are of checkpoints; `last_number` is the highest that was given."""

    relation: StoreRelation
    reason: str
    incarnation: str
    last_number: int
    published: tuple[CheckpointNumber, ...] = ()
    revoked: tuple[CheckpointNumber, ...] = ()
    given_up: tuple[CheckpointNumber, ...] = ()


class Reconcile(Repository):
    """See the module docstring."""

    def last_number(self) -> int:
        """The highest number that this store gave or skipped; 0 for none."""
        with self._read() as connection:
            return int(connection.execute(select(t.stores.c.last_number)).scalar_one())

    def compare(self, job: str, lake: Lake) -> Comparison:
        """Hold the store against the lake's commit metadata; changes nothing.

        Args:
            job: who asks. Tables of other jobs count as far as those are known here.
            lake: for each table of ours at least its newest commit metadata, as of `rebuild`.
        """
        with self._read() as connection:
            return _compare(connection, job, lake)

    def reconcile(self, job: str, lake: Lake) -> Reconciled:
        """Bring a store that is an older copy, or another one, into agreement with the lake. Repeatable: a
        store that is in agreement is left as it is.

        Args:
            job: as of `compare`.
            lake: all commits of all tables, as of `rebuild`.

        Raises:
            MetaError: `JOB_NAME_TAKEN`, `DATASET_OWNED_BY_ANOTHER_JOB`; nothing was changed.
        """
        with self._write() as connection:
            last = int(connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one())
            comparison = _compare(connection, job, lake)
            if comparison.relation in (StoreRelation.CURRENT, StoreRelation.EMPTY):
                incarnation = str(connection.execute(select(t.stores.c.incarnation)).scalar_one())
                return Reconciled(
                    relation=comparison.relation, reason="", incarnation=incarnation, last_number=last
                )
            _require_ours(connection, lake)
            derived, metadata = commits_of(lake), commit_metadata_of(lake)
            contradicted = _contradicted(connection, lake)
            seen = [commit.checkpoint for commits in derived.values() for commit in commits]
            seen += [end for found in metadata.values() for _, end in revoked_ranges(found)]
            risen = max(seen, default=0) + SKIP
            newest = max(last, risen)
            connection.execute(update(t.stores).values(last_number=newest))
            incarnation = renew_if_named(connection, lake)
            register(connection, metadata, derived)
            settle_with(connection, lake)
            owner = {name: found[-1].job for name, found in metadata.items() if found}
            revoked = _revoke(connection, owner, metadata, contradicted, newest)
            published = _publish_told(connection, owner, derived, metadata, lake)
            given_up = _give_up(connection, set(owner.values()), risen)
            _report(connection, owner, lake, self._clock())
            return Reconciled(
                relation=comparison.relation,
                reason=comparison.reason,
                incarnation=incarnation,
                last_number=newest,
                published=tuple(map(CheckpointNumber, published)),
                revoked=tuple(map(CheckpointNumber, revoked)),
                given_up=tuple(map(CheckpointNumber, given_up)),
            )

    def table_ids(self, job: str) -> dict[TableName, str]:
        """What tells each of the job's tables from another one of its name, as far as it was recorded."""
        query = select(_D.name, _D.table_id).where(
            _D.job == job, _D.retired.is_(False), _D.table_id.is_not(None)
        )
        with self._read() as connection:
            return {TableName.parse(row.name): row.table_id for row in connection.execute(query)}

    def identify(self, job: str, fence: Fence, tables: Mapping[TableName, str]) -> None:
        """Record what tells the job's tables; those that are left out are not known any more. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence) as connection:
            connection.execute(update(t.datasets).where(_D.job == job).values(table_id=None))
            for name, identity in tables.items():
                mine = (_D.job == job) & (_D.name == str(name))
                connection.execute(update(t.datasets).where(mine).values(table_id=identity))


def _newest(lake: Lake) -> dict[TableName, CommitMetadata]:
    found: dict[TableName, CommitMetadata] = {}
    for name, versions in lake.items():
        metadata = [version.commit_metadata for version in versions if version.commit_metadata is not None]
        if metadata:
            newest = max(reversed(metadata), key=lambda commit_metadata: commit_metadata.fence)
            # What only says who wrote says nothing about checkpoints: then an older one still does.
            derived = next(
                (
                    commit_metadata
                    for commit_metadata in reversed(metadata)
                    if commit_metadata.checkpoint is not None
                ),
                newest,
            )
            found[name] = replace(newest, checkpoint=derived.checkpoint, inputs=derived.inputs)
    return found


def _compare(connection: Connection, job: str, lake: Lake) -> Comparison:
    if connection.execute(select(_C.number).limit(1)).first() is None:
        return Comparison(relation=StoreRelation.EMPTY)
    found = connection.execute(select(t.stores)).one()
    jobs = {row.name: row for row in connection.execute(select(t.jobs))}
    named = {
        v.commit_metadata.store
        for versions in lake.values()
        for v in versions
        if v.commit_metadata is not None
    }
    other = StoreRelation.RESTORED if found.incarnation in named else StoreRelation.FOREIGN
    for table, commit_metadata in _newest(lake).items():
        row = jobs.get(commit_metadata.job)
        if row is not None and row.lake_fence is not None and commit_metadata.fence <= row.lake_fence:
            continue
        if commit_metadata.store != found.incarnation:
            if commit_metadata.job == job or row is not None:
                reason = (
                    f"{table} was last written with store {commit_metadata.store}, "
                    f"and this is {found.incarnation}"
                )
                return Comparison(relation=other, reason=reason, table=table)
            continue
        if row is None or commit_metadata.fence > row.fence:
            known = 0 if row is None else row.fence
            reason = (
                f"{table} knows fence {commit_metadata.fence} of job {commit_metadata.job}, "
                f"and the store gave {known} at most"
            )
            return Comparison(relation=StoreRelation.RESTORED, reason=reason, table=table)
        if (commit_metadata.checkpoint or 0) > found.last_number:
            reason = (
                f"{table} knows checkpoint {commit_metadata.checkpoint}, "
                f"and the store gave {found.last_number} at most"
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
    """Whether the store's checkpoint of that number has another cut than the commit metadata."""
    if commit_metadata.checkpoint is None or not commit_metadata.inputs:
        return False
    state = connection.execute(select(_C.state).where(_C.number == commit_metadata.checkpoint)).scalar()
    mine = select(_P.state).where(_P.checkpoint == commit_metadata.checkpoint, _P.job == commit_metadata.job)
    part = connection.execute(mine).scalar()
    if state not in STANDING or part in (None, Part.SKIPPED.value):
        return False
    cut = intervals.cut_at(connection, commit_metadata.checkpoint, only=sorted(commit_metadata.inputs))
    return any(
        cut.versions[name] != commit_metadata.inputs[name]
        for name in cut.roots & commit_metadata.inputs.keys()
    )


def _contradicted(connection: Connection, lake: Lake) -> set[tuple[int, str]]:
    """Checkpoints of this store, with the job, that the lake's newest commit metadata knows with another
    cut."""
    incarnation = connection.execute(select(t.stores.c.incarnation)).scalar_one()
    return {
        (commit_metadata.checkpoint, commit_metadata.job)
        for commit_metadata in _newest(lake).values()
        if commit_metadata.checkpoint is not None
        and commit_metadata.store == incarnation
        and _is_contradicted(connection, commit_metadata)
    }


def _require_ours(connection: Connection, lake: Lake) -> None:
    """That nobody else has the names of the lake's jobs and tables in this store."""
    pipelines = {row.name: row.pipeline for row in connection.execute(select(_J.name, _J.pipeline))}
    for table, commit_metadata in sorted(_newest(lake).items(), key=lambda item: str(item[0])):
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


def _revoke(
    connection: Connection,
    owner: Mapping[str, str],
    metadata: Mapping[str, Sequence[CommitMetadata]],
    contradicted: set[tuple[int, str]],
    last: int,
) -> list[int]:
    """Checkpoints that a revision took back in the lake, or whose cut was another one."""
    doomed: set[int] = set()
    for name, job in owner.items():
        ranges = revoked_ranges(metadata[name])
        mine = select(_P.checkpoint).where(_P.job == job)
        shown = select(_C.number).where(_C.number.in_(mine), _C.state.in_(_SHOWN))
        for number in connection.execute(shown).scalars():
            if is_revoked(number, ranges) or (number, job) in contradicted:
                doomed.add(number)
        for start, end in ranges:
            ended = (_V.job == job) & (_V.table_name == name) & _V.to_checkpoint.is_(None)
            ended &= (_V.from_checkpoint > start) & (_V.from_checkpoint <= end)
            connection.execute(update(t.versions).where(ended).values(to_checkpoint=last))
    for number, job in contradicted:
        ended = (_V.job == job) & _V.to_checkpoint.is_(None) & (_V.from_checkpoint >= number)
        connection.execute(update(t.versions).where(ended).values(to_checkpoint=last))
    for number in doomed:
        set_state(connection, number, CheckpointState.REVOKED)
    return sorted(doomed)


def _publish_told(
    connection: Connection,
    owner: Mapping[str, str],
    derived: Mapping[str, Sequence[DerivedCommit]],
    metadata: Mapping[str, Sequence[CommitMetadata]],
    lake: Lake,
) -> list[int]:
    """Publish what the lake proves above all that the store shows of those jobs."""
    kept = {str(name): {str(v.version) for v in versions} for name, versions in lake.items()}
    done = []
    for tables in related(owner, derived):
        jobs = {owner[name] for name in tables}
        ranges = [one for name in tables for one in revoked_ranges(metadata[name])]
        states = told({n: derived[n] for n in tables if derived[n]}, kept, ranges)
        for number, (chosen, roots) in states:
            names = {(owner.get(name, OUTSIDE), name) for name in (*chosen, *roots)}
            if not _is_free(connection, number, jobs, names):
                continue
            connection.execute(delete(t.checkpoint_jobs).where(_P.checkpoint == number))
            failed = (t.failures.c.checkpoint == number) & t.failures.c.dataset.in_(sorted(chosen))
            connection.execute(delete(t.failures).where(failed))
            publish(connection, number, chosen, roots, owner, derived)
            set_state(connection, CheckpointNumber(number), CheckpointState.PUBLISHED)
            done.append(number)
    return sorted(set(done))


def _is_free(connection: Connection, number: int, jobs: set[str], names: set[tuple[str, str]]) -> bool:
    """Whether a checkpoint of these jobs may be told under the number: the store shows none of theirs from
    there on, and the number is nobody else's."""
    shown = select(_P.checkpoint).join(t.checkpoints, _C.number == _P.checkpoint)
    shown = shown.where(_P.job.in_(sorted(jobs)), _P.state == Part.DONE.value, _C.number >= number)
    if connection.execute(shown.where(_C.state != CheckpointState.ABORTED.value).limit(1)).first():
        return False
    others = select(_P.job).where(_P.checkpoint == number, _P.job.not_in(sorted(jobs)))
    if connection.execute(others.limit(1)).first():
        return False
    for job, name in names:
        later = (_V.job == job) & (_V.table_name == name)
        later &= or_(_V.from_checkpoint > number, _V.to_checkpoint >= number)
        if connection.execute(select(_V.id).where(later).limit(1)).first():
            return False
    return True


def _give_up(connection: Connection, jobs: set[str], risen: int) -> list[int]:
    """What is open up to `risen`. What is above it was opened after another pipeline had brought the store
    into agreement: its cut is one of this store."""
    found = set()
    for job in sorted(jobs):
        for number in pending(connection, job):
            if number <= risen:
                skip(connection, job, number)
                found.add(number)
    return sorted(found)


def _report(connection: Connection, owner: Mapping[str, str], lake: Lake, now: int) -> None:
    """Roots stand where the lake has them: a cut of another job must not take them back."""
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
        # Aligned cuts leave the root where it is until its job has said how far its source has come.
        connection.execute(update(t.reports).where(key, r.times.is_not(None)).values(times=[]))
