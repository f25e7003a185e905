"""Serves an application on a free port of this machine."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from fastapi import FastAPI

from tautochrone.metaservice.server import embedded_server

__all__ = ["serving"]


@contextmanager
def serving(app: FastAPI, *, root_path: str = "") -> Iterator[str]:
    """Serve until the end of the block. Yields the base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, log_config=None, log_level=logging.WARNING, lifespan="off", root_path=root_path
        )
        server, end = embedded_server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        host, port = listening.getsockname()
        yield f"http://{host}:{port}"
        end()
        thread.join(timeout=5)
