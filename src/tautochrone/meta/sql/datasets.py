"""`store.datasets` and `store.history` in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, null, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS, Repository, parse
from tautochrone.meta.protocols.datasets import (
    CheckpointLine,
    DatasetEntry,
    DatasetStatus,
    Delay,
    EdgeDelay,
    Lineage,
    RefreshTotals,
)
from tautochrone.meta.queries import dataset_changes
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.dataset_statuses import statuses_of
from tautochrone.meta.queries.refresh_records import (
    KEPT_PER_DATASET,
    as_record,
    expectations_json,
    merged_skipped_files,
    skipped_files_of,
)
from tautochrone.meta.queries.topology import direct_inputs
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
from tautochrone.model.names import CheckpointNumber, Fence, TableName, is_clock
from tautochrone.model.source import SkippedFiles, SkipReason

__all__ = ["SqlDatasets", "SqlHistory"]

_C, _D, _F, _P, _R, _V = (
    table.c for table in (t.checkpoints, t.datasets, t.failures, t.checkpoint_jobs, t.refreshes, t.versions)
)
_DETAILS = t.dataset_details.c
_DAY_MS = 24 * 3_600_000
_SUMMED = (_R.duration_ms, _R.cpu_ms, _R.rows_inserted, _R.rows_deleted)
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

    def retired_table_ids(self) -> dict[TableName, str | None]:
        query = select(_D.name, _D.table_id).where(_D.retired.is_(True), _D.kind.in_(VERSIONED_KINDS))
        with self._read() as connection:
            return {parse(row.name): row.table_id for row in connection.execute(query.order_by(_D.name))}

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

    def columns(self) -> dict[TableName, tuple[LakeColumn, ...]]:
        query = (
            select(_DETAILS.dataset, _DETAILS.schema)
            .join(t.datasets, (_D.name == _DETAILS.dataset) & _D.retired.is_(False))
            .order_by(_D.name)
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        return {parse(row.dataset): tuple(LakeColumn(*column) for column in row.schema) for row in rows}

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

    def refreshed_between(self, above: int, below: int) -> dict[TableName, CheckpointNumber]:
        query = (
            select(_R.dataset, func.max(_R.checkpoint).label("number"))
            .where(_R.checkpoint > above, _R.checkpoint < below, _R.version.is_not(None))
            .group_by(_R.dataset)
        )
        with self._read() as connection:
            return {parse(row.dataset): CheckpointNumber(row.number) for row in connection.execute(query)}

    def recent_refreshes(self, limit: int = 50) -> tuple[RefreshRecord, ...]:
        query = select(t.refreshes).order_by(_R.id.desc()).limit(limit)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def newest_refreshes(self) -> tuple[RefreshRecord, ...]:
        newest = select(func.max(_R.id)).where(_R.dataset == _D.name).correlate(t.datasets).scalar_subquery()
        ids = select(newest.label("id")).where(_D.retired.is_(False)).subquery()
        query = select(t.refreshes).join(ids, _R.id == ids.c.id).order_by(_R.dataset)
        with self._read() as connection:
            return tuple(map(as_record, connection.execute(query)))

    def totals(self, since_ms: int, *, by_day: bool = False) -> tuple[RefreshTotals, ...]:
        is_failed = _R.error.is_not(None)
        day = (_R.finished_at_ms // _DAY_MS if by_day else null()).label("day")
        query = (
            select(
                _R.dataset,
                day,
                _R.mode,
                is_failed.label("failed"),
                func.count().label("refreshes"),
                func.count(_R.cpu_ms).label("measured"),
                *(func.sum(column).label(column.name) for column in _SUMMED),
                func.min(_R.finished_at_ms).label("since_ms"),
            )
            .join(t.datasets, (_D.name == _R.dataset) & _D.retired.is_(False))
            .where(_R.finished_at_ms >= since_ms)
            .group_by(_R.dataset, *([day] if by_day else []), _R.mode, is_failed)
            .order_by(_R.dataset, *([day] if by_day else []))
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        totals = []
        for name, of_dataset in groupby(rows, key=lambda row: row.dataset):
            days = [list(of_day) for _, of_day in groupby(of_dataset, key=lambda row: row.day)]
            is_full = sum(row.refreshes for row in chain(*days)) >= KEPT_PER_DATASET
            # What left the history was older than all that is in it.
            totals += [_totals(parse(name), day, is_full and day is days[0]) for day in days]
        return tuple(totals)

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


def _totals(dataset: TableName, rows: Sequence[Row[Any]], is_cut: bool) -> RefreshTotals:
    refreshes: dict[RefreshMode, int] = {}
    for row in rows:
        if not row.failed:
            mode = RefreshMode(row.mode)
            refreshes[mode] = refreshes.get(mode, 0) + row.refreshes
    cpu_ms = [row.cpu_ms for row in rows if row.cpu_ms is not None]
    return RefreshTotals(
        dataset=dataset,
        refreshes=refreshes,
        failed=sum(row.refreshes for row in rows if row.failed),
        # A database may sum integers to decimals.
        duration_ms=int(sum(row.duration_ms for row in rows)),
        cpu_ms=int(sum(cpu_ms)) if cpu_ms else None,
        rows_inserted=int(sum(row.rows_inserted for row in rows)),
        rows_deleted=int(sum(row.rows_deleted for row in rows)),
        since_ms=min(row.since_ms for row in rows),
        is_cut=is_cut,
        measured=sum(row.measured for row in rows),
        day=None if rows[0].day is None else _date(rows[0].day * _DAY_MS),
    )


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def _counts_by_checkpoint(rows: Iterable[Row[Any]]) -> dict[Any, Any]:
    return dict(map(tuple, rows))
