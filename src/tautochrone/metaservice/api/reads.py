"""Reads: the versions at a read point (`/version` of FLIP-276), pins that keep them, and write tokens."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tautochrone.errors import QueryError
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.metaservice.http.access import LONGEST_LEASE_MS, Role, caller_of
from tautochrone.metaservice.http.validation import (
    OWNER_LENGTH,
    checked_owner,
    parse_table_name,
    table_of_path,
)
from tautochrone.metaservice.write_tokens import WRITE_TOKEN, read_after, token_time_ms, write_token
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import TableName, Version

__all__ = [
    "BIGGEST",
    "CreatedPin",
    "Pin",
    "Switch",
    "TableVersion",
    "Versions",
    "WriteToken",
    "add",
    "add_versions",
    "pins_of",
    "resolve_versions",
    "version_list",
]

BIGGEST = 2**63 - 1
_MAX_TABLES = 10_000
_MAX_WAIT_MS = 60_000

ONLY_NAMED = "do not wait for other tables that share a root with these: separate reads may then disagree"

# Strict: where the OpenAPI document says boolean, 0 is refused.
Number = Annotated[int, Field(strict=True, ge=0, le=BIGGEST)]
Flag = Annotated[bool, Field(strict=True, description=ONLY_NAMED)]
AfterToken = Annotated[
    str | None,
    Field(
        pattern=WRITE_TOKEN, description="a write token: what was written before it is in, or READ_NOT_YET"
    ),
]
WaitMs = Annotated[
    int, Field(ge=0, le=_MAX_WAIT_MS, description="with `after`: milliseconds that the answer may take")
]
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
_FromText = BeforeValidator(lambda text: {"true": True, "false": False}.get(text, text))
Switch = Annotated[bool, Field(strict=True), _FromText]
"""A flag in the query of an address."""


class ConsistencyType(StrEnum):
    """`strong`: one checkpoint. `weak`: the newest version of each table."""

    STRONG = "strong"
    WEAK = "weak"


class TableVersion(BaseModel):
    """A table and its version: the snapshot id of an Iceberg table."""

    table: str
    version: str


class BehindTable(BaseModel):
    """A table that keeps the read from a newer checkpoint, or has no version, and the reason."""

    table: str
    reason: str


class Versions(BaseModel):
    """The versions for one read. `checkpoint` is null for weak reads."""

    consistency: ConsistencyType
    checkpoint: int | None
    versions: list[TableVersion]
    behind: list[BehindTable]


class VersionsRequest(BaseModel):
    """The tables of one read, as `catalog.database.table`; none: all."""

    model_config = ConfigDict(extra="forbid")
    tables: list[str] = Field(default=[], max_length=_MAX_TABLES)
    checkpoint: Number | None = Field(
        default=None, description="a published checkpoint, instead of the newest"
    )
    only_named: Flag = False
    after: AfterToken = None
    wait_ms: WaitMs = 0


def add_versions(router: APIRouter, store: Store) -> None:
    async def answer(
        consistency: ConsistencyType,
        tables: list[TableName] | None,
        checkpoint: int | None,
        only_named: bool,
        after: str | None,
        wait_ms: int,
    ) -> Response:
        resolve = partial(
            resolve_versions,
            store,
            consistency,
            tables,
            checkpoint,
            only_named=only_named,
            after_ms=token_time_ms(after),
        )
        versions = await read_after(resolve, after, wait_ms)
        # Serialized here, because FastAPI would validate every table again.
        return Response(versions.model_dump_json(), media_type="application/json")

    @router.get(
        "/version/{consistency}/{catalog}/{database}/{table}", tags=["versions"], response_model=Versions
    )
    async def version(
        consistency: ConsistencyType,
        catalog: str,
        database: str,
        table: str,
        checkpoint: Annotated[int | None, Query(ge=0, le=BIGGEST)] = None,
        only_named: Annotated[Flag, _FromText, Query()] = False,
        after: Annotated[AfterToken, Query()] = None,
        wait_ms: Annotated[WaitMs, Query()] = 0,
    ) -> Response:
        """The version of one table, without a pin. Pin it to keep it while you read."""
        name = table_of_path(catalog, database, table)
        return await answer(consistency, [name], checkpoint, only_named, after, wait_ms)

    @router.post("/version/{consistency}", tags=["versions"], response_model=Versions)
    async def versions(consistency: ConsistencyType, names: VersionsRequest) -> Response:
        """The versions of several tables, without a pin; `strong`: all at one checkpoint."""
        tables = [parse_table_name(name) for name in names.tables] or None
        return await answer(
            consistency, tables, names.checkpoint, names.only_named, names.after, names.wait_ms
        )


def resolve_versions(
    store: Store,
    consistency: str,
    tables: list[TableName] | None,
    checkpoint: int | None,
    *,
    only_named: bool = False,
    after_ms: int | None = None,
) -> Versions:
    """The versions of tables (None: all) at a read point, without a pin.

    Raises:
        QueryError: `TABLE_NOT_FOUND`: no job of this store reads or writes it.
        CheckpointUnavailableError: see `Reads.resolve`.
    """
    resolution = store.reads.resolve(
        Consistency(consistency), tables, checkpoint, lease_ms=0, only_named=only_named, after_ms=after_ms
    )
    for name in tables or ():
        if name not in resolution.versions and name not in resolution.behind:
            raise QueryError(
                "TABLE_NOT_FOUND",
                f"{name} has no version in this store"
                if store.reads.knows(name)
                else f"No job here knows {name}",
                hint="`taut status` lists the datasets; other tables are read at their newest version.",
            )
    return Versions(
        consistency=ConsistencyType(consistency),
        checkpoint=resolution.checkpoint,
        versions=version_list(resolution.versions),
        behind=[BehindTable(table=str(name), reason=reason) for name, reason in resolution.behind.items()],
    )


def version_list(versions: Mapping[TableName, Version]) -> list[TableVersion]:
    return [
        TableVersion(table=table, version=version)
        for table, version in sorted((str(name), version) for name, version in versions.items())
    ]


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
    _add_pins(router, store)
    _add_tokens(router, store)


def _add_pins(router: APIRouter, store: Store) -> None:
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
            versions=version_list(resolution.versions),
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
            versions=version_list(pin.versions),
        )
        for pin in store.pins.live()
    ]


class WriteToken(BaseModel):
    """A time of the store's clock. A read with it shows everything that the sources held then."""

    token: str = Field(description="the value of `after` in reads")


def _add_tokens(router: APIRouter, store: Store) -> None:
    # By POST, because a cached answer would be an older token.
    @router.post("/tokens", tags=["versions"])
    def token() -> WriteToken:
        """A write token for what the sources hold now; changes nothing."""
        return WriteToken(token=write_token(store))
