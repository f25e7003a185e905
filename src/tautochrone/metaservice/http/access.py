"""Access control: bearer tokens with the roles `read` and `operate`, and no requests from other sites.

Tokens are compared by their hashes, in constant time; the tokens themselves are not kept. A page of any site
can make a browser send requests with its cookies, also to services on loopback. So a request without a bearer
token must come from a page of this service, and, when the service has no tokens, name a host of this machine.
Browsers log in with a form (`pages.login`), which takes the token and sets a session cookie without it. A
browser that asks for a page without one is sent to the form.

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
from urllib.parse import urlencode, urlsplit

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tautochrone.errors import AccessError, QueryError
from tautochrone.meta.wire import remote_calls
from tautochrone.metaservice.http.problems import is_catalog_path, refusal_of
from tautochrone.metaservice.http.proxies import prefix_of

__all__ = [
    "CALLER",
    "COOKIE",
    "LOGGED_IN",
    "LOGIN",
    "LOGOUT",
    "LONGEST_LEASE_MS",
    "LOOPBACK",
    "ROLE",
    "SESSION_S",
    "Access",
    "AccessMiddleware",
    "Caller",
    "Role",
    "Sessions",
    "caller_of",
]

CALLER = "tautochrone_caller"
ROLE, LOGGED_IN = "tautochrone_role", "tautochrone_logged_in"
"""Keys in a request's scope: its caller, the caller's role, and whether it is a browser that logged in.
`AccessMiddleware` sets them."""


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
_READS_BY_POST = ("/version/", "/api/v1/tokens", "/api/v1/pins", "/api/v1/query", "/api/v1/verifications")
_FORMS_THAT_READ = ("/query", "/preview")
LOGIN, LOGOUT = "/login", "/logout"
_STATIC = "/static/"
_PUBLIC_PATHS = ("/healthz", LOGIN, LOGOUT)
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
                scope[ROLE] = None if caller is None else caller.role
                scope[LOGGED_IN] = self._session_of(request) is not None
            except AccessError as error:
                await self._refused(request, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refused(self, request: Request, error: AccessError) -> Response:
        path = request.scope["path"]
        if not error.error_class.startswith("TOKEN_"):
            return refusal_of(path, error, 403)
        # A proxy that leaves its prefix in the path would be sent there for ever.
        is_form = path.endswith(LOGIN)
        if error.error_class == "TOKEN_MISSING" and _wants_page(request) and not is_form:
            return _to_login(request)
        answer = refusal_of(path, error, 401)
        answer.headers["WWW-Authenticate"] = 'Bearer realm="tautochrone"'
        return answer

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
            caller = self._session_of(request) or self._access.anonymous_caller
            if path in _PUBLIC_PATHS or (path.startswith(_STATIC) and not changes):
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

    def _session_of(self, request: Request) -> Caller | None:
        return self._sessions.caller_of(request.cookies.get(COOKIE, ""))

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


def _wants_page(request: Request) -> bool:
    """Whether a browser asks: to open a page, or to renew a part of an open one."""
    is_part = "hx-request" in request.headers
    return request.method == "GET" and (is_part or "text/html" in request.headers.get("accept", ""))


def _to_login(request: Request) -> Response:
    page = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
    login = f"{prefix_of(request.scope)}{LOGIN}?{urlencode({'next': page})}"
    if "hx-request" in request.headers:
        # htmx would put the form into the part of the page that it renews.
        return Response(status_code=401, headers={"HX-Redirect": login})
    return RedirectResponse(login, status_code=303, headers={"Cache-Control": "no-store"})


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
