"""`taut serve` as people start it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tautochrone.metaservice.client import Client

from .conftest import Shop

TOKEN = "a-token-that-may-operate"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tautochrone.cli.main", "serve", "--port", "0", *arguments]


@contextmanager
def started(folder: Path, *arguments: str, **variables: str) -> Iterator[tuple[str, Path]]:
    log = folder / "serve.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command(*arguments), cwd=folder, stderr=stderr, env={**os.environ, **variables}
        )
    try:
        while (announced := re.search(r"serving at (http://[^\s\"]+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        yield announced[1], log
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_on_a_store_alone(shop: Shop, tmp_path: Path) -> None:
    with started(tmp_path, "--meta", f"sqlite:///{tmp_path}/meta.db", "--log-format", "json") as (uri, log):
        with Client(uri) as client:
            assert client.versions(["lake.db.totals"]).versions[0].version == "10"
        assert httpx.get(f"{uri}/v1/config", timeout=60).json()["error"]["type"] == "NoSuchWarehouseException"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any("no token is configured" in line["message"] for line in lines)
    assert any(line.get("path") == "/version/strong" and line["status"] == 200 for line in lines)
    assert lines[-1]["message"] == "stopped"


def test_on_a_project_with_tokens(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: []\n")
    settings = '[meta.tokens.operate]\njobs = { env = "JOBS_TOKEN" }\n'
    (tmp_path / "tautochrone.toml").write_text(settings)
    with started(tmp_path, JOBS_TOKEN=TOKEN) as (uri, log):
        assert httpx.get(f"{uri}/api/v1/jobs", timeout=60).status_code == 401
        with Client(uri, TOKEN) as client:
            client.register("etl", sinks=["lake.db.x"])
            assert client.jobs()[0].announced == ["lake.db.x"]
        # The lake is known: the catalog answers, though there is no checkpoint yet.
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        weak = httpx.get(f"{uri}/v1/config?warehouse=weak", headers=bearer, timeout=60)
        assert weak.json()["overrides"] == {"prefix": "weak"}
    assert TOKEN not in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "error_class"),
    [(("--host", "0.0.0.0"), "TOKENS_MISSING"), (("--meta", "nonsense"), "META_URL_INVALID")],
)
def test_what_cannot_be_served(tmp_path: Path, arguments: tuple[str, ...], error_class: str) -> None:
    store = () if "--meta" in arguments else ("--meta", f"sqlite:///{tmp_path}/meta.db")
    done = subprocess.run(
        command(*arguments, *store), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"[{error_class}]")
    assert "Traceback" not in done.stderr


def test_a_token_in_plain_text_is_refused_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: []\n")
    (tmp_path / "tautochrone.toml").write_text(f'[meta.tokens.read]\nme = "{TOKEN}"\n')
    done = subprocess.run(command(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[SECRET_IN_PLAIN_TEXT]")
    assert TOKEN not in done.stderr
