"""The life of a checkpoint: opened with a cut, filled dataset by dataset, published or aborted.

1. `open_checkpoint` hands out the next number and records the version of every root.
2. `record_version` / `record_failure` say for each dataset what became of it; repeatable.
3. `publish` makes it readable by one row, once every dataset has a word; `abort` forgets it.
4. A dataset that failed may be repaired for the published number: then it is complete there.
5. `expire` and `revoke` take it away from readers; the number stays taken for ever.

It must never know how versions are read or written in the lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import intervals
from tautochrone.meta import tables as t
from tautochrone.meta.base import Repository
from tautochrone.meta.history import keep, prune_failures
from tautochrone.meta.rows import as_checkpoint, checkpoint_row, set_state, unmentioned
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.refresh import Refresh, RefreshMode

__all__ = ["Checkpoints"]

_C = t.checkpoints.c
_OPEN, _PUBLISHED = CheckpointState.OPEN.value, CheckpointState.PUBLISHED.value


class Checkpoints(Repository):
    """Everything that writes a checkpoint."""

    def open_checkpoint(
        self,
        job: str,
        fence: Fence,
        roots: Mapping[TableName, Version],
        cut_at_ms: int,
        *,
        at_least: int = 0,
    ) -> Checkpoint:
        """Record the cut: the job's next target. Its number is above every number ever given.

        Raises:
            MetaError: `CHECKPOINT_ALREADY_OPEN`; finish or abort `open_target(job)` first.
        """
        with self._fenced(job, fence) as connection:
            target = _open_target(connection, job)
            if target is not None:
                raise MetaError(
                    "CHECKPOINT_ALREADY_OPEN",
                    f"Checkpoint {target.number} of job {job} is still open",
                    hint="Finish or abort it first: a job has one target at a time.",
                )
            last = connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one()
            number = max(last + 1, at_least)
            connection.execute(update(t.stores).values(last_number=number))
            connection.execute(
                insert(t.checkpoints).values(number=number, job=job, state=_OPEN, cut_at_ms=cut_at_ms)
            )
            for table, version in roots.items():
                intervals.record(connection, job, str(table), version, number, root=True)
            return Checkpoint(
                number=CheckpointNumber(number),
                state=CheckpointState.OPEN,
                cut_at_ms=cut_at_ms,
                published_at_ms=None,
                roots=dict(roots),
            )

    def open_target(self, job: str) -> Checkpoint | None:
        """The job's open checkpoint, to be finished or aborted; None when there is none."""
        with self._read() as connection:
            row = _open_target(connection, job)
            return None if row is None else as_checkpoint(connection, row)

    def record_version(
        self,
        job: str,
        fence: Fence,
        number: int,
        dataset: TableName,
        version: Version,
        refresh: Refresh,
        *,
        finished_at_ms: int | None = None,
    ) -> None:
        """The dataset has `version` for checkpoint `number`. Saying it twice is saying it once.

        While the checkpoint is open another version replaces the first (a repeated refresh). For a
        published one it is a repair, allowed only where the dataset was recorded as failed.

        Raises:
            MetaError: unknown dataset, or the checkpoint may not be changed.
            FencedError: a newer owner exists.
        """
        name = str(dataset)
        with self._fenced(job, fence, durable=False) as connection:
            row = _own_checkpoint(connection, job, number)
            _require_dataset(connection, job, name)
            if intervals.is_confirmed(connection, job, name, number) == version:
                return
            if row.state == _OPEN:
                intervals.record(connection, job, name, version, number)
            elif row.state == _PUBLISHED and _failed(connection, name, number):
                intervals.repair(connection, job, name, version, number)
            else:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {row.state} and {name} did not fail at it: "
                    "its version cannot change any more",
                )
            connection.execute(delete(t.failures).where(_failure(name, number)))
            finished = self._clock() if finished_at_ms is None else finished_at_ms
            keep(connection, number, name, version, refresh, None, finished)

    def record_failure(
        self,
        job: str,
        fence: Fence,
        number: int,
        dataset: TableName,
        error: str,
        mode: RefreshMode | None = None,
        *,
        finished_at_ms: int | None = None,
    ) -> None:
        """The dataset has no version for the open checkpoint `number`; `error` says why.

        Datasets downstream are recorded the same way, with an error like "waits for X".
        """
        name = str(dataset)
        with self._fenced(job, fence, durable=False) as connection:
            row = _own_checkpoint(connection, job, number)
            _require_dataset(connection, job, name)
            known = connection.execute(select(t.failures.c.error).where(_failure(name, number))).scalar()
            if known == error:
                return
            recorded = intervals.is_confirmed(connection, job, name, number)
            if row.state != _OPEN or (recorded is not None and known is None):
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"{name} already has its version for checkpoint {number}"
                    if recorded
                    else f"Checkpoint {number} is {row.state}: no failure can be added to it",
                )
            intervals.close_before(connection, job, name, number)
            connection.execute(delete(t.failures).where(_failure(name, number)))
            connection.execute(
                insert(t.failures).values(
                    dataset=name, checkpoint=number, error=error, mode=mode and mode.value
                )
            )
            prune_failures(connection, name)
            finished = self._clock() if finished_at_ms is None else finished_at_ms
            refresh = None if mode is None else Refresh(mode=mode, reason="")
            keep(connection, number, name, None, refresh, error, finished)

    def publish(self, job: str, fence: Fence, number: int, at_ms: int) -> None:
        """Make the checkpoint readable: one row changes. Publishing it again is a no-op.

        Raises:
            MetaError: `CHECKPOINT_INCOMPLETE`, a dataset has neither a version nor a failure.
        """
        with self._fenced(job, fence) as connection:
            row = _own_checkpoint(connection, job, number)
            if row.state == _PUBLISHED:
                return
            if row.state != _OPEN:
                raise MetaError("CHECKPOINT_NOT_WRITABLE", f"Checkpoint {number} is {row.state}, not open")
            missing = unmentioned(connection, job, number)
            if missing:
                raise MetaError(
                    "CHECKPOINT_INCOMPLETE",
                    f"Checkpoint {number} knows nothing about {', '.join(missing)}",
                    hint="Record a version or a failure for each dataset of the job first.",
                )
            connection.execute(
                update(t.checkpoints)
                .where(_C.number == number, _C.state == _OPEN)
                .values(state=_PUBLISHED, published_at_ms=at_ms)
            )

    def abort(self, job: str, fence: Fence, number: int) -> None:
        """Give the open checkpoint up: what was recorded for it is forgotten. Repeatable."""
        with self._fenced(job, fence) as connection:
            row = _own_checkpoint(connection, job, number)
            if row.state == CheckpointState.ABORTED:
                return
            if row.state != _OPEN:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {row.state} and cannot be aborted",
                    hint="`taut revise` revokes a published checkpoint.",
                )
            names = select(t.datasets.c.name).where(t.datasets.c.job == job)
            connection.execute(
                delete(t.failures).where(t.failures.c.checkpoint == number, t.failures.c.dataset.in_(names))
            )
            intervals.undo(connection, job, number)
            set_state(connection, number, CheckpointState.ABORTED)

    def revoke(self, job: str, fence: Fence, number: int) -> None:
        """Take a published checkpoint back: readers pinned to it get an error class. Repeatable."""
        with self._fenced(job, fence) as connection:
            row = _own_checkpoint(connection, job, number)
            if row.state not in (_PUBLISHED, CheckpointState.REVOKED):
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE", f"Checkpoint {number} is {row.state}, not published"
                )
            set_state(connection, number, CheckpointState.REVOKED)


def _open_target(connection: Connection, job: str) -> Row[Any] | None:
    query = select(t.checkpoints).where(_C.job == job, _C.state == _OPEN)
    return connection.execute(query).first()


def _own_checkpoint(connection: Connection, job: str, number: int) -> Row[Any]:
    row = checkpoint_row(connection, number)
    if row.job != job:
        raise MetaError(
            "CHECKPOINT_OF_ANOTHER_JOB",
            f"Checkpoint {number} belongs to job {row.job}, not to {job}",
        )
    return row


def _require_dataset(connection: Connection, job: str, name: str) -> None:
    d = t.datasets.c
    query = select(d.name).where(d.name == name, d.job == job, d.retired.is_(False))
    if connection.execute(query).first() is None:
        raise MetaError("DATASET_NOT_FOUND", f"{name} is not a dataset of job {job}")


def _failure(name: str, number: int) -> Any:
    return (t.failures.c.dataset == name) & (t.failures.c.checkpoint == number)


def _failed(connection: Connection, name: str, number: int) -> bool:
    query = select(t.failures.c.error).where(_failure(name, number))
    return connection.execute(query).first() is not None
