"""Column lineage: the table columns from which each column of a query is computed.

It is read from the analyzed plan, because the optimizer removes references: in the query as it is written,
`0 * price` depends on `price`. The origins of a node's columns follow from those of its children, and
Catalyst knows which columns an expression references. For a node without a rule every output column depends
on every input column, so that no dependency is ever missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tautochrone.model.definitions import ColumnLineage, ColumnRef
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, lake_table
from tautochrone.spark.jvm.catalyst import children_of, contains_pattern, items, kind, walk
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["column_lineage"]

Origin = frozenset[ColumnRef]
Origins = Mapping[int, Origin]
"""The origin of each column, by the number of its `ExprId`."""

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
    """The columns of the tables of `catalog` from which a query's columns are computed. Two columns with the
    same name have the origins of both.

    Columns from outside the lake (files, Kafka, literals) have no origin. Never raises for an analyzed query:
    if its plan cannot be followed, the result has a `problem`.
    """
    try:
        plan = analyzed_plan(frame)
        tracer = _Tracer(catalog)
        origins = tracer.node(plan, {})
        values: dict[str, Origin] = {}
        for attribute in items(plan.output()):
            name = str(attribute.name())
            values[name] = values.get(name, _NOTHING) | origins.get(_id(attribute), _NOTHING)
    except (PySparkException, Py4JError) as error:
        return ColumnLineage(problem=f"its plan cannot be followed: {problem_of(error).message}")
    return ColumnLineage(values=values, rows=frozenset(tracer.rows))


class _Tracer:
    """One query. `rows` collects the columns that decide which rows the query has."""

    def __init__(self, catalog: str) -> None:
        self.rows: set[ColumnRef] = set()
        self._catalog = catalog
        self._cte_origins: dict[int, list[Origin]] = {}
        self._rules = {
            "Union": self._union,
            "Expand": self._expand,
            "Generate": self._generate,
            "LateralJoin": self._lateral_join,
            "WithCTE": self._with_cte,
            "CTERelationDef": self._cte_definition,
            "CTERelationRef": self._cte_reference,
            "UnionLoop": self._recursive_cte,
            "UnionLoopRef": self._recursive_reference,
            "Distinct": self._distinct,
            "Intersect": self._set_operation,
            "Except": self._set_operation,
        }

    def node(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        """The origins of a plan's columns.

        Args:
            plan: an analyzed plan.
            outer: the origins of the columns of outer queries, which a subquery may reference.
        """
        name = kind(plan)
        if name in _RELATIONS:
            return self._table(plan)
        rule = self._rules.get(name)
        if rule is not None:
            return rule(plan, outer)
        origins: dict[int, Origin] = {}
        for child in children_of(plan):
            origins |= self.node(child, outer)
        if name in _COMPUTED:
            return self._computed(name, plan, origins, outer)
        if name in _LIMITS:
            self._order(plan, outer)
        elif name not in _TRANSPARENT:
            # Conditions of filters and joins, keys of DISTINCT, and all other expressions of the node.
            self.rows |= self._origin_of_all(items(plan.expressions()), origins, outer)
        if name in _TRANSPARENT or name in ("Filter", "Join"):
            return origins
        all_columns = frozenset[ColumnRef]().union(*origins.values())
        return {_id(column): origins.get(_id(column), all_columns) for column in items(plan.output())}

    def _table(self, plan: JavaObject) -> dict[int, Origin]:
        table = lake_table(plan, self._catalog)
        if table is None:
            return {}
        return {
            _id(column): frozenset({ColumnRef(table, str(column.name()))}) for column in items(plan.output())
        }

    def _computed(
        self, name: str, plan: JavaObject, origins: dict[int, Origin], outer: Origins
    ) -> dict[int, Origin]:
        if name == "Aggregate":
            self.rows |= self._origin_of_all(items(plan.groupingExpressions()), origins, outer)
            named = plan.aggregateExpressions()
        else:
            named = plan.projectList() if name == "Project" else plan.windowExpressions()
        computed = {_id(entry): self._origin(entry, origins, outer) for entry in items(named)}
        return origins | computed if name == "Window" else computed

    def _order(self, plan: JavaObject, outer: Origins) -> None:
        """Below a limit the order decides which rows remain."""
        source = plan.child()
        while kind(source) in _LIMITS or kind(source) in ("SubqueryAlias", "Project"):
            source = source.child()
        if kind(source) == "Sort":
            origins = self.node(source.child(), outer)
            self.rows |= self._origin_of_all(items(source.order()), origins, outer)

    def _by_position(self, plan: JavaObject, sides: Sequence[Sequence[Origin]]) -> dict[int, Origin]:
        """The origins of a plan whose columns are computed from those of several sides, by position."""
        columns = zip(*sides, strict=True)
        return {
            _id(column): _NOTHING.union(*origins)
            for column, origins in zip(items(plan.output()), columns, strict=True)
        }

    def _in_order(self, plan: JavaObject, outer: Origins) -> list[Origin]:
        """The origins of a plan's columns in their order."""
        origins = self.node(plan, outer)
        return [origins.get(_id(column), _NOTHING) for column in items(plan.output())]

    def _union(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        return self._by_position(plan, [self._in_order(child, outer) for child in children_of(plan)])

    def _set_operation(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        """The rows are those of the left side; which ones depends on both sides."""
        left, right = (self._in_order(child, outer) for child in children_of(plan))
        self.rows.update(*left, *right)
        return self._by_position(plan, [left])

    def _distinct(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        origins = self.node(plan.child(), outer)
        self.rows.update(*(origins.get(_id(column), _NOTHING) for column in items(plan.output())))
        return origins

    def _expand(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        origins = self.node(plan.child(), outer)
        sides = [
            [self._origin(entry, origins, outer) for entry in items(projection)]
            for projection in items(plan.projections())
        ]
        return self._by_position(plan, sides)

    def _generate(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        origins = self.node(plan.child(), outer)
        generator = self._origin(plan.generator(), origins, outer)
        # The generator decides how many rows there are.
        self.rows |= generator
        return origins | {_id(column): generator for column in items(plan.generatorOutput())}

    def _lateral_join(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        left = self.node(plan.left(), outer)
        right = self.node(plan.right().plan(), {**outer, **left})
        origins = left | right
        self.rows |= self._origin_of_all(items(plan.condition().toList()), origins, outer)
        return origins

    def _with_cte(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        for definition in items(plan.cteDefs()):
            self.node(definition, outer)
        return self.node(plan.plan(), outer)

    def _cte_definition(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        self._cte_origins[int(plan.id())] = self._in_order(plan.child(), outer)
        return {}

    def _cte_reference(self, plan: JavaObject, _outer: Origins) -> dict[int, Origin]:
        return self._by_position(plan, [self._cte_origins[int(plan.cteId())]])

    def _recursive_cte(self, plan: JavaObject, outer: Origins) -> dict[int, Origin]:
        """A recursive query. The recursion is followed until the origins no longer change."""
        number, sides = int(plan.id()), [self._in_order(plan.anchor(), outer)]
        while True:
            columns = [_NOTHING.union(*origins) for origins in zip(*sides, strict=True)]
            if columns == self._cte_origins.get(number):
                return self._by_position(plan, [columns])
            self._cte_origins[number] = columns
            sides = [columns, self._in_order(plan.recursion(), outer)]

    def _recursive_reference(self, plan: JavaObject, _outer: Origins) -> dict[int, Origin]:
        return self._by_position(plan, [self._cte_origins[int(plan.loopId())]])

    # -- expressions ------------------------------------------------------------------------------

    def _origin_of_all(self, expressions: Iterable[JavaObject], origins: Origins, outer: Origins) -> Origin:
        return _NOTHING.union(*(self._origin(expression, origins, outer) for expression in expressions))

    def _origin(self, expression: JavaObject, origins: Origins, outer: Origins) -> Origin:
        """The columns from which an expression is computed, with those of the subqueries in it."""
        columns: set[ColumnRef] = set()
        for column in items(expression.references().toSeq()):
            number = _id(column)
            columns |= origins.get(number, outer.get(number, _NOTHING))
        if contains_pattern(expression, _OUTER):
            for part in walk(expression):
                if kind(part) == "OuterReference":
                    columns |= outer.get(_id(part), _NOTHING)
        if contains_pattern(expression, _SUBQUERY):
            for part in walk(expression):
                if kind(part) in _SUBQUERIES:
                    columns |= self._subquery(part, {**outer, **origins})
        return frozenset(columns)

    def _subquery(self, expression: JavaObject, outer: Origins) -> Origin:
        """The columns from which a subquery's value is computed, with those that decide about its rows."""
        rows, self.rows = self.rows, set()
        values = self._in_order(expression.plan(), outer)
        # The value of EXISTS depends on the rows only.
        origin = _NOTHING.union(self.rows, *(values if kind(expression) != "Exists" else ()))
        self.rows = rows
        return origin


def _id(attribute: JavaObject) -> int:
    return int(attribute.exprId().id())
