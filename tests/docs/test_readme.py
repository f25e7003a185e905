"""The README's quickstart does what it says, and is short."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tautochrone.spark.session.jars import cache_folder

from . import follow
from .follow import ROOT, Block, DiffersError, blocks, clean_environment, section


def test_the_quickstart_has_at_most_500_words() -> None:
    assert len(section("Quickstart").split()) <= 500


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "languages", [{"sh"}, pytest.param({"sh", "python"}, marks=pytest.mark.slow)], ids=len
)
def test_the_quickstart(tmp_path: Path, languages: set[str]) -> None:
    """Without the set-up: the environment is that of this test, and the jars exist.

    Python's reader starts a Spark as the one of `taut query` does.
    """
    home = tmp_path / "home"
    home.mkdir()
    environment = clean_environment(home) | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
        "TAUTOCHRONE_HOME": str(cache_folder().parent),
    }
    set_up, *steps = blocks(section("Quickstart"))
    assert "make setup" in set_up.text
    steps = [step for step in steps if step.language in languages]
    follow.follow(steps, tmp_path, environment, timeout_s=880, log=tmp_path / "log")


def test_the_commands_to_try_are_those_of_the_makefile() -> None:
    commands = re.findall(r"^make ([a-z-]+)", section("Try it"), re.M)
    assert {"demo", "test"} <= set(commands)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(commands) <= targets


@pytest.mark.slow
@pytest.mark.timeout(3700)
def test_readme_in_a_fresh_clone() -> None:
    """A fresh clone, an empty home, everything downloaded, up to the demo."""
    assert follow.main() == 0


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Block("sh", "echo 2\n", "1\n"), "is said to write"),
        (Block("sh", "cat nowhere\n", None), "cat nowhere"),
        (Block("python", "raise SystemExit(3)\n", None), "SystemExit"),
    ],
)
def test_failed_and_different_blocks_are_reported(tmp_path: Path, step: Block, message: str) -> None:
    steps = [Block("sh", "echo 1\n", "1\n"), step, Block("sh", "echo never\n", None)]
    with pytest.raises(DiffersError, match=message):
        follow.follow(steps, tmp_path, dict(os.environ), timeout_s=60, log=tmp_path / "log")


def test_blocks_are_read_with_what_they_write() -> None:
    text = "a\n\n```sh\nls\n```\n\n```text\nx\n```\n\n```toml\na = 1\n```\n\n```python\nf()\n```\n\nb\n"
    assert blocks(text) == [Block("sh", "ls\n", "x\n"), Block("python", "f()\n", None)]
