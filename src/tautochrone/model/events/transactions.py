"""Transactions. The service writes these into its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tautochrone.model.events.base import Event
from tautochrone.model.reason import Reason

__all__ = [
    "TransactionExpired",
    "TransactionFailed",
    "TransactionLeftoversDropped",
    "TransactionLeftoversNotDropped",
    "TransactionNeedsAttention",
    "TransactionParticipantSlow",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionExpired(Event):
    """A [transaction](transactions.md) was not prepared within its time-out and is rolled back."""

    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFailed(Event):
    """The participant could not carry a decision out; it is tried again."""

    failure: ClassVar[bool] = True

    transaction: str
    owner: str
    state: str
    error: str | None
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionNeedsAttention(Event):
    """It was tried too often: a person has to
    [settle](transactions.md#when-a-decision-cannot-be-carried-out) it."""

    transaction: str
    owner: str
    state: str
    error: str | None
    failures: int
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLeftoversDropped(Event):
    """A service dropped what was staged for a transaction that had ended."""

    participant: str
    transaction: str
    tables: Sequence[str]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLeftoversNotDropped(Event):
    """A participant did not say what is staged, or refused to drop it; it is asked again after a minute."""

    participant: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionParticipantSlow(Event):
    """A participant has not answered for 10 s; repeated each minute."""

    participant: str
    transaction: str
    waiting: int
    """how many of its transactions are due"""
    reason: Reason
