"""Which columns of which tables a query's columns are made from, by its analysed plan.

The analysed plan and not the optimised one: it has the query as it was written, so that `0 * price` is made
from `price`. Each node tells the origin of its columns from those of its children; Catalyst itself says which
columns an expression refers to. What has no rule is taken to make all it gives out of all it gets: too much
is a nuisance to who reads it, too little would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tautochrone.model.details import ColumnLineage, ColumnRef
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, lake_table
from tautochrone.spark.jvm.catalyst import contains_pattern, items, kind, walk
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["column_lineage"]

Origin = frozenset[ColumnRef]
Known = Mapping[int, Origin]
"""By the number of a column's `ExprId`."""

_NOTHING: Origin = frozenset()

_RELATIONS = frozenset({"DataSourceV2Relation", "StreamingRelationV2", "StreamingDataSourceV2Relation"})
_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"})
_TRANSPARENT = frozenset(
    {
        "SubqueryAlias", "View", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions",
        "ResolvedHint", "EventTimeWatermark", "WithWindowDefinition", *_LIMITS,
    }
)  # fmt: skip
_COMPUTED = frozenset({"Project", "Aggregate", "Window"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery", "FunctionTableSubqueryArgumentExpression"})
_SUBQUERY, _OUTER = "PLAN_EXPRESSION", "OUTER_REFERENCE"


def column_lineage(frame: DataFrame, catalog: str) -> ColumnLineage:
    """The origin of a query's columns among the tables of `catalog`; of two columns of one name, of both.

    Columns that come from outside the lake (files, Kafka, literals) have no origin. Never raises for a
    query that Spark has analysed: what cannot be followed is the answer's `problem`.
    """
    try:
        plan = analyzed_plan(frame)
        tracer = _Tracer(catalog)
        known = tracer.node(plan, {})
        values: dict[str, Origin] = {}
        for attribute in items(plan.output()):
            name = str(attribute.name())
            values[name] = values.get(name, _NOTHING) | known.get(_id(attribute), _NOTHING)
    except (PySparkException, Py4JError) as error:
        return ColumnLineage(problem=f"its plan cannot be followed: {problem_of(error).message}")
    return ColumnLineage(values=values, rows=frozenset(tracer.rows))


class _Tracer:
    """One query. `rows` grows by what decides about rows as the plan is walked."""

    def __init__(self, catalog: str) -> None:
        self.rows: set[ColumnRef] = set()
        self._catalog = catalog
        self._shared: dict[int, list[Origin]] = {}
        self._rules = {
            "Union": self._union,
            "Expand": self._expand,
            "Generate": self._generate,
            "LateralJoin": self._lateral,
            "WithCTE": self._with,
            "CTERelationDef": self._definition,
            "CTERelationRef": self._reference,
            "UnionLoop": self._loop,
            "UnionLoopRef": self._round,
            "Distinct": self._distinct,
            "Intersect": self._set_operation,
            "Except": self._set_operation,
        }

    def node(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        """The origin of each column that a plan gives.

        Args:
            plan: analysed.
            outer: columns of the queries around it, which it may refer to.
        """
        name = kind(plan)
        if name in _RELATIONS:
            return self._table(plan)
        rule = self._rules.get(name)
        if rule is not None:
            return rule(plan, outer)
        known: dict[int, Origin] = {}
        for child in items(plan.children()):
            known |= self.node(child, outer)
        if name in _COMPUTED:
            return self._computed(name, plan, known, outer)
        if name in _LIMITS:
            self._order(plan, outer)
        elif name not in _TRANSPARENT:
            # Conditions of filters and joins, keys of DISTINCT, and whatever else a node looks at.
            self.rows |= self._of_all(items(plan.expressions()), known, outer)
        if name in _TRANSPARENT or name in ("Filter", "Join"):
            return known
        everything = frozenset[ColumnRef]().union(*known.values())
        return {_id(column): known.get(_id(column), everything) for column in items(plan.output())}

    def _table(self, plan: JavaObject) -> dict[int, Origin]:
        table = lake_table(plan, self._catalog)
        if table is None:
            return {}
        return {
            _id(column): frozenset({ColumnRef(table, str(column.name()))}) for column in items(plan.output())
        }

    def _computed(
        self, name: str, plan: JavaObject, known: dict[int, Origin], outer: Known
    ) -> dict[int, Origin]:
        if name == "Aggregate":
            self.rows |= self._of_all(items(plan.groupingExpressions()), known, outer)
            named = plan.aggregateExpressions()
        else:
            named = plan.projectList() if name == "Project" else plan.windowExpressions()
        made = {_id(entry): self._of(entry, known, outer) for entry in items(named)}
        return known | made if name == "Window" else made

    def _order(self, plan: JavaObject, outer: Known) -> None:
        """Under a limit the order decides which rows are left."""
        below = plan.child()
        while kind(below) in _LIMITS or kind(below) in ("SubqueryAlias", "Project"):
            below = below.child()
        if kind(below) == "Sort":
            inner = self.node(below.child(), outer)
            self.rows |= self._of_all(items(below.order()), inner, outer)

    def _by_position(self, plan: JavaObject, sides: Sequence[Sequence[Origin]]) -> dict[int, Origin]:
        columns = zip(*sides, strict=True)
        return {
            _id(column): _NOTHING.union(*found)
            for column, found in zip(items(plan.output()), columns, strict=True)
        }

    def _in_order(self, plan: JavaObject, outer: Known) -> list[Origin]:
        """The origins of a plan's columns in their order."""
        known = self.node(plan, outer)
        return [known.get(_id(column), _NOTHING) for column in items(plan.output())]

    def _union(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        return self._by_position(plan, [self._in_order(child, outer) for child in items(plan.children())])

    def _set_operation(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        """Rows of the left side, which are there because of the right one."""
        left, right = (self._in_order(child, outer) for child in items(plan.children()))
        self.rows.update(*left, *right)
        return self._by_position(plan, [left])

    def _distinct(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        known = self.node(plan.child(), outer)
        self.rows.update(*(known.get(_id(column), _NOTHING) for column in items(plan.output())))
        return known

    def _expand(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        known = self.node(plan.child(), outer)
        sides = [
            [self._of(entry, known, outer) for entry in items(projection)]
            for projection in items(plan.projections())
        ]
        return self._by_position(plan, sides)

    def _generate(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        known = self.node(plan.child(), outer)
        made = self._of(plan.generator(), known, outer)
        # As many rows as the generator gives.
        self.rows |= made
        return known | {_id(column): made for column in items(plan.generatorOutput())}

    def _lateral(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        left = self.node(plan.left(), outer)
        right = self.node(plan.right().plan(), {**outer, **left})
        known = left | right
        self.rows |= self._of_all(items(plan.condition().toList()), known, outer)
        return known

    def _with(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        for definition in items(plan.cteDefs()):
            self.node(definition, outer)
        return self.node(plan.plan(), outer)

    def _definition(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        self._shared[int(plan.id())] = self._in_order(plan.child(), outer)
        return {}

    def _reference(self, plan: JavaObject, _outer: Known) -> dict[int, Origin]:
        return self._by_position(plan, [self._shared[int(plan.cteId())]])

    def _loop(self, plan: JavaObject, outer: Known) -> dict[int, Origin]:
        """A recursive query: its rounds read what it has so far, until that comes from nothing new."""
        number, sides = int(plan.id()), [self._in_order(plan.anchor(), outer)]
        while True:
            found = [_NOTHING.union(*origins) for origins in zip(*sides, strict=True)]
            if found == self._shared.get(number):
                return self._by_position(plan, [found])
            self._shared[number] = found
            sides = [found, self._in_order(plan.recursion(), outer)]

    def _round(self, plan: JavaObject, _outer: Known) -> dict[int, Origin]:
        return self._by_position(plan, [self._shared[int(plan.loopId())]])

    # -- expressions ------------------------------------------------------------------------------

    def _of_all(self, expressions: Iterable[JavaObject], known: Known, outer: Known) -> Origin:
        return _NOTHING.union(*(self._of(expression, known, outer) for expression in expressions))

    def _of(self, expression: JavaObject, known: Known, outer: Known) -> Origin:
        """What an expression's value is made from: columns, and the columns of subqueries in it."""
        found: set[ColumnRef] = set()
        for column in items(expression.references().toSeq()):
            number = _id(column)
            found |= known.get(number, outer.get(number, _NOTHING))
        if contains_pattern(expression, _OUTER):
            for part in walk(expression):
                if kind(part) == "OuterReference":
                    found |= outer.get(_id(part), _NOTHING)
        if contains_pattern(expression, _SUBQUERY):
            for part in walk(expression):
                if kind(part) in _SUBQUERIES:
                    found |= self._subquery(part, {**outer, **known})
        return frozenset(found)

    def _subquery(self, expression: JavaObject, outer: Known) -> Origin:
        """What a subquery's value is made from: its rows are no rows of the query, they decide the value."""
        rows, self.rows = self.rows, set()
        values = self._in_order(expression.plan(), outer)
        # EXISTS asks whether there is a row, whatever is in it.
        found = _NOTHING.union(self.rows, *(values if kind(expression) != "Exists" else ()))
        self.rows = rows
        return found


def _id(attribute: JavaObject) -> int:
    return int(attribute.exprId().id())
