"""The nodes that rules build around those of a query, to compute a change."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.algebra.nodes.base import ColumnId, Expression, Materialized, Node, Unary
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
    "PartialAggregate",
    "PredicateChange",
    "StateScan",
    "WithWeight",
]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithWeight(Unary):
    """An unsigned bag as a signed one: `WEIGHT` is `sign` everywhere."""

    sign: int = 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Consolidate(Unary):
    """A signed bag in which no row stands with both signs."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NullExtend(Unary):
    """The child with NULLs for the columns `nulls`, typed as in `like`."""

    nulls: tuple[ColumnId, ...]
    like: Node


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeySemiJoin(Unary):
    """Rows of the child whose key occurs in `keys` (or does not, when `absent`).

    `on` pairs a column of the child with a column of `keys`. NULL meets NULL when `null_safe`, as in
    groups and partitions; otherwise a NULL meets nothing, as in joins.
    """

    keys: Node
    on: tuple[tuple[ColumnId, ColumnId], ...]
    null_safe: bool = True
    absent: bool = False
    exact: bool = True
    """False: a join above asks again, so rows with other keys may be there, and need not be right: of a group
    or an outer join below, which was asked for these keys, they may be without what belongs to them."""

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, self.keys)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MultiKeySemiJoin(Unary):
    """Rows of the child whose key occurs in any of several sets of keys; others may be among them.

    `on` pairs columns of the child with columns of the keys, for each of `keys`; NULLs as in `KeySemiJoin`.
    """

    keys: tuple[Materialized, ...]
    on: tuple[tuple[tuple[ColumnId, ColumnId], ...], ...]
    null_safe: tuple[bool, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, *self.keys)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateScan(Node):
    """The state of a stateful node as it was committed with the view: one row per group (or per kept row
    of a `TopK`)."""

    of: Aggregate | TopK


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PartialAggregate(Unary):
    """A signed bag as what it adds to each group: keys, accumulators and, per MIN or MAX, the extremum of
    the rows taken out. See `MergeGroups`."""

    of: Aggregate
    gone: tuple[ColumnId, ...]
    """One column per call: extremum of its values taken out, or their number for inexact sums."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MergeGroups(Node):
    """State rows and what is added to them, group by group.

    Gives the keys, the accumulators `before` (NULL counts as nothing there), the accumulators after under
    their own ids, and `again`: whether the group cannot be known from these and must be looked up.
    """

    stored: Node
    added: PartialAggregate | Materialized
    accumulate: PartialAggregate
    of: Aggregate
    before: tuple[ColumnId, ...]
    again: ColumnId

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.stored, self.added)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChangedGroups(Unary):
    """Rows of `MergeGroups` for groups whose row of the aggregate is another one after the change, or came,
    or went. The aggregate has keys. `before` are the child's columns with the accumulators before."""

    of: Aggregate
    before: tuple[ColumnId, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlagFilter(Unary):
    """Rows whose boolean column `flag` is `value`."""

    flag: ColumnId
    value: bool = True


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PredicateChange(Unary):
    """Rows of the child for which `condition` turns when the rows `before` become those `after`: signed,
    +1 where it turns true. `before` and `after` hold the one row of each scalar, or none."""

    condition: Expression
    before: tuple[Node, ...]
    after: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child, *self.before, *self.after)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MergeTopK(Node):
    """The kept rows of a `TopK` (its `state_columns`) with a signed change of its child taken in.

    A change behind the last kept row is only taken in when the kept rows are complete. Gives at most
    `of.buffer` rows and whether they are complete.
    """

    stored: Node
    change: Node
    of: TopK

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.stored, self.change)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FinalAggregate(Unary):
    """State rows as rows of the aggregate; groups without rows give none (unless there are no keys).

    `sources` are the child's columns that stand for `of.accumulators`.
    """

    of: Aggregate
    sources: tuple[ColumnId, ...]
