"""Who may do what: bearer tokens with the roles `read` and `operate`, and no requests from other sites.

Tokens are compared by their hashes, in constant time; the tokens themselves are not kept. A browser adds
cookies, and reaches services on loopback, whatever page asks it to. So what comes without a token in its
header must come from a page of ours, and from a name of this machine when no token protects the service.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tautochrone.errors import AccessError
from tautochrone.meta.wire import remote_calls
from tautochrone.metaservice.http.pin_owners import CALLER, Caller, Role
from tautochrone.metaservice.http.problems import problem_of
from tautochrone.rest_catalog.routes import refusal

__all__ = ["COOKIE", "LOOPBACK", "SESSION_S", "Access", "Guard", "Role", "Sessions"]

COOKIE = "tautochrone_session"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE = ("GET", "HEAD", "OPTIONS")
# The catalog refuses writes itself; what is posted to it, to `/version` and for a write token asks. Readers
# hold pins of their own: whose a pin is the store compares.
_READS_BY_POST = ("/v1/", "/version/", "/api/v1/tokens", "/api/v1/pins")
_READING_FORMS = ("/query", "/preview")
_OPEN = ("/healthz", "/login", "/logout")
SESSION_S = 12 * 3600
_MOST_SESSIONS = 1_000


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens of one service, and what those may do who show none.

    Attributes:
        hashes: SHA-256 of each token, and its role.
        anonymous: None: a token is needed.
        hosts: the names by which the service may be addressed without a token; None: any.
    """

    hashes: Mapping[bytes, Role] = field(default_factory=dict)
    anonymous: Role | None = None
    hosts: frozenset[str] | None = None

    @classmethod
    def by_tokens(cls, tokens: Mapping[str, Role]) -> Access:
        """Only who shows one of the tokens may do anything."""
        return cls({_digest(token): role for token, role in tokens.items()})

    @classmethod
    def on_loopback(cls, role: Role) -> Access:
        """Everybody on this machine has `role`."""
        return cls(anonymous=role, hosts=LOOPBACK)

    def role_of(self, token: str) -> Role | None:
        """The role of a token; None when it is unknown."""
        caller = self.caller_of(token)
        return None if caller is None else caller.role

    def caller_of(self, token: str) -> Caller | None:
        """Who shows a token; None when it is unknown."""
        shown, found = _digest(token), None
        # All of them, so that the time tells nothing about which one it was.
        for known, role in self.hashes.items():
            if hmac.compare_digest(known, shown):
                # Hashed once more: an identity is kept in the store, and must not help to guess the token.
                found = Caller(role, f"{role}:{hashlib.sha256(b'identity' + known).hexdigest()[:32]}")
        return found

    @property
    def nobody(self) -> Caller | None:
        """Who shows no token; None: they are refused."""
        return None if self.anonymous is None else Caller(self.anonymous, f"{self.anonymous}:anonymous")


class Sessions:
    """Browsers that showed a token once. They live in this process: a restart asks for the token again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Caller, float]] = {}
        self._lock = Lock()

    def open(self, caller: Caller) -> str:
        """A new session's id, the value of the cookie."""
        session, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if known[1] > now}
            while len(self._known) >= _MOST_SESSIONS:
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


class Guard:
    """Lets a request through, or answers it. Around the whole application: no route can be forgotten."""

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
                catalog = scope["path"].startswith("/v1/")
                answer = refusal(status, error) if catalog else problem_of(error, status)
                if status == 401:
                    answer.headers["WWW-Authenticate"] = 'Bearer realm="tautochrone"'
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, request: Request) -> Caller | None:
        # The path that routes see: one put together with the header `Host` may be another.
        path = request.scope["path"]
        changes = request.method not in _SAFE and not _reads(path)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._access.hashes:
            caller = self._access.caller_of(token.strip())
            if caller is None:
                raise AccessError("TOKEN_UNKNOWN", "The token that was shown is not known here")
        else:
            self._require_host(request)
            if request.method not in _SAFE:
                _require_own_page(request)
            caller = self._sessions.caller_of(request.cookies.get(COOKIE, "")) or self._access.nobody
            if path in _OPEN:
                return caller
            if caller is None:
                raise AccessError(
                    "TOKEN_MISSING",
                    "This service answers only who shows a token",
                    hint="Set TAUTOCHRONE_META_TOKEN, or send `Authorization: Bearer …`.",
                )
        if changes and caller.role is not Role.OPERATE and path not in _OPEN:
            raise AccessError(
                "ROLE_MISSING",
                "Changing something needs the role operate; this token has the role read",
            )
        return caller

    def _require_host(self, request: Request) -> None:
        # A page may give its own name our address (DNS rebinding), and is then no other site.
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


def _reads(path: str) -> bool:
    """Whether a POST only asks."""
    if path.startswith("/rpc/"):
        call = remote_calls().get(path.removeprefix("/rpc/"))
        return call is not None and call.for_readers
    return path in _READING_FORMS or path.startswith(_READS_BY_POST)


def _require_own_page(request: Request) -> None:
    """A change without a token in its header must not come from a page of another site.

    Programs send neither of the headers; browsers send them, and pages cannot change them.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if origin is not None:
        foreign = foreign or urlsplit(origin).netloc != request.headers.get("host")
    elif COOKIE in request.cookies:
        foreign = foreign or site is None
    if foreign:
        raise AccessError(
            "CROSS_SITE_REQUEST", "This came from a page of another site, and would have changed something"
        )
