"""Makes commits survive a power cut: files reach the disk before anything refers to them.

    1. data files, deletes, manifests, folder entries      2. the catalog's own commit
    3. the metadata file that the catalog now names        4. only then the store learns of the version

Iceberg and Hadoop close files without `fsync`. Linux can sync a whole file system in one call, which is
cheaper than one call for each of about ten files, and misses none.

A power cut in the milliseconds between 2 and 3 can leave a table with an incomplete metadata file. Its
version was not reported yet, so the metadata file that the catalog named before is the valid one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from tautochrone.errors import EnvironmentProblemError

__all__ = ["local_folder", "sync_file_systems"]


def local_folder(location: str) -> Path | None:
    """The folder or file of a location on this machine; None for other kinds of storage.

    Hadoop takes a location as it is written: `%20` and `#` are characters of a name.

    >>> local_folder("file:///a%20b/c#1"), local_folder("/a:b"), local_folder("s3://bucket/a")
    (PosixPath('/a%20b/c#1'), PosixPath('/a:b'), None)
    """
    scheme, colon, path = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location)
    if scheme.lower() != "file":
        return None
    if path.startswith("//"):
        _authority, _slash, path = path.removeprefix("//").partition("/")
        path = f"/{path}"
    return Path(path)


def sync_file_systems(folders: Iterable[Path]) -> None:
    """Sync the file systems that contain these folders to disk, each once.

    Raises:
        EnvironmentProblemError: `NOT_SYNCED`, the disk did not take what was written, or this system has no
            such call.
    """
    synced_devices: set[int] = set()
    for folder in folders:
        # A folder that the first commit creates is in the file system of its nearest existing parent.
        existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
        device = existing_folder.stat().st_dev
        if device not in synced_devices:
            synced_devices.add(device)
            _sync(existing_folder)


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
