"""Checkpoints: their versions, failures and progress."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel

from tautochrone.meta import Store
from tautochrone.metaservice.api.reads import BIGGEST, TableVersion, version_list
from tautochrone.metaservice.checkpoint_changes import TableChange, changes_at
from tautochrone.model.checkpoint import Checkpoint, CheckpointState, RefreshMode
from tautochrone.model.jobs import Part
from tautochrone.model.reason import reason_fields
from tautochrone.model.sink import PublishedAs

__all__ = ["CheckpointDetail", "CheckpointSummary", "add"]

_MAX_LIMIT = 1_000


class BrokenInvariant(BaseModel):
    """An invariant that a checkpoint breaks: how many rows it returns (`at_least`: or more), a few of them as
    text. `problem`: why its query failed."""

    name: str
    location: str
    rows: int
    at_least: bool
    sample: list[str]
    problem: str | None
    error: str


class CheckpointSummary(BaseModel):
    """A checkpoint. Times are epoch milliseconds, `roots` the versions of its cut, `broken` the invariants
    for which it, or a job's part of it, was aborted."""

    number: int
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    roots: list[TableVersion]
    broken: list[BrokenInvariant]


class Failure(BaseModel):
    """A dataset without a version at the checkpoint, and the reason."""

    dataset: str
    error: str
    error_code: str
    error_params: dict[str, Any]


class Progress(BaseModel):
    """A job's part in the checkpoint. Times are epoch milliseconds, `cpu_ms` the CPU time of its process."""

    job: str
    part: Part
    alive: bool
    started_ms: int | None
    finished_ms: int | None
    cpu_ms: int | None


class CheckpointDetail(CheckpointSummary):
    """A checkpoint with all its versions; of an open one those that are recorded so far. `published` has by
    format the version of each table that was published in it."""

    versions: list[TableVersion]
    published: dict[str, dict[str, str]]
    failures: list[Failure]
    progress: list[Progress]


class TableDifference(BaseModel):
    """One table at a checkpoint, beside its version `before` at `compared`, the newest earlier readable
    checkpoint that shows it. `changed` is null when there is no checkpoint to compare with, and the rows are
    then those of its refresh; they are null where nobody counted them."""

    table: str
    version: str
    compared: int | None
    before: str | None
    is_root: bool
    changed: bool | None
    rows_added: int | None
    rows_removed: int | None
    mode: RefreshMode | None
    duration_ms: int | None


class CheckpointDifference(BaseModel):
    """A checkpoint beside `compared`, the newest readable one before it; `previous` and `following` are its
    neighbours in any state. `problem`: why rows are missing that the lake would tell."""

    number: int
    previous: int | None
    following: int | None
    compared: int | None
    tables: list[TableDifference]
    problem: str | None


def add(router: APIRouter, store: Store) -> None:
    @router.get("/checkpoints", tags=["checkpoints"])
    def checkpoints(limit: Annotated[int, Query(ge=1, le=_MAX_LIMIT)] = 20) -> list[CheckpointSummary]:
        """The newest checkpoints in any state, newest first."""
        return [CheckpointSummary(**_fields(newest)) for newest in store.checkpoints.newest(limit)]

    @router.get("/checkpoints/{number}/changes", tags=["checkpoints"])
    def changes(request: Request, number: Annotated[int, Path(ge=0, le=BIGGEST)]) -> CheckpointDifference:
        """What changed in each table since the newest readable checkpoint before; no rows are read."""
        difference = changes_at(store, number, request.app.state.rows_between)
        return CheckpointDifference(
            number=number,
            previous=difference.previous,
            following=difference.following,
            compared=difference.compared,
            tables=[_table_difference(change) for change in difference.tables],
            problem=difference.problem,
        )

    @router.get("/checkpoints/{number}", tags=["checkpoints"])
    def checkpoint(request: Request, number: Annotated[int, Path(ge=0, le=BIGGEST)]) -> CheckpointDetail:
        """One checkpoint."""
        stored = store.checkpoints.get(number)
        published_as: PublishedAs = request.app.state.published_as(number)
        return CheckpointDetail(
            **_fields(stored),
            versions=version_list(store.checkpoints.versions_at(number)),
            published={name: dict(versions) for name, versions in published_as.items()},
            failures=[
                Failure(dataset=str(name), **reason_fields("error", reason))
                for name, reason in sorted(store.checkpoints.failures_at(number).items())
            ],
            progress=[Progress(**asdict(part)) for part in store.checkpoints.progress(number)],
        )


def _table_difference(change: TableChange) -> TableDifference:
    refresh = None if change.record is None else change.record.refresh
    return TableDifference(
        table=str(change.table),
        version=change.version,
        compared=change.compared,
        before=change.before,
        is_root=change.is_root,
        changed=change.changed,
        rows_added=None if change.rows is None else change.rows.added,
        rows_removed=None if change.rows is None else change.rows.removed,
        mode=None if refresh is None else refresh.mode,
        duration_ms=None if refresh is None else refresh.duration_ms,
    )


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "number": checkpoint.number,
        "state": checkpoint.state,
        "cut_at_ms": checkpoint.cut_at_ms,
        "published_at_ms": checkpoint.published_at_ms,
        "roots": version_list(checkpoint.roots),
        "broken": [
            BrokenInvariant(**asdict(invariant), error=invariant.error) for invariant in checkpoint.broken
        ],
    }
