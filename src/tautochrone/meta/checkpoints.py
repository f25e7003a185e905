"""The life of a checkpoint: opened with a cut, filled dataset by dataset, published or aborted.

1. `open_checkpoint` hands out the next number and records the version of every root. All jobs that belong
   together take part; `coordinator` says when and who.
2. `record_version` / `record_failure` say for each dataset what became of it; repeatable.
3. `publish` says that a job has done its part, once every dataset of it has a word; the last one's makes
   the checkpoint readable by one row. `abort` gives a part up.
4. A dataset that failed may be repaired for the published number: then it is complete there.
5. `expire` and `revoke` take it away from readers; the number stays taken for ever.

It must never know how versions are read or written in the lake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta import version_intervals as intervals
from tautochrone.meta.alignment import aligned_cut
from tautochrone.meta.coordinator import PATIENCE_MS, enlist, holders, pending, skip
from tautochrone.meta.history import keep, prune_failures
from tautochrone.meta.invariants import keep_broken
from tautochrone.meta.read_models import (
    as_checkpoint,
    as_versions,
    checkpoint_row,
    set_state,
    settle,
    unmentioned,
)
from tautochrone.meta.repository import STANDING, Repository, require_incarnation
from tautochrone.meta.revisions import require_none_under_way
from tautochrone.meta.source_observations import looks_of_cut, note_looks
from tautochrone.meta.topology import OUTSIDE, reported_roots, topology
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.invariants import BrokenInvariant
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason, unclassified
from tautochrone.model.refresh import Refresh, RefreshMode

__all__ = ["Checkpoints"]

_P = t.checkpoint_jobs.c
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
        looked_ms: int | None = None,
        looks: Mapping[TableName, int] | None = None,
        patience_ms: int = PATIENCE_MS,
        align_ms: int | None = None,
        store: str | None = None,
        after: int = 0,
    ) -> Checkpoint:
        """Record the cut: the next target of all jobs that belong together. Its number is above every
        number ever given.

        Args:
            roots: versions of the job's own roots, of the external tables that it read, and of
                all clocks that the topology reads. Roots of other jobs are what they reported.
            cut_at_ms: by the job's clock.
            at_least: the lowest number that will do.
            looked_ms: when the job began to look at its roots, by the store's clock.
            looks: as of `beat`, for the versions in `roots`.
            patience_ms: so long a job that is at work holds the others back.
            align_ms: the greatest skew of the cut in source time (`model.alignment`): of roots that are
                further ahead an older version is taken, also of those in `roots`. None: any.
            store: the incarnation of the store that the job was taken over in; None: it is not known.
            after: the highest number that the caller was ever given. A store that never gave it is an older
                copy.

        Opening the very cut that the job has open already (a lost answer) gives the same checkpoint again.

        Raises:
            MetaError: `META_STORE_REPLACED`;
                `CHECKPOINT_ALREADY_OPEN`: finish or abort `open_target(job)` first;
                `CHECKPOINT_HELD_BACK` (retryable): see `held_back_by`, or a revision is not finished.
        """
        with self._fenced(job, fence) as connection:
            # The row that numbers come from is the lock under which checkpoints are opened.
            last = connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one()
            if store is not None:
                require_incarnation(connection, job, store)
            if last < after:
                raise MetaError(
                    "META_STORE_REPLACED",
                    f"Job {job} knows checkpoint {after}, and the store gave numbers up to {last} only: an "
                    "older copy of it was put back while the job ran",
                    hint="Start the job again: it compares the store with the lake before it writes.",
                )
            unfinished = pending(connection, job)
            if unfinished:
                opened = _opened(connection, job, roots, cut_at_ms)
                if opened is not None and opened.number >= at_least:
                    return opened
                raise MetaError(
                    "CHECKPOINT_ALREADY_OPEN",
                    f"Checkpoint {unfinished[0]} of job {job} is still open",
                    hint="Finish or abort it first: a job has one target at a time.",
                )
            found, now = topology(connection), self._clock()
            require_none_under_way(connection, found.jobs_with(job))
            for holder in holders(connection, job, found, now, patience_ms):
                raise MetaError(
                    "CHECKPOINT_HELD_BACK",
                    f"Job {holder.job} is at work on checkpoint {holder.checkpoint}; job {job} waits for it",
                    retryable=True,
                )
            number = max(last + 1, at_least)
            connection.execute(update(t.stores).values(last_number=number))
            told = {str(table): at for table, at in (looks or {}).items()}
            own = {str(table): version for table, version in roots.items()}
            cut = reported_roots(connection, job, found) | own
            held: Collection[str] = ()
            if align_ms is not None:
                alignment = aligned_cut(connection, found.jobs_with(job), cut, align_ms)
                cut, held = dict(alignment.roots), alignment.held
            connection.execute(
                insert(t.checkpoints).values(
                    number=number,
                    job=job,
                    state=_OPEN,
                    cut_at_ms=cut_at_ms,
                    opened_ms=now if looked_ms is None else looked_ms,
                    # What was found when a root was looked at is not in an older version of it.
                    looks=looks_of_cut(connection, told, own.keys() - held, cut.keys() - held, found),
                )
            )
            note_looks(connection, job, told, None)
            # Before the cut is recorded: what is compared is how things stood at the last one.
            enlist(connection, job, number, cut, found, now)
            for table, version in cut.items():
                owner = found.owner.get(table, OUTSIDE)
                intervals.record(connection, owner, table, version, number, root=True)
            return Checkpoint(
                number=CheckpointNumber(number),
                state=CheckpointState.OPEN,
                cut_at_ms=cut_at_ms,
                published_at_ms=None,
                roots=as_versions(cut),
            )

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
            state, part = _part(connection, job, number)
            _require_dataset(connection, job, name)
            if intervals.is_confirmed(connection, job, name, number) == version:
                return
            if part is Part.PENDING:
                intervals.record(connection, job, name, version, number)
            elif part is Part.DONE and state in STANDING and _failed(connection, name, number):
                intervals.repair(connection, job, name, version, number)
            else:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {_spoken(state, part)} and {name} did not fail at it: "
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
        error: Reason,
        mode: RefreshMode | None = None,
        *,
        finished_at_ms: int | None = None,
    ) -> None:
        """The dataset has no version for the open checkpoint `number`; `error` says why.

        Datasets downstream are recorded the same way, as `WAITS_FOR_INPUT`.
        """
        name = str(dataset)
        with self._fenced(job, fence, durable=False) as connection:
            state, part = _part(connection, job, number)
            _require_dataset(connection, job, name)
            known = connection.execute(select(t.failures.c.error).where(_failure(name, number))).scalar()
            if known == str(error):
                return
            recorded = intervals.is_confirmed(connection, job, name, number)
            if part is not Part.PENDING or (recorded is not None and known is None):
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"{name} already has its version for checkpoint {number}"
                    if recorded
                    else f"Checkpoint {number} is {_spoken(state, part)}: no failure can be added to it",
                )
            intervals.close_before(connection, job, name, number)
            connection.execute(delete(t.failures).where(_failure(name, number)))
            connection.execute(
                insert(t.failures).values(
                    dataset=name,
                    checkpoint=number,
                    error=str(error),
                    error_code=str(error.code),
                    error_params=dict(error.params),
                    mode=mode and mode.value,
                )
            )
            prune_failures(connection, name)
            finished = self._clock() if finished_at_ms is None else finished_at_ms
            refresh = None if mode is None else Refresh(mode=mode, reason=unclassified(""))
            keep(connection, number, name, None, refresh, error, finished)

    def publish(
        self,
        job: str,
        fence: Fence,
        number: int,
        at_ms: int,
        *,
        cpu_ms: int | None = None,
        held: Mapping[str, str] | None = None,
    ) -> None:
        """The job has done its part. When it is the last, the checkpoint becomes readable: one row changes.
        Saying it again is a no-op.

        Args:
            at_ms: when, by the job's clock.
            cpu_ms: what it took of the job's process.
            held: the invariants that hold at it, each with its definition.

        Raises:
            MetaError: `CHECKPOINT_INCOMPLETE`, a dataset has neither a version nor a failure;
                `CHECKPOINT_NOT_WRITABLE`, the job skipped the checkpoint.
        """
        with self._fenced(job, fence) as connection:
            state, part = _part(connection, job, number, lock=True)
            if part is Part.DONE and state in STANDING:
                return
            if part is not Part.PENDING or state != _OPEN:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE", f"Checkpoint {number} is {_spoken(state, part)}, not open"
                )
            missing = unmentioned(connection, job, number)
            if missing:
                raise MetaError(
                    "CHECKPOINT_INCOMPLETE",
                    f"Checkpoint {number} knows nothing about {', '.join(missing)}",
                    hint="Record a version or a failure for each dataset of the job first.",
                )
            connection.execute(
                update(t.checkpoint_jobs)
                .where(_P.checkpoint == number, _P.job == job)
                .values(
                    state=Part.DONE.value, finished_ms=self._clock(), cpu_ms=cpu_ms, waits_for=None, held=held
                )
            )
            settle(connection, number, at_ms)

    def abort(self, job: str, fence: Fence, number: int, *, broken: Iterable[BrokenInvariant] = ()) -> None:
        """The job gives its part of an open checkpoint up; with the last one what was recorded for it is
        forgotten. `broken` are the invariants that forbid it. Repeatable."""
        with self._fenced(job, fence) as connection:
            state, part = _part(connection, job, number, lock=True)
            if part is Part.SKIPPED:
                return
            if part is Part.DONE:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {_spoken(state, part)} and cannot be aborted",
                    hint="`taut revise` revokes a published checkpoint.",
                )
            keep_broken(connection, job, number, broken)
            skip(connection, job, number)

    def revoke(self, job: str, fence: Fence, number: int) -> None:
        """Take a published checkpoint back: readers pinned to it get an error class. Repeatable."""
        with self._fenced(job, fence) as connection:
            state, part = _part(connection, job, number, lock=True)
            if state not in (_PUBLISHED, CheckpointState.PARTIAL, CheckpointState.REVOKED):
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE", f"Checkpoint {number} is {_spoken(state, part)}, not published"
                )
            set_state(connection, number, CheckpointState.REVOKED)


def _opened(
    connection: Connection, job: str, roots: Mapping[TableName, Version], cut_at_ms: int
) -> Checkpoint | None:
    """The open checkpoint that the job made of this very cut, if there is one."""
    c = t.checkpoints.c
    query = select(t.checkpoints).where(c.job == job, c.state == _OPEN, c.cut_at_ms == cut_at_ms)
    for row in connection.execute(query.order_by(c.number.desc())):
        checkpoint = as_checkpoint(connection, row)
        # The others' roots are in it too, as they had reported them.
        if roots.items() <= checkpoint.roots.items():
            return checkpoint
    return None


def _part(connection: Connection, job: str, number: int, *, lock: bool = False) -> tuple[str, Part]:
    """The state of a checkpoint, and of the job's part in it."""
    row = checkpoint_row(connection, number, lock=lock)
    query = select(_P.state).where(_P.checkpoint == number, _P.job == job)
    part = connection.execute(query).scalar()
    if part is None:
        raise MetaError(
            "CHECKPOINT_OF_ANOTHER_JOB",
            f"Checkpoint {number} belongs to job {row.job}, not to {job}",
        )
    return row.state, Part(part)


def _spoken(state: str, part: Part) -> str:
    return f"skipped by the job ({state})" if part is Part.SKIPPED and state != "aborted" else state


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
