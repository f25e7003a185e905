"""The nodes that rules build around those of a query, to compute a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tautochrone.algebra.nodes.base import ColumnId, Expression, LeafRows, Materialized, Node, Stateful, Unary
from tautochrone.algebra.nodes.query import Aggregate, TopK

__all__ = [
    "ChangedGroups",
    "Consolidate",
    "FinalAggregate",
    "FlagFilter",
    "KeySemiJoin",
    "MergeGroups",
    "MergeTopK",
    "MultiKeySemiJoin",
    "NullExtend",
    "OrderedFrom",
    "PartialAggregate",
    "PredicateChange",
    "StateScan",
    "Totals",
    "WithWeight",
]

KeyPairs = tuple[tuple[ColumnId, ColumnId], ...]
"""Columns of a relation, each with the column of the keys that it must equal."""


# -- Z-sets ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithWeight(Unary):
    """A bag as a Z-set in which every row has the weight `sign`."""

    sign: int = 1

    def describe(self) -> str:
        return f"{self.sign:+d}"

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.child.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Consolidate(Unary):
    """The same Z-set without rows that cancel out: no row is there with both weights."""

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NullExtend(Unary):
    """The child's rows with NULL in the columns `nulls`, which have the types that `like` gives them. Only
    checks of plans read `like`."""

    nulls: tuple[ColumnId, ...]
    like: Node

    def describe(self) -> str:
        return ", ".join(self.nulls)

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.child.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PredicateChange(Unary):
    """Rows of the child for which `condition` changes when the scalars `before` become those `after`: weight
    +1 where it becomes true, -1 where it ceases to be. Each scalar has one row or none."""

    condition: Expression
    before: tuple[Node, ...]
    after: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, *self.before, *self.after)


# -- rows by key -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeySemiJoin(Unary):
    """Rows of the child whose key is among `keys`; when `anti`, those whose key is not.

    Attributes:
        null_safe: NULL equals NULL, as in groups and partitions. Otherwise NULL equals nothing, as in joins.
        exact: False when a join above checks the keys once more. Then rows with other keys may be there too,
            and they may be wrong: an aggregate or outer join below reads its inputs for these keys only.
    """

    keys: Node
    on: KeyPairs
    null_safe: bool = True
    anti: bool = False
    exact: bool = True

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, self.keys)

    def describe(self) -> str:
        return ("not " if self.anti else "") + _pairs_text(self.on)

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:
        # A state has one row for each key.
        side = self.keys if isinstance(self.child, StateScan) and not self.anti else self.child
        return side.may_multiply(is_few)

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MultiKeySemiJoin(Unary):
    """Rows of the child whose key is in at least one of several sets of keys; other rows may be there too.

    `on` and `null_safe` are as in `KeySemiJoin`, one for each set.
    """

    keys: tuple[Materialized, ...]
    on: tuple[KeyPairs, ...]
    null_safe: tuple[bool, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, *self.keys)

    def describe(self) -> str:
        return " or ".join(map(_pairs_text, self.on))

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlagFilter(Unary):
    """Rows whose boolean column `flag` is `value`."""

    flag: ColumnId
    value: bool = True

    def describe(self) -> str:
        return str(self.flag) if self.value else f"not {self.flag}"

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


# -- rows by order ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OrderedFrom(Unary):
    """Rows of the child from a bound on in the order by one column; when `before`, those before the bound.

    Attributes:
        order: the engine's order by `key`, NULL included, as a `TopK` has one.
        bound: one row, whose column `bound_key` is the value to begin with.
    """

    key: ColumnId
    order: Any
    bound: Materialized
    bound_key: ColumnId
    before: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, self.bound)

    def describe(self) -> str:
        return f"{self.key} {'before' if self.before else 'from'} {self.bound_key}"

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {column: column for column in self.columns}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Totals(Unary):
    """One row: the engine's aggregate functions `handle` over all rows of the child."""

    handle: Any

    def max_rows(self, leaf_rows: LeafRows) -> int | None:  # noqa: ARG002 - whatever the child has
        return 1


# -- stored states of aggregates and of the first rows of an order ---------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateScan(Node):
    """The state of `operator` as it was committed with the view: one row per group, or one per buffered row
    of a `TopK`."""

    operator: Stateful

    def describe(self) -> str:
        return f"of {self.operator.label} {self.operator.describe()}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PartialAggregate(Unary):
    """What a Z-set adds to each group: the keys, the accumulators of the change, and one column of `removed`
    per call, which lets `MergeGroups` see when a group must be recomputed.

    Attributes:
        removed: per call, for MIN and MAX the extremum of the deleted values; for bit functions and inexact
            sums the number of deleted values, for sums that may overflow the number of all values.
    """

    aggregate: Aggregate
    removed: tuple[ColumnId, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MergeGroups(Node):
    """State rows merged with what the change adds to them, group by group.

    Output: the keys, the accumulators `before` (NULL: the group was not there), the accumulators after
    under their own ids, and `recompute`.

    Attributes:
        stored: rows of the state, of the changed groups at least.
        partial: the rows of `partial_aggregate`, as a plan or materialized.
        recompute: column that says whether the group cannot be derived from these and must be read again.
    """

    stored: Node
    partial: PartialAggregate | Materialized
    partial_aggregate: PartialAggregate
    aggregate: Aggregate
    before: tuple[ColumnId, ...]
    recompute: ColumnId

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.stored, self.partial)

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        return self.partial.max_rows(leaf_rows)

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:
        return self.partial.may_multiply(is_few)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChangedGroups(Unary):
    """Rows of `MergeGroups` for groups whose output row differs before and after, or appears, or vanishes.
    The aggregate has keys. `before` are the child's columns with the accumulators before."""

    aggregate: Aggregate
    before: tuple[ColumnId, ...]

    @property
    def is_row_wise(self) -> bool:
        return True

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {key: key for key in self.aggregate.keys}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FinalAggregate(Unary):
    """Output rows of the aggregate from rows with accumulators; groups without rows give none (unless there
    are no keys).

    `sources` are the child's columns that stand for `aggregate.accumulators`.
    """

    aggregate: Aggregate
    sources: tuple[ColumnId, ...]

    def describe(self) -> str:
        return f"{self.aggregate.describe()} from {', '.join(self.sources)}"

    def max_rows(self, leaf_rows: LeafRows) -> int | None:
        return self.child.max_rows(leaf_rows) if self.aggregate.keys else 1

    @property
    def is_row_wise(self) -> bool:
        # Without keys it is not: there is an output row even when the child has none.
        return bool(self.aggregate.keys)

    @property
    def key_origin(self) -> Mapping[ColumnId, ColumnId]:
        return {key: key for key in self.aggregate.keys}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MergeTopK(Node):
    """The buffered rows of a `TopK` (its `state_columns`) merged with a Z-set of changes of its child.

    A change beyond the last buffered row is merged only when the buffer is complete: otherwise the rows
    between them are unknown. Output: at most `top_k.buffer` rows, and whether these are all rows.
    """

    stored: Node
    change: Node
    top_k: TopK

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.stored, self.change)

    def max_rows(self, leaf_rows: LeafRows) -> int | None:  # noqa: ARG002 - whatever the children have
        return self.top_k.buffer

    def may_multiply(self, is_few: Callable[[Node], bool]) -> bool:  # noqa: ARG002 - whatever the children have
        return False


def _pairs_text(pairs: KeyPairs) -> str:
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)
