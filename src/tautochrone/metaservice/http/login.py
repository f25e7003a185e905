"""The login of browsers: a form takes the token and sets a session cookie without it."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from tautochrone.errors import AccessError
from tautochrone.metaservice.http.access import COOKIE, SESSION_S, Access, Sessions
from tautochrone.metaservice.http.problems import problem_of

__all__ = ["add_login"]

_MAX_BODY = 4_096
_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tautochrone</title></head>
<body><main><h1>Tautochrone</h1>
<form method="post" action="/login"><label>Token <input name="token" type="password" required autofocus
autocomplete="current-password"></label> <button>Open</button></form></main></body></html>
"""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
}


def add_login(app: FastAPI, access: Access, sessions: Sessions) -> None:
    """Add `/login` and `/logout` to `app`."""

    @app.get("/login", include_in_schema=False)
    def form() -> Response:
        return HTMLResponse(_FORM, headers=_HEADERS)

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY:
                break
        fields = parse_qs(body[:_MAX_BODY].decode("utf-8", "replace"))
        caller = access.caller_of(fields.get("token", [""])[0])
        if caller is None:
            return problem_of(AccessError("TOKEN_UNKNOWN", "The token that was shown is not known here"), 401)
        answer = RedirectResponse("/", status_code=303, headers=_HEADERS)
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
        answer = RedirectResponse("/login", status_code=303, headers=_HEADERS)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer
