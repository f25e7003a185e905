"""From plans of the algebra to Catalyst plans ("lowering").

The output of a lowered plan is exactly its node's columns, in their order, as attributes whose `ExprId`s are
the column ids. So an expression of the optimized query is valid over any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.algebra.nodes import (
    WEIGHT,
    ColumnId,
    Constant,
    Expand,
    Expression,
    Filter,
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
    ScanAtCut,
    Select,
    StateScan,
    Union,
    Window,
    WithWeight,
)
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind
from tautochrone.spark.translate.lowering_context import Columns, LeafPlans, LoweringContext
from tautochrone.spark.translate.to_catalyst_aggregates import AggregateLowering
from tautochrone.spark.translate.to_catalyst_semi_joins import (
    lower_key_semi_join,
    lower_multi_key_semi_join,
    lower_superset,
    should_broadcast,
)
from tautochrone.spark.translate.to_catalyst_windows import LOWER_BY_ORDER

__all__ = ["Leaf", "Lowering"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows in the place of a node.

    Attributes:
        rows: a plan without children.
        over: makes the node's plan of it.
    """

    rows: JavaObject
    over: Callable[[JavaObject], JavaObject]


class Lowering(LoweringContext):
    """Lowers the plans of one refresh: a rule for each node.

    A node that `reads_few_rows` is computed in one task, without the stages, broadcasts and shuffles that
    take most of the time of a small query.
    """

    def __init__(self, catalyst: Catalyst, columns: Columns, leaves: LeafPlans) -> None:
        super().__init__(catalyst, columns, leaves)
        self._already_lowered: dict[int, Materialized] = {}
        self._leaves: dict[int, Leaf] = {}
        self._used_leaves: set[int] = set()
        self._rules: dict[type[Node], Callable[[Any], JavaObject]] = {
            ScanAtCut: leaves.scan,
            StateScan: lambda node: leaves.state(node, None),
            Materialized: self._materialized,
            Constant: lambda node: node.handle,
            Filter: self._filter,
            Project: self._project,
            Select: lambda node: self.reordered(self.plan(node.child), node.child.columns, node.columns),
            Rename: self._rename,
            FlatMap: self._flat_map,
            Expand: self._expand,
            Union: self._union,
            Join: self._join,
            Window: self._window,
            ScalarFilter: self._scalar_filter,
            NullExtend: self._null_extend,
            WithWeight: self._with_weight,
            KeySemiJoin: lambda node: lower_key_semi_join(self, node),
            MultiKeySemiJoin: lambda node: lower_multi_key_semi_join(self, node),
            FlagFilter: self._flag_filter,
            **AggregateLowering(self).rules,
            **{node_type: partial(lower, self) for node_type, lower in LOWER_BY_ORDER.items()},
        }

    def plan(self, node: Node) -> JavaObject:
        """The Catalyst plan of a node."""
        if id(node) in self._leaves:
            return self._leaf(node)
        if self._leaves and isinstance(node, ScanAtCut | StateScan | Materialized):
            raise AssertionError(f"A plan that runs again would keep the rows of {node.label}")
        return self._rules[type(node)](node)

    def reads_few_rows(self, node: Node) -> bool:
        # The rows that leaves stand for were gathered, and are few.
        return bool(self._leaves) or self.leaves.reads_few_rows(node)

    def repeatable_frame(self, node: Node, leaves: Sequence[tuple[Node, Leaf]]) -> DataFrame:
        """A DataFrame of a node in one partition, with other plans in the place of nodes below it."""
        self._leaves, self._used_leaves = {id(below): leaf for below, leaf in leaves}, set()
        try:
            return dataframe_of_plan(self.catalyst.session, self.coalesce(self.plan(node)))
        finally:
            self._leaves = {}

    def _leaf(self, node: Node) -> JavaObject:
        leaf = self._leaves[id(node)]
        if id(node) not in self._used_leaves:
            self._used_leaves.add(id(node))
            return leaf.over(leaf.rows)
        # Spark would give new ids to the second of two equal leaves and to all columns above it.
        rows = leaf.rows.newInstance()
        plan = leaf.over(rows)
        if plan is not rows:
            return plan
        pairs = zip(node.columns, items(plan.output()), strict=True)
        return self.project([self.columns.named(column, entry) for column, entry in pairs], plan)

    # -- nodes ------------------------------------------------------------------------------------

    def _materialized(self, node: Materialized) -> JavaObject:
        plan = node.handle
        if id(node) not in self._already_lowered:
            self._already_lowered[id(node)] = node
            return plan
        if kind(plan) == "LocalRelation":
            # Spark would give new ids to the second of two equal leaves and to all columns above it.
            plan = plan.newInstance()
        pairs = zip(node.columns, items(plan.output()), strict=True)
        return self.project([self.columns.named(column, entry) for column, entry in pairs], plan)

    def _filter(self, node: Filter) -> JavaObject:
        return self.catalyst.logical("Filter")(node.condition.handle, self.plan(node.child))

    def _project(self, node: Project) -> JavaObject:
        child = self.plan(node.child)
        pairs = zip(node.columns, node.expressions, strict=True)
        return self.project(
            [self.named_expression(column, expression) for column, expression in pairs], child
        )

    def named_expression(self, column: ColumnId, expression: Expression | None) -> JavaObject:
        """A column that is passed through (None), or an expression with its id."""
        if expression is None:
            return self.columns.attribute(column)
        return self.columns.named(column, expression.handle)

    def _rename(self, node: Rename) -> JavaObject:
        child = self.plan(node.child)
        return self.project(
            [
                self.columns.attribute(source)
                if source == column
                else self.columns.named(column, self.columns.attribute(source))
                for column, source in zip(node.columns, node.sources, strict=True)
            ],
            child,
        )

    def _flat_map(self, node: FlatMap) -> JavaObject:
        handle = node.handle.withNewChildren(self.catalyst.seq([self.plan(node.child)]))
        return self.selected(handle, node.columns)

    def _expand(self, node: Expand) -> JavaObject:
        child = self.plan(node.child)
        projections = [
            self.catalyst.seq(
                self.columns.attribute(column) if expression is None else expression.handle
                for column, expression in zip(node.columns, projection, strict=True)
            )
            for projection in node.projections
        ]
        output = self.catalyst.seq(self.attributes(node.columns))
        return self.catalyst.logical("Expand")(self.catalyst.seq(projections), output, child)

    def _union(self, node: Union) -> JavaObject:
        plans = [self.reordered(self.plan(child), child.columns, node.columns) for child in node.inputs]
        if len(plans) == 1:
            return plans[0]
        return self.catalyst.logical("Union")(self.catalyst.seq(plans), False, False)

    def _join(self, node: Join) -> JavaObject:
        conditions = [condition.handle for condition in node.conditions]
        few = self.reads_few_rows(node.left) and self.reads_few_rows(node.right)
        if few and not node.keys:
            is_scalar = node.kind is JoinKind.SCALAR and isinstance(node.right, Materialized)
            condition = self.always_equal(node.left.columns, node.right.columns) if is_scalar else None
            conditions += [] if condition is None else [condition]
            few = condition is not None
        if few:
            left, right = self.coalesced(node.left), self.coalesced(node.right)
            hint = self.catalyst.shuffle_hash_hint
        else:
            left, (right, hint) = self.plan(node.left), self._right_side(node)
        for key in node.keys:
            left_key, right_key = self.columns.attribute(key.left), self.columns.attribute(key.right)
            conditions.append(self.equal(left_key, right_key, null_safe=key.null_safe))
        join = self.catalyst.logical("Join")(
            left, right, self._join_type(node), self.conjunction(conditions), hint
        )
        if node.kind in (JoinKind.SEMI, JoinKind.ANTI):
            return self.reordered(join, node.left.columns, node.columns)
        if node.exists is not None:
            return self.reordered(join, (*node.left.columns, node.exists), node.columns)
        return self.reordered(join, (*node.left.columns, *node.right.columns), node.columns)

    def _right_side(self, node: Join) -> tuple[JavaObject, JavaObject]:
        """The right side of a join, and the join hint."""
        right = node.right
        if (
            node.kind is not JoinKind.INNER
            or not node.keys
            or not should_broadcast(node.left, len(node.left.columns))
        ):
            return self.plan(right), self.catalyst.no_hint
        hint = self.catalyst.broadcast_left_hint
        if isinstance(right, KeySemiJoin) and right.keys is node.left and not right.exact:
            return lower_superset(self, right), hint
        return self.plan(right), hint

    def _join_type(self, node: Join) -> JavaObject:
        catalyst = self.catalyst
        names = {
            JoinKind.INNER: "Inner",
            JoinKind.LEFT: "LeftOuter",
            JoinKind.FULL: "FullOuter",
            JoinKind.SEMI: "LeftSemi",
            JoinKind.ANTI: "LeftAnti",
            JoinKind.SCALAR: "LeftSingle",
        }
        if node.kind is JoinKind.EXISTENCE:
            assert node.exists is not None
            return catalyst.spark_sql_class("catalyst.plans.ExistenceJoin")(
                self.columns.attribute(node.exists)
            )
        if node.kind is JoinKind.SCALAR and isinstance(node.right, Materialized):
            return self.join_type("LeftOuter")
        return self.join_type(names[node.kind])

    def _window(self, node: Window) -> JavaObject:
        window = node.handle.withNewChildren(self.catalyst.seq([self.coalesced(node.child)]))
        return self.selected(window, node.columns)

    def _scalar_filter(self, node: ScalarFilter) -> JavaObject:
        plan = self.join_scalars(node.child, node.scalars)
        return self.selected(self.catalyst.logical("Filter")(node.condition.handle, plan), node.columns)

    def _null_extend(self, node: NullExtend) -> JavaObject:
        child = self.plan(node.child)
        nulls = set(node.nulls)
        return self.project(
            [
                self.columns.named(column, self.null_like(column))
                if column in nulls
                else self.columns.attribute(column)
                for column in node.columns
            ],
            child,
        )

    def _with_weight(self, node: WithWeight) -> JavaObject:
        child = self.plan(node.child)
        sign = self.catalyst.literal(node.sign)
        return self.project([*self.attributes(node.columns[:-1]), self.columns.named(WEIGHT, sign)], child)

    def _flag_filter(self, node: FlagFilter) -> JavaObject:
        flag = self.columns.attribute(node.flag)
        condition = self.equal(flag, self.catalyst.literal(node.value), null_safe=True)
        return self.catalyst.logical("Filter")(condition, self.plan(node.child))
