"""From a query's optimized Catalyst plan to the algebra.

At this point SQL and Python definitions are the same, names and types are resolved by Spark itself, and
correlated subqueries have become joins. Expressions stay Catalyst expressions, opaque to the algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tautochrone.algebra.nodes import (
    ColumnId,
    Constant,
    Expand,
    Filter,
    FlatMap,
    Join,
    JoinKey,
    JoinKind,
    Node,
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
from tautochrone.spark.jvm.catalyst import Catalyst, children_of, items, kind
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.translate.from_catalyst_aggregates import AggregateTranslation
from tautochrone.spark.translate.from_catalyst_windows import (
    first_rows_of_window,
    translate_limit,
    translate_window,
)
from tautochrone.spark.translate.translation_context import TranslationContext
from tautochrone.spark.translate.unstable_floats import uses_of_unstable_floats

__all__ = ["Translator", "View", "plan_of"]

_TRANSPARENT = frozenset(
    # Order and partitioning do not change a multiset of rows.
    {"Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "SubqueryAlias"}
)
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range"})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A query in the algebra.

    Attributes:
        plan: its columns are the query's columns, in their order.
        attributes: Catalyst's attribute of each column id in the plan.
        obstacles: why the query's change cannot be computed from the plan: nondeterministic functions, inputs
            without versions, operators without a rule, uses of unstable floats. Empty for a query that can be
            refreshed incrementally.
        nondeterminism: those obstacles because of which the query has several right results.
        float_uses: those obstacles that are uses of unstable floats. The plan gives the query's rows still.
        breaks_ties: somewhere the plan orders tied rows by all columns, where Spark may take any order.
    """

    plan: Node
    attributes: Mapping[ColumnId, JavaObject]
    obstacles: tuple[str, ...]
    nondeterminism: tuple[str, ...] = ()
    float_uses: tuple[str, ...] = ()
    breaks_ties: bool = False

    @property
    def tables(self) -> frozenset[TableName]:
        """The lake tables and clocks that the plan reads."""
        return frozenset(node.table for node in walk(self.plan) if isinstance(node, Scan))


def plan_of(frame: DataFrame, catalog: str) -> View:
    """Translate a query. Its tables may be empty: only their columns matter.

    Never raises for an analyzed query: if Spark cannot optimize it over leaves without rows, that is an
    obstacle of the view.

    Args:
        frame: the query.
        catalog: name of the lake's catalog; tables of others have no versions.
    """
    try:
        return _plan_of(frame, catalog)
    except (PySparkException, Py4JError) as error:
        return _untranslated(frame, f"its plan cannot be followed: {problem_of(error).message}")


def _untranslated(frame: DataFrame, reason: str) -> View:
    handle = analyzed_plan(frame)
    catalyst = Catalyst(frame.sparkSession)
    attributes = {catalyst.column_id(attribute): attribute for attribute in items(handle.output())}
    plan = Unsupported(columns=tuple(attributes), inputs=(), reason=reason)
    return View(plan=plan, attributes=attributes, obstacles=(reason,))


def _plan_of(frame: DataFrame, catalog: str) -> View:
    translator = Translator(Catalyst(frame.sparkSession), optimized_plan(frame, catalog))
    plan = translator.node(translator.source.plan)
    plan = Select(columns=plan.columns, child=plan) if isinstance(plan, Scan) else plan
    deterministic, reason = determinism(analyzed_plan(frame))
    if not deterministic:
        translator.obstacles = [f"{reason} returns other values each time"]
    plan = _prune_columns(plan)
    obstacles = [*translator.obstacles, *_incomparable_columns(plan, translator.attributes)]
    # One reason is enough.
    uses = [] if obstacles else uses_of_unstable_floats(plan, translator.attributes, translator.catalyst)
    return View(
        plan=plan,
        attributes=translator.attributes,
        obstacles=tuple(dict.fromkeys([*obstacles, *uses])),
        nondeterminism=tuple(translator.nondeterminism),
        float_uses=tuple(uses),
        breaks_ties=translator.breaks_ties,
    )


def _incomparable_columns(plan: Node, attributes: Mapping[ColumnId, JavaObject]) -> list[str]:
    """An obstacle for each column whose values cannot be compared exactly, by GROUP BY or by a join."""
    unused = {
        c for node in walk(plan) if isinstance(node, Scan) for c in node.columns if c not in node.handle
    }
    obstacles = []
    for column, attribute in attributes.items():
        type_name = str(attribute.dataType().simpleString())
        if "variant" in type_name or (
            column not in unused and ("collate" in type_name or "map<" in type_name)
        ):
            obstacles.append(f"column {attribute.name()} of type {type_name} cannot be followed")
    return obstacles


class Translator(TranslationContext):
    """One translation: a rule for each operator of Catalyst."""

    def __init__(self, catalyst: Catalyst, source: OptimizedPlan) -> None:
        super().__init__(catalyst, source)
        self._aggregates: list[tuple[JavaObject, Node]] = []
        self._aggregation = AggregateTranslation(self)
        self._rules: dict[str, Callable[[JavaObject], Node]] = {
            "Project": self._project,
            "Filter": self._filter,
            "Union": self._union,
            "Join": lambda plan: _translate_join(self, plan),
            "Expand": self._expand,
            "Generate": self._generate,
            "BatchEvalPython": self._python,
            "ArrowEvalPython": self._python,
            "LogicalRDD": self._scan,
            "Aggregate": self._shared_aggregate,
            "Window": lambda plan: translate_window(self, plan),
            "GlobalLimit": lambda plan: translate_limit(self, plan),
        }

    def node(self, plan: JavaObject) -> Node:
        """The node of a Catalyst plan, with all nodes below it."""
        name = kind(plan)
        if self.has_subqueries and name not in ("Filter", "Aggregate"):
            self.refuse_subqueries(name, list(items(plan.expressions())))
        if name in _TRANSPARENT:
            return self.node(plan.children().apply(0))
        if name in _CONSTANT:
            return Constant(columns=self.register_all(plan.output()), handle=plan)
        rule = self._rules.get(name)
        return rule(plan) if rule is not None else self.unsupported(plan, f"{name} has no rule")

    def _shared_aggregate(self, plan: JavaObject) -> Node:
        """The node of an aggregate; equal aggregates become one node with one state.

        Equal ones come from a CTE that is read twice, and from IN conditions that Spark puts on both sides of
        a join.
        """
        same = next((node for translated, node in self._aggregates if translated.sameResult(plan)), None)
        if same is None or len(same.columns) != int(plan.output().size()):
            node = self._aggregation.aggregate(plan)
            self._aggregates.append((plan, node))
            return node
        return Rename(columns=self.register_all(plan.output()), child=same, sources=same.columns)

    # -- row by row -------------------------------------------------------------------------------

    def _scan(self, plan: JavaObject) -> Node:
        table = self.source.table_of(plan)
        columns = self.register_all(plan.output())
        # A node above may have registered the column already, with another spelling of its name.
        self.attributes.update(zip(columns, items(plan.output()), strict=True))
        if table is None:
            self.obstacles.append("local data has no versions")
            return Constant(columns=columns, handle=plan)
        return Scan(columns=columns, table=table)

    def _project(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        return self.project(child, list(items(plan.projectList())))

    def _filter(self, plan: JavaObject) -> Node:
        first_rows = first_rows_of_window(self.catalyst, plan.condition(), plan.child())
        child = (
            self.node(plan.child())
            if first_rows is None
            else translate_window(self, plan.child(), first_rows)
        )
        condition, scalars = self.without_subqueries(plan.condition())
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
        for child in children_of(plan):
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
        generated = self.register_all(plan.generatorOutput())
        # For EXCEPT ALL the generator returns copies of columns with the same ids.
        required = dict.fromkeys(self.register_all(plan.requiredChildOutput()))
        passed = tuple(column for column in required if column not in generated)
        columns = (*passed, *generated)
        return FlatMap(columns=columns, child=child, handle=plan, passed=passed, generated=generated)

    def _python(self, plan: JavaObject) -> Node:
        child = self.node(plan.child())
        generated = self.register_all(plan.resultAttrs())
        return FlatMap(
            columns=(*child.columns, *generated),
            child=child,
            handle=plan,
            passed=child.columns,
            generated=generated,
        )


# -- joins -----------------------------------------------------------------------------------------


_JOIN_KINDS = {
    "Inner": JoinKind.INNER,
    "Cross": JoinKind.INNER,
    "LeftOuter": JoinKind.LEFT,
    "RightOuter": JoinKind.LEFT,
    "FullOuter": JoinKind.FULL,
    "LeftSemi": JoinKind.SEMI,
    "LeftAnti": JoinKind.ANTI,
    "ExistenceJoin": JoinKind.EXISTENCE,
    "LeftSingle": JoinKind.SCALAR,
}


def _translate_join(translator: TranslationContext, plan: JavaObject) -> Node:
    """The node of a Catalyst join. A right outer join becomes a left outer join with swapped sides."""
    name = kind(plan.joinType())
    if name not in _JOIN_KINDS:
        return translator.unsupported(plan, f"{name} join has no rule")
    condition = plan.condition()
    conjuncts = translator.catalyst.conjuncts(condition.get()) if condition.isDefined() else []
    left, right = translator.node(plan.left()), translator.node(plan.right())
    columns = _output_columns(translator, plan, name, left, right)
    if name == "RightOuter":
        left, right = right, left
    equal, rest = _equalities(translator, conjuncts, left, right)
    left, left_keys = translator.with_computed_columns(left, [pair[0] for pair in equal])
    right, right_keys = translator.with_computed_columns(right, [pair[1] for pair in equal])
    keys = tuple(
        JoinKey(left=a, right=b, null_safe=pair[2])
        for a, b, pair in zip(left_keys, right_keys, equal, strict=True)
    )
    exists = columns[-1] if name == "ExistenceJoin" else None
    node = Join(
        columns=_join_columns(_JOIN_KINDS[name], left, right, exists),
        left=left,
        right=right,
        kind=_JOIN_KINDS[name],
        keys=keys,
        conditions=tuple(translator.expression(part) for part in rest),
        exists=exists,
    )
    return node if node.columns == columns else Select(columns=columns, child=node)


def _output_columns(
    translator: TranslationContext, plan: JavaObject, name: str, left: Node, right: Node
) -> tuple[ColumnId, ...]:
    if name == "ExistenceJoin":
        return (*left.columns, translator.register(plan.joinType().exists()))
    if name in ("LeftSemi", "LeftAnti"):
        return left.columns
    return (*left.columns, *right.columns)


def _join_columns(
    join_kind: JoinKind, left: Node, right: Node, exists: ColumnId | None
) -> tuple[ColumnId, ...]:
    if join_kind in (JoinKind.SEMI, JoinKind.ANTI):
        return left.columns
    if exists is not None:
        return (*left.columns, exists)
    return (*left.columns, *right.columns)


def _equalities(
    translator: TranslationContext, conjuncts: list[JavaObject], left: Node, right: Node
) -> tuple[list[tuple[JavaObject, JavaObject, bool]], list[JavaObject]]:
    """Conjuncts `f(left) = g(right)` as (left, right, null-safe), and the other conjuncts."""
    catalyst = translator.catalyst
    left_columns, right_columns = set(left.columns), set(right.columns)
    equal, rest = [], []
    for conjunct in conjuncts:
        if kind(conjunct) in ("EqualTo", "EqualNullSafe"):
            a, b = conjunct.left(), conjunct.right()
            reads_a, reads_b = catalyst.references(a), catalyst.references(b)
            null_safe = kind(conjunct) == "EqualNullSafe"
            if reads_a and reads_b and reads_a <= left_columns and reads_b <= right_columns:
                equal.append((a, b, null_safe))
                continue
            if reads_a and reads_b and reads_a <= right_columns and reads_b <= left_columns:
                equal.append((b, a, null_safe))
                continue
        rest.append(conjunct)
    return equal, rest


# -- column pruning --------------------------------------------------------------------------------


def _prune_columns(plan: Node) -> Node:
    """The same plan, in which the `handle` of each scan is the set of its columns that the plan reads.

    A scan keeps its output columns, so that the nodes above it stay as they are. The columns that are not
    read are NULL in its rows and in its change.
    """
    used: set[ColumnId] = set(plan.columns)
    for node in walk(plan):
        used.update(node.references)
    return _pruned(plan, used, {})


def _pruned(node: Node, used: set[ColumnId], pruned: dict[int, Node]) -> Node:
    """The node over pruned scans. A node that occurs twice stays one, so that its change is computed once."""
    if id(node) not in pruned:
        if isinstance(node, Scan):
            pruned[id(node)] = replace(node, handle=frozenset(used.intersection(node.columns)))
        elif node.children:
            pruned[id(node)] = node.with_children([_pruned(child, used, pruned) for child in node.children])
        else:
            pruned[id(node)] = node
    return pruned[id(node)]
