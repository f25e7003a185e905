"""What the lowering of every node needs: plans of other nodes, columns, conditions on keys, parts of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame

from tautochrone.algebra.nodes import WEIGHT, ColumnId, KeySemiJoin, Materialized, Node, ScanAtCut, StateScan
from tautochrone.model import limits
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind
from tautochrone.spark.jvm.driver_calls import types_differ, with_names
from tautochrone.spark.jvm.driver_rows import distinct_values
from tautochrone.spark.translate.literals import UNORDERED_TYPE, are_exact, has_literals, key_ranges, literals

__all__ = ["Columns", "KeyConditions", "LeafPlans", "LoweringContext", "RowFilter"]


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
            self._expr_ids[column] = self._catalyst.expr_id(int(self.number(column)))
        return self._expr_ids[column]

    def number(self, column: ColumnId) -> str:
        """The number of a column's `ExprId`."""
        return (self._weight_id if column == WEIGHT else column).removeprefix("c")

    def define(self, columns: Sequence[ColumnId], attributes: Iterable[JavaObject]) -> None:
        """Take the attributes of an output as those of new columns."""
        for column, attribute in zip(columns, attributes, strict=True):
            self._attributes.setdefault(column, attribute)

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


class KeyConditions:
    """The conditions of one refresh. Each set of keys is fetched once."""

    def __init__(self, catalyst: Catalyst, columns: Columns) -> None:
        self._catalyst = catalyst
        self._columns = columns
        # The keys are stored with the values: Python may reuse the id of a node that is freed.
        self._values: dict[tuple[int, ColumnId], tuple[Materialized, frozenset[Any] | None]] = {}

    def condition(
        self, column: ColumnId, keys: Materialized, source: ColumnId, *, null_safe: bool, fetch: bool = False
    ) -> tuple[JavaObject | None, bool]:
        """A condition on `column` that is true where its value is one of those of `source`, and whether it is
        true of no other rows. None: there is no such condition.

        Args:
            column: the column of the rows.
            keys: the keys.
            source: the column of the keys.
            null_safe: whether NULL equals NULL.
            fetch: whether a Spark job may collect keys that are not on the driver.
        """
        catalyst = self._catalyst
        attribute = self._columns.attribute(column)
        type_name = self._type_of(column)
        values = self.values(column, keys, source, fetch=fetch)
        if values is None:
            return None, False
        not_null = [value for value in values if value is not None]
        exact = len(values) <= limits.MAX_IN_LIST_VALUES
        if not exact and type_name.startswith(UNORDERED_TYPE):
            return None, False
        conditions = self._in_list if exact else self._in_ranges
        parts = conditions(attribute, not_null, type_name)
        if null_safe and None in values:
            parts.append(catalyst.expression("IsNull")(attribute))
        disjunction: JavaObject | None = None
        for part in parts:
            disjunction = part if disjunction is None else catalyst.expression("Or")(disjunction, part)
        return (catalyst.literal(False) if disjunction is None else disjunction), exact

    def values(
        self, column: ColumnId, keys: Materialized, source: ColumnId, *, fetch: bool = False
    ) -> frozenset[Any] | None:
        """Distinct values of `source`, as `literals` takes them. None: the type has no literals, or the keys
        are not on the driver and are not to be fetched. Few keys on the driver need no Spark job."""
        type_name = self._type_of(column)
        on_driver = kind(keys.handle) == "LocalRelation"
        if not has_literals(type_name) or not (
            on_driver or (fetch and keys.rows <= limits.MAX_COLLECTED_KEYS)
        ):
            return None
        cache_key = id(keys), source
        if cache_key not in self._values:
            try:
                values = self._values_of(keys, source, type_name)
            except (OverflowError, ValueError):
                # Python has no such date, or text.
                values = None
            if values is not None and not are_exact(values, type_name):
                values = None
            self._values[cache_key] = keys, values
        return self._values[cache_key][1]

    # -- inside -----------------------------------------------------------------------------------

    def _type_of(self, column: ColumnId) -> str:
        return str(self._columns.attribute(column).dataType().catalogString())

    def _in_list(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column IN (…)`; no condition without values."""
        expression = self._catalyst.expression
        return [expression("In")(attribute, self._parsed(values, type_name))] if values else []

    def _in_ranges(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column BETWEEN … AND …` for each range."""
        expression = self._catalyst.expression
        conditions: list[JavaObject] = []
        for bounds in key_ranges(sorted(values)):
            low, high = (self._parsed([bound], type_name).apply(0) for bound in bounds)
            above, below = (
                expression("GreaterThanOrEqual")(attribute, low),
                expression("LessThanOrEqual")(attribute, high),
            )
            conditions.append(expression("And")(above, below))
        return conditions

    def _parsed(self, values: Sequence[Any], type_name: str) -> JavaObject:
        """A Scala sequence of literals."""
        session_state = self._catalyst.session._jsparkSession.sessionState()  # noqa: SLF001
        return session_state.sqlParser().parseExpression(f"x IN ({literals(values, type_name)})").list()

    def _values_of(self, keys: Materialized, source: ColumnId, type_name: str) -> frozenset[Any]:
        catalyst = self._catalyst
        position = keys.columns.index(source)
        if kind(keys.handle) == "LocalRelation":
            values = distinct_values(keys.handle, position, type_name)
            if values is not None:
                return values
        value = keys.handle.output().apply(position)
        if type_name.startswith(UNORDERED_TYPE):
            value = catalyst.cast(
                value, catalyst.spark_sql_class("types.StringType$"), catalyst.option("UTC")
            )
        frame = dataframe_of_plan(catalyst.session, keys.handle)
        frame = frame.select(self._catalyst.pyspark_column(value).alias("value"))
        if kind(keys.handle) == "LocalRelation" and keys.rows <= limits.MAX_ROWS_WITHOUT_ARROW:
            return frozenset(row[0] for row in frame.collect())
        return frozenset(frame.toArrow().column(0).unique().to_pylist())


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
    """

    def __init__(self, catalyst: Catalyst, columns: Columns, leaves: LeafPlans) -> None:
        self.catalyst = catalyst
        self.leaves = leaves
        self.columns = columns
        self.keys = KeyConditions(catalyst, columns)

    @abstractmethod
    def plan(self, node: Node) -> JavaObject:
        """The Catalyst plan of a node."""

    @abstractmethod
    def reads_few_rows(self, node: Node) -> bool:
        """Whether one task can process all rows that a node reads."""

    def coalesced(self, node: Node) -> JavaObject:
        """The plan of a node, in one partition if it is small; for nodes that group, sort or join its
        rows."""
        plan = self.plan(node)
        return self.coalesce(plan) if self.reads_few_rows(node) else plan

    def coalesced_frame_named_by_ids(self, node: Node) -> DataFrame:
        """Like `frame_named_by_ids`, of a plan that is `coalesced`."""
        return with_names(dataframe_of_plan(self.catalyst.session, self.coalesced(node)), node.columns)

    def coalesce(self, plan: JavaObject) -> JavaObject:
        """`plan` in one partition."""
        return self.catalyst.logical("Repartition")(1, False, plan)

    def frame(self, node: Node) -> DataFrame:
        """A DataFrame of a node. Its columns are referred to by `column`, not by name."""
        return dataframe_of_plan(self.catalyst.session, self.plan(node))

    def frame_named_by_ids(self, node: Node) -> DataFrame:
        """A DataFrame of a node whose columns are named by their ids, for expressions in SQL."""
        return with_names(self.frame(node), node.columns)

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
        plan = analyzed_plan(frame)
        pairs = zip(columns, items(plan.output()), strict=True)
        return self.project([self.columns.named(column, entry) for column, entry in pairs], plan)

    def cast_as_planned(
        self, columns: Sequence[ColumnId], attributes: Sequence[JavaObject]
    ) -> list[JavaObject]:
        """Attributes, each cast if needed to the type that its column has in the query.

        An older version of a table may have a narrower type, and a state has the types of its table format.
        """
        planned = [self.columns.attribute(column) for column in columns]
        differ = types_differ(zip(attributes, planned, strict=True))
        return [
            self.catalyst.cast(attribute, of_query.dataType()) if is_other else attribute
            for attribute, of_query, is_other in zip(attributes, planned, differ, strict=True)
        ]

    def named_as_planned(
        self, named: Sequence[ColumnId], columns: Sequence[ColumnId], attributes: Sequence[JavaObject]
    ) -> list[JavaObject]:
        """The same with the ids of `named`."""
        cast = self.cast_as_planned(columns, attributes)
        return [self.columns.named(column, each) for column, each in zip(named, cast, strict=True)]

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

    def join_scalars(self, node: Node, scalars: tuple[Node, ...]) -> JavaObject:
        """The plan of a node with the columns of scalar subqueries, each joined by its only row."""
        return self.with_scalars(self.plan(node), node, scalars)

    def with_scalars(self, plan: JavaObject, node: Node, scalars: tuple[Node, ...]) -> JavaObject:
        """The same of another plan of the rows of a node, which may have more columns."""
        for scalar in scalars:
            if isinstance(scalar, Materialized) and self.reads_few_rows(node):
                condition = self.always_equal(node.columns, scalar.columns)
                if condition is not None:
                    plan = self.catalyst.logical("Join")(
                        self.coalesce(plan),
                        self.coalesce(self.plan(scalar)),
                        self.join_type("LeftOuter"),
                        self.catalyst.option(condition),
                        self.catalyst.shuffle_hash_hint,
                    )
                    continue
            # A materialized result is known to have at most one row; a LeftSingle join checks others at run
            # time.
            name = "LeftOuter" if isinstance(scalar, Materialized) else "LeftSingle"
            join_type = self.join_type(name)
            plan = self.catalyst.logical("Join")(
                plan, self.plan(scalar), join_type, self.catalyst.none, self.catalyst.no_hint
            )
        return plan

    def always_equal(self, left: Sequence[ColumnId], right: Sequence[ColumnId]) -> JavaObject | None:
        """A condition that any two rows meet, as an equality of columns of both sides: a join without one is
        a broadcast, which needs a job. None: a side has no column that can be hashed."""
        sides = []
        for columns in (left, right):
            attribute = next(filter(_can_be_hashed, map(self.columns.attribute, columns)), None)
            if attribute is None:
                return None
            hashed = self.catalyst.expression("Murmur3Hash")(self.catalyst.seq([attribute]), 42)
            # Spark does not simplify this to 0.
            sides.append(self.catalyst.expression("BitwiseAnd")(hashed, self.catalyst.literal(0)))
        return self.equal(*sides, null_safe=False)


def _can_be_hashed(attribute: JavaObject) -> bool:
    return not any(word in str(attribute.dataType().catalogString()) for word in ("map<", "variant"))
