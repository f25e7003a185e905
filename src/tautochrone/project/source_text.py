"""The text of a Python definition: a definition counts as changed when this text differs."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tautochrone.project.constant_text import constant_text
from tautochrone.project.deferred_frames import recorded_functions, recorded_text

__all__ = ["source_text"]

_SIMPLE = (str, bytes, int, float, bool, type(None))


def source_text(function: Callable[..., Any], folders: tuple[Path, ...]) -> str:
    """The function's source without layout, comments and its own decorators; the values of its
    defaults, closure and constant globals; and the same for functions of the project that it uses, also
    through a module of the project or through a DataFrame of the import.

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
    else:
        yield from _describe_function(item, folders, seen)


def _describe_function(item: Any, folders: tuple[Path, ...], seen: set[int]) -> Iterator[str]:
    code = getattr(item, "__code__", None)
    wrapped = getattr(item, "__wrapped__", None)
    if wrapped is not None:
        if hasattr(item, "returnType"):
            yield f"returns {_value(item.returnType)}"
        yield from _describe(wrapped, folders, seen)
        if code is None or not _is_below(code.co_filename, folders):
            # A function of PySpark or of another library around one of the project, such as a UDF.
            return
    if code is None:
        return
    yield _source(code)
    for label, value in _used(item, code, folders):
        text = _value(value)
        functions = recorded_functions(value)
        if text is not None:
            yield f"{label} = {text}"
        else:
            functions = (value,)
        for function in functions:
            if _is_project_code(function, folders):
                yield from _describe(function, folders, seen)


def _used(item: Any, code: CodeType, folders: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
    yield "defaults", item.__defaults__
    yield "keyword defaults", item.__kwdefaults__
    for name, cell in zip(code.co_freevars, item.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    names = sorted(_names(code))
    for name in names:
        if name in item.__globals__:
            yield name, item.__globals__[name]
            yield from _attributes(name, item.__globals__[name], names, folders, set())


def _attributes(
    label: str, module: Any, names: list[str], folders: tuple[Path, ...], seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """What a function with these names may use of a module of the project: `helpers.f`."""
    if not isinstance(module, ModuleType) or id(module) in seen:
        return
    seen.add(id(module))
    if not _is_below(getattr(module, "__file__", None) or "", folders):
        return
    for name in names:
        if name in vars(module):
            yield f"{label}.{name}", vars(module)[name]
            yield from _attributes(f"{label}.{name}", vars(module)[name], names, folders, seen)


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _source(code: CodeType) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(code))
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
    if (text := constant_text(value)) is not None:
        return text
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
    return _is_below(code.co_filename, folders)


def _is_below(file: str, folders: tuple[Path, ...]) -> bool:
    path = Path(file)
    return any(path.is_relative_to(folder) for folder in folders) and "site-packages" not in path.parts
