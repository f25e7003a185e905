"""The checkpoint as a catalog: a read-only Iceberg REST catalog whose prefix is a read point.

Any engine that speaks Iceberg REST reads all tables at one checkpoint by opening this catalog with
`warehouse=strong` (or `checkpoint-42`, `weak`): each table's current snapshot *is* the one of the
cut. It must never write, and it must never know which engine asks.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tautochrone.errors import CheckpointUnavailableError, TableMissingError, TautochroneError
from tautochrone.model.names import TableName, Version
from tautochrone.model.read_points import NEWEST, Streamed
from tautochrone.rest_catalog.cut_metadata import SnapshotGoneError, as_streamed, at_version
from tautochrone.rest_catalog.metadata_files import MetadataSource
from tautochrone.rest_catalog.read_points import ReadPointResolver

__all__ = ["catalog_app", "no_catalog_app", "refusal"]

_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /v1/{prefix}/namespaces/{namespace}/views",
    "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
]
_TABLES = "/{prefix}/namespaces/{namespace}/tables"
_VIEWS = "/{prefix}/namespaces/{namespace}/views"
_KEEP_BODIES = 32
_READ = ["GET", "HEAD"]


class _RefusedError(Exception):
    """An answer in Iceberg's form: HTTP status, Iceberg's exception name, sentence with our class."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message

    def response(self) -> Response:
        error = {"message": self.message, "type": self.kind, "code": self.status}
        return JSONResponse({"error": error}, status_code=self.status)


def catalog_app(read_points: ReadPointResolver, source: MetadataSource) -> FastAPI:
    """The catalog as an application of its own, for `/v1`: its errors have Iceberg's form."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    catalog = _Catalog(read_points, source)
    _add_namespaces(app, catalog, read_points, source)
    _add_tables(app, catalog, read_points, source)
    _add_refusals(app)  # after the one POST that is answered

    @app.get("/config")
    def config(warehouse: str = "strong") -> dict[str, Any]:
        prefix = read_points.settle(warehouse)
        return {"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": _ENDPOINTS}

    return app


def no_catalog_app(why: str) -> FastAPI:
    """What stands at `/v1` when there is no lake to show: every answer says so."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.api_route("/{path:path}", methods=[*_READ, "POST", "PUT", "PATCH", "DELETE"])
    def absent(path: str) -> Response:  # noqa: ARG001
        return _RefusedError(404, "NoSuchWarehouseException", f"[CATALOG_NOT_SERVED] {why}.").response()

    return app


def refusal(status: int, error: TautochroneError) -> Response:
    """An error of access in Iceberg's form."""
    kind = "NotAuthorizedException" if status == 401 else "ForbiddenException"
    return _RefusedError(status, kind, str(error)).response()


def _add_namespaces(
    app: FastAPI, catalog: _Catalog, read_points: ReadPointResolver, source: MetadataSource
) -> None:
    @app.api_route("/{prefix}/namespaces", methods=_READ)
    def namespaces(prefix: str, parent: str | None = None) -> dict[str, Any]:
        read_points.versions(prefix)
        above = _levels(parent) if parent else ()
        if above:
            catalog.require_namespace(above)
        depth = len(above) + 1
        found = {n[:depth] for n in source.namespaces() if len(n) >= depth and n[: depth - 1] == above}
        return {"namespaces": sorted(list(name) for name in found)}

    @app.api_route("/{prefix}/namespaces/{namespace}", methods=_READ)
    def namespace(prefix: str, namespace: str) -> dict[str, Any]:
        read_points.versions(prefix)
        levels = _levels(namespace)
        catalog.require_namespace(levels)
        return {"namespace": list(levels), "properties": {}}


def _add_tables(
    app: FastAPI, catalog: _Catalog, read_points: ReadPointResolver, source: MetadataSource
) -> None:
    @app.api_route(_TABLES, methods=_READ)
    def tables(prefix: str, namespace: str) -> dict[str, Any]:
        levels = _levels(namespace)
        catalog.require_namespace(levels)
        return {"identifiers": catalog.names(prefix, levels)}

    @app.api_route(_TABLES + "/{table:path}", methods=_READ)
    def table(prefix: str, namespace: str, table: str) -> Response:
        # Spark asks for parquet.`/a/b` as a table too, before it takes the name for a path.
        body = catalog.load(prefix, TableName(source.catalog, _levels(namespace), table))
        return Response(body, media_type="application/json")

    @app.post(_TABLES + "/{table}/metrics", status_code=204)
    def metrics(prefix: str, namespace: str, table: str) -> None:
        """Engines report their scans unasked; nothing is done with it."""

    @app.api_route(_VIEWS, methods=_READ)
    def views(prefix: str, namespace: str) -> dict[str, Any]:  # noqa: ARG001
        return {"identifiers": []}

    @app.api_route(_VIEWS + "/{view:path}", methods=_READ)
    def view(prefix: str, namespace: str, view: str) -> dict[str, Any]:
        read_points.versions(prefix)
        name = TableName(source.catalog, _levels(namespace), view)
        found = source.view(name)
        if found is None:
            sentence = f"[TABLE_OR_VIEW_NOT_FOUND] No view {name.without_catalog}."
            raise _RefusedError(404, "NoSuchViewException", sentence)
        # A view has no rows: its tables are the ones of the read point.
        return {"metadata-location": found[0], "metadata": found[1]}


def _add_refusals(app: FastAPI) -> None:
    @app.api_route("/{path:path}", methods=["POST", "PUT", "PATCH", "DELETE"])
    def write(path: str) -> None:  # noqa: ARG001
        raise _read_only()

    @app.exception_handler(_RefusedError)
    def refused(_request: Request, error: _RefusedError) -> Response:
        return error.response()

    @app.exception_handler(TautochroneError)
    def ours(_request: Request, error: TautochroneError) -> Response:
        if isinstance(error, TableMissingError):
            return _RefusedError(404, "NoSuchTableException", str(error)).response()
        if isinstance(error, CheckpointUnavailableError):
            # Engines show a 404 for a namespace or a warehouse as it is, without retrying.
            return _RefusedError(404, "NoSuchWarehouseException", str(error)).response()
        status = 503 if error.retryable else 500
        return _RefusedError(status, "ServiceFailureException", str(error)).response()

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405 and request.method not in _READ:
            return _read_only().response()
        return _RefusedError(error.status_code, "BadRequestException", str(error.detail)).response()


def _read_only() -> _RefusedError:
    return _RefusedError(
        405,
        "UnsupportedOperationException",
        "[CATALOG_READ_ONLY] This catalog shows the lake at one instant and is read-only: "
        "write through the pipeline's own catalog.",
    )


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(namespace.split("\x1f"))


class _Catalog:
    """What the routes share. Bodies are kept: the same file at the same version is the same text."""

    def __init__(self, read_points: ReadPointResolver, source: MetadataSource) -> None:
        self._read_points = read_points
        self._source = source
        self._bodies: OrderedDict[tuple[str, str | Streamed], bytes] = OrderedDict()
        self._lock = Lock()

    def require_namespace(self, levels: tuple[str, ...]) -> None:
        depth = len(levels)
        if not any(name[:depth] == levels for name in self._source.namespaces()):
            message = f"[SCHEMA_NOT_FOUND] There is no namespace {'.'.join(levels)}."
            raise _RefusedError(404, "NoSuchNamespaceException", message)

    def names(self, prefix: str, levels: tuple[str, ...]) -> list[dict[str, Any]]:
        lookup = self._read_points.versions(prefix)
        return [
            {"namespace": list(levels), "name": name.table}
            for name in self._source.tables(levels)
            if lookup(name) is not None
        ]

    def load(self, prefix: str, table: TableName) -> bytes:
        """The LoadTableResult of `table` as it is at the read point `prefix`."""
        found = self._read_points.versions(prefix)(table)
        location, metadata = self._source.load(table)
        if found is None:
            why = self._read_points.why_absent(prefix, table)
            raise _RefusedError(
                404,
                "NoSuchTableException",
                f"[TABLE_NOT_AT_INSTANT] {table} has no version at {prefix}: {why}.",
            )
        with self._lock:
            body = self._bodies.get((location, found))
            if body is not None:
                self._bodies.move_to_end((location, found))
                return body
        version = found.version if isinstance(found, Streamed) else found
        try:
            shown = metadata if version == NEWEST else at_version(metadata, Version(version))
        except SnapshotGoneError:
            raise _RefusedError(
                404,
                "NoSuchTableException",
                f"[SNAPSHOT_GONE] {table} no longer holds snapshot {version}, its version at "
                f"{prefix}: it was expired, or the table was replaced.",
            ) from None
        if isinstance(found, Streamed):
            shown = as_streamed(shown, found.whole, found.folder)
        result = {"metadata-location": location, "metadata": shown, "config": {}}
        body = json.dumps(result, separators=(",", ":")).encode()
        with self._lock:
            self._bodies[(location, found)] = body
            while len(self._bodies) > _KEEP_BODIES:
                self._bodies.popitem(last=False)
        return body
