"""Statements that sources and sinks send are ASCII, so that databases of any encoding take them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tautochrone

_ROOT = Path(tautochrone.__file__).parent
_FILES = sorted(
    path
    for part in ("sources", "sinks", "model")
    for path in (_ROOT / part).rglob("*.py")
)  # fmt: skip
_VERB = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|MERGE|SET|CREATE|ALTER|DROP|SHOW|WITH|BEGIN|COMMIT|ROLLBACK|START|LOCK"
    r"|TRUNCATE|COPY|FROM|WHERE|JOIN|VALUES|ORDER BY|AND)\b|-- |/\*"
)


def statements_beyond_ascii(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts with a word of SQL that are neither documentation nor what an error says."""
    others: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            others.add(id(node.value))
        # A pair that a function returns is a problem and its hint.
        is_message = (
            (isinstance(node, ast.Call) and _name(node.func).endswith(("Error", "_error")))
            or (isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple))
            or isinstance(node, ast.Raise)
            or (isinstance(node, ast.keyword) and node.arg == "hint")
            or (isinstance(node, ast.Assign) and any(map(_is_message_name, node.targets)))
        )
        if is_message:
            others |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others
        if is_text and not node.value.isascii() and _VERB.search(node.value):
            yield node.lineno, node.value


def _is_message_name(node: ast.expr) -> bool:
    return _name(node).lower().endswith(("hint", "problem"))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def test_statements_are_ascii() -> None:
    beyond = [
        (str(path.relative_to(_ROOT)), line, text)
        for path in _FILES
        for line, text in statements_beyond_ascii(ast.parse(path.read_text()))
    ]
    assert len(_FILES) > 100
    assert not beyond


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('query = "SELECT 1 -- a\u2026b"', 1),
        ('_TABLES = f"""\nSELECT {name}\n-- \u2026\n"""', 1),
        ('raise IngestError("X", "y", hint="ALTER TABLE \u2026 ENGINE = InnoDB")', 0),
        ('def f():\n    """SELECT \u2026"""\n    return ("it has none", "ALTER TABLE \u2026")', 0),
    ],
)
def test_what_counts_as_a_statement(code: str, count: int) -> None:
    assert len(list(statements_beyond_ascii(ast.parse(code)))) == count
