"""Files of a foreign table, opened as Spark opens them: with its settings, on any storage that it knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.model.lake import local_folder
from tautochrone.spark.jvm.catalyst import cached_packages
from tautochrone.spark.jvm.driver_calls import driver_calls, split_texts
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["Storage", "StoredFile"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a folder.

    Attributes:
        path: in the folder, its parts with `/` between.
        modified_ms: when it was written.
    """

    path: str
    bytes: int
    modified_ms: int


class Storage:
    """Reads files. On this machine Python opens them itself, elsewhere Hadoop does.

    Args:
        session: has the settings of file systems.
    """

    def __init__(self, session: SparkSession) -> None:
        self._jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        self._session: Any = session._jsparkSession  # noqa: SLF001

    def qualified(self, path: str) -> str:
        """A path with its file system, as Hadoop spells it.

        Raises:
            OSError: no file system has such paths.
        """
        with _hadoop_errors(path):
            folder = self._jvm.org.apache.hadoop.fs.Path(path)
            return str(self._file_system(folder).makeQualified(folder).toString()).rstrip("/")

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if there is no such folder.

        Raises:
            OSError: it cannot be listed.
        """
        local = local_folder(folder)
        if local is not None:
            return [entry.name for entry in local.iterdir()] if local.is_dir() else []
        # Some file systems answer arrays of a class of their own, for which Py4J has no method of `FileUtil`.
        return [file.path for file in self.files(folder)]

    def files(self, folder: str, *, below: bool = False, without: str = "") -> list[StoredFile]:
        """The files in a folder, hidden ones included; none if there is no such folder.

        Args:
            below: those in folders below it too. One that goes meanwhile has none.
            without: the name of a folder in it that is left out.

        Raises:
            OSError: it cannot be listed.
        """
        local = local_folder(folder)
        if local is not None:
            return list(_local_files(local, "", below=below, without=without))
        conf = self._session.sessionState().newHadoopConf()
        with _hadoop_errors(folder):
            texts = split_texts(str(driver_calls().stamps(conf, folder, below, without)))
        stamps = zip(texts[::3], texts[1::3], texts[2::3], strict=True)
        return [StoredFile(path, int(size), int(modified)) for path, modified, size in stamps]

    def read(self, location: str) -> bytes:
        """
        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
        """
        local = local_folder(location)
        if local is not None:
            return local.read_bytes()
        with _hadoop_errors(location):
            path = self._jvm.org.apache.hadoop.fs.Path(location)
            stream = self._file_system(path).open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def stamp(self, location: str) -> tuple[int, ...] | None:
        """What tells a file from another one that was put into its place; None: it is not there.

        Raises:
            OSError: that cannot be told.
        """
        local = local_folder(location)
        try:
            if local is not None:
                status = local.stat()
                return status.st_size, status.st_mtime_ns, status.st_ino
            with _hadoop_errors(location):
                path = self._jvm.org.apache.hadoop.fs.Path(location)
                status = self._file_system(path).getFileStatus(path)
                return int(status.getLen()), int(status.getModificationTime())
        except FileNotFoundError:
            return None

    def _file_system(self, path: Any) -> Any:
        return path.getFileSystem(self._session.sessionState().newHadoopConf())


def _local_files(folder: Path, above: str, *, below: bool, without: str = "") -> Iterator[StoredFile]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{above}{entry.name}"
        if entry.is_dir():
            if below and path != without:
                yield from _local_files(folder / entry.name, f"{path}/", below=True, without=without)
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        yield StoredFile(path, status.st_size, status.st_mtime_ns // 1_000_000)


@contextmanager
def _hadoop_errors(location: str) -> Iterator[None]:
    """Raise what Hadoop says as an OSError."""
    try:
        yield
    except Py4JJavaError as error:
        text = problem_of(error).message
        if str(error.java_exception.getClass().getName()) == "java.io.FileNotFoundException":
            raise FileNotFoundError(text) from error
        raise OSError(f"{location}: {text}") from error
    except (Py4JError, PySparkException) as error:
        raise OSError(f"{location}: {error}") from error
