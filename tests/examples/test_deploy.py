"""Units of systemd, the image and the compose file start commands that exist and do what is said of them.

Docker itself is not needed: its files are read, and their commands run without a container.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.stores import fresh_postgres

from tautochrone.cli.main import _parser
from tautochrone.project.spec import init_project

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
UNITS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".service", ".timer"))
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
PROGRAMS = ("run", "serve")
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_commands_exist(unit: Path) -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(unit)
    program, *arguments = shlex.split(parsed["Service"]["ExecStart"])
    assert Path(program).name == "taut"
    command = _parser().parse_args(arguments).command
    assert command in ("run", "serve")
    # Java must not get the signal that lets a run end in order.
    assert parsed["Service"].get("KillMode") == ("mixed" if command == "run" else None)


def test_a_timer_starts_a_service_of_its_name() -> None:
    timers = [unit for unit in UNITS if unit.suffix == ".timer"]
    assert timers
    assert all(timer.with_suffix(".service") in SERVICES for timer in timers)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_them(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False, timeout=60
    )
    # Neither the program nor its user is on this machine.
    complaints = [line for line in done.stderr.splitlines() if unit.name in line and "executable" not in line]
    assert complaints == []


def _dockerfile() -> list[tuple[str, str]]:
    """Each instruction with its text, continued lines joined."""
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_starts_a_run_and_has_what_it_needs() -> None:
    instructions = _dockerfile()
    by_word = {word: rest for word, rest in instructions if word != "RUN"}
    assert json.loads(by_word["ENTRYPOINT"]) == ["taut"]
    assert _parser().parse_args(json.loads(by_word["CMD"])).command == "run"
    assert by_word["STOPSIGNAL"] == "SIGTERM"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    chosen = dict(rest.split("=") for word, rest in instructions if word == "ARG")["EXTRAS"]
    assert set(chosen.split(",")) <= set(extras)
    runs = [rest for word, rest in instructions if word == "RUN"]
    assert [run for run in runs if run.startswith("taut ")] == ["taut prepare"]
    # Jars and archives must be there before the account that only reads them.
    assert runs.index("taut prepare") < next(n for n, run in enumerate(runs) if run.startswith("useradd"))


def test_the_compose_file() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"store", *PROGRAMS}
    for name in PROGRAMS:
        assert _parser().parse_args(services[name]["command"]).command == name
        assert services[name]["init"] is True
        assert set(services[name]["depends_on"]) == {"store"}
    assert services["run"]["stop_grace_period"] == "5m"
    # Other machines reach the service by a proxy only.
    assert services["serve"]["ports"] == ["127.0.0.1:7117:7117"]
    page = (ROOT / "docs" / "deploying.md").read_text()
    for secret in set(re.findall(r"\$\{(\w+):\?\}", (FOLDER / "compose.yaml").read_text())):
        assert f"{secret}=%s" in page


@contextmanager
def _service(
    name: str, folder: Path, variables: Mapping[str, str], port: int
) -> Iterator[subprocess.Popen[str]]:
    """A process with the command and the variables that the compose file gives a service."""
    service: dict[str, Any] = COMPOSE["services"][name]
    environment = {
        key: re.sub(r"\$\{(\w+):\?\}", lambda match: variables[match[1]], text)
        for key, text in service["environment"].items()
    }
    environment["TAUTOCHRONE_META_URL"] = variables["STORE_URL"]
    words = [str(port) if word == "7117" else word for word in service["command"]]
    process = subprocess.Popen(
        [sys.executable, "-m", "tautochrone.cli.main", *words],
        cwd=folder,
        env=os.environ | environment,
        stderr=(folder / f"{name}.log").open("w"),
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(600)
def test_commands_of_the_compose_file_over_a_store_in_postgresql(tmp_path: Path) -> None:
    """The run publishes, the service shows it, and both end in order when Docker says so."""
    project = init_project(tmp_path, "shop")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"STORE_PASSWORD": "s", "SERVE_TOKEN": "t" * 32, "STORE_URL": fresh_postgres()}
    _, _, *words = COMPOSE["services"]["serve"]["healthcheck"]["test"]
    check = [sys.executable, *(word.replace("7117", str(port)) for word in words)]
    ask = [sys.executable, "-m", "tautochrone.cli.main", "query", "SELECT sum(sold) AS sold FROM sales"]
    environment = os.environ | {"TAUTOCHRONE_META_URL": variables["STORE_URL"]}
    with (
        _service("run", project, variables, port) as run,
        _service("serve", project, variables, port) as serve,
    ):
        deadline = time.monotonic() + 300
        while subprocess.run(check, capture_output=True, check=False).returncode:
            assert serve.poll() is None, (project / "serve.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        while "published" not in (project / "run.log").read_text():
            assert run.poll() is None, (project / "run.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        answer = subprocess.run(ask, cwd=project, env=environment, capture_output=True, text=True, check=True)
        assert answer.stdout.split()[-1] == "3"
        for process in (run, serve):
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
    log = (project / "run.log").read_text()
    assert "COMPLETED" in log
