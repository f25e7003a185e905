"""The nodes of queries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tautochrone.algebra.nodes.base import ColumnId, Expression, Node, Unary

__all__ = [
    "MERGE_FUNCTIONS",
    "Aggregate",
    "AggregateCall",
    "AggregateFunction",
    "Expand",
    "Filter",
    "FlatMap",
    "Join",
    "JoinKey",
    "JoinKind",
    "Project",
    "Rename",
    "ScalarFilter",
    "Select",
    "TopK",
    "Union",
    "Unsupported",
    "Window",
    "inner_join_of",
]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(Unary):
    """Rows for which `condition` is true."""

    condition: Expression


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Project(Unary):
    """One expression per column, in the order of `columns`. None passes the column of that id on."""

    expressions: tuple[Expression | None, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Select(Unary):
    """Some of the child's columns."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rename(Unary):
    """The child's columns `sources` under the ids of `columns`, in that order."""

    sources: tuple[ColumnId, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlatMap(Unary):
    """The engine's own row-by-row operator (explode, Python functions): each row gives any number of rows
    with the child's `passed` columns and the `generated` ones."""

    handle: Any
    passed: tuple[ColumnId, ...]
    generated: tuple[ColumnId, ...]

    @property
    def label(self) -> str:
        return "extend"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Expand(Unary):
    """Each row once per projection: GROUPING SETS, ROLLUP, CUBE."""

    projections: tuple[tuple[Expression | None, ...], ...]
    """None passes the column of that id on."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(Node):
    """UNION ALL; all inputs have the same column ids."""

    inputs: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    def with_children(self, children: Sequence[Node]) -> Node:
        return replace(self, inputs=tuple(children))


# -- joins -----------------------------------------------------------------------------------------------


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"
    EXISTENCE = "existence"
    SCALAR = "scalar"
    """Each left row with the only row of the right side, or with NULLs: a scalar subquery."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinKey:
    """`left = right` as part of a join condition; `<=>` when `null_safe`. Both sides are columns."""

    left: ColumnId
    right: ColumnId
    null_safe: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Node):
    """`keys` and `condition` must all hold. EXISTENCE adds the column `exists` to the left ones."""

    left: Node
    right: Node
    kind: JoinKind
    keys: tuple[JoinKey, ...] = ()
    condition: tuple[Expression, ...] = ()
    exists: ColumnId | None = None

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_children(self, children: Sequence[Node]) -> Node:
        left, right = children
        return replace(self, left=left, right=right)


# -- groups ----------------------------------------------------------------------------------------------


class AggregateFunction(StrEnum):
    """How an aggregate function follows a change.

    `COUNT`, `SUM`, `AVERAGE`, `VARIANCE` add up; `MIN` and `MAX` follow inserts and look again when an
    extremum goes, `BIT_AND`, `BIT_OR` and `BIT_XOR` when any value goes; `OTHER` is computed anew for each
    group that changed.
    """

    COUNT = "count"
    SUM = "sum"
    AVERAGE = "avg"
    VARIANCE = "variance"
    MIN = "min"
    MAX = "max"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    OTHER = "other"


MERGE_FUNCTIONS: Mapping[AggregateFunction, Callable[[Any, Any], Any]] = {
    AggregateFunction.MIN: min,
    AggregateFunction.MAX: max,
    AggregateFunction.BIT_AND: operator.and_,
    AggregateFunction.BIT_OR: operator.or_,
    AggregateFunction.BIT_XOR: operator.xor,
}
"""What makes one value of two, for the functions that keep nothing but their value."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AggregateCall:
    """One aggregate function of a group.

    Attributes:
        output: the column that it gives.
        argument: what is aggregated; None counts rows.
        condition: FILTER (WHERE …).
        exact: sums are exact, so a row can be taken out of them again. Floats are not.
        accumulators: columns of the state: of COUNT one, of SUM and AVERAGE sum and count, of VARIANCE sum,
            sum of squares and count, of those in `MERGE_FUNCTIONS` the value.
        reads: all columns that the function and its condition read.
    """

    output: ColumnId
    kind: AggregateFunction
    handle: Any
    argument: Expression | None = None
    condition: Expression | None = None
    exact: bool = True
    accumulators: tuple[ColumnId, ...] = ()
    reads: frozenset[ColumnId] = frozenset()
    text: str = ""

    @property
    def merges(self) -> bool:
        return self.kind is not AggregateFunction.OTHER


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(Unary):
    """One row per group; without keys always exactly one row. Without calls: DISTINCT.

    `columns` are the keys, then the outputs. `count` is the state's column for the group's row count.
    """

    keys: tuple[ColumnId, ...]
    calls: tuple[AggregateCall, ...]
    count: ColumnId
    number: int
    """Of the stateful nodes of a view, in order: names the node's state."""

    @property
    def merges(self) -> bool:
        """Whether groups can be kept up to date from the change alone (mostly)."""
        return all(call.merges for call in self.calls)

    @property
    def accumulators(self) -> tuple[ColumnId, ...]:
        return (self.count, *(column for call in self.calls for column in call.accumulators))

    @property
    def state_columns(self) -> tuple[ColumnId, ...]:
        return (*self.keys, *self.accumulators)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Window(Unary):
    """The child's columns and window functions over partitions."""

    handle: Any
    partition: tuple[ColumnId, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TopK(Unary):
    """The first `limit` rows after `offset` in a total order."""

    order: Any
    limit: int
    offset: int
    number: int
    complete: ColumnId
    """The state's column that tells whether the kept rows are all that the child has."""

    @property
    def label(self) -> str:
        return "top"

    @property
    def buffer(self) -> int:
        """How many rows the state holds: some more than the answer, so that deletes seldom need the rest."""
        return 2 * (self.limit + self.offset) + 20

    @property
    def state_columns(self) -> tuple[ColumnId, ...]:
        return (*self.columns, self.complete)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScalarFilter(Unary):
    """Rows for which `condition` is true, which also reads the only row of each of `scalars`."""

    scalars: tuple[Node, ...]
    condition: Expression

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, *self.scalars)

    def with_children(self, children: Sequence[Node]) -> Node:
        child, *scalars = children
        return replace(self, child=child, scalars=tuple(scalars))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unsupported(Node):
    """An operator without a rule; `reason` says which. Nobody computes a plan that holds one: the query is
    compared as a whole. It is there to tell people why, and how what is below it would be followed."""

    inputs: tuple[Node, ...]
    reason: str

    @property
    def label(self) -> str:
        return "other"

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    def with_children(self, children: Sequence[Node]) -> Node:
        return replace(self, inputs=tuple(children))


def inner_join_of(node: Node) -> Join | None:
    """The inner join that a node is, or whose columns it selects: part of another inner join right above."""
    below = node.child if isinstance(node, Select) else node
    return below if isinstance(below, Join) and below.kind is JoinKind.INNER else None
