"""Running the user's Python in our process: only inside `user_code`, one at a time.

Vanilla SDP calls a query function at the moment it is registered, in a process of its own, on a
Connect session that refuses to be changed. Here functions run later, several times, in different
sessions. So, while user code runs and in its thread only:

* every global that holds a SparkSession holds the session of the evaluation;
* globals and closure cells have the values they had at registration (`Bindings`), else all
  definitions made by one for-loop would see the loop's last value;
* what SDP forbids is refused with SDP's classes, and names are rewritten (`NameScope.rewrite`);
* the working directory is the project's, and prints go to stderr: stdout belongs to `--json`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CellType, ModuleType
from typing import Any, TextIO

from pyspark.sql import SparkSession

from tautochrone.project.forbidden_calls import Rule, rules

__all__ = ["Bindings", "evaluation_lock", "user_code"]

# Module globals, the working directory and patched classes are the whole process's.
evaluation_lock = threading.RLock()

_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Bindings:
    """The names a function could see when it was registered."""

    scopes: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = ()
    cells: tuple[tuple[CellType, Any], ...] = ()
    modules: list[ModuleType] = field(default_factory=list)

    @classmethod
    def of(cls, function: Callable[..., Any], module: dict[str, Any], modules: list[ModuleType]) -> Bindings:
        """Remember what `function`, defined while `module` runs, sees now."""
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
        """Put the remembered values in place, with `session` for every session."""
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
    undo: list[tuple[str, Any]] = []
    for key, value in values.items():
        wanted = session if isinstance(value, SparkSession) else value
        old = scope.get(key, _MISSING)
        if old is not wanted:
            undo.append((key, old))
            scope[key] = wanted
    try:
        yield
    finally:
        for key, old in undo:
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
    folder: Path, imports: tuple[Path, ...], rewrite: Callable[[str], str], *, in_query: bool
) -> Iterator[None]:
    """Everything around a run of user code but the session.

    Args:
        folder: the project's; becomes the working directory.
        imports: folders where imports are looked for first.
        rewrite: see `NameScope.rewrite`.
        in_query: true inside a query function, where executing anything is forbidden too.
    """
    with evaluation_lock, contextlib.ExitStack() as stack:
        stack.enter_context(_patched(rules(rewrite, in_query=in_query)))
        stack.enter_context(_directory(folder))
        stack.enter_context(_import_path(imports))
        stack.enter_context(_stdout_to_stderr())
        yield


@contextlib.contextmanager
def _patched(todo: list[Rule]) -> Iterator[None]:
    owner = threading.get_ident()
    inside = False

    def wrap(original: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # PySpark itself uses these methods: sql("{df}", df=…) makes temporary views.
            if inside or threading.get_ident() != owner:
                return original(self, *args, **kwargs)
            inside = True
            try:
                return rule.apply(original, self, args, kwargs)
            finally:
                inside = False

        return call

    originals: list[tuple[type, str, Any]] = []
    try:
        for rule in todo:
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
    ours = [str(folder) for folder in folders]
    sys.path[:0] = ours
    try:
        yield
    finally:
        # The user's own additions to the path serve imports inside query functions: keep them.
        sys.path[:] = before + [entry for entry in sys.path if entry not in before and entry not in ours]


class _Divert:
    """A stdout that sends one thread's text to stderr."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._owner = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        here = threading.get_ident() == self._owner
        return getattr(sys.stderr if here else self._stdout, name)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    before = sys.stdout
    sys.stdout = _Divert(before)
    try:
        yield
    finally:
        sys.stdout = before
