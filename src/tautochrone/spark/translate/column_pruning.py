"""Column pruning: scans read only the columns that the plan uses.

A scan keeps its output columns, so that the nodes above it stay as they are. Its `handle` is the set of the
columns that are read; the others are NULL in its rows and in its change.
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
    """The same plan, in which the `handle` of each scan is the set of its columns that the plan reads."""
    used: set[ColumnId] = set(plan.columns)
    for node in walk(plan):
        used.update(_references(node))
    return _pruned(plan, used, {})


def _references(node: Node) -> Iterator[ColumnId]:
    """The child's columns that a node reads or selects."""
    yield from _references_of_row_wise(node)
    yield from _references_of_other(node)


def _references_of_row_wise(node: Node) -> Iterator[ColumnId]:
    match node:
        case Filter() | ScalarFilter():
            yield from node.condition.references
        case Project():
            for column, expression in zip(node.columns, node.expressions, strict=True):
                yield from _references_of_expression(expression, column)
        case Select():
            yield from node.columns
        case Rename():
            yield from node.sources
        case Expand():
            for projection in node.projections:
                for column, expression in zip(node.columns, projection, strict=True):
                    yield from _references_of_expression(expression, column)
        case _:
            return


def _references_of_other(node: Node) -> Iterator[ColumnId]:
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


def _references_of_expression(expression: Expression | None, column: ColumnId | None) -> Iterator[ColumnId]:
    if expression is not None:
        yield from expression.references
    elif column is not None:
        yield column


def _pruned(node: Node, used: set[ColumnId], pruned: dict[int, Node]) -> Node:
    """The node over pruned scans. A node that occurs twice stays one, so that its change is computed once."""
    if id(node) not in pruned:
        if isinstance(node, Scan):
            pruned[id(node)] = replace(node, handle=frozenset(used.intersection(node.columns)))
        elif node.children:
            pruned[id(node)] = node.with_children([_pruned(child, used, pruned) for child in node.children])
        else:
            pruned[id(node)] = node
    return pruned[id(node)]
