"""Protection of the pages: security headers, and a CSRF token in every form.

Names of tables, definitions and errors are untrusted text, which templates escape. Should one fail to, the
content security policy lets only scripts run that are files of this service.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from tautochrone.errors import QueryError

__all__ = ["CSRF_COOKIE", "CSRF_FIELD", "checked_form", "csrf_token", "protect", "set_csrf_cookie"]

CSRF_COOKIE, CSRF_FIELD = "tautochrone_csrf", "csrf"

_CONTENT_POLICY = "; ".join(
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
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would then send forms with the origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_MAX_FORM_BYTES = 256 * 1024


def protect(response: Response, *, cache: str = "no-store") -> Response:
    """Add the security headers of all pages."""
    for name, value in _HEADERS.items():
        response.headers[name] = value
    response.headers["Cache-Control"] = cache
    return response


def csrf_token(request: Request) -> str:
    """The token in the browser's cookie, or a new one, which `set_csrf_cookie` must set."""
    return request.cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(32)


def set_csrf_cookie(response: Response, request: Request, token: str) -> None:
    """Set the token's cookie. Other sites can neither read it nor make the browser send it."""
    if request.cookies.get(CSRF_COOKIE) != token:
        secure = request.url.scheme == "https"
        response.set_cookie(CSRF_COOKIE, token, httponly=True, samesite="strict", secure=secure)


async def checked_form(request: Request) -> Mapping[str, str]:
    """The fields of a form, after the check that a page of this service sent it.

    Raises:
        QueryError: `FORM_REFUSED`: another site sent it, or it is too long.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise QueryError("FORM_REFUSED", f"The form is longer than {_MAX_FORM_BYTES // 1024} KiB")
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
    """Browsers send the origin of a form; other clients need not."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
