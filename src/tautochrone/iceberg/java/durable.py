"""What a commit needs to survive a power cut: its files reach the disk before anything speaks of them.

    1. data files, deletes, manifests, folder entries      2. the catalog's own commit
    3. the metadata file that the catalog now names        4. only then the store learns of the version

Iceberg and Hadoop close files without asking the disk. Linux takes a whole file system to the disk in one
call, which is cheaper than one call for each of about ten files, and misses none.

Between 2 and 3 lie milliseconds in which a power cut leaves a table whose metadata file is torn. No version
of it was reported yet, so what the catalog named before is whole and is the truth.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tautochrone.errors import EnvironmentProblemError

__all__ = ["local_folder", "sync_file_systems"]


def local_folder(location: str) -> Path | None:
    """The folder of a table's location on this machine; None for other kinds of storage."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else location)


def sync_file_systems(folders: Iterable[Path]) -> None:
    """Take the file systems that hold these folders to the disk; each once.

    Raises:
        EnvironmentProblemError: `NOT_SYNCED`, the disk did not take what was written, or this system has no
            such call.
    """
    seen: set[int] = set()
    for folder in folders:
        # A folder that the first commit will make is in the file system of the one above.
        there = next(path for path in (folder, *folder.parents) if path.exists())
        device = there.stat().st_dev
        if device not in seen:
            seen.add(device)
            _sync(there)


def _sync(folder: Path) -> None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        raise EnvironmentProblemError(
            "NOT_SYNCED",
            f"This system ({sys.platform}) cannot take a file system to the disk",
            hint='durability = "power_loss" needs Linux; "process" does not',
        )
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if call(descriptor) != 0:
            number = ctypes.get_errno()
            raise EnvironmentProblemError(
                "NOT_SYNCED",
                f"The disk did not take what was written below {folder}: {os.strerror(number)}",
                hint="look at the kernel's log and the disk; nothing was published from it",
            )
    finally:
        os.close(descriptor)
