"""Selecting rows by key as far down a plan as possible, so that no other rows are grouped, sorted or joined.

An engine's optimiser pushes conditions down, but not a semi-join with many keys: it would aggregate a whole
relation in order to look up a few of its groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tautochrone.algebra.nodes import (
    ColumnId,
    Join,
    JoinKind,
    KeySemiJoin,
    Materialized,
    Node,
    Unary,
    Union,
)

__all__ = ["Sizes", "push_down_keys"]

_KeyPairs = Sequence[tuple[ColumnId, ColumnId]]
"""A relation's columns, each with the column of the keys that it must equal."""


class Sizes(Protocol):
    """What is known of the number of rows that a plan reads, before it is computed."""

    def reads_many_rows(self, node: Node) -> bool:
        """Whether reading all inputs of `node` would be expensive, so that it should be read by key."""

    def reads_few_rows(self, node: Node) -> bool:
        """Whether `node` reads so few rows that selecting by key saves nothing."""


def push_down_keys(semi_join: KeySemiJoin, sizes: Sizes) -> Node:
    """The same rows as `semi_join`, with the keys applied as far down as they are known.

    An anti-join stays where it is, and so does a semi-join whose keys are not materialized. Small relations
    are left as they are: reading them whole costs less than selecting from them.

        group by k (join on k (A, B)) ⋉ K  =  group by k (join on k (A ⋉ K, B ⋉ K))
    """
    if semi_join.anti or not isinstance(semi_join.keys, Materialized):
        return semi_join
    plan, is_exact = _PushDown(semi_join, sizes).push_into(semi_join.child, semi_join.on)
    return plan if is_exact or not semi_join.exact else semi_join.over(plan)


class _PushDown:
    """One set of keys on its way down a plan."""

    def __init__(self, semi_join: KeySemiJoin, sizes: Sizes) -> None:
        self._semi_join = semi_join
        self._sizes = sizes

    def push_into(self, plan: Node, on: _KeyPairs) -> tuple[Node, bool]:
        """`plan` with all rows whose key is in the set, and whether it has no other rows. Otherwise it also
        has rows with other keys, which may be wrong."""
        if not on or self._sizes.reads_few_rows(plan):
            return plan, False
        if isinstance(plan, Union):
            inputs = [self.push_into(child, on) for child in plan.inputs]
            whole = plan.with_children([child for child, _ in inputs])
            return whole, all(is_exact for _, is_exact in inputs)
        if isinstance(plan, Join):
            sides = _pairs_of_sides(plan, on)
            if sides is not None:
                return self._into_join(plan, on, sides)
        elif isinstance(plan, Unary):
            below = _pairs_below(on, plan.key_origin)
            if below is not None:
                child, is_exact = self.push_into(plan.child, below)
                return plan.over(child), is_exact and len(below) == len(on)
        semi_join = replace(self._semi_join, columns=plan.columns, child=plan, on=tuple(on))
        return semi_join, semi_join.exact

    def _into_join(self, join: Join, on: _KeyPairs, sides: tuple[_KeyPairs, _KeyPairs]) -> tuple[Node, bool]:
        left, left_exact = self.push_into(join.left, sides[0])
        right, right_exact = self.push_into(join.right, sides[1])
        is_exact = (left_exact and len(sides[0]) == len(on)) or (
            right_exact and len(sides[1]) == len(on) and join.kind is JoinKind.INNER
        )
        return replace(join, left=left, right=right), is_exact


def _pairs_below(on: _KeyPairs, origin: Mapping[ColumnId, ColumnId]) -> _KeyPairs | None:
    """The pairs in the columns of the child, without those that it does not have; None when it has none."""
    return [(origin[column], key) for column, key in on if column in origin] or None


def _pairs_of_sides(join: Join, on: _KeyPairs) -> tuple[_KeyPairs, _KeyPairs] | None:
    """The pairs for both sides of a join; None when the join must see all rows. A column that must equal one
    of the other side selects there too."""
    if join.kind is JoinKind.FULL:
        return None
    equal = {key.left: key.right for key in join.keys}
    left = [pair for pair in on if pair[0] in join.left.columns]
    if join.kind is not JoinKind.INNER:
        # Filtering the right side by its own columns would fake missing partners.
        return (left, _pairs_across(left, equal)) if left else None
    right = [pair for pair in on if pair[0] in join.right.columns]
    from_right = _pairs_across(right, {key.right: key.left for key in join.keys})
    return [*left, *from_right], [*right, *_pairs_across(left, equal)]


def _pairs_across(on: _KeyPairs, equal: Mapping[ColumnId, ColumnId]) -> list[tuple[ColumnId, ColumnId]]:
    """The pairs whose column equals one of the other side, in that side's columns."""
    return [(equal[column], key) for column, key in on if column in equal]
