"""What all nodes share, and the leaves of plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NewType, Protocol, Self

from tautochrone.model.counts import counted

__all__ = [
    "WEIGHT",
    "ColumnId",
    "Constant",
    "CutSide",
    "Expression",
    "FloatUses",
    "LeafRows",
    "Materialized",
    "Node",
    "Scan",
    "ScanAtCut",
    "Stateful",
    "Unary",
    "UnstableColumns",
    "references_of",
    "shortened",
    "walk",
]

ColumnId = NewType("ColumnId", str)
"""Identifies a column in a whole plan, such as `c12`."""

WEIGHT = ColumnId("weight")
"""The column of a Z-set with the weight of a row, +1 or -1. Copies of a row are rows of their own."""

_MAX_TEXT = 72
_COLUMN_NUMBER = re.compile(r"#\d+L?\b")
"""What Spark appends to the names of columns in the text of an expression."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A scalar expression of the engine.

    Attributes:
        handle: what the engine evaluates.
        references: the columns that it reads.
        text: for people.
        column: the column whose value it returns unchanged; None when it computes something.
    """

    handle: Any
    references: frozenset[ColumnId]
    text: str = ""
    column: ColumnId | None = None


UnstableColumns = Mapping[ColumnId, str]
"""Columns with floats that the same rows give with other last digits when they are computed again, each with
the text of the function that adds them up."""


class FloatUses(Protocol):
    """What knows the engine's expressions, and takes down who uses unstable columns."""

    def report(self, node: Node, columns: Iterable[ColumnId], unstable: UnstableColumns) -> None:
        """A node decides by these columns, or computes something of them that may differ by more."""

    def passes_on(self, expression: Expression, unstable: UnstableColumns) -> bool:
        """Whether the value of an expression differs in its last digits only, as the columns do."""

    def read_by(self, handle: Any) -> frozenset[ColumnId]:
        """The columns that the engine's own operator reads."""

    def can_be_stored(self, columns: Iterable[ColumnId]) -> bool:
        """Whether a state can have these columns."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """A relation. `columns` are its output, in order."""

    columns: tuple[ColumnId, ...]

    @property
    def label(self) -> str:
        """The node's name in events and reports. Scripts read it, so it stays when the class is renamed."""
        return type(self).__name__.lower()

    @property
    def children(self) -> tuple[Node, ...]:
        return ()

    def with_children(self, children: Sequence[Node]) -> Node:
        """The same node over other children, which have the same columns.

        Raises:
            TypeError: the node is not one of a query; only the rules build it, for one refresh.
        """
        if children:
            raise TypeError(f"{type(self).__name__} is not a node of a query")
        return self

    def describe(self) -> str:
        """What the node does beyond its name, in a few words for people. Empty: the name says it all."""
        return ""

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        """An upper bound of the number of rows, known before the plan is computed; None: no bound is known.

        Args:
            leaf_rows: the same for a leaf.
        """
        return None if self.children else leaf_rows(self)

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:
        """Whether few changed rows below may give many rows, as each may meet many of a large input.

        Args:
            is_few: whether a leaf has few rows.
        """
        return (
            any(child.may_multiply(is_few) for child in self.children) if self.children else not is_few(self)
        )

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:  # noqa: ARG002
        """Which output columns are unstable.

        Args:
            below: those of the children.
            uses: is told where the node must not use them.
        """
        return {column: text for column, text in below.items() if column in self.columns}

    @property
    def is_row_wise(self) -> bool:
        """Whether each output row is computed from one row of the only child, by expressions alone. Python
        functions do not count: no engine evaluates them where it plans."""
        return False

    @property
    def combines_rows(self) -> bool:
        """Whether an output row is made of several rows, of one child or of both."""
        return False

    @property
    def references(self) -> frozenset[ColumnId]:
        """The columns of the children that the node reads, or selects for its output. Unless it overrides
        this, all of them."""
        return frozenset(column for child in self.children for column in child.columns)

    @property
    def differentiated(self) -> Sequence[Node]:
        """The nodes below whose changes the node's own change is made of."""
        return self.children

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        """Output columns by which rows may be selected below the node instead of above it, each with the
        column of the first child that has the same value."""
        return {}


LeafRows = Callable[[Node], int | None]
"""The number of rows of a leaf, or None when it is unknown."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unary(Node):
    """A node whose rows come from one child. Unless it overrides `max_rows`, it has no more rows than it."""

    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)

    def with_children(self, children: Sequence[Node]) -> Node:
        if len(children) != 1:
            return Node.with_children(self, children)
        return self.over(children[0])

    def over(self, child: Node) -> Self:
        """The same node over another child; what else it reads stays."""
        return replace(self, child=child)

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        return self.child.max_rows(leaf_rows)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Stateful(Unary):
    """A node that can have a state: rows that are stored with the view, from which the next refresh goes on.

    Attributes:
        number: the node's position among the stateful nodes of its view. It names the node's state.
    """

    number: int

    @property
    def combines_rows(self) -> bool:
        return True

    @property
    def has_state(self) -> bool:
        """Whether a state would help."""
        return True

    @property
    def is_buffer(self) -> bool:
        """Whether its state is stored as a whole each time, not row by row."""
        return False

    @property
    def state_keys(self) -> tuple[ColumnId, ...]:
        """The columns that tell rows of the state apart; the first of `state_columns`."""
        return ()

    @property
    def state_columns(self) -> tuple[ColumnId, ...]:
        """The columns of the state."""
        raise NotImplementedError

    @property
    def state_texts(self) -> Sequence[str]:
        """What else decides about the rows of the state: a state with other texts is of no use."""
        raise NotImplementedError


# -- leaves ----------------------------------------------------------------------------------------------


class CutSide(StrEnum):
    """The cut before a refresh (what the view shows now) and the one after it."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scan(Node):
    """One occurrence of an input in a query; `table` is the engine's name for it."""

    table: Any
    handle: Any = None

    def describe(self) -> str:
        return str(self.table)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScanAtCut(Node):
    """The rows of an input at one of the two cuts."""

    scan: Scan
    side: CutSide

    def describe(self) -> str:
        return f"{self.scan.table} {self.side}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Constant(Node):
    """Literal rows: part of the definition, so they never change."""

    handle: Any


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Materialized(Node):
    """A result that the engine computed and stores until the refresh ends; `rows` is its size."""

    handle: Any
    rows: int

    def describe(self) -> str:
        return counted(self.rows, "row")


# -- functions -------------------------------------------------------------------------------------------


def references_of(
    columns: Sequence[ColumnId], expressions: Sequence[Expression | None]
) -> frozenset[ColumnId]:
    """The columns that expressions read, one per output column; None passes the column of that id on."""
    pairs = zip(columns, expressions, strict=True)
    return frozenset[ColumnId]().union(*({column} if e is None else e.references for column, e in pairs))


def walk(node: Node) -> Sequence[Node]:
    """The node and everything below it, parents first."""
    nodes = [node]
    for child in node.children:
        nodes.extend(walk(child))
    return nodes


def shortened(text: str) -> str:
    """The text of an expression on one line, without Spark's column numbers, cut to 72 characters.

    >>> shortened("(n#12L >\\n 3)")
    '(n > 3)'
    """
    text = " ".join(_COLUMN_NUMBER.sub("", text).split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
