"""Checkpoints: what they name, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from tautochrone.meta import Store
from tautochrone.metaservice.api.flip import BIGGEST, TableVersion
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.jobs import Part
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import reason_fields

__all__ = ["CheckpointDetail", "CheckpointSummary", "add"]

_MOST = 1_000


class Broken(BaseModel):
    """An invariant that a checkpoint breaks: how many rows (or more), a few of them as text. With `problem`
    the query failed."""

    name: str
    location: str
    rows: int
    at_least: bool
    sample: list[str]
    problem: str | None
    error: str


class CheckpointSummary(BaseModel):
    """One recorded cut. Times are epoch milliseconds, `roots` the versions of the cut itself, `broken` the
    invariants for which it, or some job's part of it, was given up."""

    number: int
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    roots: list[TableVersion]
    broken: list[Broken]


class Failure(BaseModel):
    """A dataset without a version at the checkpoint, and why."""

    dataset: str
    error: str
    error_code: str
    error_params: dict[str, Any]


class Progress(BaseModel):
    """A job's part in the checkpoint. Times are epoch milliseconds, `cpu_ms` of its process when done."""

    job: str
    part: Part
    alive: bool
    started_ms: int | None
    finished_ms: int | None
    cpu_ms: int | None


class CheckpointDetail(CheckpointSummary):
    """The same with all versions; of an open checkpoint what was recorded so far."""

    versions: list[TableVersion]
    failures: list[Failure]
    progress: list[Progress]


def add(router: APIRouter, store: Store) -> None:
    @router.get("/checkpoints", tags=["checkpoints"])
    def checkpoints(limit: Annotated[int, Query(ge=1, le=_MOST)] = 20) -> list[CheckpointSummary]:
        """The newest in any state, newest first."""
        return [CheckpointSummary(**_fields(found)) for found in store.checkpoints.newest(limit)]

    @router.get("/checkpoints/{number}", tags=["checkpoints"])
    def checkpoint(number: Annotated[int, Path(ge=0, le=BIGGEST)]) -> CheckpointDetail:
        """One checkpoint."""
        found = store.checkpoints.get(number)
        return CheckpointDetail(
            **_fields(found),
            versions=_listed(store.checkpoints.versions_at(number)),
            failures=[
                Failure(dataset=str(name), **reason_fields("error", reason))
                for name, reason in sorted(store.checkpoints.failures_at(number).items())
            ],
            progress=[Progress(**asdict(part)) for part in store.checkpoints.progress(number)],
        )


def _fields(found: Checkpoint) -> dict[str, Any]:
    return {
        "number": found.number,
        "state": found.state,
        "cut_at_ms": found.cut_at_ms,
        "published_at_ms": found.published_at_ms,
        "roots": _listed(found.roots),
        "broken": [Broken(**asdict(one), error=one.error) for one in found.broken],
    }


def _listed(versions: Mapping[TableName, Version]) -> list[TableVersion]:
    return [TableVersion(table=str(name), version=version) for name, version in sorted(versions.items())]
