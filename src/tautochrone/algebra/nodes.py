"""What all nodes share, and the leaves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NewType

__all__ = [
    "WEIGHT",
    "ColumnId",
    "Constant",
    "Expression",
    "Kept",
    "Moment",
    "Node",
    "Scan",
    "ScanAt",
    "Unary",
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
    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unary(Node):
    """A node over one child."""

    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)


# -- leaves ----------------------------------------------------------------------------------------------


class Moment(StrEnum):
    """Which of the two cuts an input is read at."""

    OLD = "old"
    NEW = "new"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scan(Node):
    """One occurrence of an input in a query; `table` is the engine's name for it."""

    table: Any
    handle: Any = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScanAt(Node):
    """The rows of an input at one of the two cuts."""

    scan: Scan
    moment: Moment


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Constant(Node):
    """Literal rows: part of the definition, they never change."""

    handle: Any


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kept(Node):
    """A result that the engine computed once and holds; `rows` is its size."""

    handle: Any
    rows: int
