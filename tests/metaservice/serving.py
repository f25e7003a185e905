"""The application behind a real socket, for what a client in the same process cannot see: streams, time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fastapi import FastAPI

from tautochrone.metaservice.server import listen, uri_of, uvicorn_server

__all__ = ["serving"]


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    bound = listen("127.0.0.1", 0)
    server = uvicorn_server(app)
    thread = Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield uri_of(bound)
    server.should_exit = True
    thread.join(10)
    bound.close()
    assert not thread.is_alive()
