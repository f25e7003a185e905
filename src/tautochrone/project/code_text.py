"""The text of Python's instructions, without what no result depends on: lines, names of local variables,
docstrings, the numbers under which constants are kept."""

from __future__ import annotations

import dis
import types
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tautochrone.project.libraries import READING_FUNCTIONS, READING_METHODS, Libraries

if TYPE_CHECKING:
    from tautochrone.project.object_text import ObjectText

__all__ = ["CodeText"]

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
