"""An HTTP server for the MetaService's application, in a thread of a job or as a process of its own.

FastAPI and uvicorn are imported when a server starts, so that commands without a server start faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from secrets import token_urlsafe
from threading import Thread
from typing import TYPE_CHECKING
from uuid import uuid4

from tautochrone.errors import EnvironmentProblemError
from tautochrone.model.closeable import Closeable

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tautochrone.meta import Store
    from tautochrone.model.query import QueryRunner
    from tautochrone.model.sink import PublishedAs
    from tautochrone.rest_catalog.metadata import MetadataSource
    from tautochrone.rest_catalog.read_points import ReadPoints

__all__ = ["EmbeddedServer", "embedded_server", "listen", "uri_of", "uvicorn_server"]

_START_TIMEOUT_S = 20.0
_SHUTDOWN_S = 2
_TICK_S = 1.0
"""So often the time in the heads of answers is renewed."""
# More than all requests and streams that the limits allow; further connections wait.
_MAX_CONNECTIONS = 1_000
_EMBEDDED_IN_JOB = (
    "This is the service of a running job, which only shows; `taut serve` in the project does this"
)

_HINTS = {
    errno.EADDRINUSE: "another program listens there, such as another taut serve: choose another port with "
    "--port; 0 takes a free one",
    errno.EACCES: "ports below 1024 are for root: choose another with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: --host 127.0.0.1, or 0.0.0.0 for all",
}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Open it first, so that the port is known and taken before the server starts.

    Args:
        port: 0 takes a free port.

    Raises:
        EnvironmentProblemError: `SERVER_NOT_STARTED`: the port cannot be opened.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
        # asyncio sets the option only on sockets that name their protocol. Without it the body of an answer
        # waits 40 ms for the client's delayed acknowledgement of the head. Connections inherit it.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OverflowError as error:
        raise EnvironmentProblemError(
            "SERVER_NOT_STARTED", f"{port} is no port", hint="ports are 0 to 65535; 0 takes a free one"
        ) from error
    except OSError as error:
        # Python adds the address once more to the system's text.
        why = os.strerror(error.errno) if error.errno in _HINTS else str(error)
        raise EnvironmentProblemError(
            "SERVER_NOT_STARTED",
            f"Port {port} of {host} cannot be opened: {why}",
            hint=_HINTS.get(error.errno or 0),
        ) from error


def uri_of(listening: socket.socket) -> str:
    """The URL of a listening socket, for clients on this machine."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    """A server without a log of its own, which gives open requests two seconds when it stops."""
    import uvicorn

    from tautochrone.metaservice.http.head_timeout import HeadTimeoutProtocol

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            lifespan="off",
            server_header=False,
            # `ForwardedRequests` does it, for proxies that are named.
            proxy_headers=False,
            http=HeadTimeoutProtocol,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )


def embedded_server(config: uvicorn.Config) -> tuple[uvicorn.Server, Callable[[], None]]:
    """A server to run in a thread, and what ends it: at once if no request is open. uvicorn takes 0.2 s."""
    import uvicorn

    class EmbeddedInJob(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self._loop: asyncio.AbstractEventLoop | None = None
            self._ended = asyncio.Event()

        async def main_loop(self) -> None:
            self._loop = asyncio.get_running_loop()
            while not await self.on_tick(0):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _TICK_S)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self.server_state.tasks:
                await super().shutdown(sockets)
                return
            for server in self.servers:
                server.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            await asyncio.sleep(0)  # until the connections are closed

        def end(self) -> None:
            self.should_exit = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended already
                    self._loop.call_soon_threadsafe(self._ended.set)

    server = EmbeddedInJob(config)
    return server, server.end


class _OnDemand:
    """The catalog once somebody asks; pages and the API of the store once somebody asks for one of them.

    To import what both are made of takes a third of a second, and their 60 routes longer than a small
    refresh: a job that runs once has ended before.
    """

    def __init__(self, catalog: Callable[[], FastAPI], complete: Callable[[], FastAPI] | None) -> None:
        self._make_catalog, self._make_complete = catalog, complete
        self._app: FastAPI | None = None
        self._is_complete = False
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if app is None or not self._suffices(scope):
            app = await self._made(scope)
        await app(scope, receive, send)

    def _suffices(self, scope: Scope) -> bool:
        """Whether what there is answers the request, so that a read of the catalog waits for no page."""
        return self._is_complete or self._make_complete is None or _is_of_catalog(scope)

    async def _made(self, scope: Scope) -> FastAPI:
        async with self._making:
            if self._make_complete is not None and not self._suffices(scope):
                self._app = await asyncio.to_thread(self._make_complete)
                self._is_complete = True
            elif self._app is None:
                self._app = await asyncio.to_thread(self._make_catalog)
            return self._app


def _is_of_catalog(scope: Scope) -> bool:
    from tautochrone.metaservice.http.problems import is_catalog_path

    path = scope.get("path", "")
    return is_catalog_path(path) or path == "/healthz"


class EmbeddedServer(Closeable):
    """Serves from a daemon thread on a free port of 127.0.0.1 from construction until `close`.

    With a store it serves what `taut serve` does, for the role read; without a store only the catalog.

    Args:
        queries: makes what answers `/api/v1/query` to who knows `key`, with the first request for a page or
            for the API of the store.

    Attributes:
        instance: by which `/healthz` tells this server from others.

    Raises:
        EnvironmentProblemError: `SERVER_NOT_STARTED`.
    """

    def __init__(
        self,
        read_points: ReadPoints,
        source: MetadataSource,
        *,
        store: Store | None = None,
        queries: Callable[[], QueryRunner] | None = None,
        published_as: Callable[[int], PublishedAs] = lambda _number: {},
        port: int = 0,
    ) -> None:
        self._socket = listen("127.0.0.1", port)
        self._uri = uri_of(self._socket)
        self.instance, self.key = uuid4().hex, token_urlsafe(32)

        def catalog() -> FastAPI:
            from tautochrone.metaservice.app import create_app
            from tautochrone.metaservice.http.access import Access, Role

            access = Access.on_loopback(Role.READ)
            return create_app(access=access, catalog=(read_points, source), instance=self.instance)

        def complete() -> FastAPI:
            from tautochrone.metaservice.app import create_app
            from tautochrone.metaservice.http.access import Access, Role

            return create_app(
                access=Access.on_loopback(Role.READ),
                store=store,
                catalog=(read_points, source),
                forms=_EMBEDDED_IN_JOB,
                queries=None if queries is None else (queries(), self.key),
                instance=self.instance,
                published_as=published_as,
            )

        app = _OnDemand(catalog, None if store is None else complete)
        self._server, self._end = embedded_server(uvicorn_server(app).config)
        self._thread = Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name="tautochrone-service",
            daemon=True,
        )
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self.close()
                raise EnvironmentProblemError("SERVER_NOT_STARTED", "The embedded server did not start")
            time.sleep(0.005)

    @property
    def uri(self) -> str:
        """The base URL, `http://127.0.0.1:port`."""
        return self._uri

    def close(self) -> None:
        """Stop serving. Open requests get two seconds. May be called again."""
        self._end()
        self._thread.join(timeout=5)
        self._socket.close()
