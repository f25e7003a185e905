"""The program of docs/transactions.md, as it is published, loads each file once whatever answer is lost."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.docs.reference import DOCS
from tests.metaservice.test_transactions import Service, transport_to
from tests.sinks.clickhouse.dashboards import Client
from tests.sinks.clickhouse.test_server import Server

from tautochrone.metaservice import transactions

PROGRAM = re.search(
    r"```python\n(\"\"\"python loader\.py.*?)```", (DOCS / "transactions.md").read_text("utf-8"), re.S
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("loader") / "engine")
    yield server
    server.stop()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Iterator[Service]:
    service = Service(tmp_path)
    in_process = partial(transactions.TransactionClient, transport=transport_to(service.http))
    monkeypatch.setattr(transactions, "TransactionClient", in_process)
    monkeypatch.setenv("SERVICE", "http://testserver")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLICKHOUSE", f"http://127.0.0.1:{server.port}")
    yield service
    service.store.close()


def test_the_published_program_loads_each_file_once(
    server: Server, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROGRAM is not None
    program = compile(PROGRAM[1], "loader.py", "exec")
    client = Client(server.port)
    client.rows("CREATE TABLE orders (id UInt32, amount UInt32) ENGINE = MergeTree ORDER BY id")
    files: list[str] = []
    for run, lost in enumerate(("", "CREATE TABLE", "INSERT INTO", "MOVE PARTITION", "DROP TABLE"), 1):
        file = tmp_path / f"{run}.json"
        file.write_text("".join(json.dumps({"id": 10 * run + row, "amount": row}) + "\n" for row in range(3)))
        files.append(str(file))
        monkeypatch.setattr(sys, "argv", ["loader.py", str(2 * run), *files])
        if lost:
            server.plan("lose", lost)
            with pytest.raises((Exception, SystemExit), match=r"\w"):
                exec(program, {"__name__": "__main__"})
            assert not server.is_planned()
            monkeypatch.setattr(sys, "argv", ["loader.py", str(2 * run + 1), *files])
        exec(program, {"__name__": "__main__"})
        expected = [10 * number + row for number in range(1, run + 1) for row in range(3)]
        assert client.rows("SELECT id FROM orders ORDER BY id") == [[number] for number in expected], lost
    assert client.rows("SELECT name FROM system.tables WHERE name LIKE 'staging%'") == []
    file = tmp_path / "last.json"
    file.write_text('{"id": 99, "amount": 1}\n')

    def killed(path: Path, _text: str) -> None:
        path.open("w").close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", killed)
        patched.setattr(sys, "argv", ["loader.py", "20", *files, str(file)])
        with pytest.raises(KeyboardInterrupt):
            exec(program, {"__name__": "__main__"})
    monkeypatch.setattr(sys, "argv", ["loader.py", "21", *files, str(file)])
    exec(program, {"__name__": "__main__"})
    assert client.rows("SELECT count() FROM orders WHERE id = 99") in ([[1]], [["1"]])
    client.close()
