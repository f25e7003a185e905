"""From a query's optimised Catalyst plan to the algebra.

SQL and Python definitions are one case here, names and types are resolved with Spark's exact meaning,
correlated subqueries have become joins. Expressions stay Catalyst's own and opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.algebra.plan import (
    ColumnId,
    Constant,
    Expand,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Node,
    Other,
    Project,
    Rename,
    ScalarFilter,
    Scan,
    Select,
    Union,
    walk,
)
from tautochrone.model.names import TableName
from tautochrone.spark.catalyst import Catalyst, items, kind
from tautochrone.spark.frontend_groups import Groups
from tautochrone.spark.frontend_joins import join
from tautochrone.spark.optimised import OptimisedPlan, optimised
from tautochrone.spark.plans import analysed, determinism
from tautochrone.spark.used import without_unused_columns

__all__ = ["Translator", "View", "plan_of"]

_TRANSPARENT = frozenset(
    # Order and placement mean nothing in a bag.
    {"Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "SubqueryAlias"}
)
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range"})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A query in the algebra.

    Attributes:
        plan: gives the query's columns, in their order.
        attributes: Catalyst's attribute of each column id in the plan.
        obstacles: why the plan cannot tell the query's change: functions that give something else each
            time, inputs without versions.
    """

    plan: Node
    attributes: Mapping[ColumnId, JavaObject]
    obstacles: tuple[str, ...]

    @property
    def tables(self) -> frozenset[TableName]:
        """The lake tables that the plan reads."""
        return frozenset(node.table for node in walk(self.plan) if isinstance(node, Scan))


def plan_of(frame: DataFrame, catalog: str) -> View:
    """Translate a query. Its tables need not hold rows: only their columns count."""
    translator = Translator(Catalyst(frame.sparkSession), optimised(frame, catalog))
    plan = translator.node(translator.source.plan)
    plan = Select(columns=plan.columns, child=plan) if isinstance(plan, Scan) else plan
    certain, reason = determinism(analysed(frame))
    obstacles = tuple(translator.obstacles) if certain else (f"{reason} gives something else each time",)
    return View(plan=without_unused_columns(plan), attributes=translator.attributes, obstacles=obstacles)


class Translator:
    """One translation. `attributes` grows as columns are met."""

    def __init__(self, catalyst: Catalyst, source: OptimisedPlan) -> None:
        self.catalyst = catalyst
        self.source = source
        self.attributes: dict[ColumnId, JavaObject] = {}
        self.obstacles: list[str] = []
        self._groups = Groups(self)
        self._rules: dict[str, Callable[[JavaObject], Node]] = {
            "Project": self._project,
            "Filter": self._filter,
            "Union": self._union,
            "Join": lambda plan: join(self, plan),
            "Expand": self._expand,
            "Generate": self._generate,
            "BatchEvalPython": self._python,
            "ArrowEvalPython": self._python,
            "LogicalRDD": self._scan,
            "Aggregate": self._groups.aggregate,
            "Window": self._groups.window,
            "GlobalLimit": self._groups.limit,
        }

    # -- for the parts ----------------------------------------------------------------------------

    def node(self, plan: JavaObject) -> Node:
        """The node of a plan, with everything below it."""
        name = kind(plan)
        if name in _TRANSPARENT:
            return self.node(plan.children().apply(0))
        if name in _CONSTANT:
            return Constant(columns=self.meet_all(plan.output()), handle=plan)
        rule = self._rules.get(name)
        return rule(plan) if rule is not None else self.other(plan, f"{name} has no rule")

    def meet(self, attribute: JavaObject) -> ColumnId:
        """Remember an attribute under its id."""
        column = self.catalyst.id_of(attribute)
        self.attributes.setdefault(column, attribute)
        return column

    def meet_all(self, output: JavaObject) -> tuple[ColumnId, ...]:
        return tuple(self.meet(attribute) for attribute in items(output))

    def expression(self, handle: JavaObject) -> Expression:
        return Expression(handle, self.catalyst.references(handle), str(handle.toString()))

    def other(self, plan: JavaObject, reason: str) -> Node:
        """A node without a rule. Leaves are inputs that nobody can follow."""
        children = tuple(self.node(child) for child in items(plan.children()))
        if not children:
            self.obstacles.append(f"{kind(plan)} has no versions")
        return Other(columns=self.meet_all(plan.output()), inputs=children, handle=plan, reason=reason)

    def computed(self, child: Node, expressions: list[JavaObject]) -> tuple[Node, list[ColumnId]]:
        """The child with a column for each expression; attributes are columns already."""
        made: list[tuple[ColumnId, Expression]] = []
        found = []
        for handle in expressions:
            if kind(handle) == "AttributeReference":
                found.append(self.meet(handle))
                continue
            column, expr_id = self.catalyst.new_id()
            self.meet(self.catalyst.alias(handle, str(column), expr_id).toAttribute())
            made.append((column, self.expression(handle)))
            found.append(column)
        if not made:
            return child, found
        columns = (*child.columns, *(column for column, _ in made))
        kept: list[Expression | None] = [None] * len(child.columns)
        return (
            Project(columns=columns, child=child, expressions=(*kept, *(text for _, text in made))),
            found,
        )

    def without_subqueries(self, handle: JavaObject) -> tuple[JavaObject, dict[ColumnId, Node]]:
        """An expression that reads scalar subqueries as columns, and those subqueries."""
        found: dict[ColumnId, Node] = {}

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != "ScalarSubquery":
                return None
            attribute = expression.plan().output().apply(0).withNullability(True)
            column = self.catalyst.id_of(attribute)
            if column not in found:
                plan = self.node(expression.plan())
                found[column] = plan if plan.columns == (column,) else Select(columns=(column,), child=plan)
                self.attributes[column] = attribute
            return attribute

        if "scalar-subquery" not in str(handle.toString()):
            return handle, found
        return self.catalyst.rebuilt(handle, replace), found

    # -- row by row -------------------------------------------------------------------------------

    def _scan(self, plan: JavaObject) -> Node:
        table = self.source.table_of(plan)
        columns = self.meet_all(plan.output())
        if table is None:
            self.obstacles.append("local data has no versions")
            return Constant(columns=columns, handle=plan)
        return Scan(columns=columns, table=table)

    def _project(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        return self.projected(child, list(items(plan.projectList())))

    def projected(self, child: Node, named: list[JavaObject]) -> Node:
        """The child's rows as named expressions of it."""
        columns: list[ColumnId] = []
        expressions: list[Expression | None] = []
        for entry in named:
            columns.append(self.meet(entry.toAttribute()))
            if kind(entry) == "AttributeReference":
                expressions.append(None)
                continue
            handle, scalars = self.without_subqueries(entry.child())
            for scalar in scalars.values():
                if set(scalar.columns) <= set(child.columns):
                    continue
                both = (*child.columns, *scalar.columns)
                child = Join(columns=both, left=child, right=scalar, kind=JoinKind.SCALAR)
            expressions.append(self.expression(handle))
        if all(expression is None for expression in expressions):
            return Select(columns=tuple(columns), child=child)
        return Project(columns=tuple(columns), child=child, expressions=tuple(expressions))

    def _filter(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        condition, scalars = self.without_subqueries(plan.condition())
        if not scalars:
            return Filter(columns=child.columns, child=child, condition=self.expression(condition))
        return ScalarFilter(
            columns=child.columns,
            child=child,
            scalars=tuple(scalars.values()),
            condition=self.expression(condition),
        )

    def _union(self, plan: JavaObject) -> Node:
        columns = self.meet_all(plan.output())
        inputs = []
        for child in items(plan.children()):
            node = self.node(child)
            sources = self.meet_all(child.output())
            if sources != columns:
                node = Rename(columns=columns, child=node, sources=sources)
            inputs.append(node)
        return Union(columns=columns, inputs=tuple(inputs))

    def _expand(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        projections = tuple(
            tuple(self.expression(entry) for entry in items(projection))
            for projection in items(plan.projections())
        )
        return Expand(columns=self.meet_all(plan.output()), child=child, projections=projections)

    def _generate(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        made = self.meet_all(plan.generatorOutput())
        # EXCEPT ALL gives out copies of columns under their own ids.
        kept = tuple(column for column in self.meet_all(plan.requiredChildOutput()) if column not in made)
        return Extend(columns=(*kept, *made), child=child, handle=plan, kept=kept, made=made)

    def _python(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        made = self.meet_all(plan.resultAttrs())
        columns = (*child.columns, *made)
        return Extend(columns=columns, child=child, handle=plan, kept=child.columns, made=made)
