"""Whether anything changed since the last checkpoint, so that the job needs another one."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tautochrone.meta import Store
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.lake import ReadableTable
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.runtime.loop.cut import Cut, changed_roots
from tautochrone.runtime.loop.refresh_checkpoint import CheckpointRefresher

__all__ = ["ChangeDetector"]


class ChangeDetector:
    """Compares a cut, the datasets and the invariants with the job's last checkpoint. One per run."""

    def __init__(
        self,
        store: Store,
        job: str,
        topology: JobTopology,
        load_input: Callable[[TableName], ReadableTable],
        refresher: CheckpointRefresher,
    ) -> None:
        self._store = store
        self._job = job
        self._topology = topology
        self._load_input = load_input
        self._refresher = refresher
        self._invariants_compared = False

    def need_checkpoint(
        self,
        cut: Cut,
        last: dict[TableName, Version],
        latest: Checkpoint | None,
        failed: Collection[TableName],
    ) -> bool:
        """Whether a root moved, a dataset is not up to date, or an invariant was never checked.

        Args:
            cut: see `changed_roots`.
            last: the versions at the last checkpoint.
            latest: the last checkpoint of which the job did its part.
            failed: datasets that failed at the last checkpoint, or had to wait for a source.
        """
        if changed_roots(self._load_input, cut, last) or latest is None:
            return True
        if self._store.revisions.revoked_after(self._job, latest.number):
            # Readers that saw a revoked checkpoint wait for a higher number.
            return True
        if self._has_new_invariant():
            return True
        return any(self._is_outdated(table, last, failed) for table in self._topology.derived_tables)

    def _has_new_invariant(self) -> bool:
        """Whether an invariant is new or was redefined. Compared once per run."""
        if self._invariants_compared:
            return False
        self._invariants_compared = True
        invariants = self._topology.graph.invariants
        if not invariants:
            return False
        checked = self._store.invariants.last_check(self._job)
        fingerprints = {} if checked is None else checked.definitions
        return any(
            fingerprints.get(invariant.name) != invariant.query.fingerprint for invariant in invariants
        )

    def _is_outdated(
        self, table: TableName, last: dict[TableName, Version], failed: Collection[TableName]
    ) -> bool:
        if table not in last:
            # Never built, or failed at the last checkpoint. The same input would fail again.
            return table not in failed or self._refresher.reads_other_files(table)
        return self._refresher.needs_refresh(table)
