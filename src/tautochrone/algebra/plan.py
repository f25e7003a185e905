"""Queries as trees of small nodes, and the same nodes again as the queries that compute a change.

Columns are ids, unique in a plan: a node that passes a column on keeps its id, so an expression of the
engine means the same wherever its columns are there. Both sides of a join have disjoint ids. Scalar
expressions are the engine's own and stay opaque here; only what they read is known.

A *bag* is a relation with duplicates. A *signed* bag has one more column, `WEIGHT`: +1 for a row that is
there, -1 for one that is not. Nothing in this package knows Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tautochrone.algebra.derived import (
    Accumulate,
    Altered,
    Consolidate,
    Finish,
    Flip,
    Matching,
    MergeGroups,
    MergeTop,
    Pad,
    Stored,
    Touched,
    Weigh,
    Where,
)
from tautochrone.algebra.nodes import (
    WEIGHT,
    ColumnId,
    Constant,
    Expression,
    Kept,
    Moment,
    Node,
    Scan,
    ScanAt,
    Unary,
)
from tautochrone.algebra.query import (
    COMBINED,
    Aggregate,
    Call,
    CallKind,
    Expand,
    Extend,
    Filter,
    Join,
    JoinKind,
    Key,
    Other,
    Project,
    Rename,
    ScalarFilter,
    Select,
    Top,
    Union,
    Window,
)

__all__ = [
    "COMBINED",
    "WEIGHT",
    "Accumulate",
    "Aggregate",
    "Altered",
    "Call",
    "CallKind",
    "ColumnId",
    "Consolidate",
    "Constant",
    "Expand",
    "Expression",
    "Extend",
    "Filter",
    "Finish",
    "Flip",
    "Join",
    "JoinKind",
    "Kept",
    "Key",
    "Matching",
    "MergeGroups",
    "MergeTop",
    "Moment",
    "Node",
    "Other",
    "Pad",
    "Project",
    "Rename",
    "ScalarFilter",
    "Scan",
    "ScanAt",
    "Select",
    "Stored",
    "Top",
    "Touched",
    "Union",
    "Weigh",
    "Where",
    "Window",
    "inner_join",
    "walk",
    "with_children",
]


def with_children(node: Node, children: Sequence[Node]) -> Node:
    """The node over other children that give the same columns."""
    if not children:
        return node
    match node:
        case Join():
            return replace(node, left=children[0], right=children[1])
        case Union() | Other():
            return replace(node, inputs=tuple(children))
        case ScalarFilter():
            return replace(node, child=children[0], scalars=tuple(children[1:]))
        case Unary() if len(children) == 1:
            return replace(node, child=children[0])
    raise TypeError(f"{type(node).__name__} is no node of a query")


def inner_join(node: Node) -> Join | None:
    """The inner join that a node is, or that it takes columns of: one join with another right above it."""
    below = node.child if isinstance(node, Select) else node
    return below if isinstance(below, Join) and below.kind is JoinKind.INNER else None


def walk(node: Node) -> Sequence[Node]:
    """The node and everything below it, parents first."""
    found = [node]
    for child in node.children:
        found.extend(walk(child))
    return found
