"""Runs the user's Python in our process: only inside `user_code`, one at a time.

Spark's own SDP calls a query function when it is registered, in a process of its own, on a
Connect session that cannot be changed. Here functions run later, several times, in different
sessions. So, while user code runs and in its thread only:

* every global that holds a SparkSession holds the session of the evaluation;
* globals and closure cells have the values that they had at registration (`NamesAtRegistration`): otherwise
  all definitions from one for-loop would see the loop's last value;
* what SDP forbids is refused with SDP's classes, and names are rewritten (`NameScope.rewrite`);
* the working directory is the project's, and prints go to stderr: stdout belongs to `--json`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CellType, ModuleType
from typing import Any, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from tautochrone.project.databricks.modules import databricks_modules
from tautochrone.project.deferred_frames import evaluation_session, real_frame
from tautochrone.project.forbidden_calls import Rule, rules
from tautochrone.project.libraries import Libraries
from tautochrone.spark.session.gateway import call_sites

__all__ = ["NamesAtRegistration", "evaluation_lock", "forget_imports", "user_code"]

# Module globals, the working directory and patched classes belong to the whole process.
evaluation_lock = threading.RLock()

_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class NamesAtRegistration:
    """The names that a function could see when it was registered."""

    scopes: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = ()
    cells: tuple[tuple[CellType, Any], ...] = ()
    modules: list[ModuleType] = field(default_factory=list)

    @classmethod
    def of(
        cls, function: Callable[..., Any], module: dict[str, Any], modules: list[ModuleType]
    ) -> NamesAtRegistration:
        """The names that `function`, defined while `module` runs, sees now."""
        scopes = {id(module): module}
        cells: list[tuple[CellType, Any]] = []
        seen: set[int] = set()
        queue: list[Any] = [function]
        while queue:
            item = queue.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, functools.partial):
                queue.append(item.func)
            queue.append(getattr(item, "__wrapped__", None))
            names = getattr(item, "__globals__", None)
            if isinstance(names, dict):
                scopes[id(names)] = names
            for cell in getattr(item, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # a cell that is not filled yet
                    cells.append((cell, cell.cell_contents))
                    queue.append(cell.cell_contents)
        return cls(tuple((scope, dict(scope)) for scope in scopes.values()), tuple(cells), modules)

    @contextlib.contextmanager
    def bound(self, session: SparkSession) -> Iterator[None]:
        """Set the recorded values, with `session` in place of every session."""
        with contextlib.ExitStack() as stack:
            for module in self.modules:
                sessions = {k: v for k, v in vars(module).items() if isinstance(v, SparkSession)}
                stack.enter_context(_names(vars(module), sessions, session))
            for scope, values in self.scopes:
                stack.enter_context(_names(scope, values, session))
            for cell, value in self.cells:
                stack.enter_context(_cell(cell, value, session))
            yield


@contextlib.contextmanager
def _names(scope: dict[str, Any], values: dict[str, Any], session: SparkSession) -> Iterator[None]:
    old_values: list[tuple[str, Any]] = []
    for key, value in values.items():
        new_value = session if isinstance(value, SparkSession) else value
        old = scope.get(key, _MISSING)
        if old is not new_value:
            old_values.append((key, old))
            scope[key] = new_value
    try:
        yield
    finally:
        for key, old in old_values:
            if old is _MISSING:
                scope.pop(key, None)
            else:
                scope[key] = old


@contextlib.contextmanager
def _cell(cell: CellType, value: Any, session: SparkSession) -> Iterator[None]:
    old = cell.cell_contents
    cell.cell_contents = session if isinstance(value, SparkSession) else value
    try:
        yield
    finally:
        cell.cell_contents = old


@contextlib.contextmanager
def user_code(
    folder: Path,
    imports: tuple[Path, ...],
    rewrite: Callable[[str], str],
    data_sources: list[type[DataSource]],
    *,
    in_query: bool,
) -> Iterator[None]:
    """The environment in which user code runs, except for the session.

    Args:
        folder: the project's; becomes the working directory.
        imports: folders that are searched first for imports.
        rewrite: see `NameScope.rewrite`.
        data_sources: gets the data sources that the code registers.
        in_query: true inside a query function, where executing a query is forbidden too.
    """
    with evaluation_lock, contextlib.ExitStack() as stack:
        stack.enter_context(_patched(rules(rewrite, data_sources, in_query=in_query)))
        stack.enter_context(call_sites(noted=True))
        stack.enter_context(_directory(folder))
        stack.enter_context(_import_path(imports))
        stack.enter_context(_imports(Libraries((folder, *imports))))
        stack.enter_context(_stdout_to_stderr())
        stack.enter_context(databricks_modules())
        yield


@functools.lru_cache(maxsize=256)
def _first_parameter(function: Callable[..., Any]) -> str:
    """The name of a function's first parameter; kept, because each evaluation patches the same functions."""
    return next(iter(inspect.signature(function).parameters), "")


@contextlib.contextmanager
def _patched(rules_to_apply: list[Rule]) -> Iterator[None]:
    owner = threading.get_ident()
    inside = False

    def wrap(original: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        first_parameter = _first_parameter(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if not args and first_parameter in kwargs:
                # A function of a module, such as broadcast(df=…).
                args = (kwargs.pop(first_parameter),)
            if not args:
                return original(**kwargs)
            self, args = args[0], args[1:]
            # PySpark itself uses these methods: sql("{df}", df=…) makes temporary views.
            if inside or threading.get_ident() != owner:
                return original(self, *args, **kwargs)
            if evaluation_session() is not None:
                # Built under the rules, which do not apply to what `original` calls.
                args = tuple(real_frame(arg) for arg in args)
                kwargs = {key: real_frame(arg) for key, arg in kwargs.items()}
            inside = True
            try:
                return rule.apply(original, self, args, kwargs)
            finally:
                inside = False

        return call

    originals: list[tuple[type | ModuleType, str, Any]] = []
    try:
        for rule in rules_to_apply:
            originals.append((rule.owner, rule.method, rule.owner.__dict__.get(rule.method, _MISSING)))
            setattr(rule.owner, rule.method, wrap(getattr(rule.owner, rule.method), rule))
        yield
    finally:
        for cls, method, original in reversed(originals):
            if original is _MISSING:
                delattr(cls, method)
            else:
                setattr(cls, method, original)


@contextlib.contextmanager
def _directory(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _import_path(folders: tuple[Path, ...]) -> Iterator[None]:
    before = list(sys.path)
    own_entries = [str(folder) for folder in folders]
    sys.path[:0] = own_entries
    try:
        yield
    finally:
        # Keep the user's own additions to the path: imports inside query functions need them.
        sys.path[:] = before + [
            entry for entry in sys.path if entry not in before and entry not in own_entries
        ]


_imported: set[str] = set()
"""The modules that user code imported first."""


def forget_imports(libraries: Libraries) -> None:
    """Let user code import anew what it imported, except libraries: the files may have changed."""
    for name in _imported:
        module = sys.modules.get(name)
        if module is not None and not _is_of_library(module, libraries):
            del sys.modules[name]
    _imported.clear()
    importlib.invalidate_caches()


def _is_of_library(module: ModuleType, libraries: Libraries) -> bool:
    """A folder without `__init__.py` is a package without a file, which keeps the modules below it."""
    folders = list(getattr(module, "__path__", ()))
    if getattr(module, "__file__", None) is None and folders:
        return all(map(libraries.has, folders))
    return libraries.has_module(module)


@contextlib.contextmanager
def _imports(libraries: Libraries) -> Iterator[None]:
    before, finder = set(sys.modules), _Finder(libraries)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _imported.update(set(sys.modules) - before)


class _Finder:
    """Finds modules of the project."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or self._libraries.has(spec.origin):
            return None
        spec.loader = _FromSource(spec.loader.name, spec.loader.path)
        return spec


class _FromSource(SourceFileLoader):
    """Python's cached bytecode hides a change within a second that keeps the size."""

    def get_code(self, fullname: str) -> Any:
        del fullname
        return self.source_to_code(self.get_data(self.path), self.path)


class _StdoutOfOneThread:
    """A stdout that sends one thread's text to stderr."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._owner = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        is_owner = threading.get_ident() == self._owner
        return getattr(sys.stderr if is_owner else self._stdout, name)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    before = sys.stdout
    sys.stdout = _StdoutOfOneThread(before)
    try:
        yield
    finally:
        sys.stdout = before
