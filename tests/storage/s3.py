"""A server that speaks S3's protocol, and a proxy in front of it that loses answers."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

__all__ = ["KEY", "REGION", "SECRET", "LosingProxy", "bucket", "s3_process", "s3_server"]

KEY, SECRET, REGION = "key", "secret", "us-east-1"


_put_object, _lock = S3Response.put_object, threading.Lock()


def _put_one_by_one(self: S3Response) -> tuple[int, dict[str, Any], str | bytes]:
    """As Amazon's server does. That of the tests looks whether an object is there, and writes it then."""
    with _lock:
        return _put_object(self)


@contextmanager
def s3_server() -> Iterator[str]:
    """Its URL."""
    S3Response.put_object = _put_one_by_one  # type: ignore[method-assign]
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def s3_process() -> Iterator[str]:
    """The URL of a server in a process of its own: programs in Rust that keep Python from running ask it. Or
    that of the server in `TAUTOCHRONE_TEST_S3`, which has the key `KEY` with the secret `SECRET`."""
    if url := os.environ.get("TAUTOCHRONE_TEST_S3"):
        yield url
        return
    program = "from tests.storage.s3 import s3_server as s\nwith s() as url: print(url, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def bucket(url: str, name: str) -> None:
    """Make a bucket."""
    session = boto3.session.Session(KEY, SECRET, region_name=REGION)
    # Not every server knows buckets by the name of a host.
    session.client("s3", endpoint_url=url, config=Config(s3={"addressing_style": "path"})).create_bucket(
        Bucket=name
    )


@dataclass
class LosingProxy:
    """Passes requests on to a server. Of every `every`-th write it loses the answer: the server has done it,
    and the client sees a closed connection."""

    upstream: str
    every: int = 0
    lost: int = 0
    _writes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def loses(self) -> bool:
        with self._lock:
            self._writes += 1
            is_lost = self.every > 0 and self._writes % self.every == 0
            self.lost += is_lost
            return is_lost

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its URL."""
        proxy = self
        host = self.upstream.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection(host, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                if self.command in ("PUT", "POST", "DELETE") and proxy.loses():
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
