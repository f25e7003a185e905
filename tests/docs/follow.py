"""Doing what the README says, word by word: its shell and Python blocks, one after the other, in one shell.

`python -m tests.docs.follow` is the newcomer: it clones this repository's last commit into a fresh folder,
with an empty home and nothing of ours in the environment, and does everything up to the demo. A block of
text right behind a block is what that one must have written to stdout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "DiffersError", "blocks", "clean_environment", "follow", "section"]

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block to run, and what it is said to write; None when nothing is said."""

    language: str
    text: str
    expected: str | None


class DiffersError(AssertionError):
    """A block failed, or wrote something else than the text says."""


def section(title: str, page: Path = README) -> str:
    """The text between `## title` and the next heading of that level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.M | re.S)
    if found is None:
        raise DiffersError(f"{page.name} has no section {title}")
    return found[1]


def blocks(text: str) -> list[Block]:
    """Its blocks of `sh` and `python`, in order."""
    return [Block(*found.groups()) for found in _FENCE.finditer(text) if found[1] in ("sh", "python")]


def clean_environment(home: Path) -> dict[str, str]:
    """This process's environment without what belongs to us or to a home; Java's home is `home` too."""
    ours = ("TAUTOCHRONE_", "XDG_", "PYTHON", "PYTEST", "VIRTUAL_ENV", "SPARK_", "UV_CACHE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    bin_of_this = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != bin_of_this)
    # Java asks the system for the user's home, not the variable.
    java = f"{kept.get('JAVA_TOOL_OPTIONS', '')} -Duser.home={home}".strip()
    return {**kept, "PATH": path, "HOME": str(home), "JAVA_TOOL_OPTIONS": java}


def follow(
    steps: Sequence[Block], folder: Path, environment: Mapping[str, str], *, timeout_s: float, log: Path
) -> None:
    """Run the blocks in one shell that stops at the first failure.

    Args:
        log: takes stderr, which is shown when a block fails.

    Raises:
        DiffersError: with the block, what it was to write and what it wrote.
    """
    # A line of its own in stdout tells where one block ends and the next begins.
    mark = "--- next block ---"
    program = "".join(f"{_shell(step)}\necho '{mark}'\n" for step in steps)
    with log.open("w") as stderr:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", program],
            cwd=folder,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    written = done.stdout.split(f"{mark}\n")
    if done.returncode != 0:
        failed = steps[len(written) - 1]
        raise DiffersError(f"failed:\n{failed.text}\n{written[-1]}\n{log.read_text()[-4000:]}")
    for step, got in zip(steps, written, strict=False):
        if step.expected is not None and got.strip() != step.expected.strip():
            raise DiffersError(f"{step.text}\nis said to write\n{step.expected}\nand wrote\n{got}")


def _shell(step: Block) -> str:
    return step.text if step.language == "sh" else f"python - <<'END'\n{step.text}END"


def main() -> int:
    # The demo as well; not `make test`, which runs this very module.
    commands = [b for b in blocks(section("Two commands")) if "make demo" in b.text]
    demo = Block("sh", "cd ..\nmake demo\n", None)
    if len(commands) != 1:
        raise DiffersError("the two commands are not where they were")
    with tempfile.TemporaryDirectory(prefix="newcomer-") as fresh:
        home = Path(fresh) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), f"{fresh}/tautochrone"], check=True)
        follow(
            [*blocks(section("Quickstart")), demo],
            Path(fresh) / "tautochrone",
            clean_environment(home),
            timeout_s=3600,
            log=Path(fresh) / "log",
        )
        sys.stdout.write("the README does what it says\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
