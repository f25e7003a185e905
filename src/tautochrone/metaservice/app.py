"""The MetaService as one FastAPI application: what a job embeds and what `taut serve` runs.

    /v1            the checkpoint as an Iceberg REST catalog, in Iceberg's own forms
    /register …    FLIP-276's interface
    /api/v1        everything else that there is to know, as JSON
    /              web pages
    /rpc           the store for jobs, method by method
    /metrics       for Prometheus          /healthz  is it there?          /openapi.json

Only what is given is served, so that a reader's short-lived server does not pay for an interface that
nobody asks.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from tautochrone.meta import Store
from tautochrone.metaservice.http.access import Access, Guard, Sessions
from tautochrone.metaservice.http.problems import PROBLEMS, Problem, add_problems
from tautochrone.metaservice.http.request_limits import Bounds
from tautochrone.rest_catalog.metadata_files import MetadataSource
from tautochrone.rest_catalog.read_points import ReadPointResolver
from tautochrone.rest_catalog.routes import catalog_app, no_catalog_app

if TYPE_CHECKING:
    from tautochrone.metaservice.http.metrics import Metrics
    from tautochrone.metaservice.pages import Forms

__all__ = ["create_app"]

_VERSION = version("tautochrone")
_NO_PROJECT = "This service knows no project, so it neither queries tables nor revises them"


class Health(BaseModel):
    """It answers. Whether it can do its work is seen in `/metrics`."""

    version: str
    catalog: bool


def create_app(
    *,
    access: Access,
    store: Store | None = None,
    catalog: tuple[ReadPointResolver, MetadataSource] | None = None,
    no_catalog: str = "This service serves no catalog",
    forms: Forms | str = _NO_PROJECT,
) -> FastAPI:
    """Compose the application.

    Args:
        access: who may do what.
        store: what all but the catalog is about; None: only the catalog is served.
        catalog: the read points, and the tables of the lake.
        no_catalog: why there is none, half a sentence for who asks for it.
        forms: who stands behind the forms of the pages, or why nobody does.
    """
    app = FastAPI(
        title="Tautochrone MetaService",
        version=_VERSION,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host was asked for
        openapi_url=None if store is None else "/openapi.json",
    )
    sessions = Sessions()
    app.state.access, app.state.sessions = access, sessions
    add_problems(app)

    @app.get("/healthz", tags=["service"], responses=PROBLEMS)
    def health() -> Health:
        """Is it there? Answers without a token."""
        return Health(version=_VERSION, catalog=catalog is not None)

    metrics = None if store is None else _add_store(app, store, forms)
    app.mount("/v1", no_catalog_app(no_catalog) if catalog is None else catalog_app(*catalog))
    app.add_middleware(Bounds)
    app.add_middleware(Guard, access=access, sessions=sessions)
    if metrics is not None:
        from tautochrone.metaservice.http.request_log import Observer

        app.add_middleware(Observer, metrics=metrics)
    return app


def _add_store(app: FastAPI, store: Store, forms: Forms | str) -> Metrics:
    # Imported here: a reader's server for the catalog alone starts without them.
    from tautochrone.metaservice.api import add_api
    from tautochrone.metaservice.api.flip import add_flip
    from tautochrone.metaservice.http.login import add_login
    from tautochrone.metaservice.http.metrics import add_metrics
    from tautochrone.metaservice.pages import Forms, add_pages
    from tautochrone.metaservice.rpc.routes import add_store_routes

    add_store_routes(app, store)
    add_pages(app, store, Forms(why_not=forms) if isinstance(forms, str) else forms)
    add_flip(app, store)
    add_api(app, store)
    if app.state.access.hashes:
        add_login(app, app.state.access, app.state.sessions)
    metrics = add_metrics(app, store)

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas["Problem"] = Problem.model_json_schema()
            schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            if app.state.access.anonymous is None:
                schema["security"] = [{"bearer": []}]
                schema["paths"]["/healthz"]["get"]["security"] = []
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return metrics
