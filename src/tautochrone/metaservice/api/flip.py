"""The REST interface of FLIP-276: jobs register what they read and write, readers ask for versions."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, FastAPI, Query, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.meta import Store, TableRole
from tautochrone.metaservice.api.write_tokens import WRITE_TOKEN, read_after, time_of
from tautochrone.metaservice.http.problems import PROBLEMS
from tautochrone.metaservice.http.request_names import job_name, parsed_name, table_name
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
    "looked_up",
]

BIGGEST = 2**63 - 1
_MOST_TABLES = 10_000
_LONGEST_WAIT_MS = 60_000

ONLY_NAMED = "do not wait for other tables that share a root with these: separate reads may then disagree"

# JSON's own types only: the document says boolean, so 0 is a mistake.
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
    int, Field(ge=0, le=_LONGEST_WAIT_MS, description="with `after`: milliseconds that the answer may take")
]
_Spelled = BeforeValidator(lambda text: {"true": True, "false": False}.get(text, text))


class ConsistencyType(StrEnum):
    """`strong`: one checkpoint. `weak`: the newest version of each table."""

    STRONG = "strong"
    WEAK = "weak"


class TableVersion(BaseModel):
    """A table and its version, in the spelling of its format (Iceberg: the snapshot id)."""

    table: str
    version: str


class Behind(BaseModel):
    """A table that is older than the others, or absent, and why."""

    table: str
    reason: str


class Versions(BaseModel):
    """The versions for one read. `checkpoint` is null for weak reads."""

    consistency: ConsistencyType
    checkpoint: int | None
    versions: list[TableVersion]
    behind: list[Behind]


class Names(BaseModel):
    """The tables of one read, as `catalog.database.table`; none: all."""

    model_config = ConfigDict(extra="forbid")
    tables: list[str] = Field(default=[], max_length=_MOST_TABLES)
    checkpoint: Number | None = Field(default=None, description="a published one, instead of the newest")
    only_named: Flag = False
    after: AfterToken = None
    wait_ms: WaitMs = 0


class Registered(BaseModel):
    """What was announced. Nobody sees it before the job starts."""

    job: str
    table: str
    role: TableRole


class Started(BaseModel):
    """The job's fence, and the instant of its sources from which it goes on."""

    job: str
    fence: int
    checkpoint: int | None
    versions: list[TableVersion]


class Unregistered(BaseModel):
    """The job's relations are gone."""

    job: str


def add_flip(app: FastAPI, store: Store) -> None:
    """Put the routes on `app`."""
    router = APIRouter(responses=PROBLEMS)
    _add_jobs(router, store)
    _add_versions(router, store)
    app.include_router(router)


def _add_jobs(router: APIRouter, store: Store) -> None:
    def register(job: str, table: TableName, role: TableRole) -> Registered:
        store.registrations.register(job_name(job), table, role)
        return Registered(job=job, table=str(table), role=role)

    @router.post("/register/source/{job}/{catalog}/{database}/{table}", tags=["jobs"])
    def register_source(job: str, catalog: str, database: str, table: str) -> Registered:
        """The job will read the table. Nobody sees it before the job starts."""
        return register(job, table_name(catalog, database, table), TableRole.SOURCE)

    @router.post("/register/sink/{job}/{catalog}/{database}/{table}", tags=["jobs"])
    def register_sink(job: str, catalog: str, database: str, table: str) -> Registered:
        """The job will write the table. Refused when another job does, or when it would close a cycle."""
        return register(job, table_name(catalog, database, table), TableRole.SINK)

    @router.post("/start/{job}", tags=["jobs"])
    def start(
        job: str,
        run: Annotated[
            str | None,
            Query(max_length=200, description="names this run: with it the call may be repeated"),
        ] = None,
        owner: Annotated[
            str | None, Query(max_length=200, description="where it runs, for whoever starts it again")
        ] = None,
        takeover: Annotated[
            _Switch, _Spelled, Query(description="fence off another run of the job that is alive")
        ] = False,
    ) -> Started:
        """The job runs: its relations become visible. Answers the instant of its sources to go on from.

        Refused with `JOB_RUNNING` while another run has the job, until it is unregistered or its lease ends.
        """
        process = RunProcess(run=run or uuid4().hex, host=owner or "outside")
        fence = store.registrations.start(job_name(job), Claim(process=process, takeover=takeover))
        sources = next(entry.sources for entry in store.jobs.entries() if entry.name == job)
        known = [table for table in sources if store.reads.knows(table)]
        try:
            found = store.reads.resolve(tables=known, lease_ms=0) if known else None
        except CheckpointUnavailableError:
            # Nothing is published of them together: the job begins at its first checkpoint.
            found = None
        return Started(
            job=job,
            fence=fence,
            checkpoint=None if found is None else found.checkpoint,
            versions=[] if found is None else _listed(found),
        )

    @router.post("/unregister/{job}", tags=["jobs"])
    @router.delete("/unregister/{job}", tags=["jobs"])
    def unregister(
        job: str,
        fence: Annotated[int | None, Query(ge=0, le=BIGGEST, description="of the run that ended")] = None,
    ) -> Unregistered:
        """The job ended: its relations go; what it published stays readable."""
        store.registrations.unregister(job_name(job), None if fence is None else Fence(fence))
        return Unregistered(job=job)


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
        only_named: Annotated[Flag, _Spelled, Query()] = False,
        after: Annotated[AfterToken, Query()] = None,
        wait_ms: Annotated[WaitMs, Query()] = 0,
    ) -> Response:
        """The version of one table. Nothing is pinned: hold it by a pin while you read."""
        name = table_name(catalog, database, table)
        ask = partial(
            looked_up, store, consistency, [name], checkpoint, only_named=only_named, after_ms=time_of(after)
        )
        return _answer(await read_after(ask, after, wait_ms))

    @router.post("/version/{consistency}", tags=["versions"], response_model=Versions)
    async def versions(consistency: ConsistencyType, names: Names) -> Response:
        """The versions of a set of tables; strong: all at one checkpoint. Nothing is pinned."""
        tables = [parsed_name(name) for name in names.tables] or None
        ask = partial(
            looked_up,
            store,
            consistency,
            tables,
            names.checkpoint,
            only_named=names.only_named,
            after_ms=time_of(names.after),
        )
        return _answer(await read_after(ask, names.after, names.wait_ms))


def _answer(found: Versions) -> Response:
    """As it stands: the framework would validate every table of it once more."""
    return Response(found.model_dump_json(), media_type="application/json")


def looked_up(
    store: Store,
    consistency: str,
    tables: list[TableName] | None,
    checkpoint: int | None,
    *,
    only_named: bool = False,
    after_ms: int | None = None,
) -> Versions:
    """Versions without a pin.

    Raises:
        QueryError: `TABLE_NOT_FOUND`: no job of this store reads or writes it.
        CheckpointUnavailableError: see `Reads.resolve`.
    """
    found = store.reads.resolve(
        Consistency(consistency), tables, checkpoint, lease_ms=0, only_named=only_named, after_ms=after_ms
    )
    for name in tables or ():
        if name not in found.versions and name not in found.behind:
            raise QueryError(
                "TABLE_NOT_FOUND",
                f"{name} has no version in this store"
                if store.reads.knows(name)
                else f"No job here knows {name}",
                hint="`taut status` lists the datasets; other tables are read at their newest version.",
            )
    return Versions(
        consistency=ConsistencyType(consistency),
        checkpoint=found.checkpoint,
        versions=_listed(found),
        behind=[Behind(table=str(name), reason=why) for name, why in found.behind.items()],
    )


def _listed(found: Resolution) -> list[TableVersion]:
    versions = sorted((str(name), version) for name, version in found.versions.items())
    return [TableVersion(table=name, version=version) for name, version in versions]
