"""A StarRocks with the states of the documented transaction interface, and SQL over SQLite.

A frontend redirects each load to a backend of another address, as StarRocks does. Transactions stay in
memory until their commit, which changes the tables of all loads at once.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tautochrone.sinks.common.errors import object_missing_error

__all__ = ["FakeDatabase", "FakeServer", "Label", "server"]


_AUTHORIZATION = "Basic " + base64.b64encode(b"user:secret").decode()
_NEXT_STATES = {
    ("load", "PREPARE"): "PREPARE",
    ("prepare", "PREPARE"): "PREPARED",
    ("commit", "PREPARED"): "COMMITTED",
    ("commit", "COMMITTED"): "COMMITTED",
    ("commit", "VISIBLE"): "VISIBLE",
    ("rollback", "PREPARE"): "ABORTED",
    ("rollback", "PREPARED"): "ABORTED",
    ("rollback", "ABORTED"): "ABORTED",
}
"""What is missing is refused."""


@dataclass
class Label:
    """A transaction: its state, and the objects that were loaded into each table."""

    state: str = "PREPARE"
    loads: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    states_until_visible: int = 0


class FakeDatabase:
    """One database with its tables, the transactions on it, and what shall go wrong next.

    Attributes:
        faults: of an operation, one of `lost` (done, and not answered), `unsent` (neither), `timed out`
            (the transaction was aborted before), `slow` (committed, and not visible at once), `moved` (to
            the leader), `unsupported`, `filtered`.
        requests: the operations that arrived, with their headers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.labels: dict[str, Label] = {}
        self.faults: list[tuple[str, str]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.statements: list[str] = []
        self.lock = threading.RLock()
        self._sqlite = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.version = "4.0.1 fake"
        self._sqlite.create_function("current_version", 0, lambda: self.version)
        self._sqlite.create_function("CONV", 3, lambda text, base, _: str(int(text, base)))
        self._tables_created = 0
        for statement in (
            "ATTACH ':memory:' AS information_schema",
            "CREATE TABLE information_schema.schemata (schema_name)",
            "CREATE TABLE information_schema.columns (table_schema, table_name, column_name, column_type)",
            "CREATE TABLE information_schema.tables_config (table_schema, table_name, table_id)",
        ):
            self._sqlite.execute(statement)

    # -- statements -------------------------------------------------------------------------------

    def query(self, statement: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            self.statements.append(statement)
            try:
                return self._sqlite.execute(statement.replace("%s", "?"), tuple(arguments)).fetchall()
            except sqlite3.OperationalError as error:
                if "no such" in str(error) or "unknown database" in str(error):
                    raise object_missing_error("mirror", "StarRocks", str(error), self.name) from error
                raise

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        yield from self.query(statement)

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        with self.lock:
            if statement.startswith("CREATE DATABASE"):
                self._sqlite.execute(f"ATTACH ':memory:' AS `{self.name}`")
                self._sqlite.execute("INSERT INTO information_schema.schemata VALUES (?)", (self.name,))
                return
            exchanged = re.fullmatch(r"ALTER TABLE `.*?`\.`(.*?)` SWAP WITH `(.*?)`", statement)
            if exchanged is not None:
                self._exchange(exchanged[1], exchanged[2])
                return
            text = re.sub(r" DISTRIBUTED BY .*", ")", statement)
            text = re.sub(r"\) PRIMARY KEY", ", PRIMARY KEY", text)
            text = text.replace("INSERT INTO", "INSERT OR REPLACE INTO", 1)
            self.query(text, arguments)
            if statement.startswith(("CREATE TABLE", "ALTER TABLE", "DROP TABLE")):
                self._read_columns()

    def _exchange(self, first: str, second: str) -> None:
        """Tables keep their numbers."""
        for before, after in ((first, "exchanged"), (second, first), ("exchanged", second)):
            self._sqlite.execute(f"ALTER TABLE `{self.name}`.`{before}` RENAME TO `{after}`")
            numbers = "UPDATE information_schema.tables_config SET table_name = ? WHERE table_name = ?"
            self._sqlite.execute(numbers, (after, before))
        self._read_columns()

    def close(self) -> None:
        """One connection serves all sinks of a test."""

    def _read_columns(self) -> None:
        self._sqlite.execute("DELETE FROM information_schema.columns")
        tables = self._sqlite.execute(f"SELECT name FROM `{self.name}`.sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            columns = self._sqlite.execute(f"PRAGMA `{self.name}`.table_info(`{table}`)").fetchall()
            self._sqlite.executemany(
                "INSERT INTO information_schema.columns VALUES (?, ?, ?, ?)",
                [(self.name, table, column[1], column[2]) for column in columns],
            )
            known = "SELECT 1 FROM information_schema.tables_config WHERE table_name = ?"
            if self._sqlite.execute(known, (table,)).fetchone() is None:
                self._tables_created += 1
                self._sqlite.execute(
                    "INSERT INTO information_schema.tables_config VALUES (?, ?, ?)",
                    (self.name, table, self._tables_created),
                )
        self._sqlite.execute(
            "DELETE FROM information_schema.tables_config WHERE table_name NOT IN "
            "(SELECT table_name FROM information_schema.columns)"
        )

    # -- transactions -----------------------------------------------------------------------------

    def operate(self, operation: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        label = self.labels.get(headers["label"])
        if operation == "begin":
            if label is not None and label.state != "ABORTED":
                return {"Status": "LABEL_ALREADY_EXISTS", "ExistingJobStatus": "RUNNING", "Message": "used"}
            self.labels[headers["label"]] = Label()
            return {"Status": "OK", "Message": ""}
        if label is None:
            return {"Status": "FAILED", "Message": "Transcation Not Exist"}
        state = _NEXT_STATES.get((operation, label.state))
        if state is None:
            return {"Status": "FAILED", "Message": f"Transcation State Invalid: {label.state}"}
        label.state = state
        if operation == "load":
            label.loads += [(headers["table"], row) for row in json.loads(body)]
        if state == "COMMITTED" and not label.states_until_visible:
            self.publish(label)
        return {"Status": "OK", "Message": ""}

    def publish(self, label: Label) -> None:
        """Make a committed transaction visible: all tables at once."""
        label.state = "VISIBLE"
        self._sqlite.execute("BEGIN")
        for table, row in label.loads:
            columns = {name: value for name, value in row.items() if name != "__op"}
            name = f"`{self.name}`.`{table}`"
            if row["__op"]:
                self._sqlite.execute(f"DELETE FROM {name} WHERE `_taut_key` = ?", (row["_taut_key"],))
                continue
            values = [json.dumps(v) if isinstance(v, (dict, list)) else v for v in columns.values()]
            marks = ", ".join("?" * len(values))
            names = ", ".join(f"`{column}`" for column in columns)
            self._sqlite.execute(f"INSERT OR REPLACE INTO {name} ({names}) VALUES ({marks})", values)
        self._sqlite.execute("COMMIT")

    def state(self, name: str) -> str:
        label = self.labels.get(name)
        if label is None:
            return "UNKNOWN"
        if label.state == "COMMITTED":
            label.states_until_visible -= 1
            if label.states_until_visible <= 0:
                self.publish(label)
                return "COMMITTED"
        return label.state


class FakeServer:
    """Two servers in threads of this process: a frontend, and a backend that takes loads."""

    def __init__(self) -> None:
        self.databases: dict[str, FakeDatabase] = {}
        self.frontend = self._serve()
        self.backend = self._serve()

    def _serve(self) -> int:
        handler = type("Handler", (_Handler,), {"fake": self})
        http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, daemon=True).start()
        return http.server_port


@cache
def server() -> FakeServer:
    """The servers of this process."""
    return FakeServer()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"
    # Headers and body in one packet: the second one would wait until the client has confirmed the first.
    wbufsize = -1

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        database = self.fake.databases[url.path.split("/")[2]]
        with database.lock:
            if self._fault(database, "state") == "unsent":
                self.close_connection = True
                return
            state = database.state(parse_qs(url.query)["label"][0])
        self._answer({"state": state, "reason": "", "status": "OK"})

    def do_POST(self) -> None:
        operation = self.path.rpartition("/")[2]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        database = self.fake.databases[headers["db"]]
        if headers.get("authorization") != _AUTHORIZATION:
            self._answer({"Status": "FAILED", "Message": "Access denied"}, 401)
            return
        assert headers["expect"] == "100-continue"
        assert headers["transaction_type"] == "multi"
        is_backend = self.server.server_port == self.fake.backend  # type: ignore[attr-defined]
        if operation == "load" and not is_backend:
            assert not body
            self._redirect(f"http://localhost:{self.fake.backend}{self.path}")
            return
        with database.lock:
            fault = self._fault(database, operation)
            if fault == "moved":
                self._redirect(f"http://localhost:{self.fake.frontend}{self.path}")
                return
            database.requests.append((operation, headers))
            if fault == "unsent":
                self.close_connection = True
                return
            label = database.labels.get(headers["label"])
            if fault == "timed out" and label is not None:
                label.state = "ABORTED"
            if fault == "slow" and label is not None:
                label.states_until_visible = 2
            if fault == "unsupported" and label is not None:
                # Such a server commits without the step.
                label.state = "PREPARED"
                self._answer({"Status": "FAILED", "Message": "Unsupported operation: TXN_PREPARE"})
                return
            answer = database.operate(operation, headers, body)
        if fault == "lost":
            self.close_connection = True
            return
        self._answer({**answer, "NumberFilteredRows": 1 if fault == "filtered" else 0})

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _fault(self, database: FakeDatabase, operation: str) -> str:
        for index, (name, fault) in enumerate(database.faults):
            if name == operation:
                del database.faults[index]
                return fault
        return ""

    def _redirect(self, location: str) -> None:
        self.send_response(307)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, answer: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
