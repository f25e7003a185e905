"""Which Python code belongs to the project and which to libraries, and which of it reads from outside."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["READING_FUNCTIONS", "READING_METHODS", "Libraries"]

READING_METHODS = frozenset(
    {
        "open", "environ", "environb", "getenv", "import_module", "read_text", "read_bytes", "read_csv",
        "read_parquet", "read_json", "read_excel", "read_pickle", "read_table", "read_feather", "read_sql",
        "read_xml", "iterdir", "listdir", "scandir", "rglob", "urlopen", "urlretrieve", "fromfile", "loadtxt",
        "genfromtxt", "memmap", "is_file", "getmtime",
    }
)  # fmt: skip
"""Attributes through which a function sees files, variables or modules."""

READING_FUNCTIONS = READING_METHODS | {
    "__import__", "input", "open_code", "run_path", "run_module", "glob", "exists", "stat", "getsize",
    "getline", "getlines", "get_data", "load",
}  # fmt: skip
"""Names of functions through which it does."""

_READING_MODULES = frozenset(
    {
        "aiohttp", "boto3", "dbm", "fileinput", "ftplib", "geoip2", "glob", "http", "httpx", "importlib",
        "linecache", "mmap", "psycopg", "psycopg2", "pymysql", "redis", "requests", "runpy", "shelve",
        "smtplib", "socket", "sqlite3", "sqlalchemy", "subprocess", "tarfile", "urllib3", "zipfile",
    }
)  # fmt: skip
_HEAP_TYPE = 1 << 9
"""The flag of classes that are not compiled into the interpreter or an extension."""

_UNVERSIONED = frozenset({"pyspark", "py4j", "tautochrone", "cloudpickle"})


class Libraries:
    """Where the code of libraries is: the standard library, installed packages, and Tautochrone itself.

    Args:
        folders: of the project. They are searched first for modules.
    """

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._roots = _roots()

    def has(self, file: str | None) -> bool:
        """Whether a file is a library's. Code without a file was made by a running program, so it is not."""
        if file is None or file.startswith("<frozen"):
            return True
        if file.startswith("<"):
            return False
        path = Path(file)
        if {"site-packages", "dist-packages"} & {*path.parts}:
            return not any(_installed_below(path, folder) for folder in self._folders)
        if any(path.is_relative_to(folder) for folder in self._folders):
            return False
        return any(path.is_relative_to(root) for root in self._roots)

    def has_module(self, module: ModuleType) -> bool:
        """Whether a module is a library's. One without a file is built in, or a running program made it."""
        file = getattr(module, "__file__", None)
        return self.has(file) if file is not None else sys.modules.get(module.__name__) is module

    def has_class(self, cls: type) -> bool:
        """Whether a class is a library's. A class that was pickled by value is not found in its module."""
        if not cls.__flags__ & _HEAP_TYPE:
            return True
        module = sys.modules.get(cls.__module__)
        known: Any = module
        for part in cls.__qualname__.split("."):
            known = getattr(known, part, None)
        return module is not None and known is cls and self.has_module(module)

    def name_of(self, module: str) -> str:
        """A library's module, with the version of what is installed."""
        top = module.partition(".")[0]
        return f"{module} {_version(top)}" if top not in _UNVERSIONED else module

    def reads_of(self, module: str, chains: Iterable[tuple[str, ...]]) -> Iterator[str]:
        """The names by which a function reads through a library's module."""
        top = module.partition(".")[0]
        for chain in chains:
            names = (*module.split("."), *chain)
            if (
                top in _READING_MODULES
                or module == "urllib.request"
                or (names[:1] == ("os",) and len(names) > 1 and names[1] in ("environ", "environb", "getenv"))
                or (len(names) > 1 and names[-1] in READING_FUNCTIONS)
            ):
                yield ".".join(names)

    def file_of(self, name: str) -> Path | None:
        """The file of a module that a function of the project imports; None for libraries and for what is not
        there."""
        path: Any = [*map(str, self._folders), *sys.path]
        parts, file = name.split("."), None
        for depth in range(1, len(parts) + 1):
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), path)
            if spec is None:
                return None
            path = spec.submodule_search_locations
            file = spec.origin
            if path is None and depth < len(parts):
                return None
        return None if file is None or self.has(file) else Path(file)


def _installed_below(path: Path, folder: Path) -> bool:
    """Whether an environment holds the project's folder, rather than the folder an environment."""
    inside = path.relative_to(folder).parts if path.is_relative_to(folder) else ("site-packages",)
    return not {"site-packages", "dist-packages"} & {*inside}


@functools.cache
def _roots() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(str(Path(__file__).parents[1]))
    folders.add(str(Path(functools.__file__).parent))
    return tuple(path for folder in folders for path in {Path(folder), Path(folder).resolve()})


@functools.cache
def _version(package: str) -> str:
    if package in sys.stdlib_module_names or package in sys.builtin_module_names:
        return ""
    distributions = _distributions().get(package, [])
    return ",".join(sorted(importlib.metadata.version(name) for name in distributions))


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {
        name: [*dict.fromkeys(packages)]
        for name, packages in importlib.metadata.packages_distributions().items()
    }
