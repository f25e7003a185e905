"""Whether a node of a plan fits its children: what an engine would refuse, or worse, take for something else.

Python would evaluate a join of two sides that share a column, or a sum over a signed bag, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tautochrone.algebra.nodes import (
    WEIGHT,
    Aggregate,
    ChangedGroups,
    ColumnId,
    Consolidate,
    Expand,
    Filter,
    FinalAggregate,
    FlagFilter,
    FlatMap,
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

__all__ = ["MalformedPlanError", "check_plan"]


class MalformedPlanError(AssertionError):
    """A plan that no engine should be given."""


def check_plan(node: Node) -> None:
    """Raise unless the node's columns and expressions fit its children."""
    if len(set(node.columns)) != len(node.columns):
        raise MalformedPlanError(f"{type(node).__name__} gives a column twice: {node.columns}")
    check = _CHECKS.get(type(node))
    if check is not None:
        check(node)


def _within(node: Node, wanted: Iterable[ColumnId], *there: Iterable[ColumnId]) -> None:
    missing = set(wanted) - set().union(*there)
    if missing:
        raise MalformedPlanError(f"{type(node).__name__} reads {sorted(missing)}: not there")


def _gives(node: Node, *columns: Iterable[ColumnId]) -> None:
    expected = {column for several in columns for column in several}
    if set(node.columns) != expected:
        raise MalformedPlanError(f"{type(node).__name__} gives {node.columns}, should be {sorted(expected)}")


def _signed(node: Node, child: Node, wanted: bool = True) -> None:
    if (WEIGHT in child.columns) is not wanted:
        raise MalformedPlanError(f"{type(node).__name__} over {'an un' if wanted else 'a '}signed bag")


def _filter(node: Filter) -> None:
    _within(node, node.condition.references, node.child.columns)
    _gives(node, node.child.columns)


def _project(node: Project) -> None:
    for column, expression in zip(node.columns, node.expressions, strict=True):
        _within(node, [column] if expression is None else expression.references, node.child.columns)


def _extend(node: FlatMap) -> None:
    _within(node, node.passed, node.child.columns)
    _gives(node, node.passed, node.generated)


def _expand(node: Expand) -> None:
    for projection in node.projections:
        for column, expression in zip(node.columns, projection, strict=True):
            _within(node, [column] if expression is None else expression.references, node.child.columns)


def _union(node: Union) -> None:
    for child in node.inputs:
        if child.columns != node.columns:
            raise MalformedPlanError(f"Union of {child.columns} into {node.columns}")


def _join(node: Join) -> None:
    left, right = node.left.columns, node.right.columns
    if set(left) & set(right):
        raise MalformedPlanError(f"both sides of a join have {sorted(set(left) & set(right))}")
    _within(node, (key.left for key in node.keys), left)
    _within(node, (key.right for key in node.keys), right)
    for condition in node.condition:
        _within(node, condition.references, left, right)
    match node.kind:
        case JoinKind.SEMI | JoinKind.ANTI:
            _gives(node, left)
        case JoinKind.EXISTENCE:
            _gives(node, left, [node.exists] if node.exists else [])
        case _:
            _gives(node, left, right)


def _aggregate(node: Aggregate) -> None:
    _signed(node, node.child, False)
    _within(node, node.keys, node.child.columns)
    for call in node.calls:
        for expression in (call.argument, call.condition):
            if expression is not None:
                _within(node, expression.references, node.child.columns)
    _gives(node, node.keys, (call.output for call in node.calls))


def _window(node: Window) -> None:
    _signed(node, node.child, False)
    _within(node, node.partition, node.child.columns)
    _within(node, node.child.columns, node.columns)


def _top(node: TopK) -> None:
    _signed(node, node.child, False)
    _gives(node, node.child.columns)


def _scalar_filter(node: ScalarFilter) -> None:
    _within(node, node.condition.references, node.child.columns, *(each.columns for each in node.scalars))
    _gives(node, node.child.columns)


def _weigh(node: WithWeight) -> None:
    _signed(node, node.child, False)
    _gives(node, node.child.columns, [WEIGHT])


def _same_signed(node: Consolidate) -> None:
    _signed(node, node.child)
    _gives(node, node.child.columns)


def _select(node: Select) -> None:
    _within(node, node.columns, node.child.columns)


def _rename(node: Rename) -> None:
    _within(node, node.sources, node.child.columns)
    if len(node.sources) != len(node.columns):
        raise MalformedPlanError(f"Rename of {node.sources} to {node.columns}")


def _pad(node: NullExtend) -> None:
    _within(node, node.nulls, node.like.columns)
    if set(node.nulls) & set(node.child.columns):
        raise MalformedPlanError("Pad of columns that are there")
    _gives(node, node.child.columns, node.nulls)


def _matching(node: KeySemiJoin) -> None:
    _within(node, (left for left, _ in node.on), node.child.columns)
    _within(node, (right for _, right in node.on), node.keys.columns)
    _gives(node, node.child.columns)


def _touched(node: MultiKeySemiJoin) -> None:
    for keys, on in zip(node.keys, node.on, strict=True):
        _within(node, (left for left, _ in on), node.child.columns)
        _within(node, (right for _, right in on), keys.columns)
    _gives(node, node.child.columns)


def _accumulate(node: PartialAggregate) -> None:
    _signed(node, node.child)
    _gives(node, node.of.state_columns, node.gone)
    if len(node.gone) != len(node.of.calls):
        raise MalformedPlanError("Accumulate needs one `gone` per call")


def _merge_groups(node: MergeGroups) -> None:
    _within(node, node.of.state_columns, node.stored.columns)
    _within(node, node.accumulate.columns, node.added.columns)
    _gives(node, node.of.state_columns, node.before, [node.again])


def _finish(node: FinalAggregate) -> None:
    _within(node, (*node.of.keys, *node.sources), node.child.columns)
    _gives(node, node.of.columns)


def _altered(node: ChangedGroups) -> None:
    if not node.of.keys:
        raise MalformedPlanError("Altered of an aggregate without keys")
    _within(node, (*node.of.keys, *node.before, *node.of.accumulators), node.child.columns)
    _gives(node, node.child.columns)


def _where(node: FlagFilter) -> None:
    _within(node, [node.flag], node.child.columns)
    _gives(node, node.child.columns)


def _flip(node: PredicateChange) -> None:
    _signed(node, node.child, False)
    for scalars in (node.before, node.after):
        _within(node, node.condition.references, node.child.columns, *(each.columns for each in scalars))
    _gives(node, node.child.columns, [WEIGHT])


def _merge_top(node: MergeTopK) -> None:
    _within(node, node.of.state_columns, node.stored.columns)
    _signed(node, node.change)
    _within(node, node.of.columns, node.change.columns)
    _gives(node, node.of.state_columns)


_CHECKS: dict[type[Node], Callable[..., None]] = {
    Filter: _filter,
    Project: _project,
    FlatMap: _extend,
    Expand: _expand,
    Union: _union,
    Join: _join,
    Aggregate: _aggregate,
    Window: _window,
    TopK: _top,
    ScalarFilter: _scalar_filter,
    WithWeight: _weigh,
    Consolidate: _same_signed,
    Select: _select,
    Rename: _rename,
    NullExtend: _pad,
    KeySemiJoin: _matching,
    MultiKeySemiJoin: _touched,
    PartialAggregate: _accumulate,
    MergeGroups: _merge_groups,
    FinalAggregate: _finish,
    ChangedGroups: _altered,
    FlagFilter: _where,
    PredicateChange: _flip,
    MergeTopK: _merge_top,
}
