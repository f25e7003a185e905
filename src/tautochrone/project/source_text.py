"""The text of a Python definition: a definition counts as changed when this text differs."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from tautochrone.project.deferred_frames import recorded_text

__all__ = ["source_text"]

_SIMPLE = (str, bytes, int, float, bool, type(None))


def source_text(function: Callable[..., Any], folders: tuple[Path, ...]) -> str:
    """The function's source without layout, comments and its own decorators; the values of its
    defaults, closure and constant globals; and the same for functions of the project that it uses.

    Values that have no stable text (objects, DataFrames) are left out.
    """
    seen: set[int] = set()
    return "\n".join(_describe(function, folders, seen))


def _describe(item: Any, folders: tuple[Path, ...], seen: set[int]) -> Iterator[str]:
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, functools.partial):
        yield f"partial {_value(item.args)} {_value(item.keywords)}"
        yield from _describe(item.func, folders, seen)
        return
    code = getattr(item, "__code__", None)
    if code is None:
        if hasattr(item, "__wrapped__"):
            yield from _describe(item.__wrapped__, folders, seen)
        return
    yield _source(item, code)
    for label, value in _used(item, code):
        text = _value(value)
        if text is not None:
            yield f"{label} = {text}"
        elif _is_project_code(value, folders):
            yield from _describe(value, folders, seen)


def _used(item: Any, code: CodeType) -> Iterator[tuple[str, Any]]:
    yield "defaults", item.__defaults__
    yield "keyword defaults", item.__kwdefaults__
    for name, cell in zip(code.co_freevars, item.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in sorted(_names(code)):
        if name in item.__globals__:
            yield name, item.__globals__[name]


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _source(item: Any, code: CodeType) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(item))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        # A lambda inside a call, or a function that exec created.
        constants = tuple(constant for constant in code.co_consts if isinstance(constant, _SIMPLE))
        return f"{code.co_name} {code.co_code.hex()} {_value(constants)}"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.decorator_list = []
    return ast.unparse(tree)


def _value(value: Any) -> str | None:
    recorded = recorded_text(value)
    if recorded is not None:
        return recorded
    if isinstance(value, _SIMPLE):
        return repr(value)
    if isinstance(value, (list, tuple)):
        parts = [_value(item) for item in value]
        return None if None in parts else f"[{', '.join(str(part) for part in parts)}]"
    if isinstance(value, (set, frozenset)):
        parts = [_value(item) for item in value]
        return None if None in parts else f"{{{', '.join(sorted(str(part) for part in parts))}}}"
    if isinstance(value, dict):
        pairs = [(_value(key), _value(item)) for key, item in value.items()]
        return None if any(None in pair for pair in pairs) else str(pairs)
    return None


def _is_project_code(value: Any, folders: tuple[Path, ...]) -> bool:
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    if code is None:
        return isinstance(value, functools.partial)
    path = Path(code.co_filename)
    return any(path.is_relative_to(folder) for folder in folders) and "site-packages" not in path.parts
