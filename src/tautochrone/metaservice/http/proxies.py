"""Requests that come through a reverse proxy, as the browser sent them."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["ForwardedRequests", "prefix_of"]

_PREFIX = "tautochrone_prefix"


def prefix_of(scope: Scope) -> str:
    """What stands before the paths of this service in a browser, for links.

    The header is not ASGI's `root_path`: that is taken off the path to find its route, and who may ask would
    be decided by another path than the route's.
    """
    return f"{scope.get('root_path', '')}{scope.get(_PREFIX, '')}"


class ForwardedRequests:
    """Takes scheme, host, path prefix and client of a request from `X-Forwarded-Proto`, `-Host`, `-Prefix`
    and `-For`, if one of the trusted proxies sent it. Anybody else could write there whatever they like.

    Args:
        proxies: their addresses, as this process sees them.
    """

    def __init__(self, app: ASGIApp, proxies: Collection[str]) -> None:
        self._app, self._proxies = app, frozenset(filter(None, map(_address, proxies)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and _address(client[0]) in self._proxies:
            scope = _as_sent(scope)
        await self._app(scope, receive, send)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """One value for all spellings of an address. A socket for both versions of IP shows one of version 4 as
    `::ffff:10.0.0.1`. None: the client has none, such as one of a Unix socket."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


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
        scope[_PREFIX] = prefix
    return scope
