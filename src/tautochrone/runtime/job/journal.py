"""The store as the owner of a job writes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tautochrone.meta import Store
from tautochrone.meta.database.repository import compare_fence
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import BrokenInvariant, Checkpoint
from tautochrone.model.definitions import DatasetDetails, ExpectationCount
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.refresh import Refresh, RefreshMode
from tautochrone.model.source import SkippedFiles
from tautochrone.redaction import redacted

__all__ = ["Journal"]


@dataclass(slots=True)
class Journal:
    """Writes a job's progress to the store. Every write carries the job's fence and is one durable step."""

    store: Store
    name: str
    effects: Effects
    fence: Fence = field(default_factory=lambda: Fence(0))
    incarnation: str | None = None
    """The incarnation of the store that gave the fence; None before the takeover."""
    highest_number: int = 0
    """The highest checkpoint number that the store gave this owner."""

    def require(self) -> None:
        """Ask whether the fence is still the newest, before a durable step outside the store.

        Raises:
            FencedError: a newer owner exists.
            MetaError: the fence was not given by this store.
        """
        compare_fence(self.name, self.fence, self.store.jobs.newest_fence(self.name))

    def report(self, versions: Mapping[TableName, Version]) -> None:
        """Report versions of root tables. A cut takes all of them or none."""
        self.effects.perform(
            Step.META_REPORT,
            str(next(iter(versions))),
            lambda: self.store.roots.report(self.name, self.fence, versions),
        )

    def expectations(self, table: TableName, counts: Sequence[ExpectationCount]) -> None:
        """Record how many rows of a root table violate its expectations."""
        self.effects.perform(
            Step.META_REPORT,
            str(table),
            lambda: self.store.datasets.record_expectations(self.name, self.fence, table, counts),
        )

    def describe(self, details: Sequence[DatasetDetails]) -> None:
        self.effects.perform(
            Step.META_DESCRIBE,
            self.name,
            lambda: self.store.datasets.describe(self.name, self.fence, details),
        )

    def table_ids(self, ids: Mapping[TableName, str]) -> None:
        """Replace what the store knows of the identities of the job's tables."""
        self.effects.perform(
            Step.META_IDENTIFY,
            self.name,
            lambda: self.store.datasets.record_table_ids(self.name, self.fence, ids),
        )

    def skipped_files(self, table: TableName, flow: str, skipped: Sequence[SkippedFiles]) -> None:
        """Replace what the store knows of files that the flow did not read."""
        self.effects.perform(
            Step.META_SKIPPED_FILES,
            str(table),
            lambda: self.store.datasets.record_skipped_files(self.name, self.fence, table, flow, skipped),
        )

    def observe(self, table: TableName, before: Version | None, now: Version) -> Version:
        """Record that an external table moved; returns the version that all jobs agree on."""
        return self.effects.perform(
            Step.META_OBSERVE,
            str(table),
            lambda: self.store.roots.observe_external_table(self.name, self.fence, table, before, now),
        )

    def open(self, new: NewCheckpoint) -> Checkpoint:
        """Open a checkpoint in the store that gave the fence and all numbers of this owner."""
        here = replace(new, store=self.incarnation, after=self.highest_number)
        opened = self.effects.perform(
            Step.META_OPEN, self.name, lambda: self.store.checkpoints.open(self.name, self.fence, here)
        )
        self.highest_number = max(self.highest_number, opened.number)
        return opened

    def take(self) -> Checkpoint | None:
        """Start the job's part of the open checkpoint, if there is one."""
        if self.store.checkpoints.next_for(self.name) is None:
            return None
        checkpoint = self.effects.perform(
            Step.META_TAKE, self.name, lambda: self.store.checkpoints.begin_next(self.name, self.fence)
        )
        self.highest_number = max(self.highest_number, 0 if checkpoint is None else checkpoint.number)
        return checkpoint

    def version(self, number: CheckpointNumber, table: TableName, version: Version, refresh: Refresh) -> None:
        # Reasons may quote expressions, and a definition can contain a secret.
        nodes = tuple(replace(node, reason=node.reason.map_texts(redacted)) for node in refresh.nodes)
        safe = replace(refresh, reason=refresh.reason.map_texts(redacted), nodes=nodes)
        self.effects.perform(
            Step.META_VERSION,
            str(table),
            lambda: self.store.checkpoints.record_version(
                self.name, self.fence, number, table, version, safe
            ),
        )

    def failure(
        self, number: CheckpointNumber, table: TableName, failure: Reason, mode: RefreshMode | None = None
    ) -> None:
        self.effects.perform(
            Step.META_FAILURE,
            str(table),
            lambda: self.store.checkpoints.record_failure(
                self.name, self.fence, number, table, failure.map_texts(redacted), mode
            ),
        )

    def abort(self, number: CheckpointNumber, broken: Sequence[BrokenInvariant] = ()) -> None:
        # The sample rows are data of the lake and may contain secrets.
        safe = [
            replace(
                invariant,
                sample=tuple(map(redacted, invariant.sample)),
                problem=None if invariant.problem is None else redacted(invariant.problem),
            )
            for invariant in broken
        ]
        self.effects.perform(
            Step.META_ABORT,
            self.name,
            lambda: self.store.checkpoints.abort(self.name, self.fence, number, broken=safe),
        )

    def publish(
        self,
        number: CheckpointNumber,
        at_ms: int,
        cpu_ms: int | None = None,
        satisfied: Mapping[str, str] | None = None,
    ) -> None:
        self.effects.perform(
            Step.META_PUBLISH,
            self.name,
            lambda: self.store.checkpoints.publish(
                self.name, self.fence, number, at_ms, cpu_ms=cpu_ms, passed_invariants=satisfied
            ),
        )
