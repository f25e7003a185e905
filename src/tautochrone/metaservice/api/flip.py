"""The REST API of FLIP-276: jobs register what they read and write, readers ask for versions."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, FastAPI, Query, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.meta import Store, TableRole
from tautochrone.metaservice.api.write_tokens import WRITE_TOKEN, read_after, token_time_ms
from tautochrone.metaservice.http.problems import PROBLEMS
from tautochrone.metaservice.http.request_names import parse_job_name, parse_table_name, table_of_path
from tautochrone.model.checkpoint import Consistency, Resolution
from tautochrone.model.jobs import Claim, RunProcess
from tautochrone.model.names import Fence, TableName

__all__ = [
    "BIGGEST",
    "AfterToken",
    "Flag",
    "Number",
    "TableVersion",
    "Versions",
    "WaitMs",
    "add_flip",
    "resolve_versions",
]

BIGGEST = 2**63 - 1
_MAX_TABLES = 10_000
_MAX_WAIT_MS = 60_000

ONLY_NAMED = "do not wait for other tables that share a root with these: separate reads may then disagree"

# Strict: where the OpenAPI document says boolean, 0 is refused.
Number = Annotated[int, Field(strict=True, ge=0, le=BIGGEST)]
Flag = Annotated[bool, Field(strict=True, description=ONLY_NAMED)]
_Switch = Annotated[bool, Field(strict=True)]
AfterToken = Annotated[
    str | None,
    Field(
        pattern=WRITE_TOKEN, description="a write token: what was written before it is in, or READ_NOT_YET"
    ),
]
WaitMs = Annotated[
    int, Field(ge=0, le=_MAX_WAIT_MS, description="with `after`: milliseconds that the answer may take")
]
_FromText = BeforeValidator(lambda text: {"true": True, "false": False}.get(text, text))


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


class Registration(BaseModel):
    """An announced table of a job. Others see it when the job starts."""

    job: str
    table: str
    role: TableRole


class StartedJob(BaseModel):
    """The job's fence, and the checkpoint and versions of its sources from which it continues."""

    job: str
    fence: int
    checkpoint: int | None
    versions: list[TableVersion]


class UnregisteredJob(BaseModel):
    """A job whose relations are removed."""

    job: str


def add_flip(app: FastAPI, store: Store) -> None:
    """Put the routes on `app`."""
    router = APIRouter(responses=PROBLEMS)
    _add_jobs(router, store)
    _add_versions(router, store)
    app.include_router(router)


def _add_jobs(router: APIRouter, store: Store) -> None:
    def register(job: str, table: TableName, role: TableRole) -> Registration:
        store.registrations.register(parse_job_name(job), table, role)
        return Registration(job=job, table=str(table), role=role)

    @router.post("/register/source/{job}/{catalog}/{database}/{table}", tags=["jobs"])
    def register_source(job: str, catalog: str, database: str, table: str) -> Registration:
        """The job will read the table. Others see it when the job starts."""
        return register(job, table_of_path(catalog, database, table), TableRole.SOURCE)

    @router.post("/register/sink/{job}/{catalog}/{database}/{table}", tags=["jobs"])
    def register_sink(job: str, catalog: str, database: str, table: str) -> Registration:
        """The job will write the table. Refused when another job does, or when it would close a cycle."""
        return register(job, table_of_path(catalog, database, table), TableRole.SINK)

    @router.post("/start/{job}", tags=["jobs"])
    def start(
        job: str,
        run: Annotated[
            str | None,
            Query(max_length=200, description="an id for this run: with it the call may be repeated"),
        ] = None,
        owner: Annotated[
            str | None,
            Query(max_length=200, description="where the run is, shown to a caller that is refused"),
        ] = None,
        takeover: Annotated[
            _Switch, _FromText, Query(description="fence off another run of the job that is alive")
        ] = False,
    ) -> StartedJob:
        """Start the job: its relations become visible. Returns the checkpoint to continue its sources from.

        Refused with `JOB_RUNNING` until the other run is unregistered or its lease ends.
        """
        process = RunProcess(run=run or uuid4().hex, host=owner or "outside")
        fence = store.registrations.start(parse_job_name(job), Claim(process=process, takeover=takeover))
        sources = next(entry.sources for entry in store.jobs.entries() if entry.name == job)
        known = [table for table in sources if store.reads.knows(table)]
        try:
            resolution = store.reads.resolve(tables=known, lease_ms=0) if known else None
        except CheckpointUnavailableError:
            # No published checkpoint shows all of them: the job begins at its own first checkpoint.
            resolution = None
        return StartedJob(
            job=job,
            fence=fence,
            checkpoint=None if resolution is None else resolution.checkpoint,
            versions=[] if resolution is None else version_list(resolution),
        )

    @router.post("/unregister/{job}", tags=["jobs"])
    @router.delete("/unregister/{job}", tags=["jobs"])
    def unregister(
        job: str,
        fence: Annotated[int | None, Query(ge=0, le=BIGGEST, description="of the run that ended")] = None,
    ) -> UnregisteredJob:
        """End the job: its relations are removed, what it published stays readable."""
        store.registrations.unregister(parse_job_name(job), None if fence is None else Fence(fence))
        return UnregisteredJob(job=job)


def _add_versions(router: APIRouter, store: Store) -> None:
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
        resolve = partial(
            resolve_versions,
            store,
            consistency,
            [name],
            checkpoint,
            only_named=only_named,
            after_ms=token_time_ms(after),
        )
        return _json_response(await read_after(resolve, after, wait_ms))

    @router.post("/version/{consistency}", tags=["versions"], response_model=Versions)
    async def versions(consistency: ConsistencyType, names: VersionsRequest) -> Response:
        """The versions of several tables, without a pin; `strong`: all at one checkpoint."""
        tables = [parse_table_name(name) for name in names.tables] or None
        resolve = partial(
            resolve_versions,
            store,
            consistency,
            tables,
            names.checkpoint,
            only_named=names.only_named,
            after_ms=token_time_ms(names.after),
        )
        return _json_response(await read_after(resolve, names.after, names.wait_ms))


def _json_response(versions: Versions) -> Response:
    # Serialized here, because FastAPI would validate every table again.
    return Response(versions.model_dump_json(), media_type="application/json")


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
        versions=version_list(resolution),
        behind=[BehindTable(table=str(name), reason=reason) for name, reason in resolution.behind.items()],
    )


def version_list(resolution: Resolution) -> list[TableVersion]:
    versions = sorted((str(name), version) for name, version in resolution.versions.items())
    return [TableVersion(table=name, version=version) for name, version in versions]
