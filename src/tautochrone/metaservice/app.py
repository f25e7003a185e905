"""The MetaService as one FastAPI application, which a job embeds and `taut serve` runs.

    /v1            the read-only Iceberg REST catalog
    /v1/transactions  transactions that programs drive
    /register …    the API of FLIP-276
    /api/v1        the content of the store as JSON
    /              web pages
    /rpc           the methods of the store, for jobs
    /metrics       metrics for Prometheus
    /healthz       the health check
    /openapi.json  the OpenAPI document

Parts without a store or a catalog are left out, so that the short-lived server of a reader starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.routing import Match, Mount
from starlette.types import Scope

from tautochrone.meta import Store
from tautochrone.metaservice.checkpoint_changes import rows_from_metadata
from tautochrone.metaservice.http.access import Access, AccessMiddleware, Sessions
from tautochrone.metaservice.http.problems import PROBLEMS, Problem, add_problems, is_catalog_path
from tautochrone.metaservice.http.proxies import ForwardedRequests
from tautochrone.metaservice.http.request_limits import RequestLimits
from tautochrone.rest_catalog.metadata import MetadataSource
from tautochrone.rest_catalog.read_points import ReadPoints
from tautochrone.rest_catalog.routes import catalog_app, no_catalog_app

if TYPE_CHECKING:
    from tautochrone.metaservice.coordinator import TransactionCoordinator
    from tautochrone.metaservice.http.metrics import Metrics
    from tautochrone.metaservice.pages import Forms
    from tautochrone.model.jobs import JobStatus
    from tautochrone.model.query import QueryRunner
    from tautochrone.model.reason import Reason
    from tautochrone.model.sink import PublishedAs

__all__ = ["create_app"]

_VERSION = version("tautochrone")
_NO_PROJECT = "This service knows no project, so it neither queries tables nor revises them"


class _CatalogMount(Mount):
    """Leaves paths of transactions to their routes, also those with a wrong method or without a route."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if is_catalog_path(scope.get("path", "")) else (Match.NONE, {})


class Health(BaseModel):
    """The service answers. `/metrics` shows whether it works. `instance` is another one for each start."""

    version: str
    catalog: bool
    instance: str


def create_app(
    *,
    access: Access,
    store: Store | None = None,
    catalog: tuple[ReadPoints, MetadataSource] | None = None,
    no_catalog: str = "This service serves no catalog",
    forms: Forms | str = _NO_PROJECT,
    coordinator: TransactionCoordinator | None = None,
    queries: tuple[QueryRunner, str] | None = None,
    instance: str = "",
    proxies: Collection[str] = (),
    published_as: Callable[[int], PublishedAs] = lambda _number: {},
    since_last_run: Callable[[JobStatus], Reason | None] = lambda _job: None,
) -> FastAPI:
    """Compose the application.

    Args:
        access: the tokens and their roles.
        store: what everything but the catalog shows; None: only the catalog is served.
        catalog: the read points, and the tables of the lake.
        no_catalog: why no catalog is served, half a sentence for clients that ask for it.
        forms: what runs queries and revisions from the pages, or why the pages have neither.
        coordinator: of the transactions that programs drive; None: one without participants.
        queries: answers `/api/v1/query` to who shows this key, instead of what runs queries from the pages.
        instance: by which `/healthz` tells this server from one that had its port before.
        proxies: addresses of reverse proxies that say as what browsers sent a request.
        published_as: by format the versions of published tables at a checkpoint.
        since_last_run: what came since the last run of a job that ended, as far as that is known.
    """
    app = FastAPI(
        title="Tautochrone MetaService",
        version=_VERSION,
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,  # a redirect would contain the host name of the request
        openapi_url=None if store is None else "/openapi.json",
    )
    sessions = Sessions()
    app.state.access, app.state.sessions = access, sessions
    app.state.published_as = published_as
    lake = None if catalog is None else catalog[1]
    app.state.rows_between = rows_from_metadata(lake)
    add_problems(app)

    @app.get("/healthz", tags=["service"], responses=PROBLEMS)
    def health() -> Health:
        """The health check. It needs no token."""
        return Health(version=_VERSION, catalog=catalog is not None, instance=instance)

    metrics = None
    if store is not None:
        metrics = _add_store(app, store, forms, coordinator, queries, since_last_run, lake)
    app.router.routes.append(
        _CatalogMount("/v1", no_catalog_app(no_catalog) if catalog is None else catalog_app(*catalog))
    )
    app.add_middleware(RequestLimits)
    app.add_middleware(AccessMiddleware, access=access, sessions=sessions)
    if metrics is not None:
        from tautochrone.metaservice.http.logs import RequestLog

        app.add_middleware(RequestLog, metrics=metrics)
    if proxies:
        app.add_middleware(ForwardedRequests, proxies=proxies)
    return app


def _add_store(
    app: FastAPI,
    store: Store,
    forms: Forms | str,
    coordinator: TransactionCoordinator | None,
    queries: tuple[QueryRunner, str] | None,
    since_last_run: Callable[[JobStatus], Reason | None],
    lake: MetadataSource | None,
) -> Metrics:
    # Imported here, because the catalog alone does not need them.
    from tautochrone.metaservice.api import add_api
    from tautochrone.metaservice.api.transactions import add_transactions
    from tautochrone.metaservice.coordinator import TransactionCoordinator
    from tautochrone.metaservice.http.metrics import add_metrics
    from tautochrone.metaservice.pages import Forms, add_login, add_pages
    from tautochrone.metaservice.rpc import add_store_routes

    add_store_routes(app, store)
    forms = Forms(unavailable_reason=forms) if isinstance(forms, str) else forms
    add_pages(app, store, forms, since_last_run, app.state.rows_between, lake)
    runner, key = queries or (forms.runner, "")
    add_api(app, store, runner, forms.unavailable_reason, key, since_last_run=since_last_run)
    add_transactions(app, store, coordinator or TransactionCoordinator(store))
    if app.state.access.hashes:
        add_login(app, app.state.access, app.state.sessions)
    metrics = add_metrics(app, store)

    def openapi() -> dict[str, Any]:
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

    app.openapi = openapi  # type: ignore[method-assign]
    return metrics
