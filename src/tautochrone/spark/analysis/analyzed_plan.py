"""Looking at analysed Catalyst plans over Py4J: what they read, and what kind of query they are.

Every call into the JVM costs about 0.2 ms, so questions that Catalyst can answer itself
(`deterministic`, pattern bits, `subqueriesAll`) are asked of it; only then is the tree walked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.definitions import FlowInputs
from tautochrone.model.names import TableName
from tautochrone.spark.analysis.current_time import clocks_of, reads_current_time
from tautochrone.spark.analysis.session_context import dataframe_of_plan, scala_seq
from tautochrone.spark.jvm.catalyst import items, kind, plan_and_subqueries, walk, walk_with_subqueries

__all__ = [
    "VERSION_OPTION",
    "LeafReplacement",
    "analyzed_plan",
    "determinism",
    "inputs_of",
    "lake_table",
    "linearity",
    "replace_leaves",
    "stateful_node",
    "substitute_leaves",
    "temp_views_of",
]

LeafReplacement = Callable[[TableName, int], Mapping[str, str] | None]
"""Gets a lake table and the running number of its leaf; answers read options, or None: no rows."""

VERSION_OPTION = "snapshot-id"
"""The option for the whole table at one version; everything else goes to the reader as it is."""

_LINEAR = frozenset(
    {
        "Project", "Filter", "Union", "Generate", "SubqueryAlias", "View", "DataSourceV2Relation",
        # Order and placement mean nothing in a bag.
        "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint",
    }
)  # fmt: skip
_CONSTANT = ("Range", "OneRowRelation", "LocalRelation")
_STATEFUL = frozenset(
    {
        "Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPandas",
        "TransformWithStateInPySpark", "GlobalLimit", "Limit",
    }
)  # fmt: skip
_PER_QUERY = {"CurrentTime": "current_time()", "CurrentUser": "current_user()"}
"""The same all through one query, so Catalyst holds them for deterministic; not so in the next query."""

_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery"})
_RANDOM = {
    "Rand": "rand()", "Randn": "randn()", "Uuid": "uuid()", "Shuffle": "shuffle()",
    "MonotonicallyIncreasingID": "monotonically_increasing_id()", "SparkPartitionID": "spark_partition_id()",
}  # fmt: skip

_NOT_STREAMING = False


def analyzed_plan(frame: DataFrame) -> JavaObject:
    """The analysed logical plan."""
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001


def _table(relation: JavaObject) -> TableName | None:
    """The relation's name in its catalog; None when it was loaded without one."""
    catalog, identifier = relation.catalog(), relation.identifier()
    if not (catalog.isDefined() and identifier.isDefined()):
        return None
    name = identifier.get()
    return TableName(str(catalog.get().name()), tuple(str(p) for p in name.namespace()), str(name.name()))


def lake_table(relation: JavaObject, catalog: str) -> TableName | None:
    """The relation's name when it is a table of `catalog`."""
    name = _table(relation)
    return name if name is not None and name.catalog == catalog else None


def inputs_of(plan: JavaObject, catalog: str) -> FlowInputs:
    """What an analysed plan reads; tables of `catalog` are lake tables."""
    batch: set[TableName] = set()
    stream: set[TableName] = set()
    unversioned: dict[str, None] = {}
    external = False
    for root in plan_and_subqueries(plan):
        for leaf in items(root.collectLeaves()):
            what = kind(leaf)
            if what in ("StreamingRelationV2", "StreamingRelation", "StreamingDataSourceV2Relation"):
                name = None if what == "StreamingRelation" else lake_table(leaf, catalog)
                if name is None:
                    external = True
                else:
                    stream.add(name)
            elif what == "DataSourceV2Relation" and (name := lake_table(leaf, catalog)) is not None:
                batch.add(name)
            elif what not in ("CTERelationRef", "OuterReference", *_CONSTANT):
                unversioned[_describe(leaf)] = None
    # A stream has a time of its own: that of its batch.
    clocks = frozenset[TableName]() if plan.isStreaming() else frozenset(clocks_of(plan))
    return FlowInputs(frozenset(batch), frozenset(stream), external, tuple(unversioned), clocks)


def constant_relations(plan: JavaObject) -> list[str]:
    """What the plan's literal relations hold: they are part of the definition, not inputs."""
    leaves = [leaf for root in plan_and_subqueries(plan) for leaf in items(root.collectLeaves())]
    found = []
    for leaf in leaves:
        what = kind(leaf)
        if what == "Range":
            found.append(f"range {leaf.start()} {leaf.end()} {leaf.step()}")
        elif what == "LocalRelation":
            # Rows hash by content, so the same in every process.
            found.append(f"rows {leaf.data().size()} {leaf.data().hashCode()}")
    return found


def _describe(leaf: JavaObject) -> str:
    what = kind(leaf)
    if what == "DataSourceV2Relation":
        return str(_table(leaf) or leaf.table().name())
    if what == "LogicalRelation":
        relation = leaf.relation()
        if kind(relation) == "HadoopFsRelation":
            form = str(relation.fileFormat().toString()).lower()
            paths = ",".join(str(path) for path in items(relation.location().rootPaths()))
            return f"{form}:{paths.replace('file:', '', 1)}"
        return str(relation.toString())
    return "local data"


def temp_views_of(plan: JavaObject) -> frozenset[str]:
    """Names of the temporary views that an analysed plan went through."""
    found = (node.desc().identifier().table() for node in walk_with_subqueries(plan) if kind(node) == "View")
    return frozenset(str(name) for name in found)


def stateful_node(plan: JavaObject) -> str | None:
    """The kind of the first node for which a streaming query keeps state, or None."""
    for node in walk_with_subqueries(plan):
        if not node.isStreaming():
            continue
        what = kind(node)
        if what in _STATEFUL:
            return what
        if what == "Join" and node.left().isStreaming() and node.right().isStreaming():
            return "stream-stream Join"
    return None


def linearity(plan: JavaObject, catalog: str) -> tuple[bool, str]:
    """Does f(A ∪ Δ) = f(A) ∪ f(Δ) hold, node by node? With the reason when it does not."""
    if plan.isStreaming():
        return False, "the query is a stream"
    if plan.subqueriesAll().size() > 0:
        return False, "subquery in an expression"
    for node in walk(plan):
        what = kind(node)
        if what not in _LINEAR:
            local = node.children().size() == 0
            return False, f"{_describe(node)} is no lake table" if local else what
        if what == "DataSourceV2Relation" and lake_table(node, catalog) is None:
            return False, f"{_describe(node)} is no lake table"
    for function in clocks_of(plan).values():
        return False, f"{function} is another one at each checkpoint"
    return determinism(plan)


def determinism(plan: JavaObject) -> tuple[bool, str]:
    """Would the query give the same rows again at the same time? With the function that would not."""
    plans = list(plan_and_subqueries(plan))
    if all(root.deterministic() for root in plans) and not any(reads_current_time(root) for root in plans):
        return True, ""
    for root in plans:
        for node in walk(root):
            for expression in items(node.expressions()):
                found = _uncertain(expression)
                if found:
                    return False, found
    return True, ""


def _uncertain(expression: JavaObject) -> str:
    what = kind(expression)
    if what in _PER_QUERY:
        return _PER_QUERY[what]
    if what in _SUBQUERIES:  # their plans are walked on their own
        return ""
    for child in items(expression.children()):
        found = _uncertain(child)
        if found:
            return found
    if expression.deterministic():
        return ""
    if what in _RANDOM:
        return _RANDOM[what]
    if what in ("PythonUDF", "ScalaUDF", "PythonUDAF"):
        return f"{expression.name()} (a user function)"
    return f"{expression.prettyName()}()" if what != "Alias" else ""


def substitute_leaves(
    session: SparkSession, frame: DataFrame, replacement: LeafReplacement, catalog: str
) -> DataFrame:
    """Copy the analysed plan with new read options on each leaf that is a table of `catalog`.

    Each occurrence is asked for on its own, numbered from 0 in reading order, so that a caller can
    make the i-th leaf the delta and the others the old state.

    Args:
        session: where the copy lives.
        frame: a DataFrame whose lake leaves are children, not hidden in subquery expressions;
            those stay as they are (a linear plan has none).
        replacement: see `LeafReplacement`.
        catalog: the lake catalog's name.
    """
    jvm = session._jvm  # noqa: SLF001
    assert jvm is not None
    count = 0

    def leaf(node: JavaObject) -> JavaObject:
        nonlocal count
        if kind(node) != "DataSourceV2Relation" or (name := lake_table(node, catalog)) is None:
            return node
        options = replacement(name, count)
        count += 1
        if options is None:
            return jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
                node.output(), scala_seq(session, []), _NOT_STREAMING, jvm.scala.Option.empty()
            )
        merged = jvm.java.util.HashMap(node.options().asCaseSensitiveMap())
        table, travel = node.table(), node.timeTravelSpec()
        for key, value in options.items():
            if key == VERSION_OPTION:
                # Iceberg refuses it as a read option: the relation's table itself must be of that version.
                table = node.catalog().get().loadTable(node.identifier().get(), value)
                travel = jvm.scala.Option.apply(jvm.org.apache.spark.sql.catalyst.analysis.AsOfVersion(value))
            else:
                merged.put(key, value)
        text_map = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(merged)
        return node.copy(table, node.output(), node.catalog(), node.identifier(), text_map, travel)

    return dataframe_of_plan(session, replace_leaves(session, analyzed_plan(frame), leaf))


def replace_leaves(
    session: SparkSession, plan: JavaObject, leaf: Callable[[JavaObject], JavaObject]
) -> JavaObject:
    """A copy of a plan with its leaves replaced, in reading order. Subqueries in expressions stay."""
    children = plan.children()
    if children.size() == 0:
        return leaf(plan)
    copies = [replace_leaves(session, child, leaf) for child in items(children)]
    return plan.withNewChildren(scala_seq(session, copies))
