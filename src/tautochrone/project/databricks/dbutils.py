"""`dbutils` of Databricks' notebooks, as far as definition files need it: `dbutils.fs.ls`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tautochrone.project.databricks.unsupported import databricks_only

__all__ = ["Dbutils", "FileInfo"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or folder as `dbutils.fs.ls` shows it. The name of a folder ends with a slash.

    `modificationTime` is in milliseconds.
    """

    path: str
    name: str
    size: int
    modificationTime: int  # noqa: N815 (Databricks' name)

    def isDir(self) -> bool:  # noqa: N802 (Databricks' name)
        return self.name.endswith("/")

    def isFile(self) -> bool:  # noqa: N802 (Databricks' name)
        return not self.isDir()


class _Files:
    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def ls(self, path: str) -> list[FileInfo]:
        """The files and folders in a folder, or a file itself.

        Raises:
            FileNotFoundError: there is nothing.
        """
        context: Any = self._session.sparkContext
        hadoop_path = context._jvm.org.apache.hadoop.fs.Path(path)  # noqa: SLF001
        try:
            statuses = hadoop_path.getFileSystem(context._jsc.hadoopConfiguration()).listStatus(hadoop_path)  # noqa: SLF001
        except Py4JJavaError as error:
            if "FileNotFoundException" in error.java_exception.getClass().getName():
                raise FileNotFoundError(path) from error
            raise
        return sorted(map(_info, statuses), key=lambda info: info.name)

    def __getattr__(self, name: str) -> NoReturn:
        raise _refused(self, f"dbutils.fs.{name}", name)


class Dbutils:
    """The global `dbutils` of files that are written for Databricks.

    >>> dbutils.fs.ls("/Volumes/main/raw/exports")  # doctest: +SKIP
    [FileInfo(path='file:/Volumes/main/raw/exports/1.csv', name='1.csv', size=45, modificationTime=17…)]
    """

    def __init__(self, session: SparkSession) -> None:
        self.fs = _Files(session)

    def __getattr__(self, name: str) -> NoReturn:
        raise _refused(self, f"dbutils.{name}", name)


def _refused(owner: object, subject: str, name: str) -> Exception:
    if name.startswith("__"):
        # Python asks every object for such attributes.
        return AttributeError(name=name, obj=owner)
    return databricks_only("dbutils", subject)


def _info(status: Any) -> FileInfo:
    slash = "/" if status.isDirectory() else ""
    path = status.getPath()
    return FileInfo(
        path=f"{path}{slash}",
        name=f"{path.getName()}{slash}",
        size=int(status.getLen()),
        modificationTime=int(status.getModificationTime()),
    )
