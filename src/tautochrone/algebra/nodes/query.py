"""The nodes of queries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tautochrone.algebra.nodes.base import (
    ColumnId,
    Expression,
    FloatUses,
    LeafRows,
    Materialized,
    Node,
    Stateful,
    Unary,
    UnstableColumns,
    references_of,
    shortened,
    walk,
)
from tautochrone.model.counts import counted

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
    "RunningTotals",
    "ScalarFilter",
    "Select",
    "TopK",
    "Union",
    "Unsupported",
    "Window",
    "inner_join_of",
    "row_wise_parts",
    "stateful_nodes",
]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(Unary):
    """Rows for which `condition` is true."""

    condition: Expression

    def describe(self) -> str:
        return shortened(self.condition.text)

    @property
    def references(self) -> frozenset[ColumnId]:
        return self.condition.references

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        uses.report(self, self.references, below)
        return Node.unstable_columns(self, below, uses)

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Project(Unary):
    """One expression per column, in the order of `columns`. None passes the column of that id on."""

    expressions: tuple[Expression | None, ...]

    @property
    def references(self) -> frozenset[ColumnId]:
        return references_of(self.columns, self.expressions)

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        return _unstable_results(self, self.expressions, below, uses)

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        pairs = zip(self.columns, self.expressions, strict=True)
        sources = ((column, column if e is None else e.column) for column, e in pairs)
        return {column: source for column, source in sources if source is not None}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Select(Unary):
    """Some of the child's columns."""

    @property
    def references(self) -> frozenset[ColumnId]:
        return frozenset(self.columns)

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rename(Unary):
    """The child's columns `sources` under the ids of `columns`, in that order."""

    sources: tuple[ColumnId, ...]

    @property
    def references(self) -> frozenset[ColumnId]:
        return frozenset(self.sources)

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:  # noqa: ARG002
        pairs = zip(self.columns, self.sources, strict=True)
        return {column: below[source] for column, source in pairs if source in below}

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return dict(zip(self.columns, self.sources, strict=True))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlatMap(Unary):
    """The engine's own row-by-row operator (explode, Python functions; Catalyst's `Generate`): each row gives
    any number of rows, which have the child's `passed` columns and the `generated` ones. Only checks of
    plans read `generated`."""

    handle: Any
    passed: tuple[ColumnId, ...]
    generated: tuple[ColumnId, ...]

    @property
    def label(self) -> str:
        return "extend"

    def max_rows(self, leaf_rows: LeafRows) -> int | None:  # noqa: ARG002 - one row may become any number
        return None

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:  # noqa: ARG002
        return True

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        if below:
            uses.report(self, uses.read_by(self.handle), below)
        return Node.unstable_columns(self, below, uses)

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.passed}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Expand(Unary):
    """Each row once per projection: GROUPING SETS, ROLLUP, CUBE."""

    projections: tuple[tuple[Expression | None, ...], ...]
    """None passes the column of that id on."""

    @property
    def references(self) -> frozenset[ColumnId]:
        by_projection = (references_of(self.columns, projection) for projection in self.projections)
        return frozenset[ColumnId]().union(*by_projection)

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        unstable: dict[ColumnId, str] = {}
        for projection in self.projections:
            unstable.update(_unstable_results(self, projection, below, uses))
        return unstable

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        rows = self.child.max_rows(leaf_rows)
        return None if rows is None else rows * len(self.projections)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(Node):
    """UNION ALL; all inputs have the same column ids."""

    inputs: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    def with_children(self, children: Sequence[Node]) -> Node:
        return replace(self, inputs=tuple(children))

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        bounds = [child.max_rows(leaf_rows) for child in self.inputs]
        return None if None in bounds else sum(rows or 0 for rows in bounds)


# -- joins -----------------------------------------------------------------------------------------------


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"
    EXISTENCE = "existence"
    """Each left row with a flag that says whether it has a partner."""
    SCALAR = "scalar"
    """Each left row with the only row of the right side, or with NULLs: a scalar subquery."""

    @property
    def keeps_left_cardinality(self) -> bool:
        """Whether a left row appears at most once, however many partners it has."""
        return self in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE, JoinKind.SCALAR)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinKey:
    """`left = right` as part of a join condition; `<=>` when `null_safe`. Both sides are columns."""

    left: ColumnId
    right: ColumnId
    null_safe: bool = False

    def swapped(self) -> JoinKey:
        """The same equality with its sides exchanged."""
        return JoinKey(left=self.right, right=self.left, null_safe=self.null_safe)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Node):
    """All `keys` and `conditions` must hold. EXISTENCE adds the column `exists` to the left ones."""

    left: Node
    right: Node
    kind: JoinKind
    keys: tuple[JoinKey, ...] = ()
    conditions: tuple[Expression, ...] = ()
    exists: ColumnId | None = None

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_children(self, children: Sequence[Node]) -> Node:
        left, right = children
        return replace(self, left=left, right=right)

    def describe(self) -> str:
        parts = [counted(len(self.keys), "key"), *(shortened(each.text) for each in self.conditions)]
        return f"{self.kind} ({', '.join(parts)})"

    @property
    def combines_rows(self) -> bool:
        return True

    @property
    def references(self) -> frozenset[ColumnId]:
        keys = frozenset(column for key in self.keys for column in (key.left, key.right))
        return keys.union(*(condition.references for condition in self.conditions))

    @property
    def differentiated(self) -> Sequence[Node]:
        """The children. An inner join is differentiated together with the inner joins right below it."""
        if self.kind is not JoinKind.INNER:
            return self.children
        inputs: list[Node] = []
        for child in self.children:
            join = inner_join_of(child)
            inputs.extend([child] if join is None else join.differentiated)
        return inputs

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        return self.left.max_rows(leaf_rows) if self.kind.keeps_left_cardinality else None

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:
        sides = (self.left,) if self.kind.keeps_left_cardinality else (self.left, self.right)
        return any(side.may_multiply(is_few) for side in sides)

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        uses.report(self, self.references, below)
        return Node.unstable_columns(self, below, uses)


# -- groups ----------------------------------------------------------------------------------------------


class AggregateFunction(StrEnum):
    """How an aggregate function follows a change.

    `COUNT`, `SUM`, `AVERAGE`, `VARIANCE` are linear: inserts are added, deletes subtracted. `MIN` and `MAX`
    follow inserts; when a delete takes the extremum out, the group is read again. `BIT_AND`, `BIT_OR` and
    `BIT_XOR` follow inserts; any delete makes the group be read again. `OTHER` is recomputed for each
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
"""How two values of a group become one, for the functions whose only accumulator is their value."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AggregateCall:
    """One call of an aggregate function.

    Attributes:
        output: the column of its result.
        argument: what is aggregated; None counts rows.
        condition: FILTER (WHERE …).
        exact: sums are exact, so a row can be subtracted from them again. Sums of floats are not.
        may_overflow: the sum becomes NULL when it overflows, and no change can be merged into it any
            more.
        unstable: the last digits of the result, a float, depend on the order of the rows.
        accumulators: columns of the state. COUNT has one; SUM and AVERAGE have sum and count; VARIANCE has
            sum, sum of squares and count; those in `MERGE_FUNCTIONS` have their value.
        reads: all columns that the function and its condition read.
    """

    output: ColumnId
    function: AggregateFunction
    handle: Any
    argument: Expression | None = None
    condition: Expression | None = None
    exact: bool = True
    may_overflow: bool = False
    unstable: bool = False
    accumulators: tuple[ColumnId, ...] = ()
    reads: frozenset[ColumnId] = frozenset()
    text: str = ""

    @property
    def is_mergeable(self) -> bool:
        """Whether the result follows from accumulators that a change can be merged into."""
        return self.function is not AggregateFunction.OTHER

    def adds_up_again(self, unstable: UnstableColumns, uses: FloatUses) -> bool:
        """Whether it is a sum of floats, which may be unstable: a group that loses one is added up again."""
        if self.exact or self.argument is None:
            return False
        filtered = self.condition is not None and self.condition.references & unstable.keys()
        return not filtered and uses.passes_on(self.argument, unstable)

    @property
    def may_need_recompute(self) -> bool:
        """Whether a delete can make the accumulators insufficient, so that the group must be read again.
        Where sums may overflow, an insert can, too."""
        return self.function in MERGE_FUNCTIONS or not self.exact or self.may_overflow


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(Stateful):
    """One row per group; without keys always exactly one row. Without calls: DISTINCT.

    Attributes:
        columns: the keys, then the outputs of the calls.
        count: the state's column for the number of rows in the group.
    """

    keys: tuple[ColumnId, ...]
    calls: tuple[AggregateCall, ...]
    count: ColumnId

    @property
    def is_mergeable(self) -> bool:
        """Whether groups can be updated from their accumulators and the change alone (mostly)."""
        return all(call.is_mergeable for call in self.calls)

    @property
    def has_state(self) -> bool:
        return self.is_mergeable

    @property
    def accumulators(self) -> tuple[ColumnId, ...]:
        return (self.count, *(column for call in self.calls for column in call.accumulators))

    @property
    def state_keys(self) -> tuple[ColumnId, ...]:
        return self.keys

    @property
    def state_columns(self) -> tuple[ColumnId, ...]:
        return (*self.keys, *self.accumulators)

    @property
    def state_texts(self) -> Sequence[str]:
        return [call.text for call in self.calls]

    def describe(self) -> str:
        calls = shortened(", ".join(call.text or str(call.function) for call in self.calls) or "distinct")
        return f"{calls} by {counted(len(self.keys), 'key')}" if self.keys else calls

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        # Without keys there is a row even when the child has none.
        return self.child.max_rows(leaf_rows) if self.keys else 1

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:
        return bool(self.keys) and self.child.may_multiply(is_few)

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        """A group that loses a summand is added up again; all other results must be those of before."""
        uses.report(self, self.keys, below)
        for call in self.calls:
            if below and not call.adds_up_again(below, uses):
                uses.report(self, call.reads, below)
        if self.is_mergeable and uses.can_be_stored(self.keys):
            # What it gave before is in its state.
            return {}
        return {
            call.output: shortened(call.text) or str(call.function)
            for call in self.calls
            if call.unstable or call.reads & below.keys()
        }

    @property
    def references(self) -> frozenset[ColumnId]:
        return frozenset(self.keys).union(*(call.reads for call in self.calls))

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {key: key for key in self.keys}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunningTotals:
    """What window functions over all earlier rows need to go on behind rows that are not read again.

    Attributes:
        key: the first column of the window's order.
        order: the engine's order by that column alone, as a `TopK` has one.
        handle: the window functions, their results in the columns `partial`.
        partial: what the functions give over the rows from some value of `key` on.
        totals: what the rows before that value add up to: the engine's aggregate functions.
        total: the columns of `totals`.
        results: per function its result over all rows, from `partial` and `total`.
    """

    key: ColumnId
    order: Any
    handle: Any
    partial: tuple[ColumnId, ...]
    totals: Any
    total: tuple[ColumnId, ...]
    results: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Window(Unary):
    """The child's columns and window functions over partitions.

    `running` is there if there are no partitions and each function depends on the rows up to the current one
    in a way that can be added up: `row_number()`, `rank()`, running sums, counts and extrema. `unstable` are
    results, floats, whose last digits depend on the order of rows that the window's order leaves open.
    """

    handle: Any
    partition: tuple[ColumnId, ...]
    running: RunningTotals | None = None
    unstable: UnstableColumns = field(default_factory=dict)

    @property
    def combines_rows(self) -> bool:
        return True

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        if below:
            uses.report(self, {*self.partition, *uses.read_by(self.handle)}, below)
        return {**Node.unstable_columns(self, below, uses), **self.unstable}

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.partition}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TopK(Stateful):
    """ORDER BY … LIMIT … OFFSET: the first `limit` rows after `offset` in a total order.

    Attributes:
        complete: the state's column that says whether the buffered rows are all rows of the child.
    """

    order: Any
    limit: int
    offset: int
    complete: ColumnId

    @property
    def label(self) -> str:
        return "top"

    @property
    def buffer(self) -> int:
        """How many rows the state has at most: more than the result, so that deletes seldom exhaust it."""
        return 2 * (self.limit + self.offset) + 20

    @property
    def is_buffer(self) -> bool:
        return True

    @property
    def state_columns(self) -> tuple[ColumnId, ...]:
        return (*self.columns, self.complete)

    @property
    def state_texts(self) -> Sequence[str]:
        return [*map(str, self.order), str(self.limit), str(self.offset)]

    def describe(self) -> str:
        return f"{self.limit}" + (f" after {self.offset}" if self.offset else "")

    def max_rows(self, leaf_rows: LeafRows) -> int | None:  # noqa: ARG002 - whatever the child has
        return self.limit

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:  # noqa: ARG002 - whatever the child has
        return False

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        # Rows of its buffer are removed by all their columns.
        uses.report(self, self.columns, below)
        return Node.unstable_columns(self, below, uses)


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

    def describe(self) -> str:
        return shortened(self.condition.text)

    @property
    def references(self) -> frozenset[ColumnId]:
        return self.condition.references

    def unstable_columns(self, below: UnstableColumns, uses: FloatUses) -> UnstableColumns:
        uses.report(self, self.references, below)
        return Node.unstable_columns(self, below, uses)

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unsupported(Node):
    """An operator without a rule; `reason` says which. A plan that has one is never computed: the view is
    recomputed and compared instead. The node tells people why, and how its children would be refreshed."""

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


# -- functions -------------------------------------------------------------------------------------------


def _unstable_results(
    node: Node, expressions: Sequence[Expression | None], below: UnstableColumns, uses: FloatUses
) -> dict[ColumnId, str]:
    """Which of a node's columns are unstable, whose values are these expressions."""
    unstable: dict[ColumnId, str] = {}
    for column, expression in zip(node.columns, expressions, strict=True):
        read = frozenset({column}) if expression is None else expression.references
        texts = [below[each] for each in sorted(read) if each in below]
        if texts and (expression is None or uses.passes_on(expression, below)):
            unstable[column] = texts[0]
        elif texts:
            uses.report(node, read, below)
    return unstable


def inner_join_of(node: Node) -> Join | None:
    """The inner join that a node is, or whose columns it selects: part of another inner join right above."""
    below = node.child if isinstance(node, Select) else node
    return below if isinstance(below, Join) and below.kind is JoinKind.INNER else None


def row_wise_parts(plan: Node) -> Sequence[Node] | None:
    """Plans without a `Union` whose rows together are the rows of `plan`; None when an operator above the
    materialized results does not work row by row.

    `σ(π(A ∪ B))` has the parts `σ(π(A))` and `σ(π(B))`, when A and B are materialized.
    """
    if isinstance(plan, Materialized):
        return (plan,)
    if isinstance(plan, Union):
        by_input = [row_wise_parts(child) for child in plan.inputs]
        return None if None in by_input else tuple(part for parts in by_input for part in parts or ())
    if isinstance(plan, Unary) and plan.is_row_wise:
        parts = row_wise_parts(plan.child)
        return None if parts is None else tuple(plan.over(part) for part in parts)
    return None


def stateful_nodes(plan: Node) -> list[Stateful]:
    """The nodes of a plan that have a state, parents first."""
    return [node for node in walk(plan) if isinstance(node, Stateful) and node.has_state]
