"""The API for programs: FLIP-276, and `/api/v1`, the content of the store as typed JSON.

Each module adds the routes of one resource.
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from tautochrone.meta import Store
from tautochrone.metaservice.api import alarms, checkpoints, datasets, events, jobs, plans, reads
from tautochrone.metaservice.api.queries import add_queries
from tautochrone.metaservice.api.verifications import add_verifications
from tautochrone.metaservice.http.problems import PROBLEMS
from tautochrone.model.query import QueryRunner
from tautochrone.model.verdict import Verifier

__all__ = ["add_api"]


def add_api(
    app: FastAPI,
    store: Store,
    runner: QueryRunner | None,
    unavailable_reason: str,
    key: str = "",
    *,
    since_last_run: jobs.SinceLastRun,
) -> None:
    """Put the routes on `app`: those of FLIP-276, and those of `/api/v1`.

    Args:
        runner: answers queries, and verifies views if it is a `Verifier`; None: nobody does, for
            `unavailable_reason`.
        key: what queries must show; empty: nothing.
        since_last_run: what came since the last run of a job that ended, as far as that is known.
    """
    flip = APIRouter(responses=PROBLEMS)
    jobs.add_registrations(flip, store)
    reads.add_versions(flip, store)
    app.include_router(flip)
    router = APIRouter(prefix="/api/v1", responses=PROBLEMS)
    for module in (alarms, datasets, checkpoints, reads, events):
        module.add(router, store)
    plans.add(router, store, shows_rows=runner is not None and not key)
    jobs.add(router, store, since_last_run)
    add_queries(router, runner, unavailable_reason, key)
    if isinstance(runner, Verifier):
        add_verifications(router, runner, key)
    app.include_router(router)
