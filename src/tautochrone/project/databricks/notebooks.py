"""Definition files that were written for Databricks: how they are recognised, magic commands, `dbutils`.

Cells with a magic command are comments here and would be code on Databricks, so each has a warning. Of
`dbutils` there is what definition files need: `dbutils.fs.ls`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tautochrone.model.definitions import SourceLocation
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.databricks.ipynb import Notebook
from tautochrone.project.databricks.unsupported import databricks_only_error
from tautochrone.project.definitions import DefinitionWarning

__all__ = [
    "Dbutils",
    "FileInfo",
    "is_written_for_databricks",
    "magic_warnings",
    "magic_warnings_of",
    "runs_as_main",
]


_SIGNS = re.compile(
    r"""
    ^(?:\#|--)[ ]Databricks[ ]notebook[ ]source
    | ^\s*(?:import|from)[ ]+(?:dlt|databricks)\b
    | \bcloudFiles\b | \b(?:read_files|cloud_files|create_auto_cdc_\w+|apply_changes\w*)\s*\(
    | ^\s*@\w+\.(?:expect\w*|view)\b
    | \bCREATE\s+OR\s+(?:REFRESH|REPLACE\s+(?:LIVE|MATERIALIZED|STREAMING))\b
    | \bCREATE\s+(?:STREAMING\s+)?LIVE\b
    | \bON\s+VIOLATION\b | \bAPPLY\s+CHANGES\s+INTO\b
    """,
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_MAIN = re.compile(r"""^if\s+__name__\s*==\s*["']__main__["']\s*:""", re.MULTILINE)


def is_written_for_databricks(text: str) -> bool:
    """Whether a file says something that open-source Spark does not know.

    >>> is_written_for_databricks("import dlt")
    True
    >>> is_written_for_databricks("from pyspark import pipelines as dp")
    False
    """
    return _SIGNS.search(text) is not None


def runs_as_main(text: str) -> bool:
    """Whether a file defines something only if it is the main program, as notebooks of Databricks are.

    >>> runs_as_main("import dlt\\nif __name__ == '__main__':\\n    define()")
    True
    """
    return _MAIN.search(text) is not None


_MAGIC = re.compile(r"^(?:#|--)\s*MAGIC\s+(%(?:run|sql|python|pip|sh|fs|scala|r)\b.*)$")


def magic_warnings(file: Path, shown: str) -> Iterator[DefinitionWarning]:
    """A warning for each cell with a magic command that runs something.

    Args:
        file: a definition file.
        shown: what people call it.
    """
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = _MAGIC.match(line)
        if match is not None:
            yield _magic_warning(SourceLocation(shown, number), match[1].strip())


def magic_warnings_of(notebook: Notebook, shown: str) -> Iterator[DefinitionWarning]:
    """The same of a notebook in Jupyter's format."""
    for magic in notebook.magic:
        yield _magic_warning(SourceLocation(f"{shown}#{magic.cell}", magic.line), magic.text)


def _magic_warning(location: SourceLocation, command: str) -> DefinitionWarning:
    reason = Reason.of(ReasonCode.CLAUSE_IGNORED, statement="a notebook cell", clause=command)
    return DefinitionWarning(location, reason)


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
        raise _not_available_error(self, f"dbutils.fs.{name}", name)


class Dbutils:
    """The global `dbutils` of files that are written for Databricks.

    >>> dbutils.fs.ls("/Volumes/main/raw/exports")  # doctest: +SKIP
    [FileInfo(path='file:/Volumes/main/raw/exports/1.csv', name='1.csv', size=45, modificationTime=17…)]
    """

    def __init__(self, session: SparkSession) -> None:
        self.fs = _Files(session)

    def __getattr__(self, name: str) -> NoReturn:
        raise _not_available_error(self, f"dbutils.{name}", name)


def _not_available_error(owner: object, subject: str, name: str) -> Exception:
    if name.startswith("__"):
        # Python asks every object for such attributes.
        return AttributeError(name=name, obj=owner)
    return databricks_only_error("dbutils", subject)


def _info(status: Any) -> FileInfo:
    slash = "/" if status.isDirectory() else ""
    path = status.getPath()
    return FileInfo(
        path=f"{path}{slash}",
        name=f"{path.getName()}{slash}",
        size=int(status.getLen()),
        modificationTime=int(status.getModificationTime()),
    )
