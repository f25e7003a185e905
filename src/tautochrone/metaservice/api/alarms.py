"""Alarms: those that are open, those that are over, and who looks after one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from tautochrone.meta import Store
from tautochrone.metaservice.api.reads import BIGGEST
from tautochrone.model.alarms import Alarm, AlarmLevel, AlarmRule

__all__ = ["AlarmEntry", "add", "alarms_of"]

_MAX_RESOLVED = 1_000


class Sent(BaseModel):
    """What a target was sent of an alarm: `fired`, `resolved`, or nothing; `failures` are tries since."""

    sent: str | None
    sent_at_ms: int | None
    failures: int
    error: str | None


class AlarmEntry(BaseModel):
    """An alarm. Without `id` nobody has evaluated it yet. `command` is what to do. Times are epoch
    milliseconds; `resolved_at_ms` is null while it is open."""

    id: int | None
    rule: AlarmRule
    subject: str
    job: str
    level: AlarmLevel
    reason: str
    reason_code: str
    reason_params: dict[str, Any]
    command: str
    since_ms: int
    fired_at_ms: int | None
    acknowledged_by: str | None
    acknowledged_at_ms: int | None
    resolved_at_ms: int | None
    notified: dict[str, Sent]


class Acknowledgement(BaseModel):
    """Who looks after an alarm."""

    by: str = Field(min_length=1, max_length=200)


def add(router: APIRouter, store: Store) -> None:
    @router.get("/alarms", tags=["alarms"])
    def alarms(
        resolved: Annotated[int, Query(ge=0, le=_MAX_RESOLVED, description="so many that are over, too")] = 0,
    ) -> list[AlarmEntry]:
        """The open alarms, the critical ones first; then those that are over, the newest first."""
        return alarms_of(store, resolved)

    @router.post("/alarms/{number}/acknowledge", tags=["alarms"])
    def acknowledge(
        number: Annotated[int, Path(ge=0, le=BIGGEST)], acknowledgement: Acknowledgement
    ) -> AlarmEntry:
        """Say that somebody looks after an open alarm."""
        return _entry(store.alarms.acknowledge(number, acknowledgement.by))


def alarms_of(store: Store, resolved: int = 0) -> list[AlarmEntry]:
    """All alarms as the API shows them: the open ones, and so many that are over."""
    over = store.alarms.resolved(resolved) if resolved else ()
    return [_entry(alarm) for alarm in (*store.alarms.current(), *over)]


def _entry(alarm: Alarm) -> AlarmEntry:
    return AlarmEntry.model_validate(alarm.as_json())
