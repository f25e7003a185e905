"""A server for tests: ClickHouse's HTTP interface over the embedded engine, with planned faults.

A fault is a file `<folder>.fault` with a line `kind text`. It strikes once, at the next statement that
contains the text: `lose` does the work and drops the answer, `die` does it and kills the server, `late` waits
before the work until `<folder>.late` is gone.

As in a server, the settings in an address win over those of the user's profile. Who sends JSON to `/profile`
sets the profile: `settings`, `refused` (the names of those that the user may not set), and `sent`.

Run as a program: `python front.py FOLDER PORT`.
"""

from __future__ import annotations

import json
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
from urllib.parse import parse_qsl, urlparse

NO_SETTINGS = frozenset(
    {"database", "default_format", "wait_end_of_query", "client_protocol_version", "compress", "query_id"}
)
"""Arguments of the HTTP interface."""
NOT_BY_SET = frozenset({"run_query_in_background"})
"""Settings that the engine does not take by SET."""


def literal(value: str) -> str:
    """A value of a setting as SQL: a map is not written as a text."""
    if value.startswith("{"):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Engine:
    """The engine of this process."""

    def __init__(self, folder: Path) -> None:
        import chdb.session as embedded

        self._session: Any = embedded.Session(str(folder))
        rows = str(self._session.query("SELECT name FROM system.settings", "TabSeparated")).split()
        self._known = frozenset(rows)
        self._profile: dict[str, str] = {}
        self._refused: frozenset[str] = frozenset()
        self._set: dict[str, str] = {}
        self._lock = threading.Lock()
        self._fault = folder.with_suffix(".fault")
        self.late = folder.with_suffix(".late")

    def use_profile(self, profile: dict[str, Any]) -> None:
        """Set the profile of the user.

        Args:
            profile: also has `sent`, the settings of the next request: the engine sets them by a statement,
                whose meaning must not depend on the profile either.

        Raises:
            Exception: the engine does not take one of its values.
        """
        with self._lock:
            self._refused = frozenset()
            self._profile = dict(profile.get("settings", {}))
            try:
                self._apply({name: value for name, value in profile["sent"].items() if name in self._known})
            except Exception:
                self._profile = {}
                raise
            self._refused = frozenset(profile.get("refused", ()))

    def _apply(self, sent: dict[str, str]) -> None:
        """Make the settings of the session those of the profile with those of a request."""
        own = {name: value for name, value in sent.items() if name not in NO_SETTINGS}
        for name in own:
            if name in self._refused:
                text = f"Code: 452. DB::Exception: Setting {name} should not be changed. "
                raise RuntimeError(f"{text}(SETTING_CONSTRAINT_VIOLATION)")
            if name not in self._known:
                raise RuntimeError(f"Code: 115. DB::Exception: Unknown setting '{name}'. (UNKNOWN_SETTING)")
        effective = {**self._profile, **own}
        for name in NOT_BY_SET:
            effective.pop(name, None)
        if effective == self._set:
            return
        before, self._set = self._set, {**self._set, **effective}
        values = [f"{name} = DEFAULT" for name in before.keys() - effective.keys()]
        values += [f"{name} = {literal(value)}" for name, value in effective.items()]
        self._session.query(f"SET {', '.join(values)}")
        self._set = effective

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

    def run(self, statement: str, data: bytes, settings: dict[str, str]) -> bytes:
        head, _, last_format = statement.replace("\n", " ").rpartition(" FORMAT ")
        if not data:
            if head:
                return self._query(head, last_format.strip(), settings)
            return self._query(statement, "TabSeparated", settings)
        # The engine in this process reads the data of an insert from a file.
        columns = head[head.index("(") + 1 : head.rindex(")")]
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            source = f"file('{file.name}', '{last_format.strip()}')"
            return self._query(f"{head} SELECT {columns} FROM {source}", "TabSeparated", settings)

    def _query(self, statement: str, output_format: str, settings: dict[str, str]) -> bytes:
        with self._lock:
            self._apply(settings)
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
        if self.path == "/profile":
            self._use_profile()
            return
        statement, data, settings = self._request()
        fault = self.engine.fault_of(statement)
        while fault == "late" and self.engine.late.exists():
            time.sleep(0.01)
        try:
            answer, status = self.engine.run(statement, data, settings), 200
        except Exception as error:
            answer, status = str(error).encode(), 500
        if fault == "die":
            os._exit(7)
        if fault == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(answer, status)

    def _answer(self, answer: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _use_profile(self) -> None:
        try:
            self.engine.use_profile(json.loads(self._body()))
            answer, status = b"", 200
        except Exception as error:
            answer, status = str(error).encode(), 500
        self._answer(answer, status)

    def _request(self) -> tuple[str, bytes, dict[str, str]]:
        """The statement, the data of an insert, and the settings."""
        settings = dict(parse_qsl(urlparse(self.path).query, keep_blank_values=True))
        statement, body = settings.pop("query", ""), self._body()
        if statement:
            return statement, body, settings
        first, _, rest = body.partition(b"\n")
        if first.startswith(b"INSERT") and b" FORMAT " in first:
            return first.decode(), rest, settings
        return body.decode(), b"", settings

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
