"""Plans that were built beside the deployed views."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from tautochrone.meta import Store
from tautochrone.metaservice.plans import plan_details, plan_summary
from tautochrone.model.project_build import BuildState
from tautochrone.model.project_plan import ColumnChangeKind, DefinitionChange

__all__ = ["add"]


class BuiltView(BaseModel):
    """A view of a built plan: rows added and removed since the deployed ones, and `changed` keys. Null: they
    are not compared (yet), or no key was given."""

    table: str
    change: DefinitionChange
    added: int | None
    removed: int | None
    changed: int | None
    problem: str | None


class PlanSummary(BaseModel):
    """A built plan. `checkpoint` is the one at which it was built; times are epoch milliseconds. It cannot be
    applied while it has `problems`."""

    id: str
    job: str
    state: BuildState
    checkpoint: int
    built_at_ms: int
    ended_at_ms: int | None
    problems: list[str]
    notes: list[str]
    tables: list[BuiltView]


class ChangedColumn(BaseModel):
    """A column of a view that comes, goes or changes its type."""

    name: str
    kind: ColumnChangeKind
    before: str | None
    after: str | None


class Sample(BaseModel):
    """Some rows that only the built view has (`+`) or only the deployed one (`-`), each value as text."""

    sign: str
    columns: list[str]
    rows: list[list[str | None]]


class BuiltViewDetail(BuiltView):
    """A view of a built plan with the `difference` of its definition, as lines; null: the earlier text is not
    known. `cause`: what changed where the text did not. `changed_values`: in how many rows of a key each
    column has another value."""

    reason: str
    reason_code: str
    reason_params: dict[str, Any]
    difference: list[str] | None
    cause: str | None
    columns: list[ChangedColumn]
    changed_values: dict[str, int]
    samples: list[Sample]


class PlanDetail(PlanSummary):
    """A built plan with what it changes."""

    tables: list[BuiltViewDetail]  # type: ignore[assignment]


def add(router: APIRouter, store: Store, *, shows_rows: bool) -> None:
    """The routes of built plans.

    Args:
        shows_rows: whether everybody who may look at a plan may query its tables too.
    """

    @router.get("/plans", tags=["plans"])
    def plans() -> list[PlanSummary]:
        """The built plans of all jobs, and the last ones that were applied or dropped, newest first."""
        return [PlanSummary.model_validate(plan_summary(build)) for build in store.builds.remembered()]

    @router.get("/plans/{identity}", tags=["plans"])
    def plan(identity: Annotated[str, Path(max_length=36)]) -> PlanDetail:
        """One built plan; without samples where not everybody may query."""
        build = store.builds.look_up(identity)
        return PlanDetail.model_validate(plan_details(build if shows_rows else build.without_samples()))
