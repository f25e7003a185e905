"""Alarms: what somebody has to look at, as the store keeps and everybody shows it.

Which there are follows from the store alone (`meta.queries.alarm_rules`). An alarm is *open* from the moment
that its condition was first seen until it is seen to be over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tautochrone.model.reason import Reason, reason_fields

__all__ = [
    "Alarm",
    "AlarmLevel",
    "AlarmLimits",
    "AlarmRule",
    "Condition",
    "DueNotification",
    "NotificationForm",
    "Notified",
    "is_stuck",
]


class AlarmRule(StrEnum):
    """All rules; `docs/alarms.md` says when each of them fires."""

    JOB_NOT_RUNNING = "job_not_running"
    CHECKPOINT_STUCK = "checkpoint_stuck"
    DATASET_FAILING = "dataset_failing"
    DATASET_LATE = "dataset_late"
    INVARIANT_BROKEN = "invariant_broken"
    SINK_BEHIND = "sink_behind"
    LOG_RETAINED = "log_retained"
    ROWS_QUARANTINED = "rows_quarantined"
    DISK_SPACE = "disk_space"
    TRANSACTION_NEEDS_ATTENTION = "transaction_needs_attention"


class NotificationForm(StrEnum):
    """What a URL gets: our own object of JSON, or what Slack and programs like it take."""

    JSON = "json"
    SLACK = "slack"


class AlarmLevel(StrEnum):
    """`CRITICAL`: something stands still, or soon will. `WARNING`: the rest goes on."""

    CRITICAL = "critical"
    WARNING = "warning"


_STUCK_TIMES = 10
"""A checkpoint is stuck when it takes so many times as long as usual."""


def is_stuck(age_ms: int, usual_ms: int | None, least_ms: int) -> bool:
    """Whether an open checkpoint is stuck; see `AlarmLimits`.

    Args:
        usual_ms: the median of published ones; None: there are none.
        least_ms: `AlarmLimits.checkpoint_stuck_ms`.

    >>> [is_stuck(400_000, usual_ms, 300_000) for usual_ms in (5_000, 50_000, None)]
    [True, False, False]
    """
    usual_ms = least_ms if usual_ms is None else usual_ms
    return age_ms > max(least_ms, _STUCK_TIMES * usual_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLimits:
    """From where on something is an alarm. None: the rule is off.

    A checkpoint is stuck when it is open for longer than `checkpoint_stuck_ms` and than ten times the median
    of published ones; the first one of a job, after ten times `checkpoint_stuck_ms`. Disk space is low when
    fewer than `disk_free_bytes` and fewer than `disk_free_percent` of it are free.
    """

    checkpoint_stuck_ms: int = 300_000
    dataset_late_ms: int | None = None
    sink_behind_ms: int = 300_000
    retained_log_bytes: int = 10 * 1024**3
    quarantine_quiet_ms: int = 3_600_000
    disk_free_bytes: int = 20 * 1024**3
    disk_free_percent: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that is the case now.

    Attributes:
        subject: what it is about, such as the name of a dataset. Rule and subject name an alarm.
        job: whose it is; empty: no job's.
        since_ms: since when, in epoch milliseconds; None: known only from when it was seen.
        reason: what is so, with its evidence.
        command: what to do, as a command line, or half a sentence.
        follows: from a job that does not run, or is about to be back. It fires no alarm of its own, and keeps
            one open that has fired.
    """

    rule: AlarmRule
    subject: str
    job: str
    level: AlarmLevel
    since_ms: int | None
    reason: Reason
    command: str
    follows: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.rule.value, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """What one target was sent of an alarm.

    Attributes:
        sent: the last message that it took: `fired` or `resolved`; None: none.
        attempts: failed tries since then.
        next_at_ms: not before this time is it tried again.
        error: of the last try, without secrets.
    """

    sent: str | None = None
    sent_at_ms: int | None = None
    attempts: int = 0
    next_at_ms: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An alarm; times in epoch milliseconds of the store.

    Attributes:
        id: None for a condition that no evaluation has seen yet.
        notified: by the name of a target.
    """

    id: int | None
    rule: AlarmRule
    subject: str
    job: str
    level: AlarmLevel
    since_ms: int
    reason: Reason
    command: str
    fired_at_ms: int | None = None
    acknowledged_by: str | None = None
    acknowledged_at_ms: int | None = None
    resolved_at_ms: int | None = None
    notified: Mapping[str, Notified] = field(default_factory=dict)

    @property
    def changed_at_ms(self) -> int:
        """When it was over, or else fired; 0: no evaluation has seen it yet."""
        return self.resolved_at_ms or self.fired_at_ms or 0

    def as_json(self) -> dict[str, Any]:
        """The object of JSON that commands, the HTTP interface and messages have."""
        return {
            "id": self.id,
            "rule": self.rule.value,
            "subject": self.subject,
            "job": self.job,
            "level": self.level.value,
            **reason_fields("reason", self.reason),
            "command": self.command,
            "since_ms": self.since_ms,
            "fired_at_ms": self.fired_at_ms,
            "acknowledged_by": self.acknowledged_by,
            "acknowledged_at_ms": self.acknowledged_at_ms,
            "resolved_at_ms": self.resolved_at_ms,
            "notified": {
                name: {
                    "sent": each.sent,
                    "sent_at_ms": each.sent_at_ms,
                    "failures": each.attempts,
                    "error": each.error,
                }
                for name, each in self.notified.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DueNotification:
    """A message that a target has to be sent now: that an alarm `fired`, or that it is `resolved`."""

    alarm: Alarm
    message: str
