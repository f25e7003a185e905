"""The units for systemd start commands that exist, and systemd understands them."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tautochrone.cli.main import _parser

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
UNITS = sorted(FOLDER.iterdir())
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
