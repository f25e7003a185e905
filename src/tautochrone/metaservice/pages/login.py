"""Logging in and out: a form takes a token and sets the cookie of a session, which does not contain it."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request, Response
from starlette.responses import RedirectResponse

from tautochrone.errors import AccessError
from tautochrone.metaservice.http.access import COOKIE, LOGIN, LOGOUT, SESSION_S, Access, Sessions
from tautochrone.metaservice.http.problems import problem_of
from tautochrone.metaservice.http.proxies import prefix_of
from tautochrone.metaservice.pages.rendering import render

__all__ = ["add_login"]

_MAX_FORM_BYTES = 16_384
_NO_STORE = {"Cache-Control": "no-store"}


def add_login(app: FastAPI, access: Access, sessions: Sessions) -> None:
    """Add `/login` and `/logout`, for browsers, to `app`."""

    @app.get(LOGIN, include_in_schema=False)
    def form(request: Request, next: str = "/") -> Response:  # noqa: A002
        if sessions.caller_of(request.cookies.get(COOKIE, "")) is not None:
            return _to(request, own_page(next))
        return _form(request, own_page(next))

    @app.post(LOGIN, include_in_schema=False)
    async def login(request: Request) -> Response:
        fields = await _fields(request)
        caller, page = access.caller_of(fields.get("token", "")), own_page(fields.get("next", "/"))
        if caller is None:
            error = AccessError("TOKEN_UNKNOWN", "The token that was shown is not known here")
            if "text/html" not in request.headers.get("accept", ""):
                return problem_of(error, 401)
            return _form(request, page, error)
        answer = _to(request, page)
        answer.set_cookie(
            COOKIE,
            sessions.open(caller),
            max_age=SESSION_S,
            httponly=True,
            # Not `strict`: a link in an e-mail or a chat would ask who is logged in to log in again. Only a
            # GET has the cookie then, which changes nothing.
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return answer

    @app.post(LOGOUT, include_in_schema=False)
    def logout(request: Request) -> Response:
        sessions.close(request.cookies.get(COOKIE, ""))
        answer = _to(request, LOGIN)
        answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
        return answer


def _form(request: Request, page: str, error: AccessError | None = None) -> Response:
    status = 200 if error is None else 401
    return render(request, "login.html", status=status, next=page, error=error, navigation=())


async def _fields(request: Request) -> dict[str, str]:
    """The fields of the form, as far as they are not too long for any token."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            break
    fields = parse_qs(body[:_MAX_FORM_BYTES].decode("utf-8", "replace"))
    return {name: values[0] for name, values in fields.items()}


def own_page(page: str) -> str:
    """The page to open after logging in, if it is one of this service, and otherwise the first one.

    Browsers take `//host` and `/\\host` for other sites, and leave out tabs and line breaks.

    >>> own_page("/dataset?name=a"), own_page("//evil.example"), own_page("https://evil.example/")
    ('/dataset?name=a', '/', '/')
    """
    is_plain = page.isprintable() and "\\" not in page
    try:
        parts = urlsplit(page)
    except ValueError:
        return "/"
    is_path = page.startswith("/") and not page.startswith("//") and not parts.netloc
    return page if is_plain and is_path and parts.path not in (LOGIN, LOGOUT) else "/"


def _to(request: Request, page: str) -> Response:
    return RedirectResponse(prefix_of(request.scope) + page, status_code=303, headers=_NO_STORE)
