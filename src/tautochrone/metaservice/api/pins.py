"""Pins: leases that keep the versions of tables while somebody reads them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.metaservice.api.flip import AfterToken, ConsistencyType, Flag, Number, TableVersion, WaitMs
from tautochrone.metaservice.api.write_tokens import read_after, token_time_ms
from tautochrone.metaservice.http.pin_owners import (
    LONGEST_LEASE_MS,
    OWNER_LENGTH,
    Role,
    caller_of,
    checked_owner,
)
from tautochrone.metaservice.http.request_names import parse_table_name
from tautochrone.model.checkpoint import Consistency

__all__ = ["Pin", "PinRequest", "add", "pins_of"]

_MAX_TABLES = 10_000

LeaseMs = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=LONGEST_LEASE_MS[Role.OPERATE],
        description="milliseconds from now; an hour at most with the role read, a day with operate",
    ),
]
PinId = Annotated[str, Path(pattern="^[0-9a-f-]{36}$")]


class Pin(BaseModel):
    """A pin. `checkpoint` is null when it keeps the newest versions of a weak read."""

    id: str
    checkpoint: int | None
    owner: str
    expires_at_ms: int = Field(description="epoch milliseconds")
    versions: list[TableVersion]


class PinRequest(BaseModel):
    """The tables (`catalog.database.table`; none: all) and the read point to pin."""

    model_config = ConfigDict(extra="forbid")
    owner: str = Field(
        min_length=1,
        max_length=OWNER_LENGTH,
        description="who reads, as text for people",
    )
    consistency: ConsistencyType = ConsistencyType.STRONG
    tables: list[str] = Field(default=[], max_length=_MAX_TABLES)
    checkpoint: Number | None = None
    only_named: Flag = False
    lease_ms: LeaseMs = DEFAULT_LEASE_MS
    after: AfterToken = None
    wait_ms: WaitMs = 0


class CreatedPin(BaseModel):
    """A new pin and the versions that it keeps."""

    id: str
    checkpoint: int | None
    versions: list[TableVersion]


class Renewal(BaseModel):
    """The new length of a lease, from now."""

    model_config = ConfigDict(extra="forbid")
    lease_ms: LeaseMs = DEFAULT_LEASE_MS


def add(router: APIRouter, store: Store) -> None:
    @router.get("/pins", tags=["pins"])
    def pins() -> list[Pin]:
        """The live pins, by the end of their lease."""
        return pins_of(store)

    @router.post("/pins", status_code=201, tags=["pins"])
    async def pin(request: PinRequest, http: Request) -> CreatedPin:
        """Resolve a read point and pin its versions, in one step. The pin belongs to the bearer token."""
        caller = caller_of(http.scope)
        caller.require_lease(request.lease_ms)
        resolve = partial(
            store.reads.resolve,
            Consistency(request.consistency),
            [parse_table_name(name) for name in request.tables] or None,
            request.checkpoint,
            lease_ms=request.lease_ms,
            only_named=request.only_named,
            owner=checked_owner(request.owner),
            principal=caller.identity,
            after_ms=token_time_ms(request.after),
        )
        resolution = await read_after(resolve, request.after, request.wait_ms)
        return CreatedPin(
            id=resolution.pin,
            checkpoint=resolution.checkpoint,
            versions=[TableVersion(table=str(k), version=v) for k, v in sorted(resolution.versions.items())],
        )

    @router.post("/pins/{pin}/renew", status_code=204, tags=["pins"])
    def renew(pin: PinId, renewal: Renewal, http: Request) -> None:
        """Extend the lease, as its holder or with the role operate. A pin whose lease ended is gone."""
        caller = caller_of(http.scope)
        caller.require_lease(renewal.lease_ms)
        store.pins.renew(pin, renewal.lease_ms, principal=caller.pin_principal)

    @router.delete("/pins/{pin}", status_code=204, tags=["pins"])
    def release(pin: PinId, http: Request) -> None:
        """Release the pin, as its holder or with the role operate. Does nothing when it is gone."""
        store.pins.release(pin, principal=caller_of(http.scope).pin_principal)


def pins_of(store: Store) -> list[Pin]:
    """The live pins as the API shows them, by the end of their lease."""
    return [
        Pin(
            id=pin.id,
            checkpoint=pin.checkpoint,
            owner=pin.owner,
            expires_at_ms=pin.expires_at_ms,
            versions=[TableVersion(table=str(k), version=v) for k, v in sorted(pin.versions.items())],
        )
        for pin in store.pins.live()
    ]
