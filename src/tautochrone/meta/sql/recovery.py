"""`store.recovery` in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository
from tautochrone.meta.protocols.recovery import Comparison, Lake, LakeVersion, Reconciled, StoreRelation
from tautochrone.meta.queries.recovery import (
    NUMBER_GAP,
    commit_metadata_of,
    commits_of,
    compare_with_lake,
    contradicted_checkpoints,
    proven_checkpoints,
    publish,
    publish_proven,
    record_lake_fences,
    register,
    related,
    renew_named_incarnation,
    report_roots,
    require_own_tables,
    revoke_checkpoints,
    revoked_ranges,
    skip_open,
)
from tautochrone.model.names import CheckpointNumber, TableName

__all__ = ["SqlRecovery"]


class SqlRecovery(Repository):
    """`protocols.recovery.Recovery` in SQL."""

    def is_empty(self) -> bool:
        with self._read() as connection:
            return connection.execute(select(t.checkpoints.c.number).limit(1)).first() is None

    def rebuild(self, lake: Mapping[TableName, Sequence[LakeVersion]]) -> tuple[CheckpointNumber, ...]:
        derived, metadata = commits_of(lake), commit_metadata_of(lake)
        seen = [0, *(commit.checkpoint for commits in derived.values() for commit in commits)]
        ends = [end for commits in metadata.values() for _, end in revoked_ranges(commits)]
        last = max(*seen, *ends, 0) + NUMBER_GAP
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
            register(connection, metadata, derived)
            stored = connection.execute(select(t.stores.c.last_number)).scalar_one()
            connection.execute(update(t.stores).values(last_number=max(last, stored)))
            renew_named_incarnation(connection, lake)
            record_lake_fences(connection, lake)
            owner = {name: commits[-1].job for name, commits in metadata.items() if commits}
            kept = {str(name): {str(v.version) for v in versions} for name, versions in lake.items()}
            proven = sorted(
                (number, index, state)
                for index, tables in enumerate(related(owner, derived))
                for number, state in proven_checkpoints(
                    {n: derived[n] for n in tables if derived[n]},
                    kept,
                    [revoked for n in tables for revoked in revoked_ranges(metadata[n])],
                )
            )
            for number, _, (chosen, roots) in proven:
                publish(connection, number, chosen, roots, owner, derived)
            return tuple(CheckpointNumber(number) for number in sorted({number for number, _, _ in proven}))

    def compare(self, job: str, lake: Lake) -> Comparison:
        with self._read() as connection:
            return compare_with_lake(connection, job, lake)

    def reconcile(self, job: str, lake: Lake) -> Reconciled:
        with self._write() as connection:
            last = int(connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one())
            comparison = compare_with_lake(connection, job, lake)
            if comparison.relation in (StoreRelation.CURRENT, StoreRelation.EMPTY):
                incarnation = str(connection.execute(select(t.stores.c.incarnation)).scalar_one())
                return Reconciled(
                    relation=comparison.relation, reason="", incarnation=incarnation, last_number=last
                )
            require_own_tables(connection, lake)
            derived, metadata = commits_of(lake), commit_metadata_of(lake)
            contradicted = contradicted_checkpoints(connection, lake)
            seen = [commit.checkpoint for commits in derived.values() for commit in commits]
            seen += [end for commits in metadata.values() for _, end in revoked_ranges(commits)]
            risen = max(seen, default=0) + NUMBER_GAP
            newest = max(last, risen)
            connection.execute(update(t.stores).values(last_number=newest))
            incarnation = renew_named_incarnation(connection, lake)
            register(connection, metadata, derived)
            record_lake_fences(connection, lake)
            owner = {name: commits[-1].job for name, commits in metadata.items() if commits}
            revoked = revoke_checkpoints(connection, owner, metadata, contradicted, newest)
            published = publish_proven(connection, owner, derived, metadata, lake)
            given_up = skip_open(connection, set(owner.values()), risen)
            report_roots(connection, owner, lake, self._clock())
            return Reconciled(
                relation=comparison.relation,
                reason=comparison.reason,
                incarnation=incarnation,
                last_number=newest,
                published=tuple(map(CheckpointNumber, published)),
                revoked=tuple(map(CheckpointNumber, revoked)),
                given_up=tuple(map(CheckpointNumber, given_up)),
            )
