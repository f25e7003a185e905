"""Reads statements and queries from sqllogictest files, the format of many engines' tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Record", "files_in", "records"]

_SUFFIXES = (".slt", ".slt.part", ".test")
_REPEATED = ("foreach", "concurrentforeach", "loop", "concurrentloop", "for")


@dataclass(frozen=True, slots=True)
class Record:
    """One statement of a file. Expected rows are left out: plain Spark gives them."""

    sql: str
    is_query: bool


def files_in(repository: Path, folder: str) -> Iterator[tuple[str, str]]:
    """Path and text of each sqllogictest file below a folder of a git directory, in order of the paths."""
    git = ("git", "-C", str(repository))
    listing = _output(*git, "ls-tree", "-r", "--name-only", "HEAD", "--", folder)
    paths = sorted(path for path in listing.splitlines() if path.endswith(_SUFFIXES))
    requests = "".join(f"HEAD:{path}\n" for path in paths).encode()
    command = (*git, "cat-file", "--batch")
    contents = subprocess.run(command, input=requests, check=True, capture_output=True).stdout
    start = 0
    for path in paths:
        end_of_header = contents.index(b"\n", start)
        header = contents[start:end_of_header].split()
        start = end_of_header + 1
        if header[-1] == b"missing":
            continue
        size = int(header[2])
        yield path, contents[start : start + size].decode(errors="replace")
        start += size + 1


def records(text: str) -> Iterator[Record]:
    """The statements and queries that should succeed. Those in loops are left out: they hold variables."""
    lines = iter(text.splitlines())
    depth = 0
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] in _REPEATED:
            depth += 1
        elif words[0] in ("endloop", "endfor"):
            depth -= 1
        elif words[0] == "query" or words[:2] == ["statement", "ok"]:
            sql = []
            for part in lines:
                if not part.strip() or part.startswith("----"):
                    break
                sql.append(part)
            if depth == 0:
                yield Record("\n".join(sql).strip().rstrip(";"), words[0] == "query")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
