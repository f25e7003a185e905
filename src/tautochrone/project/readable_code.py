"""What Python definitions read while they are evaluated: nothing besides their own files and the environment,
or something that only their evaluation can tell.

Everything that is not on a list counts as the latter. The lists name what most definitions are written with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["files_read"]

_MODULES = frozenset(
    {
        *("__future__", "abc", "collections", "collections.abc", "dataclasses", "decimal", "enum"),
        *("functools", "itertools", "json", "math", "os", "os.path", "pathlib", "pyspark"),
        *("pyspark.pipelines", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types"),
        *("pyspark.sql.window", "re", "string", "textwrap", "typing"),
    }
)
"""They give the same in each process, as far as the attributes below are not used."""
_OF_PYSPARK = frozenset({"StorageLevel", "pipelines", "sql"})
_OF_OS = frozenset({"environ", "getenv", "sep"})
_OF_OS_PATH = frozenset({"abspath", "basename", "dirname", "join", "splitext"})
_FUNCTIONS = frozenset(
    {
        *("__builtins__", "__import__", "compile", "dbutils", "delattr", "eval", "exec", "getattr"),
        *("globals", "input", "locals", "open", "setattr", "vars"),
    }
)
_ATTRIBUTES = frozenset(
    {
        # Of paths: the file system.
        *("cwd", "exists", "expanduser", "glob", "group", "home", "is_block_device", "is_char_device"),
        *("is_dir", "is_fifo", "is_file", "is_junction", "is_mount", "is_socket", "is_symlink", "iterdir"),
        *(
            "lstat",
            "open",
            "owner",
            "read_bytes",
            "read_text",
            "readlink",
            "rglob",
            "samefile",
            "stat",
            "walk",
        ),
        # Of frames and sessions: rows, and columns that files or tables decide.
        *(
            "approxQuantile",
            "catalog",
            "checkpoint",
            "collect",
            "columns",
            "corr",
            "count",
            "cov",
            "crosstab",
        ),
        *(
            "dataSource",
            "describe",
            "dtypes",
            "executionInfo",
            "explain",
            "first",
            "foreach",
            "foreachPartition",
        ),
        *("freqItems", "head", "inputFiles", "isEmpty", "isLocal", "isStreaming", "localCheckpoint"),
        *("mapInArrow", "mapInPandas", "pandas_api", "pivot", "plot", "printSchema", "randomSplit", "rdd"),
        *("sameSemantics", "schema", "semanticHash", "show", "sparkContext", "storageLevel", "stat"),
        *("summary", "tail", "take", "toArrow", "toJSON", "toLocalIterator", "toPandas"),
        # Of classes and functions: what leads to everything else.
        *("__builtins__", "__class__", "__dict__", "__globals__", "__subclasses__", "_jvm", "_jsparkSession"),
    }
)


def files_read(files: Iterable[Path], root: Path) -> frozenset[Path] | Reason:
    """The files that decide what definitions evaluate to: these, and the project's modules that they import.

    Args:
        files: of definitions.
        root: the project's folder.

    Returns:
        The files; or why the evaluation may read something besides them and the environment.
    """
    todo, read = list(files), set[Path]()
    while todo:
        file = todo.pop()
        if file in read:
            continue
        read.add(file)
        if file.suffix == ".ipynb":
            # Its Python stands in cells, which this module does not read.
            return Reason.of(ReasonCode.CODE_MAY_READ, position=file.name, what="a notebook")
        if file.suffix != ".py":
            continue
        try:
            tree = ast.parse(file.read_bytes(), str(file))
        except (OSError, ValueError, SyntaxError) as error:
            return Reason.of(ReasonCode.CODE_MAY_READ, position=file.name, what=type(error).__name__)
        for line, what in _unknown_of(tree, file.parent, root, todo):
            return Reason.of(ReasonCode.CODE_MAY_READ, position=f"{file.name}:{line}", what=what)
    return frozenset(read)


def _unknown_of(tree: ast.AST, folder: Path, root: Path, own: list[Path]) -> Iterator[tuple[int, str]]:
    """Lines and names of what a file may read; the project's modules that it imports are added to `own`."""
    functions = _names_of_functions_module(tree)
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        what = _unknown_import(node, folder, root, own) or _unknown(node, functions)
        if what is None and id(node) not in owners and _is_of_os(node):
            # Under another name its attributes would not be noticed.
            what = "os"
        if what is not None:
            yield getattr(node, "lineno", 1), what


def _names_of_functions_module(tree: ast.AST) -> frozenset[str]:
    """The names by which the code knows `pyspark.sql.functions`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pyspark.sql":
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "functions"}
        if isinstance(node, ast.Import):
            functions = (alias for alias in node.names if alias.name == "pyspark.sql.functions")
            names |= {alias.asname for alias in functions if alias.asname}
    return frozenset(names)


def _unknown(node: ast.AST, functions: frozenset[str]) -> str | None:
    """The name of what a node may read."""
    if isinstance(node, ast.Name):
        return node.id if node.id in _FUNCTIONS else None
    if not isinstance(node, ast.Attribute):
        return None
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id in functions:
        return None
    if isinstance(owner, ast.Name) and owner.id == "os":
        return None if node.attr in _OF_OS | {"path"} else f"os.{node.attr}"
    if isinstance(owner, ast.Attribute) and owner.attr == "path":
        return None if node.attr in _OF_OS_PATH else node.attr
    if node.attr not in _ATTRIBUTES:
        return None
    if node.attr == "schema" and _is_of_reader(owner):
        return None
    if node.attr == "count" and isinstance(owner, ast.Call) and _called(owner) in _GROUPING:
        return None
    return node.attr


def _is_of_os(node: ast.AST) -> bool:
    """Whether it is `os` or `os.path`."""
    if isinstance(node, ast.Attribute) and node.attr == "path":
        node = node.value
    return isinstance(node, ast.Name) and node.id == "os"


_GROUPING = frozenset({"cube", "groupBy", "groupby", "rollup"})
_READERS = frozenset({"read", "readStream"})


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_of_reader(owner: ast.expr) -> bool:
    """Whether it is `spark.read`, `spark.readStream` or a chain of calls upon it."""
    while isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
        owner = owner.func.value
    return isinstance(owner, ast.Attribute) and owner.attr in _READERS


def _unknown_import(node: ast.AST, folder: Path, root: Path, own: list[Path]) -> str | None:
    """The module or name that an import brings and that is not on the lists."""
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        known = {"os": _OF_OS, "os.path": _OF_OS_PATH, "pyspark": _OF_PYSPARK}.get(module)
        unknown = next((alias.name for alias in node.names if known and alias.name not in known), None)
        return (unknown and f"{module}.{unknown}") or _unknown_module(module, folder, root, own)
    if isinstance(node, ast.Import):
        for alias in node.names:
            renamed = alias.asname is not None and alias.name.partition(".")[0] == "os"
            if renamed or (unknown := _unknown_module(alias.name, folder, root, own)):
                return alias.name
    return None


def _unknown_module(name: str, folder: Path, root: Path, own: list[Path]) -> str | None:
    """The name, if it is neither on the list nor that of a file of the project."""
    if name in _MODULES:
        return None
    if name.startswith("."):
        return name
    parts = name.split(".")
    # Python imports the packages of a module, too. Its path decides which of two files it takes: both count.
    packages = [f"{'/'.join(parts[:i])}/__init__.py" for i in range(1, len(parts))]
    files = [base / f"{'/'.join(parts)}.py" for base in (folder, root)]
    if not any(file.is_file() for file in files):
        return name
    files += [base / package for base in (folder, root) for package in packages]
    own += [file.resolve() for file in files if file.is_file()]
    return None
