"""The files of Iceberg's hadoop catalog in a local folder. This module must not import Spark.

A table is the folder `WAREHOUSE/NAMESPACE/TABLE`, and its newest version is the metadata file with the
greatest number: `metadata/v12.metadata.json`. `version-hint.text` only tells where to begin looking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_table", "newest_metadata_file", "plain_path", "subfolders", "version_of"]

_METADATA_FILE = re.compile(r"v(\d+)(?:\.[a-z0-9]+)?\.metadata\.json")


def plain_path(location: str) -> Path:
    """A local location of Hadoop as a path: `file:/a b` and `/a b`. Hadoop does not encode blanks."""
    return Path(re.sub(r"^file:(//(?=/))?", "", location, count=1))


def version_of(file: Path) -> int | None:
    """The number of a metadata file; None for other files."""
    match = _METADATA_FILE.fullmatch(file.name)
    return None if match is None else int(match[1])


def newest_metadata_file(table_folder: Path) -> Path | None:
    """The metadata file with the greatest number; None when this is no table."""
    newest: tuple[int, Path] | None = None
    try:
        for file in (table_folder / "metadata").iterdir():
            version = version_of(file)
            if version is not None and (newest is None or version > newest[0]):
                newest = version, file
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if newest is None else newest[1]


def is_table(folder: Path) -> bool:
    """Whether a folder is a table; otherwise it is a namespace."""
    return newest_metadata_file(folder) is not None


def subfolders(folder: Path) -> Iterator[Path]:
    """The namespaces and tables directly in a folder, in order."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (entry for entry in entries if entry.is_dir() and not entry.name.startswith((".", "_")))
