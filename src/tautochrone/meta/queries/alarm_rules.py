"""From what the store knows to what somebody has to look at. Pure: no database, no clock.

Pages, commands, metrics, the HTTP interface and messages all get their alarms from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.meta.protocols.datasets import DatasetState, DatasetStatus
from tautochrone.meta.protocols.jobs import REGISTERED
from tautochrone.model.alarms import AlarmLevel, AlarmLimits, AlarmRule, Condition, is_stuck
from tautochrone.model.jobs import JobStatus, Liveness
from tautochrone.model.moments import iso_timestamp
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.model.run_report import RunReport
from tautochrone.model.sink import DeliveryState, SinkStatus, TransactionState
from tautochrone.model.source import KeptLog
from tautochrone.model.transactions import CoordinatedTransaction

__all__ = ["Facts", "OpenCheckpoint", "conditions_of"]

_MB = 1024**2
_BACK_MS = 30_000
"""A run that goes on for so long, or ends in order, is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCheckpoint:
    """A checkpoint that is not published yet; `usual_ms` is the median of the published ones of its job."""

    number: int
    job: str
    cut_at_ms: int
    usual_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the store knows at one moment; `now_ms` by its clock."""

    now_ms: int
    jobs: Mapping[str, JobStatus]
    datasets: Sequence[DatasetStatus]
    checkpoints: Sequence[OpenCheckpoint]
    sinks: Sequence[SinkStatus]
    transactions: Sequence[CoordinatedTransaction]

    def limits(self, job: str) -> AlarmLimits:
        """As the job's project sets them."""
        report = self.report(job)
        return AlarmLimits() if report is None else report.limits

    def report(self, job: str) -> RunReport | None:
        return self.jobs[job].report if job in self.jobs else None

    def is_down(self, job: str) -> bool:
        return job in self.jobs and self.jobs[job].liveness.is_down


def conditions_of(facts: Facts) -> list[Condition]:
    """What is so, the critical ones first. Of one rule and subject there is one condition, the worst: two
    jobs may capture the same database."""
    rules = (_jobs, _checkpoints, _datasets, _sinks, _captures, _quarantines, _disks, _transactions)
    levels = list(AlarmLevel)
    conditions = [condition for rule in rules for condition in rule(facts)]
    conditions.sort(key=lambda each: (levels.index(each.level), each.key, each.job))
    first: dict[tuple[str, str], Condition] = {}
    for condition in conditions:
        first.setdefault(condition.key, condition)
    return list(first.values())


def _jobs(facts: Facts) -> Iterator[Condition]:
    for job in facts.jobs.values():
        end = job.end
        # A run that has just come back may end in the same way: then it is the same alarm.
        was_down = job.liveness is Liveness.RUNNING and end is not None and end.error is not None
        comes_back = was_down and facts.now_ms - (job.started_ms or 0) <= _BACK_MS
        if not (job.liveness.is_down or comes_back):
            continue
        if job.liveness is not Liveness.STOPPED and end is not None:
            since_ms = end.at_ms
            reason = Reason.of(ReasonCode.RUN_FAILED, at=_time(end.at_ms), text=end.error or "")
        else:
            since_ms = job.seen_ms or 0
            process = job.owner or "unknown"
            reason = Reason.of(ReasonCode.JOB_STOPPED, process=process, since=_time(since_ms))
        command = "start the program again" if job.pipeline == REGISTERED else job.command
        yield Condition(
            rule=AlarmRule.JOB_NOT_RUNNING,
            subject=job.name,
            job=job.name,
            level=AlarmLevel.CRITICAL,
            since_ms=since_ms,
            reason=reason,
            command=command,
            follows=comes_back,
        )


def _checkpoints(facts: Facts) -> Iterator[Condition]:
    """One for each job, about its oldest checkpoint that is stuck."""
    stuck: dict[str, list[OpenCheckpoint]] = {}
    for checkpoint in sorted(facts.checkpoints, key=lambda each: each.number):
        age_ms = facts.now_ms - checkpoint.cut_at_ms
        if is_stuck(age_ms, checkpoint.usual_ms, facts.limits(checkpoint.job).checkpoint_stuck_ms):
            stuck.setdefault(checkpoint.job, []).append(checkpoint)
    for job, checkpoints in stuck.items():
        oldest = checkpoints[0]
        yield Condition(
            rule=AlarmRule.CHECKPOINT_STUCK,
            subject=job,
            job=job,
            level=AlarmLevel.CRITICAL,
            since_ms=oldest.cut_at_ms,
            reason=Reason.of(
                ReasonCode.CHECKPOINT_TAKES_LONG,
                checkpoint=oldest.number,
                checkpoints=[checkpoint.number for checkpoint in checkpoints],
                since=_time(oldest.cut_at_ms),
                usual_s="unknown" if oldest.usual_ms is None else f"{oldest.usual_ms / 1000:.1f}",
            ),
            command="taut jobs",
            follows=facts.is_down(job),
        )


def _datasets(facts: Facts) -> Iterator[Condition]:
    for status in facts.datasets:
        job, name = status.job, status.dataset.without_catalog
        if status.state is DatasetState.FAILING:
            if status.failure is None:
                # A broken invariant keeps back all tables of its job alike.
                yield Condition(
                    rule=AlarmRule.INVARIANT_BROKEN,
                    subject=job,
                    job=job,
                    level=AlarmLevel.CRITICAL,
                    since_ms=None,
                    reason=Reason.of(ReasonCode.UNKNOWN, text=status.error or ""),
                    command="taut checkpoints",
                )
            else:
                yield Condition(
                    rule=AlarmRule.DATASET_FAILING,
                    subject=str(status.dataset),
                    job=job,
                    level=AlarmLevel.CRITICAL,
                    since_ms=status.failing_since_ms,
                    reason=status.failure,
                    command=f"taut status {name} --history",
                )
        late_ms = facts.limits(job).dataset_late_ms
        if late_ms is not None and (status.lag_ms or 0) > late_ms:
            since_ms = facts.now_ms - (status.lag_ms or 0)
            yield Condition(
                rule=AlarmRule.DATASET_LATE,
                subject=str(status.dataset),
                job=job,
                level=AlarmLevel.WARNING,
                since_ms=since_ms,
                reason=Reason.of(ReasonCode.ROWS_LATE, since=_time(since_ms)),
                command=f"taut status {name}",
                follows=facts.is_down(job),
            )


def _sinks(facts: Facts) -> Iterator[Condition]:
    for sink in facts.sinks:
        if sink.state is DeliveryState.RETIRED:
            continue
        since_ms = sink.behind_since_ms
        text = sink.error or ""
        if sink.state is DeliveryState.NEEDS_ATTENTION:
            reason = Reason.of(ReasonCode.SINK_NEEDS_ATTENTION, text=text)
            since_ms, command = sink.failed_at_ms, f"taut verify --sink {sink.name}"
        elif since_ms is not None and facts.now_ms - since_ms > facts.limits(sink.job).sink_behind_ms:
            reason = Reason.of(ReasonCode.SINK_LATE, since=_time(since_ms), failures=sink.failures, text=text)
            command = "taut sinks"
        else:
            continue
        yield Condition(
            rule=AlarmRule.SINK_BEHIND,
            subject=sink.name,
            job=sink.job,
            level=AlarmLevel.CRITICAL,
            since_ms=since_ms,
            reason=reason,
            command=command,
            follows=facts.is_down(sink.job),
        )


def _captures(facts: Facts) -> Iterator[Condition]:
    for job in facts.jobs.values():
        report = job.report
        for capture in () if report is None else report.captures.values():
            reasons = [*capture.warnings]
            level = AlarmLevel.WARNING
            for kept in capture.kept:
                if kept.is_own is not False and kept.is_lost:
                    reasons.insert(0, Reason.of(ReasonCode.LOG_LOST, reader=kept.name))
                    level = AlarmLevel.CRITICAL
                elif kept.is_own is not False and _is_near_expiry(kept, facts.now_ms):
                    reasons.append(_expiry_reason(kept))
                    level = AlarmLevel.CRITICAL
                bytes_kept = kept.kept_bytes if kept.kept_bytes is not None else kept.distance_bytes
                if bytes_kept is not None and bytes_kept > facts.limits(job.name).retained_log_bytes:
                    reasons.append(
                        Reason.of(ReasonCode.LOG_RETAINED, kept_mb=bytes_kept // _MB, reader=kept.name)
                    )
                    level = AlarmLevel.CRITICAL
            if reasons:
                yield Condition(
                    rule=AlarmRule.LOG_RETAINED,
                    subject=capture.source,
                    job=job.name,
                    level=level,
                    since_ms=None,
                    reason=joined_reasons(reasons),
                    command="taut sources",
                )


def _is_near_expiry(kept: KeptLog, now_ms: int) -> bool:
    """Whether half of the time is over for which the database keeps log, also after the end of a run."""
    if kept.expires_ms is None or kept.expires_after_ms is None:
        return False
    return now_ms > kept.expires_ms - kept.expires_after_ms // 2


def _expiry_reason(kept: KeptLog) -> Reason:
    hours = (kept.expires_after_ms or 0) / 3_600_000
    at = _time(kept.expires_ms or 0)
    return Reason.of(ReasonCode.LOG_EXPIRES, at=at, reader=kept.name, kept_h=f"{hours:g}")


def _quarantines(facts: Facts) -> Iterator[Condition]:
    for job in facts.jobs.values():
        for dataset, quarantine in ({} if job.report is None else job.report.quarantines).items():
            if facts.now_ms - quarantine.last_ms > facts.limits(job.name).quarantine_quiet_ms:
                continue
            table = TableName.parse(quarantine.table)
            yield Condition(
                rule=AlarmRule.ROWS_QUARANTINED,
                subject=dataset,
                job=job.name,
                level=AlarmLevel.WARNING,
                since_ms=quarantine.last_ms,
                reason=Reason.of(
                    ReasonCode.BAD_RECORDS_CAME,
                    records=quarantine.records,
                    table=quarantine.table,
                    at=_time(quarantine.last_ms),
                    text=quarantine.text,
                ),
                command=f'taut query "SELECT * FROM {table.without_catalog}"',
            )


def _disks(facts: Facts) -> Iterator[Condition]:
    for job in facts.jobs.values():
        disk = None if job.report is None else job.report.disk
        limits = facts.limits(job.name)
        if disk is None or disk.free_bytes >= limits.disk_free_bytes:
            continue
        if disk.free_bytes * 100 >= disk.total_bytes * limits.disk_free_percent:
            continue
        yield Condition(
            rule=AlarmRule.DISK_SPACE,
            subject=job.name,
            job=job.name,
            level=AlarmLevel.CRITICAL,
            since_ms=None,
            reason=Reason.of(
                ReasonCode.DISK_SPACE_LOW,
                free_mb=disk.free_bytes // _MB,
                total_mb=disk.total_bytes // _MB,
                path=disk.path,
            ),
            command="taut maintain",
        )


def _transactions(facts: Facts) -> Iterator[Condition]:
    for record in facts.transactions:
        decision = "commit" if record.state is TransactionState.COMMITTING else "rollback"
        yield Condition(
            rule=AlarmRule.TRANSACTION_NEEDS_ATTENTION,
            subject=record.id,
            job="",
            level=AlarmLevel.CRITICAL,
            since_ms=record.failed_at_ms or record.changed_at_ms,
            reason=Reason.of(
                ReasonCode.TRANSACTION_UNSETTLED, state=record.state.value, text=record.error or ""
            ),
            command=f"taut transactions {decision} {record.id}",
        )


def _time(at_ms: int) -> str:
    """For people: `2026-05-01T12:03:04Z`."""
    return iso_timestamp(at_ms, "seconds")
