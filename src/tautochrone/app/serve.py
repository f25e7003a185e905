"""The MetaService as a process of its own: its store, its lake, its tokens, its participants of
transactions."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from uuid import uuid4

from tautochrone.app.alarms import AlarmLoop
from tautochrone.app.locate import Options, locate
from tautochrone.app.publications import published_as
from tautochrone.app.serving import announced
from tautochrone.app.storage import check_storage
from tautochrone.app.unchanged import SinceLastRun
from tautochrone.errors import SettingsError
from tautochrone.meta import MetaStore, Store
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.coordinator import CoordinatorLoop, TransactionCoordinator
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.metaservice.pages import Forms
from tautochrone.metaservice.server import listen, uri_of, uvicorn_server
from tautochrone.model.transactions import CLIENT
from tautochrone.project.settings import ParticipantSettings, Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.redaction import keep_secret, redacted
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.rest_catalog.read_points import ReadPoints
from tautochrone.sinks.adapters import ConfiguredParticipant, open_participant

__all__ = ["ListenAddress", "access_for", "open_participants", "report_participants", "run"]

_log = logging.getLogger("tautochrone.serve")

_VARIABLES = {
    "TAUTOCHRONE_SERVE_READ_TOKEN": Role.READ,
    "TAUTOCHRONE_SERVE_OPERATE_TOKEN": Role.OPERATE,
}
_MIN_TOKEN_LENGTH = 16
_NO_PROJECT = "This service was started with a store alone: it knows no project to query or to revise"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def run(
    options: Options,
    address: ListenAddress,
    *,
    meta_url: str | None = None,
    proxies: Collection[str] = (),
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        options: where the project is; not looked for when `meta_url` is given without a spec.
        address: where to listen.
        meta_url: a store instead of the project's.
        proxies: addresses of reverse proxies whose `X-Forwarded` headers count.

    Raises:
        SettingsError: `TOKENS_MISSING`, `PROXY_INVALID` and other errors in the settings.
        MetaError: the store cannot be opened.
        EnvironmentProblemError: `SERVER_NOT_STARTED`, or the lake's catalog cannot be read.
    """
    located = None if meta_url and options.spec is None else _located(options, meta_url)
    settings = None if located is None else located[1]
    access = access_for(address, settings, os.environ)
    _require_addresses(proxies)
    if proxies and access.anonymous is not None:
        raise SettingsError(
            "TOKENS_MISSING",
            "Behind a proxy other machines reach the service, and no token is configured",
            hint="configure [meta.tokens.operate] or TAUTOCHRONE_SERVE_OPERATE_TOKEN",
        )
    participants = open_participants(settings.participants if settings else {})
    instance = uuid4().hex
    with ExitStack() as exit_stack:
        bound = exit_stack.enter_context(listen(address.host, address.port))
        store = exit_stack.enter_context(MetaStore.open(settings.meta_url if settings else meta_url or ""))
        catalog = None if settings is None else (ReadPoints(store), metadata_source(settings.catalog))
        coordinator = TransactionCoordinator(
            store, participants, keep_ids_ms=settings.keep_transaction_ids_ms if settings else None
        )
        exit_stack.enter_context(CoordinatorLoop(coordinator))
        exit_stack.enter_context(AlarmLoop(store, settings.alarm_targets if settings else ()))
        app = create_app(
            access=access,
            store=store,
            catalog=catalog,
            no_catalog="This service was started with a store alone: it knows no lake. "
            "Start it with a project to read tables through it",
            forms=exit_stack.enter_context(_forms(located, store)),
            coordinator=coordinator,
            instance=instance,
            proxies=proxies,
            published_as=(lambda _: {}) if settings is None else partial(published_as, settings, store),
            since_last_run=SinceLastRun(settings),
        )
        if located is not None:
            exit_stack.enter_context(announced(*located, uri_of(bound), instance, has_spark=False))
        _log.info("serving at %s", uri_of(bound))
        report_participants(participants)
        if catalog is None:
            _log.warning("the Iceberg catalog is not served: the service was started with a store alone")
        if access.anonymous is not None:
            _log.warning("no token is configured: everybody on this machine may do everything")
        server = uvicorn_server(app)
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn raises the signal again after its own shutdown; this handler keeps that exit orderly.
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[bound])
        _log.info("stopped")


def _require_addresses(proxies: Collection[str]) -> None:
    for proxy in proxies:
        try:
            ipaddress.ip_address(proxy)
        except ValueError as error:
            raise SettingsError(
                "PROXY_INVALID",
                f"{proxy} is no IP address",
                hint="name a proxy by the address that its requests come from, such as 127.0.0.1",
            ) from error


def _located(options: Options, meta_url: str | None) -> tuple[PipelineSpec, Settings]:
    spec, settings = locate(options)
    check_storage(spec, settings)
    return spec, replace(settings, meta_url=meta_url or settings.meta_url)


@contextmanager
def _forms(located: tuple[PipelineSpec, Settings] | None, store: Store) -> Iterator[Forms]:
    """What runs the pages' forms, for as long as the service runs."""
    if located is None:
        yield Forms(unavailable_reason=_NO_PROJECT)
        return
    from tautochrone.app.console import Console

    console = Console(*located, store)
    try:
        yield Forms(runner=console, revisions=console)
    finally:
        console.close()


def access_for(address: ListenAddress, settings: Settings | None, environment: Mapping[str, str]) -> Access:
    """Who may call the service: those with a token; without any token, everybody on this machine.

    Raises:
        SettingsError: `TOKENS_MISSING`, other machines could call it without one; `TOKEN_TOO_SHORT`.
    """
    tokens: dict[str, Role] = {}
    # A token of both roles may operate: the later entry wins.
    for role, configured in (
        (Role.READ, settings.read_tokens if settings else ()),
        (Role.OPERATE, settings.operate_tokens if settings else ()),
    ):
        for value in configured:
            _add_access_token(tokens, value.reveal(), role, value.key)
        for name, variable_role in _VARIABLES.items():
            if variable_role is role and environment.get(name):
                _add_access_token(tokens, environment[name], role, name)
    if tokens:
        return Access.by_tokens(tokens)
    if not address.is_loopback:
        raise SettingsError(
            "TOKENS_MISSING",
            f"Without tokens the service listens on this machine only, not on {address.host}",
            hint="configure [meta.tokens.operate] or TAUTOCHRONE_SERVE_OPERATE_TOKEN, or leave --host away",
        )
    return Access.on_loopback(Role.OPERATE)


def _add_access_token(tokens: dict[str, Role], token: str, role: Role, origin: str) -> None:
    keep_secret(token)
    if len(token) < _MIN_TOKEN_LENGTH:
        raise SettingsError(
            "TOKEN_TOO_SHORT",
            f"The token of {origin} has fewer than {_MIN_TOKEN_LENGTH} characters and could be guessed",
            hint="make one: openssl rand -hex 32",
        )
    tokens[token] = role


def open_participants(sections: Mapping[str, ParticipantSettings]) -> dict[str, ConfiguredParticipant]:
    """The participants of transactions by name: those of the sections `[transactions.participants.NAME]`.
    Nothing is connected to.

    Raises:
        SettingsError: `PARTICIPANT_NAME_RESERVED`, `SECRET_NOT_FOUND`; as `open_participant`.
    """
    participants: dict[str, ConfiguredParticipant] = {}
    for name, section in sections.items():
        if name == CLIENT:
            raise SettingsError(
                "PARTICIPANT_NAME_RESERVED",
                f"No participant of the service can be called {CLIENT}: that is the program itself",
                hint="choose another name",
                location=section.origin,
            )
        options = {option: str(value.reveal()) for option, value in section.options.items()}
        participants[name] = open_participant(name, section.format, options, section.origin)
    return participants


def report_participants(participants: Mapping[str, ConfiguredParticipant]) -> list[Thread]:
    """Log the participants, and in threads those whose targets do not let us in. The service starts without
    these: their transactions wait."""
    threads = []
    for name, participant in participants.items():
        _log.info("participant %s of transactions: %s", name, participant.description)
        thread = Thread(
            target=_check_participant, args=(name, participant), name=f"participant-{name}", daemon=True
        )
        thread.start()
        threads.append(thread)
    return threads


def _check_participant(name: str, participant: ConfiguredParticipant) -> None:
    try:
        participant.check()
    except Exception as error:
        _log.warning("participant %s cannot commit now: %s", name, redacted(str(error)))
