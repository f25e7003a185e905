"""Inspecting analyzed Catalyst plans over Py4J: what they read, and what kind of query they are.

Every call into the JVM takes about 0.2 ms. So properties that Catalyst itself computes (`deterministic`,
pattern bits, `subqueriesAll`) are used first, and trees are traversed only when needed.

`relations_of` gets a plan that is only parsed, `most_rows` also one that is optimized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.definitions import FlowInputs
from tautochrone.model.names import TableName
from tautochrone.spark.analysis.current_time import clocks_of, reads_current_time
from tautochrone.spark.analysis.session_context import dataframe_of_plan, scala_seq
from tautochrone.spark.jvm.catalyst import (
    Catalyst,
    children_of,
    items,
    kind,
    plan_and_subqueries,
    walk,
    walk_with_subqueries,
)
from tautochrone.spark.jvm.driver_calls import compiled_class, driver_calls

__all__ = [
    "DERIVED",
    "VERSION_OPTION",
    "LeafReplacement",
    "PlanText",
    "PythonCommand",
    "analyzed_plan",
    "determinism",
    "inputs_of",
    "lake_table",
    "linearity",
    "most_rows",
    "plan_text",
    "relations_of",
    "replace_leaves",
    "stateful_node",
    "substitute_leaves",
    "temp_views_of",
]

LeafReplacement = Callable[[TableName, int], Mapping[str, str] | None]
"""Called with a lake table and the number of its leaf; returns read options, or None for an empty leaf."""

VERSION_OPTION = "snapshot-id"
"""The option for the whole table at one version; other options are passed to the reader unchanged."""

_LINEAR = frozenset(
    {
        "Project", "Filter", "Union", "Generate", "SubqueryAlias", "View", "DataSourceV2Relation",
        # Order and partitioning do not change a multiset of rows.
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
_CONSTANT_PER_QUERY = {"CurrentTime": "current_time()", "CurrentUser": "current_user()"}
"""Constant within a query, so Catalyst calls them deterministic; the next query may return other values."""

_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery"})
_NONDETERMINISTIC = {
    "Rand": "rand()", "Randn": "randn()", "Uuid": "uuid()", "Shuffle": "shuffle()",
    "MonotonicallyIncreasingID": "monotonically_increasing_id()", "SparkPartitionID": "spark_partition_id()",
}  # fmt: skip


def analyzed_plan(frame: DataFrame) -> JavaObject:
    """A DataFrame's analyzed logical plan."""
    plan: JavaObject = driver_calls().analyzed(frame._jdf)  # noqa: SLF001
    return plan


def _table(relation: JavaObject) -> TableName | None:
    """The relation's name in its catalog; None when it was loaded without a catalog."""
    catalog, identifier = relation.catalog(), relation.identifier()
    if not (catalog.isDefined() and identifier.isDefined()):
        return None
    name = identifier.get()
    return TableName(str(catalog.get().name()), tuple(str(p) for p in name.namespace()), str(name.name()))


def lake_table(relation: JavaObject, catalog: str) -> TableName | None:
    """The relation's name if it is a table of `catalog`, else None."""
    name = _table(relation)
    return name if name is not None and name.catalog == catalog else None


def inputs_of(plan: JavaObject, catalog: str) -> FlowInputs:
    """The inputs of an analyzed plan; tables of `catalog` are lake tables."""
    batch: set[TableName] = set()
    stream: set[TableName] = set()
    unversioned: dict[str, None] = {}
    external = False
    for root in plan_and_subqueries(plan):
        for leaf in items(root.collectLeaves()):
            leaf_kind = kind(leaf)
            if leaf_kind in ("StreamingRelationV2", "StreamingRelation", "StreamingDataSourceV2Relation"):
                name = None if leaf_kind == "StreamingRelation" else lake_table(leaf, catalog)
                if name is None:
                    external = True
                else:
                    stream.add(name)
            elif leaf_kind == "DataSourceV2Relation" and (name := lake_table(leaf, catalog)) is not None:
                batch.add(name)
            elif leaf_kind not in ("CTERelationRef", "OuterReference", *_CONSTANT):
                unversioned[_describe(leaf)] = None
    # A stream takes the current time from its batch, not from a clock.
    clocks = frozenset[TableName]() if plan.isStreaming() else frozenset(clocks_of(plan))
    return FlowInputs(frozenset(batch), frozenset(stream), external, tuple(unversioned), clocks)


def _describe(leaf: JavaObject) -> str:
    leaf_kind = kind(leaf)
    if leaf_kind == "DataSourceV2Relation":
        return str(_table(leaf) or leaf.table().name())
    if leaf_kind == "LogicalRelation":
        relation = leaf.relation()
        if kind(relation) == "HadoopFsRelation":
            file_format = str(relation.fileFormat().toString()).lower()
            paths = ",".join(str(path) for path in items(relation.location().rootPaths()))
            return f"{file_format}:{paths.replace('file:', '', 1)}"
        return str(relation.toString())
    return "local data"


def temp_views_of(plan: JavaObject) -> frozenset[str]:
    """Names of the temporary views that an analyzed plan reads through."""
    names = (node.desc().identifier().table() for node in walk_with_subqueries(plan) if kind(node) == "View")
    return frozenset(str(name) for name in names)


def stateful_node(plan: JavaObject) -> str | None:
    """The kind of the first node for which a streaming query keeps state; None if there is none."""
    for node in walk_with_subqueries(plan):
        if not node.isStreaming():
            continue
        node_kind = kind(node)
        if node_kind in _STATEFUL:
            return node_kind
        if node_kind == "Join" and node.left().isStreaming() and node.right().isStreaming():
            return "stream-stream Join"
    return None


def linearity(plan: JavaObject, catalog: str) -> tuple[bool, str]:
    """Whether f(A ∪ Δ) = f(A) ∪ f(Δ) holds for every node, and the reason when it does not."""
    if plan.isStreaming():
        return False, "the query is a stream"
    if plan.subqueriesAll().size() > 0:
        return False, "subquery in an expression"
    for node in walk(plan):
        node_kind = kind(node)
        if node_kind not in _LINEAR:
            is_leaf = node.children().size() == 0
            return False, f"{_describe(node)} is no lake table" if is_leaf else node_kind
        if node_kind == "DataSourceV2Relation" and lake_table(node, catalog) is None:
            return False, f"{_describe(node)} is no lake table"
    for function in clocks_of(plan).values():
        return False, f"{function} has another value at each checkpoint"
    return determinism(plan)


def forwarded_table(plan: JavaObject, catalog: str) -> TableName | None:
    """The lake table whose rows a streaming query returns unchanged, with all columns in order, or None."""
    columns = str(plan.output())
    while kind(plan) in ("SubqueryAlias", "Project", "View"):
        (plan,) = children_of(plan)
    is_table = kind(plan) in ("StreamingRelationV2", "StreamingDataSourceV2Relation")
    # Every column has an id of its own, so equal texts mean the same columns.
    return lake_table(plan, catalog) if is_table and str(plan.output()) == columns else None


def determinism(plan: JavaObject) -> tuple[bool, str]:
    """Whether the query returns the same rows again at the same time, and the function by which it would
    not."""
    plans = list(plan_and_subqueries(plan))
    if all(root.deterministic() for root in plans) and not any(reads_current_time(root) for root in plans):
        return True, ""
    for root in plans:
        for node in walk(root):
            for expression in items(node.expressions()):
                function = _nondeterministic_part(expression)
                if function:
                    return False, function
    return True, ""


def _nondeterministic_part(expression: JavaObject) -> str:
    expression_kind = kind(expression)
    if expression_kind in _CONSTANT_PER_QUERY:
        return _CONSTANT_PER_QUERY[expression_kind]
    if expression_kind in _SUBQUERIES:  # The caller visits their plans.
        return ""
    for child in children_of(expression):
        function = _nondeterministic_part(child)
        if function:
            return function
    if expression.deterministic():
        return ""
    if expression_kind in _NONDETERMINISTIC:
        return _NONDETERMINISTIC[expression_kind]
    if expression_kind in ("PythonUDF", "ScalaUDF", "PythonUDAF"):
        return f"{expression.name()} (a user function)"
    return f"{expression.prettyName()}()" if expression_kind != "Alias" else ""


def substitute_leaves(
    session: SparkSession, frame: DataFrame, replacement: LeafReplacement, catalog: str
) -> DataFrame:
    """A copy of a DataFrame with new read options on each leaf that is a table of `catalog`.

    `replacement` is called for each occurrence of a table, numbered from 0 in reading order, so that a caller
    can replace the i-th leaf by the delta and the others by the old state.

    Args:
        session: of the copy.
        frame: a DataFrame without subquery expressions over lake tables: leaves in those stay unchanged (a
            linear plan has none).
        replacement: see `LeafReplacement`.
        catalog: the lake catalog's name.
    """
    catalyst = Catalyst(session)
    leaf_number = 0

    def leaf(node: JavaObject) -> JavaObject:
        nonlocal leaf_number
        if kind(node) != "DataSourceV2Relation" or (name := lake_table(node, catalog)) is None:
            return node
        options = replacement(name, leaf_number)
        leaf_number += 1
        if options is None:
            return catalyst.local_relation(node.output(), catalyst.seq())
        return _with_options(catalyst, node, options)

    return dataframe_of_plan(session, replace_leaves(session, analyzed_plan(frame), leaf))


def _with_options(catalyst: Catalyst, relation: JavaObject, options: Mapping[str, str]) -> JavaObject:
    """A copy of a relation with these read options besides its own."""
    merged = catalyst.jvm.java.util.HashMap(relation.options().asCaseSensitiveMap())
    table, time_travel = relation.table(), relation.timeTravelSpec()
    for key, value in options.items():
        if key == VERSION_OPTION:
            # Iceberg does not accept it as a read option: the table itself must be loaded at that version.
            table = relation.catalog().get().loadTable(relation.identifier().get(), value)
            time_travel = catalyst.option(catalyst.spark_sql_class("catalyst.analysis.AsOfVersion")(value))
        else:
            merged.put(key, value)
    options_map = catalyst.spark_sql_class("util.CaseInsensitiveStringMap")(merged)
    return relation.copy(
        table, relation.output(), relation.catalog(), relation.identifier(), options_map, time_travel
    )


def replace_leaves(
    session: SparkSession, plan: JavaObject, leaf: Callable[[JavaObject], JavaObject]
) -> JavaObject:
    """A copy of a plan with its leaves replaced, in reading order; subqueries in expressions stay
    unchanged."""
    children = plan.children()
    if children.size() == 0:
        return leaf(plan)
    copies = [replace_leaves(session, child, leaf) for child in items(children)]
    return plan.withNewChildren(scala_seq(session, copies))


_AT_MOST_THE_ROWS_OF_THE_CHILD = frozenset(
    {"Project", "Filter", "Sort", "Window", "SubqueryAlias", "RepartitionByExpression", "Repartition"}
)
_INNER = frozenset({"Inner", "Cross"})
_LEFT_ROWS = frozenset({"LeftSemi", "LeftAnti", "LeftSingle"})


def most_rows(plan: JavaObject) -> int | None:
    """The largest number of rows; None when it depends on the tables.

    Besides what Spark knows: groups by constants and by booleans, and operators over those.
    """
    known = plan.maxRows()
    if known.isDefined():
        return int(str(known.get()))
    name = kind(plan)
    if name in _AT_MOST_THE_ROWS_OF_THE_CHILD:
        return most_rows(plan.child())
    if name == "Aggregate":
        groups = [_most_values(key) for key in items(plan.groupingExpressions())]
        return prod(number for number in groups if number) if all(groups) else most_rows(plan.child())
    if name == "Union":
        bounds = [most_rows(child) for child in children_of(plan)]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)
    if name == "Join":
        join = kind(plan.joinType())
        if join in _LEFT_ROWS:
            return most_rows(plan.left())
        left, right = most_rows(plan.left()), most_rows(plan.right())
        return left * right if join in _INNER and left is not None and right is not None else None
    return None


def _most_values(key: JavaObject) -> int | None:
    """How many values, with NULL, an expression can have."""
    if key.foldable():
        return 1
    if str(key.dataType().catalogString()) != "boolean":
        return None
    return 3 if key.nullable() else 2


def relations_of(plan: JavaObject) -> list[tuple[str, ...]]:
    """The name parts of each relation that a parsed query reads, in order and without duplicates.

    An unqualified name that is also the name of one of the query's CTEs is left out everywhere, even outside
    the scope of the CTE.
    """
    names: dict[tuple[str, ...], None] = {}
    ctes: set[str] = set()
    _collect(plan, names, ctes)
    return [parts for parts in names if len(parts) > 1 or parts[0].lower() not in ctes]


def _collect(plan: JavaObject, names: dict[tuple[str, ...], None], ctes: set[str]) -> None:
    for node in walk_with_subqueries(plan):
        match kind(node):
            case "UnresolvedRelation":
                names[tuple(str(part) for part in items(node.multipartIdentifier()))] = None
            case "UnresolvedWith":
                for pair in items(node.cteRelations()):
                    ctes.add(str(pair._1()).lower())  # noqa: SLF001
                    _collect(pair._2(), names, ctes)  # noqa: SLF001


# -- plans as text ---------------------------------------------------------------------------------


DERIVED = "~"


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A function that Python runs in a plan: what PySpark pickled, and the files of its broadcasts by id."""

    pickled: bytes
    broadcasts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class PlanText:
    """The text of a plan.

    Attributes:
        tokens: the text. Plans with the same tokens and the same functions give the same rows. Those that
            begin with `DERIVED` follow from the types of the columns that the plan reads.
        inputs: the columns of tables and files that the plan reads, with their types.
        functions: what the tokens `python 0`, `python 1`, … stand for.
        sources: names of tables that belong to no catalog.
        opaque: classes of values of which only the class is in the text.
    """

    tokens: tuple[str, ...]
    inputs: tuple[str, ...]
    functions: tuple[PythonCommand, ...]
    sources: tuple[str, ...]
    opaque: tuple[str, ...]


def plan_text(session: SparkSession, plan: JavaObject, secret: str) -> PlanText:
    """The text of an analyzed plan by which a definition is recognised as changed: the same in every process.

    A call into the JVM for each node would take a second for a plan of some hundred nodes. So the plan is
    walked inside the JVM, by `PlanText.java`, which the compiler compiles that Spark has for its own
    generated code. Rows that the driver gave to Spark are read by a job.

    Args:
        session: any.
        secret: a regular expression for names of options that are left out.
    """
    compiled = compiled_class(Path(__file__).with_name("PlanText.java"))
    text = driver_calls().newInstance(compiled, session._jsparkSession, plan, secret)  # noqa: SLF001
    return PlanText(
        tokens=tuple(str(text.text()).split("\n")[:-1]),
        inputs=tuple(str(text.inputs()).splitlines()),
        functions=tuple(_command(text, number) for number in range(text.functions())),
        sources=tuple(str(text.sources()).splitlines()),
        opaque=tuple(str(text.opaque()).splitlines()),
    )


def _command(text: JavaObject, number: int) -> PythonCommand:
    broadcasts = (line.split(" ", 1) for line in str(text.broadcasts(number)).splitlines())
    return PythonCommand(bytes(text.command(number)), tuple((int(key), path) for key, path in broadcasts))
