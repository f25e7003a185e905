"""Built plans for people and programs: what is shown of one, and the decision that its rows come next.

A service cannot apply a plan, because that takes a run with its definitions. It can do what `taut apply` does
first, so that the next run with these definitions does the rest.
"""

from __future__ import annotations

from typing import Any

from tautochrone.errors import MetaError, TableMissingError
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, decode
from tautochrone.meta import Store
from tautochrone.model.project_build import (
    BuildState,
    ProjectBuild,
    ViewOfBuild,
    gone_error,
    require_checked,
    require_same_base,
)
from tautochrone.rest_catalog.metadata import MetadataSource

__all__ = ["approve", "plan_details", "plan_summary"]


def approve(store: Store, lake: MetadataSource | None, identity: str) -> None:
    """Decide that the next run of the plan's job, with its definitions, gives readers its rows.

    Raises:
        MetaError: `BUILD_NOT_FOUND`; `BUILD_UNFINISHED`; `BUILD_CHECKS_FAILED`; `JOB_RUNNING`;
            `APPLY_UNAVAILABLE`, this service knows no lake, so it cannot check the tables.
        ConflictError: `BUILD_BASE_CHANGED`.
        LakeError: `BUILD_GONE`; the lake cannot be read.
        CheckpointUnavailableError: `CHECKPOINT_REVOKED`, that at which it was built.
    """
    build = store.builds.look_up(identity)
    if lake is None:
        raise MetaError(
            "APPLY_UNAVAILABLE",
            "This service knows no lake, so it cannot check what was built",
            hint=f"use `taut apply {identity}` in the project",
        )
    require_checked(build)
    if build.state is BuildState.BUILT:
        _require_same_tables(lake, build)
    store.builds.approve(build.id)


def _require_same_tables(lake: MetadataSource, build: ProjectBuild) -> None:
    for built in build.tables:
        try:
            _, metadata = lake.load(built.table)
        except TableMissingError:
            raise gone_error(build.id, built.table) from None
        branch = metadata.get("refs", {}).get(build.branch, {})
        if str(branch.get("snapshot-id")) != built.version:
            raise gone_error(build.id, built.table)
        deployed = metadata.get("properties", {}).get(COMMIT_METADATA_KEY)
        require_same_base(build, built, decode(deployed))


def plan_summary(build: ProjectBuild) -> dict[str, Any]:
    """A built plan in a list, as JSON values."""
    return {
        "id": build.id,
        "job": build.job,
        "state": build.state.value,
        "checkpoint": int(build.base),
        "built_at_ms": build.created_at_ms,
        "ended_at_ms": build.ended_at_ms,
        "problems": list(build.problems),
        "notes": list(build.notes),
        "tables": [_view(view) for view in build.views],
    }


def plan_details(build: ProjectBuild) -> dict[str, Any]:
    """A built plan with its differences and the samples of rows that it has, as JSON values."""
    details = [_details(view) for view in build.views]
    return {**plan_summary(build), "tables": details}


def _view(view: ViewOfBuild) -> dict[str, Any]:
    compared = view.comparison
    return {
        "table": str(view.table),
        "change": view.change.value,
        "added": None if compared is None else compared.added,
        "removed": None if compared is None else compared.removed,
        "changed": None if compared is None else compared.changed,
        "problem": None if compared is None else compared.problem,
    }


def _details(view: ViewOfBuild) -> dict[str, Any]:
    compared = view.comparison
    return {
        **_view(view),
        "reason": str(view.reason),
        "reason_code": view.reason.code.value,
        "reason_params": dict(view.reason.params),
        "difference": None if view.difference is None else list(view.difference),
        "cause": view.cause,
        "columns": [
            {"name": column.name, "kind": column.kind.value, "before": column.before, "after": column.after}
            for column in view.columns
        ],
        "changed_values": {} if compared is None else dict(compared.changed_values),
        "samples": []
        if compared is None
        else [
            {"sign": sample.sign, "columns": list(sample.columns), "rows": [list(row) for row in sample.rows]}
            for sample in compared.samples
        ],
    }
