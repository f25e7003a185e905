"""`store.datasets` and `store.history` in SQL.

The status of all datasets takes a number of queries that does not grow with the datasets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS, VISIBLE_STATES, Repository, parse
from tautochrone.meta.protocols.datasets import (
    CheckpointLine,
    DatasetEntry,
    DatasetState,
    DatasetStatus,
    Delay,
    EdgeDelay,
    Lineage,
)
from tautochrone.meta.queries import dataset_changes
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.checkpoints import liveness_of, stored_failure
from tautochrone.meta.queries.invariant_checks import held_back, visibility_limits
from tautochrone.meta.queries.read_versions import newest_readable
from tautochrone.meta.queries.refresh_records import (
    as_record,
    expectations_json,
    merged_skipped_files,
    skipped_files_of,
    stored_expectations,
)
from tautochrone.meta.queries.run_reports import report_from_json
from tautochrone.meta.queries.source_observations import observed_up_to
from tautochrone.meta.queries.topology import Topology, direct_inputs, read_topology
from tautochrone.model.checkpoint import CheckpointState, RefreshMode, RefreshRecord
from tautochrone.model.dataset_change import DatasetChange, other_change_error
from tautochrone.model.definitions import (
    ColumnLineage,
    ColumnRef,
    DatasetDetails,
    DatasetKind,
    ExpectationCount,
    LakeColumn,
)
from tautochrone.model.jobs import JOB_LEASE_MS, Liveness, Part
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version, is_clock
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import FlowFailure, RunReport
from tautochrone.model.source import SkippedFiles, SkipReason

__all__ = ["SqlDatasets", "SqlHistory", "statuses_of"]

_C, _D, _F, _P, _R, _V = (
    table.c for table in (t.checkpoints, t.datasets, t.failures, t.checkpoint_jobs, t.refreshes, t.versions)
)
_DETAILS = t.dataset_details.c
_UNKNOWN_KIND = DatasetKind.STREAMING_TABLE.value
"""Of a table that the store never knew: the kind decides nothing of a table that is dropped or renamed."""


class SqlDatasets(Repository):
    """`protocols.datasets.Datasets` in SQL."""

    def registered(self, job: str | None = None) -> tuple[DatasetEntry, ...]:
        with self._read() as connection:
            edges = direct_inputs(connection)
            query = select(t.datasets).where(t.datasets.c.retired.is_(False))
            if job is not None:
                query = query.where(t.datasets.c.job == job)
            return tuple(
                DatasetEntry(
                    parse(row.name),
                    row.kind,
                    row.definition,
                    frozenset(map(parse, edges.get(row.name, ()))),
                    row.is_root,
                )
                for row in connection.execute(query.order_by(t.datasets.c.name))
            )

    def retired(self) -> tuple[TableName, ...]:
        names = select(_D.name).where(_D.retired.is_(True), _D.kind.in_(VERSIONED_KINDS)).order_by(_D.name)
        with self._read() as connection:
            return tuple(map(parse, connection.execute(names).scalars()))

    def pending_changes(self) -> tuple[DatasetChange, ...]:
        with self._read() as connection:
            return tuple(dataset_changes.pending_changes(connection))

    def job_of(self, dataset: TableName) -> str | None:
        with self._read() as connection:
            job: str | None = connection.execute(select(_D.job).where(_D.name == str(dataset))).scalar()
            return job

    def readers(self, table: TableName, except_job: str | None = None) -> tuple[str, ...]:
        with self._read() as connection:
            return tuple(dataset_changes.readers_of(connection, str(table), except_job=except_job))

    def require_unused(self, tables: Collection[TableName], except_job: str | None = None) -> None:
        with self._read() as connection:
            names = [str(table) for table in tables]
            dataset_changes.require_unused(connection, names, self._clock(), except_job)

    def decide_changes(self, job: str, fence: Fence, changes: Iterable[DatasetChange]) -> None:
        with self._fenced(job, fence) as connection:
            # The lock keeps out new checkpoints and pins until the decision is written.
            connection.execute(select(t.stores.c.last_number).with_for_update())
            new = [change for change in changes if not _is_decided(connection, job, change)]
            for change in new:
                _register_change(connection, job, change)
            dropped = [str(change.dataset) for change in new if change.renamed_to is None]
            dataset_changes.require_unused(connection, dropped, self._clock(), None)
            for name in dropped:
                intervals.retire(connection, job, name)
                dataset_changes.hide_dataset(connection, name)

    def complete_changes(
        self, job: str, fence: Fence, datasets: Iterable[TableName], flows: Mapping[str, str]
    ) -> None:
        done = set(datasets)
        with self._fenced(job, fence) as connection:
            connection.execute(select(t.stores.c.last_number).with_for_update())
            for change in dataset_changes.pending_changes(connection):
                if change.job != job or change.dataset not in done:
                    continue
                if change.renamed_to is None:
                    dataset_changes.forget_dataset(connection, str(change.dataset))
                    continue
                new = str(change.renamed_to)
                dataset_changes.rename_dataset(connection, str(change.dataset), new, flows)
                connection.execute(update(t.datasets).where(_D.name == new).values(pending_change=None))

    def statuses(self) -> tuple[DatasetStatus, ...]:
        with self._read() as connection:
            return statuses_of(connection, self._clock())

    def lineage(self, table: TableName) -> Lineage:
        with self._read() as connection:
            up = direct_inputs(connection)
        down: dict[str, set[str]] = {}
        for dataset, inputs in up.items():
            for source in inputs:
                down.setdefault(source, set()).add(dataset)
        name = str(table)
        return Lineage(
            table=table,
            inputs=frozenset(map(parse, up.get(name, ()))),
            outputs=frozenset(map(parse, down.get(name, ()))),
            upstream=_reachable_tables(name, up),
            downstream=_reachable_tables(name, down),
        )

    def describe(self, job: str, fence: Fence, details: Iterable[DatasetDetails]) -> None:
        with self._fenced(job, fence) as connection:
            names = select(t.datasets.c.name).where(t.datasets.c.job == job)
            own = set(connection.execute(names).scalars())
            for entry in details:
                name = str(entry.dataset)
                if name not in own:
                    raise MetaError("DATASET_NOT_FOUND", f"{name} is not a dataset of job {job}")
                connection.execute(delete(t.dataset_details).where(_DETAILS.dataset == name))
                connection.execute(insert(t.dataset_details).values(dataset=name, **_as_row(entry)))

    def details(self, dataset: TableName) -> DatasetDetails | None:
        with self._read() as connection:
            row = connection.execute(
                select(t.dataset_details).where(_DETAILS.dataset == str(dataset))
            ).first()
            return None if row is None else _as_details(row)

    def details_of_job(self, job: str) -> dict[TableName, DatasetDetails]:
        names = select(t.datasets.c.name).where(t.datasets.c.job == job, t.datasets.c.retired.is_(False))
        with self._read() as connection:
            rows = connection.execute(select(t.dataset_details).where(_DETAILS.dataset.in_(names)))
            return {details.dataset: details for details in map(_as_details, rows)}

    def record_skipped_files(
        self, job: str, fence: Fence, dataset: TableName, flow: str, skipped: Iterable[SkippedFiles]
    ) -> None:
        with self._fenced(job, fence) as connection:
            is_dataset = (_D.name == str(dataset)) & (_D.job == job)
            row = connection.execute(select(_D.skipped_files).where(is_dataset)).first()
            if row is None:
                raise MetaError("DATASET_NOT_FOUND", f"{dataset} is not a dataset of job {job}")
            known: dict[str, Any] = dict(row.skipped_files or {})
            reasons = {
                str(files.reason): {"count": files.count, "paths": [*files.paths]} for files in skipped
            }
            known_missing = known.get(flow, {}).get(SkipReason.MISSING.value)
            if known_missing is not None:
                reasons[SkipReason.MISSING.value] = merged_skipped_files(
                    known_missing, reasons.get(SkipReason.MISSING.value)
                )
            known[flow] = reasons
            connection.execute(update(t.datasets).where(is_dataset).values(skipped_files=known))

    def record_expectations(
        self, job: str, fence: Fence, dataset: TableName, expectations: Iterable[ExpectationCount]
    ) -> None:
        with self._fenced(job, fence) as connection:
            own = (_D.name == str(dataset)) & (_D.job == job)
            if connection.execute(select(_D.name).where(own)).first() is None:
                raise MetaError("DATASET_NOT_FOUND", f"{dataset} is not a dataset of job {job}")
            stored = expectations_json(expectations)
            connection.execute(update(t.datasets).where(own).values(expectations=stored))

    def skipped_files(self, dataset: TableName) -> tuple[SkippedFiles, ...]:
        with self._read() as connection:
            query = select(_D.skipped_files).where(_D.name == str(dataset))
            return skipped_files_of(connection.execute(query).scalar())

    def table_id(self, dataset: TableName) -> str | None:
        with self._read() as connection:
            query = select(_D.table_id).where(_D.name == str(dataset))
            identity: str | None = connection.execute(query).scalar()
            return identity

    def table_ids(self, job: str) -> dict[TableName, str]:
        query = select(_D.name, _D.table_id).where(
            _D.job == job, _D.retired.is_(False), _D.table_id.is_not(None)
        )
        with self._read() as connection:
            return {TableName.parse(row.name): row.table_id for row in connection.execute(query)}

    def record_table_ids(self, job: str, fence: Fence, tables: Mapping[TableName, str]) -> None:
        with self._fenced(job, fence) as connection:
            # The table of a retired dataset is told from a later one of its name by its id.
            is_current = (_D.job == job) & _D.retired.is_(False)
            connection.execute(update(t.datasets).where(is_current).values(table_id=None))
            for name, identity in tables.items():
                is_dataset = (_D.job == job) & (_D.name == str(name))
                connection.execute(update(t.datasets).where(is_dataset).values(table_id=identity))


def _is_decided(connection: Connection, job: str, change: DatasetChange) -> bool:
    """Whether the decision is in the store already, because the answer to an earlier call was lost.

    Raises:
        MetaError: `DATASET_OWNED_BY_ANOTHER_JOB`; `DATASET_CHANGE_UNFINISHED`, something else is decided.
    """
    query = select(_D.job, _D.pending_change).where(_D.name == str(change.dataset))
    row = connection.execute(query).first()
    if row is not None and row.job != job:
        raise MetaError("DATASET_OWNED_BY_ANOTHER_JOB", f"{change.dataset} is a dataset of job {row.job}")
    if row is None or row.pending_change is None:
        return False
    if row.pending_change != change.as_json():
        raise other_change_error(DatasetChange.from_json(change.dataset, job, row.pending_change))
    return True


def _register_change(connection: Connection, job: str, change: DatasetChange) -> None:
    """Write a decision. The store may not know the dataset: when it is rebuilt from the lake, it learns only
    what the project defines."""
    name = str(change.dataset)
    if connection.execute(select(_D.name).where(_D.name == name)).first() is None:
        values = {"name": name, "job": job, "kind": _UNKNOWN_KIND, "definition": "", "retired": True}
        connection.execute(insert(t.datasets).values(**values))
    decided: dict[str, Any] = {"pending_change": change.as_json()}
    if change.renamed_to is None:
        decided |= {"retired": True, "table_id": None}
        connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    else:
        dataset_changes.require_free_name(connection, name, str(change.renamed_to))
    connection.execute(update(t.datasets).where(_D.name == name).values(**decided))


def _as_row(details: DatasetDetails) -> dict[str, Any]:
    lineage = details.lineage
    return {
        "definition": details.definition,
        "location": details.location,
        "definition_text": details.text,
        "schema": [[column.name, column.type, column.comment] for column in details.columns],
        "column_lineage": {
            # A list, because JSON objects in PostgreSQL lose the order of the columns.
            "values": [[column, _refs(refs)] for column, refs in lineage.values.items()],
            "rows": _refs(lineage.rows),
            "problem": lineage.problem,
        },
    }


def _as_details(row: Row[Any]) -> DatasetDetails:
    lineage: Mapping[str, Any] = row.column_lineage
    return DatasetDetails(
        dataset=parse(row.dataset),
        definition=row.definition,
        location=row.location,
        text=row.definition_text,
        columns=tuple(LakeColumn(*column) for column in row.schema),
        lineage=ColumnLineage(
            values={column: _as_refs(refs) for column, refs in lineage["values"]},
            rows=_as_refs(lineage["rows"]),
            problem=lineage["problem"],
        ),
    )


def _refs(refs: Iterable[ColumnRef]) -> list[list[str]]:
    return [[str(ref.table), ref.column] for ref in sorted(refs)]


def _as_refs(refs: Iterable[tuple[str, str]]) -> frozenset[ColumnRef]:
    return frozenset(ColumnRef(parse(table), column) for table, column in refs)


def _reachable_tables(start: str, edges: Mapping[str, Iterable[str]]) -> frozenset[TableName]:
    seen: set[str] = set()
    queue = list(edges.get(start, ()))
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(edges.get(name, ()))
    return frozenset(map(parse, seen - {start}))


class SqlHistory(Repository):
    """`protocols.datasets.History` in SQL."""

    def refreshes(self, dataset: TableName, limit: int = 50) -> tuple[RefreshRecord, ...]:
        r = t.refreshes.c
        query = select(t.refreshes).where(r.dataset == str(dataset)).order_by(r.id.desc())
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query.limit(limit)))

    def refreshes_at(self, number: int) -> tuple[RefreshRecord, ...]:
        query = select(t.refreshes).where(_R.checkpoint == number).order_by(_R.id)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def recent_refreshes(self, limit: int = 50) -> tuple[RefreshRecord, ...]:
        query = select(t.refreshes).order_by(_R.id.desc()).limit(limit)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def refreshes_after(self, last: int, limit: int) -> tuple[tuple[int, RefreshRecord], ...]:
        query = select(t.refreshes).where(_R.id > last).order_by(_R.id).limit(limit)
        with self._read() as connection:
            return tuple((row.id, as_record(row)) for row in connection.execute(query))

    def newest_refresh_id(self) -> int:
        with self._read() as connection:
            return connection.execute(select(func.max(_R.id))).scalar() or 0

    def timeline(self, limit: int = 50) -> tuple[CheckpointLine, ...]:
        newest = select(t.checkpoints).order_by(_C.number.desc()).limit(limit)
        with self._read() as connection:
            rows = connection.execute(newest).all()
            numbers = [row.number for row in rows]
            f = t.failures.c
            failed = _counts_by_checkpoint(
                connection.execute(
                    select(f.checkpoint, func.count()).where(f.checkpoint.in_(numbers)).group_by(f.checkpoint)
                )
            )
            recorded = _counts_by_checkpoint(
                connection.execute(
                    select(_R.checkpoint, func.count())
                    .where(_R.checkpoint.in_(numbers), _R.error.is_(None))
                    .group_by(_R.checkpoint)
                )
            )
        return tuple(
            CheckpointLine(
                number=CheckpointNumber(row.number),
                job=row.job,
                state=CheckpointState(row.state),
                cut_at_ms=row.cut_at_ms,
                published_at_ms=row.published_at_ms,
                recorded=recorded.get(row.number, 0),
                failed=failed.get(row.number, 0),
            )
            for row in rows
        )

    def delays(self) -> tuple[Delay, ...]:
        with self._read() as connection:
            inputs = direct_inputs(connection)
            alive = select(_D.name).where(_D.retired.is_(False))
            done = _R.version.is_not(None)
            newest = select(func.max(_R.id)).where(done, _R.dataset.in_(alive)).group_by(_R.dataset)
            rows = connection.execute(
                select(_R.dataset, _R.checkpoint, _R.duration_ms, _R.finished_at_ms, _C.cut_at_ms)
                .join(t.checkpoints, _C.number == _R.checkpoint)
                .where(_R.id.in_(newest))
                .order_by(_R.dataset)
            ).all()
            numbers = {row.checkpoint for row in rows}
            ready = {
                (row.dataset, row.checkpoint): row.finished_at_ms
                for row in connection.execute(
                    select(_R.dataset, _R.checkpoint, _R.finished_at_ms)
                    .where(_R.checkpoint.in_(numbers), done)
                    .order_by(_R.id)
                )
            }
        return tuple(
            Delay(
                dataset=parse(row.dataset),
                checkpoint=CheckpointNumber(row.checkpoint),
                end_to_end_ms=max(0, row.finished_at_ms - row.cut_at_ms),
                refresh_ms=row.duration_ms,
                edges=tuple(
                    EdgeDelay(
                        input=parse(source),
                        delay_ms=max(
                            0, row.finished_at_ms - ready.get((source, row.checkpoint), row.cut_at_ms)
                        ),
                    )
                    for source in sorted(inputs.get(row.dataset, ()))
                    if not is_clock(parse(source))
                ),
            )
            for row in rows
        )


def _counts_by_checkpoint(rows: Iterable[Row[Any]]) -> dict[Any, Any]:
    return dict(map(tuple, rows))


@dataclass(frozen=True, slots=True)
class _Cut:
    number: int
    cut_at_ms: int


@dataclass(frozen=True, slots=True)
class _Job:
    """What the status of its datasets takes from a job.

    Attributes:
        newest: its newest cut.
        done: the newest of which it did its part.
        liveness: whether it runs.
        seen_ms: its last sign of life.
        report: what its newest run said last.
    """

    newest: _Cut | None
    done: _Cut | None
    liveness: Liveness
    seen_ms: int
    report: RunReport | None

    @property
    def runs(self) -> bool:
        # Of a job of another program that renews no lease nothing else is known.
        return self.liveness in (Liveness.RUNNING, Liveness.REGISTERED)

    @property
    def usual_lag_ms(self) -> int:
        """So old are the observations of a run that keeps up, at most."""
        interval_ms = None if self.report is None else self.report.interval_ms
        return max(JOB_LEASE_MS, 3 * (interval_ms or 0))

    def flow_failure(self, dataset: str) -> tuple[str, FlowFailure] | None:
        """The flow into a dataset that fails, and how; of several the first by name."""
        flows = {} if self.report is None else self.report.flows
        failures = ((name, flow) for name, flow in sorted(flows.items()) if flow.dataset == dataset)
        return next(failures, None)


def _jobs(connection: Connection, now: int) -> dict[str, _Job]:
    newest, done = _newest_cuts(connection), _newest_cuts(connection, done=True)
    jobs = {}
    for row in connection.execute(select(t.jobs)):
        jobs[row.name] = _Job(
            newest=newest.get(row.name),
            done=done.get(row.name),
            liveness=liveness_of(row, now),
            seen_ms=row.heartbeat_ms or row.started_ms or 0,
            report=report_from_json(row.report),
        )
    return jobs


def statuses_of(connection: Connection, now: int) -> tuple[DatasetStatus, ...]:
    """Every dataset that isn't retired, by name.

    This alone decides the state of a dataset: commands, pages, metrics, HTTP interface and alarms show it.
    """
    jobs, topology = _jobs(connection, now), read_topology(connection)
    rows = connection.execute(select(t.datasets).where(_D.retired.is_(False)).order_by(_D.name)).all()
    done = {name: job.done for name, job in jobs.items() if job.done is not None}
    versions = _newest_versions(connection)
    complete_now = _complete_at(connection, done)
    errors = _newest_errors(connection)
    kept_back = _kept_from_readers(connection)
    readable = _readable_cuts(connection, rows, done, complete_now, versions, topology)
    complete: dict[str, _Cut] = {}
    for row in rows:
        key = (row.job, row.name)
        # Nearly all are complete at the newest checkpoint that their job did. Only the others need a query.
        cut = done[row.job] if key in complete_now else None
        if cut is None and key in versions:
            cut = _last_complete_checkpoint(connection, row)
        if cut is not None:
            complete[row.name] = cut
    observed = observed_up_to(connection, topology, {name: cut.number for name, cut in complete.items()})
    observed_by_readers = observed_up_to(connection, topology, {n: cut.number for n, cut in readable.items()})
    result = []
    for row in rows:
        job, cut = jobs[row.job], complete.get(row.name)
        version = versions.get((row.job, row.name))
        status = _status(row, version, cut, job, errors.get(row.name), observed.get(row.name), now)
        status = _with_failure(connection, status, job)
        if row.name in kept_back:
            error, seen_ms = kept_back[row.name]
            lag_ms = status.lag_ms
            if cut is not None:
                lag_ms = max(lag_ms or 0, now - min(seen_ms, cut.cut_at_ms))
            status = replace(status, error=status.error or error, lag_ms=lag_ms)
        seen = readable.get(row.name)
        if seen is not None:
            lag_ms = _lag_ms(seen, job, observed_by_readers.get(row.name), now)
            if row.name in kept_back:
                lag_ms = max(lag_ms, status.lag_ms or 0)
            status = replace(status, readable=CheckpointNumber(seen.number), readable_lag_ms=lag_ms)
        result.append(replace(status, state=_state(status, job)))
    return tuple(result)


def _with_failure(connection: Connection, status: DatasetStatus, job: _Job) -> DatasetStatus:
    """The status with the failure of a flow into the dataset, and with when its failure began."""
    if status.failure is not None:
        complete = 0 if status.checkpoint is None else status.checkpoint
        begun = (
            select(func.min(_C.cut_at_ms))
            .join(t.failures, _F.checkpoint == _C.number)
            .where(_F.dataset == str(status.dataset), _F.checkpoint > complete)
        )
        return replace(status, failing_since_ms=connection.execute(begun).scalar())
    failing = job.flow_failure(str(status.dataset))
    if failing is None:
        return status
    name, flow = failing
    failure = Reason.of(ReasonCode.FLOW_FAILED, flow=name, attempts=flow.attempts, text=flow.error)
    return replace(status, failure=failure, error=str(failure), failing_since_ms=flow.since_ms)


def _state(status: DatasetStatus, job: _Job) -> DatasetState:
    state = _state_while_running(status, job)
    needs_its_job = state not in (DatasetState.FAILING, DatasetState.WAITING)
    return DatasetState.NOT_RUNNING if job.liveness.is_down and needs_its_job else state


def _state_while_running(status: DatasetStatus, job: _Job) -> DatasetState:
    code = None if status.failure is None else status.failure.code
    if code is ReasonCode.WAITS_FOR_BULK:
        # The first load of a database table is not complete.
        return DatasetState.BUILDING
    if status.error is not None:
        return DatasetState.WAITING if code is ReasonCode.WAITS_FOR_INPUT else DatasetState.FAILING
    if status.checkpoint is None:
        return DatasetState.NEVER
    if job.done is None or status.checkpoint < job.done.number:
        return DatasetState.BEHIND
    if job.newest is not None and status.checkpoint < job.newest.number:
        # No dataset of the job has a version for its newest cut yet: that checkpoint is being refreshed.
        return DatasetState.BUILDING
    # After the end of a one-shot run only another run could know more.
    return DatasetState.BEHIND if job.runs and status.lag_ms else DatasetState.FRESH


def _status(
    row: Row[Any],
    version: str | None,
    complete: _Cut | None,
    job: _Job,
    error: Row[Any] | None,
    observed_ms: int | None,
    now: int,
) -> DatasetStatus:
    """A status whose state is not known yet."""
    lag_ms = None if complete is None else _lag_ms(complete, job, observed_ms, now)
    if error is not None and row.kind not in VERSIONED_KINDS:
        error = None
    if error is not None and complete is not None and error.checkpoint <= complete.number:
        error = None
    return DatasetStatus(
        dataset=parse(row.name),
        job=row.job,
        kind=row.kind,
        state=DatasetState.NEVER,
        version=None if version is None else Version(version),
        checkpoint=None if complete is None else CheckpointNumber(complete.number),
        mode=RefreshMode(row.last_mode) if row.last_mode else None,
        reason=(
            None
            if row.last_reason is None
            else Reason.stored(row.last_reason, row.last_reason_code, row.last_reason_params)
        ),
        error=None if error is None else error.error,
        failure=None if error is None else stored_failure(error),
        lag_ms=lag_ms,
        refreshed_at_ms=row.last_at_ms,
        skipped=skipped_files_of(row.skipped_files),
        expectations=stored_expectations(row.expectations),
    )


def _lag_ms(seen: _Cut, job: _Job, observed_ms: int | None, now: int) -> int:
    """For how long there may be news that the cut does not have, in milliseconds.

    Args:
        observed_ms: all that the sources held at this time is in the cut; None: not known.
    """
    if job.newest is not None and seen.number < job.newest.number:
        return max(0, now - seen.cut_at_ms if observed_ms is None else now - observed_ms)
    if job.runs:
        lag_ms = 0 if observed_ms is None else now - observed_ms
        return lag_ms if lag_ms > job.usual_lag_ms else 0
    return max(0, now - (max(seen.cut_at_ms, job.seen_ms) if observed_ms is None else observed_ms))


def _readable_cuts(
    connection: Connection,
    rows: Sequence[Row[Any]],
    done: Mapping[str, _Cut],
    complete_now: Collection[tuple[str, str]],
    versions: Collection[tuple[str, str]],
    topology: Topology,
) -> dict[str, _Cut]:
    """By table the newest checkpoint at which strong readers see it. Related tables share one query, and need
    it only where one of them is late."""
    built = {row.name: row.job for row in rows if (row.job, row.name) in versions}
    remaining = set(built)
    result: dict[str, _Cut] = {}
    while remaining:
        first = remaining.pop()
        related_tables = {first} | (topology.related({first}) & built.keys())
        remaining -= related_tables
        newest = {done[built[name]] for name in related_tables if built[name] in done}
        seen: _Cut | None = None
        if len(newest) == 1 and all((built[name], name) in complete_now for name in related_tables):
            (seen,) = newest
        else:
            number = newest_readable(connection, related_tables)
            if number is not None:
                cut = select(_C.cut_at_ms).where(_C.number == number)
                seen = _Cut(number, connection.execute(cut).scalar_one())
        if seen is not None:
            result |= dict.fromkeys(related_tables, seen)
    return result


def _kept_from_readers(connection: Connection) -> dict[str, tuple[str, int]]:
    """By table that a broken invariant hides from readers: the error, and when the cut was that they see."""
    kept_back = held_back(connection)
    if not kept_back:
        return {}
    seen = visibility_limits(connection)
    numbers = {number for number, _ in kept_back.values()} | {*seen.values()}
    query = select(_C.number, _C.cut_at_ms).where(_C.number.in_(numbers))
    cut_at_ms = {row.number: row.cut_at_ms for row in connection.execute(query)}
    result = {}
    for name, (number, error) in kept_back.items():
        result[name] = error, cut_at_ms.get(seen.get(name, number), cut_at_ms.get(number, 0))
    return result


def _newest_cuts(connection: Connection, *, done: bool = False) -> dict[str, _Cut]:
    """By job its newest visible checkpoint; with `done` the newest of which it did its part."""
    parts = (
        select(_P.job, func.max(_C.number).label("number"))
        .join(t.checkpoints, _P.checkpoint == _C.number)
        .where(_C.state.in_(VISIBLE_STATES))
    )
    if done:
        parts = parts.where(_P.state == Part.DONE.value)
    top = parts.group_by(_P.job).subquery()
    query = select(top.c.job, _C.number, _C.cut_at_ms).join(t.checkpoints, _C.number == top.c.number)
    return {row.job: _Cut(row.number, row.cut_at_ms) for row in connection.execute(query)}


def _newest_versions(connection: Connection) -> dict[tuple[str, str], str]:
    top = (
        select(_V.job, _V.table_name, func.max(_V.from_checkpoint).label("start"))
        .group_by(_V.job, _V.table_name)
        .subquery()
    )
    query = select(t.versions).join(
        top,
        (_V.job == top.c.job) & (_V.table_name == top.c.table_name) & (_V.from_checkpoint == top.c.start),
    )
    return {(row.job, row.table_name): row.version for row in connection.execute(query)}


def _complete_at(connection: Connection, done: dict[str, _Cut]) -> set[tuple[str, str]]:
    """The tables that have a version at the newest checkpoint of which their job did its part."""
    groups: dict[int, list[str]] = {}
    for job, cut in done.items():
        groups.setdefault(cut.number, []).append(job)
    result: set[tuple[str, str]] = set()
    for number, jobs in groups.items():
        query = select(_V.job, _V.table_name).where(_V.job.in_(jobs), _covers(number))
        result |= {(row.job, row.table_name) for row in connection.execute(query)}
    return result


def _last_complete_checkpoint(connection: Connection, row: Row[Any]) -> _Cut | None:
    """The newest checkpoint that shows one table."""
    query = (
        select(_C.number, _C.cut_at_ms)
        .join(t.versions, _covers(_C.number))
        .join(t.checkpoint_jobs, (_P.checkpoint == _C.number) & (_P.job == row.job))
        .where(_V.table_name == row.name, _V.job == row.job)
        .where(_P.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
        .order_by(_C.number.desc())
        .limit(1)
    )
    newest = connection.execute(query).first()
    return None if newest is None else _Cut(newest.number, newest.cut_at_ms)


def _covers(number: Any) -> Any:
    return (_V.from_checkpoint <= number) & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= number)


def _newest_errors(connection: Connection) -> dict[str, Row[Any]]:
    """By dataset the newest failure: its checkpoint and error."""
    top = select(_F.dataset, func.max(_F.checkpoint).label("number")).group_by(_F.dataset).subquery()
    query = select(t.failures).join(top, (_F.dataset == top.c.dataset) & (_F.checkpoint == top.c.number))
    return {row.dataset: row for row in connection.execute(query)}
