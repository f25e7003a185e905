"""The store of the MetaService as its callers see it, wherever it is: in a database, or behind a service.

Nearly all of its methods are in its parts, each a protocol. Code that needs one part
takes that part. To add a part: a protocol here with marked methods, a class in `meta.sql` that implements it,
and an attribute in `Store`, `MetaStore` and `RemoteStore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import TracebackType
from typing import Protocol, Self, get_type_hints

from tautochrone.meta.protocols import marks
from tautochrone.meta.protocols.alarms import Alarms
from tautochrone.meta.protocols.builds import Builds
from tautochrone.meta.protocols.checkpoints import Checkpoints, Invariants, Roots
from tautochrone.meta.protocols.datasets import Datasets, History
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.meta.protocols.jobs import Jobs, Registrations
from tautochrone.meta.protocols.reads import Pins, Reads
from tautochrone.meta.protocols.recovery import Recovery
from tautochrone.meta.protocols.revisions import Revisions
from tautochrone.meta.protocols.transactions import Transactions

__all__ = ["Store", "parts"]


class Store(Protocol):
    """Everything that the MetaService remembers. Safe to share between threads.

    Every method is one transaction and may be called again with the same arguments when its answer was lost.
    Most calls then find their work done. A repeated `jobs.take_over` gives a higher fence (nobody holds the
    lost one), a repeated `reads.resolve` one more pin (the lost one ends with its lease), a repeated
    `checkpoints.forget_expired` returns 0.

    Every method that takes a job's `fence` raises:

    - `FencedError` (`JOB_FENCED`): a newer owner of the job exists.
    - `MetaError` `JOB_NOT_FOUND`: the job was never registered.
    - `MetaError` `FENCE_UNKNOWN`: another store gave the fence, or this store is an older copy.
    - `MetaError` `META_STORE_REPLACED`: the job was taken over in a store of another incarnation.

    Every method may raise `MetaError` `META_STORE_BUSY` (retryable) or `META_STORE_FAILED`. Times are in
    epoch milliseconds of the store's clock where nothing else is said.
    """

    alarms: Alarms
    builds: Builds
    checkpoints: Checkpoints
    datasets: Datasets
    deliveries: Deliveries
    history: History
    invariants: Invariants
    jobs: Jobs
    pins: Pins
    reads: Reads
    recovery: Recovery
    registrations: Registrations
    revisions: Revisions
    roots: Roots
    transactions: Transactions

    @property
    @marks.reads
    def incarnation(self) -> str:
        """The id of this store, read anew each time: the file behind an open store may be replaced. A store
        that was created anew, rebuilt from the lake or found to be an older copy has another id."""

    @marks.reads
    def schema_revision(self) -> str:
        """The newest migration that the store has had."""

    @marks.reads
    def now_ms(self) -> int:
        """The store's clock: epoch milliseconds."""

    def close(self) -> None:
        """Close this process's connections."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@cache
def parts() -> Mapping[str, type]:
    """The parts of a store and the protocol of each: whatever `Store` has as an attribute."""
    return get_type_hints(Store)
