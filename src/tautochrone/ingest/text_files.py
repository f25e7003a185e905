"""Small text files on any file system that Spark can reach, through Hadoop's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

__all__ = ["Files"]


_RENAMES_WHOLE = frozenset({"file", "hdfs", "viewfs"})
"""Schemes of file systems on which a folder gets its new name at once, whatever is in it."""

_STORES_WHOLE = frozenset({"s3a", "gs"})
"""Schemes of object stores that show a file when all of it is stored, over an older one at once."""


class Files:
    """Reads and writes whole UTF-8 files. Paths are absolute, with or without a scheme."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm: Any = session._jvm  # noqa: SLF001
        self._conf: Any = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001

    def _open(self, path: str) -> tuple[Any, Any]:
        target = self._jvm.org.apache.hadoop.fs.Path(path)
        return target.getFileSystem(self._conf), target

    def read(self, path: str) -> str | None:
        """The content, or None when there is no such file."""
        system, target = self._open(path)
        if not system.exists(target):
            return None
        stream = system.open(target)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write the file whole. Where a file is visible while it is written: under another name first, then
        renamed over the old one. The other name is used once: two processes that write one file never write
        into each other's."""
        system, target = self._open(path)
        if str(system.getUri().getScheme()) in _STORES_WHOLE:
            self._store(system, target, text)
            return
        name = f".{target.getName()}.{uuid4().hex}.new"
        scratch = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), name)
        self._store(system, scratch, text)
        system.delete(target, False)
        if not system.rename(scratch, target):
            raise OSError(f"{path} cannot be written: the file system does not rename {name}")

    def _store(self, system: Any, target: Any, text: str) -> None:
        stream = system.create(target, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all in it; a missing one is fine.

        Raises:
            OSError: it is still there.
        """
        system, target = self._open(path)
        if not system.delete(target, True) and system.exists(target):
            raise OSError(f"{path} cannot be deleted: the file system keeps it")

    def exists(self, path: str) -> bool:
        system, target = self._open(path)
        return bool(system.exists(target))

    def renames_whole(self, path: str) -> bool:
        """Whether a folder there is renamed at once; object stores copy file by file."""
        system, target = self._open(path)
        return str(system.makeQualified(target).toUri().getScheme()) in _RENAMES_WHOLE

    def rename(self, path: str, to: str) -> None:
        """Give a folder another name; nothing may be there under it.

        Raises:
            FileNotFoundError: there is no such folder, or no longer.
        """
        system, source = self._open(path)
        target = self._jvm.org.apache.hadoop.fs.Path(to)
        try:
            if system.exists(source) and not system.exists(target) and system.rename(source, target):
                return
        except Py4JJavaError:
            if system.exists(source):
                raise
        raise FileNotFoundError(path)

    def copy(self, path: str, to: str, names: Iterable[str]) -> None:
        """Copy files, by their names relative to the folder `path`, to the same names in the folder `to`."""
        system, source = self._open(path)
        _, target = self._open(to)
        below, copy = self._jvm.org.apache.hadoop.fs.Path, self._jvm.org.apache.hadoop.fs.FileUtil.copy
        for name in names:
            if not copy(system, below(source, name), system, below(target, name), False, True, self._conf):
                raise OSError(f"{path}/{name} cannot be copied to {to}")

    def names(self, path: str) -> list[str]:
        """Visible names in a folder, sorted; empty when there is no such folder."""
        system, target = self._open(path)
        if not system.exists(target):
            return []
        names = (str(status.getPath().getName()) for status in system.listStatus(target))
        return sorted(name for name in names if not name.startswith("."))

    def is_empty(self, path: str) -> bool:
        """Whether there is no such folder, or nothing in it, hidden names included."""
        system, target = self._open(path)
        return not system.exists(target) or len(system.listStatus(target)) == 0

    def stamps(self, path: str) -> dict[str, tuple[int, int]]:
        """Relative path → (modification time in ms, bytes) of the visible files below a folder."""
        system, target = self._open(path)
        if not system.exists(target):
            return {}
        root = str(system.makeQualified(target).toUri().getPath()).rstrip("/") + "/"
        stamps: dict[str, tuple[int, int]] = {}
        files = system.listFiles(target, True)
        while files.hasNext():
            status = files.next()
            if not str(status.getPath().getName()).startswith("."):
                name = str(status.getPath().toUri().getPath()).removeprefix(root)
                stamps[name] = (status.getModificationTime(), status.getLen())
        return stamps
