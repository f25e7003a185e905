"""From a query's optimised Catalyst plan to the algebra.

SQL and Python definitions are one case here, names and types are resolved with Spark's exact meaning,
correlated subqueries have become joins. Expressions stay Catalyst's own and opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tautochrone.algebra.nodes import (
    ColumnId,
    Constant,
    Expand,
    Expression,
    Filter,
    FlatMap,
    Join,
    JoinKind,
    Node,
    Project,
    Rename,
    ScalarFilter,
    Scan,
    Select,
    Union,
    Unsupported,
    walk,
)
from tautochrone.model.names import TableName
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, determinism
from tautochrone.spark.analysis.optimized_plan import OptimizedPlan, optimized_plan
from tautochrone.spark.analysis.scalar_subqueries import SCALAR, has_subquery
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.translate.column_pruning import prune_columns
from tautochrone.spark.translate.from_catalyst_aggregates import Groups
from tautochrone.spark.translate.from_catalyst_joins import join

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
        nondeterminism: those of them for which the query has several right answers.
    """

    plan: Node
    attributes: Mapping[ColumnId, JavaObject]
    obstacles: tuple[str, ...]
    nondeterminism: tuple[str, ...] = ()

    @property
    def tables(self) -> frozenset[TableName]:
        """The lake tables and clocks that the plan reads."""
        return frozenset(node.table for node in walk(self.plan) if isinstance(node, Scan))


def plan_of(frame: DataFrame, catalog: str) -> View:
    """Translate a query. Its tables need not hold rows: only their columns count.

    What Spark cannot plan over leaves without rows is an obstacle, and no failure of the query.
    """
    try:
        return _plan_of(frame, catalog)
    except (PySparkException, Py4JError) as error:
        return _unplanned(frame, f"its plan cannot be followed: {problem_of(error).message}")


def _unplanned(frame: DataFrame, reason: str) -> View:
    handle = analyzed_plan(frame)
    catalyst = Catalyst(frame.sparkSession)
    attributes = {catalyst.column_id(attribute): attribute for attribute in items(handle.output())}
    plan = Unsupported(columns=tuple(attributes), inputs=(), reason=reason)
    return View(plan=plan, attributes=attributes, obstacles=(reason,))


def _plan_of(frame: DataFrame, catalog: str) -> View:
    translator = Translator(Catalyst(frame.sparkSession), optimized_plan(frame, catalog))
    plan = translator.node(translator.source.plan)
    plan = Select(columns=plan.columns, child=plan) if isinstance(plan, Scan) else plan
    certain, reason = determinism(analyzed_plan(frame))
    if not certain:
        translator.obstacles = [f"{reason} gives something else each time"]
    plan = prune_columns(plan)
    obstacles = [*translator.obstacles, *_not_compared(plan, translator.attributes)]
    return View(
        plan=plan,
        attributes=translator.attributes,
        obstacles=tuple(dict.fromkeys(obstacles)),
        nondeterminism=tuple(translator.nondeterminism),
    )


def _not_compared(plan: Node, attributes: Mapping[ColumnId, JavaObject]) -> list[str]:
    """Columns that a refresh could not tell apart as values, or at all."""
    unused = {
        c for node in walk(plan) if isinstance(node, Scan) for c in node.columns if c not in node.handle
    }
    found = []
    for column, attribute in attributes.items():
        text = str(attribute.dataType().simpleString())
        if "variant" in text or (column not in unused and ("collate" in text or "map<" in text)):
            found.append(f"column {attribute.name()} of type {text} cannot be followed")
    return found


class Translator:
    """One translation. `attributes` grows as columns are met."""

    def __init__(self, catalyst: Catalyst, source: OptimizedPlan) -> None:
        self.catalyst = catalyst
        self.source = source
        self.attributes: dict[ColumnId, JavaObject] = {}
        self.obstacles = list(source.obstacles)
        self.nondeterminism: list[str] = []
        self._aggregates: list[tuple[JavaObject, Node]] = []
        self._nested = has_subquery(source.plan)
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
            "Aggregate": self._shared_aggregate,
            "Window": self._groups.window,
            "GlobalLimit": self._groups.limit,
        }

    # -- for the parts ----------------------------------------------------------------------------

    def node(self, plan: JavaObject) -> Node:
        """The node of a plan, with everything below it."""
        name = kind(plan)
        if self._nested and name not in ("Filter", "Aggregate"):
            self.refuse_subqueries(name, list(items(plan.expressions())))
        if name in _TRANSPARENT:
            return self.node(plan.children().apply(0))
        if name in _CONSTANT:
            return Constant(columns=self.register_all(plan.output()), handle=plan)
        rule = self._rules.get(name)
        return rule(plan) if rule is not None else self.other(plan, f"{name} has no rule")

    def register(self, attribute: JavaObject) -> ColumnId:
        """Remember an attribute under its id."""
        column = self.catalyst.column_id(attribute)
        self.attributes.setdefault(column, attribute)
        return column

    def register_all(self, output: JavaObject) -> tuple[ColumnId, ...]:
        return tuple(self.register(attribute) for attribute in items(output))

    def expression(self, handle: JavaObject) -> Expression:
        references = self.catalyst.references(handle)
        column = next(iter(references)) if kind(handle) == "AttributeReference" else None
        return Expression(handle, references, str(handle.toString()), column)

    def add_nondeterminism(self, reason: str) -> None:
        """The query has several right answers: whoever computes it again may get another one."""
        self.obstacles.append(reason)
        self.nondeterminism.append(reason)

    def other(self, plan: JavaObject, reason: str) -> Node:
        """A node without a rule. Leaves are inputs that nobody can follow. What is above them may hang on the
        order or the placement of rows, which this plan leaves out: then the whole query is compared."""
        before = list(self.obstacles)
        children = tuple(self.node(child) for child in items(plan.children()))
        # One reason is enough: parts of an operator that has no rule have none either.
        self.obstacles = [*before, reason if children else f"{kind(plan)} has no versions"]
        return Unsupported(columns=self.register_all(plan.output()), inputs=children, reason=reason)

    def with_computed_columns(
        self, child: Node, expressions: list[JavaObject]
    ) -> tuple[Node, list[ColumnId]]:
        """The child with a column for each expression; attributes are columns already."""
        made: list[tuple[ColumnId, Expression]] = []
        found = []
        for handle in expressions:
            if kind(handle) == "AttributeReference":
                found.append(self.register(handle))
                continue
            column, expr_id = self.catalyst.new_expr_id()
            self.register(self.catalyst.alias(handle, str(column), expr_id).toAttribute())
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

    def _without_subqueries(self, handle: JavaObject) -> tuple[JavaObject, list[Node]]:
        """An expression that reads scalar subqueries as columns, and those subqueries."""
        found: dict[int, tuple[JavaObject, Node]] = {}

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != SCALAR:
                return None
            number = int(expression.exprId().id())
            if number not in found:
                source = expression.plan().output().apply(0)
                # It may read the same table as the rows: only a new id is surely another one.
                column, expr_id = self.catalyst.new_expr_id()
                self.register(source.withExprId(expr_id).withNullability(True))
                sources = (self.catalyst.column_id(source),)
                node = Rename(columns=(column,), child=self.node(expression.plan()), sources=sources)
                found[number] = self.attributes[column], node
            return found[number][0]

        if not (self._nested and has_subquery(handle)):
            return handle, []
        rebuilt = self.catalyst.transform_down(handle, replace)
        self.refuse_subqueries("a condition or a result", [rebuilt])
        return rebuilt, [node for _, node in found.values()]

    def refuse_subqueries(self, name: str, expressions: list[JavaObject]) -> None:
        """Their plans are over leaves without rows: nobody may ever evaluate them."""
        if self._nested and any(has_subquery(expression) for expression in expressions):
            self.obstacles.append(f"a subquery in {name} has no rule")

    def _shared_aggregate(self, plan: JavaObject) -> Node:
        """An aggregate, or the one that gives the same rows: of a CTE that is named twice, or of an IN that
        Spark asks on both sides of a join. It is followed once then, and has one state."""
        same = next((node for other, node in self._aggregates if other.sameResult(plan)), None)
        if same is None or len(same.columns) != int(plan.output().size()):
            made = self._groups.aggregate(plan)
            self._aggregates.append((plan, made))
            return made
        return Rename(columns=self.register_all(plan.output()), child=same, sources=same.columns)

    # -- row by row -------------------------------------------------------------------------------

    def _scan(self, plan: JavaObject) -> Node:
        table = self.source.table_of(plan)
        columns = self.register_all(plan.output())
        # Above it a column may be spelled otherwise than in its table, and have been met so.
        self.attributes.update(zip(columns, items(plan.output()), strict=True))
        if table is None:
            self.obstacles.append("local data has no versions")
            return Constant(columns=columns, handle=plan)
        return Scan(columns=columns, table=table)

    def _project(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        return self.project(child, list(items(plan.projectList())))

    def project(self, child: Node, named: list[JavaObject]) -> Node:
        """The child's rows as named expressions of it."""
        columns: list[ColumnId] = []
        expressions: list[Expression | None] = []
        for entry in named:
            column = self.register(entry.toAttribute())
            if column in columns:
                # The optimiser drops aliases, and then the same column stands there twice.
                continue
            columns.append(column)
            if kind(entry) == "AttributeReference":
                expressions.append(None)
                continue
            handle, scalars = self._without_subqueries(entry.child())
            for scalar in scalars:
                both = (*child.columns, *scalar.columns)
                child = Join(columns=both, left=child, right=scalar, kind=JoinKind.SCALAR)
            expressions.append(self.expression(handle))
        if all(expression is None for expression in expressions):
            return Select(columns=tuple(columns), child=child)
        return Project(columns=tuple(columns), child=child, expressions=tuple(expressions))

    def _filter(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        condition, scalars = self._without_subqueries(plan.condition())
        if not scalars:
            return Filter(columns=child.columns, child=child, condition=self.expression(condition))
        return ScalarFilter(
            columns=child.columns,
            child=child,
            scalars=tuple(scalars),
            condition=self.expression(condition),
        )

    def _union(self, plan: JavaObject) -> Node:
        columns = self.register_all(plan.output())
        inputs = []
        for child in items(plan.children()):
            node = self.node(child)
            sources = self.register_all(child.output())
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
        return Expand(columns=self.register_all(plan.output()), child=child, projections=projections)

    def _generate(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        made = self.register_all(plan.generatorOutput())
        # EXCEPT ALL gives out copies of columns under their own ids.
        passed = dict.fromkeys(self.register_all(plan.requiredChildOutput()))
        kept = tuple(column for column in passed if column not in made)
        return FlatMap(columns=(*kept, *made), child=child, handle=plan, passed=kept, generated=made)

    def _python(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        made = self.register_all(plan.resultAttrs())
        columns = (*child.columns, *made)
        return FlatMap(columns=columns, child=child, handle=plan, passed=child.columns, generated=made)
