"""Whether the columns of a plan's node fit its children.

An engine would refuse such a plan or, worse, compute something else. Python would join two sides that share a
column, or sum up a Z-set without its weights, without a word.
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
    OrderedFrom,
    PartialAggregate,
    PredicateChange,
    Project,
    Rename,
    ScalarFilter,
    Select,
    TopK,
    Totals,
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


def _reads(node: Node, columns: Iterable[ColumnId], *inputs: Iterable[ColumnId]) -> None:
    missing = set(columns) - set().union(*inputs)
    if missing:
        raise MalformedPlanError(f"{type(node).__name__} reads {sorted(missing)}, which its inputs lack")


def _gives(node: Node, *columns: Iterable[ColumnId]) -> None:
    expected = {column for several in columns for column in several}
    if set(node.columns) != expected:
        raise MalformedPlanError(f"{type(node).__name__} gives {node.columns}, should be {sorted(expected)}")


def _reads_zset(node: Node, child: Node) -> None:
    if WEIGHT not in child.columns:
        raise MalformedPlanError(f"{type(node).__name__} over a bag, where a Z-set is needed")


def _reads_bag(node: Node, child: Node) -> None:
    if WEIGHT in child.columns:
        raise MalformedPlanError(f"{type(node).__name__} over a Z-set, where a bag is needed")


def _filter(node: Filter) -> None:
    _reads(node, node.condition.references, node.child.columns)
    _gives(node, node.child.columns)


def _project(node: Project) -> None:
    for column, expression in zip(node.columns, node.expressions, strict=True):
        _reads(node, [column] if expression is None else expression.references, node.child.columns)


def _flat_map(node: FlatMap) -> None:
    _reads(node, node.passed, node.child.columns)
    _gives(node, node.passed, node.generated)


def _expand(node: Expand) -> None:
    for projection in node.projections:
        for column, expression in zip(node.columns, projection, strict=True):
            _reads(node, [column] if expression is None else expression.references, node.child.columns)


def _union(node: Union) -> None:
    for child in node.inputs:
        if child.columns != node.columns:
            raise MalformedPlanError(f"Union of {child.columns} into {node.columns}")


def _join(node: Join) -> None:
    left, right = node.left.columns, node.right.columns
    if set(left) & set(right):
        raise MalformedPlanError(f"both sides of a join have {sorted(set(left) & set(right))}")
    _reads(node, (key.left for key in node.keys), left)
    _reads(node, (key.right for key in node.keys), right)
    for condition in node.conditions:
        _reads(node, condition.references, left, right)
    match node.kind:
        case JoinKind.SEMI | JoinKind.ANTI:
            _gives(node, left)
        case JoinKind.EXISTENCE:
            _gives(node, left, [node.exists] if node.exists else [])
        case _:
            _gives(node, left, right)


def _aggregate(node: Aggregate) -> None:
    _reads_bag(node, node.child)
    _reads(node, node.keys, node.child.columns)
    for call in node.calls:
        for expression in (call.argument, call.condition):
            if expression is not None:
                _reads(node, expression.references, node.child.columns)
    _gives(node, node.keys, (call.output for call in node.calls))


def _window(node: Window) -> None:
    _reads_bag(node, node.child)
    _reads(node, node.partition, node.child.columns)
    _reads(node, node.child.columns, node.columns)


def _top_k(node: TopK) -> None:
    _reads_bag(node, node.child)
    _gives(node, node.child.columns)


def _scalar_filter(node: ScalarFilter) -> None:
    _reads(node, node.condition.references, node.child.columns, *(scalar.columns for scalar in node.scalars))
    _gives(node, node.child.columns)


def _with_weight(node: WithWeight) -> None:
    _reads_bag(node, node.child)
    _gives(node, node.child.columns, [WEIGHT])


def _consolidate(node: Consolidate) -> None:
    _reads_zset(node, node.child)
    _gives(node, node.child.columns)


def _select(node: Select) -> None:
    _reads(node, node.columns, node.child.columns)


def _rename(node: Rename) -> None:
    _reads(node, node.sources, node.child.columns)
    if len(node.sources) != len(node.columns):
        raise MalformedPlanError(f"Rename of {node.sources} to {node.columns}")


def _null_extend(node: NullExtend) -> None:
    _reads(node, node.nulls, node.like.columns)
    if set(node.nulls) & set(node.child.columns):
        raise MalformedPlanError("NullExtend with columns that the child has")
    _gives(node, node.child.columns, node.nulls)


def _key_semi_join(node: KeySemiJoin) -> None:
    _reads(node, (left for left, _ in node.on), node.child.columns)
    _reads(node, (right for _, right in node.on), node.keys.columns)
    _gives(node, node.child.columns)


def _multi_key_semi_join(node: MultiKeySemiJoin) -> None:
    for keys, on in zip(node.keys, node.on, strict=True):
        _reads(node, (left for left, _ in on), node.child.columns)
        _reads(node, (right for _, right in on), keys.columns)
    _gives(node, node.child.columns)


def _partial_aggregate(node: PartialAggregate) -> None:
    _reads_zset(node, node.child)
    _gives(node, node.aggregate.state_columns, node.removed)
    if len(node.removed) != len(node.aggregate.calls):
        raise MalformedPlanError("PartialAggregate needs one `removed` per call")


def _merge_groups(node: MergeGroups) -> None:
    _reads(node, node.aggregate.state_columns, node.stored.columns)
    _reads(node, node.partial_aggregate.columns, node.partial.columns)
    _gives(node, node.aggregate.state_columns, node.before, [node.recompute])


def _final_aggregate(node: FinalAggregate) -> None:
    _reads(node, (*node.aggregate.keys, *node.sources), node.child.columns)
    _gives(node, node.aggregate.columns)


def _changed_groups(node: ChangedGroups) -> None:
    if not node.aggregate.keys:
        raise MalformedPlanError("ChangedGroups of an aggregate without keys")
    _reads(node, (*node.aggregate.keys, *node.before, *node.aggregate.accumulators), node.child.columns)
    _gives(node, node.child.columns)


def _flag_filter(node: FlagFilter) -> None:
    _reads(node, [node.flag], node.child.columns)
    _gives(node, node.child.columns)


def _predicate_change(node: PredicateChange) -> None:
    _reads_bag(node, node.child)
    for scalars in (node.before, node.after):
        _reads(node, node.condition.references, node.child.columns, *(scalar.columns for scalar in scalars))
    _gives(node, node.child.columns, [WEIGHT])


def _ordered_from(node: OrderedFrom) -> None:
    _reads_bag(node, node.child)
    _reads(node, [node.key], node.child.columns)
    _reads(node, [node.bound_key], node.bound.columns)
    _gives(node, node.child.columns)


def _totals(node: Totals) -> None:
    _reads_bag(node, node.child)


def _merge_top_k(node: MergeTopK) -> None:
    _reads(node, node.top_k.state_columns, node.stored.columns)
    _reads_zset(node, node.change)
    _reads(node, node.top_k.columns, node.change.columns)
    _gives(node, node.top_k.state_columns)


_CHECKS: dict[type[Node], Callable[..., None]] = {
    Filter: _filter,
    Project: _project,
    FlatMap: _flat_map,
    Expand: _expand,
    Union: _union,
    Join: _join,
    Aggregate: _aggregate,
    Window: _window,
    TopK: _top_k,
    ScalarFilter: _scalar_filter,
    WithWeight: _with_weight,
    Consolidate: _consolidate,
    Select: _select,
    Rename: _rename,
    NullExtend: _null_extend,
    KeySemiJoin: _key_semi_join,
    MultiKeySemiJoin: _multi_key_semi_join,
    PartialAggregate: _partial_aggregate,
    MergeGroups: _merge_groups,
    FinalAggregate: _final_aggregate,
    ChangedGroups: _changed_groups,
    FlagFilter: _flag_filter,
    PredicateChange: _predicate_change,
    OrderedFrom: _ordered_from,
    Totals: _totals,
    MergeTopK: _merge_top_k,
}
