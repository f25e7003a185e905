"""From plans of the algebra to Catalyst plans ("lowering").

The output of a lowered plan is exactly its node's columns, in their order, as attributes whose `ExprId`s are
the column ids. So an expression of the optimized query is valid over any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame

from tautochrone.algebra.nodes import (
    WEIGHT,
    Aggregate,
    ChangedGroups,
    ColumnId,
    Consolidate,
    Constant,
    Expand,
    Expression,
    Filter,
    FinalAggregate,
    FlagFilter,
    FlatMap,
    Join,
    JoinKind,
    KeySemiJoin,
    Materialized,
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
    ScanAtCut,
    Select,
    StateScan,
    TopK,
    Totals,
    Union,
    Window,
    WithWeight,
)
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind
from tautochrone.spark.translate.literals import KeyConditions
from tautochrone.spark.translate.running_totals import lower_ordered_from, lower_totals
from tautochrone.spark.translate.to_catalyst_aggregates import AggregateLowering
from tautochrone.spark.translate.to_catalyst_semi_joins import (
    lower_key_semi_join,
    lower_multi_key_semi_join,
    lower_superset,
    should_broadcast,
)
from tautochrone.spark.translate.to_catalyst_top_k import lower_merge_top_k

__all__ = ["Columns", "LeafPlans", "Lowering", "RowFilter"]

RowFilter = Callable[[DataFrame], DataFrame]
"""Removes rows from the log of a state, before that is grouped."""


class Columns:
    """The attribute of each column id, both for the query's columns and for those that delta rules create."""

    def __init__(self, catalyst: Catalyst, attributes: Mapping[ColumnId, JavaObject]) -> None:
        self._catalyst = catalyst
        self._attributes = dict(attributes)
        self._expr_ids: dict[ColumnId, JavaObject] = {}
        self._weight_id, self._expr_ids[WEIGHT] = catalyst.new_expr_id()
        self.named(WEIGHT, catalyst.literal(1))

    def fresh(self) -> ColumnId:
        column, expr_id = self._catalyst.new_expr_id()
        self._expr_ids[column] = expr_id
        return column

    def attribute(self, column: ColumnId) -> JavaObject:
        return self._attributes[column]

    def expr_id(self, column: ColumnId) -> JavaObject:
        if column not in self._expr_ids:
            self._expr_ids[column] = self._attributes[column].exprId()
        return self._expr_ids[column]

    def with_expected_ids(self, output: JavaObject, columns: tuple[ColumnId, ...]) -> JavaObject:
        """Attributes with the ids of `columns`. Most have them already; Spark gives new ids to duplicates."""
        expected = [self._weight_id if column == WEIGHT else column for column in columns]
        if [f"c{number}" for number in re.findall(r"#(\d+)", str(output.toString()))] == expected:
            return output
        pairs = zip(columns, items(output), strict=True)
        return self._catalyst.seq(entry.withExprId(self.expr_id(column)) for column, entry in pairs)

    def named(self, column: ColumnId, expression: JavaObject) -> JavaObject:
        """An alias of `expression` with the id of `column`. Defines the attribute of a new column."""
        alias = self._catalyst.alias(expression, str(column), self.expr_id(column))
        if column not in self._attributes:
            self._attributes[column] = alias.toAttribute()
        return alias


@dataclass(frozen=True, slots=True)
class LeafPlans:
    """Catalyst plans of the algebra's leaves, with the leaf's columns.

    Attributes:
        scan: rows of a table at a cut.
        state: rows of a state; the filter is applied to the state's log before that is grouped.
        lookup: rows of a table that contain all rows with one of the keys, from the cache of key lookups;
            None if the table has to be read.
        reads_few_rows: whether one task can process all rows that a node reads.
        reads_many_rows: whether a node reads so many rows that one more Spark job, to find out which keys it
            needs, saves time.
    """

    scan: Callable[[ScanAtCut], JavaObject]
    state: Callable[[StateScan, RowFilter | None], JavaObject]
    lookup: Callable[[KeySemiJoin, ScanAtCut], JavaObject | None]
    reads_few_rows: Callable[[Node], bool]
    reads_many_rows: Callable[[Node], bool]


class Lowering:
    """Lowers the plans of one refresh.

    A node that `reads_few_rows` is computed in one task, without the stages, broadcasts and shuffles that
    take most of the time of a small query.
    """

    def __init__(self, catalyst: Catalyst, columns: Columns, leaves: LeafPlans) -> None:
        self.catalyst = catalyst
        self.leaves = leaves
        self.reads_few_rows = leaves.reads_few_rows
        self.columns = columns
        self.keys = KeyConditions(self)
        self._already_lowered: dict[int, Materialized] = {}
        aggregates = AggregateLowering(self)
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
            OrderedFrom: lambda node: lower_ordered_from(self, node),
            Totals: lambda node: lower_totals(self, node),
            TopK: aggregates.top_k,
            Aggregate: aggregates.aggregate,
            PartialAggregate: aggregates.partial_aggregate,
            MergeGroups: aggregates.merge_groups,
            FinalAggregate: aggregates.final_aggregate,
            ChangedGroups: aggregates.changed_groups,
            MergeTopK: lambda node: lower_merge_top_k(self, node),
            PredicateChange: aggregates.predicate_change,
            Consolidate: aggregates.consolidate,
        }

    def plan(self, node: Node) -> JavaObject:
        """The Catalyst plan of a node."""
        return self._rules[type(node)](node)

    def coalesced(self, node: Node) -> JavaObject:
        """The plan of a node, in one partition if it is small; for nodes that group, sort or join its
        rows."""
        plan = self.plan(node)
        return self.coalesce(plan) if self.reads_few_rows(node) else plan

    def coalesced_frame_named_by_ids(self, node: Node) -> DataFrame:
        """Like `frame_named_by_ids`, of a plan that is `coalesced`."""
        return dataframe_of_plan(self.catalyst.session, self.coalesced(node)).toDF(*node.columns)

    def coalesce(self, plan: JavaObject) -> JavaObject:
        """`plan` in one partition."""
        return self.catalyst.logical("Repartition")(1, False, plan)

    def frame(self, node: Node) -> DataFrame:
        """A DataFrame of a node. Its columns are referred to by `column`, not by name."""
        return dataframe_of_plan(self.catalyst.session, self.plan(node))

    def frame_named_by_ids(self, node: Node) -> DataFrame:
        """A DataFrame of a node whose columns are named by their ids, for expressions in SQL."""
        return self.frame(node).toDF(*node.columns)

    # -- for the other modules of the lowering ----------------------------------------------------

    def attributes(self, columns: tuple[ColumnId, ...]) -> list[JavaObject]:
        return [self.columns.attribute(column) for column in columns]

    def selected(self, plan: JavaObject, columns: tuple[ColumnId, ...]) -> JavaObject:
        return self.project(self.attributes(columns), plan)

    def reordered(
        self, plan: JavaObject, output: tuple[ColumnId, ...], columns: tuple[ColumnId, ...]
    ) -> JavaObject:
        """`plan`, whose output is `output`, with the output `columns`."""
        return plan if output == columns else self.selected(plan, columns)

    def project(self, named: list[JavaObject], plan: JavaObject) -> JavaObject:
        return self.catalyst.logical("Project")(self.catalyst.seq(named), plan)

    def column(self, column: ColumnId) -> Column:
        """A column id as PySpark's `Column`."""
        return self.pyspark_column(self.columns.attribute(column))

    def pyspark_column(self, expression: JavaObject) -> Column:
        """A Catalyst expression as PySpark's `Column`."""
        utils = self.catalyst.spark_sql_class("classic.ExpressionUtils")
        return Column(utils.column(expression))

    def with_column_ids(self, frame: DataFrame, columns: tuple[ColumnId, ...]) -> JavaObject:
        """A DataFrame's plan whose columns get the given ids, in order."""
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        pairs = zip(columns, items(plan.output()), strict=True)
        return self.project([self.columns.named(column, entry) for column, entry in pairs], plan)

    def cast_as_planned(self, column: ColumnId, attribute: JavaObject) -> JavaObject:
        """An attribute, cast if needed to the type that `column` has in the query.

        An older version of a table may have a narrower type, and a state has the types of its table format.
        """
        planned_type = self.columns.attribute(column).dataType()
        if attribute.dataType().sameType(planned_type):
            return attribute
        return self.catalyst.cast(attribute, planned_type)

    def null_like(self, column: ColumnId) -> JavaObject:
        data_type = self.columns.attribute(column).dataType()
        return self.catalyst.null(data_type)

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
        left, (right, hint) = self.plan(node.left), self._right_side(node)
        if node.keys and self.reads_few_rows(node.left) and self.reads_few_rows(node.right):
            left, right, hint = self.coalesce(left), self.coalesce(right), self.catalyst.shuffle_hash_hint
        conditions = [condition.handle for condition in node.conditions]
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

    def equal(self, left: JavaObject, right: JavaObject, *, null_safe: bool) -> JavaObject:
        return self.catalyst.expression("EqualNullSafe" if null_safe else "EqualTo")(left, right)

    def conjunction(self, conditions: list[JavaObject]) -> JavaObject:
        """Scala's `Option` of the conjunction of conditions."""
        if not conditions:
            return self.catalyst.none
        conjunction = conditions[0]
        for condition in conditions[1:]:
            conjunction = self.catalyst.expression("And")(conjunction, condition)
        return self.catalyst.option(conjunction)

    def join_type(self, name: str) -> JavaObject:
        return self.catalyst.spark_sql_class(f"catalyst.plans.{name}$")

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
        plan = self.join_scalars(self.plan(node.child), node.scalars)
        return self.selected(self.catalyst.logical("Filter")(node.condition.handle, plan), node.columns)

    def join_scalars(self, plan: JavaObject, scalars: tuple[Node, ...]) -> JavaObject:
        """A plan with the columns of scalar subqueries, each joined by its only row."""
        for scalar in scalars:
            # A materialized result is known to have at most one row; a LeftSingle join checks others at run
            # time.
            name = "LeftOuter" if isinstance(scalar, Materialized) else "LeftSingle"
            join_type = self.join_type(name)
            plan = self.catalyst.logical("Join")(
                plan, self.plan(scalar), join_type, self.catalyst.none, self.catalyst.no_hint
            )
        return plan

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
