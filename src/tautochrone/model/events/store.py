"""The store: what connects a run with it, and how it comes into agreement with the lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.model.events.base import Event, seconds
from tautochrone.model.reason import Reason

__all__ = ["HeartbeatMissed", "MetaServiceAway", "MetaServiceBack", "Rebuilt", "StoreReconciled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatMissed(Event):
    """The lease could not be renewed."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaServiceAway(Event):
    """The MetaService does not answer."""

    url: str
    error: str
    retry_in_ms: int

    def text(self) -> str:
        return f"{self.error}; asked again in {seconds(self.retry_in_ms)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaServiceBack(Event):
    """The MetaService answers again."""

    url: str
    duration_ms: int

    def text(self) -> str:
        return f"the MetaService at {self.url} answers again, after {seconds(self.duration_ms)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReconciled(Event):
    """The store was brought into agreement with the lake."""

    job: str
    relation: str
    store: str
    numbers_above: int
    published: Sequence[str]
    revoked: Sequence[str]
    given_up: Sequence[str]
    reason: str

    def text(self) -> str:
        other = "an older copy" if self.relation == "restored" else "another one"
        return (
            f"the store is {other}: it now agrees with the lake, numbers go on above "
            f"{self.numbers_above:,}\n  {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Event):
    """An empty store was filled from the lake."""

    job: str
    checkpoints: Sequence[str]
    reason: Reason
