"""`/api/v1`: the content of the store as typed JSON. Each module adds the routes of one resource."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from tautochrone.meta import Store
from tautochrone.metaservice.api import checkpoints, datasets, delays, events, jobs, pins, tokens
from tautochrone.metaservice.http.problems import PROBLEMS

__all__ = ["add_api"]


def add_api(app: FastAPI, store: Store) -> None:
    """Put the routes on `app`."""
    router = APIRouter(prefix="/api/v1", responses=PROBLEMS)
    for module in (datasets, delays, jobs, checkpoints, pins, tokens, events):
        module.add(router, store)
    app.include_router(router)
