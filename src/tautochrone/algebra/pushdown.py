"""Asking for keys as far down a plan as they are known, so that nothing is grouped, sorted or joined in vain.

An engine's optimiser does this with conditions, but not with a join against many keys: all of a relation
would be aggregated to look up a few of its groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tautochrone.algebra.delta import Engine
from tautochrone.algebra.nodes import (
    Aggregate,
    ChangedGroups,
    ColumnId,
    Consolidate,
    Filter,
    FinalAggregate,
    FlagFilter,
    FlatMap,
    Join,
    JoinKind,
    KeySemiJoin,
    Materialized,
    MultiKeySemiJoin,
    Node,
    NullExtend,
    Project,
    Rename,
    ScalarFilter,
    Select,
    Union,
    Window,
    WithWeight,
)

__all__ = ["push_down_keys"]

_On = Sequence[tuple[ColumnId, ColumnId]]
"""Pairs of a relation's column and a column of the keys."""


def push_down_keys(node: KeySemiJoin, engine: Engine) -> Node:
    """The same rows, the keys asked for at the lowest places that have them.

    Keys that must not occur, or that are not computed yet, stay where they are; so do those of a relation of
    few rows.
    """
    if node.absent or not isinstance(node.keys, Materialized):
        return node
    found, exact = _Push(node, engine).into(node.child, node.on)
    return found if exact or not node.exact else replace(node, child=found)


class _Push:
    """One set of keys on its way down."""

    def __init__(self, matching: KeySemiJoin, engine: Engine) -> None:
        self._matching = matching
        self._engine = engine

    def into(self, plan: Node, on: _On) -> tuple[Node, bool]:
        """`plan` with fewer rows: all that meet the keys, or (second answer: not) some with other keys, which
        need not be right."""
        if not on or self._engine.is_small(plan):
            return plan, False
        match plan:
            case Union():
                found = [self.into(child, on) for child in plan.inputs]
                return replace(plan, inputs=tuple(part for part, _ in found)), all(e for _, e in found)
            case Join():
                sides = _sides(plan, on)
                if sides is not None:
                    return self._joined(plan, on, sides)
            case _:
                below = _below(plan, on)
                if below is not None:
                    child, exact = self.into(plan.children[0], below)
                    return _over(plan, child), exact and len(below) == len(on)
        here = self._matching
        return replace(here, columns=plan.columns, child=plan, on=tuple(on)), here.exact

    def _joined(self, plan: Join, on: _On, sides: tuple[_On, _On]) -> tuple[Node, bool]:
        left, left_exact = self.into(plan.left, sides[0])
        right, right_exact = self.into(plan.right, sides[1])
        exact = (left_exact and len(sides[0]) == len(on)) or (
            right_exact and len(sides[1]) == len(on) and plan.kind is JoinKind.INNER
        )
        return replace(plan, left=left, right=right), exact


def _over(plan: Node, child: Node) -> Node:
    """A node that has one child that rows come from, over another."""
    changed: dict[str, Node] = {"child": child}
    return replace(plan, **changed)  # type: ignore[arg-type]


def _below(plan: Node, on: _On) -> _On | None:
    """The pairs as the node's child has them, without those that it has not; None: the node must see other
    rows than those that meet the keys."""
    match plan:
        case (
            Filter()
            | Select()
            | FlagFilter()
            | Consolidate()
            | ScalarFilter()
            | KeySemiJoin()
            | MultiKeySemiJoin()
        ):
            return _known(on, dict.fromkeys(plan.columns))
        case ChangedGroups() | FinalAggregate() if plan.of.keys:
            return _known(on, dict.fromkeys(plan.of.keys))
        case Aggregate() if plan.keys:
            return _known(on, dict.fromkeys(plan.keys))
        case Window():
            return _known(on, dict.fromkeys(plan.partition))
        case WithWeight():
            return _known(on, dict.fromkeys(plan.child.columns))
        case NullExtend():
            return _known(on, dict.fromkeys(set(plan.child.columns) - set(plan.nulls)))
        case FlatMap():
            return _known(on, dict.fromkeys(plan.passed))
        case Rename():
            return _known(on, dict(zip(plan.columns, plan.sources, strict=True)))
        case Project():
            pairs = zip(plan.columns, plan.expressions, strict=True)
            passed = {c: None if e is None else e.passes for c, e in pairs if e is None or e.passes}
            return _known(on, passed)
    return None


def _known(on: _On, sources: Mapping[ColumnId, ColumnId | None]) -> _On | None:
    """Pairs whose column has a source below (None: itself); None when there is none."""
    return [(sources[column] or column, key) for column, key in on if column in sources] or None


def _sides(join: Join, on: _On) -> tuple[_On, _On] | None:
    """The pairs for both sides of a join; None: it must see all rows. What must be equal for two rows to
    meet is a key of either side."""
    if join.kind is JoinKind.FULL:
        return None
    equal = [(key.left, key.right) for key in join.keys]
    left = [pair for pair in on if pair[0] in join.left.columns]
    if join.kind is not JoinKind.INNER:
        # By its own columns the right side must not lose a row: a left row would seem to have no partner.
        return (left, _across(left, equal)) if left else None
    right = [pair for pair in on if pair[0] in join.right.columns]
    back = _across(right, [(there, here) for here, there in equal])
    return [*left, *back], [*right, *_across(left, equal)]


def _across(on: _On, equal: Sequence[tuple[ColumnId, ColumnId]]) -> list[tuple[ColumnId, ColumnId]]:
    """The pairs whose column equals one of the other side, with that one."""
    other = dict(equal)
    return [(other[column], key) for column, key in on if column in other]
