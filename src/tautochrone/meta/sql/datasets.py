"""`store.datasets` and `store.history` in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository, parse
from tautochrone.meta.protocols.datasets import (
    CheckpointLine,
    DatasetEntry,
    DatasetStatus,
    Delay,
    EdgeDelay,
    Lineage,
)
from tautochrone.meta.queries.dataset_status import statuses
from tautochrone.meta.queries.refresh_records import (
    as_record,
    expectations_json,
    merged_skipped_files,
    skipped_files_of,
)
from tautochrone.meta.queries.topology import direct_inputs
from tautochrone.model.checkpoint import CheckpointState, RefreshRecord
from tautochrone.model.definitions import (
    ColumnLineage,
    ColumnRef,
    DatasetDetails,
    ExpectationCount,
    LakeColumn,
)
from tautochrone.model.names import CheckpointNumber, Fence, TableName, is_clock
from tautochrone.model.source import SkippedFiles, SkipReason

__all__ = ["SqlDatasets", "SqlHistory"]


_D, _DETAILS = t.datasets.c, t.dataset_details.c


class SqlDatasets(Repository):
    """`protocols.datasets.Datasets` in SQL."""

    def entries(self, job: str | None = None) -> tuple[DatasetEntry, ...]:
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

    def statuses(self) -> tuple[DatasetStatus, ...]:
        with self._read() as connection:
            return statuses(connection)

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

    def table_ids(self, job: str) -> dict[TableName, str]:
        query = select(_D.name, _D.table_id).where(
            _D.job == job, _D.retired.is_(False), _D.table_id.is_not(None)
        )
        with self._read() as connection:
            return {TableName.parse(row.name): row.table_id for row in connection.execute(query)}

    def record_table_ids(self, job: str, fence: Fence, tables: Mapping[TableName, str]) -> None:
        with self._fenced(job, fence) as connection:
            connection.execute(update(t.datasets).where(_D.job == job).values(table_id=None))
            for name, identity in tables.items():
                is_dataset = (_D.job == job) & (_D.name == str(name))
                connection.execute(update(t.datasets).where(is_dataset).values(table_id=identity))


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


_R, _C = t.refreshes.c, t.checkpoints.c


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
