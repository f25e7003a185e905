"""Files that appear whole or not at all, and those that only the first writer may create.

On this machine and in buckets: where a file system has links and renames, a bucket has copies and PUT with a
condition.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.common.object_paths import S3Path, StoredPath

__all__ = [
    "copy_objects",
    "file_names",
    "has_folder",
    "link_files",
    "move_folder",
    "of_each",
    "opened_parquet",
    "put_if_absent",
    "read_range",
    "remove_folder",
    "replace_file",
    "size_of",
    "sizes_of",
    "sync_folder",
    "write_synced",
]

R = TypeVar("R")
T = TypeVar("T")


def put_if_absent(path: StoredPath, content: bytes) -> bool:
    """Create a file with its content in one step; whether it was not there.

    A link to a complete file is the only step that POSIX makes atomic and exclusive at once: an exclusive
    `open` would show readers a file that is empty still.

    Raises:
        OSError: the file system has no links, or did not take the file.
    """
    if isinstance(path, S3Path):
        return path.create(content)
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


_REQUESTS = 8
"""So many requests are sent to a server at a time."""
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""What no further try changes: another file system, or one without links."""


def link_file(sink: str, table: TableName, source: StoredPath, path: StoredPath) -> None:
    """Give a file of a table a second name; in a bucket it is copied. Repeatable: the status of the file
    changes each time, so a cleaning that is under way takes it for a new one.

    Raises:
        SinkError: `PUBLICATION_FILE_NOT_LINKED`.
    """
    if isinstance(path, S3Path):
        path.copy_from(source)
        return
    assert isinstance(source, Path), "`stored_file` refuses it"
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


def link_files(sink: str, table: TableName, links: Sequence[tuple[StoredPath, StoredPath]]) -> None:
    """`link_file` of each source and path. A bucket copies several at a time.

    Raises:
        SinkError: `PUBLICATION_FILE_NOT_LINKED`.
    """
    on_server = bool(links) and isinstance(links[0][1], S3Path)
    of_each(links, lambda link: link_file(sink, table, *link), on_server=on_server)


def of_each(items: Sequence[T], action: Callable[[T], R], *, on_server: bool) -> list[R]:
    """What an action gives for each item, several at a time if it asks a server."""
    if len(items) > 1 and on_server:
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return list(pool.map(action, items))
    return [action(item) for item in items]


def replace_file(path: StoredPath, content: bytes) -> None:
    """Give a file another content in one step."""
    if isinstance(path, S3Path):
        path.put(content)
        return
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_synced(draft, content)
    draft.replace(path)


def move_folder(before: StoredPath, after: StoredPath) -> None:
    """Give a folder on this machine another name in one step."""
    assert isinstance(before, Path)
    assert isinstance(after, Path)
    after.parent.mkdir(parents=True, exist_ok=True)
    before.rename(after)
    sync_folder(after.parent)


def copy_objects(before: StoredPath, after: StoredPath, *, last: str) -> None:
    """Copy all objects of a folder in a bucket. Repeatable.

    Args:
        last: the folder in it of which the objects come last: by them readers look for the others.
    """
    assert isinstance(before, S3Path)
    assert isinstance(after, S3Path)

    def copy(path: S3Path) -> None:
        (after / path.relative_to(before).as_posix()).copy_from(path)

    data, log = _data_and_log(before, last)
    of_each(data, copy, on_server=True)
    for path in log:
        copy(path)


def _data_and_log(folder: S3Path, log_folder: str) -> tuple[list[S3Path], list[S3Path]]:
    """The objects of a table. Those of its log are as they came: versions ascending, and behind them names
    without a number, which say where to begin."""
    data, log = list[S3Path](), list[S3Path]()
    prefix = f"{folder / log_folder}/"
    for path in folder.below():
        (log if str(path).startswith(prefix) else data).append(path)

    def version(path: S3Path) -> tuple[bool, int, str]:
        number = re.search(r"\d+", path.name)
        return number is None, 0 if number is None else int(number[0]), path.key

    return data, sorted(log, key=version)


def remove_folder(folder: StoredPath, *, last: str, check: Callable[[], None] | None = None) -> None:
    """Remove a folder and all that is in it. Repeatable. It loses its name first, so that readers see all of
    it or nothing. A bucket has no such step: objects go one by one.

    Args:
        last: the folder in it of which the objects go last.
        check: called before each object goes: others may have begun the folder anew meanwhile.
    """
    if isinstance(folder, S3Path):

        def remove(path: S3Path) -> None:
            if check is not None:
                check()
            path.unlink()

        data, log = _data_and_log(folder, last)
        of_each(data, remove, on_server=True)
        for path in reversed(log):
            remove(path)
        return
    leaving = _leaving(folder)
    if folder.exists() and not leaving.exists():
        folder.rename(leaving)
    for each in (leaving, folder):
        if each.exists():
            shutil.rmtree(each)


def has_folder(folder: StoredPath) -> bool:
    """Whether there is such a folder, or one that `remove_folder` did not finish."""
    return folder.is_dir() or (isinstance(folder, Path) and _leaving(folder).exists())


def _leaving(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.leaving")


def write_synced(path: StoredPath, content: bytes) -> None:
    """Write a file to the disk, or an object. Its folder is made if it is missing."""
    if isinstance(path, S3Path):
        path.put(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: StoredPath) -> None:
    """Write the entries of a folder to the disk."""
    if isinstance(folder, S3Path):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_names(folder: StoredPath) -> list[str]:
    """The names of what is in a folder; none if there is no such folder."""
    if isinstance(folder, S3Path):
        return [path.name for path in folder.iterdir()]
    return os.listdir(folder) if folder.exists() else []


def sizes_of(paths: Sequence[StoredPath]) -> list[int | None]:
    """`size_of` each file. A bucket lists several of a folder at once."""
    folders = {path.parent for path in paths if isinstance(path, S3Path)} if len(paths) > 1 else set[S3Path]()
    listed = {folder: folder.sizes() for folder in folders}
    return [listed[p.parent].get(p.name) if p.parent in listed else size_of(p) for p in paths]


def size_of(path: StoredPath) -> int | None:
    """The size of a file in bytes; None: it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def read_range(path: StoredPath, offset: int, length: int) -> bytes:
    """Bytes of a file from `offset`, fewer at its end."""
    if isinstance(path, S3Path):
        return path.read_range(offset, length)
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def opened_parquet(path: StoredPath, size: int | None = None) -> Any:
    """A file as pyarrow takes it.

    Args:
        size: in bytes, where it is known: then a server is not asked for it.
    """
    return path.open("rb", size) if isinstance(path, S3Path) else path
