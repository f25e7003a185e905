"""Requests that come through a reverse proxy, as the browser sent them."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["ForwardedRequests"]


class ForwardedRequests:
    """Takes scheme, host, path prefix and client of a request from `X-Forwarded-Proto`, `-Host`, `-Prefix`
    and `-For`, if one of the trusted proxies sent it. Anybody else could write there whatever they like.

    Args:
        proxies: their addresses, as this process sees them.
    """

    def __init__(self, app: ASGIApp, proxies: Collection[str]) -> None:
        self._app, self._proxies = app, frozenset(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and client[0] in self._proxies:
            scope = _as_sent(scope)
        await self._app(scope, receive, send)


def _as_sent(scope: Scope) -> Scope:
    headers: dict[bytes, bytes] = dict(scope["headers"])

    def forwarded(name: str) -> str:
        # Each proxy of a chain appends its value: the last one is that of the trusted proxy.
        return headers.get(f"x-forwarded-{name}".encode(), b"").decode("latin-1").rpartition(",")[2].strip()

    scope = dict(scope)
    if forwarded("proto") in ("http", "https"):
        scope["scheme"] = forwarded("proto")
    if forwarded("host"):
        others = [header for header in scope["headers"] if header[0] != b"host"]
        scope["headers"] = [(b"host", forwarded("host").encode("latin-1")), *others]
    if forwarded("for"):
        scope["client"] = (forwarded("for"), 0)
    prefix = forwarded("prefix").rstrip("/")
    if prefix.startswith("/") and not prefix.startswith("//"):
        scope["root_path"] = prefix
    return scope
