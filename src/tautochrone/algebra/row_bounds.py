"""How many rows a plan gives at most, known before it is computed."""

from __future__ import annotations

from collections.abc import Callable

from tautochrone.algebra.nodes import (
    Aggregate,
    ChangedGroups,
    Consolidate,
    Filter,
    FinalAggregate,
    FlagFilter,
    Join,
    JoinKind,
    KeySemiJoin,
    MergeGroups,
    MergeTopK,
    MultiKeySemiJoin,
    Node,
    NullExtend,
    PartialAggregate,
    PredicateChange,
    Project,
    Rename,
    ScalarFilter,
    Select,
    TopK,
    Union,
    Window,
    WithWeight,
)

__all__ = ["max_rows"]

_NO_MORE_THAN_BELOW = (
    PartialAggregate,
    Aggregate,
    ChangedGroups,
    Consolidate,
    Filter,
    FinalAggregate,
    PredicateChange,
    KeySemiJoin,
    NullExtend,
    Project,
    Rename,
    ScalarFilter,
    Select,
    MultiKeySemiJoin,
    WithWeight,
    FlagFilter,
    Window,
)
_LEFT_ROWS_ONLY = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE, JoinKind.SCALAR)


def max_rows(plan: Node, leaf_rows: Callable[[Node], int | None]) -> int | None:
    """An upper bound; None when nobody knows one: joins may multiply, so may what is computed row by row.

    Args:
        plan: of any nodes.
        leaf_rows: of a leaf.
    """
    if not plan.children:
        return leaf_rows(plan)
    match plan:
        case Aggregate() | FinalAggregate() if not (plan if isinstance(plan, Aggregate) else plan.of).keys:
            # A row also where there is none below.
            return 1
        case Union():
            each = [max_rows(child, leaf_rows) for child in plan.inputs]
            return None if None in each else sum(rows or 0 for rows in each)
        case MergeGroups():
            return max_rows(plan.added, leaf_rows)
        case MergeTopK():
            return plan.of.buffer
        case TopK():
            return plan.limit
        case Join() if plan.kind not in _LEFT_ROWS_ONLY:
            return None
    known = isinstance(plan, (*_NO_MORE_THAN_BELOW, Join))
    return max_rows(plan.children[0], leaf_rows) if known else None
