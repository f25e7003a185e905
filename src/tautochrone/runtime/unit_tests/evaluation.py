"""The rows of a dataset over given rows of its inputs, by the evaluation that a run has.

A definition is evaluated over the empty tables of the analysis, and rows take the place of these tables. An
input that is not given is empty, but for one that is computed from a given one. Nothing is read from the
lake, the store or a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError, RefreshError
from tautochrone.iceberg.sessions.spark_sessions import EmptyCatalog
from tautochrone.ingest.staging import align, require_expectations_met
from tautochrone.model.auto_cdc import keyed_apply_of
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import NOW, TableName, Version, is_clock, quoted, time_zone_of
from tautochrone.project.definitions import is_view
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.runtime.merges.event_merges import auto_cdc_of, merged_rows
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, inputs_of, lake_table
from tautochrone.spark.analysis.current_time import clock_row, clocks_of, date_in_zone, with_fixed_time
from tautochrone.spark.analysis.session_context import dataframe_of_plan, tuned_session, use_session
from tautochrone.spark.execute.expectations import violations, without_flags
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.jvm.catalyst import items, kind, plan_and_subqueries
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.sources.registry import is_stream_leaf
from tautochrone.spark.sources.stream_as_batch import over_rows

__all__ = ["Evaluation", "StandIns", "empty_rows", "schema_of", "unsupported_error"]

_NAMESPACE = ("_tautochrone",)
_NO_INPUTS = frozenset(
    {"LocalRelation", "LogicalRDD", "OneRowRelation", "Range", "CTERelationRef", "OuterReference"}
)
"""Leaves of plans that read nothing: `LogicalRDD` are rows that a Python definition gives to Spark."""


def unsupported_error(name: TableName, graph: Graph, why: str) -> DefinitionError:
    """The error for a dataset that no unit test can compute."""
    dataset = graph.definitions.datasets.get(name)
    return DefinitionError(
        "UNIT_TEST_NOT_SUPPORTED",
        f"{name.without_catalog} cannot be computed in a unit test: {why}",
        sqlstate="0A000",
        location=None if dataset is None else str(dataset.location),
        hint="Give its rows as an input, and test what reads it.",
    )


def schema_of(graph: Graph, name: TableName) -> StructType:
    """The columns of a dataset, a table of the lake, or a table of files."""
    if name in graph.schemas:
        return graph.schemas[name]
    assert graph.analysis_session is not None
    schema: StructType = graph.analysis_session.table(name.sql).schema
    return schema


def empty_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """No row, as a local relation."""
    frame = session.createDataFrame([], schema)
    return dataframe_of_plan(session, local_relation(frame)[0])


class StandIns:
    """Tables that stand for views whose rows are given: a change of a table can be followed.

    They are created in the empty catalog of the analysis, once for all tests.
    """

    def __init__(self, graph: Graph, base: SparkSession, catalog: str) -> None:
        self._graph = graph
        self._tables = EmptyCatalog(base, catalog, graph.analysis_session)

    def register(self, view: TableName) -> DataFrame:
        """The view's columns, read from its table, which is empty."""
        schema, table = self._graph.schemas[view], self.table(view)
        if table not in self._tables.tables:
            self._tables.create_table(table, schema)
        rows = self._tables.session.table(table.sql)
        return rows.select(*(rows[f.name].cast(f.dataType).alias(f.name) for f in schema.fields))

    def table(self, view: TableName) -> TableName:
        """The name of the table that stands for a view."""
        return TableName(
            self._tables.catalog, _NAMESPACE, f"given__{'__'.join(view.namespace)}__{view.table}"
        )


@dataclass(slots=True)
class Evaluation:
    """The rows of all datasets over the same given rows. Each is computed once.

    Attributes:
        given: rows by dataset or table, local relations.
        source: rows for a stream from outside the lake; None: none are given.
        now: the current time, in microseconds since 1970.
    """

    graph: Graph
    catalog: str
    stand_ins: StandIns
    given: Mapping[TableName, DataFrame]
    source: DataFrame | None
    now: int
    _computed: dict[TableName, DataFrame] = field(default_factory=dict)

    @property
    def session(self) -> SparkSession:
        session = self.graph.analysis_session
        assert session is not None
        return session

    def result(self, model: TableName) -> DataFrame:
        """The rows of the tested dataset, as its table would have them: a local relation.

        Raises:
            DefinitionError: `UNIT_TEST_NOT_SUPPORTED`, or what the query's evaluation raises.
            ExpectationError: a row violates an expectation that fails.
            RefreshError: Spark's class; the query fails on the rows.
        """
        return self._compute(model)

    def rows(self, name: TableName) -> DataFrame:
        """The rows of an input: given, computed from given ones, or none."""
        if name in self.given:
            return self.given[name]
        if name not in self._computed:
            is_computed = name in self.graph.definitions.datasets and self.is_over_given(name)
            self._computed[name] = (
                self._compute(name) if is_computed else empty_rows(self.session, schema_of(self.graph, name))
            )
        return self._computed[name]

    def is_over_given(self, name: TableName, above: frozenset[TableName] = frozenset()) -> bool:
        """Whether any rows are given for what a dataset is computed from."""
        if name in above:
            return False
        inputs = [self.graph.inputs(name)]
        views = frozenset().union(*(flow.views for flow in self.graph.flows_of(name)))
        if self.source is not None and any(each.external_streams for each in inputs):
            return True
        below = frozenset().union(*(each.tables for each in inputs)) | views
        return any(each in self.given or self.is_over_given(each, above | {name}) for each in sorted(below))

    def query(self, flow: ResolvedFlow, *, with_dropped: bool = True) -> DataFrame:
        """A flow's query over the empty tables, with given views as tables of their own."""
        definitions = self.graph.definitions

        def evaluate(view: TableName) -> DataFrame:
            if view in self.given:
                return self.stand_ins.register(view)
            return definitions.flows_of(view)[0].evaluate(self.session)

        definitions.prepare(self.session, flow.views, evaluate)
        return flow.evaluate(self.session, with_dropped=with_dropped)

    def flagged_query(self, name: TableName, flow: ResolvedFlow) -> DataFrame:
        """The query of a materialized view with the columns of its table and the flags of expectations."""
        rows = align(self.query(flow), self.graph.schemas[name], flow.flow.name)
        return flow.flow.with_flags(rows)

    def over_given(self, name: TableName, frame: DataFrame) -> DataFrame:
        """A query of `query` over the given rows, at the time of the test.

        Raises:
            DefinitionError: `UNIT_TEST_NOT_SUPPORTED`.
        """
        by_stand_in = {self.stand_ins.table(view): view for view in self.given if self._is_view(view)}

        def rows_of(leaf: JavaObject) -> DataFrame | None:
            is_stream = is_stream_leaf(leaf)
            is_table = is_stream or kind(leaf) == "DataSourceV2Relation"
            table = lake_table(leaf, self.catalog) if is_table and kind(leaf) != "StreamingRelation" else None
            if table is not None:
                return self.rows(by_stand_in.get(table, table))
            return self.source if is_stream else None

        try:
            replaced = over_rows(frame, rows_of)
        except KeyError as error:
            why = f"it reads the column {error.args[0]}, which describes files"
            raise unsupported_error(name, self.graph, why) from error
        plan = analyzed_plan(replaced)
        leaves = [leaf for root in plan_and_subqueries(plan) for leaf in items(root.collectLeaves())]
        if any(map(is_stream_leaf, leaves)):
            raise unsupported_error(name, self.graph, "the rows of its source are not given")
        if not {kind(leaf) for leaf in leaves} <= _NO_INPUTS:
            left = inputs_of(plan, self.catalog)
            reads = ", ".join([*left.unversioned, *map(str, sorted(left.tables))])
            raise unsupported_error(name, self.graph, f"it reads {reads}")
        return with_fixed_time(replaced, self.clocks(plan))

    def clocks(self, plan: JavaObject) -> Mapping[TableName, Version]:
        """The time of the test as the versions of the clocks that a plan reads."""
        return {
            clock: Version(
                str(self.now if clock == NOW else date_in_zone(self.session, time_zone_of(clock), self.now))
            )
            for clock in clocks_of(plan)
        }

    def rows_of_scan(self, table: TableName) -> DataFrame:
        """The rows of a table, or of a clock, that a plan over the empty tables reads: a local relation."""
        if is_clock(table):
            micros = self.now
            version = micros if table == NOW else date_in_zone(self.session, time_zone_of(table), micros)
            row = clock_row(self.session, table, Version(str(version)))
            return dataframe_of_plan(self.session, local_relation(row)[0])
        by_stand_in = {self.stand_ins.table(view): view for view in self.given if self._is_view(view)}
        return self.rows(by_stand_in.get(table, table))

    def _is_view(self, name: TableName) -> bool:
        dataset = self.graph.definitions.datasets.get(name)
        return dataset is not None and is_view(dataset)

    # -- computing ---------------------------------------------------------------------------------------

    def _compute(self, name: TableName) -> DataFrame:
        dataset, flows = self.graph.definitions.datasets[name], self.graph.flows_of(name)
        why_not = self._why_not(name, flows)
        if why_not is not None:
            raise unsupported_error(name, self.graph, why_not)
        try:
            if auto_cdc_of(flows) is not None:
                rows = self._merged(name, flows)
            else:
                parts = [self._of_flow(name, flow) for flow in flows]
                rows = self.local(reduce(DataFrame.unionAll, parts), flows[0])
            self._check_not_null(name, rows)
            return rows
        except (PySparkException, Py4JJavaError) as error:
            problem = problem_of(error)
            raise RefreshError(
                problem.error_class,
                f"{name.without_catalog} fails on the rows of the test: {problem.message}",
                sqlstate=problem.sqlstate,
                location=str(dataset.location),
            ) from error

    def _check_not_null(self, name: TableName, rows: DataFrame) -> None:
        """Refuse rows that the table could not hold."""
        for column in self.graph.schemas[name].fields:
            if not column.nullable and rows.where(rows[quoted(column.name)].isNull()).count():
                raise RefreshError(
                    "NOT_NULL_ASSERT_VIOLATION",
                    f"{name.without_catalog} gives NULL for its column {column.name}, which is NOT NULL",
                    sqlstate="42000",
                    location=str(self.graph.definitions.datasets[name].location),
                    hint="A run would fail on such a row.",
                )

    def _why_not(self, name: TableName, flows: tuple[ResolvedFlow, ...]) -> str | None:
        """Why rows of inputs do not say which rows a dataset has, or None."""
        dataset = self.graph.definitions.datasets[name]
        if dataset.kind is DatasetKind.SINK or not flows:
            return "no query of the pipeline writes it"
        if dataset.bad_records_of is not None:
            return "it takes bad records"
        if keyed_apply_of(dataset.properties, str(dataset.location)) is not None:
            return "it is merged by key from a log"
        cdc = auto_cdc_of(flows)
        if cdc is not None and (cdc.snapshots_of is not None or any(f.flow.snapshots for f in flows)):
            return "it takes the differences of snapshots"
        stateful = next((flow.stateful_reason for flow in flows if flow.stateful), None)
        return None if stateful is None else f"its stream keeps a state between batches: {stateful}"

    def _of_flow(self, name: TableName, flow: ResolvedFlow) -> DataFrame:
        """The rows that one flow writes, those that expectations drop left out."""
        expectations = flow.flow.expectations
        if self._is_view(name):
            return self.over_given(name, self.query(flow, with_dropped=False))
        flagged = self.local(self.over_given(name, self.flagged_query(name, flow)), flow)
        counted = violations(flagged, expectations)
        require_expectations_met(name, flagged, expectations, counted)
        return without_flags(flagged, expectations)

    def _merged(self, name: TableName, flows: tuple[ResolvedFlow, ...]) -> DataFrame:
        """All given events, merged at once."""
        parts = [self.over_given(name, self.query(flow, with_dropped=False)) for flow in flows]
        dataset = self.graph.definitions.datasets[name]
        merged = merged_rows(flows, parts, self.graph.schemas[name], dataset)
        return self.local(merged, flows[0])

    def local(self, frame: DataFrame, flow: ResolvedFlow) -> DataFrame:
        """Rows computed now, with the settings of a flow, and kept on the driver."""
        scope = flow.flow.scope
        with (
            use_session(self.session, scope.catalog, scope.namespace, flow.flow.conf),
            tuned_session(self.session, delta_rows=0, input_rows=0),
        ):
            return dataframe_of_plan(self.session, local_relation(frame)[0])
