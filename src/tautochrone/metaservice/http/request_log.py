"""A log line and metrics for every request: path and route, never its query or headers."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tautochrone.metaservice.http.logs import FIELDS
from tautochrone.metaservice.http.metrics import Metrics

__all__ = ["RequestLog"]

_log = logging.getLogger("tautochrone.access")
_NOT_LOGGED = ("/healthz", "/metrics")


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
        role = scope.get("tautochrone_role")
        fields = {
            "method": method,
            "path": scope["path"],
            "status": status,
            "took_ms": round(took_s * 1000, 1),
            "role": None if role is None else str(role),
        }
        _log.info("request", extra={FIELDS: fields})
