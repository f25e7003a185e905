"""The service's log on stderr: lines of text or one JSON object per line, with secrets redacted.

Each request is a line, and is counted: by path and route, never with its query or headers.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tautochrone.metaservice.http.access import ROLE
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tautochrone.metaservice.http.metrics import Metrics

__all__ = ["FIELDS", "RequestLog", "log_to_stderr"]

FIELDS = "tautochrone_fields"
"""The key of `extra` for the fields that a JSON line has besides its message."""
_NOT_LOGGED = ("/healthz", "/metrics")
_log = logging.getLogger("tautochrone.access")


def log_to_stderr(*, as_json: bool) -> None:
    """Send this process's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # They log each request with the whole URL, and each connection to Spark.
    for name in ("httpx", "httpcore", "uvicorn.access", "py4j"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _timestamp(record: logging.LogRecord) -> str:
    created = datetime.fromtimestamp(record.created, UTC)
    return created.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redacted(json.dumps(line, default=str))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value!r}" for key, value in getattr(record, FIELDS, {}).items())
        line = f"{_timestamp(record)} {record.levelname:<7} {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redacted(line)


class RequestLog:
    """The outermost middleware, so that refused requests are counted too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._record(scope, message["status"], time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, send_and_record)

    def _record(self, scope: Scope, status: int, took_s: float) -> None:
        # By route, because the number of different paths is unlimited.
        route = getattr(scope.get("route"), "path", None)
        if route is None:
            route = "/v1" if scope["path"].startswith("/v1/") else "other"
        method = scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 8 else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(took_s)
        if route in _NOT_LOGGED:
            return
        role = scope.get(ROLE)
        fields = {
            "method": method,
            "path": scope["path"],
            "status": status,
            "took_ms": round(took_s * 1000, 1),
            "role": None if role is None else str(role),
        }
        _log.info("request", extra={FIELDS: fields})
