"""Pipelines and their jobs. Jobs of other programs register what they read and write, as FLIP-276 says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Query
from pydantic import BaseModel

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta import JobEntry, Store, TableRole
from tautochrone.metaservice.api.reads import BIGGEST, Switch, TableVersion, version_list
from tautochrone.metaservice.http.validation import parse_job_name, table_of_path
from tautochrone.metaservice.last_words import last_words
from tautochrone.model.jobs import Claim, JobState, JobStatus, Liveness, RunProcess
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, reason_fields
from tautochrone.model.run_report import WorkPhase

__all__ = [
    "Job",
    "Pipeline",
    "Registration",
    "SinceLastRun",
    "StartedJob",
    "UnregisteredJob",
    "add",
    "add_registrations",
    "jobs_of",
]


SinceLastRun = Callable[[JobStatus], Reason | None]


class JobLastWords(BaseModel):
    """Of a job that does not run and should: what became of its process, why the last run ended, its last
    lines, and the command that goes on."""

    process: str
    error: str | None
    hint: str | None
    lines: list[str]
    command: str


class JobWork(BaseModel):
    """What a running job has been doing for more than a moment. `done` of `total` derived datasets have their
    outcome for `checkpoint`; `refreshing` has when the refreshes that go on began. Times are epoch
    milliseconds."""

    phase: WorkPhase
    since_ms: int
    checkpoint: int | None
    done: int
    total: int
    refreshing: dict[str, int]


class Job(BaseModel):
    """A job. `alive`: it runs, and its lease has not ended; `liveness` is `not running` when it ended without
    saying so, `failed` when an error ended its last run or kept it from beginning. `target` is the checkpoint
    that it works on, `newest_done` the newest that it completed; `announced` are tables that become visible
    when it starts. `since_last_run` is what came since the last run of a job that ended, null where it is not
    looked for. Times are epoch milliseconds."""

    name: str
    pipeline: str
    state: JobState
    alive: bool
    liveness: Liveness
    fence: int | None
    owner: str | None
    started_ms: int | None
    heartbeat_ms: int | None
    lease_until_ms: int | None
    target: int | None
    newest_done: int | None
    last_words: JobLastWords | None
    work: JobWork | None = None
    since_last_run: str | None = None
    since_last_run_code: str | None = None
    since_last_run_params: dict[str, Any] | None = None
    sources: list[str]
    sinks: list[str]
    announced: list[str]


class Pipeline(BaseModel):
    """A pipeline with its jobs and the datasets that they write."""

    name: str
    jobs: list[str]
    datasets: list[str]


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


def add(router: APIRouter, store: Store, since_last_run: SinceLastRun) -> None:
    @router.get("/jobs", tags=["jobs"])
    def jobs() -> list[Job]:
        """All jobs, by name."""
        return jobs_of(store, since_last_run)

    @router.get("/pipelines", tags=["jobs"])
    def pipelines() -> list[Pipeline]:
        """All pipelines, by name."""
        entries: dict[str, list[JobEntry]] = {}
        for entry in store.jobs.registered():
            entries.setdefault(entry.pipeline, []).append(entry)
        return [
            Pipeline(
                name=name,
                jobs=[job.name for job in jobs],
                datasets=sorted(str(sink) for job in jobs for sink in job.sinks),
            )
            for name, jobs in sorted(entries.items())
        ]


def add_registrations(router: APIRouter, store: Store) -> None:
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
            Switch,
            Query(description="fence off another run of the job that is alive"),
        ] = False,
    ) -> StartedJob:
        """Start the job: its relations become visible. Returns the checkpoint to continue its sources from.

        Refused with `JOB_RUNNING` until the other run is unregistered or its lease ends.
        """
        process = RunProcess(run=run or uuid4().hex, host=owner or "outside")
        return _start(store, parse_job_name(job), Claim(process=process, takeover=takeover))

    @router.post("/unregister/{job}", tags=["jobs"])
    @router.delete("/unregister/{job}", tags=["jobs"])
    def unregister(
        job: str,
        fence: Annotated[int | None, Query(ge=0, le=BIGGEST, description="of the run that ended")] = None,
    ) -> UnregisteredJob:
        """End the job: its relations are removed, what it published stays readable."""
        store.registrations.unregister(parse_job_name(job), None if fence is None else Fence(fence))
        return UnregisteredJob(job=job)


def _start(store: Store, job: str, claim: Claim) -> StartedJob:
    fence = store.registrations.start(job, claim)
    sources = next(entry.sources for entry in store.jobs.registered() if entry.name == job)
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
        versions=[] if resolution is None else version_list(resolution.versions),
    )


def jobs_of(store: Store, since_last_run: SinceLastRun = lambda _job: None) -> list[Job]:
    """All jobs as the API shows them, by name.

    Args:
        store: of the jobs.
        since_last_run: what came since the last run of a job that ended, as far as that is known.
    """
    statuses = {status.name: status for status in store.jobs.states()}
    return [_job(entry, statuses.get(entry.name), since_last_run) for entry in store.jobs.registered()]


def _last_words(status: JobStatus | None) -> JobLastWords | None:
    words = None if status is None else last_words(status)
    return None if words is None else JobLastWords.model_validate(asdict(words))


def _job(entry: JobEntry, status: JobStatus | None, since_last_run: SinceLastRun) -> Job:
    return Job(
        name=entry.name,
        pipeline=entry.pipeline,
        state=status.state if status else JobState.REGISTERED,
        alive=status is not None and status.alive,
        liveness=status.liveness if status else Liveness.REGISTERED,
        fence=entry.fence,
        owner=status.owner if status else None,
        started_ms=status.started_ms if status else None,
        heartbeat_ms=status.heartbeat_ms if status else None,
        lease_until_ms=status.lease_until_ms if status else None,
        target=status.target if status else None,
        newest_done=status.newest_done if status else None,
        last_words=_last_words(status),
        work=JobWork.model_validate(asdict(status.work)) if status and status.work else None,
        **reason_fields("since_last_run", None if status is None else since_last_run(status)),
        sources=sorted(map(str, entry.sources)),
        sinks=sorted(map(str, entry.sinks)),
        announced=sorted(map(str, entry.announced)),
    )
