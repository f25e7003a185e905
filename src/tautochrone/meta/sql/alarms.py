"""`store.alarms` in SQL. Writing transactions run one after the other, so what an evaluation has read is
still so when it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository
from tautochrone.meta.queries.alarm_rules import Facts, OpenCheckpoint, conditions_of
from tautochrone.meta.queries.checkpoints import job_statuses
from tautochrone.meta.queries.dataset_statuses import statuses_of
from tautochrone.meta.queries.run_reports import as_json, notified_from_json
from tautochrone.meta.queries.topology import read_topology
from tautochrone.meta.sql.deliveries import deliverable_since_ms, sink_statuses
from tautochrone.meta.sql.transactions import needing_attention
from tautochrone.model.alarms import Alarm, AlarmLevel, AlarmRule, Condition, DueNotification, Notified
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.reason import Reason
from tautochrone.model.sink import SinkStatus

__all__ = ["SqlAlarms"]

_A, _C, _J = t.alarms.c, t.checkpoints.c, t.jobs.c
_MAX_TRANSACTIONS = 1_000
_KEPT_MS = 90 * 24 * 3_600_000
"""So long alarms that are over can be looked at."""
_MEDIAN_OF = 50
"""So many published checkpoints say how long one usually takes."""


class SqlAlarms(Repository):
    """`protocols.alarms.Alarms` in SQL."""

    def current(self) -> tuple[Alarm, ...]:
        with self._read() as connection:
            now = self._clock()
            return _alarms(_conditions(connection, now), _open_alarms(connection), now)

    def evaluate(self) -> tuple[Alarm, ...]:
        # Mostly nothing is new, and writers would wait for each other.
        with self._read() as connection:
            now = self._clock()
            conditions, known = _conditions(connection, now), _open_alarms(connection)
            if not _is_stale(conditions, known):
                return _alarms(conditions, known, now)
        with self._write() as connection:
            now = self._clock()
            conditions, known = _conditions(connection, now), _open_alarms(connection)
            for key, condition in conditions.items():
                if key not in known and not condition.follows:
                    _fire(connection, condition, now)
            over = [row.id for key, row in known.items() if key not in conditions]
            connection.execute(update(t.alarms).where(_A.id.in_(over)).values(resolved_at_ms=now))
            connection.execute(delete(t.alarms).where(_A.resolved_at_ms < now - _KEPT_MS))
            return _alarms(conditions, _open_alarms(connection), now)

    def resolved(self, limit: int = 50) -> tuple[Alarm, ...]:
        query = select(t.alarms).where(_A.resolved_at_ms.is_not(None))
        with self._read() as connection:
            rows = connection.execute(query.order_by(_A.resolved_at_ms.desc(), _A.id.desc()).limit(limit))
            return tuple(map(_alarm, rows))

    def changed_after(self, at_ms: int) -> tuple[Alarm, ...]:
        # As `Alarm.changed_at_ms`: by the clock of another machine an alarm may be over before it fired.
        changed_at_ms = func.coalesce(_A.resolved_at_ms, _A.fired_at_ms)
        query = select(t.alarms).where(changed_at_ms > at_ms)
        with self._read() as connection:
            alarms = map(_alarm, connection.execute(query.order_by(_A.id)))
            return tuple(sorted(alarms, key=lambda alarm: alarm.changed_at_ms))

    def acknowledge(self, alarm: int, by: str) -> Alarm:
        with self._write() as connection:
            row = connection.execute(select(t.alarms).where(_A.id == alarm)).first()
            if row is None or row.resolved_at_ms is not None:
                raise MetaError(
                    "ALARM_NOT_FOUND",
                    f"Alarm {alarm} is over already" if row is not None else f"There is no alarm {alarm}",
                    hint="`taut alarms` lists those that are open",
                )
            if row.acknowledged_by is None:
                values = {"acknowledged_by": by, "acknowledged_at_ms": self._clock()}
                connection.execute(update(t.alarms).where(_A.id == alarm).values(values))
            return _alarm(connection.execute(select(t.alarms).where(_A.id == alarm)).one())

    def claim_notifications(self, target: str, lease_ms: int, limit: int = 20) -> tuple[DueNotification, ...]:
        with self._read() as connection:
            if not _due(connection, target, self._clock(), limit):
                return ()
        with self._write() as connection:
            now = self._clock()
            due = _due(connection, target, now, limit)
            for notification in due:
                sent = notification.alarm.notified.get(target, Notified())
                _set_notified(
                    connection, notification.alarm, target, replace(sent, next_at_ms=now + lease_ms)
                )
            return tuple(due)

    def record_notified(
        self,
        alarm: int,
        target: str,
        message: str,
        error: str | None = None,
        *,
        attempts: int = 0,
        retry_ms: int = 0,
    ) -> None:
        with self._write() as connection:
            row = connection.execute(select(t.alarms).where(_A.id == alarm)).first()
            if row is None:
                return
            now, known = self._clock(), _alarm(row)
            sent = known.notified.get(target, Notified())
            if error is None:
                sent = Notified(sent=message, sent_at_ms=now)
            else:
                sent = replace(sent, attempts=attempts, next_at_ms=now + retry_ms, error=error)
            _set_notified(connection, known, target, sent)


def _conditions(connection: Connection, now: int) -> dict[tuple[str, str], Condition]:
    topology = read_topology(connection)
    facts = Facts(
        now_ms=now,
        jobs={job.name: job for job in job_statuses(connection, topology, now)},
        datasets=statuses_of(connection, now),
        checkpoints=_open_checkpoints(connection),
        sinks=_with_deliverable(connection, sink_statuses(connection)),
        transactions=needing_attention(connection, _MAX_TRANSACTIONS),
    )
    return {condition.key: condition for condition in conditions_of(facts)}


def _with_deliverable(connection: Connection, sinks: Sequence[SinkStatus]) -> list[SinkStatus]:
    """Sinks that are behind since they could get a checkpoint: a table that fails is an alarm of its own."""
    since = deliverable_since_ms(connection, [sink for sink in sinks if sink.behind_since_ms is not None])
    return [replace(sink, behind_since_ms=since.get(sink.name)) for sink in sinks]


def _open_checkpoints(connection: Connection) -> list[OpenCheckpoint]:
    rows = connection.execute(select(t.checkpoints).where(_C.state == CheckpointState.OPEN.value)).all()
    usual = {job: _usual_ms(connection, job) for job in {row.job for row in rows}}
    return [
        OpenCheckpoint(
            number=row.number,
            job=row.job,
            cut_at_ms=row.cut_at_ms,
            usual_ms=usual[row.job],
        )
        for row in rows
    ]


def _usual_ms(connection: Connection, job: str) -> int | None:
    published = (_C.job == job) & _C.published_at_ms.is_not(None)
    newest = select(_C.cut_at_ms, _C.published_at_ms).where(published).order_by(_C.number.desc())
    rows = connection.execute(newest.limit(_MEDIAN_OF)).all()
    return round(median(row.published_at_ms - row.cut_at_ms for row in rows)) if rows else None


def _open_alarms(connection: Connection) -> dict[tuple[str, str], Row[Any]]:
    rows = connection.execute(select(t.alarms).where(_A.resolved_at_ms.is_(None)))
    return {(row.rule, row.subject): row for row in rows}


def _is_stale(
    conditions: Mapping[tuple[str, str], Condition], known: Mapping[tuple[str, str], Row[Any]]
) -> bool:
    fires = any(key not in known and not condition.follows for key, condition in conditions.items())
    return fires or bool(known.keys() - conditions.keys())


def _alarms(
    conditions: Mapping[tuple[str, str], Condition], known: Mapping[tuple[str, str], Row[Any]], now: int
) -> tuple[Alarm, ...]:
    """The alarms that are so, each with its evidence of now."""
    alarms = []
    for key, condition in conditions.items():
        if key in known:
            alarm = _alarm(known[key])
            alarms.append(
                replace(alarm, level=condition.level, reason=condition.reason, command=condition.command)
            )
        elif not condition.follows:
            alarms.append(_unseen(condition, now))
    return tuple(alarms)


def _unseen(condition: Condition, now: int) -> Alarm:
    return Alarm(
        id=None,
        rule=condition.rule,
        subject=condition.subject,
        job=condition.job,
        level=condition.level,
        since_ms=now if condition.since_ms is None else condition.since_ms,
        reason=condition.reason,
        command=condition.command,
    )


def _fire(connection: Connection, condition: Condition, now: int) -> None:
    connection.execute(
        insert(t.alarms).values(
            rule=condition.rule.value,
            subject=condition.subject,
            job=condition.job,
            level=condition.level.value,
            since_ms=now if condition.since_ms is None else condition.since_ms,
            reason=condition.reason.to_json(),
            command=condition.command,
            fired_at_ms=now,
            notified={},
        )
    )


def _due(connection: Connection, target: str, now: int, limit: int) -> list[DueNotification]:
    """What a target was not sent yet and is to be sent: that an alarm fired, or is over if it was sent the
    other. The oldest first."""
    # Alarms that are over and whose messages are sent need no look.
    recently = or_(_A.resolved_at_ms.is_(None), _A.resolved_at_ms > now - _FORGET_MS)
    due = []
    for row in connection.execute(select(t.alarms).where(recently).order_by(_A.id)):
        alarm = _alarm(row)
        sent = alarm.notified.get(target, Notified())
        message = "fired" if alarm.resolved_at_ms is None else "resolved"
        if sent.sent == message or (message == "resolved" and sent.sent is None) or sent.next_at_ms > now:
            continue
        due.append(DueNotification(alarm=alarm, message=message))
    return due[:limit]


_FORGET_MS = 7 * 24 * 3_600_000
"""A target that takes no message for so long is no longer sent that an alarm is over."""


def _set_notified(connection: Connection, alarm: Alarm, target: str, sent: Notified) -> None:
    notified = {**alarm.notified, target: sent}
    values = {name: as_json(each) for name, each in notified.items()}
    connection.execute(update(t.alarms).where(_A.id == alarm.id).values(notified=values))


def _alarm(row: Row[Any]) -> Alarm:
    return Alarm(
        id=row.id,
        rule=AlarmRule(row.rule),
        subject=row.subject,
        job=row.job,
        level=AlarmLevel(row.level),
        since_ms=row.since_ms,
        reason=Reason.from_json(row.reason),
        command=row.command,
        fired_at_ms=row.fired_at_ms,
        acknowledged_by=row.acknowledged_by,
        acknowledged_at_ms=row.acknowledged_at_ms,
        resolved_at_ms=row.resolved_at_ms,
        notified=notified_from_json(row.notified),
    )
