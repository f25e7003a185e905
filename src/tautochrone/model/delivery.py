"""Deliveries to sinks as values: what is declared, what is delivered, and what the store remembers of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent

__all__ = [
    "Delivered",
    "DeliveryPolicy",
    "DeliveryState",
    "SinkDeclaration",
    "SinkFlow",
    "SinkStatus",
]


class DeliveryPolicy(StrEnum):
    """What a failed delivery means for the checkpoints after it.

    `RETRY`: they are published; the delivery is tried again, and the run counts as failed until it succeeds.
    `SKIP_WITH_ALARM`: the same, but after some tries in a row the run no longer counts as failed; an event
    tells of each skipped checkpoint. `HOLD_BACK`: the next checkpoint is not published before the sink has
    the last one.
    """

    RETRY = "retry"
    SKIP_WITH_ALARM = "skip_with_alarm"
    HOLD_BACK = "hold_back"


class DeliveryState(StrEnum):
    """`NEW`: nothing was delivered yet. `ACTIVE`: the last delivery succeeded. `FAILING`: it is tried again.
    `NEEDS_ATTENTION`: trying again cannot help. `RETIRED`: its job no longer declares it."""

    NEW = "new"
    ACTIVE = "active"
    FAILING = "failing"
    NEEDS_ATTENTION = "needs_attention"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDeclaration:
    """A sink that a project declares, and the tables that it mirrors.

    Attributes:
        options: of the adapter; they may hold secrets.
        key: the columns that identify a row, for sinks that need to know.
        insert_only: tables of which only new rows are delivered: the sources of append flows.
        attempts: failed tries in a row after which the policy `SKIP_WITH_ALARM` skips.
        catch_up_ms: so long retention keeps what is not delivered; later the mirror is rebuilt.
    """

    name: str
    format: str
    tables: tuple[TableName, ...]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: tuple[str, ...] = ()
    insert_only: frozenset[TableName] = frozenset()
    policy: DeliveryPolicy = DeliveryPolicy.RETRY
    attempts: int = 3
    catch_up_ms: int = 7 * 24 * 3_600_000
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What a sink shows, as far as the store knows; `delivered_at_ms` is epoch milliseconds of the store."""

    incarnation: str
    checkpoint: CheckpointNumber
    versions: Mapping[TableName, Version]
    delivered_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFlow:
    """How far a flow has come into a sink that Spark writes.

    Attributes:
        batch: the number of the last batch, from 0.
        rows: of all batches since its first one, those that ran twice counted twice.
        at_ms: when the last batch was reported, epoch milliseconds of the store.
    """

    batch: int
    rows: int
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """One sink as the store remembers it. Times are epoch milliseconds of the store.

    Attributes:
        fence: grows with every process that begins to deliver to it.
        intent: a transaction whose end is not known yet.
        failures: failed tries since the last success.
        skipped: how often its policy gave up waiting for it, ever.
        newest: the newest published checkpoint of its job.
        behind_since_ms: when the oldest checkpoint that it lacks was published; None when it lacks none.
        flows: by name the flows of a sink that Spark writes; empty for a sink with an adapter.
    """

    name: str
    job: str
    format: str
    tables: tuple[TableName, ...]
    policy: DeliveryPolicy
    state: DeliveryState
    fence: Fence
    catch_up_ms: int
    delivered: Delivered | None = None
    intent: Intent | None = None
    failures: int = 0
    skipped: int = 0
    error: str | None = None
    failed_at_ms: int | None = None
    newest: CheckpointNumber | None = None
    behind_since_ms: int | None = None
    flows: Mapping[str, SinkFlow] = field(default_factory=dict)
