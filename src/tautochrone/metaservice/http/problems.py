"""Errors over HTTP: RFC 9457 problem documents with class, message and hint.

The Iceberg catalog under `/v1` answers errors in Iceberg's form (`rest_catalog.routes`), because its clients
expect it.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from tautochrone.errors import (
    AccessError,
    CheckpointUnavailableError,
    ConflictError,
    MetaError,
    QueryError,
    TautochroneError,
)
from tautochrone.rest_catalog.routes import iceberg_error
from tautochrone.traces import trace_of

__all__ = [
    "PROBLEMS",
    "TRANSACTIONS",
    "Problem",
    "add_problems",
    "is_catalog_path",
    "problem_of",
    "refusal_of",
    "status_of",
]

_log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TRANSACTIONS = "/v1/transactions"
_GONE_CLASSES = ("CHECKPOINT_EXPIRED", "CHECKPOINT_REVOKED", "PIN_EXPIRED")
_STATUS_BY_CLASS = {
    "BODY_TOO_SLOW": 408,
    "JOB_RUNNING": 409,
    "READ_NOT_YET": 409,  # not 503, which proxies and monitors take for a broken service
    "BODY_TOO_LARGE": 413,
    "ADDRESS_TOO_LONG": 414,
    "CONTENT_TYPE_REFUSED": 415,
    "TRANSACTION_WRONG_SERVER": 421,
    "LEASE_INVALID": 422,
    "REQUEST_INVALID": 422,
    "VALUE_NOT_STORABLE": 422,
    "TOO_MANY_PINS": 429,
    "TRANSACTION_PARTICIPANT_UNKNOWN": 422,
}


class Problem(BaseModel):
    """An RFC 9457 problem, with the class, message and hint that `taut` would print."""

    type: str = Field(description="always `about:blank`; see `error_class`")
    title: str = Field(description="the error class")
    status: int
    detail: str = Field(description="one sentence")
    error_class: str
    sqlstate: str | None = None
    hint: str | None = None
    retryable: bool = False
    parameters: dict[str, str] = {}


_DESCRIPTIONS = {
    400: "The request cannot be understood",
    401: "No token, or an unknown one",
    403: "The role or the origin of the request does not allow it",
    404: "Not found",
    405: "The path has no such method",
    408: "The client sent the body too slowly",
    409: "The state of the store does not allow it",
    410: "It existed and is gone",
    413: "The body is too large for the role",
    414: "The address is too long",
    415: "The body is not of the type application/json",
    421: "The chunk belongs on another server, which the parameters name",
    422: "A value is invalid",
    429: "The token holds too many pins",
    500: "The service failed; its log has more",
    503: "Try again later",
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, description in _DESCRIPTIONS.items()
}
"""The errors of every operation, for the OpenAPI document."""


def add_problems(app: FastAPI) -> None:
    """Let `app` answer every error with a problem document."""

    @app.exception_handler(TautochroneError)
    def project_error(_request: Request, error: TautochroneError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    def invalid_request(_request: Request, error: RequestValidationError) -> Response:
        # Without the values: one of them may be a secret that was put into the wrong field.
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _response(422, "REQUEST_INVALID", f"The request does not fit: {problems}")

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        answer = _response(error.status_code, f"HTTP_{error.status_code}", str(error.detail))
        answer.headers.update(error.headers or {})
        if error.status_code == 405:
            # Starlette names only the methods of the first route that matches the path.
            answer.headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return answer

    @app.exception_handler(Exception)
    def unexpected_error(request: Request, error: Exception) -> Response:
        trace = trace_of(error, f"request {request.method} {request.url.path}")
        # Only in the log: the trace has paths of the service's machine.
        _log.error("a request failed; %s", trace, exc_info=error)
        return _response(
            500, "INTERNAL_ERROR", f"The service failed ({type(error).__name__}); its log has more"
        )


def _methods(app: FastAPI, request: Request) -> set[str]:
    methods: set[str] = set()
    for route in app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return methods


def problem_of(error: TautochroneError, status: int | None = None) -> Response:
    """An error as a response with a problem document."""
    answer = _response(
        status_of(error) if status is None else status,
        error.error_class,
        error.message,
        sqlstate=error.sqlstate,
        hint=error.hint,
        retryable=error.retryable,
        parameters=dict(error.parameters),
    )
    if error.retryable:
        answer.headers["Retry-After"] = "1"
    return answer


def is_catalog_path(path: str) -> bool:
    """Whether the catalog answers this path; the transactions lie beside it.

    >>> is_catalog_path("/v1/config"), is_catalog_path("/v1/transactions/t/begin")
    (True, False)
    """
    return path.startswith("/v1/") and path != TRANSACTIONS and not path.startswith(f"{TRANSACTIONS}/")


def refusal_of(path: str, error: TautochroneError, status: int) -> Response:
    """The answer to a request to `path` that no route gets, in the form that clients of the path expect."""
    return iceberg_error(status, error) if is_catalog_path(path) else problem_of(error, status)


def status_of(error: TautochroneError) -> int:
    """The HTTP status for an error."""
    if error.error_class in _STATUS_BY_CLASS:
        return _STATUS_BY_CLASS[error.error_class]
    if error.retryable:
        return 503
    if error.error_class in _GONE_CLASSES:
        return 410
    if error.error_class.endswith("_NOT_FOUND"):
        return 404
    if isinstance(error, AccessError):
        return 403
    if isinstance(error, CheckpointUnavailableError | ConflictError):
        return 409
    if isinstance(error, QueryError):
        return 400
    if isinstance(error, MetaError) and not error.error_class.startswith("META_"):
        return 409
    return 500


def _response(status: int, error_class: str, detail: str, **more: Any) -> Response:
    problem = Problem(
        type="about:blank", title=error_class, status=status, detail=detail, error_class=error_class, **more
    )
    # ASCII only: a name in the request may contain a surrogate, which UTF-8 cannot encode.
    body = json.dumps(problem.model_dump())
    return Response(body, status_code=status, media_type=MEDIA_TYPE)
