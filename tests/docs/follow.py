"""Runs the README literally: its shell and Python blocks, one after the other, in one shell.

`python -m tests.docs.follow` acts as a new user: it clones the last commit into a new folder,
with an empty home and a clean environment, and runs everything up to the demo. A block of
text right after a block is the output that it must have written to stdout, apart from durations.
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

__all__ = [
    "ROOT",
    "Block",
    "DiffersError",
    "blocks",
    "clean_environment",
    "follow",
    "require_same",
    "section",
]

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block to run, and its expected output; None when the page shows none."""

    language: str
    text: str
    expected: str | None


class DiffersError(AssertionError):
    """A block failed, or wrote something else than the text says."""


def section(title: str, page: Path = README) -> str:
    """The text between a heading and the next one."""
    pattern = rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)"
    match = re.search(pattern, page.read_text("utf-8"), re.M | re.S)
    if match is None:
        raise DiffersError(f"{page.name} has no section {title}")
    return match[1]


def blocks(text: str) -> list[Block]:
    """The blocks of `sh` and `python`, in order."""
    return [Block(*match.groups()) for match in _FENCE.finditer(text) if match[1] in ("sh", "python")]


_DURATION = re.compile(r"\d+(\.\d+)? (ms|s|min)( \d+ s)?(?= |$)", re.MULTILINE)
_RUN_OF_DASHES, _SPACES = re.compile(r"-{2,}"), re.compile(r" +")


def _comparable(text: str) -> str:
    """Output without what differs each time: durations, and the width of columns that depends on them.

    Blanks at the end of a line, which `psql` writes and editors remove, do not count either.
    """
    shown = _DURATION.sub("<duration>", "\n".join(line.rstrip() for line in text.strip().splitlines()))
    return _SPACES.sub(" ", _RUN_OF_DASHES.sub("--", shown))


def clean_environment(home: Path) -> dict[str, str]:
    """This process's environment without our variables and the user's home; Java's home is `home` too."""
    own_prefixes = ("TAUTOCHRONE_", "XDG_", "PYTHON", "PYTEST", "VIRTUAL_ENV", "SPARK_", "UV_CACHE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own_prefixes)}
    own_bin = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != own_bin)
    # Java reads the user's home from the system, not from the variable.
    java = f"{kept.get('JAVA_TOOL_OPTIONS', '')} -Duser.home={home}".strip()
    return {**kept, "PATH": path, "HOME": str(home), "JAVA_TOOL_OPTIONS": java}


def follow(
    steps: Sequence[Block], folder: Path, environment: Mapping[str, str], *, timeout_s: float, log: Path
) -> None:
    """Run the blocks in one shell that stops at the first failure.

    Args:
        log: the file for stderr, which is shown when a block fails.

    Raises:
        DiffersError: with the block, its expected and its actual output.
    """
    # This line in stdout separates the output of two blocks.
    separator = "--- next block ---"
    # What a failed block leaves running would hold stdout open.
    program = "trap 'kill -9 $(jobs -p) 2> /dev/null || true' EXIT\n"
    program += "".join(f"{_shell(step)}\necho '{separator}'\n" for step in steps)
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
    written = done.stdout.split(f"{separator}\n")
    if done.returncode != 0:
        failed = steps[len(written) - 1]
        raise DiffersError(f"failed:\n{failed.text}\n{written[-1]}\n{log.read_text()[-4000:]}")
    for step, output in zip(steps, written, strict=False):
        require_same(step, output)


def require_same(step: Block, output: str) -> None:
    """Check what a block wrote.

    Raises:
        DiffersError: with the block, its expected and its actual output.
    """
    if step.expected is not None and _comparable(output) != _comparable(step.expected):
        raise DiffersError(f"{step.text}\nis said to write\n{step.expected}\nand wrote\n{output}")


def _shell(step: Block) -> str:
    return step.text if step.language == "sh" else f"python - <<'END'\n{step.text}END"


def main() -> int:
    # The demo too, but not `make test`, which runs this module.
    demo = Block("sh", "cd ..\nmake demo\n", None)
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
