"""The port of a service, taken or none, and what a job's server makes when."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from tautochrone.errors import EnvironmentProblemError
from tautochrone.meta import MetaStore
from tautochrone.metaservice import app
from tautochrone.metaservice.server import EmbeddedServer, listen
from tautochrone.rest_catalog.read_points import ReadPoints


def test_a_port_that_cannot_be_opened_is_refused_with_what_to_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblemError, match="SERVER_NOT_STARTED") as refused:
            listen("127.0.0.1", port)
    assert str(refused.value).count("127.0.0.1") == 1, refused.value
    assert "--port" in str(refused.value.hint)


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(EnvironmentProblemError, match="99999 is no port") as refused:
        listen("127.0.0.1", 99_999)
    assert "65535" in str(refused.value.hint)


def test_a_job_makes_pages_and_api_once_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, stores = app.create_app, list[Any]()

    def recording(**arguments: Any) -> Any:
        stores.append(arguments.get("store"))
        return create(**arguments)

    monkeypatch.setattr(app, "create_app", recording)
    no_tables: Any = object()
    with (
        MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store,
        EmbeddedServer(ReadPoints(store), no_tables, store=store) as server,
        ThreadPoolExecutor() as threads,
    ):
        assert stores == []
        assert httpx.get(f"{server.uri}/v1/config?warehouse=weak", timeout=60).status_code == 200
        assert stores == [None]
        answers = threads.map(
            lambda _: httpx.get(f"{server.uri}/openapi.json", timeout=60).status_code, range(8)
        )
        assert set(answers) == {200}
        assert stores == [None, store]
        assert httpx.get(f"{server.uri}/v1/config?warehouse=weak", timeout=60).status_code == 200


def test_the_catalog_answers_while_pages_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, begun, go_on = app.create_app, Event(), Event()

    def waiting(**arguments: Any) -> Any:
        if arguments.get("store") is not None:
            begun.set()
            assert go_on.wait(60)
        return create(**arguments)

    monkeypatch.setattr(app, "create_app", waiting)
    no_tables: Any = object()
    with (
        MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store,
        EmbeddedServer(ReadPoints(store), no_tables, store=store) as server,
        ThreadPoolExecutor() as threads,
    ):
        config = f"{server.uri}/v1/config?warehouse=weak"
        assert httpx.get(config, timeout=60).status_code == 200
        page = threads.submit(lambda: httpx.get(f"{server.uri}/openapi.json", timeout=60))
        try:
            assert begun.wait(60)
            assert httpx.get(config, timeout=10).status_code == 200
        finally:
            go_on.set()
        assert page.result().status_code == 200


def test_a_run_imports_no_web_framework() -> None:
    """It takes a third of a second, and a job that runs once is asked by nobody."""
    code = """
import sys, tautochrone.app.open, tautochrone.cli.run, tautochrone.app.unchanged, tautochrone.runtime.loop.run
from tautochrone.metaservice.server import EmbeddedServer
with EmbeddedServer(None, None):
    sys.exit("fastapi" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
