"""An operator is named where it is defined, in its rule, where it is translated, and hardly anywhere else."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import tautochrone
from tautochrone.algebra.rules import RULES

ROOT = Path(inspect.getfile(tautochrone)).parent
DEFINED_IN = "algebra/nodes/query.py"
EXPORTED_BY = "algebra/nodes/__init__.py"
MAX_FILES = 5
PARTS_OF_OTHERS = {"Select", "Rename", "Union", "Join"}
"""Rules and translations of other operators are made of these."""
MAY_DECIDE = {DEFINED_IN, "algebra/pushdown.py", "spark/translate/to_catalyst"}
"""Keys go down through a union and a join to each of their inputs."""
OPERATORS = {node.__name__ for node in RULES}


def parsed() -> dict[str, ast.Module]:
    """The modules that import nodes, and that which defines them."""
    texts = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in ROOT.rglob("*.py")}
    return {
        file: ast.parse(text)
        for file, text in texts.items()
        if "from tautochrone.algebra.nodes" in text and file != EXPORTED_BY
    }


MODULES = parsed()


@pytest.mark.parametrize("name", sorted(OPERATORS - PARTS_OF_OTHERS))
def test_operator_is_named_in_few_files(name: str) -> None:
    files = {DEFINED_IN, *(file for file, module in MODULES.items() if name in imported_nodes(module))}
    assert len(files) <= MAX_FILES, files


def test_nothing_else_decides_by_the_class_of_an_operator() -> None:
    deciding = {file for file, module in MODULES.items() if OPERATORS & {*deciding_classes(module)}}
    assert {file for file in deciding if not file.startswith(tuple(MAY_DECIDE))} == set()


def imported_nodes(module: ast.Module) -> Iterator[str]:
    for part in ast.walk(module):
        if isinstance(part, ast.ImportFrom) and str(part.module).startswith("tautochrone.algebra.nodes"):
            yield from (alias.name for alias in part.names)


def deciding_classes(module: ast.Module) -> Iterator[str]:
    """The nodes by which a module asks `isinstance`, matches or looks something up."""
    imported = {*imported_nodes(module)}
    for part in ast.walk(module):
        parts: list[ast.AST] = []
        match part:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
                parts = [*ast.walk(classes)]
            case ast.MatchClass(cls=matched):
                parts = [matched]
            case ast.Dict(keys=keys):
                parts = [key for key in keys if key is not None]
        yield from (name.id for name in parts if isinstance(name, ast.Name) and name.id in imported)
