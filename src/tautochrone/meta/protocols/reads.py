"""`store.reads` and `store.pins`. The versions that a reader sees at a read point, and leases on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import Consistency, Pin, Resolution
from tautochrone.model.jobs import PublicationBlocker
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["DEFAULT_LEASE_MS", "Pins", "Reads"]


class Pins(Protocol):
    """Leases of readers on versions, and which versions must stay readable."""

    @writes(for_readers=True)
    def renew(
        self, pin: str, lease_ms: int, *, if_within_ms: int | None = None, principal: str | None = None
    ) -> None:
        """Extend a lease.

        Args:
            pin: the id of the pin.
            lease_ms: milliseconds from now until the lease ends.
            if_within_ms: write nothing while more than so many milliseconds are left of the lease.
            principal: refuse a pin that was not made for this principal; None: any pin.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
            CheckpointUnavailableError: `PIN_EXPIRED`: its versions may be deleted, resolve again;
                `CHECKPOINT_REVOKED`: its versions stay until the lease ends, but they are wrong.
        """

    @writes(for_readers=True)
    def release(self, pin: str, *, principal: str | None = None) -> None:
        """End a lease. Unknown and expired pins are no error.

        Args:
            pin: the id of the pin.
            principal: refuse a pin that was not made for this principal; None: any pin.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
        """

    @reads
    def live(self) -> tuple[Pin, ...]:
        """The pins whose lease has not ended, by the end of their leases."""

    @reads
    def pinned_checkpoints(self, now_ms: int | None = None) -> frozenset[CheckpointNumber]:
        """The checkpoints of live pins.

        Args:
            now_ms: the time at which a lease counts as ended, in epoch milliseconds; None: now.
        """

    @reads
    def retained_versions(
        self, without: Collection[CheckpointNumber] = ()
    ) -> dict[TableName, frozenset[Version]]:
        """By table the versions that must stay readable: those of unexpired checkpoints, the newest of each
        table, and the pinned ones. Other versions older than the newest may be deleted from the lake.

        Args:
            without: answer as if these checkpoints were expired.
        """

    @reads
    def followed_versions(self) -> dict[TableName, frozenset[Version]]:
        """By table the versions of live pins from which the changes up to the newest one must stay readable:
        see `followed` of `Reads.resolve`."""


DEFAULT_LEASE_MS = 600_000
"""How long, in milliseconds, a read is pinned when the caller does not say."""


class Reads(Protocol):
    """The versions that a reader sees at a read point."""

    @writes(for_readers=True)
    def resolve(
        self,
        consistency: Consistency = Consistency.STRONG,
        tables: Iterable[TableName] | None = None,
        checkpoint: int | None = None,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        owner: str = "reader",
        at_least: int = 0,
        only_named: bool = False,
        after_ms: int | None = None,
        principal: str | None = None,
        followed: bool = False,
    ) -> Resolution:
        """Choose the versions for one read and pin them for `lease_ms`; 0 pins nothing and writes nothing.

        Args:
            consistency: `STRONG` is one checkpoint, `WEAK` the newest version of each table.
            tables: the tables of the read; None for all. Tables that the store never saw are left
                out of the answer: external tables are read at their newest version.
            checkpoint: an explicit published one, instead of the newest.
            at_least: strong reads must not be older than this (a session never goes backwards).
            only_named: require completeness of the named tables only, not of related ones.
            after_ms: the read must contain all that the sources of the tables held at this time, in epoch
                milliseconds of the store's clock (a write token).
            owner: who reads, in the reader's own words, for people.
            principal: who reads, as a service knows it: others must not renew or release the pin.
            followed: whoever reads will follow what changed since, so all later versions stay as well.

        A strong read takes the newest checkpoint that is complete for every dataset *related* to one asked
        for (they share a root, directly or through others), so that separate queries agree: a dataset
        that failed, or whose job does not run, holds back the datasets related to it. `behind` says which and
        why. A dataset that was never built holds nothing back. `tables=None` asks for all datasets.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`, `_EXPIRED`, `_REVOKED`,
                `_NOT_PUBLISHED`, or `_BEHIND_SESSION` when only older ones would do; `READ_NOT_YET`
                (retryable), see `after_ms`.
            QueryError: `TOKEN_NEEDS_CHECKPOINT`: a weak read has none that could be late. `TOO_MANY_PINS`.
        """

    @reads
    def missing_reason(self, table: TableName, number: int | None = None) -> str:
        """Why a known dataset has no version (at checkpoint `number`), as the second half of a sentence."""

    @reads
    def published_versions(self, number: int) -> dict[TableName, Version]:
        """All versions at a published checkpoint, without a new pin: the caller has one.

        Raises:
            CheckpointUnavailableError: see `resolve`.
        """

    @reads
    def newest_versions(self) -> dict[TableName, Version]:
        """The newest version of every table: a weak read of everything, without a pin."""

    @reads
    def knows(self, table: TableName) -> bool:
        """Whether a job of this store writes the table, or reads it as an external table; or a build made it,
        so that there is nothing to read in it yet."""

    @reads
    def publication_blockers(
        self, job: str, sources_as_of_ms: int | None = None
    ) -> tuple[PublicationBlocker, ...]:
        """What keeps readers from the newest checkpoint of which the job did its part, sorted by job; nothing
        when it is published.

        Args:
            sources_as_of_ms: the checkpoint must also have what the sources of other jobs that are alive held
                at this time, by the store's clock, as far as the job's tables are made from it.
        """
