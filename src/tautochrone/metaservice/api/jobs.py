"""Pipelines and their jobs."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from tautochrone.meta import JobEntry, Store
from tautochrone.model.jobs import JobState, JobStatus

__all__ = ["Job", "Pipeline", "add", "jobs_of"]


class Job(BaseModel):
    """A job. `alive`: it runs, and its lease has not ended. `target` is the checkpoint that it works on,
    `newest_done` the newest that it completed; `announced` are tables that become visible when it starts.
    Times are epoch milliseconds."""

    name: str
    pipeline: str
    state: JobState
    alive: bool
    fence: int | None
    owner: str | None
    started_ms: int | None
    heartbeat_ms: int | None
    lease_until_ms: int | None
    target: int | None
    newest_done: int | None
    sources: list[str]
    sinks: list[str]
    announced: list[str]


class Pipeline(BaseModel):
    """A pipeline with its jobs and the datasets that they write."""

    name: str
    jobs: list[str]
    datasets: list[str]


def add(router: APIRouter, store: Store) -> None:
    @router.get("/jobs", tags=["jobs"])
    def jobs() -> list[Job]:
        """All jobs, by name."""
        return jobs_of(store)

    @router.get("/pipelines", tags=["jobs"])
    def pipelines() -> list[Pipeline]:
        """All pipelines, by name."""
        entries: dict[str, list[JobEntry]] = {}
        for entry in store.jobs.entries():
            entries.setdefault(entry.pipeline, []).append(entry)
        return [
            Pipeline(
                name=name,
                jobs=[job.name for job in jobs],
                datasets=sorted(str(sink) for job in jobs for sink in job.sinks),
            )
            for name, jobs in sorted(entries.items())
        ]


def jobs_of(store: Store) -> list[Job]:
    """All jobs as the API shows them, by name."""
    statuses = {status.name: status for status in store.jobs.states()}
    return [_job(entry, statuses.get(entry.name)) for entry in store.jobs.entries()]


def _job(entry: JobEntry, status: JobStatus | None) -> Job:
    return Job(
        name=entry.name,
        pipeline=entry.pipeline,
        state=status.state if status else JobState.REGISTERED,
        alive=status is not None and status.alive,
        fence=entry.fence,
        owner=status.owner if status else None,
        started_ms=status.started_ms if status else None,
        heartbeat_ms=status.heartbeat_ms if status else None,
        lease_until_ms=status.lease_until_ms if status else None,
        target=status.target if status else None,
        newest_done=status.newest_done if status else None,
        sources=sorted(map(str, entry.sources)),
        sinks=sorted(map(str, entry.sinks)),
        announced=sorted(map(str, entry.announced)),
    )
