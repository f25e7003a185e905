"""What the SQL parts of the store share: transactions, the fence check, names as text.

Every write in a job's name goes through `_fenced`: it locks the job's row, so that a takeover and a
write of the older owner can only come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection, bindparam, select

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta.database import StoreDatabase
from tautochrone.meta.database import tables as t
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import Fence, TableName

__all__ = [
    "VERSIONED_KINDS",
    "VISIBLE_STATES",
    "Repository",
    "check_fence",
    "compare_fence",
    "parse",
    "require_incarnation",
    "unknown_job_error",
]

VERSIONED_KINDS = (DatasetKind.STREAMING_TABLE.value, DatasetKind.MATERIALIZED_VIEW.value)
"""Kinds of datasets that are tables: a published checkpoint has a version or a failure of each."""

VISIBLE_STATES = (
    CheckpointState.PUBLISHED.value,
    CheckpointState.PARTIAL.value,
    CheckpointState.OPEN.value,
)
"""States in which a checkpoint shows the tables of the jobs that did their part."""

parse = TableName.parse


class Repository:
    """A part of the store in SQL: the transactions in which it reads and writes.

    Args:
        clock: returns epoch milliseconds; tests pass their own.
        taken_over_in: for each job that was taken over through this store its incarnation at that time. The
            fence is valid only there. All parts of a store share it.
    """

    def __init__(
        self, database: StoreDatabase, clock: Callable[[], int], taken_over_in: dict[str, str]
    ) -> None:
        self._database = database
        self._clock = clock
        self._taken_over_in = taken_over_in

    def _read(self) -> AbstractContextManager[Connection]:
        return self._database.read()

    def _write(self, *, durable: bool = True) -> AbstractContextManager[Connection]:
        """Without `durable` a power failure may lose what is written."""
        return self._database.write(durable=durable)

    @contextmanager
    def _fenced(self, job: str, fence: Fence, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that writes in the name of a job.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `JOB_NOT_FOUND`; `FENCE_UNKNOWN`; `META_STORE_REPLACED`: a fence is valid only in the
                store that gave it.
        """
        with self._database.write(durable=durable) as connection:
            check_fence(connection, job, fence, self._taken_over_in.get(job))
            yield connection


_FENCE = (
    select(t.jobs.c.fence, select(t.stores.c.incarnation).scalar_subquery().label("incarnation"))
    .where(t.jobs.c.name == bindparam("job"))
    .with_for_update(of=t.jobs)
)


def check_fence(connection: Connection, job: str, fence: Fence, taken_over_in: str | None = None) -> None:
    """Lock the job's row and compare its fence.

    Args:
        taken_over_in: the incarnation of the store in which the job was taken over; None: any.

    Raises:
        FencedError: `JOB_FENCED`, a newer owner exists.
        MetaError: the job is unknown, or the fence was not given by this store; `META_STORE_REPLACED`.
    """
    stored = connection.execute(_FENCE, {"job": job}).first()
    if taken_over_in is not None:
        # Without the job's row the store is still one or the other.
        actual = incarnation_of(connection) if stored is None else stored.incarnation
        _compare_incarnation(job, taken_over_in, actual)
    if stored is None:
        raise unknown_job_error(job)
    compare_fence(job, fence, Fence(stored.fence))


def incarnation_of(connection: Connection) -> str | None:
    """The id of the store itself."""
    incarnation: str | None = connection.execute(select(t.stores.c.incarnation)).scalar()
    return incarnation


def compare_fence(job: str, fence: Fence, stored: Fence) -> None:
    """Refuse a fence that is not the one that the store has for the job. Raises as `check_fence`."""
    if stored > fence:
        raise FencedError(
            "JOB_FENCED",
            f"Job {job} was taken over: this process holds fence {fence}, the newest is {stored}",
            hint="Another process runs this job now; stop this one.",
            parameters={"job": job, "fence": str(fence), "newest": str(stored)},
        )
    if stored < fence:
        raise MetaError(
            "FENCE_UNKNOWN",
            f"Fence {fence} of job {job} is newer than the store's {stored}: "
            "it was given by another store, or this store is an older copy",
            hint="Start the job again: it brings the store into agreement with the lake first.",
        )


def require_incarnation(connection: Connection, job: str, expected: str) -> None:
    """Refuse a write to another store than the one that the job was taken over in.

    Raises:
        MetaError: `META_STORE_REPLACED`.
    """
    _compare_incarnation(job, expected, incarnation_of(connection))


def _compare_incarnation(job: str, expected: str, actual: str | None) -> None:
    if actual != expected:
        raise MetaError(
            "META_STORE_REPLACED",
            f"Job {job} was taken over in store {expected}, and the store here is {actual}: it was swapped, "
            "or an older copy was put back, while the job ran",
            hint="Start the job again: it compares the store with the lake before it writes.",
            parameters={"job": job, "expected": expected, "found": str(actual)},
        )


def unknown_job_error(job: str) -> MetaError:
    """The error for a job that was never registered."""
    return MetaError(
        "JOB_NOT_FOUND",
        f"Job {job} is not registered in this store",
        hint="`taut run` registers a pipeline's jobs.",
    )
