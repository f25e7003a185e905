"""What the lowering of every node needs: plans of other nodes, columns, keys, and small parts of plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame

from tautochrone.algebra.nodes import ColumnId, KeySemiJoin, Materialized, Node, ScanAtCut, StateScan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import Catalyst, items
from tautochrone.spark.translate.columns import Columns
from tautochrone.spark.translate.literals import KeyConditions

__all__ = ["LeafPlans", "LoweringContext", "RowFilter"]

RowFilter = Callable[[DataFrame], DataFrame]
"""Removes rows from the log of a state, before that is grouped."""


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


class LoweringContext(ABC):
    """The lowering of the plans of one refresh.

    Attributes:
        keys: conditions on columns, made of the values of keys.
        reads_few_rows: see `LeafPlans`.
    """

    def __init__(self, catalyst: Catalyst, columns: Columns, leaves: LeafPlans) -> None:
        self.catalyst = catalyst
        self.leaves = leaves
        self.reads_few_rows = leaves.reads_few_rows
        self.columns = columns
        self.keys = KeyConditions(catalyst, columns)

    @abstractmethod
    def plan(self, node: Node) -> JavaObject:
        """The Catalyst plan of a node."""

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
        return self.catalyst.pyspark_column(self.columns.attribute(column))

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
