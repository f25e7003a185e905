"""A server for tests: ClickHouse's HTTP interface over the embedded engine, with planned faults.

A fault is a file `<folder>.fault` with a line `kind text`. It strikes once, at the next statement that
contains the text: `lose` does the work and drops the answer, `die` does it and kills the server, `late` waits
before the work until `<folder>.late` is gone.

Run as a program: `python front.py FOLDER PORT`.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlparse


class Engine:
    """The engine of this process."""

    def __init__(self, folder: Path) -> None:
        import chdb.session as embedded

        self._session: Any = embedded.Session(str(folder))
        self._lock = threading.Lock()
        self._fault = folder.with_suffix(".fault")
        self.late = folder.with_suffix(".late")

    def fault_of(self, statement: str) -> str:
        """The kind of the fault that strikes at a statement; empty for none."""
        with self._lock:
            if not self._fault.exists():
                return ""
            kind, text = self._fault.read_text().split(" ", 1)
            if text not in statement:
                return ""
            self._fault.unlink()
            return kind

    def run(self, statement: str, data: bytes) -> bytes:
        head, _, last_format = statement.replace("\n", " ").rpartition(" FORMAT ")
        if not data:
            return self._query(head, last_format.strip()) if head else self._query(statement, "TabSeparated")
        # The engine in this process reads the data of an insert from a file.
        columns = head[head.index("(") + 1 : head.rindex(")")]
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            source = f"file('{file.name}', '{last_format.strip()}')"
            return self._query(f"{head} SELECT {columns} FROM {source}", "TabSeparated")

    def _query(self, statement: str, output_format: str) -> bytes:
        with self._lock:
            return bytes(self._session.query(statement, output_format).bytes())


class Front(BaseHTTPRequestHandler):
    """Spells requests as ClickHouse's HTTP interface does."""

    protocol_version = "HTTP/1.1"
    # Headers and body in one packet: the client would wait for the second one.
    wbufsize = -1
    engine: ClassVar[Engine]

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        statement, data = self._request()
        fault = self.engine.fault_of(statement)
        while fault == "late" and self.engine.late.exists():
            time.sleep(0.01)
        try:
            answer, status = self.engine.run(statement, data), 200
        except Exception as error:
            answer, status = str(error).encode(), 500
        if fault == "die":
            os._exit(7)
        if fault == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _request(self) -> tuple[str, bytes]:
        """The statement, and the data of an insert."""
        arguments, body = parse_qs(urlparse(self.path).query), self._body()
        if "query" in arguments:
            return arguments["query"][0], body
        first, _, rest = body.partition(b"\n")
        if first.startswith(b"INSERT") and b" FORMAT " in first:
            return first.decode(), rest
        return body.decode(), b""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, *arguments: Any) -> None: ...


if __name__ == "__main__":
    Front.engine = Engine(Path(sys.argv[1]))
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Front)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
