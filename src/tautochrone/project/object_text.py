"""The text of Python functions and values by which a definition is recognised as changed.

Pickled bytes are others in each process: sets have an order by chance, and names of files and lines are in
them. So functions, classes and objects are described by what they do: instructions with their constants,
values of closures and globals, attributes. The same text means the same results, whatever the process.

What no result depends on is left out of instructions: lines, names of local variables, docstrings, the
numbers under which constants are kept. So is the project's folder: a clone of a project has the same
definitions.

Functions of libraries stand for themselves, by name and version. Modules of the project that a function
imports while it runs are described by their files.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import os
import re
import types
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from pyspark.core.broadcast import Broadcast
from pyspark.core.context import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType

from tautochrone.project.libraries import READING_FUNCTIONS, READING_METHODS, Libraries

__all__ = ["CodeText", "ObjectText", "ProjectFolder"]


_PLACEHOLDER = "\0project\0"


class ProjectFolder:
    """Leaves a project's folder out of texts.

    Attributes:
        path: the folder, if a text had it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        # `/data/p` is not in `/data/p2` and `/data/p.old`.
        self._pattern = re.compile(re.escape(self._folder) + r"(?![\w.-])")
        self.path = ""

    def without_folder(self, text: str) -> str:
        """The text with a mark in place of the folder."""
        if self._folder == "/" or self._folder not in text:
            return text
        result, count = self._pattern.subn(_PLACEHOLDER, text)
        if count:
            self.path = self._folder
        return result


_WITHOUT_EFFECT = frozenset({"RESUME", "NOP", "CACHE", "EXTENDED_ARG", "NOT_TAKEN"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_USES_NAMES_OF_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})

Chains = dict[str, set[tuple[str, ...]]]


class CodeText:
    """Describes code objects, with the values of the globals that they use."""

    def __init__(self, values: ObjectText, libraries: Libraries) -> None:
        self._values = values
        self._libraries = libraries
        self._files: set[str] = set()

    def of(self, code: types.CodeType, names: Mapping[str, Any], package: str) -> str:
        """The text of a function's code.

        Args:
            code: of the function.
            names: its globals.
            package: of its module, for relative imports.
        """
        chains: Chains = {}
        imports: set[tuple[str, tuple[str, ...]]] = set()
        text = self._instructions(code, chains, imports, package)
        used = []
        for name in sorted(chains.keys() & names.keys()):
            value = names[name]
            is_module = isinstance(value, types.ModuleType)
            used.append(
                (name, self._values.module(value, chains[name]) if is_module else self._values.of(value))
            )
        modules = [self._module(name, members) for name, members in sorted(imports)]
        return f"{text} {used} {modules}"

    def _instructions(
        self,
        code: types.CodeType,
        chains: Chains,
        imports: set[tuple[str, tuple[str, ...]]],
        package: str,
    ) -> str:
        kept = [each for each in dis.get_instructions(code) if each.opname not in _WITHOUT_EFFECT]
        offsets = [each.offset for each in kept]

        def ordinal(offset: int) -> int:
            return bisect_left(offsets, offset)

        lines: list[str] = []
        for index, each in enumerate(kept):
            operand: Any = each.arg
            if isinstance(each.argval, types.CodeType):
                operand = self._instructions(each.argval, chains, imports, package)
            elif each.opcode in dis.hasconst:
                operand = self._values.of(each.argval)
            elif each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
                operand = ordinal(each.argval)
            elif each.opcode in dis.hasname:
                operand = each.argval
                self._note_name(each, kept[index + 1 :], chains)
            if each.opname == "IMPORT_NAME":
                imports.add(_import(kept[:index], str(each.argval), package))
            lines.append(f"{each.opname} {operand}")
        handlers = [
            (ordinal(entry.start), ordinal(entry.end), ordinal(entry.target), entry.depth, entry.lasti)
            for entry in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
        ]
        arguments = (
            code.co_argcount + code.co_kwonlyargcount + (code.co_flags >> 2 & 1) + (code.co_flags >> 3 & 1)
        )
        # Callers may name parameters. Of other variables only code that asks for them sees the names.
        sees_names = not _USES_NAMES_OF_LOCALS.isdisjoint(code.co_names)
        named = code.co_varnames + code.co_freevars if sees_names else code.co_varnames[:arguments]
        kinds = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        return "\n".join([f"code {named} {kinds} {handlers}", *lines])

    def _note_name(self, each: dis.Instruction, following: list[dis.Instruction], chains: Chains) -> None:
        name = str(each.argval)
        if each.opname in _GLOBAL:
            chain = []
            for other in following:
                if other.opname not in _ATTRIBUTE:
                    break
                chain.append(str(other.argval))
            chains.setdefault(name, set()).add(tuple(chain))
        if name in (READING_FUNCTIONS if each.opname in _GLOBAL else READING_METHODS):
            self._values.reads.add(name)

    def _module(self, name: str, members: tuple[str, ...]) -> str:
        """What a function gets of a module that it imports while it runs."""
        texts = [self._file(name)]
        # A member may be a module of the package.
        texts += [text for member in members if (text := self._file(f"{name}.{member}"))]
        if not any(texts):
            chains: list[tuple[str, ...]] = [(member,) for member in members] or [()]
            self._values.reads.update(self._libraries.reads_of(name, chains))
            return self._libraries.name_of(name)
        parents = name.split(".")
        texts += [self._file(".".join(parents[:depth])) for depth in range(1, len(parents))]
        return f"{name} {texts}"

    def _file(self, name: str) -> str:
        file = self._libraries.file_of(name)
        if file is None:
            return ""
        if str(file) in self._files:
            return "imported"
        self._files.add(str(file))
        try:
            code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            self._values.opaque.add(f"the module {name} ({type(error).__name__})")
            return ""
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        return self.of(code, {}, package)


def _import(before: list[dis.Instruction], name: str, package: str) -> tuple[str, tuple[str, ...]]:
    """The full name of the module that `IMPORT_NAME` imports, and the names that are taken from it."""
    level, members = (each.argval for each in before[-2:])
    parents = package.split(".") if package else []
    if level:
        parents = parents[: len(parents) - (level - 1)]
        name = ".".join([*parents, name] if name else parents)
    return name, tuple(members or ())


_SIMPLE = (str, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented))
_LRU_CACHE = type(functools.cache(len))
_OF_INTERPRETER = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_OF_EVERY_CLASS = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__abstractmethods__",
        "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "_abc_impl",
    }
)  # fmt: skip
_LONG = 200
"""Longer texts are replaced by their hash."""


class ObjectText:
    """Describes values of one definition.

    Attributes:
        reads: how its functions read what is not in them, such as `open` of a file, in order of names.
        opaque: the types of values that cannot be described.
    """

    def __init__(self, libraries: Libraries, folder: ProjectFolder) -> None:
        self._libraries = libraries
        self._folder = folder
        self._code = CodeText(self, libraries)
        self._open: list[int] = []
        self._known: dict[int, tuple[Any, str]] = {}
        self.reads: set[str] = set()
        self.opaque: set[str] = set()
        self._describers: tuple[tuple[Any, Callable[[Any], str]], ...] = (
            (types.FunctionType, self._function),
            (type, self._class),
            (types.ModuleType, self._whole_module),
            (_OF_INTERPRETER, self._of_interpreter),
            (types.CellType, self._cell),
            (types.CodeType, lambda code: self._code.of(code, {}, "")),
            (types.MethodType, lambda method: f"method {self.of([method.__self__, method.__func__])}"),
            (functools.partial, lambda part: f"partial {self.of([part.func, part.args, part.keywords])}"),
            ((staticmethod, classmethod), lambda way: f"{type(way).__name__} {self.of(way.__func__)}"),
            (PurePath, lambda path: f"{type(path).__name__} {self.of(str(path))}"),
            (property, lambda part: f"property {self.of([part.fget, part.fset, part.fdel])}"),
            (functools.cached_property, lambda part: f"cached {self.of(part.func)}"),
            (_LRU_CACHE, lambda cached: f"lru_cache {self.of(cached.__wrapped__)}"),
        )

    def of(self, value: Any) -> str:
        """The text of any value."""
        if type(value) is str:
            return _short(f"str {self._folder.without_folder(value)!r}")
        if isinstance(value, _SIMPLE) and type(value).__module__ == "builtins":
            return _short(f"{type(value).__name__} {value!r}")
        if id(value) in self._open:
            return f"cycle {self._open.index(id(value))}"
        if id(value) not in self._known:
            self._open.append(id(value))
            try:
                text = _short(self._describe(value))
            finally:
                self._open.pop()
            # The value is kept, so that no other one gets its id.
            self._known[id(value)] = value, text
        return self._known[id(value)][1]

    def module(self, module: types.ModuleType, chains: Iterable[tuple[str, ...]]) -> str:
        """What a function uses of a module: attributes of attributes, or everything for an empty chain."""
        if self._libraries.has_module(module):
            self._note_reads_through(module.__name__, chains)
            return self._libraries.name_of(module.__name__)
        parts = {chain: self._attribute(module, chain) for chain in {*chains}}
        return f"module {sorted(parts.items())}"

    def _note_reads_through(self, name: str, chains: Iterable[tuple[str, ...]]) -> None:
        self.reads.update(self._libraries.reads_of(name, chains))

    def _attribute(self, module: types.ModuleType, chain: tuple[str, ...]) -> str:
        value: Any = module
        for index, name in enumerate(chain):
            if not isinstance(value, types.ModuleType) or not hasattr(value, name):
                return self.of(value)
            value = getattr(value, name)
            if isinstance(value, types.ModuleType):
                return self.module(value, [chain[index + 1 :]])
        return self.of(value)

    def _describe(self, value: Any) -> str:
        if isinstance(value, (bytes, bytearray, memoryview)) and type(value).__module__ == "builtins":
            return f"bytes {bytes(value).hex()}"
        kind = type(value)
        if kind in (list, tuple):
            return f"{kind.__name__} [{', '.join(map(self.of, value))}]"
        if kind in (set, frozenset):
            return f"set {sorted(map(self.of, value))}"
        if isinstance(value, (dict, types.MappingProxyType)) and kind in (dict, types.MappingProxyType):
            return f"dict {[(self.of(key), self.of(item)) for key, item in value.items()]}"
        if isinstance(value, Enum):
            return f"{self.of(kind)} {value.name} {self.of(value.value)}"
        if isinstance(value, DataType):
            return value.json()
        return self._describe_code(value)

    def _describe_code(self, value: Any) -> str:
        for kinds, describe in self._describers:
            if isinstance(value, kinds):
                return describe(value)
        return self._engine_object(value) or self._instance(value)

    def _of_interpreter(self, value: Any) -> str:
        owner, module = getattr(value, "__self__", None), getattr(value, "__module__", None)
        bound = "" if owner is None or isinstance(owner, types.ModuleType) else self.of(owner)
        if module:
            self.reads.update(self._libraries.reads_of(str(module), [(value.__name__,)]))
        return f"{module}.{getattr(value, '__qualname__', value.__name__)} {bound}"

    def _engine_object(self, value: Any) -> str | None:
        """The text of an object of PySpark or of the operating system, or None."""
        if isinstance(value, type(os.environ)):
            self.reads.add("os.environ")
            return "os.environ"
        if isinstance(value, Broadcast):
            return f"broadcast {self.of(value.value)}"
        if isinstance(value, (SparkSession, SparkContext)):
            return type(value).__name__
        if isinstance(value, (DataFrame, Column)):
            # Functions that run in Python workers have none.
            return repr(value)
        return None

    def _cell(self, cell: types.CellType) -> str:
        try:
            return self.of(cell.cell_contents)
        except ValueError:
            return "empty"

    def _function(self, function: types.FunctionType) -> str:
        if hasattr(function, "evalType") and hasattr(function, "func"):
            # A UDF that another function calls.
            return f"udf {self.of([function.func, getattr(function, 'returnType', None), function.evalType])}"
        code = function.__code__
        if self._libraries.has(code.co_filename):
            module = function.__module__ or ""
            self.reads.update(self._libraries.reads_of(module, [(function.__name__,)]))
            closure = [self._cell(cell) for cell in function.__closure__ or ()]
            return f"{self._libraries.name_of(module)} {function.__qualname__} {closure}"
        values = [
            function.__defaults__,
            function.__kwdefaults__,
            {key: value for key, value in vars(function).items() if key != "__wrapped__"},
        ]
        package = str(function.__globals__.get("__package__") or "")
        closure = [self._cell(cell) for cell in function.__closure__ or ()]
        return f"function {self._code.of(code, function.__globals__, package)} {self.of(values)} {closure}"

    def _class(self, cls: type) -> str:
        if self._libraries.has_class(cls):
            return f"{self._libraries.name_of(str(cls.__module__))}.{cls.__qualname__}"
        members = {name: self.of(member) for name, member in vars(cls).items() if name not in _OF_EVERY_CLASS}
        kind = "" if type(cls) is type else self.of(type(cls))
        bases = [self.of(base) for base in cls.__bases__]
        return f"class {cls.__name__} {kind} {bases} {sorted(members.items())}"

    def _whole_module(self, module: types.ModuleType) -> str:
        if self._libraries.has_module(module):
            return self._libraries.name_of(module.__name__)
        names = sorted(name for name in vars(module) if not name.startswith("__"))
        return f"module {[(name, self.of(vars(module)[name])) for name in names]}"

    def _instance(self, value: Any) -> str:
        kind = type(value)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception:
            self.opaque.add(f"{kind.__module__}.{kind.__qualname__}")
            return f"{self.of(kind)} {self.of(dict(getattr(value, '__dict__', {})))}"
        if isinstance(reduced, str):
            return f"{self.of(kind)} {reduced}"
        parts = [
            list(part) if index in (3, 4) and part is not None else part for index, part in enumerate(reduced)
        ]
        return f"object {self.of(kind)} {[self.of(part) for part in parts]}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()
