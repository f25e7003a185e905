"""The MetaService's HTTP server inside a job's own process, on this machine only.

FastAPI and uvicorn are imported when a server starts: commands that need none don't pay for them.
"""

from __future__ import annotations

import logging
import socket
import time
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING

from tautochrone.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tautochrone.service.instants import InstantResolver
    from tautochrone.service.metadata import MetadataSource

__all__ = ["EmbeddedServer", "create_app"]

_START_TIMEOUT_S = 20.0


def create_app(instants: InstantResolver, source: MetadataSource) -> FastAPI:
    """The FastAPI application that serves the read-only catalog."""
    from fastapi import FastAPI

    from tautochrone.service.catalog import add_catalog

    app = FastAPI(title="Tautochrone MetaService", docs_url=None, redoc_url=None, openapi_url=None)
    add_catalog(app, instants, source)
    return app


class EmbeddedServer:
    """Serves from a daemon thread on a free port of 127.0.0.1 from construction until `stop()`.

    Raises:
        EnvironmentProblemError: `SERVER_NOT_STARTED`.
    """

    def __init__(self, instants: InstantResolver, source: MetadataSource, *, port: int = 0) -> None:
        import uvicorn

        try:
            # Bound here and handed over, so that the port is known and taken before anyone asks.
            self._socket = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise EnvironmentProblemError(
                "SERVER_NOT_STARTED", f"Port {port} of 127.0.0.1 cannot be opened: {error}"
            ) from error
        host, found = self._socket.getsockname()
        self._uri = f"http://{host}:{found}"
        config = uvicorn.Config(
            create_app(instants, source),
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
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
                self.stop()
                raise EnvironmentProblemError("SERVER_NOT_STARTED", "The embedded server did not start")
            time.sleep(0.005)

    @property
    def uri(self) -> str:
        """The base URI for Iceberg REST clients."""
        return self._uri

    def stop(self) -> None:
        """Stop serving; open requests get two seconds. Repeatable."""
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
