"""`store.deliveries` in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, literal, select, union_all, update

from tautochrone.errors import MetaError, SinkFencedError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository
from tautochrone.meta.queries.checkpoints import is_alive
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import (
    Delivered,
    DeliveryPolicy,
    DeliveryState,
    Intent,
    Published,
    SinkDeclaration,
    SinkFlow,
    SinkStatus,
)

__all__ = ["SqlDeliveries", "deliverable_since_ms", "sink_statuses"]

_D, _J, _C, _P = t.deliveries.c, t.jobs.c, t.checkpoints.c, t.checkpoint_jobs.c
_SINKS_AT_ONCE = 100
"""In one statement: SQLite takes 500 queries in one."""
_PUBLISHED_STATES = (CheckpointState.PUBLISHED.value, CheckpointState.PARTIAL.value)


class SqlDeliveries(Repository):
    """`protocols.deliveries.Deliveries` in SQL."""

    def claim(self, job: str, fence: Fence, declaration: SinkDeclaration, at_least: Fence) -> Fence:
        with self._fenced(job, fence) as connection:
            row = connection.execute(select(t.deliveries).where(_D.sink == declaration.name)).first()
            if row is not None and row.job != job and row.state != DeliveryState.RETIRED:
                self._require_free(connection, row, job)
            values = {
                "job": job,
                "format": declaration.format,
                "tables": [str(table) for table in declaration.tables],
                "policy": declaration.policy.value,
                "catch_up_ms": declaration.catch_up_ms,
                "fence": max(0 if row is None else row.fence, at_least) + 1,
            }
            if row is None:
                new = {
                    "sink": declaration.name,
                    "state": DeliveryState.NEW.value,
                    "failures": 0,
                    "skipped": 0,
                }
                connection.execute(insert(t.deliveries).values(values | new))
            else:
                if row.state in (DeliveryState.RETIRED, DeliveryState.NEEDS_ATTENTION):
                    values["state"] = DeliveryState.FAILING.value
                connection.execute(update(t.deliveries).where(_D.sink == row.sink).values(values))
            return Fence(values["fence"])  # type: ignore[arg-type]

    def retire_others(self, job: str, fence: Fence, kept: Iterable[str]) -> None:
        with self._fenced(job, fence) as connection:
            not_kept = (_D.job == job) & _D.sink.not_in(list(kept))
            values = {"state": DeliveryState.RETIRED.value}
            connection.execute(update(t.deliveries).where(not_kept).values(values))

    def record_intent(self, job: str, fence: Fence, intent: Intent) -> None:
        with self._fenced(job, fence) as connection:
            self._change(
                connection, job, intent.transaction.sink, intent.transaction.fence, intent=intent.as_json()
            )

    def end_intent(self, job: str, fence: Fence, sink: str, sink_fence: Fence) -> None:
        with self._fenced(job, fence) as connection:
            self._change(connection, job, sink, sink_fence, intent=None)

    def record_delivered(
        self, job: str, fence: Fence, sink: str, sink_fence: Fence, published: Published
    ) -> None:
        with self._fenced(job, fence) as connection:
            self._change(
                connection,
                job,
                sink,
                sink_fence,
                state=DeliveryState.ACTIVE.value,
                incarnation=published.transaction.incarnation,
                checkpoint=int(published.checkpoint),
                versions={str(table): version for table, version in published.versions.items()},
                delivered_at_ms=self._clock(),
                intent=None,
                failures=0,
                error=None,
                failed_at_ms=None,
            )

    def record_streamed(
        self,
        job: str,
        fence: Fence,
        sink: str,
        sink_fence: Fence,
        flows: Mapping[str, SinkFlow],
        checkpoint: CheckpointNumber | None,
        versions: Mapping[TableName, Version],
    ) -> None:
        with self._fenced(job, fence) as connection:
            row = connection.execute(select(_D.flows).where(_D.sink == sink)).first()
            before, now_ms = (row and row.flows) or {}, self._clock()
            entries = {
                name: {
                    "batch": flow.batch,
                    "rows": flow.rows,
                    "at_ms": before[name]["at_ms"]
                    if before.get(name, {}).get("batch") == flow.batch
                    else now_ms,
                }
                for name, flow in flows.items()
            }
            values: dict[str, Any] = {"flows": entries}
            if checkpoint is not None:
                values |= {
                    "incarnation": connection.execute(select(t.stores.c.incarnation)).scalar_one(),
                    "checkpoint": int(checkpoint),
                    "versions": {str(table): version for table, version in versions.items()},
                    "delivered_at_ms": now_ms,
                }
            self._change(
                connection,
                job,
                sink,
                sink_fence,
                state=DeliveryState.ACTIVE.value,
                failures=0,
                error=None,
                failed_at_ms=None,
                **values,
            )

    def record_failure(
        self,
        job: str,
        fence: Fence,
        sink: str,
        sink_fence: Fence,
        error: str,
        *,
        failures: int = 1,
        skipped: int = 0,
        attention: bool = False,
    ) -> None:
        with self._fenced(job, fence) as connection:
            state = DeliveryState.NEEDS_ATTENTION if attention else DeliveryState.FAILING
            self._change(
                connection,
                job,
                sink,
                sink_fence,
                state=state.value,
                failures=failures,
                skipped=skipped,
                error=error,
                failed_at_ms=self._clock(),
            )

    def forget(self, sink: str) -> None:
        with self._write() as connection:
            row = connection.execute(select(t.deliveries).where(_D.sink == sink)).first()
            if row is not None:
                self._require_free(connection, row, "")
                connection.execute(delete(t.deliveries).where(_D.sink == sink))

    def sinks(self) -> tuple[SinkStatus, ...]:
        with self._read() as connection:
            return sink_statuses(connection)

    def _require_free(self, connection: Connection, row: Row[Any], job: str) -> None:
        query = select(_J.name, _J.pipeline, _J.state, _J.lease_until_ms).where(_J.name.in_([row.job, job]))
        jobs = {job_row.name: job_row for job_row in connection.execute(query)}
        owner, asking = jobs.get(row.job), jobs.get(job)
        if owner is None:
            return
        is_stranger = asking is not None and asking.pipeline != owner.pipeline
        if is_stranger or is_alive(owner.state, owner.lease_until_ms, self._clock()):
            raise MetaError(
                "SINK_NAME_TAKEN",
                f"The sink {row.sink} belongs to job {row.job} of pipeline {owner.pipeline}",
                hint="Sinks of one store have different names; give this one another.",
                parameters={"sink": row.sink, "job": row.job},
                sqlstate="42710",
            )

    @staticmethod
    def _change(connection: Connection, job: str, sink: str, sink_fence: Fence, **values: Any) -> None:
        query = select(_D.job, _D.fence).where(_D.sink == sink).with_for_update()
        row = connection.execute(query).first()
        if row is None or row.job != job or row.fence != sink_fence:
            newest = "no owner" if row is None else f"job {row.job} with fence {row.fence}"
            raise SinkFencedError(
                "SINK_FENCED",
                f"Sink {sink} is delivered to by {newest}, not by job {job} with fence {sink_fence}",
                parameters={"sink": sink, "fence": str(sink_fence)},
            )
        connection.execute(update(t.deliveries).where(_D.sink == sink).values(values))


def sink_statuses(connection: Connection) -> tuple[SinkStatus, ...]:
    """All sinks, by name."""
    # Without `correlate` an inner query would read all rows of the outer table again.
    parts = select(_P.checkpoint).where(_P.job == _D.job).correlate(t.deliveries)
    of_job = _C.number.in_(parts) & _C.state.in_(_PUBLISHED_STATES)
    missing = of_job & (_C.number > func.coalesce(_D.checkpoint, 0))
    newest = select(func.max(_C.number)).where(of_job).correlate(t.deliveries).scalar_subquery()
    behind = select(func.min(_C.published_at_ms)).where(missing).correlate(t.deliveries).scalar_subquery()
    query = select(t.deliveries, newest.label("newest"), behind.label("behind_since_ms"))
    return tuple(map(_status, connection.execute(query.order_by(_D.sink))))


def deliverable_since_ms(connection: Connection, sinks: Sequence[SinkStatus]) -> dict[str, int]:
    """By sink when the oldest checkpoint was published that it lacks and can get. Sinks that lack none are
    left out.

    Readers and sinks pass over a checkpoint in which one of their tables failed.
    """
    since: dict[str, int] = {}
    for start in range(0, len(sinks), _SINKS_AT_ONCE):
        some = sinks[start : start + _SINKS_AT_ONCE]
        for row in connection.execute(union_all(*map(_oldest_deliverable, some))):
            if row.since_ms is not None:
                since[row.sink] = row.since_ms
    return since


def _oldest_deliverable(sink: SinkStatus) -> Select[str, int]:
    delivered = 0 if sink.delivered is None else sink.delivered.checkpoint
    failures = t.failures.c
    of_tables = failures.dataset.in_([str(table) for table in sink.tables])
    failed = select(failures.checkpoint).where(of_tables & (failures.checkpoint > delivered))
    missing = (
        _C.number.in_(select(_P.checkpoint).where(_P.job == sink.job))
        & _C.state.in_(_PUBLISHED_STATES)
        & (_C.number > delivered)
        & _C.number.not_in(failed)
    )
    name, since_ms = literal(sink.name).label("sink"), func.min(_C.published_at_ms).label("since_ms")
    return select(name, since_ms).where(missing)


def _status(row: Row[Any]) -> SinkStatus:
    delivered = None
    if row.checkpoint is not None:
        delivered = Delivered(
            incarnation=row.incarnation,
            checkpoint=CheckpointNumber(row.checkpoint),
            versions={TableName.parse(name): Version(text) for name, text in row.versions.items()},
            delivered_at_ms=row.delivered_at_ms,
        )
    return SinkStatus(
        name=row.sink,
        job=row.job,
        format=row.format,
        tables=tuple(TableName.parse(name) for name in row.tables),
        policy=DeliveryPolicy(row.policy),
        state=DeliveryState(row.state),
        fence=Fence(row.fence),
        catch_up_ms=row.catch_up_ms,
        delivered=delivered,
        intent=None if row.intent is None else Intent.from_json(row.intent),
        failures=row.failures,
        skipped=row.skipped,
        error=row.error,
        failed_at_ms=row.failed_at_ms,
        newest=None if row.newest is None or not row.tables else CheckpointNumber(row.newest),
        # A sink that reads no dataset lacks no checkpoint.
        behind_since_ms=row.behind_since_ms if row.tables else None,
        flows={name: SinkFlow(**flow) for name, flow in (row.flows or {}).items()},
    )
