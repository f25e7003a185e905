"""Access control: bearer tokens with the roles `read` and `operate`, and no requests from other sites.

Tokens are compared by their hashes, in constant time; the tokens themselves are not kept. A page of any site
can make a browser send requests with its cookies, also to services on loopback. So a request without a bearer
token must come from a page of this service, and, when the service has no tokens, name a host of this machine.
Browsers log in with a form, which takes the token and sets a session cookie without it.

The lease of a pin ends by itself, so that the pin of a reader that died does not keep versions forever. Its
length is bounded here by the caller's role; readers renew it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tautochrone.errors import AccessError, QueryError
from tautochrone.meta.wire import remote_calls
from tautochrone.metaservice.http.problems import is_catalog_path, problem_of, refusal_of

__all__ = [
    "CALLER",
    "COOKIE",
    "LONGEST_LEASE_MS",
    "LOOPBACK",
    "SESSION_S",
    "Access",
    "AccessMiddleware",
    "Caller",
    "Role",
    "Sessions",
    "add_login",
    "caller_of",
]

CALLER = "tautochrone_caller"
"""The key of the caller in a request's scope. `AccessMiddleware` sets it."""


class Role(StrEnum):
    """`READ` may read and hold short pins of its own, `OPERATE` may also change."""

    READ = "read"
    OPERATE = "operate"


LONGEST_LEASE_MS = MappingProxyType({Role.READ: 3_600_000, Role.OPERATE: 24 * 3_600_000})
"""An hour for readers, a day for operators, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that sent a request.

    Attributes:
        role: what it may do.
        identity: the same for all requests with one token, and for all requests without a token.
    """

    role: Role
    identity: str

    @property
    def pin_principal(self) -> str | None:
        """Whose pins the caller may renew and release; None: those of all callers."""
        return None if self.role is Role.OPERATE else self.identity

    def require_lease(self, lease_ms: int, *, least: int = 1) -> None:
        """Check the length of a lease.

        Raises:
            QueryError: `LEASE_INVALID`: shorter than `least`, or longer than the role allows.
        """
        longest = LONGEST_LEASE_MS[self.role]
        if not least <= lease_ms <= longest:
            raise QueryError(
                "LEASE_INVALID",
                f"A pin of the role {self.role} lasts {least} to {longest} milliseconds from now",
                hint="renew it while you read",
            )


def caller_of(scope: object) -> Caller:
    """The caller of a request; with the role operate in an application without `AccessMiddleware`."""
    caller = scope.get(CALLER) if isinstance(scope, dict) else None
    return caller if isinstance(caller, Caller) else Caller(Role.OPERATE, "operate")


COOKIE = "tautochrone_session"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# Requests by POST that the role `read` may send. The store checks who owns a pin.
_READS_BY_POST = ("/version/", "/api/v1/tokens", "/api/v1/pins", "/api/v1/query")
_FORMS_THAT_READ = ("/query", "/preview")
_PUBLIC_PATHS = ("/healthz", "/login", "/logout")
SESSION_S = 12 * 3600
_MAX_SESSIONS = 1_000


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens of one service, and the role of clients without a token.

    Attributes:
        hashes: the role of each token, by the token's SHA-256.
        anonymous: the role of clients without a token; None: they are refused.
        hosts: the host names that requests without a token may use; None: any.
    """

    hashes: Mapping[bytes, Role] = field(default_factory=dict)
    anonymous: Role | None = None
    hosts: frozenset[str] | None = None

    @classmethod
    def by_tokens(cls, tokens: Mapping[str, Role]) -> Access:
        """Each request needs one of the tokens."""
        return cls({_digest(token): role for token, role in tokens.items()})

    @classmethod
    def on_loopback(cls, role: Role) -> Access:
        """Every client on this machine has `role`, without a token."""
        return cls(anonymous=role, hosts=LOOPBACK)

    def caller_of(self, token: str) -> Caller | None:
        """The caller with this token; None when the token is unknown."""
        digest, caller = _digest(token), None
        # The loop does not stop at a match, so that its time does not tell which token matched.
        for known, role in self.hashes.items():
            if hmac.compare_digest(known, digest):
                # Hashed again: the store keeps the identity, and it must not help to guess the token.
                caller = Caller(role, f"{role}:{hashlib.sha256(b'identity' + known).hexdigest()[:32]}")
        return caller

    @property
    def anonymous_caller(self) -> Caller | None:
        """The caller of requests without a token; None: they are refused."""
        return None if self.anonymous is None else Caller(self.anonymous, f"{self.anonymous}:anonymous")


class Sessions:
    """Sessions of browsers that logged in with a token. They end with this process."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Caller, float]] = {}
        self._lock = Lock()

    def open(self, caller: Caller) -> str:
        """The id of a new session, which is the value of its cookie."""
        session, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if known[1] > now}
            while len(self._known) >= _MAX_SESSIONS:
                self._known.pop(next(iter(self._known)))
            self._known[session] = (caller, now + SESSION_S)
        return session

    def caller_of(self, session: str) -> Caller | None:
        with self._lock:
            caller, until = self._known.get(session, (None, 0.0))
        return caller if until > time.monotonic() else None

    def close(self, session: str) -> None:
        with self._lock:
            self._known.pop(session, None)


class AccessMiddleware:
    """Admits or refuses each request. It wraps the whole application, so that no route is left out."""

    def __init__(self, app: ASGIApp, access: Access, sessions: Sessions) -> None:
        self._app, self._access, self._sessions = app, access, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            try:
                caller = self._admit(request)
                scope[CALLER] = caller
                scope["tautochrone_role"] = None if caller is None else caller.role
            except AccessError as error:
                status = 401 if error.error_class.startswith("TOKEN_") else 403
                answer = refusal_of(scope["path"], error, status)
                if status == 401:
                    answer.headers["WWW-Authenticate"] = 'Bearer realm="tautochrone"'
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, request: Request) -> Caller | None:
        # The path that routes see. `request.url` is built with the header `Host` and may differ.
        path = request.scope["path"]
        changes = request.method not in _SAFE_METHODS and not _only_reads(path)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.hashes:
            caller = self._access.caller_of(token.strip())
            if caller is None:
                raise AccessError("TOKEN_UNKNOWN", "The token that was shown is not known here")
        else:
            self._require_host(request)
            if request.method not in _SAFE_METHODS:
                _require_same_site(request)
            caller = (
                self._sessions.caller_of(request.cookies.get(COOKIE, "")) or self._access.anonymous_caller
            )
            if path in _PUBLIC_PATHS:
                return caller
            if caller is None:
                raise AccessError(
                    "TOKEN_MISSING",
                    "This service answers only who shows a token",
                    hint="Set TAUTOCHRONE_META_TOKEN, or send `Authorization: Bearer …`.",
                )
        if changes and caller.role is not Role.OPERATE and path not in _PUBLIC_PATHS:
            raise AccessError(
                "ROLE_MISSING",
                "Changing something needs the role operate; this token has the role read",
            )
        return caller

    def _require_host(self, request: Request) -> None:
        # By DNS rebinding a page of another site can reach this service under its own host name.
        hosts = self._access.hosts
        if hosts is None:
            return
        try:
            name = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:
            name = None
        if name not in hosts:
            raise AccessError(
                "HOST_NOT_ALLOWED",
                "Without tokens this service answers only under the names of this machine",
                hint="Ask for 127.0.0.1 or localhost, or configure tokens.",
            )


def _only_reads(path: str) -> bool:
    """Whether a POST to this path changes nothing."""
    if path.startswith("/rpc/"):
        call = remote_calls().get(path.removeprefix("/rpc/"))
        return call is not None and call.for_readers
    # The catalog refuses writes itself.
    return is_catalog_path(path) or path in _FORMS_THAT_READ or path.startswith(_READS_BY_POST)


def _require_same_site(request: Request) -> None:
    """Refuse a change without a bearer token that comes from a page of another site.

    Browsers send these headers, and pages cannot change them; other clients do not send them.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    other_site = site not in (None, "same-origin", "none")
    if origin is not None:
        other_site = other_site or urlsplit(origin).netloc != request.headers.get("host")
    elif COOKIE in request.cookies:
        other_site = other_site or site is None
    if other_site:
        raise AccessError(
            "CROSS_SITE_REQUEST", "This came from a page of another site, and would have changed something"
        )


_MAX_LOGIN_BYTES = 4_096
_LOGIN_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tautochrone</title></head>
<body><main><h1>Tautochrone</h1>
<form method="post" action="/login"><label>Token <input name="token" type="password" required autofocus
autocomplete="current-password"></label> <button>Open</button></form></main></body></html>
"""
_LOGIN_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
}


def add_login(app: FastAPI, access: Access, sessions: Sessions) -> None:
    """Add `/login` and `/logout`, for browsers, to `app`."""

    @app.get("/login", include_in_schema=False)
    def form() -> Response:
        return HTMLResponse(_LOGIN_FORM, headers=_LOGIN_HEADERS)

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_LOGIN_BYTES:
                break
        fields = parse_qs(body[:_MAX_LOGIN_BYTES].decode("utf-8", "replace"))
        caller = access.caller_of(fields.get("token", [""])[0])
        if caller is None:
            return problem_of(AccessError("TOKEN_UNKNOWN", "The token that was shown is not known here"), 401)
        answer = RedirectResponse("/", status_code=303, headers=_LOGIN_HEADERS)
        answer.set_cookie(
            COOKIE,
            sessions.open(caller),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @app.post("/logout", include_in_schema=False)
    def logout(request: Request) -> Response:
        sessions.close(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", status_code=303, headers=_LOGIN_HEADERS)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer
