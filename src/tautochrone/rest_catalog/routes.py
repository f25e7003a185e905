"""A read-only Iceberg REST catalog whose prefix is a read point.

Any engine that speaks Iceberg REST reads all tables at one checkpoint by opening this catalog with
`warehouse=strong` (or `checkpoint-42`, `weak`): each table's current snapshot is its version at the read
point. The catalog must never write, and must not depend on which engine asks.
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
from tautochrone.model.catalog import NEWEST, Streamed, Unwritten, Widened
from tautochrone.model.names import TableName, Version
from tautochrone.rest_catalog.metadata import (
    MetadataSource,
    SnapshotGoneError,
    at_version,
    for_stream,
    with_columns,
)
from tautochrone.rest_catalog.read_points import ReadPoints

__all__ = ["catalog_app", "iceberg_error", "no_catalog_app"]

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
_CACHED_BODIES = 32
_READ_METHODS = ["GET", "HEAD"]


class _RefusedError(Exception):
    """An error in Iceberg's form: HTTP status, the name of Iceberg's exception, a sentence with our class."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message

    def response(self) -> Response:
        error = {"message": self.message, "type": self.kind, "code": self.status}
        return JSONResponse({"error": error}, status_code=self.status)


def catalog_app(read_points: ReadPoints, source: MetadataSource) -> FastAPI:
    """The catalog as an application that is mounted at `/v1`. Its errors have Iceberg's form."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    catalog = _Catalog(read_points, source)
    _add_namespaces(app, catalog, read_points, source)
    _add_tables(app, catalog, read_points, source)
    _add_refusals(app)  # after the only POST that is accepted

    @app.get("/config")
    def config(warehouse: str = "strong") -> dict[str, Any]:
        prefix = read_points.resolve(warehouse)
        return {"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": _ENDPOINTS}

    return app


def no_catalog_app(reason: str) -> FastAPI:
    """What is mounted at `/v1` when there is no lake to show. Each answer says `reason`, half a sentence."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.api_route("/{path:path}", methods=[*_READ_METHODS, "POST", "PUT", "PATCH", "DELETE"])
    def absent(path: str) -> Response:  # noqa: ARG001
        return _RefusedError(404, "NoSuchWarehouseException", f"[CATALOG_NOT_SERVED] {reason}.").response()

    return app


def iceberg_error(status: int, error: TautochroneError) -> Response:
    """A refused request as an answer in Iceberg's form."""
    kind = "NotAuthorizedException" if status == 401 else "ForbiddenException"
    return _RefusedError(status, kind, str(error)).response()


def _add_namespaces(app: FastAPI, catalog: _Catalog, read_points: ReadPoints, source: MetadataSource) -> None:
    @app.api_route("/{prefix}/namespaces", methods=_READ_METHODS)
    def namespaces(prefix: str, parent: str | None = None) -> dict[str, Any]:
        read_points.versions(prefix)
        parent_levels = _levels(parent) if parent else ()
        if parent_levels:
            catalog.require_namespace(parent_levels)
        depth = len(parent_levels) + 1
        children = {
            name[:depth]
            for name in source.namespaces()
            if len(name) >= depth and name[: depth - 1] == parent_levels
        }
        return {"namespaces": sorted(list(name) for name in children)}

    @app.api_route("/{prefix}/namespaces/{namespace}", methods=_READ_METHODS)
    def load_namespace(prefix: str, namespace: str) -> dict[str, Any]:
        read_points.versions(prefix)
        levels = _levels(namespace)
        catalog.require_namespace(levels)
        return {"namespace": list(levels), "properties": {}}


def _add_tables(app: FastAPI, catalog: _Catalog, read_points: ReadPoints, source: MetadataSource) -> None:
    @app.api_route(_TABLES, methods=_READ_METHODS)
    def tables(prefix: str, namespace: str) -> dict[str, Any]:
        levels = _levels(namespace)
        catalog.require_namespace(levels)
        return {"identifiers": catalog.names(prefix, levels)}

    @app.api_route(_TABLES + "/{table:path}", methods=_READ_METHODS)
    def table(prefix: str, namespace: str, table: str) -> Response:
        # Spark first asks for parquet.`/a/b` as a table, too: hence the path in the route.
        body = catalog.load(prefix, _table_name(source.catalog, namespace, table))
        return Response(body, media_type="application/json")

    @app.post(_TABLES + "/{table}/metrics", status_code=204)
    def metrics(prefix: str, namespace: str, table: str) -> None:
        """Accepts the scan reports that engines send, and ignores them."""

    @app.api_route(_VIEWS, methods=_READ_METHODS)
    def views(prefix: str, namespace: str) -> dict[str, Any]:  # noqa: ARG001
        return {"identifiers": []}

    @app.api_route(_VIEWS + "/{view:path}", methods=_READ_METHODS)
    def view(prefix: str, namespace: str, view: str) -> dict[str, Any]:
        read_points.versions(prefix)
        name = _table_name(source.catalog, namespace, view, "View")
        stored_view = source.view(name)
        if stored_view is None:
            sentence = f"[TABLE_OR_VIEW_NOT_FOUND] No view {name.without_catalog}."
            raise _RefusedError(404, "NoSuchViewException", sentence)
        # A view has no rows of its own: the engine loads its tables at the read point.
        return {"metadata-location": stored_view[0], "metadata": stored_view[1]}


def _add_refusals(app: FastAPI) -> None:
    @app.api_route("/{path:path}", methods=["POST", "PUT", "PATCH", "DELETE"])
    def write(path: str) -> None:  # noqa: ARG001
        raise _read_only_error()

    @app.exception_handler(_RefusedError)
    def refused_request(_request: Request, error: _RefusedError) -> Response:
        return error.response()

    @app.exception_handler(TautochroneError)
    def project_error(_request: Request, error: TautochroneError) -> Response:
        if isinstance(error, TableMissingError):
            return _RefusedError(404, "NoSuchTableException", str(error)).response()
        if isinstance(error, CheckpointUnavailableError):
            # Engines do not retry a 404 for a warehouse, and show its message.
            return _RefusedError(404, "NoSuchWarehouseException", str(error)).response()
        status = 503 if error.retryable else 500
        return _RefusedError(status, "ServiceFailureException", str(error)).response()

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405 and request.method not in _READ_METHODS:
            return _read_only_error().response()
        return _RefusedError(error.status_code, "BadRequestException", str(error.detail)).response()


def _read_only_error() -> _RefusedError:
    return _RefusedError(
        405,
        "UnsupportedOperationException",
        "[CATALOG_READ_ONLY] This catalog shows the lake at one read point and is read-only: "
        "write through the pipeline's own catalog.",
    )


def _levels(namespace: str) -> tuple[str, ...]:
    levels = tuple(namespace.split("\x1f"))
    if not all(map(_is_name, levels)):
        message = f"[SCHEMA_NOT_FOUND] There is no namespace {'.'.join(levels)!r}."
        raise _RefusedError(404, "NoSuchNamespaceException", message)
    return levels


def _table_name(catalog: str, namespace: str, table: str, kind: str = "Table") -> TableName:
    levels = _levels(namespace)
    if not _is_name(table):
        message = f"[TABLE_OR_VIEW_NOT_FOUND] There is no {kind.lower()} {table!r}."
        raise _RefusedError(404, f"NoSuch{kind}Exception", message)
    return TableName(catalog, levels, table)


def _is_name(name: str) -> bool:
    """Whether it names something in its folder: a path would leave it, or spell another name differently."""
    return name not in ("", ".", "..") and not {*name} & {"/", "\0"}


class _Catalog:
    """What the routes share. Response bodies are cached: one metadata file and one version give one text."""

    def __init__(self, read_points: ReadPoints, source: MetadataSource) -> None:
        self._read_points = read_points
        self._source = source
        self._bodies: OrderedDict[tuple[str, str | Streamed | Widened], bytes] = OrderedDict()
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
        """The LoadTableResult of `table` at the read point `prefix`, as JSON."""
        version_read = self._read_points.versions(prefix)(table)
        if isinstance(version_read, Unwritten):
            return f'{{"metadata":{version_read.metadata},"config":{{}}}}'.encode()
        location, metadata = self._source.load(table)
        if version_read is None:
            reason = self._read_points.missing_reason(prefix, table)
            raise _RefusedError(
                404,
                "NoSuchTableException",
                f"[TABLE_NOT_AT_INSTANT] {table} has no version at {prefix}: {reason}.",
            )
        with self._lock:
            body = self._bodies.get((location, version_read))
            if body is not None:
                self._bodies.move_to_end((location, version_read))
                return body
        version = version_read.version if isinstance(version_read, Streamed | Widened) else version_read
        try:
            served = metadata if version == NEWEST else at_version(metadata, Version(version))
        except SnapshotGoneError:
            raise _RefusedError(
                404,
                "NoSuchTableException",
                f"[SNAPSHOT_GONE] {table} no longer holds snapshot {version}, its version at "
                f"{prefix}: it was expired, or the table was replaced.",
            ) from None
        if isinstance(version_read, Streamed):
            served = for_stream(served, version_read.whole, version_read.folder)
        if isinstance(version_read, Widened):
            served = with_columns(served, version_read.columns)
        result = {"metadata-location": location, "metadata": served, "config": {}}
        body = json.dumps(result, separators=(",", ":")).encode()
        with self._lock:
            self._bodies[(location, version_read)] = body
            while len(self._bodies) > _CACHED_BODIES:
                self._bodies.popitem(last=False)
        return body
