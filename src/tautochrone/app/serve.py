"""The MetaService as a process of its own: which store, which lake, who may ask."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tautochrone.app.locate import Options, locate
from tautochrone.app.storage import check_storage
from tautochrone.errors import SettingsError
from tautochrone.meta import MetaStore, Store
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.metaservice.pages import Forms
from tautochrone.metaservice.server import listen, uri_of, uvicorn_server
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.redaction import keep_secret
from tautochrone.rest_catalog.metadata_files import metadata_source
from tautochrone.rest_catalog.read_points import ReadPoints

__all__ = ["Place", "access_for", "run"]

_log = logging.getLogger("tautochrone.serve")

_VARIABLES = {
    "TAUTOCHRONE_SERVE_READ_TOKEN": Role.READ,
    "TAUTOCHRONE_SERVE_OPERATE_TOKEN": Role.OPERATE,
}
_SHORTEST_TOKEN = 16
_STORE_ALONE = "This service was started with a store alone: it knows no project to query or to revise"


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def run(options: Options, place: Place, *, meta_url: str | None = None) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        options: where the project is; not looked for when `meta_url` is given without a spec.
        place: where to listen.
        meta_url: a store instead of the project's.

    Raises:
        SettingsError: `TOKENS_MISSING` and what else is wrong with settings.
        MetaError: the store cannot be opened.
        EnvironmentProblemError: `SERVER_NOT_STARTED`, or the lake's catalog cannot be read.
    """
    located = None if meta_url and options.spec is None else _located(options, meta_url)
    settings = None if located is None else located[1]
    access = access_for(place, settings, os.environ)
    with ExitStack() as closing:
        bound = closing.enter_context(listen(place.host, place.port))
        store = closing.enter_context(MetaStore.open(settings.meta_url if settings else meta_url or ""))
        catalog = None if settings is None else (ReadPoints(store), metadata_source(settings.catalog))
        app = create_app(
            access=access,
            store=store,
            catalog=catalog,
            no_catalog="This service was started with a store alone: it knows no lake. "
            "Start it with a project to read tables through it",
            forms=closing.enter_context(_forms(located, store)),
        )
        _log.info("serving at %s", uri_of(bound))
        if catalog is None:
            _log.warning("the Iceberg catalog is not served: the service was started with a store alone")
        if access.anonymous is not None:
            _log.warning("no token is configured: everybody on this machine may do everything")
        server = uvicorn_server(app)
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn's own handlers come later, and it raises the signal again at its end: an orderly one.
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[bound])
        _log.info("stopped")


def _located(options: Options, meta_url: str | None) -> tuple[PipelineSpec, Settings]:
    spec, settings = locate(options)
    check_storage(spec, settings)
    return spec, replace(settings, meta_url=meta_url or settings.meta_url)


@contextmanager
def _forms(located: tuple[PipelineSpec, Settings] | None, store: Store) -> Iterator[Forms]:
    """Who stands behind the pages' forms, for as long as the service runs."""
    if located is None:
        yield Forms(why_not=_STORE_ALONE)
        return
    from tautochrone.app.console import Console

    console = Console(*located, store)
    try:
        yield Forms(runner=console, revisions=console)
    finally:
        console.close()


def access_for(place: Place, settings: Settings | None, environment: Mapping[str, str]) -> Access:
    """Who may ask: those with a token, or without any everybody on this machine.

    Raises:
        SettingsError: `TOKENS_MISSING`, other machines would get in without one; `TOKEN_TOO_SHORT`.
    """
    tokens: dict[str, Role] = {}
    # A token that stands under both roles may operate: the later one wins.
    for role, configured in (
        (Role.READ, settings.read_tokens if settings else ()),
        (Role.OPERATE, settings.operate_tokens if settings else ()),
    ):
        for value in configured:
            _add(tokens, value.reveal(), role, value.key)
        for name, of_variable in _VARIABLES.items():
            if of_variable is role and environment.get(name):
                _add(tokens, environment[name], role, name)
    if tokens:
        return Access.by_tokens(tokens)
    if not place.is_loopback:
        raise SettingsError(
            "TOKENS_MISSING",
            f"Without tokens the service listens on this machine only, not on {place.host}",
            hint="configure [meta.tokens.operate] or TAUTOCHRONE_SERVE_OPERATE_TOKEN, or leave --host away",
        )
    return Access.on_loopback(Role.OPERATE)


def _add(tokens: dict[str, Role], token: str, role: Role, origin: str) -> None:
    keep_secret(token)
    if len(token) < _SHORTEST_TOKEN:
        raise SettingsError(
            "TOKEN_TOO_SHORT",
            f"The token of {origin} has fewer than {_SHORTEST_TOKEN} characters and could be guessed",
            hint="make one: openssl rand -hex 32",
        )
    tokens[token] = role
