"""The pages of `docs/` that are made from the code.

`python -m tests.docs.reference` writes them; with `--check` it only says which are stale, and fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import commands, errors, events, settings

__all__ = ["PAGES", "main", "stale"]

DOCS = Path(__file__).parents[2] / "docs"

PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.document,
    "errors.md": errors.document,
    "events.md": events.document,
    "settings.md": settings.document,
    "tautochrone.schema.json": settings.schema,
}


def stale(folder: Path = DOCS) -> list[str]:
    """The pages that differ from what the code generates."""
    return [
        name
        for name, document in PAGES.items()
        if not (folder / name).exists() or (folder / name).read_text("utf-8") != document()
    ]


def main(arguments: list[str]) -> int:
    stale_pages = stale()
    if "--check" in arguments:
        for name in stale_pages:
            sys.stderr.write(f"docs/{name} is stale: run `python -m tests.docs.reference`\n")
        return 1 if stale_pages else 0
    for name in stale_pages:
        (DOCS / name).write_text(PAGES[name](), "utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
