"""`store.checkpoints`, `store.roots` and `store.invariants` in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES, Repository, parse, require_incarnation
from tautochrone.meta.protocols.checkpoints import (
    KEPT_UNREADABLE,
    PATIENCE_MS,
    BusyJob,
    DonePart,
    InvariantCheck,
    NewCheckpoint,
    ReportTime,
    UnexpiredCheckpoint,
)
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.checkpoints import (
    as_checkpoint,
    as_versions,
    assign_parts,
    busy_jobs_with,
    checkpoint_not_found_error,
    checkpoint_row,
    close_if_finished,
    is_alive,
    next_checkpoint,
    pending,
    row_cut,
    set_state,
    skip,
    skip_before,
    skip_stale_parts,
    stored_failure,
    unrecorded_datasets,
)
from tautochrone.meta.queries.invariant_checks import record_broken
from tautochrone.meta.queries.refresh_records import prune_failures, record_refresh
from tautochrone.meta.queries.source_observations import aligned_cut, observations_of_cut, record_observations
from tautochrone.meta.queries.topology import EXTERNAL, Topology, read_topology, reported_roots
from tautochrone.meta.queries.version_intervals import drop_unneeded, is_needed
from tautochrone.meta.sql.revisions import require_no_pending_revision
from tautochrone.model.checkpoint import (
    Alignment,
    BrokenInvariant,
    Checkpoint,
    CheckpointState,
    InvariantEntry,
    Refresh,
    RefreshMode,
    SourceTime,
)
from tautochrone.model.jobs import JobProgress, Part
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason, unclassified

__all__ = ["SqlCheckpoints", "SqlInvariants", "SqlRoots"]


_R = t.reports.c
_LAST_DONE = (
    select(t.checkpoints)
    .join(t.checkpoint_jobs, t.checkpoint_jobs.c.checkpoint == t.checkpoints.c.number)
    .where(
        t.checkpoint_jobs.c.job == bindparam("job"),
        t.checkpoint_jobs.c.state == Part.DONE.value,
        t.checkpoints.c.state.in_(VISIBLE_STATES),
    )
    .order_by(t.checkpoints.c.number.desc())
    .limit(1)
)


class SqlRoots(Repository):
    """`protocols.checkpoints.Roots` in SQL."""

    def report(self, job: str, fence: Fence, versions: Mapping[TableName, Version]) -> None:
        with self._fenced(job, fence) as connection:
            now = self._clock()
            for table, version in versions.items():
                key = (t.reports.c.job == job) & (t.reports.c.table_name == str(table))
                values = {"version": version, "at_ms": now}
                if not connection.execute(update(t.reports).where(key).values(values)).rowcount:
                    values |= {"job": job, "table_name": str(table)}
                    connection.execute(insert(t.reports).values(values))

    def reported(self, job: str) -> dict[TableName, Version]:
        with self._read() as connection:
            rows = connection.execute(select(t.reports).where(t.reports.c.job == job))
            return {parse(row.table_name): Version(row.version) for row in rows}

    def report_times(self) -> tuple[ReportTime, ...]:
        query = select(t.reports).order_by(t.reports.c.table_name)
        with self._read() as connection:
            return tuple(
                ReportTime(table=parse(row.table_name), job=row.job, at_ms=row.at_ms)
                for row in connection.execute(query)
            )

    def observe_external_table(
        self, job: str, fence: Fence, table: TableName, before: Version | None, now: Version
    ) -> Version:
        with self._fenced(job, fence) as connection:
            r = t.reports.c
            key = (r.job == EXTERNAL) & (r.table_name == str(table))
            known = connection.execute(select(r.version).where(key).with_for_update()).scalar()
            if known is None:
                values = {"job": EXTERNAL, "table_name": str(table), "version": now, "at_ms": self._clock()}
                connection.execute(insert(t.reports).values(values))
            elif known == before:
                connection.execute(update(t.reports).where(key).values(version=now, at_ms=self._clock()))
            else:
                return Version(known)
            return now

    def external_versions(self) -> dict[TableName, Version]:
        with self._read() as connection:
            rows = connection.execute(select(t.reports).where(t.reports.c.job == EXTERNAL))
            return {TableName.parse(row.table_name): Version(row.version) for row in rows}

    def tables_of_other_jobs(self, job: str) -> dict[TableName, str]:
        with self._read() as connection:
            owner = read_topology(connection).owner
            return {TableName.parse(name): owner_job for name, owner_job in owner.items() if owner_job != job}

    def shared_clocks(self, job: str) -> frozenset[TableName]:
        with self._read() as connection:
            topology = read_topology(connection)
            return frozenset(map(TableName.parse, topology.clocks(topology.jobs_sharing_with(job))))

    def report_source_times(
        self, job: str, fence: Fence, times: Mapping[TableName, tuple[SourceTime, ...]]
    ) -> None:
        with self._fenced(job, fence, durable=False) as connection:
            times_by_table = {
                str(table): [_stored(source_time) for source_time in source_times]
                for table, source_times in times.items()
            }
            for row in connection.execute(select(_R.table_name, _R.times).where(_R.job == job)).all():
                if row.times != times_by_table.get(row.table_name):
                    is_report = (_R.job == job) & (_R.table_name == row.table_name)
                    values = {"times": times_by_table.get(row.table_name)}
                    connection.execute(update(t.reports).where(is_report).values(values))

    def aligned_cut(self, job: str, roots: Mapping[TableName, Version], max_skew_ms: int) -> Alignment:
        with self._read() as connection:
            topology = read_topology(connection)
            own = {str(table): version for table, version in roots.items()}
            cut = reported_roots(connection, job, topology) | own
            return aligned_cut(connection, topology.jobs_sharing_with(job), cut, max_skew_ms)


def _stored(source_time: SourceTime) -> list[str | int]:
    values: list[str | int] = [source_time.version, source_time.at_ms]
    return values if source_time.complete_until_ms is None else [*values, source_time.complete_until_ms]


_C, _I, _P = t.checkpoints.c, t.invariants.c, t.checkpoint_jobs.c


class SqlInvariants(Repository):
    """`protocols.checkpoints.Invariants` in SQL."""

    def registered(self, job: str | None = None) -> tuple[InvariantEntry, ...]:
        query = select(t.invariants).order_by(_I.name)
        if job is not None:
            query = query.where(_I.job == job)
        with self._read() as connection:
            return tuple(
                InvariantEntry(
                    name=row.name,
                    location=row.location,
                    definition=row.definition,
                    tables=frozenset(map(parse, row.tables)),
                )
                for row in connection.execute(query)
            )

    def last_check(self, job: str) -> InvariantCheck | None:
        query = (
            select(_P.checkpoint, _P.passed_invariants)
            .join(t.checkpoints, _C.number == _P.checkpoint)
            .where(
                _P.job == job,
                _P.state == Part.DONE.value,
                _P.passed_invariants.is_not(None),
                _C.state.in_(VISIBLE_STATES),
            )
        )
        with self._read() as connection:
            row = connection.execute(query.order_by(_P.checkpoint.desc()).limit(1)).first()
            if row is None:
                return None
            return InvariantCheck(
                checkpoint=CheckpointNumber(row.checkpoint), definitions=row.passed_invariants
            )


_J, _PINS = t.jobs.c, t.pins.c
_READABLE = (
    CheckpointState.PUBLISHED.value,
    CheckpointState.PARTIAL.value,
    CheckpointState.REVOKED.value,
)
_UNREADABLE = (CheckpointState.EXPIRED.value, CheckpointState.ABORTED.value)
_OPEN, _PUBLISHED = CheckpointState.OPEN.value, CheckpointState.PUBLISHED.value


class SqlCheckpoints(Repository):
    """`protocols.checkpoints.Checkpoints` in SQL."""

    def open(self, job: str, fence: Fence, new: NewCheckpoint) -> Checkpoint:
        with self._fenced(job, fence) as connection:
            # This row lock serializes the opening of checkpoints.
            last = connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one()
            if new.store is not None:
                require_incarnation(connection, job, new.store)
            if last < new.after:
                raise MetaError(
                    "META_STORE_REPLACED",
                    f"Job {job} knows checkpoint {new.after}, and the store gave numbers up to {last} only: "
                    "an older copy of it was put back while the job ran",
                    hint="Start the job again: it compares the store with the lake before it writes.",
                )
            unfinished = pending(connection, job)
            if unfinished:
                opened = _opened_checkpoint(connection, job, new)
                if opened is not None and opened.number >= new.at_least:
                    return opened
                raise MetaError(
                    "CHECKPOINT_ALREADY_OPEN",
                    f"Checkpoint {unfinished[0]} of job {job} is still open",
                    hint="Finish or abort it first: a job has one target at a time.",
                )
            topology, now = read_topology(connection), self._clock()
            require_no_pending_revision(connection, topology.jobs_sharing_with(job))
            for busy_job in busy_jobs_with(connection, job, topology, now, new.patience_ms):
                raise MetaError(
                    "CHECKPOINT_HELD_BACK",
                    f"Job {busy_job.job} is at work on checkpoint {busy_job.checkpoint}; "
                    f"job {job} waits for it",
                    retryable=True,
                )
            number = max(last + 1, new.at_least)
            connection.execute(update(t.stores).values(last_number=number))
            return _open(connection, job, number, new, topology, now)

    def next_for(self, job: str) -> Checkpoint | None:
        with self._read() as connection:
            number = next_checkpoint(connection, job)
            return None if number is None else as_checkpoint(connection, checkpoint_row(connection, number))

    def begin_next(self, job: str, fence: Fence) -> Checkpoint | None:
        with self._fenced(job, fence, durable=False) as connection:
            number = next_checkpoint(connection, job)
            if number is None:
                return None
            skip_before(connection, job, number)
            connection.execute(
                update(t.checkpoint_jobs)
                .where(_P.checkpoint == number, _P.job == job, _P.started_ms.is_(None))
                .values(started_ms=self._clock())
            )
            return as_checkpoint(connection, checkpoint_row(connection, number))

    def busy_jobs(self, job: str, patience_ms: int = PATIENCE_MS) -> tuple[BusyJob, ...]:
        with self._read() as connection:
            return tuple(
                busy_jobs_with(connection, job, read_topology(connection), self._clock(), patience_ms)
            )

    def record_wait(self, job: str, fence: Fence, number: int, waits_for: str | None) -> None:
        with self._fenced(job, fence, durable=False) as connection:
            connection.execute(
                update(t.checkpoint_jobs)
                .where(_P.checkpoint == number, _P.job == job)
                .values(waits_for=waits_for)
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
        name = str(dataset)
        with self._fenced(job, fence, durable=False) as connection:
            so_far = _recorded_so_far(connection, job, name, number)
            state, part = so_far.state, so_far.part
            if so_far.confirmed_version == version:
                return
            if part is Part.PENDING:
                intervals.record(connection, job, name, version, number)
            elif part is Part.DONE and state in VISIBLE_STATES and so_far.is_failed:
                intervals.repair(connection, job, name, version, number)
            else:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {_state_text(state, part)} and {name} did not fail at it: "
                    "its version cannot change any more",
                )
            if so_far.is_failed:
                connection.execute(delete(t.failures).where(_failure(name, number)))
            finished = self._clock() if finished_at_ms is None else finished_at_ms
            record_refresh(connection, number, name, version, refresh, None, finished)

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
        name = str(dataset)
        with self._fenced(job, fence, durable=False) as connection:
            state, part = _part(connection, job, number)
            _require_dataset(connection, job, name)
            known = connection.execute(select(t.failures.c.error).where(_failure(name, number))).scalar()
            if known == str(error):
                return
            recorded_version = intervals.confirmed_version(connection, job, name, number)
            if part is not Part.PENDING or (recorded_version is not None and known is None):
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"{name} already has its version for checkpoint {number}"
                    if recorded_version
                    else f"Checkpoint {number} is {_state_text(state, part)}: no failure can be added to it",
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
            record_refresh(connection, number, name, None, refresh, error, finished)

    def publish(
        self,
        job: str,
        fence: Fence,
        number: int,
        at_ms: int,
        *,
        cpu_ms: int | None = None,
        passed_invariants: Mapping[str, str] | None = None,
    ) -> CheckpointState:
        with self._fenced(job, fence) as connection:
            state, part = _part(connection, job, number, lock=True)
            if part is Part.DONE and state in VISIBLE_STATES:
                return CheckpointState(state)
            if part is not Part.PENDING or state != _OPEN:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE", f"Checkpoint {number} is {_state_text(state, part)}, not open"
                )
            missing = unrecorded_datasets(connection, job, number)
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
                    state=Part.DONE.value,
                    finished_ms=self._clock(),
                    cpu_ms=cpu_ms,
                    waits_for=None,
                    passed_invariants=passed_invariants,
                )
            )
            return close_if_finished(connection, number, at_ms)

    def abort(self, job: str, fence: Fence, number: int, *, broken: Iterable[BrokenInvariant] = ()) -> None:
        with self._fenced(job, fence) as connection:
            state, part = _part(connection, job, number, lock=True)
            if part is Part.SKIPPED:
                return
            if part is Part.DONE:
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {_state_text(state, part)} and cannot be aborted",
                    hint="`taut revise` revokes a published checkpoint.",
                )
            record_broken(connection, job, number, broken)
            skip(connection, job, number)

    def revoke(self, job: str, fence: Fence, number: int) -> None:
        with self._fenced(job, fence) as connection:
            state, part = _part(connection, job, number, lock=True)
            if state not in (_PUBLISHED, CheckpointState.PARTIAL, CheckpointState.REVOKED):
                raise MetaError(
                    "CHECKPOINT_NOT_WRITABLE",
                    f"Checkpoint {number} is {_state_text(state, part)}, not published",
                )
            set_state(connection, number, CheckpointState.REVOKED)

    def expire(self, number: int) -> None:
        with self._write() as connection:
            row = checkpoint_row(connection, number, lock=True)
            if row.state == CheckpointState.EXPIRED:
                return
            if row.state == CheckpointState.OPEN:
                raise MetaError("CHECKPOINT_NEEDED", f"Checkpoint {number} is still being built")
            if row.state == CheckpointState.ABORTED:
                return
            now = self._clock()
            connection.execute(delete(t.pins).where(_PINS.expires_at_ms <= now))
            reader = connection.execute(
                select(_PINS.owner).where(_PINS.checkpoint == number).limit(1)
            ).scalar()
            if reader is not None:
                raise MetaError(
                    "CHECKPOINT_PINNED",
                    f"Checkpoint {number} is being read by {reader}",
                    retryable=True,
                )
            if row.state in VISIBLE_STATES and is_needed(connection, number):
                raise MetaError(
                    "CHECKPOINT_NEEDED",
                    f"Checkpoint {number} is the newest that shows one of the datasets",
                )
            set_state(connection, number, CheckpointState.EXPIRED)
            drop_unneeded(connection, number)

    def forget_expired(self, job: str, kept: int = KEPT_UNREADABLE) -> int:
        unreadable = (_C.job == job) & _C.state.in_(_UNREADABLE)
        newest = select(_C.number).where(unreadable).order_by(_C.number.desc())
        with self._write() as connection:
            last = connection.execute(newest.offset(kept).limit(1)).scalar()
            if last is None:
                return 0
            forgotten = select(_C.number).where(unreadable, _C.number <= last)
            connection.execute(delete(t.checkpoint_jobs).where(_P.checkpoint.in_(forgotten)))
            broken = t.invariants_broken.c.checkpoint
            connection.execute(delete(t.invariants_broken).where(broken.in_(forgotten)))
            return connection.execute(delete(t.checkpoints).where(unreadable, _C.number <= last)).rowcount

    def unexpired(self, job: str) -> tuple[UnexpiredCheckpoint, ...]:
        query = select(_C.number, _C.published_at_ms, _C.cut_at_ms).where(
            _C.number.in_(select(_P.checkpoint).where(_P.job == job)), _C.state.in_(_READABLE)
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(_C.number))
            return tuple(
                UnexpiredCheckpoint(CheckpointNumber(row.number), row.published_at_ms or row.cut_at_ms)
                for row in rows
            )

    def get(self, number: int) -> Checkpoint:
        with self._read() as connection:
            return as_checkpoint(connection, checkpoint_row(connection, number))

    def neighbours(self, number: int) -> tuple[CheckpointNumber | None, CheckpointNumber | None]:
        before = select(func.max(_C.number)).where(_C.number < number).scalar_subquery()
        after = select(func.min(_C.number)).where(_C.number > number).scalar_subquery()
        with self._read() as connection:
            previous, following = connection.execute(select(before, after)).one()
            return previous, following

    def readable_before(
        self, number: int, limit: int
    ) -> tuple[tuple[CheckpointNumber, CheckpointState], ...]:
        readable = _C.state.in_([CheckpointState.PUBLISHED.value, CheckpointState.PARTIAL.value])
        query = select(_C.number, _C.state).where(_C.number < number, readable)
        with self._read() as connection:
            rows = connection.execute(query.order_by(_C.number.desc()).limit(limit))
            return tuple((CheckpointNumber(row.number), CheckpointState(row.state)) for row in rows)

    def newest(self, limit: int = 20) -> tuple[Checkpoint, ...]:
        with self._read() as connection:
            query = select(t.checkpoints).order_by(_C.number.desc()).limit(limit)
            return tuple(as_checkpoint(connection, row) for row in connection.execute(query).all())

    def latest_published(self, job: str | None = None) -> Checkpoint | None:
        query = select(t.checkpoints).where(_C.state == _PUBLISHED)
        if job is not None:
            query = query.where(_C.number.in_(select(_P.checkpoint).where(_P.job == job)))
        with self._read() as connection:
            row = connection.execute(query.order_by(_C.number.desc()).limit(1)).first()
            return None if row is None else as_checkpoint(connection, row)

    def latest_done(self, job: str) -> Checkpoint | None:
        with self._read() as connection:
            row = connection.execute(_LAST_DONE, {"job": job}).first()
            return None if row is None else as_checkpoint(connection, row)

    def last_done(self, job: str) -> DonePart | None:
        revoked = (
            select(_P.checkpoint)
            .join(t.checkpoints, _P.checkpoint == _C.number)
            .where(_P.job == job, _C.state == CheckpointState.REVOKED.value)
        )
        with self._read() as connection:
            row = connection.execute(_LAST_DONE, {"job": job}).first()
            if row is None:
                return None
            cut = row_cut(connection, row)
            own: set[str] = set()
            if {*cut.writers.values()} - {job, EXTERNAL}:
                topology = read_topology(connection)
                own = topology.datasets(job) - topology.roots
            later = connection.execute(revoked.where(_C.number > row.number).limit(1)).first()
            return DonePart(
                checkpoint=as_checkpoint(connection, row, cut),
                versions=as_versions(cut.versions_for(job, own)),
                is_followed_by_revoked=later is not None,
            )

    def versions_at(self, number: int) -> dict[TableName, Version]:
        with self._read() as connection:
            row = checkpoint_row(connection, number)
            if row.state == CheckpointState.ABORTED:
                return {}
            return as_versions(row_cut(connection, row).versions)

    def failures_at(self, number: int) -> dict[TableName, Reason]:
        f = t.failures.c
        with self._read() as connection:
            rows = connection.execute(select(t.failures).where(f.checkpoint == number))
            failures = {parse(row.dataset): stored_failure(row) for row in rows}
        return {dataset: failure for dataset, failure in failures.items() if failure is not None}

    def progress(self, number: int) -> tuple[JobProgress, ...]:
        with self._read() as connection:
            checkpoint_row(connection, number)
            query = select(t.checkpoint_jobs, _J.state.label("job_state"), _J.lease_until_ms)
            query = query.join(t.jobs, _J.name == _P.job).where(_P.checkpoint == number)
            now = self._clock()
            return tuple(
                JobProgress(
                    job=row.job,
                    part=Part(row.state),
                    alive=is_alive(row.job_state, row.lease_until_ms, now),
                    started_ms=row.started_ms,
                    finished_ms=row.finished_ms,
                    cpu_ms=row.cpu_ms,
                    waits_for=row.waits_for,
                )
                for row in connection.execute(query.order_by(_P.job))
            )

    def cut_times(self, numbers: Iterable[int]) -> dict[int, int]:
        with self._read() as connection:
            query = select(_C.number, _C.cut_at_ms).where(_C.number.in_(set(numbers)))
            return {row.number: row.cut_at_ms for row in connection.execute(query)}

    def states(
        self, above: int, besides: Iterable[int] = ()
    ) -> tuple[tuple[CheckpointNumber, CheckpointState], ...]:
        query = select(_C.number, _C.state).where((_C.number > above) | _C.number.in_(list(besides)))
        with self._read() as connection:
            rows = connection.execute(query.order_by(_C.number))
            return tuple((CheckpointNumber(row.number), CheckpointState(row.state)) for row in rows)

    def highest_used_number(self) -> int:
        with self._read() as connection:
            return int(connection.execute(select(t.stores.c.last_number)).scalar_one())


def _open(
    connection: Connection, job: str, number: int, new: NewCheckpoint, topology: Topology, now: int
) -> Checkpoint:
    """Record the cut, and give each job its part."""
    observed_at_ms = {str(table): at_ms for table, at_ms in new.observations.items()}
    own = {str(table): version for table, version in new.roots.items()}
    missing = {str(table) for table in new.missing} - topology.owner.keys()
    reported = reported_roots(connection, job, topology)
    cut = {table: version for table, version in (reported | own).items() if table not in missing}
    held_back: Collection[str] = ()
    if new.align_ms is not None:
        alignment = aligned_cut(connection, topology.jobs_sharing_with(job), cut, new.align_ms)
        cut, held_back = dict(alignment.roots), alignment.held_back
    connection.execute(
        insert(t.checkpoints).values(
            number=number,
            job=job,
            state=_OPEN,
            cut_at_ms=new.cut_at_ms,
            opened_ms=now if new.observed_ms is None else new.observed_ms,
            # An older version of a root need not have all that its source held when it was observed.
            observations=observations_of_cut(
                connection,
                observed_at_ms,
                own.keys() - held_back,
                cut.keys() - held_back,
                topology,
            ),
        )
    )
    record_observations(connection, job, observed_at_ms)
    # Before the cut is recorded: the inputs are compared with those of the last checkpoint.
    jobs_with_work = assign_parts(connection, job, number, cut, topology, now)
    skip_stale_parts(connection, jobs_with_work, number, now)
    for table, version in cut.items():
        owner = topology.owner.get(table, EXTERNAL)
        intervals.record(connection, owner, table, version, number, root=True)
    for table in sorted(missing):
        # Until a job reads it again.
        intervals.close_before(connection, EXTERNAL, table, number)
        is_report = (t.reports.c.job == EXTERNAL) & (t.reports.c.table_name == table)
        connection.execute(delete(t.reports).where(is_report))
    return Checkpoint(
        number=CheckpointNumber(number),
        state=CheckpointState.OPEN,
        cut_at_ms=new.cut_at_ms,
        published_at_ms=None,
        roots=as_versions(cut),
    )


def _opened_checkpoint(connection: Connection, job: str, new: NewCheckpoint) -> Checkpoint | None:
    """The open checkpoint that the job opened with the same cut; None if there is none."""
    c = t.checkpoints.c
    query = select(t.checkpoints).where(c.job == job, c.state == _OPEN, c.cut_at_ms == new.cut_at_ms)
    for row in connection.execute(query.order_by(c.number.desc())):
        checkpoint = as_checkpoint(connection, row)
        # The checkpoint also has the reported roots of other jobs.
        if new.roots.items() <= checkpoint.roots.items():
            return checkpoint
    return None


def _part(connection: Connection, job: str, number: int, *, lock: bool = False) -> tuple[str, Part]:
    """The state of a checkpoint and of the job's part in it.

    Raises:
        MetaError: `CHECKPOINT_OF_ANOTHER_JOB`.
    """
    row = checkpoint_row(connection, number, lock=lock)
    query = select(_P.state).where(_P.checkpoint == number, _P.job == job)
    part = connection.execute(query).scalar()
    if part is None:
        raise _other_job_error(row.job, job, number)
    return row.state, Part(part)


def _other_job_error(owner: str, job: str, number: int) -> MetaError:
    return MetaError("CHECKPOINT_OF_ANOTHER_JOB", f"Checkpoint {number} belongs to job {owner}, not to {job}")


def _state_text(state: str, part: Part) -> str:
    return f"skipped by the job ({state})" if part is Part.SKIPPED and state != "aborted" else state


def _require_dataset(connection: Connection, job: str, name: str) -> None:
    d = t.datasets.c
    query = select(d.name).where(d.name == name, d.job == job, d.retired.is_(False))
    if connection.execute(query).first() is None:
        raise MetaError("DATASET_NOT_FOUND", f"{name} is not a dataset of job {job}")


def _failure(name: str, number: int) -> Any:
    return (t.failures.c.dataset == name) & (t.failures.c.checkpoint == number)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What was recorded of a dataset for a checkpoint so far.

    Attributes:
        state: of the checkpoint.
        part: of the job that writes the dataset.
        confirmed_version: the version recorded for the checkpoint.
        is_failed: whether it failed at the checkpoint.
    """

    state: str
    part: Part
    confirmed_version: str | None
    is_failed: bool


_RECORDED = select(
    _C.job,
    _C.state,
    select(_P.state)
    .where(_P.checkpoint == bindparam("number"), _P.job == bindparam("job"))
    .scalar_subquery()
    .label("part"),
    select(t.datasets.c.name)
    .where(
        t.datasets.c.name == bindparam("name"),
        t.datasets.c.job == bindparam("job"),
        t.datasets.c.retired.is_(False),
    )
    .scalar_subquery()
    .label("dataset"),
    intervals.CONFIRMED_VERSION.limit(1).scalar_subquery().label("version"),
    select(func.count())
    .where(t.failures.c.dataset == bindparam("name"), t.failures.c.checkpoint == bindparam("number"))
    .scalar_subquery()
    .label("failures"),
).where(_C.number == bindparam("number"))
"""Once per refresh of a dataset: one query instead of five."""


def _recorded_so_far(connection: Connection, job: str, name: str, number: int) -> _Recorded:
    """What was recorded of a dataset of the job for a checkpoint.

    Raises:
        CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
        MetaError: `CHECKPOINT_OF_ANOTHER_JOB`, `DATASET_NOT_FOUND`.
    """
    row = connection.execute(_RECORDED, {"job": job, "name": name, "number": number}).first()
    if row is None:
        raise checkpoint_not_found_error(number)
    if row.part is None:
        raise _other_job_error(row.job, job, number)
    if row.dataset is None:
        raise MetaError("DATASET_NOT_FOUND", f"{name} is not a dataset of job {job}")
    return _Recorded(row.state, Part(row.part), row.version, row.failures > 0)
