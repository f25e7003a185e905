"""What all nodes share, and the leaves of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NewType

__all__ = [
    "WEIGHT",
    "ColumnId",
    "Constant",
    "CutSide",
    "Expression",
    "Materialized",
    "Node",
    "Scan",
    "ScanAtCut",
    "Unary",
    "walk",
]

ColumnId = NewType("ColumnId", str)

WEIGHT = ColumnId("weight")


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A scalar expression of the engine.

    Attributes:
        handle: what the engine evaluates.
        references: the columns that it reads.
        text: for people.
        passes: the column whose value it is, unchanged; None: it computes something.
    """

    handle: Any
    references: frozenset[ColumnId]
    text: str = ""
    passes: ColumnId | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """A relation. `columns` are what it gives out, in order."""

    columns: tuple[ColumnId, ...]

    @property
    def label(self) -> str:
        """The node's name in events and reports. Scripts read it, so it stays when the class is renamed."""
        return type(self).__name__.lower()

    @property
    def children(self) -> tuple[Node, ...]:
        return ()

    def with_children(self, children: Sequence[Node]) -> Node:
        """The same node over other children that give the same columns. Only nodes of a query have it."""
        if children:
            raise TypeError(f"{type(self).__name__} is not a node of a query")
        return self


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unary(Node):
    """A node over one child."""

    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)

    def with_children(self, children: Sequence[Node]) -> Node:
        if len(children) != 1:
            return Node.with_children(self, children)
        return replace(self, child=children[0])


# -- leaves ----------------------------------------------------------------------------------------------


class CutSide(StrEnum):
    """Which of the two cuts an input is read at."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scan(Node):
    """One occurrence of an input in a query; `table` is the engine's name for it."""

    table: Any
    handle: Any = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScanAtCut(Node):
    """The rows of an input at one of the two cuts."""

    scan: Scan
    side: CutSide


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Constant(Node):
    """Literal rows: part of the definition, they never change."""

    handle: Any


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Materialized(Node):
    """A result that the engine computed once and holds; `rows` is its size."""

    handle: Any
    rows: int


def walk(node: Node) -> Sequence[Node]:
    """The node and everything below it, parents first."""
    nodes = [node]
    for child in node.children:
        nodes.extend(walk(child))
    return nodes
