"""Reading only the columns that a plan uses.

A scan keeps its columns, so that nothing above it has to change; its handle names those that are read. The
others are NULL, in rows and in changes alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tautochrone.algebra.nodes import (
    Aggregate,
    ColumnId,
    Expand,
    Expression,
    Filter,
    FlatMap,
    Join,
    Node,
    Project,
    Rename,
    ScalarFilter,
    Scan,
    Select,
    TopK,
    Union,
    Unsupported,
    Window,
    walk,
)

__all__ = ["prune_columns"]


def prune_columns(plan: Node) -> Node:
    """The same plan over scans that know which of their columns somebody names."""
    used: set[ColumnId] = set(plan.columns)
    for node in walk(plan):
        used.update(_named(node))
    return _pruned(plan, used, {})


def _named(node: Node) -> Iterator[ColumnId]:
    """Columns that a node reads itself, or passes on by name."""
    yield from _by_rows(node)
    yield from _by_groups(node)


def _by_rows(node: Node) -> Iterator[ColumnId]:
    match node:
        case Filter() | ScalarFilter():
            yield from node.condition.references
        case Project():
            for column, expression in zip(node.columns, node.expressions, strict=True):
                yield from _of(expression, column)
        case Select():
            yield from node.columns
        case Rename():
            yield from node.sources
        case Expand():
            for projection in node.projections:
                for column, expression in zip(node.columns, projection, strict=True):
                    yield from _of(expression, column)
        case _:
            return


def _by_groups(node: Node) -> Iterator[ColumnId]:
    match node:
        case Join():
            for key in node.keys:
                yield key.left
                yield key.right
            for condition in node.conditions:
                yield from condition.references
        case Aggregate():
            yield from node.keys
            for call in node.calls:
                yield from call.reads
        case FlatMap() | Window() | TopK() | Unsupported() | Union():
            for child in node.children:
                yield from child.columns
        case _:
            return


def _of(expression: Expression | None, column: ColumnId | None) -> Iterator[ColumnId]:
    if expression is not None:
        yield from expression.references
    elif column is not None:
        yield column


def _pruned(node: Node, used: set[ColumnId], known: dict[int, Node]) -> Node:
    """A node that stands in two places stays one: its change is computed once."""
    if id(node) not in known:
        if isinstance(node, Scan):
            known[id(node)] = replace(node, handle=frozenset(used.intersection(node.columns)))
        elif node.children:
            known[id(node)] = node.with_children([_pruned(child, used, known) for child in node.children])
        else:
            known[id(node)] = node
    return known[id(node)]
