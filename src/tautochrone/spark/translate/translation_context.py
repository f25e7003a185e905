"""What the translation of every operator of Catalyst needs: the columns, nodes of other plans, obstacles."""

from __future__ import annotations

from abc import ABC, abstractmethod

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import (
    ColumnId,
    Expression,
    Join,
    JoinKind,
    Node,
    Project,
    Rename,
    Select,
    Unsupported,
)
from tautochrone.spark.analysis.optimized_plan import OptimizedPlan, has_subquery
from tautochrone.spark.jvm.catalyst import SCALAR_SUBQUERY, Catalyst, children_of, items, kind

__all__ = ["TranslationContext"]


class TranslationContext(ABC):
    """One translation of a query's optimized plan.

    Attributes:
        attributes: Catalyst's attribute of each column id, registered as the plan is traversed.
        obstacles: see `View`.
        nondeterminism: see `View`.
        breaks_ties: see `View`.
        has_subqueries: whether there are any in the plan.
    """

    def __init__(self, catalyst: Catalyst, source: OptimizedPlan) -> None:
        self.catalyst = catalyst
        self.source = source
        self.attributes: dict[ColumnId, JavaObject] = {}
        self.obstacles = list(source.obstacles)
        self.nondeterminism: list[str] = []
        self.breaks_ties = False
        self.has_subqueries = has_subquery(source.plan)
        self._states = 0

    @abstractmethod
    def node(self, plan: JavaObject) -> Node:
        """The node of a Catalyst plan, with all nodes below it."""

    def register(self, attribute: JavaObject) -> ColumnId:
        """Record an attribute; returns its column id, made of its `exprId`."""
        column = self.catalyst.column_id(attribute)
        self.attributes.setdefault(column, attribute)
        return column

    def register_all(self, output: JavaObject) -> tuple[ColumnId, ...]:
        return tuple(self.register(attribute) for attribute in items(output))

    def next_state_number(self) -> int:
        """The number of the next stateful node, from 1. Equal definitions number their nodes equally."""
        self._states += 1
        return self._states

    def typed_column(self, type_name: str) -> ColumnId:
        """A new column of a type, given as DDL. Only the type of its attribute is used."""
        catalyst = self.catalyst
        column, expr_id = catalyst.new_expr_id()
        data_type = catalyst.spark_sql_class("types.DataType").fromDDL(type_name)
        self.register(catalyst.alias(catalyst.null(data_type), str(column), expr_id).toAttribute())
        return column

    def expression(self, handle: JavaObject) -> Expression:
        """A Catalyst expression as one of the algebra."""
        references = self.catalyst.references(handle)
        column = next(iter(references)) if kind(handle) == "AttributeReference" else None
        return Expression(handle, references, str(handle.toString()), column)

    def add_nondeterminism(self, reason: str) -> None:
        """Record that the query has several right results, so that a second computation may give another
        one."""
        self.obstacles.append(reason)
        self.nondeterminism.append(reason)

    def unsupported(self, plan: JavaObject, reason: str) -> Node:
        """A node without a rule, and an obstacle with the reason.

        A leaf is an input without versions. Another operator may depend on the order or the partitioning of
        rows, which the algebra does not represent, so the whole query is compared.
        """
        before = list(self.obstacles)
        children = tuple(self.node(child) for child in children_of(plan))
        # Obstacles below this operator are dropped: one reason is enough.
        self.obstacles = [*before, reason if children else f"{kind(plan)} has no versions"]
        return Unsupported(columns=self.register_all(plan.output()), inputs=children, reason=reason)

    def with_computed_columns(self, child: Node, handles: list[JavaObject]) -> tuple[Node, list[ColumnId]]:
        """The child with one more column for each expression that is not a plain attribute.

        Returns:
            The node, and the column of each expression.
        """
        computed: list[tuple[ColumnId, Expression]] = []
        result = []
        for handle in handles:
            if kind(handle) == "AttributeReference":
                result.append(self.register(handle))
                continue
            column, expr_id = self.catalyst.new_expr_id()
            self.register(self.catalyst.alias(handle, str(column), expr_id).toAttribute())
            computed.append((column, self.expression(handle)))
            result.append(column)
        if not computed:
            return child, result
        columns = (*child.columns, *(column for column, _ in computed))
        passed: list[Expression | None] = [None] * len(child.columns)
        expressions = (*passed, *(expression for _, expression in computed))
        return Project(columns=columns, child=child, expressions=expressions), result

    def without_subqueries(self, handle: JavaObject) -> tuple[JavaObject, list[Node]]:
        """An expression with columns in place of its scalar subqueries, and the nodes of those subqueries."""
        scalars: dict[int, tuple[JavaObject, Node]] = {}

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != SCALAR_SUBQUERY:
                return None
            number = int(expression.exprId().id())
            if number not in scalars:
                source = expression.plan().output().apply(0)
                # The subquery may read the same table as the rows, so its column needs a new id.
                column, expr_id = self.catalyst.new_expr_id()
                self.register(source.withExprId(expr_id).withNullability(True))
                sources = (self.catalyst.column_id(source),)
                node = Rename(columns=(column,), child=self.node(expression.plan()), sources=sources)
                scalars[number] = self.attributes[column], node
            return scalars[number][0]

        if not (self.has_subqueries and has_subquery(handle)):
            return handle, []
        rebuilt = self.catalyst.transform_down(handle, replace)
        self.refuse_subqueries("a condition or a result", [rebuilt])
        return rebuilt, [node for _, node in scalars.values()]

    def refuse_subqueries(self, name: str, expressions: list[JavaObject]) -> None:
        """Record an obstacle for subqueries that are left: their plans read leaves without rows."""
        if self.has_subqueries and any(has_subquery(expression) for expression in expressions):
            self.obstacles.append(f"a subquery in {name} has no rule")

    def project(self, child: Node, named: list[JavaObject]) -> Node:
        """A projection of the child to named expressions."""
        columns: list[ColumnId] = []
        expressions: list[Expression | None] = []
        for entry in named:
            column = self.register(entry.toAttribute())
            if column in columns:
                # After the optimizer has removed aliases, the same column may occur twice.
                continue
            columns.append(column)
            if kind(entry) == "AttributeReference":
                expressions.append(None)
                continue
            handle, scalars = self.without_subqueries(entry.child())
            for scalar in scalars:
                columns_of_both = (*child.columns, *scalar.columns)
                child = Join(columns=columns_of_both, left=child, right=scalar, kind=JoinKind.SCALAR)
            expressions.append(self.expression(handle))
        if all(expression is None for expression in expressions):
            return Select(columns=tuple(columns), child=child)
        return Project(columns=tuple(columns), child=child, expressions=tuple(expressions))
