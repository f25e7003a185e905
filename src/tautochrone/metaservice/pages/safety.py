"""What keeps the pages from being used against their reader: headers, and a token in every form.

Names of tables, definitions and errors are other people's text. Templates escape it; if one ever failed to,
the policy below still lets no script run that isn't a file of ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from tautochrone.errors import QueryError

__all__ = ["CSRF_COOKIE", "CSRF_FIELD", "checked_form", "csrf_token", "protect", "remember"]

CSRF_COOKIE, CSRF_FIELD = "tautochrone_csrf", "csrf"

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would then send our own forms with the origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LONGEST_FORM = 256 * 1024


def protect(response: Response, *, cache: str = "no-store") -> Response:
    """Add the headers that every answer of ours has."""
    for name, value in _HEADERS.items():
        response.headers[name] = value
    response.headers["Cache-Control"] = cache
    return response


def csrf_token(request: Request) -> str:
    """The token of this browser: the one in its cookie, or a new one, which `remember` must set."""
    return request.cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(32)


def remember(response: Response, request: Request, token: str) -> None:
    """Give the browser its token. Other sites can neither read the cookie nor make the browser send it."""
    if request.cookies.get(CSRF_COOKIE) != token:
        secure = request.url.scheme == "https"
        response.set_cookie(CSRF_COOKIE, token, httponly=True, samesite="strict", secure=secure)


async def checked_form(request: Request) -> Mapping[str, str]:
    """The fields of a form that came from one of our own pages.

    Raises:
        QueryError: `FORM_REFUSED`, it did not, or is too long.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            raise QueryError("FORM_REFUSED", f"The form is longer than {_LONGEST_FORM // 1024} KiB")
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise QueryError("FORM_REFUSED", "The form is no UTF-8 text") from None
    cookie, field = request.cookies.get(CSRF_COOKIE, ""), fields.pop(CSRF_FIELD, "")
    same = secrets.compare_digest(cookie.encode(), field.encode())
    if not (cookie and same and _own_origin(request)):
        raise QueryError(
            "FORM_REFUSED",
            "The form did not come from a page of this service, or the page was opened too long ago",
            hint="open the page again; cookies must be allowed for it",
        )
    return fields


def _own_origin(request: Request) -> bool:
    """Browsers say where a form comes from; other clients need not."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
