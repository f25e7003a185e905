"""In what a dataset differs from the deployed one: its text without layout and comments, and its columns."""

from __future__ import annotations

import ast
import difflib
import re

from pyspark.sql.types import StructType

from tautochrone.model.project_plan import ColumnChange, ColumnChangeKind
from tautochrone.project.sqltext import tokens

__all__ = ["column_changes", "normalized_lines", "text_difference"]

_CLAUSES = frozenset(
    {
        *("CROSS", "FROM", "FULL", "GROUP", "HAVING", "INNER", "JOIN", "LEFT", "LIMIT", "ON", "ORDER"),
        *("PARTITIONED", "QUALIFY", "RIGHT", "SELECT", "TBLPROPERTIES", "UNION", "WHERE", "WINDOW", "WITH"),
    }
)
"""Words that begin a line outside of brackets."""
_BEFORE_JOIN = frozenset(
    {"ANTI", "CROSS", "FULL", "INNER", "LATERAL", "LEFT", "NATURAL", "OUTER", "RIGHT", "SEMI"}
)
"""Words after which JOIN begins none."""
_PYTHON = re.compile(r"^\s*(@|def |from |import |async )", re.MULTILINE)


def text_difference(before: str, after: str) -> tuple[str, ...]:
    """The lines of a unified difference of two definitions as they are written; layout and comments do not
    count.

    Example:
        >>> text_difference("SELECT a  FROM t -- all", "SELECT a FROM t WHERE b > 1")
        (' SELECT a', ' FROM t', '+WHERE b > 1')
    """
    lines = difflib.unified_diff(normalized_lines(before), normalized_lines(after), lineterm="", n=2)
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))


def normalized_lines(text: str) -> list[str]:
    """A definition in one layout: a Python file as Python itself writes it, SQL with a line per clause and
    column."""
    if re.search(r"^\s*(@|def |from |import )", text, re.MULTILINE) and not re.match(
        r"(?i)\s*create\b", text
    ):
        try:
            return ast.unparse(ast.parse(text)).splitlines()
        except SyntaxError:
            return [line.strip() for line in text.splitlines() if line.strip()]
    return _sql_lines(text)


def _sql_lines(text: str) -> list[str]:
    lines, line, depth, last = list[str](), list[str](), 0, ""
    for token in tokens(text):
        if token.kind in ("comment", "space"):
            line.append(" ")
            continue
        word = token.text.upper() if token.kind == "name" else ""
        begins = word in _CLAUSES and not depth and not (word == "JOIN" and last in _BEFORE_JOIN)
        if begins:
            lines.append("".join(line))
            line = []
        depth += (token.text == "(") - (token.text == ")")
        line.append(token.text)
        last = word or last
        if token.text == "," and not depth:
            lines.append("".join(line))
            line = []
    joined = (re.sub(r"\s+", " ", text).strip() for text in [*lines, "".join(line)])
    return [text for text in joined if text]


def column_changes(before: StructType, after: StructType, *, are_kept: bool) -> tuple[ColumnChange, ...]:
    """Columns that come, go or change their type.

    Args:
        before: of the table.
        after: of the definition.
        are_kept: whether the table keeps columns that the definition lacks, as a streaming table does.
    """
    types_before = {field.name.lower(): field.dataType.simpleString() for field in before.fields}
    types_after = {field.name.lower(): field.dataType.simpleString() for field in after.fields}
    gone = ColumnChangeKind.KEPT if are_kept else ColumnChangeKind.REMOVED
    changes = []
    for field in after.fields:
        kind, name = field.dataType.simpleString(), field.name.lower()
        if name not in types_before:
            changes.append(ColumnChange(name=field.name, kind=ColumnChangeKind.ADDED, after=kind))
        elif types_before[name] != kind:
            changes.append(
                ColumnChange(
                    name=field.name, kind=ColumnChangeKind.RETYPED, before=types_before[name], after=kind
                )
            )
    changes += [
        ColumnChange(name=field.name, kind=gone, before=types_before[field.name.lower()])
        for field in before.fields
        if field.name.lower() not in types_after
    ]
    return tuple(changes)
