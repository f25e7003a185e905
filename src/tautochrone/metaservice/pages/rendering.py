"""Renders templates as HTML: their functions and filters, numbers and times for people, error pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tautochrone.errors import CheckpointUnavailableError, QueryError, TautochroneError
from tautochrone.metaservice.http.access import LOGGED_IN, ROLE
from tautochrone.metaservice.http.proxies import prefix_of
from tautochrone.metaservice.pages.safety import CSRF_FIELD, csrf_token, protect, set_csrf_cookie
from tautochrone.model.durations import duration
from tautochrone.model.moments import iso_timestamp, now_ms
from tautochrone.model.names import TableName, describe_input, is_clock, is_file_table, is_shadow_table

__all__ = [
    "ASSETS",
    "NAVIGATION",
    "PageRoute",
    "ago",
    "asset",
    "axis_time",
    "count",
    "duration",
    "moment",
    "render",
    "short_count",
    "size",
]

NAVIGATION = (
    ("/", "Overview"),
    ("/alarms", "Alarms"),
    ("/graph", "Graph"),
    ("/datasets", "Datasets"),
    ("/checkpoints", "Checkpoints"),
    ("/plans", "Plans"),
    ("/jobs", "Jobs"),
    ("/sources", "Sources"),
    ("/query", "Query"),
    ("/revision", "Revision"),
)

ASSETS = {
    "pages.css": "text/css; charset=utf-8",
    "pages.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The static files that pages load, with their media types."""

_REFRESH_S = 5


@cache
def asset(name: str) -> tuple[bytes, str]:
    """A file's bytes and a prefix of their hash, which its URL contains so that browsers may cache it."""
    body = (files("tautochrone.metaservice.pages") / "static" / name).read_bytes()
    return body, hashlib.sha256(body).hexdigest()[:12]


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("tautochrone.metaservice.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "count": count,
        "duration": duration,
        "moment": moment,
        "slug": lambda text: str(text).replace(" ", "-").replace("_", "-"),
        "shown": _name_markup,
        "bytes": size,
        "words": lambda text: str(text).replace("_", " "),
        "described": describe_input,
    }
    environment.filters.update(filters)
    environment.filters["is_clock"] = is_clock
    return environment


def _name_markup(name: TableName) -> Markup:
    """A table's name in HTML. `bdi` keeps right-to-left characters from changing the text around it."""
    if is_file_table(name) or is_shadow_table(name):
        return Markup('<span class="name">{}</span>').format(describe_input(name))
    namespace = ".".join(name.namespace)
    markup = '<span class="name"><bdi class="space">{}</bdi>.<bdi>{}</bdi></span>'
    return Markup(markup).format(namespace, name.table)


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a fragment of a page for htmx."""
    token, now = csrf_token(request), now_ms()
    root, prefix = str(request.scope.get("root_path", "")), prefix_of(request.scope)

    def link(path: str, **query: object) -> str:
        pairs = {key: str(value) for key, value in query.items() if value is not None}
        return prefix + path + ("?" + urlencode(pairs) if pairs else "")

    def when(at_ms: int | None) -> Markup:
        if at_ms is None:
            return escape("–")
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            iso_timestamp(at_ms), moment(at_ms), ago(at_ms, now)
        )

    context = {
        "link": link,
        "when": when,
        "asset": lambda name: link(f"/static/{name}", v=asset(name)[1]),
        "csrf": Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, token),
        "navigation": NAVIGATION,
        "path": request.url.path.removeprefix(root),
        "here": link(request.url.path.removeprefix(root), **dict(request.query_params)),
        "now_ms": now,
        "refresh_s": _REFRESH_S,
        "role": request.scope.get(ROLE),
        "logged_in": request.scope.get(LOGGED_IN, False),
    }
    page = HTMLResponse(_templates().get_template(template).render(context | values), status_code=status)
    set_csrf_cookie(page, request, token)
    protect(page)
    return page


class PageRoute(APIRoute):
    """Answers errors with pages; the handlers of the application would answer with JSON."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def answer_errors(request: Request) -> Response:
            try:
                return await handler(request)
            except TautochroneError as error:
                return _failed(request, error)
            except RequestValidationError as error:
                parameters = ", ".join(str(part["loc"][-1]) for part in error.errors())
                return _failed(
                    request, QueryError("PAGE_NOT_FOUND", f"There is no such page: {parameters} is wrong")
                )

        return answer_errors


def _failed(request: Request, error: TautochroneError) -> Response:
    part = request.headers.get("hx-target") is not None and request.method == "POST"
    values: Mapping[str, Any] = {"error": error, "excerpt": error.excerpt.shown() if error.excerpt else ()}
    # htmx does not show an answer with an error status, so a fragment has the status 200.
    return render(
        request,
        "_error.html" if part else "error.html",
        status=200 if part else _status(error),
        **values,
    )


def _status(error: TautochroneError) -> int:
    if error.error_class == "FORM_REFUSED":
        return 403
    if error.error_class.endswith("_NOT_FOUND") or isinstance(error, CheckpointUnavailableError):
        return 404
    if isinstance(error, QueryError):
        return 400
    return 503 if error.retryable else 500


def ago(at_ms: int | None, now_ms: int) -> str:
    """How long ago; what lies ahead (clocks of two machines) is `just now`."""
    if at_ms is None:
        return "never"
    passed = now_ms - at_ms
    return "just now" if passed < 1_000 else f"{duration(passed)} ago"


def moment(at_ms: int | None) -> str:
    """`2026-05-01 12:03:04 UTC`."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def axis_time(at_ms: int) -> str:
    """For axes: `05-01 12:03:04`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%d %H:%M:%S")


def size(number_of_bytes: int | None) -> str:
    """`850 B`, `3.2 MB`, `12 GB`, in powers of 1024."""
    if number_of_bytes is None:
        return "–"
    value, units = float(number_of_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}".replace(".0 ", " ") if value < 10 else f"{value:.0f} {units[0]}"


def count(number: int | None) -> str:
    """With thin spaces between thousands: `1 234 567`."""
    return "–" if number is None else f"{number:,}".replace(",", "\u202f")


def short_count(number: float) -> str:
    """For axes and boxes: `850`, `1.2k`, `40k`, `3M`."""
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        # What would round to the next unit belongs to it.
        if round(number / limit, 1) >= 1:
            return f"{number / limit:.1f}".removesuffix(".0") + unit
    return str(round(number))
