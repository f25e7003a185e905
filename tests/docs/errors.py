"""Which error classes there are: read from the calls that raise them, not from a list beside the code.

A class is a constant: the first argument of an error's constructor, an argument of a function that passes
its parameter `error_class` on to one, or the value of a field `error_class`. Expressions that hold a class of
Spark's are named in `PASSED_ON`; any other way to raise an error is refused, so that no class can be missing
from the page.

A class that no error has is reported without one: as `error_class` of an event, or in brackets at the
beginning of a text, `[CLASS] sentence`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tautochrone import errors

__all__ = ["KINDS", "REPORTED", "Raised", "UnreadError", "document", "raised", "read"]

SOURCES = Path(__file__).parents[2] / "src" / "tautochrone"

CLASSES = {name: vars(errors)[name] for name in errors.__all__ if isinstance(vars(errors)[name], type)}
KINDS = [name for name, kind in CLASSES.items() if issubclass(kind, Exception)]

PASSED_ON = {"problem.error_class", "condition", "content['error_class']"}
"""Expressions that hold a class of Spark or of the service."""

REPORTED = "Reported without an error"
"""The kind of classes that are in events and answers only."""

_CLASS = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)?")
_IN_BRACKETS = re.compile(r"\[([A-Z][A-Z0-9_]{4,}(?:\.[A-Z0-9_]+)?)\] (.+)", re.DOTALL)


class UnreadError(AssertionError):
    """An error is raised in a way that this module does not read."""


@dataclass(frozen=True, slots=True, order=True)
class Raised:
    """One class as some code raises or reports it: `<…>` in the texts stands for a value."""

    kind: str
    error_class: str
    sentence: str
    hint: str


@cache
def raised() -> list[Raised]:
    """Every class with its sentence."""
    return read([path.read_text("utf-8") for path in sorted(SOURCES.rglob("*.py"))])


def read(sources: Sequence[str]) -> list[Raised]:
    """The classes that modules raise or report, sorted; the first text of each kind and class counts.

    Raises:
        UnreadError: a class is neither written out nor passed on.
    """
    # With the nodes of each: a walk through a tree takes longer than what is read of it.
    trees = [(tree, list(ast.walk(tree))) for tree in (ast.parse(source) for source in sources)]
    helpers = {name: helper for _, nodes in trees for name, helper in _helpers(nodes)}
    of_fields = [error_class for _, nodes in trees for error_class in _of_fields(nodes)]
    first: dict[tuple[str, str], Raised] = {}
    for tree, nodes in trees:
        for entry in _in_module(tree, nodes, helpers, of_fields):
            first.setdefault((entry.kind, entry.error_class), entry)
    known = {error_class for _, error_class in first}
    for tree, nodes in trees:
        for entry in _reported(tree, nodes):
            if entry.error_class not in known:
                first.setdefault((entry.kind, entry.error_class), entry)
    return sorted(first.values())


def _helpers(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, tuple[int, str]]]:
    """Functions with a parameter `error_class`: its index, and the kind of error that they raise."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            names = [argument.arg for argument in node.args.args]
            if "error_class" not in names:
                continue
            kinds = [kind for call in ast.walk(node) if (kind := _kind(call))]
            if kinds:
                yield node.name, (names.index("error_class"), kinds[0])


def _of_fields(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The error classes in fields `error_class`: their defaults, and the arguments of constructors."""
    holders = {
        node.name: line.value
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "error_class" and line.value
    }
    for default in holders.values():
        yield from _classes(default, {}, [])
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) in holders:
            given = [*node.args, *(k.value for k in node.keywords if k.arg == "error_class")]
            constants = [a.value for a in given if isinstance(a, ast.Constant)]
            yield from (str(c) for c in constants if _CLASS.fullmatch(str(c)))


def _called(node: ast.Call) -> str:
    """The name of the called function, without its module or object."""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _kind(node: ast.AST) -> str | None:
    """The error that a call constructs. Errors outside the tree's module are internal to theirs."""
    return name if isinstance(node, ast.Call) and (name := _called(node)) in KINDS else None


def _in_module(
    tree: ast.Module, nodes: Sequence[ast.AST], helpers: dict[str, tuple[int, str]], of_fields: list[str]
) -> Iterator[Raised]:
    constants, texts = _constants(tree, nodes), _texts(tree)
    inside = {
        id(call)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name in helpers
        for call in ast.walk(node)
    }
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if _called(node) in helpers:
            index, kind = helpers[_called(node)]
            for error_class in _classes(node.args[index], constants, of_fields):
                yield Raised(kind, error_class, _from_spark(error_class), _hint(node, texts))
        elif (kind := _kind(node)) is not None and id(node) not in inside:
            for error_class in _classes(node.args[0], constants, of_fields):
                yield Raised(kind, error_class, _text(node.args[1], texts), _hint(node, texts))


def _reported(tree: ast.Module, nodes: Sequence[ast.AST]) -> Iterator[Raised]:
    """Classes in events (`events.Name(…, error_class="CLASS")`) and in texts (`[CLASS] sentence`)."""
    texts = _texts(tree)
    # A literal part of an f-string is not a text of its own.
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and id(node) not in parts):
            match = _IN_BRACKETS.match(_text(node, texts))
            if match is not None:
                yield Raised(REPORTED, match[1], match[2], "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("events."):
            fields = {keyword.arg: keyword.value for keyword in node.keywords}
            error_class = fields.get("error_class")
            if isinstance(error_class, ast.Constant):
                sentence = fields.get("reason") or fields.get("error")
                text = "" if sentence is None else _text(sentence, texts)
                yield Raised(REPORTED, str(error_class.value), text, "")


def _constants(tree: ast.Module, nodes: Sequence[ast.AST]) -> dict[str, list[str]]:
    """Names that are unpacked from a table of the module: `error_class, words = _WHY_NOT[…]`."""
    tables = {
        target.id: [c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    constants = {}
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Subscript)
            and isinstance(node.value.value, ast.Name)
        ):
            values = [str(value) for value in tables.get(node.value.value.id, [])]
            constants[ast.unparse(node.targets[0].elts[0])] = [v for v in values if _CLASS.fullmatch(v)]
    return constants


def _classes(node: ast.expr, constants: dict[str, list[str]], of_fields: list[str]) -> list[str]:
    if isinstance(node, ast.Constant) and _CLASS.fullmatch(str(node.value)):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return [c for part in (node.body, node.orelse) for c in _classes(part, constants, of_fields)]
    if isinstance(node, ast.JoinedStr):
        return [_text(node, {})]
    if isinstance(node, ast.Name) and constants.get(node.id):
        return list(dict.fromkeys(constants[node.id]))
    if ast.unparse(node) in PASSED_ON:
        return []
    if isinstance(node, ast.Attribute) and node.attr == "error_class" and of_fields:
        return list(dict.fromkeys(of_fields))
    raise UnreadError(f"no class can be read from `{ast.unparse(node)}`")


def _texts(tree: ast.Module) -> dict[str, str]:
    """Constants of the module, by name."""
    return {
        target.id: str(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _hint(call: ast.Call, texts: dict[str, str]) -> str:
    text = next((_text(keyword.value, texts) for keyword in call.keywords if keyword.arg == "hint"), "")
    return "(depends on the case)" if re.fullmatch(r"<[^<>]*>", text) else text


def _text(node: ast.expr, texts: dict[str, str]) -> str:
    """A text with `<name>` where values go; several texts when it depends."""
    if isinstance(node, ast.Constant):
        return "" if node.value is None else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, texts) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, texts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, texts) + _text(node.right, texts)
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (_text(node.body, texts), _text(node.orelse, texts))))
    if isinstance(node, ast.Name) and node.id in texts:
        return texts[node.id]
    if isinstance(node, ast.Call) and _called(node) == "counted":
        return f"<{_name(node.args[0])}> {_text(node.args[1], texts)}s"
    if isinstance(node, ast.Call) and _called(node) == "near_names_hint":
        return f"did you mean <name>? / {_text(node.args[2], texts)} <{_name(node.args[1])}>"
    return f"<{_name(node)}>"


def _name(node: ast.expr) -> str:
    """What a value is, in a few words.

    `self.engine.url` is `url`, `flow.name` is `flow`, `', '.join(columns)` is `columns`, `len(bad_files)` is
    `number of bad files`.
    """
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower().replace("_", " ")
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        name = node.attr.strip("_").lower().replace("_", " ")
        if name == "name" and isinstance(node.value, ast.Call):
            return f"type of {_name(node.value.args[0])}"
        return owner if name in ("name", "text", "value") and owner not in ("self", "cls", "…") else name
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Call):
        return _name_of_call(node)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _name(node.generators[0].iter)
    if isinstance(node, ast.BoolOp):
        return _name(node.values[0])
    if isinstance(node, ast.BinOp):
        return _name(node.left)
    if isinstance(node, ast.List | ast.Tuple) and node.elts:
        return _name(node.elts[0])
    return _name(node.value) if isinstance(node, ast.Starred) else "…"


def _name_of_call(node: ast.Call) -> str:
    """A method's object is what the value is about; else the first argument is."""
    if _called(node) == "len":
        return f"number of {_name(node.args[0])}"
    if _called(node) == "map":
        return _name(node.args[1])
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if owner is not None and not isinstance(owner, ast.Constant):
        name = _name(owner)
        return name if name != "self" else _called(node).strip("_").replace("_", " ")
    return _name(node.args[0]) if node.args else _called(node).replace("_", " ")


def _from_spark(error_class: str) -> str:
    """Spark's own sentence of a class that is Spark's."""
    condition = _conditions().get(error_class)
    return "" if condition is None else " ".join(condition["message"])


@cache
def _conditions() -> dict[str, Any]:
    conditions: dict[str, Any] = json.loads(
        files("pyspark.errors").joinpath("error-conditions.json").read_text("utf-8")
    )
    return conditions


_HEAD = """\
# Error classes

Generated by `python -m tests.docs.reference` from the calls that raise them; nothing here is written by hand.

An error reads `[CLASS] sentence. SQLSTATE: xxxxx; file:line`, with a hint on the next line where there is
something to do. The class is stable, the sentence is not. `<…>` stands for a value. From Python every one is
a `tautochrone.errors.TautochroneError` with `error_class`, `sqlstate`, `hint`, `location`, `retryable` and
`parameters`.

Errors that Spark itself finds in your queries (`UNRESOLVED_COLUMN`, `PARSE_SYNTAX_ERROR`, …) keep Spark's
class, sentence and SQLSTATE; they come as `DefinitionError`, `RefreshError`, `IngestError` or `QueryError`,
depending on who met them.
"""

_REPORTED_HEAD = """\
No exception has these classes: they are the `error_class` of an [event](events.md), or stand in an answer of
the Iceberg REST catalog. Their reasons are [here](reasons.md).
"""


def document() -> str:
    """The text of `docs/errors.md`."""
    parts = [_HEAD]
    entries = raised()
    for kind in [*KINDS, REPORTED]:
        of_kind = [entry for entry in entries if entry.kind == kind]
        if not of_kind:
            continue
        head = _REPORTED_HEAD if kind == REPORTED else f"{inspect.getdoc(getattr(errors, kind))}\n"
        parts.append(f"## {kind}\n\n{head}")
        parts.append("| class | sentence | hint |\n|---|---|---|")
        parts.extend(f"| `{o.error_class}` | {_cell(o.sentence)} | {_cell(o.hint)} |" for o in of_kind)
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _cell(text: str) -> str:
    """On one line; outside of code a bare `<name>` would be an HTML tag, and stars would be emphasis."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)
