"""A schema registry of the tests: the two calls that the sink makes, as Confluent documents them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeSchemaRegistry:
    """Schemas in memory.

    Attributes:
        subjects: by subject the numbers of its schemas.
        status: the next answer has it; 0 for none.
    """

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}
        self.status = 0
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if self.status:
            status, self.status = self.status, 0
            return status, {"error_code": status, "message": "no"}
        parts = path.strip("/").split("/")
        if method == "POST" and parts[0] == "subjects" and parts[2:] == ["versions"]:
            schema = json.loads(body)["schema"]
            if schema not in self.schemas:
                self.schemas.append(schema)
            number = self.schemas.index(schema) + 1
            numbers = self.subjects.setdefault(parts[1], [])
            numbers += [] if number in numbers else [number]
            return 200, {"id": number}
        if method == "GET" and parts[:2] == ["schemas", "ids"] and int(parts[2]) <= len(self.schemas):
            return 200, {"schema": self.schemas[int(parts[2]) - 1]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def running_registry() -> Iterator[FakeSchemaRegistry]:
    registry = FakeSchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, value = registry.answer(self.command, self.path, body)
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _handle  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            """Not to the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
