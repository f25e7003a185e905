"""Small text files on any file system that Spark can reach, through Hadoop's API."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["Files"]


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
        """Write the file whole: under another name first, then renamed over the old one."""
        system, target = self._open(path)
        scratch = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f".{target.getName()}.new")
        stream = system.create(scratch, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        system.delete(target, False)
        system.rename(scratch, target)

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all in it; a missing one is fine."""
        system, target = self._open(path)
        system.delete(target, True)

    def names(self, path: str) -> list[str]:
        """Visible names in a folder, sorted; empty when there is no such folder."""
        system, target = self._open(path)
        if not system.exists(target):
            return []
        found = (str(status.getPath().getName()) for status in system.listStatus(target))
        return sorted(name for name in found if not name.startswith("."))

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
        found: dict[str, tuple[int, int]] = {}
        files = system.listFiles(target, True)
        while files.hasNext():
            status = files.next()
            if not str(status.getPath().getName()).startswith("."):
                name = str(status.getPath().toUri().getPath()).removeprefix(root)
                found[name] = (status.getModificationTime(), status.getLen())
        return found
