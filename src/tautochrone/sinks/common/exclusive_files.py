"""Files that appear whole or not at all, and those that only the first writer may create."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from pathlib import Path

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName

__all__ = [
    "has_folder",
    "link_file",
    "move_folder",
    "put_if_absent",
    "remove_folder",
    "replace_file",
    "sync_folder",
    "write_synced",
]


def put_if_absent(path: Path, content: bytes) -> bool:
    """Create a file with its content in one step; whether it was not there.

    A link to a complete file is the only step that POSIX makes atomic and exclusive at once: an exclusive
    `open` would show readers a file that is empty still.

    Raises:
        OSError: the file system has no links, or did not take the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_synced(draft, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""What no further try changes: another file system, or one without links."""


def link_file(sink: str, table: TableName, source: Path, path: Path) -> None:
    """Give a file of a table a second name. Repeatable: the status of the file changes each time, so a
    cleaning that is under way takes it for a new one.

    Raises:
        SinkError: `PUBLICATION_FILE_NOT_LINKED`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, path)
    except FileExistsError:
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        os.link(path, draft)
        draft.unlink()
    except OSError as error:
        raise SinkError(
            "PUBLICATION_FILE_NOT_LINKED",
            f"Sink {sink}: {source} of {table} cannot be linked to {path.parent}: {error}",
            hint=f"Name a folder in the file system of the lake's files: [sinks.{sink}.options] folder. A "
            'publication as Delta can do without links: files = "locations".',
            parameters={"sink": sink, "table": str(table)},
            retryable=error.errno not in _NO_LINKS,
        ) from error


def replace_file(path: Path, content: bytes) -> None:
    """Give a file another content in one step."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_synced(draft, content)
    draft.replace(path)


def move_folder(before: Path, after: Path) -> None:
    """Give a folder another name in one step."""
    after.parent.mkdir(parents=True, exist_ok=True)
    before.rename(after)
    sync_folder(after.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder and all that is in it. Repeatable. It loses its name first, so that readers see all of
    it or nothing."""
    leaving = _leaving(folder)
    if folder.exists() and not leaving.exists():
        folder.rename(leaving)
    for each in (leaving, folder):
        if each.exists():
            shutil.rmtree(each)


def has_folder(folder: Path) -> bool:
    """Whether there is such a folder, or one that `remove_folder` did not finish."""
    return folder.exists() or _leaving(folder).exists()


def _leaving(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.leaving")


def write_synced(path: Path, content: bytes) -> None:
    """Write a file to the disk. Its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
