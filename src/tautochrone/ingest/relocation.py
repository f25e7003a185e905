"""Which files were read, when the project is in another folder: its source files have other names now.

Spark's file source remembers what it read by absolute URIs: in the folder of each stream, below
`_checkpoints` of the storage, and in the copies of it that belong to the tables' positions, below
`_positions`. A name that it does not know would be read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tautochrone.model.relocated_paths import MovedFolder

__all__ = ["files_read", "relocate_sources", "sources_below"]


def sources_below(storage: Path, project: MovedFolder) -> str | None:
    """A source file of the old project folder that some flow has read; None when there is none."""
    for path in _lists(storage):
        for entry in _entries(path):
            if project.uri(entry["path"]) is not None:
                return str(entry["path"])
    return None


def files_read(storage: Path) -> Iterator[str]:
    """The URIs of all source files that are remembered."""
    for path in _lists(storage):
        for entry in _entries(path):
            yield str(entry["path"])


def relocate_sources(storage: Path, project: MovedFolder, write: Callable[[Path, bytes], None]) -> int:
    """Give the source files of the project their new names; answers in how many files of the storage.

    The time of a file that is there counts too: copies may be newer than what they are copies of, and Spark
    forgets names that are a week older than the newest.
    """
    changed = 0
    for path in _lists(storage):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            kept: dict[str, str] = json.loads(text)
            mapped = json.dumps({name: _with_new_paths(content, project) for name, content in kept.items()})
            same = json.loads(mapped) == kept
        else:
            mapped = _with_new_paths(text, project)
            same = mapped == text
        if not same:
            write(path, mapped.encode())
            changed += 1
    return changed


def _lists(storage: Path) -> Iterator[Path]:
    for path in sorted((storage / "_positions").rglob("*.json")):
        if not path.name.startswith("."):
            yield path
    for path in sorted((storage / "_checkpoints").rglob("sources/*/*")):
        if path.is_file() and not path.name.startswith("."):
            yield path


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    for content in json.loads(text).values() if path.suffix == ".json" else (text,):
        for line in content.splitlines():
            entry = _entry(line)
            if entry is not None:
                yield entry


def _entry(line: str) -> dict[str, Any] | None:
    """A line of the file source's log; None for what other sources keep."""
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    is_file = isinstance(entry, dict) and isinstance(entry.get("path"), str) and "timestamp" in entry
    return entry if is_file else None


def _with_new_paths(content: str, project: MovedFolder) -> str:
    return "\n".join(_line(line, project) for line in content.split("\n"))


def _line(line: str, project: MovedFolder) -> str:
    entry = _entry(line)
    new = None if entry is None else project.uri(entry["path"])
    if entry is None or new is None:
        return line
    file = Path(unquote(urlsplit(new).path))
    at_ms = entry["timestamp"]
    if file.exists():
        at_ms = max(at_ms, file.stat().st_mtime_ns // 1_000_000)
    return json.dumps({**entry, "path": new, "timestamp": at_ms}, separators=(",", ":"), ensure_ascii=False)
